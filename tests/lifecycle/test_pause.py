"""pause and resume: what they store and answer. What a claim makes of it stands in test_claim."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from pgbroker.lifecycle.pause import Target, pause, resume
from pgbroker.models import Pause
from tests.support.jobs import claim_one, completed, enqueue_one, queue_id, settle_one, type_id

pytestmark = pytest.mark.django_db
TARGETS = [
    Target(queue="default"),
    Target(job_type="tests.ok"),
    Target(tenant="acme"),
    Target(queue="default", tenant="acme"),
]


@pytest.fixture(autouse=True)
def declared() -> None:
    queue_id(), type_id()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.kind)
def test_a_pause_is_one_row_with_who_and_why(target):
    number, until = pause(target, by="ann", reason="import runs")

    stored = Pause.objects.get()
    assert (stored.pk, until, stored.kind) == (number, None, target.kind)
    assert (stored.by, stored.reason, stored.tenant) == ("ann", "import runs", target.tenant)
    assert (stored.queue_id is not None, stored.job_type_id is not None) == (
        target.queue is not None, target.job_type is not None,
    )  # fmt: skip


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.kind)
def test_a_second_pause_replaces_the_first_and_one_resume_ends_it(target):
    first, _ = pause(target, by="ann")
    second, until = pause(target, duration=timedelta(hours=1), by="bob")

    assert first == second
    assert abs(until - timezone.now() - timedelta(hours=1)) < timedelta(seconds=30)
    assert Pause.objects.get().by == "bob"
    assert resume(target) == (queue_id() if target.queue else 0)
    assert resume(target) is None
    assert not Pause.objects.exists()


def test_pauses_of_different_kinds_stand_beside_each_other():
    for target in TARGETS:
        pause(target)

    for left, target in zip((3, 2, 1, 0), TARGETS, strict=True):
        assert resume(target) is not None
        assert Pause.objects.count() == left


@pytest.mark.parametrize(
    "target",
    [Target(queue="nowhere"), Target(job_type="tests.nobody"), Target(queue="nowhere", tenant="acme")],
    ids=str,
)
def test_a_name_that_does_not_exist_pauses_nothing(target):
    assert pause(target) is None
    assert resume(target) is None
    assert not Pause.objects.exists()


def test_resuming_a_queue_that_does_not_exist_ends_no_other_pause():
    pause(Target(tenant="acme"))

    assert resume(Target(queue="nowhere", tenant="acme")) is None
    assert Pause.objects.count() == 1


def test_running_jobs_go_on():
    enqueue_one()
    lease = claim_one()
    pause(Target(queue="default"))

    assert settle_one(completed(lease)).status == 10

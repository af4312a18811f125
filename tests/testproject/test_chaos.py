"""The chaos suite: its judge sees every kind of harm, and its short form finds none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest
from django.db import connection

from pgbroker.ids import new_id
from pgbroker.lifecycle.promote import promote
from pgbroker.states import Status
from testproject import database
from testproject.chaos import judge, pace
from tests.support.jobs import claim_many, completed, enqueue_one, failed, guards_off, queue_id, settle_one

ROOT = Path(database.__file__).parent.parent


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "testproject.chaos", *arguments],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


# ------------------------------------------------------------------ the short form


def test_the_short_form_harms_no_job():
    done = chaos("--quick")

    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["name"] for line in lines] == [
        "workers-killed-while-the-server-crashes",
        "connections-forgotten",
    ], done.stderr
    for line in lines:
        harmed = {kind: line[kind] for kind in ("lost", "doubled", "stranded", "inconsistent")}
        assert harmed == {"lost": 0, "doubled": 0, "stranded": 0, "inconsistent": 0}, line
        assert line["recovery_seconds"] is not None, line
        assert line["jobs"] > 100
        assert line["quick"]
    assert -9 in lines[0]["restarts"]
    assert done.returncode == (0 if all(line["holds"] for line in lines) else 1)


def test_the_list_names_every_scenario_and_starts_nothing():
    done = chaos("--list")

    names = {line for line in done.stdout.splitlines() if not line.startswith(" ")}
    assert done.returncode == 0
    assert names >= {
        "worker-killed-once", "workers-killed-repeatedly", "worker-stopped-and-continued", "server-restarted",
        "server-crashed", "backends-killed-steadily", "connections-exhausted", "held-snapshot",
        "analytic-readers", "network-swallows", "clocks-minutes-off", "graphs",
    }  # fmt: skip


def test_a_scenario_that_does_not_exist_is_refused_with_those_that_do():
    done = chaos("server-crushed")

    assert done.returncode == 2
    assert "unknown scenario: server-crushed; known: worker-killed-once, " in done.stderr


# ------------------------------------------------------------------ the pace


def counts(*per_second: int) -> dict[int, int]:
    return {second: count for second, count in enumerate(per_second) if count}


@pytest.mark.parametrize(
    ("after", "recovery"),
    [
        ([50] * 14, 0),
        ([0, 0, 0, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50], 3),
        # What waited is done at once, and then there is as much to do as before.
        ([0, 0, 0, 110, 90, 50, 50, 50, 50, 50, 50, 50, 50, 50], 1),
        # Back for a moment is not back.
        ([50, 50, 50, 50, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], None),
        ([0] * 14, None),
        ([47] * 14, None),
    ],
)
def test_throughput_is_back_when_it_is_what_it_was_and_stays(after, recovery):
    assert pace.recovery(counts(*after), until=14, before=50) == recovery


def test_what_is_usual_is_no_single_second():
    assert pace.usual(counts(40, 60, 40, 60, 0, 100, 40, 60), 0, 8) == 50


# ------------------------------------------------------------------ the judge

pytestmark = pytest.mark.django_db


@pytest.fixture
def ledger(settings, db: None) -> dict[UUID, Status]:
    """Two jobs that completed, one of them at the second attempt, and nothing to blame anybody for."""
    settings.PGBROKER = {"EVENTS": "all"}
    with connection.cursor() as cursor:
        cursor.execute(
            "create table public.chaos_effect (job_id uuid, attempt_no int, lease_token bigint, worker_id uuid)"
        )
    ids = [enqueue_one(), enqueue_one()]
    for number in (1, 2):
        for lease in claim_many():
            with connection.cursor() as cursor:
                cursor.execute(
                    "insert into public.chaos_effect values (%s, %s, %s, %s)",
                    [lease.job_id, lease.attempt_count, lease.lease_token, lease.worker_id],
                )
            first = number == 1 and lease.job_id == ids[1]
            settle_one(failed(lease) if first else completed(lease))
        promote([queue_id()], limit=10)
    return dict.fromkeys(ids, Status.COMPLETED)


def change(statement: str, *parameters: object) -> None:
    with guards_off(), connection.cursor() as cursor:
        cursor.execute(
            "select set_config('pgbroker.scope', 'all', true), set_config('pgbroker.events', 'off', true)"
        )
        cursor.execute(statement, parameters or None)


def test_the_judge_blames_nobody_where_all_is_well(ledger):
    found = judge.verdict(ledger)

    assert found.is_clean, found.trouble
    assert found.attempts == {"completed": 2, "failed": 1}
    # At least once: the attempt that failed had done its work.
    assert found.repeated == {"failed": 1}


def test_the_judge_sees_a_job_that_is_not_there_or_ended_otherwise(ledger):
    first, _ = ledger

    found = judge.verdict({**ledger, first: Status.FAILED, new_id(): Status.COMPLETED})

    assert (found.lost, found.doubled, found.stranded) == (2, 0, 0)
    assert not found.is_clean


def test_the_judge_sees_a_job_that_has_not_ended(ledger):
    found = judge.verdict({**ledger, enqueue_one(): Status.COMPLETED})

    assert (found.lost, found.doubled, found.stranded) == (0, 0, 1)


def test_the_judge_sees_a_job_that_nobody_asked_for(ledger):
    enqueue_one()

    assert judge.verdict(ledger).doubled == 1


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        ("insert into public.chaos_effect select * from public.chaos_effect limit 1", "doubled"),
        (
            "insert into pgbroker.execution (job_id, tenant_id, attempt_no, state) "
            "select job_id, tenant_id, 2, 1 from pgbroker.execution where state = 1 and attempt_no = 1",
            "doubled",
        ),
        ("delete from pgbroker.execution where state = 2", "inconsistent"),
        ("update pgbroker.job set attempt_count = attempt_count + 1", "inconsistent"),
        ("delete from pgbroker.job_event where event = 10", "inconsistent"),
        (
            "insert into pgbroker.job_event (job_id, tenant_id, event) "
            "select job_id, tenant_id, 10 from pgbroker.job_event where event = 10",
            "inconsistent",
        ),
        ("delete from pgbroker.job_event where event = 3", "inconsistent"),
        ("update pgbroker.job_counter set done = done + 1", "inconsistent"),
        ("delete from public.chaos_effect", "inconsistent"),
    ],
)
def test_the_judge_sees_what_does_not_add_up(ledger, harm, kind):
    change(harm)

    assert getattr(judge.verdict(ledger), kind) > 0

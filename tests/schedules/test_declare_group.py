"""The run group of a declared schedule: what it takes, what is told where it is written, and who goes on."""

from __future__ import annotations

import pytest

from pgbroker import registry, run_group, schedule
from pgbroker.errors import InvalidSchedule
from pgbroker.models import RunGroup
from pgbroker.references import GroupRef
from pgbroker.schedules import operate
from pgbroker.schedules.declare import declarations
from pgbroker.schedules.sync import drift, speaks, sync, sync_if_newest
from tests.support.handlers import nothing

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fresh(monkeypatch) -> None:
    monkeypatch.setattr(declarations, "_known", {})
    registry.synchronise(using="default")


def declare(name: str = "refresh", calls=None, **changes):
    calls = [nothing.bind(), nothing.bind()] if calls is None else calls
    return schedule(name, calls, **{"cron": "0 2 * * *", "timezone": "UTC", **changes})


def test_the_group_of_a_tick_is_what_run_group_takes():
    with run_group("earlier") as earlier:
        earlier.enqueue(nothing)
    declare(
        group={
            "tolerate": "50%",
            "on_completed": nothing,
            "on_failed": nothing.bind(),
            "depends_on": [GroupRef("earlier")],
            "on_failure": "ignore",
        }
    )

    assert sync(using="default").created == ["refresh"]

    made = operate.run_now("refresh")
    group = RunGroup.objects.get(id=made.run_group_id)
    assert group.tolerate_percent == 50
    assert group.on_completed["job_type"] == group.on_failed["job_type"] == nothing.key
    assert drift(using="default") == []


@pytest.mark.parametrize(
    ("group", "told"),
    [
        ({"tolerate": "half"}, "group['tolerate'] is 'half'."),
        (
            {"tolerate_count": 1},
            "group['tolerate_count'] is no option of it. It takes tolerate, on_completed",
        ),
        ({"on_failed": "tell"}, "group['on_failed'] is a str. Give task.bind(...)."),
        ({"on_failure": "wait"}, "group['on_failure'] "),
        ({"depends_on": "earlier"}, "group['depends_on'] is a str."),
        ({"depends_on": [nothing.bind()]}, "group['depends_on'] has a call"),
        ([1], "group is a list."),
    ],
)
def test_a_wrong_group_is_told_where_it_is_written(group, told):
    with pytest.raises(InvalidSchedule) as raised:
        declare(group=group)

    assert "schedule 'refresh':" in str(raised.value)
    assert told in str(raised.value)


def test_several_mistakes_of_a_group_are_told_at_once():
    with pytest.raises(InvalidSchedule) as raised:
        declare(group={"tolerate": -1, "on_failure": "wait", "seal": False})

    assert [each.field for each in raised.value.troubles] == [
        "group['seal']", "group['tolerate']", "group['on_failure']",
    ]  # fmt: skip


@pytest.mark.parametrize("job", [nothing, [nothing.bind()]], ids=["task", "list of one"])
def test_a_schedule_of_one_job_has_no_group(job):
    with pytest.raises(InvalidSchedule, match="one job, which is in no run group"):
        declare(calls=job, group={"tolerate": 1})


def test_one_that_cannot_be_written_is_told_and_stops_no_other(monkeypatch):
    declare("good")
    declare("callback", group={"on_failed": nothing.bind(unknown=1)})
    declare("linked", group={"on_completed": nothing.options(name="end").bind()})
    strange = declare("strange")
    monkeypatch.setitem(strange.said, "jitter", "what no check has seen")

    done = sync(using="default")

    assert done.created == ["good"]
    left = {each.name: (each.what, each.detail) for each in done.left}
    assert {what for what, _ in left.values()} == {"invalid"}
    assert "unknown" in left["callback"][1]
    assert "group['on_completed'] has a name" in left["linked"][1]
    assert left["strange"][1].startswith("TypeError: ")
    assert sync_if_newest(using="default") is not None
    assert speaks(using="default") is False

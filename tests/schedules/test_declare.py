"""What the code declares becomes rows, once; what people changed since stays and is told."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from pgbroker import CatchUp, job, registry, schedule
from pgbroker.errors import DuplicateSchedule, InvalidArgument, InvalidOption, InvalidSchedule, InvalidTenant
from pgbroker.registry import synchronise
from pgbroker.schedules import operate
from pgbroker.schedules.declare import declarations
from pgbroker.schedules.sync import GONE, Drift, drift, sync
from pgbroker.schedules.tick import tick
from pgbroker.tenancy import tenant_context
from tests.support.handlers import nothing
from tests.support.schedules import jobs, minute, runs, set_row

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fresh(monkeypatch) -> None:
    monkeypatch.setattr(declarations, "_known", {})
    synchronise(using="default")


def declare(name: str = "nightly", task=nothing, **changes):
    return schedule(name, task, **{"cron": "0 2 * * *", "timezone": "UTC", **changes})


def test_a_declaration_touches_no_database(django_db_blocker):
    with django_db_blocker.block():
        declare()


def test_what_is_declared_becomes_a_row_and_fires():
    declare(overlap="skip", misfire=CatchUp(most=3, window=timedelta(hours=1)), jitter=0)

    done = sync(using="default")

    assert done == (["nightly"], [], [], [])
    line = operate.get_schedule("nightly")
    assert line.declared
    assert (line.overlap, line.misfire, line.misfire_count, line.misfire_window_seconds) == (
        "skip", "catch_up", 3, 3600,
    )  # fmt: skip
    assert line.template["jobs"][0]["job_type"] == nothing.key
    set_row(line.id, watermark=minute(1), next_run_at=minute(), zone_rules=line.zone_rules)
    set_row(line.id, expression=f"{minute().minute} {minute().hour} * * *")
    tick()
    assert [run.state for run in runs(line.id)] == ["created"]
    assert len(jobs()) == 1


def test_a_second_start_changes_nothing():
    declare()
    sync(using="default")
    before = operate.get_schedule("nightly")

    assert sync(using="default") == ([], [], [], [])
    assert operate.get_schedule("nightly").revision == before.revision


def test_what_the_code_says_anew_is_written():
    declare()
    sync(using="default")
    declarations.forget("nightly")
    declare(cron="0 3 * * *")
    assert drift(using="default") == [Drift("nightly", "default", "changed")]

    assert sync(using="default").updated == ["nightly"]
    assert operate.get_schedule("nightly").expression == "0 3 * * *"
    assert drift(using="default") == []


def test_what_somebody_edited_stays_and_is_told_until_the_code_says_something_new():
    declare()
    sync(using="default")
    line = operate.get_schedule("nightly")
    operate.save(
        operate.Definition.of(line).__class__(**{**vars(operate.Definition.of(line)), "overlap": "skip"})
    )

    done = sync(using="default")

    assert done.left == [Drift("nightly", "default", "edited")]
    assert operate.get_schedule("nightly").overlap == "skip"
    declarations.forget("nightly")
    declare(cron="5 2 * * *")
    assert sync(using="default").updated == ["nightly"]
    assert operate.get_schedule("nightly").overlap == "allow"


def test_what_the_code_has_no_more_is_disabled_and_comes_back_with_it():
    declare()
    sync(using="default")
    declarations.forget("nightly")

    assert sync(using="default").disabled == ["nightly"]
    line = operate.get_schedule("nightly")
    assert (line.state, line.disabled_reason) == ("disabled", GONE)
    assert sync(using="default") == ([], [], [], [])
    declare()
    assert sync(using="default").updated == ["nightly"]
    assert operate.get_schedule("nightly").state == "active"


def test_what_an_operator_disabled_stays_disabled():
    declare()
    sync(using="default")
    operate.disable("nightly", reason="not this week")

    sync(using="default")

    assert operate.get_schedule("nightly").disabled_reason == "not this week"


def test_one_made_by_hand_keeps_its_name_and_is_told():
    operate.save(
        operate.Definition(
            name="nightly", expression="0 5 * * *", time_zone="UTC", jobs=[{"job_type": nothing.key}]
        )
    )
    declare()

    assert sync(using="default").left == [Drift("nightly", "default", "taken")]
    assert operate.get_schedule("nightly").expression == "0 5 * * *"


def test_one_made_by_hand_is_not_disabled():
    operate.save(
        operate.Definition(
            name="mine", expression="0 5 * * *", time_zone="UTC", jobs=[{"job_type": nothing.key}]
        )
    )

    assert sync(using="default") == ([], [], [], [])


def test_a_declaration_for_a_tenant_is_that_tenants():
    declare(tenant="acme")
    declare(tenant="bolt")

    assert sync(using="default").created == ["nightly", "nightly"]
    assert operate.list_schedules() == []
    with tenant_context("acme"):
        assert operate.get_schedule("nightly").tenant_id == "acme"


def test_one_that_has_ended_is_stored_and_keeps_no_other_from_it():
    declare("ended", end=minute(5))
    declare()

    assert sync(using="default").created == ["ended", "nightly"]
    assert operate.get_schedule("ended").state == "ended"


def test_a_call_that_the_handler_does_not_take_keeps_no_other_from_being_stored():
    declare("wrong", nothing.bind(1, 2, 3, 4, 5, 6, 7))
    declare()

    done = sync(using="default")

    assert done.created == ["nightly"]
    assert [(each.name, each.what) for each in done.left] == [("wrong", "invalid")]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cron": "99 * * * *"}, "cron"),
        ({"timezone": "Nowhere"}, "timezone"),
        ({"misfire": "often"}, "misfire"),
        ({"misfire": CatchUp(most=0)}, "misfire.most"),
        ({"overlap": "often"}, "overlap"),
        ({"jitter": -1}, "jitter"),
        ({"start": datetime(2030, 1, 1)}, "start"),  # noqa: DTZ001
    ],
)
def test_a_mistake_is_told_where_it_is_written(changes, field):
    with pytest.raises(InvalidSchedule) as caught:
        declare(**changes)

    assert [each.field for each in caught.value.troubles] == [field]
    assert declarations.all() == []


@pytest.mark.parametrize(
    ("task", "changes", "error"),
    [
        (lambda: 1, {}, InvalidOption),
        ([], {}, InvalidSchedule),
        (nothing.bind(), {"args": [1]}, InvalidOption),
        (nothing, {"tenant": "no tenant"}, InvalidTenant),
    ],
    ids=["function", "empty", "args", "tenant"],
)
def test_what_is_no_job_is_refused(task, changes, error):
    with pytest.raises(error):
        declare(task=task, **changes)


def test_one_name_for_two_schedules_is_refused_and_the_same_module_again_is_not():
    declare()
    declare()

    with pytest.raises(DuplicateSchedule, match="twice"):
        declare(cron="0 4 * * *")


def report(n: int) -> None: ...


def twice() -> None: ...


@pytest.fixture
def types(monkeypatch) -> None:
    """What is declared in a test is forgotten after it."""
    monkeypatch.setattr(registry._types, "_by_function", dict(registry._types._by_function))
    monkeypatch.setattr(registry._types, "_by_key", None)


def test_a_job_says_its_own_schedule(types):
    job(name="tests.report", schedule={"cron": "0 2 * * *", "timezone": "UTC", "kwargs": {"n": 3}})(report)
    early = {"name": "early", "cron": "0 2 * * *", "timezone": "UTC"}
    job(name="tests.twice", schedule=[early, {**early, "name": "late", "cron": "0 22 * * *"}])(twice)

    assert [each.name for each in declarations.all()] == ["early", "late", "tests.report"]
    synchronise(using="default")
    assert sync(using="default").created == ["early", "late", "tests.report"]
    assert operate.get_schedule("tests.report").template["jobs"][0]["args"]["kwargs"] == {"n": 3}


@pytest.mark.parametrize(
    "said", [{"cron": "* * * * *"}, {"cron": "* * * * *", "timezone": "UTC", "color": 1}, "daily"]
)
def test_a_job_with_a_schedule_that_cannot_be_read_is_refused(said, types):
    with pytest.raises(InvalidOption):
        job(name="tests.wrong", schedule=said)(twice)


def test_arguments_are_checked_when_they_are_stored():
    declared = declare("typed", nothing.bind(unknown=1))

    with pytest.raises(InvalidArgument):
        _ = declared.definition


def test_a_list_of_calls_that_wait_for_each_other_is_a_run_group_each_time():
    extract = nothing.bind()
    load = nothing.options(name="load", depends_on=[extract], on_failure="ignore").bind()
    tell = nothing.options(depends_on=["load"]).bind()
    declare("refresh", [extract, load, tell], group={"tolerate": 1})

    assert sync(using="default").created == ["refresh"]

    line = operate.get_schedule("refresh")
    assert [
        (each["name"], each.get("depends_on"), each.get("on_failure")) for each in line.template["jobs"]
    ] == [
        ("nothing-1", None, None),
        ("load", ["nothing-1"], "ignore"),
        ("nothing-3", ["load"], None),
    ]
    run = operate.run_now("refresh")
    assert run.run_group_id is not None
    assert len(jobs()) == 3
    assert drift(using="default") == []


@pytest.mark.parametrize(
    "prerequisite", [nothing.bind(), "elsewhere", ("group", "name")], ids=["call", "name", "pair"]
)
def test_what_waits_for_a_job_of_something_else_is_told(prerequisite):
    declare("refresh", [nothing.bind(), nothing.options(depends_on=[prerequisite]).bind()])

    (left,) = sync(using="default").left

    assert left.what == "invalid"
    assert "none of this schedule's jobs" in left.detail

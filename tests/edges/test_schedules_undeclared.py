"""A schedule goes on whose job type the code has dropped: whoever looks at it is told so."""

from __future__ import annotations

import json
from io import StringIO

from django.core.management import call_command
from django.db import connection

from pgbroker import checks, tenant_context
from pgbroker.conf import project
from pgbroker.schedules import operate
from pgbroker.schedules.definition import Definition
from pgbroker.schedules.undeclared import list_undeclared, undeclared_types
from tests.edges.test_admin_schedules import LIST, fresh, page_of, root, text_of
from tests.support.handlers import nothing
from tests.support.jobs import OTHER_TYPE, type_id
from tests.support.schedules import entry, runs, set_row

__all__ = ["fresh", "root"]

TOLD = "code does not declare the job type 'tests.ok'"


def save(name: str, job_type: str) -> operate.ScheduleLine:
    jobs = [{**entry(), "job_type": job_type}]
    said = Definition(name=name, expression="0 2 * * *", time_zone="UTC", jobs=jobs)
    return operate.save(said).schedule


def command(*typed: str) -> str:
    said = StringIO()
    call_command("broker_schedules", *typed, stdout=said)
    return said.getvalue()


def test_a_type_that_no_code_declares_is_told_and_ticks_are_created(root):
    # Its row is there; no code of this process has declared it.
    line = save("orphan", "tests.ok")
    save("fine", nothing.key)

    operate.run_now("orphan")

    assert [run.state for run in runs(line.id)] == ["created"]
    assert f"orphan of tenant default: this project's {TOLD}" in command("list")
    assert "fine of tenant" not in command("list")
    assert TOLD in command("show", "orphan")
    assert "warning" not in command("show", "fine")
    listed = json.loads(command("list", "--format", "json"))["schedules"]
    assert [each["undeclared_types"] for each in listed] == [[], ["tests.ok"]]
    assert "code does not declare the job type" in root.get(page_of(line.id)).content.decode()


def test_types_of_another_project_are_its_own(root):
    line = save("theirs", "tests.ok")
    set_row(line.id, declared=True, declared_by="theirs", declaration="x")

    assert "does not declare" not in command("list")
    assert "does not declare" not in command("show", "theirs")


def told_by_check() -> list[str]:
    return [
        f"{each.msg} {each.hint}"
        for each in checks.check_databases(None, databases=["default"])
        if each.id == "pgbroker.W025"
    ]


def test_a_check_names_each_such_type_with_its_schedules_and_the_cure():
    assert told_by_check() == []
    for number in range(7):
        save(f"orphan {number}", "tests.ok")
    save("fine", nothing.key)
    with tenant_context("acme"):
        type_id(OTHER_TYPE)
        save("an-orphan", OTHER_TYPE)
    operate.disable("orphan 6", reason="")

    other, own = sorted(told_by_check(), key=lambda each: "acme" not in each)

    assert other == (
        f"job type {OTHER_TYPE!r} is not declared by this project's code, and a schedule creates jobs of it, which "
        "wait until a worker declares it: 'an-orphan' of tenant acme. Declare it again, perhaps as an alias; or stop "
        "it: manage.py broker_schedules disable an-orphan --tenant acme"
    )
    assert "'orphan 0' of tenant default" in own
    assert "'orphan 4' of tenant default and 1 more." in own
    assert own.endswith("broker_schedules disable 'orphan 0' --tenant default")


def test_a_check_and_the_list_agree_on_templates_and_projects():
    both = [{**entry(), "job_type": each, "name": each} for each in ("tests.ok", nothing.key, OTHER_TYPE)]
    type_id(OTHER_TYPE)
    group = operate.save(
        Definition(name="group", expression="0 2 * * *", time_zone="UTC", jobs=both)
    ).schedule
    theirs, ours = save("theirs", "tests.ok"), save("ours", "tests.ok")
    set_row(theirs.id, declared=True, declared_by="theirs", declaration="x")
    set_row(ours.id, declared=True, declared_by=project(), declaration="x")

    set_row(save("by hand", nothing.key).id, template={"jobs": [7, None, {"job_type": "tests.ok"}]})

    found = list_undeclared(tenant="default", limit=10, using="default")

    assert [(each.schedule_id, each.types) for each in found] == [
        (operate.get_schedule("by hand").id, ["tests.ok"]),
        (group.id, ["tests.ok", OTHER_TYPE]),
        (ours.id, ["tests.ok"]),
    ]
    for line in operate.list_schedules():
        told = next((each.types for each in found if each.schedule_id == line.id), [])
        assert told == undeclared_types(line)


def test_a_database_that_lacks_migrations_is_not_asked_for_schedules():
    save("orphan", "tests.ok")
    with connection.cursor() as cursor:
        cursor.execute("delete from django_migrations where app = 'pgbroker'")

    assert [each.id for each in checks.check_databases(None, databases=["default"])] == ["pgbroker.W023"]


def test_the_admin_s_list_has_a_badge_and_a_filter(root):
    save("orphan", "tests.ok")
    save("fine", nothing.key)
    save("stopped", "tests.ok")
    operate.disable("stopped", reason="")
    with tenant_context("acme"):
        save("theirs", "tests.ok")

    everything = text_of(root.get(LIST))
    narrowed = root.get(LIST, {"types": "undeclared"})

    assert everything.count("pgb-badge pgb-undeclared") == 1
    assert "code does not declare the job type" in everything
    assert "not declared by the code" in everything
    assert [each.name for each in narrowed.context["cl"].result_list] == ["orphan"]
    assert [each.name for each in root.get(LIST, {"types": "x"}).context["cl"].result_list] == [
        "fine", "orphan", "stopped"
    ]  # fmt: skip

"""A schedule goes on whose job type the code has dropped: whoever looks at it is told so."""

from __future__ import annotations

import json
from io import StringIO

from django.core.management import call_command

from pgbroker.schedules import operate
from pgbroker.schedules.definition import Definition
from tests.edges.test_admin_schedules import fresh, page_of, root
from tests.support.handlers import nothing
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

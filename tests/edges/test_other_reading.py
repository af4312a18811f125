"""Whoever saves a schedule that others would read otherwise is told so, and it is saved."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date
from io import StringIO

import pytest
from django.contrib.messages import constants
from django.core.checks import WARNING
from django.core.management import call_command

from pgbroker import checks, schedule
from pgbroker.schedules import operate
from pgbroker.schedules.declare import schedule_job
from pgbroker.schedules.definition import Definition
from pgbroker.schedules.otherwise import read_otherwise
from tests.edges.test_admin_schedules import ADD, filled, fresh, page_of, root
from tests.runtime.fleet import ROOT
from tests.support.handlers import nothing

__all__ = ["fresh", "root"]

pytestmark = pytest.mark.django_db

# Both days to Vixie's cron, either to croniter.
OTHERWISE, ALIKE = "0 0 15 * */3", "0 0 15 * 3"


def sync(*flags: str) -> tuple[str, str]:
    said, warned = StringIO(), StringIO()
    call_command("broker_schedules", "sync", *flags, stdout=said, stderr=warned)
    return said.getvalue(), warned.getvalue()


def test_a_check_warns_of_what_is_declared():
    schedule("by-quarter", nothing, cron=OTHERWISE, timezone="UTC")
    schedule("plain", nothing, cron=ALIKE, timezone="UTC")

    (message,) = checks.check_schedules(None)

    assert (message.id, message.level) == ("pgbroker.W014", WARNING)
    assert "'by-quarter'" in message.msg
    assert "croniter would fire on" in message.msg
    assert message.hint


def test_a_check_warns_of_the_schedule_of_a_job():
    schedule_job(nothing, {"cron": "0 10-10 * * *", "timezone": "Europe/Berlin"})

    (message,) = checks.check_schedules(None)

    assert "the hour '10-10' for any, here it is 10" in message.msg


def test_a_command_that_stores_it_warns_once():
    schedule("by-quarter", nothing, cron=OTHERWISE, timezone="UTC")
    schedule("plain", nothing, cron=ALIKE, timezone="UTC")

    said, warned = sync()

    assert "created by-quarter" in said
    assert warned.startswith("by-quarter: croniter would fire on")
    assert warned.count("\n") == 1
    assert sync() == ("Code and rows agree.\n", "")


def test_a_program_reads_its_answer_beside_the_warning():
    schedule("by-quarter", nothing, cron=OTHERWISE, timezone="UTC")

    said, warned = sync("--format", "json")

    assert json.loads(said)["created"] == ["by-quarter"]
    assert "croniter" in warned


def test_the_admin_warns_of_it_and_has_saved_it(root):
    added = root.post(ADD, filled(name="nightly", expression=OTHERWISE), follow=True)
    messages = {each.level: str(each) for each in added.context["messages"]}

    assert operate.get_schedule("nightly").expression == OTHERWISE
    assert "croniter would fire on" in messages[constants.WARNING]
    assert constants.SUCCESS in messages

    changed = root.post(
        page_of(operate.get_schedule("nightly").id), filled(name="nightly", expression=ALIKE), follow=True
    )
    assert {each.level for each in changed.context["messages"]} == {constants.SUCCESS}


def test_no_process_that_creates_or_runs_jobs_loads_the_other_library():
    code = (
        "import sys, django; django.setup()\n"
        "import pgbroker.runtime.scheduler, pgbroker.runtime.supervisor, pgbroker.schedules.operate\n"
        "from pgbroker import admin, checks\n"
        "assert 'pgbroker.schedules.tick' in sys.modules\n"
        "assert 'croniter' not in sys.modules"
    )

    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, cwd=ROOT, timeout=60)


@pytest.mark.parametrize("wrong", [{"expression": "nonsense"}, {"time_zone": "Mars/Base"}])
def test_what_cannot_be_read_here_is_not_read_otherwise(wrong):
    said = {"expression": OTHERWISE, "time_zone": "UTC", **wrong}

    assert read_otherwise(Definition(name="nightly", jobs=(), **said), date(2025, 1, 1)) is None

"""System checks: every wrong setting names itself and its cure."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import django
import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connection, connections

from pgbroker import checks, registry, reports
from pgbroker.errors import DuplicateJobType

PAGE = Path(checks.__file__).parent.parent / "docs" / "reference" / "checks.md"
SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}


def found(*messages: list) -> dict[str, list[str]]:
    by_id: dict[str, list[str]] = {}
    for each in messages:
        for message in each:
            assert message.msg
            assert message.hint
            by_id.setdefault(message.id, []).append(message.msg)
    return by_id


def test_the_project_passes():
    assert checks.check_settings(None) == []
    assert checks.check_job_types(None) == []


def test_every_wrong_key_has_a_message_of_its_own(settings):
    settings.PGBROKER = {"POLL_SECOND": 1, "MAX_ATTEMPTS": 0, "EVENTS": "some"}

    messages = found(checks.check_settings(None))["pgbroker.E001"]

    assert len(messages) == 3
    assert all(any(key in message for message in messages) for key in settings.PGBROKER)


def test_a_dictionary_that_is_none_is_told(settings):
    settings.PGBROKER = ["LEASE_SECONDS"]

    assert list(found(checks.check_settings(None))) == ["pgbroker.E001"]


def test_an_alias_that_is_not_there_is_told(settings):
    settings.PGBROKER = {"DATABASES": ["default", "nowhere"], "LISTEN_DATABASE": "somewhere"}

    messages = found(checks.check_settings(None))

    assert "'nowhere'" in messages["pgbroker.E002"][0]
    assert "'somewhere'" in messages["pgbroker.E005"][0]


def test_an_alias_that_is_not_postgresql_is_told(settings, monkeypatch):
    monkeypatch.setitem(connections.settings, "lite", {**connections.settings["default"], **SQLITE})
    settings.PGBROKER = {"DATABASES": ["lite"]}

    (refused,) = [each for each in checks.check_settings(None) if each.id == "pgbroker.E003"]
    assert refused.msg == "PGBROKER[\"DATABASES\"] names 'lite', which is sqlite, not PostgreSQL."
    assert "DATABASES['lite']['ENGINE']" in refused.hint
    monkeypatch.setattr(connections["default"], "vendor", "sqlite")
    settings.PGBROKER = {}
    (unset,) = [each for each in checks.check_settings(None) if each.id == "pgbroker.E003"]
    assert "is not set and so names 'default'" in unset.msg
    assert "DATABASES['default']['ENGINE']" in unset.hint
    del connections["lite"]


def test_a_schema_for_triggers_is_warned_of(settings):
    settings.PGTRIGGER_SCHEMA = "elsewhere"

    assert list(found(checks.check_settings(None))) == ["pgbroker.W006"]


def test_two_handlers_of_one_name_are_told(monkeypatch):
    def types():
        raise DuplicateJobType(
            "job type 'a.b' is declared twice: by x and y. Give one of them another name=."
        )

    monkeypatch.setattr(registry, "types", types)

    (message,) = checks.check_job_types(None)

    assert (message.id, message.hint) == ("pgbroker.E004", "Give one of them another name=.")


@pytest.mark.django_db
def test_two_handlers_of_one_name_keep_no_database_from_being_checked(monkeypatch):
    def types():
        raise DuplicateJobType("job type 'a.b' is declared twice.")

    monkeypatch.setattr(registry, "types", types)

    assert checks.check_databases(None, databases=["default"]) == []


def test_a_wrong_option_in_tasks_is_told_whatever_is_installed(settings, monkeypatch):
    settings.TASKS = {"default": {"BACKEND": checks.BACKEND, "QUEUES": [], "OPTIONS": {"DB": "x"}}}
    monkeypatch.setattr(checks.apps, "is_installed", lambda name: False)

    ours = list(found(checks.check_task_backends(None)))

    # From 6.0 on Django asks the backends itself.
    assert ours == ([] if django.VERSION >= (6, 0) else ["pgbroker.E010"])
    monkeypatch.undo()
    assert "pgbroker.E010" in [message.id for message in run_checks()]


def test_tasks_that_send_jobs_elsewhere_are_warned_of(settings):
    module = "django_tasks" if "django_tasks" in settings.INSTALLED_APPS else "django.tasks"
    settings.TASKS = {"default": {"BACKEND": f"{module}.backends.immediate.ImmediateBackend"}}

    assert list(found(checks.check_job_types(None))) == ["pgbroker.W007"]


@pytest.mark.django_db
def test_a_plain_user_on_a_migrated_database_passes():
    assert checks.check_databases(None, databases=["default"]) == []
    assert checks.check_databases(None) == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("differs", "expected"),
    [
        ({"version": 140011}, "pgbroker.E020"),
        ({"superuser": True}, "pgbroker.W021"),
        ({"bypasses": True}, "pgbroker.W022"),
    ],
)
def test_what_is_wrong_with_the_server_or_the_user_is_told(monkeypatch, differs, expected):
    server = reports.read_server(using="default")._replace(**differs)
    monkeypatch.setattr(reports, "read_server", lambda using: server)

    assert list(found(checks.check_databases(None, databases=["default"]))) == [expected]


@pytest.mark.django_db
def test_a_missing_migration_is_told():
    with connection.cursor() as cursor:
        cursor.execute("delete from django_migrations where app = 'pgbroker'")

    assert list(found(checks.check_databases(None, databases=["default"]))) == ["pgbroker.W023"]


@pytest.mark.django_db
def test_the_command_runs_them():
    said = StringIO()

    call_command("check", databases=["default"], stdout=said)

    assert "no issues" in said.getvalue()


def test_the_reference_lists_exactly_the_ids_there_are():
    source = Path(checks.__file__).read_text() + (Path(checks.__file__).parent / "backend.py").read_text()
    written = set(re.findall(r"pgbroker\.[EW]\d{3}", source))

    assert set(re.findall(r"pgbroker\.[EW]\d{3}", PAGE.read_text())) == written

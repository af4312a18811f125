"""Who looks at a job is told where a large body lies, and never waits for it; the checks know the storage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client, override_settings
from django.urls import reverse

from pgbroker import checks, get_job, job, testing
from pgbroker.bodies import Reference
from pgbroker.compat import TaskResultStatus
from pgbroker.errors import BodyMissing
from tests.support.storages import LARGE, body_storage, files_in, storages_setting

pytestmark = pytest.mark.django_db


@job(name="tests.bodies.shown")
def shown(text: str) -> str:
    return text


@pytest.fixture
def unreadable(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """A job that is done, whose bodies nobody can read any more: its id and their names."""
    with body_storage(tmp_path):
        result = shown.enqueue(LARGE)
        testing.run_jobs()
        names = files_in(tmp_path)
        for name in names:
            (tmp_path / name).unlink()
        yield result.id, names


def test_the_admin_describes_bodies(unreadable: tuple[str, list[str]]) -> None:
    job_id, names = unreadable
    client = Client()
    client.force_login(User.objects.create_superuser("root"))

    page = client.get(reverse("admin:pgbroker_job_change", args=[job_id]))

    assert page.status_code == 200
    text = page.content.decode()
    assert len(names) == 2
    assert all(name in text for name in names)
    assert "1,031 bytes, in storage &#x27;bodies&#x27;" in text


def test_the_command_describes_bodies(unreadable: tuple[str, list[str]]) -> None:
    job_id, names = unreadable
    said, as_json = StringIO(), StringIO()

    call_command("broker_jobs", "show", job_id, stdout=said)
    call_command("broker_jobs", "show", job_id, "--format", "json", stdout=as_json)

    assert all(name in said.getvalue() for name in names)
    facts = json.loads(as_json.getvalue())
    assert [facts["args_body"], facts["executions"][0]["result_body"]] == names
    assert facts["args"]["bytes"] == 1031


def test_a_program_is_told_why_it_cannot_read_one(unreadable: tuple[str, list[str]]) -> None:
    job_id, _ = unreadable
    found = shown.get_backend().get_result(job_id)

    assert found.status == TaskResultStatus.SUCCESSFUL
    assert isinstance(get_job(job_id).stored_result, Reference)
    with pytest.raises(BodyMissing):
        _ = get_job(job_id).result
    with pytest.raises(BodyMissing):
        _ = found.return_value


def test_a_task_result_that_is_refreshed_reads_what_the_body_holds(tmp_path: Path) -> None:
    with body_storage(tmp_path):
        result = shown.enqueue(LARGE)
        testing.run_jobs()

        result.refresh()

        assert result.return_value == LARGE
        for name in files_in(tmp_path):
            (tmp_path / name).unlink()
        assert result.return_value == LARGE


def found(messages: list[Any]) -> dict[str, Any]:
    return {message.id: message for message in messages}


def test_a_storage_that_serves_is_no_trouble(tmp_path: Path) -> None:
    with body_storage(tmp_path):
        assert checks.check_settings(None) == []


@pytest.mark.parametrize("value", [7, "", ["bodies"]])
def test_a_value_that_is_no_alias_is_told(settings: Any, value: object) -> None:
    settings.PGBROKER = {"BODY_STORAGE": value}

    assert "BODY_STORAGE" in found(checks.check_settings(None))["pgbroker.E001"].msg


def test_an_alias_that_is_not_there_is_told(settings: Any) -> None:
    settings.PGBROKER = {"BODY_STORAGE": "nowhere"}

    told = found(checks.check_settings(None))

    assert "'nowhere'" in told["pgbroker.E008"].msg
    assert "default" in told["pgbroker.E008"].hint


def test_a_storage_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    wrong = storages_setting(tmp_path, "tests.support.storages.NoSuchStorage")
    with body_storage(tmp_path), override_settings(STORAGES=wrong):
        assert "cannot be made" in found(checks.check_settings(None))["pgbroker.E008"].msg


def test_the_storage_of_uploads_is_warned_of(settings: Any) -> None:
    settings.PGBROKER = {"BODY_STORAGE": "default"}

    assert list(found(checks.check_settings(None))) == ["pgbroker.W009"]

"""Who runs a job is named so that one finds the process."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from tests.factories import JobFactory, WorkerFactory
from tests.support.commands import run

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("name", ["web-3:4711", "mail-1"])
def test_a_running_job_is_shown_with_its_worker_as_the_status_lists_it(name: str) -> None:
    job = JobFactory(running=True)
    WorkerFactory(id=job.worker_id, name=name, host="web-3", pid=4711)

    text = run("broker_jobs", "show", job.pk)
    facts = json.loads(run("broker_jobs", "show", job.pk, "--format", "json"))

    (line,) = (line for line in text.splitlines() if line.startswith("worker "))
    assert line.split()[1] == name
    assert all(known in line for known in ("web-3:4711", str(job.worker_id)))
    assert f"claimed  by {name}" in text
    assert (facts["worker"], facts["worker_process"]) == (name, "web-3:4711")
    assert any(line.startswith(f"{name} ") for line in run("broker_status").splitlines())


def test_the_admin_names_the_worker_of_a_running_job_too() -> None:
    job = JobFactory(running=True)
    WorkerFactory(id=job.worker_id, name="mail-1", host="web-3", pid=4711)
    client = Client()
    client.force_login(User.objects.create_superuser("root"))

    page = client.get(reverse("admin:pgbroker_job_change", args=[job.pk]))

    assert f"mail-1 (web-3:4711, {job.worker_id})" in page.content.decode()


def test_a_running_job_is_shown_with_the_id_of_a_worker_that_is_not_known() -> None:
    job = JobFactory(running=True)

    assert f"by {job.worker_id}" in run("broker_jobs", "show", job.pk)

"""What the demo prints leads somewhere."""

from __future__ import annotations

import pytest
from django.test import Client

from pgbroker.testing import age, run_jobs
from testproject.airports import jobs
from testproject.demo import report


@pytest.mark.django_db
def test_the_links_of_the_demo_show_the_jobs_that_failed(admin_client: Client) -> None:
    dead = jobs.notify_retired_registry.enqueue("EDDB")
    for _ in range(3):
        run_jobs()
        age(hours=1)
    jobs.notify_retired_registry.enqueue("EDDM")

    links = report.failures("default")

    assert list(links) == ["dead letters"]
    page = admin_client.get(f"/admin/{links['dead letters']}")
    assert [str(job.pk) for job in page.context["cl"].result_list] == [dead.id]

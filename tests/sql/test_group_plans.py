"""Plans of what is read of run groups and edges: by their indexes, however many other jobs there are."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from pgbroker import db, group_reports
from pgbroker.lifecycle.explain import explain
from pgbroker.tenancy import tenant_context
from tests.support.groups import after, member, open_group
from tests.support.jobs import alive
from tests.support.plans import analyze, buffers, load, pretend_empty, ways, whole_scans

pytestmark = pytest.mark.django_db(transaction=True)


def by(plan: dict[str, Any]) -> set[str]:
    """Tell by which ways a plan comes to jobs; an index of edges, whose name begins alike, is none."""
    return {each for each in ways(plan) if not each.startswith("job_dependency")}


def test_one_group_and_one_job_are_read_without_the_others(session, explained, superuser):
    with explained.paused():
        load(20_000, ids="gen_random_uuid()")
        alive()
        made = open_group("import")
        first = member("import", name="m0")
        for place in range(1, 30):
            member("import", name=f"m{place}", depends_on=["m0"])
        last = after({"group": "import"})

    def plan_of(name: str, **asked: Any) -> dict[str, Any]:
        with tenant_context("default"):
            db.fetch(name, asked, tuple, using=session)
        return explained.plans.pop()

    for statistics in ("old", "true", "empty"):
        if statistics == "true":
            analyze()
            with connection.cursor() as cursor:
                cursor.execute("analyze pgbroker.job_dependency")
        elif statistics == "empty":
            pretend_empty(superuser)
        bound, limit = group_reports.BOUND, 100
        for name, indexes, plan in (
            ("count_members", {"job_group"}, plan_of("count_members", group_ids=[made], bound=bound)),
            ("group_members", {"job_group"}, plan_of("group_members", group_id=made, limit=limit)),
            ("group_levels", {"job_group"}, plan_of("group_levels", group_id=made, bound=bound)),
            ("group_edges", {"job_group"}, plan_of("group_edges", group_id=made, limit=limit)),
            ("list_links", set(), plan_of("list_links", id=last, limit=limit)),
            (
                "preview_cancel",
                {"job_group"},
                plan_of("preview_cancel", job_ids=[], group_ids=[made], failing=[], bound=bound, limit=limit),
            ),
        ):
            assert by(plan) <= {"job_pkey", *indexes}, (statistics, name)
            assert by(plan) >= indexes, (statistics, name)
            assert whole_scans(plan) == set(), (statistics, name)
            assert buffers(plan) < 1_500, (statistics, name)

        for job in (first, last):
            with tenant_context("default"):
                explain(job, ageing=timedelta(seconds=60), using=session)
            plan = explained.plans.pop()
            assert by(plan) <= {"job_pkey", "job_claim", "job_group"}
            assert whole_scans(plan) == set()

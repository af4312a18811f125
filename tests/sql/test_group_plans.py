"""Plans of what is read of run groups and edges: by their indexes, however many other jobs there are."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from pgbroker import db, group_reports, reports
from pgbroker.lifecycle.explain import explain
from pgbroker.states import Status
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.groups import after, member, open_group
from tests.support.jobs import alive, guards_off
from tests.support.plans import analyze, buffers, load, nodes, pretend_empty, ways, whole_scans

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


@pytest.mark.parametrize("statistics", ["old", "empty", "true"])
def test_the_list_of_a_group_reads_its_members_alone(statistics, session, explained, superuser):
    """Though nearly all other jobs look newer than they are."""
    with explained.paused():
        # Nearly all random ids are higher than those that begin with the time.
        load(20_000, tenants=1, ids="gen_random_uuid()")
        made = open_group("import")
        for _ in range(60):
            member("import", tags=["x"])
        if statistics == "true":
            analyze()
        elif statistics == "empty":
            pretend_empty(superuser)
        page = reports.list_jobs(group_id=made, limit=51, using="default")
        assert [each.id for each in page] == sorted((each.id for each in page), reverse=True)
        assert len(page) == 51
    for given in ({}, {"status": Status.READY}, {"after": page[-1].id}, {"tag": "x"}):
        reports.list_jobs(group_id=made, limit=51, using="default", **given)
        with scope_all():
            reports.list_jobs(group_id=made, limit=51, using="default", **given)

    assert len(explained.plans) == 8
    for plan in explained.plans:
        assert ways(plan) == {"job_group"}
        assert whole_scans(plan) == set()
        assert buffers(plan) < 1_500


@pytest.mark.parametrize("statistics", ["old", "empty", "true"])
def test_names_of_groups_are_looked_up_once_for_a_list(statistics, session, explained, superuser):
    """Each once, however many of their jobs there are; none where no job is in a group."""
    with explained.paused():
        load(5_000, tenants=1)
        groups = [open_group(f"group {number}") for number in range(100)]
        with guards_off(), connection.cursor() as cursor:
            cursor.execute(
                "update pgbroker.job set run_group_id = (%s::uuid[])[1 + n %% 3] "
                "from (select id, row_number() over (order by id desc) as n from pgbroker.job) as row "
                "where row.id = job.id and n %% 2 = 0 and n <= 100",
                [groups],
            )
        if statistics == "true":
            analyze()
            with connection.cursor() as cursor:
                cursor.execute("analyze pgbroker.run_group")
        elif statistics == "empty":
            pretend_empty(superuser)
    with scope_all():
        reports.list_jobs(limit=51, using="default")
        with explained.paused():
            page = reports.list_jobs(limit=151, using="default")
        reports.list_jobs(after=page[-1].id, limit=51, using="default")

    assert {each.run_group for each in page} == {None, "group 0", "group 1", "group 2"}
    reads = [
        [node for node in nodes(plan) if node.get("Relation Name") == "run_group"] for plan in explained.plans
    ]
    assert [[(node["Actual Loops"], node["Actual Rows"]) for node in each] for each in reads] == [
        [(1, 3)],
        [(1, 0)],
    ]

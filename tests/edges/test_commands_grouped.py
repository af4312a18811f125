"""broker_jobs list by run group, and what is said of a run group that is not there."""

from __future__ import annotations

from uuid import UUID

import pytest

from pgbroker.reports import list_jobs
from pgbroker.states import Status
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.commands import read, refused, run
from tests.support.groups import fail, member, open_group
from tests.support.jobs import OTHER_TYPE, enqueue_one, queue_id, type_id

pytestmark = pytest.mark.django_db


def ids(*typed: object) -> list[str]:
    return [each["id"] for each in read("broker_jobs", "list", *typed)["jobs"]]


def newest_first(*jobs: UUID) -> list[str]:
    return sorted(map(str, jobs), reverse=True)


def test_only_the_members_of_the_group_are_listed_newest_first():
    made = open_group("import")
    open_group("other")
    first, second = member("import"), member("import")
    member("other"), enqueue_one()

    assert ids("--group", "import") == newest_first(first, second)
    assert ids("--group", made) == newest_first(first, second), "and by its id"


def test_the_other_filters_narrow_the_group():
    open_group("import")
    queue_id("mail"), type_id(OTHER_TYPE)
    plain, bad = member("import"), member("import", tags=["x"])
    in_queue, of_type = member("import", queue="mail"), member("import", job_type=OTHER_TYPE)
    tagged_elsewhere = enqueue_one(tags=["x"])
    fail(bad)

    assert ids("--group", "import", "--queue", "mail") == [str(in_queue)]
    assert ids("--group", "import", "--type", OTHER_TYPE) == [str(of_type)]
    assert ids("--group", "import", "--status", "failed") == [str(bad)]
    assert ids("--group", "import", "--tag", "x") == [str(bad)]
    assert ids("--tag", "x") == newest_first(bad, tagged_elsewhere)
    assert str(plain) in ids("--group", "import", "--status", "ready")


def test_pages_of_a_group_show_every_member_once():
    open_group("import")
    made = [member("import") for _ in range(5)]

    first = read("broker_jobs", "list", "--group", "import", "--limit", 3)
    rest = read("broker_jobs", "list", "--group", "import", "--limit", 3, "--after", first["next"])

    assert [each["id"] for each in [*first["jobs"], *rest["jobs"]]] == newest_first(*made)
    assert rest["next"] is None


def test_each_line_tells_the_group_of_its_job():
    open_group("import")
    job, alone = member("import", name="step"), enqueue_one()

    lines = {line.split()[0]: line.split() for line in run("broker_jobs", "list").splitlines()}
    listed = {each["id"]: each for each in read("broker_jobs", "list")["jobs"]}

    place = lines["ID"].index("GROUP")
    assert (lines[str(job)][place], lines[str(alone)][place]) == ("import", "-")
    assert (listed[str(job)]["run_group"], listed[str(job)]["name"]) == ("import", "step")
    assert (listed[str(alone)]["run_group"], listed[str(alone)]["name"]) == (None, None)


def test_a_line_is_the_same_whatever_the_list_was_narrowed_by():
    made = open_group("import")
    job = member("import", name="step", tags=["x"])
    fail(job)

    (plain,) = list_jobs(limit=5, using="default")

    assert list_jobs(group_id=made, limit=5, using="default") == [plain]
    assert list_jobs(tag="x", limit=5, using="default") == [plain]
    with scope_all():
        assert list_jobs(status=Status.FAILED, limit=5, using="default") == [plain]
    assert (plain.run_group, plain.name, plain.error_code) == ("import", "step", "boom")


@pytest.mark.parametrize(
    "typed", [["broker_jobs", "list", "--group"], ["broker_groups", "show"], ["broker_groups", "seal"]]
)
def test_an_unknown_group_is_refused_with_the_names_that_come_close_and_what_lists_them(typed):
    open_group("daily-import:2026-11-29")

    near, far = refused(*typed, "daily-import:2026-11-28"), refused(*typed, "quite-another")

    assert near.returncode == far.returncode == 1
    assert str(near) == (
        "[group_not_found] there is no run group 'daily-import:2026-11-28'. Did you mean "
        "'daily-import:2026-11-29'? Look at the tenant, and at what there is: broker_groups list"
    )
    assert "Did you mean" not in str(far)
    assert str(far).endswith("broker_groups list")


def test_a_group_of_another_tenant_is_neither_found_nor_named():
    with tenant_context("acme"):
        open_group("import-1")

    error = refused("broker_jobs", "list", "--group", "import-2", "--tenant", "default")

    assert "import-1" not in str(error)
    assert "group_not_found" in str(refused("broker_jobs", "list", "--group", "import-1", "--tenant", "bolt"))


def test_a_name_of_several_tenants_asks_for_one():
    open_group("import")
    with tenant_context("acme"):
        open_group("import")
        theirs = member("import")

    error = refused("broker_jobs", "list", "--group", "import")

    assert (error.returncode, "--tenant is missing" in str(error)) == (2, True)
    assert ids("--group", "import", "--tenant", "acme") == [str(theirs)]

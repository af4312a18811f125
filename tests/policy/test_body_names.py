"""Names of bodies keep tenants apart, and the database judges a name as Python does."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from pgbroker.ids import new_id
from pgbroker.policy.body_names import folder_of, is_owned, name_of, read_stub, stub_of

TENANTS = st.from_regex(r"[A-Za-z0-9._-]{1,63}", fullmatch=True)
ODD_TENANTS = [
    "default",
    "..",
    ".",
    "a.b",
    "a_2b",
    "A",
    "a",
    "_a",
    "__a",
    "_A",
    "a..",
    "-x",
    "A" * 63,
    "." * 63,
]


@given(one=TENANTS, other=TENANTS)
def test_no_file_system_takes_the_folders_of_two_tenants_for_one(one: str, other: str) -> None:
    same = folder_of(one).lower() == folder_of(other).lower()

    assert same == (one == other)
    assert not folder_of(one).startswith(folder_of(other)) or one == other


@given(tenant=TENANTS, job_id=st.uuids(), attempt=st.none() | st.integers(1, 10**18))
def test_a_name_is_its_own_tenants_and_leads_nowhere_else(
    tenant: str, job_id: UUID, attempt: int | None
) -> None:
    name = name_of(tenant, "results", job_id, attempt=attempt)

    assert is_owned(tenant, name)
    assert not {"", ".", ".."} & set(name.split("/"))
    assert len(name) < 300


def test_a_name_carries_the_day_and_the_job_for_whoever_sweeps() -> None:
    name = name_of("acme", "arguments", UUID("0199b0de-7a3c-7f11-9b7e-1f0a6c9d2e44"))

    assert name == "pgbroker/acme/arguments/2025-10-04/0199b0de-7a3c-7f11-9b7e-1f0a6c9d2e44.json"
    assert "/1970-01-01/" in name_of("acme", "arguments", UUID(int=5))


@pytest.mark.parametrize("first", ["e677d21f-dbff", "e677d21f-dc00", "ffffffff-ffff"])
def test_an_id_from_after_the_last_day_has_the_last_day(first: str) -> None:
    name = name_of("acme", "results", UUID(f"{first}-7000-8000-000000000000"), attempt=1)

    assert name == f"pgbroker/acme/results/9999-12-31/{first}-7000-8000-000000000000-1.json"


ODD_NAMES = [
    "", "/", "pgbroker", "pgbroker/", "pgbroker/acme/", "pgbroker/acme/x", "pgbroker/acme/../globex/x",
    "pgbroker/acme/./x", "pgbroker/acme//x", "pgbroker/acme/x/", "pgbroker/acme/x\n", "pgbroker/acme/\x00",
    "pgbroker/acme/..\\globex\\x", "/pgbroker/acme/x", "pgbroker/globex/x", "pgbroker/acme2/x", "PGBROKER/acme/x",
    "pgbroker/acme/...", "pgbroker/acme/ä", "pgbroker/acme/" + "x" * 500, "pgbroker/acme/a b", "pgbroker/_2_2/x",
    "pgbroker/../x", "pgbroker/_a/x", "pgbroker/a_2b/x", "pgbroker/a__2b/x",
]  # fmt: skip


@pytest.mark.django_db
def test_the_database_judges_every_name_as_python_does() -> None:
    pairs = [(tenant, name) for tenant in [*ODD_TENANTS, "acme"] for name in ODD_NAMES if "\x00" not in name]
    pairs += [(one, name_of(other, "arguments", new_id())) for one in ODD_TENANTS for other in ODD_TENANTS]
    with connection.cursor() as cursor:
        cursor.execute(
            "select pgbroker.owns_body_1(tenant, name) from unnest(%s::text[], %s::text[]) "
            "with ordinality as pair (tenant, name, place) order by place",
            [[tenant for tenant, _ in pairs], [name for _, name in pairs]],
        )
        judged = [owned for (owned,) in cursor.fetchall()]

    assert judged == [is_owned(tenant, name) for tenant, name in pairs]
    assert sum(judged) == len(ODD_TENANTS) + len(["x", "...", "a b"]) + len(["..", "A", "a_2b", "a.b"])


def test_a_stub_is_read_only_in_the_form_it_is_written() -> None:
    stub = stub_of(b"{}")
    written = stub.as_json()

    assert read_stub(written) == stub
    for odd in (
        None, [], {}, {**written, "v": 1}, {**written, "more": 1}, {**written, "bytes": -1}, {**written, "bytes": True},
        {**written, "bytes": 10**12}, {**written, "sha256": "x"}, {**written, "sha256": None}, {"v": 2},
    ):  # fmt: skip
        assert read_stub(odd) is None

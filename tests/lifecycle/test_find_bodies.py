"""find_bodies: what a row names is told, of arguments and of results, whoever's it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pgbroker.ids import new_id
from pgbroker.lifecycle.find_bodies import find_bodies
from pgbroker.policy.body_names import name_of, stub_of
from pgbroker.removals import Removal, removals
from pgbroker.tenancy import tenant_context
from tests.support.jobs import claim_one, completed, enqueue_one, settle_one
from tests.support.storages import body_storage, files_in

STUB = stub_of(b"[]").as_json()


def make_job(tenant: str) -> tuple[object, str]:
    """Make a job whose arguments are a body, as our client does."""
    job_id = new_id()
    name = name_of(tenant, "arguments", job_id)
    with tenant_context(tenant):
        enqueue_one(id=job_id, args=STUB, args_body=name)
    return job_id, name


@pytest.mark.django_db
def test_only_what_a_row_of_that_job_names_is_found() -> None:
    job_id, arguments = make_job("acme")
    other_id, others = make_job("globex")
    lease = claim_one()
    result = name_of(lease.tenant_id, "results", lease.job_id, attempt=lease.lease_token)
    settle_one(completed(lease, result=json.dumps(STUB), result_body=result))

    found = find_bodies(
        [
            (job_id, arguments),
            (other_id, others),
            (lease.job_id, result),
            (job_id, others),
            (job_id, f"{arguments}x"),
            (new_id(), arguments),
        ]
    )

    assert found == {arguments, others, result}


@pytest.mark.django_db(transaction=True)
def test_a_body_is_removed_only_where_no_row_names_it(tmp_path: Path) -> None:
    """A settle whose answer was lost looks like a lost lease, but its result stands."""
    make_job("acme")
    lease = claim_one()
    kept = name_of("acme", "results", lease.job_id, attempt=1)
    lost = name_of("acme", "results", lease.job_id, attempt=2)
    settle_one(completed(lease, result=json.dumps(STUB), result_body=kept))
    with body_storage(tmp_path) as storage:
        for name in (kept, lost):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"[]")

        removals.start()
        for name in (kept, lost):
            removals.put(Removal(name, lease.job_id, "default", storage))

        assert files_in(tmp_path) == [kept]

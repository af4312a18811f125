"""
The bodies of one attempt: its arguments are read before the handler, its result is saved after it.

In the thread of the attempt, where a storage that hangs costs this attempt its timeout and nobody else
anything.
"""

import json

from pgbroker import bodies, payload
from pgbroker.bodies import Reference
from pgbroker.conf import Settings
from pgbroker.errors import PgBrokerError
from pgbroker.outcomes import Ended
from pgbroker.policy.body_names import name_of
from pgbroker.runtime.attempt import Attempt


def fetch_arguments(attempt: Attempt) -> None:
    """Put the arguments where the lease has their stub; raises `BodyUnreadable`."""
    lease = attempt.lease
    if lease.args_body is not None:
        envelope = Reference(lease.args_body, lease.args, lease.tenant_id).read()
        attempt.lease = lease._replace(stored_args=envelope, args_body=None)


def is_too_large(ended: Ended, settings: Settings) -> bool:
    """Tell whether a result must be saved as a body before it is settled."""
    return (
        ended.result is not None
        and settings.BODY_STORAGE is not None
        # Only what may be too large is counted in bytes; a character has four at most.
        and len(ended.result) > settings.MAX_RESULT_BYTES // 4
        and payload.size_of(ended.result) > settings.MAX_RESULT_BYTES
    )


def save_result(attempt: Attempt, ended: Ended, settings: Settings) -> Ended:
    """Save a result as a body and return the outcome that names it; a storage that fails fails the attempt."""
    lease = attempt.lease
    assert ended.result is not None
    try:
        body = bodies.save(
            ended.result.encode(),
            name=name_of(lease.tenant_id, "results", lease.job_id, attempt=lease.lease_token),
            tenant=lease.tenant_id,
        )
    except PgBrokerError as error:
        return attempt.failed(error, settings)
    return ended._replace(result=json.dumps(body.stub.as_json()), result_body=body.name)

"""find_bodies: ask which bodies some row names, and change nothing."""

from collections.abc import Sequence
from uuid import UUID

from pgbroker import db


def find_bodies(bodies: Sequence[tuple[UUID, str]], *, using: str | db.Session = "default") -> set[str]:
    """
    Return the names, of *bodies* given as job and name, that a payload or an ended attempt of the job names.

    Whoever removes a body after an end that is not certain asks first: a lost answer is no rollback.
    """
    found: list[str] = db.fetch(
        "find_bodies",
        {"job_ids": [job_id for job_id, _ in bodies], "names": [name for _, name in bodies]},
        lambda row: row[0],
        using=using,
    )
    return set(found)

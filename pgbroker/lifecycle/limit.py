"""limit: bound what the statements that follow in a transaction may take."""

from typing import Literal

from pgbroker import db

Limited = Literal["statement_timeout", "lock_timeout"]


def limit(name: Limited, most: str, *, using: str) -> str:
    """Let none take longer, or wait longer for a lock, than *most*, such as 800ms; returns the limit from before."""
    before: str = db.fetch("limit", {"name": name, "limit": most}, lambda row: row[0], using=using)[0]
    return before

"""clock: what time it is, which only the database knows."""

from datetime import datetime

from pgbroker import db


def database_time(*, using: str | db.Session = "default") -> datetime:
    """Return the database's `statement_timestamp()`."""
    return db.fetch("clock", {}, lambda row: row[0], using=using)[0]  # type: ignore[no-any-return]

"""adopt: bring jobs that no claim looks at into sight. Changes none of them."""

from typing import NamedTuple

from pgbroker import db


class Adopted(NamedTuple):
    """What was missing: the names of the queues that were made anew, and how many priorities were added."""

    queues: list[str]
    priorities: int


def adopt(*, using: str | db.Session = "default") -> Adopted:
    """
    Make the rows that claims go by, of queues and of their priorities, where jobs wait without them.

    A queue without a row is made anew as lost-NUMBER. One statement; returns what it made.
    """
    (adopted,) = db.fetch("adopt", {}, Adopted._make, using=using)
    return adopted

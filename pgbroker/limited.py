"""Bound what statements may take, for a part of a transaction."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction

from pgbroker.lifecycle.limit import Limited, limit


@contextmanager
def limiting(name: Limited, seconds: float, *, using: str) -> Iterator[None]:
    """
    Let no statement inside take longer, or wait longer for a lock; it is a transaction, or a part of one.

    Raises Django's OperationalError, and what is inside is undone then. The limit from before counts again afterwards.
    """
    with transaction.atomic(using=using):
        before = limit(name, f"{int(seconds * 1000)}ms", using=using)
        yield
        limit(name, before, using=using)

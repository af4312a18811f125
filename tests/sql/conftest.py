"""What tests of statements may use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgbroker import db
from tests.support.jobs import queue_id, type_id
from tests.support.plans import Explained


@pytest.fixture
def session() -> Iterator[db.Session]:
    """A worker's own connection."""
    session = db.Session("default", purpose="plans")
    yield session
    session.drop()


@pytest.fixture
def explained(monkeypatch) -> Explained:
    """Explain what is run; `paused()` around what prepares it."""
    explained = Explained(monkeypatch)
    explained._on = False
    queue_id(), type_id()
    explained._on = True
    return explained

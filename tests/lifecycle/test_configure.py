"""configure: how a queue ages and leases."""

from __future__ import annotations

import pytest

from pgbroker.lifecycle.configure import configure_queue
from tests.support.jobs import queue_id

pytestmark = pytest.mark.django_db


def test_only_what_is_given_changes():
    number = queue_id("mail")

    first = configure_queue("mail", ageing_seconds=5.0)
    second = configure_queue("mail", lease_seconds=120.0)
    third = configure_queue("mail", ageing_seconds=None)

    assert first == (number, "mail", 5.0, None)
    assert second == (number, "mail", 5.0, 120.0)
    assert third == (number, "mail", None, 120.0)


def test_a_queue_that_is_not_there_is_not_made():
    assert configure_queue("nowhere", lease_seconds=120.0) is None

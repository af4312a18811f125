"""configure: how a queue ages and leases."""

from __future__ import annotations

import math

import pytest
from django.db import IntegrityError, connection, transaction

from pgbroker.errors import InvalidOption
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


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("lease_seconds", wrong) for wrong in (math.nan, math.inf, 1e300, 86_401, 0.5, -1)),
        *(("ageing_seconds", wrong) for wrong in (math.nan, math.inf, 1e300, 315_360_001, -1)),
    ],
)
def test_a_number_that_no_worker_can_use_is_refused_by_name_and_by_the_table(name, wrong):
    number = queue_id("mail")

    with pytest.raises(InvalidOption, match=name):
        configure_queue("mail", **{name: wrong})
    with pytest.raises(IntegrityError, match="_valid"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"update pgbroker.queue set {name} = %s where id = %s", [wrong, number])

    assert configure_queue("mail") == (number, "mail", None, None)

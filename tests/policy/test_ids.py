"""Ids: UUIDv7 of the host's clock, each its own, whether they are made one at a time or many."""

from __future__ import annotations

import itertools
import time
from uuid import UUID

import pytest

from pgbroker.ids import new_id, new_id_texts


@pytest.mark.parametrize("ids", [map(UUID, new_id_texts()), iter(new_id, None)], ids=["many", "one"])
def test_every_id_is_a_uuid7_of_now_and_its_own(ids):
    before = time.time_ns() // 1_000_000
    made = list(itertools.islice(ids, 1000))
    after = time.time_ns() // 1_000_000

    assert len(set(made)) == 1000
    assert {(each.version, each.variant) for each in made} == {(7, "specified in RFC 4122")}
    assert all(before <= each.int >> 80 <= after for each in made)


def test_each_random_bit_is_sometimes_set_and_sometimes_not():
    made = [int(each, 16) for each in itertools.islice(new_id_texts(), 1000)]
    random = (1 << 62) - 1 | 0xFFF << 64

    either = every = made[0]
    for each in made:
        either, every = either | each, every & each

    assert either & random == random
    assert every & random == 0

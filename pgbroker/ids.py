"""Ids that are known before the row exists: UUIDv7 (RFC 9562), roughly in time order, unique anywhere."""

import os
import struct
import time
from collections.abc import Iterator
from uuid import UUID

_TWO_NUMBERS = struct.Struct(">HQ")
_AT_ONCE = 256


def new_id() -> UUID:
    """
    Make a UUIDv7 of this host's clock and 74 random bits.

    Nothing relies on the order: hosts' clocks differ. It only keeps new rows close together.
    """
    return UUID(int=_number(*_TWO_NUMBERS.unpack(os.urandom(_TWO_NUMBERS.size))))


def new_id_texts() -> Iterator[str]:
    """
    Make one id after the other as 32 digits: the system is asked for randomness once for many.

    Text, since it is no work for the garbage collector. For one call in one process: what is left of the
    randomness is not carried into another call, or over a fork.
    """
    while True:
        for high, low in _TWO_NUMBERS.iter_unpack(os.urandom(_TWO_NUMBERS.size * _AT_ONCE)):
            yield f"{_number(high, low):032x}"


def _number(high: int, low: int) -> int:
    """Put together the clock, 12 random bits and 62."""
    return (
        (time.time_ns() // 1_000_000 & 0xFFFF_FFFF_FFFF) << 80
        | 0x7 << 76
        | (high & 0xFFF) << 64
        | 0b10 << 62
        | low & 0x3FFF_FFFF_FFFF_FFFF
    )

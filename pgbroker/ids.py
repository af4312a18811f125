"""Ids that are known before the row exists: UUIDv7 (RFC 9562), roughly in time order, unique anywhere."""

import os
import time
from uuid import UUID


def new_id() -> UUID:
    """
    Make a UUIDv7 of this host's clock and 74 random bits.

    Nothing relies on the order: hosts' clocks differ. It only keeps new rows close together.
    """
    milliseconds = time.time_ns() // 1_000_000 & 0xFFFF_FFFF_FFFF
    noise = int.from_bytes(os.urandom(10), "big")
    return UUID(
        int=milliseconds << 80
        | 0x7 << 76
        | (noise >> 62 & 0xFFF) << 64
        | 0b10 << 62
        | noise & 0x3FFF_FFFF_FFFF_FFFF
    )

"""The tail of what a handler logged, bounded, as it is stored with its attempt."""

from collections import deque

LONGEST_LINE = 8192
MOST_LINES = 2000


def log_tail(lines: deque[str] | None, limit_bytes: int) -> str | None:
    """Join the last lines that fit into *limit_bytes*, as PostgreSQL can store them."""
    if not lines or not limit_bytes:
        return None
    kept: list[str] = []
    size = 0
    # A copy: a thread that the handler left behind may still log.
    for line in reversed(list(lines)):
        storable = line.replace("\x00", "\\x00").encode("utf-8", "backslashreplace")
        size += len(storable) + 1
        if size > limit_bytes:
            break
        kept.append(storable.decode())
    return "\n".join(reversed(kept)) or None

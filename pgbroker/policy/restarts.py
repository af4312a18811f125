"""What a parent does when one of its worker processes has ended. Pure."""

# An end sooner than this after the start is a quick one; several of them in a row are waited for.
QUICK_SECONDS = 10.0
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0
CLEAN, RECYCLE = 0, 75
# A flag or setting that cannot be used, migrations that are missing: no restart heals them.
HOPELESS = (2, 4)


def is_hopeless(code: int) -> bool:
    """Tell whether a worker that exits so would exit so again."""
    return code in HOPELESS


def wait_before_restart(code: int, quick_ends: int) -> float:
    """
    Return the seconds to wait before a process is started again that exited with *code*, negative for a signal.

    *quick_ends* counts its ends within `QUICK_SECONDS` of a start, without a longer life between them. One
    that asked for its restart, or drained, is owed one that does not wait.
    """
    asked = code in (CLEAN, RECYCLE)
    counted = max(0, quick_ends - asked)
    if counted == 0:
        return 0.0
    return min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(counted - 1, 10))


def exit_code_of(codes: list[int]) -> int:
    """Return the exit code of a parent whose processes ended so, and not again: 1 where one did not drain."""
    return 0 if all(code in (CLEAN, RECYCLE) for code in codes) else 1

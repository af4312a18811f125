"""
The words for where a job and an attempt can be, and the legal ways between them.

`TRANSITIONS` is the one table of them: the database trigger that refuses everything else, the
diagram in the docs and the tests are made from it.
"""

from enum import IntEnum


class Status(IntEnum):
    """Where a job is. Numbers below 10 are live, from 10 on terminal; they are stored and never change."""

    SCHEDULED = 0
    WAITING = 1
    READY = 2
    RUNNING = 3
    SUSPENDED = 4
    BLOCKED = 5
    COMPLETED = 10
    FAILED = 11
    DEAD_LETTER = 12
    CANCELLED = 13

    @property
    def label(self) -> str:
        """The status as people and logs write it: `dead_letter`."""
        return self.name.lower()


class AttemptState(IntEnum):
    """How an attempt ended. Stored in `execution.state` and never renumbered."""

    COMPLETED = 1
    FAILED = 2
    TIMED_OUT = 3
    CANCELLED = 4
    LEASE_EXPIRED = 5
    CRASHED = 6
    RELEASED = 7
    SNOOZED = 8
    SUSPENDED = 9

    @property
    def label(self) -> str:
        """The state as people and logs write it: `timed_out`."""
        return self.name.lower()


class GroupState(IntEnum):
    """Where a run group is. Numbers from 10 on are ends, the same as a job's; they are stored and never change."""

    OPEN = 0
    SEALED = 1
    COMPLETED = 10
    FAILED = 11
    CANCELLED = 13

    @property
    def label(self) -> str:
        """The state as people and logs write it: `sealed`."""
        return self.name.lower()


class OnFailure(IntEnum):
    """What becomes of a dependent when its prerequisite ends without success. Stored in edges, never renumbered."""

    CANCEL = 0
    BLOCK = 1
    IGNORE = 2

    @property
    def label(self) -> str:
        """The policy as callers write it: `cancel`."""
        return self.name.lower()


# A group that has ended badly is sealed again when one of its members is retried.
GROUP_TRANSITIONS: dict[str, frozenset[tuple[GroupState, GroupState]]] = {
    "seal": frozenset({(GroupState.OPEN, GroupState.SEALED)}),
    "resolve": frozenset(
        (GroupState.SEALED, end) for end in (GroupState.COMPLETED, GroupState.FAILED, GroupState.CANCELLED)
    ),
    "retry": frozenset((end, GroupState.SEALED) for end in (GroupState.FAILED, GroupState.CANCELLED)),
}

# What `job_event.event` may be besides a status: numbers that are stored and never change.
CANCEL_REQUESTED, ON_EXHAUSTED = 20, 21
EVENT_LABELS = {
    **{int(status): status.label for status in Status},
    CANCEL_REQUESTED: "cancel_requested",
    ON_EXHAUSTED: "on_exhausted",
}

TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED})
LIVE = frozenset(Status) - TERMINAL
RETRYABLE = frozenset({Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED})

_Pairs = frozenset[tuple[Status, Status]]


def _pairs(sources: frozenset[Status], targets: frozenset[Status]) -> _Pairs:
    return frozenset((source, target) for source in sources for target in targets)


def _one(source: Status, *targets: Status) -> _Pairs:
    return _pairs(frozenset({source}), frozenset(targets))


_STARTS = frozenset({Status.READY, Status.WAITING, Status.SCHEDULED})
_LIVE_BUT_RUNNING = LIVE - {Status.RUNNING}

# Enqueue makes a row, so it has no status to leave.
ENTRY = _STARTS

TRANSITIONS: dict[str, _Pairs] = {
    "promote": _one(Status.SCHEDULED, Status.READY),
    "add_edge": _pairs(frozenset({Status.READY, Status.SCHEDULED}), frozenset({Status.WAITING})),
    # What was cancelled because of a prerequisite comes back when that is retried; to blocked, where another bars it.
    "resolve": _one(Status.WAITING, Status.READY, Status.SCHEDULED, Status.CANCELLED, Status.BLOCKED)
    | _one(Status.BLOCKED, Status.CANCELLED)
    | _one(Status.CANCELLED, Status.BLOCKED),
    "claim": _one(Status.READY, Status.RUNNING),
    "release": _one(Status.RUNNING, Status.READY, Status.SCHEDULED),
    "settle": _one(
        Status.RUNNING,
        Status.COMPLETED,
        Status.SCHEDULED,
        Status.FAILED,
        Status.DEAD_LETTER,
        Status.CANCELLED,
        Status.SUSPENDED,
    ),
    "reap": _one(Status.RUNNING, Status.SCHEDULED, Status.DEAD_LETTER, Status.CANCELLED),
    "wake": _one(Status.SUSPENDED, Status.READY),
    "expire": _pairs(_LIVE_BUT_RUNNING, frozenset({Status.FAILED})),
    "cancel": _pairs(_LIVE_BUT_RUNNING, frozenset({Status.CANCELLED})),
    "retry": _pairs(RETRYABLE, _STARTS),
    "unblock": _one(Status.BLOCKED, Status.READY, Status.WAITING, Status.SCHEDULED),
}


def legal_pairs() -> list[tuple[int, int]]:
    """List every status change that some verb makes, as sorted pairs of numbers."""
    return sorted({(int(old), int(new)) for pairs in TRANSITIONS.values() for old, new in pairs})

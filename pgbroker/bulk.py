"""Many calls at once: check them, store them in few statements, each outcome by itself."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.db import OperationalError, connections, transaction

from pgbroker import hooks, linked_rows, telemetry
from pgbroker.custody import Custody
from pgbroker.db import REPEATABLE, REPEATS
from pgbroker.errors import InvalidOption, PgBrokerError
from pgbroker.ids import new_id_texts
from pgbroker.plain_calls import enqueue_plain_calls
from pgbroker.policy.values import elements
from pgbroker.registry import Call
from pgbroker.shared_rows import Shared, shared_of
from pgbroker.submission import end_custody, enqueue_as, refusal, submission_of, tell_event
from pgbroker.wakeups import wake_after_commit

# Rows of a bulk call that go in one statement: big enough to be cheap, small enough to stay in memory.
ROWS_PER_STATEMENT = 2500
# ... and what their arguments and references may weigh together; a single row may weigh more.
CHARACTERS_PER_STATEMENT = 8 * 1024 * 1024
CHARACTERS_OF_A_REFERENCE = 36


class _Group(NamedTuple):
    """Rows, and the place of each among the calls; no pairs, which would be work for the garbage collector."""

    places: list[int]
    rows: list[dict[str, Any]]


# By what the rows of a statement have in common: database and tenant.
_Groups = dict[tuple[str, str | None], _Group]


class _List(NamedTuple):
    """A list of calls under way: what became of each so far, bodies whose rows are not stored, and who needs whom."""

    outcomes: list["Outcome"]
    pending: dict[int, Custody]
    groups: _Groups
    # By the place of a call: the places of those calls that it waits for.
    needs: dict[int, list[int]]

    def refuse(self, errors: Mapping[int, PgBrokerError]) -> None:
        """Note what is refused, and remove its bodies."""
        for place, error in errors.items():
            self.outcomes[place] = Outcome(None, error.code, error)
            if place in self.pending:
                self.pending.pop(place).remove()


class Outcome(NamedTuple):
    """
    What became of one call of `enqueue_many`.

    *outcome* is created, replaced (created, and the key's former job is cancelled), existing (the
    idempotency key's job is *job_id*) or an error code; then *error* is the exception that a single
    enqueue would have raised.
    """

    job_id: UUID | None
    outcome: str
    error: PgBrokerError | None = None


_PENDING = Outcome(None, "pending")


def enqueue_many(calls: Iterable[Call], *, using: str | None = None) -> list[Outcome]:
    """
    Enqueue many calls (`task.bind(...)`) in one transaction and return one outcome each, in order.

    A call that is refused does not sink the others, but for those that wait for it: its outcome carries the error. A
    call may wait for another one of the list, in any order. What is stored becomes visible together, with the
    caller's commit. Raises `InvalidOption`, with nothing stored, for what is no call at all.
    """
    return enqueue_calls(calls, using=using)


def enqueue_calls(
    calls: Iterable[Call], *, using: str | None = None, group: str | None = None
) -> list[Outcome]:
    """Do as `enqueue_many` does, with all calls into the run group *group*."""
    if isinstance(calls, Call):
        raise InvalidOption("calls", "is one call", "Give a list of them: [task.bind(...)].")
    elements("calls", calls, "Give a list of them: [task.bind(...)].")
    # Kept alive: a call may wait for another one, that very one.
    kept = calls if isinstance(calls, (list, tuple)) else list(calls)
    if group is None and (answers := enqueue_plain_calls(kept, using=using)) is not None:
        return [
            Outcome(answer, "created") if isinstance(answer, UUID) else Outcome(None, answer.code, answer)
            for answer in answers
        ]
    found = _List([], {}, {}, {})
    try:
        _check(kept, found, using, group)
        for alias, tenant in found.groups:
            _enqueue_group(found, alias, tenant)
    except BaseException:
        for custody in found.pending.values():
            custody.doubt()
        raise
    return found.outcomes


def _check(calls: Sequence[Call], found: _List, using: str | None, group_name: str | None) -> None:
    """Check each call and save its body, if it has one, before any statement."""
    # By the identity of a task: what they share holds it, so no other gets its place.
    known: dict[int, Shared] = {}
    ids = new_id_texts()
    groups, outcomes = found.groups, found.outcomes
    waiting: dict[int, linked_rows.Waiting] = {}
    for place, call in enumerate(calls):
        if not isinstance(call, Call):
            raise InvalidOption(f"calls[{place}]", f"is a {type(call).__name__}", "Give task.bind(...).")
        try:
            call = hooks.changed(call)
            task = call.task
            if (shared := known.get(id(task))) is None:
                base = task.unlinked
                if (shared := known.get(id(base))) is None:
                    shared = known[id(base)] = shared_of(base, using=using, group=group_name)
            submission = submission_of(call, shared, next(ids), alone=False, group=group_name)
        except PgBrokerError as error:
            outcomes.append(Outcome(None, error.code, error))
            continue
        outcomes.append(_PENDING)
        if submission.custody is not None:
            found.pending[place] = submission.custody
        if submission.waiting is not None:
            waiting[place] = submission.waiting
        if (group := groups.get((shared.database, shared.tenant))) is None:
            group = groups[shared.database, shared.tenant] = _Group([], [])
        group.places.append(place)
        group.rows.append(submission.row)
    if waiting:
        _join(calls, found, waiting)


def _join(calls: Sequence[Call], found: _List, waiting: Mapping[int, linked_rows.Waiting]) -> None:
    """Let the rows of calls that wait for others name these by their ids."""
    rows = {
        place: row
        for group in found.groups.values()
        for place, row in zip(group.places, group.rows, strict=True)
    }
    needs, impossible = linked_rows.join(waiting, calls, rows)
    found.needs.update(needs)
    if impossible:
        found.refuse(impossible)
        for key, group in found.groups.items():
            found.groups[key] = _without(group, impossible)


def _enqueue_group(found: _List, alias: str, tenant: str | None) -> None:
    """Enqueue the rows of one database and tenant in a transaction; one of our own that met a deadlock runs again."""
    group = found.groups[alias, tenant]
    parts = list(_statements(group.rows))
    if len(parts) > 1 and not linked_rows.are_in_order(group.rows, found.needs):
        above, circular = linked_rows.levels(group.places, group.rows, found.needs)
        if circular:
            found.refuse(circular)
            group = _without(group, circular)
        # One statement takes its keys in order; several must too, or two big calls deadlock each other. But what is
        # waited for goes first: to a later statement it is there.
        group = _in_order(group, above)
        parts = list(_statements(group.rows))
    # A body hangs on the transaction that names it, and would be gone with the first one.
    bound = found.pending and not found.pending.keys().isdisjoint(group.places)
    repeats = REPEATS if connections[alias].get_autocommit() and not bound else 1
    for attempt in range(1, repeats + 1):
        # The ids that rows have got in place of their own.
        stored: dict[str, str] = {}
        committed: list[int] = []
        try:
            with transaction.atomic(using=alias, savepoint=False):
                transaction.on_commit(partial(committed.append, attempt), using=alias)
                for part in parts:
                    _enqueue_part(found, _Group(group.places[part], group.rows[part]), alias, tenant, stored)
                for queue in {row["queue"] for row in group.rows}:
                    wake_after_commit(queue, using=alias)
            return
        except OperationalError as error:
            # After the commit it is that of somebody who was to be told of it.
            if committed or attempt == repeats or not isinstance(error.__cause__, REPEATABLE):
                raise
            for place in group.places:
                found.outcomes[place] = _PENDING


def _enqueue_part(found: _List, part: _Group, alias: str, tenant: str | None, stored: dict[str, str]) -> None:
    told = telemetry.wanted("job.enqueued")
    if found.needs:
        part = _possible(found, part, stored)
    for place, row, answer in zip(*part, enqueue_as(tenant, part.rows, alias), strict=True):
        if place in found.pending:
            end_custody(found.pending.pop(place), row, answer)
        error = refusal(row, answer)
        found.outcomes[place] = Outcome(None if error else answer.job_id, answer.outcome, error)
        if error is None:
            if found.needs and answer.job_id.hex != row["id"]:
                stored[row["id"]] = answer.job_id.hex
            if told:
                tell_event(row, answer)


def _possible(found: _List, part: _Group, stored: Mapping[str, str]) -> _Group:
    """Leave out, and refuse, rows that wait for what a statement before this one refused."""
    late: dict[int, PgBrokerError] = {
        place: linked_rows.prerequisite_refused(need)
        for place in part.places
        for need in found.needs.get(place, ())
        if found.outcomes[need].error is not None
    }
    if late:
        found.refuse(linked_rows.spread(late, found.needs))
        part = _without(part, late)
    if stored:
        part = part._replace(rows=[linked_rows.renamed(row, stored) for row in part.rows])
    return part


def _without(group: _Group, left_out: Mapping[int, object]) -> _Group:
    kept = [at for at, place in enumerate(group.places) if place not in left_out]
    return _Group([group.places[at] for at in kept], [group.rows[at] for at in kept])


def _statements(rows: Sequence[Mapping[str, Any]]) -> Iterator[slice]:
    """Cut rows into what goes in one statement."""
    start = weight = 0
    for place, row in enumerate(rows):
        length = len(row.get("args_text", "")) + CHARACTERS_OF_A_REFERENCE * len(row.get("depends_on", ()))
        if place > start and (
            place - start == ROWS_PER_STATEMENT or weight + length > CHARACTERS_PER_STATEMENT
        ):
            yield slice(start, place)
            start, weight = place, 0
        weight += length
    yield slice(start, len(rows))


def _in_order(group: _Group, above: Mapping[int, int]) -> _Group:
    """Put what others wait for first, and rows between which nothing decides by their keys."""
    order = sorted(
        range(len(group.rows)), key=lambda at: (above.get(group.places[at], 0), *_key_order(group.rows[at]))
    )
    return _Group([group.places[at] for at in order], [group.rows[at] for at in order])


def _key_order(row: Mapping[str, Any]) -> tuple[str, str]:
    key = row.get("idempotency_key")
    return ("", "") if key is None else (row["job_type"], key)

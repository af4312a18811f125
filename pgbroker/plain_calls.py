"""
Many plain calls of one task: the server stores those that are checked while the others are.

The short way of `enqueue_many` for the list that most long ones are. Whatever is not plain about one of the calls goes
the ordinary way with all of them, which says what it is; a rule lives there.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from uuid import UUID

from django.db import DatabaseError, OperationalError, connections, transaction

from pgbroker import hooks, payload, telemetry
from pgbroker.db import REPEATABLE
from pgbroker.errors import PgBrokerError
from pgbroker.ids import new_id_texts
from pgbroker.lifecycle.enqueue import enqueue_ahead
from pgbroker.registry import Call
from pgbroker.shared_rows import Shared, row_of, shared_of
from pgbroker.tenancy import tenant_context
from pgbroker.wakeups import wake_after_commit

# A statement has to fit into what the system keeps for a socket, or the server gets the rest of it only when this side
# sends the next.
ROWS_AHEAD = 1000
CHARACTERS_AHEAD = 96 * 1024
# With fewer there is nothing to do meanwhile.
FEWEST = 2 * ROWS_AHEAD


class _NotPlain(Exception):
    """One of the calls is not plain: undo what was stored."""


def enqueue_plain_calls(calls: Sequence[object], *, using: str | None) -> list[UUID | PgBrokerError] | None:
    """
    Enqueue calls in one transaction; returns the job of each, or what refused it, in order.

    None, with nothing stored, when they are few, or not all plain calls of one task.
    """
    if len(calls) < FEWEST or hooks.any_before_enqueue() or telemetry.wanted("job.enqueued"):
        return None
    plain = _of_one_task(calls)
    if plain is None:
        return None
    try:
        shared = shared_of(plain[0].task, using=using)
    except PgBrokerError:  # which is told of each call
        return None
    # What an annotation does not hold to plain types may run code of its own, which must not run in here.
    if shared.linked or shared.task.lenient:
        return None
    said = row_of(shared, "", "")
    answers: list[UUID | PgBrokerError] = []
    tenant: AbstractContextManager[object] = (
        nullcontext() if shared.tenant is None else tenant_context(shared.tenant)
    )
    repeats = connections[shared.database].get_autocommit()
    committed: list[bool] = []
    try:
        # In a caller's transaction with a savepoint, since nothing else undoes what was stored before.
        with tenant, transaction.atomic(using=shared.database):
            transaction.on_commit(lambda: committed.append(True), using=shared.database)
            if not enqueue_ahead(said, _parts(plain, shared, answers), using=shared.database):
                raise _NotPlain
            wake_after_commit(said["queue"], using=shared.database)
    except _NotPlain:
        return None
    except OperationalError as error:
        # As the ordinary way: only where the server says that nothing is stored, and nothing else was lost with it.
        if committed or not repeats or not isinstance(error.__cause__, REPEATABLE):
            raise
        return None
    except DatabaseError:
        # Something about the rows, and nothing is stored: the ordinary way meets it again, and says what it is.
        if committed or connections[shared.database].needs_rollback:
            raise
        return None
    _tell(said["queue"], said["job_type"], answers)
    return answers


def _of_one_task(calls: Sequence[object]) -> Sequence[Call] | None:
    """Return the calls, if they are all calls of the same task, options and all."""
    first = calls[0]
    if not isinstance(first, Call):
        return None
    task = first.task
    found = [call for call in calls if isinstance(call, Call) and call.task is task]
    return found if len(found) == len(calls) else None


def _parts(
    calls: Sequence[Call], shared: Shared, answers: list[UUID | PgBrokerError]
) -> Iterator[tuple[Sequence[UUID], Sequence[str]]]:
    """Check calls, and yield ids and arguments of as many as go in one statement; notes what becomes of each call."""
    numbers = new_id_texts()
    ids: list[UUID] = []
    texts: list[str] = []
    weight = 0
    for call in calls:
        try:
            _, size, text = payload.encode(
                shared.signature, call.args, call.kwargs, limit_bytes=shared.body_bytes
            )
        except PgBrokerError as error:
            answers.append(error)
            continue
        if size > shared.limit_bytes:
            raise _NotPlain  # into a body, and bodies are saved before any statement
        if len(ids) == ROWS_AHEAD or (ids and weight + len(text) > CHARACTERS_AHEAD):
            yield ids, texts
            ids, texts, weight = [], [], 0
        job_id = UUID(next(numbers))
        answers.append(job_id)
        ids.append(job_id)
        texts.append(text)
        weight += len(text)
    if ids:
        yield ids, texts


def _tell(queue: str, job_type: str, answers: Sequence[UUID | PgBrokerError]) -> None:
    """Tell how many jobs were made."""
    made = sum(1 for answer in answers if isinstance(answer, UUID))
    if made and telemetry.wanted("batch.enqueued"):
        telemetry.emit("batch.enqueued", count=made, created={(queue, job_type): made})

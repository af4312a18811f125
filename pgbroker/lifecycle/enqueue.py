"""enqueue: -> scheduled, ready, in the caller's transaction."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from pgbroker import db

_PLAIN_TEXTS = ("principal", "correlation_id", "traceparent")
_PLAIN_NUMBERS = ("type_version", "priority", "max_attempts")
# What a plain job says of itself. A row with any other key goes the long way.
_SAID = ("job_type", "queue", *_PLAIN_NUMBERS)
_OWN = ("id", "args", "args_text")
# What a job says of those that it belongs to and waits for.
_LINKS = ("group", "name", "depends_on", "on_failure")
_PLAIN = {*_OWN, *_SAID, *_PLAIN_TEXTS}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PRINTABLE = re.compile(r"[ -~]*").fullmatch


class Enqueued(NamedTuple):
    """
    The answer for one job.

    *outcome* is created, replaced (created in place of the job that *detail* names), existing, or the code
    of a refusal that *detail* explains.
    """

    ordinal: int
    job_id: UUID
    outcome: str
    detail: str | None
    created_at: datetime

    @property
    def made(self) -> bool:
        """True when this call stored a job."""
        return self.outcome in ("created", "replaced")

    @property
    def refused(self) -> bool:
        """True when nothing was stored and no stored job was found."""
        return not self.made and self.outcome != "existing"


def enqueue_rows(rows: Sequence[dict[str, Any]], *, using: str | db.Session = "default") -> list[Enqueued]:
    """
    Enqueue jobs for the current tenant, each a row as `pgbroker.enqueue_many_1` takes it, in one statement.

    Returns one answer a row, in order; a refused row does not sink the others. The rows become visible
    with the caller's commit. Arguments may be JSON text already, under the key `args_text`.
    """
    if not rows:
        return []
    linked = any("depends_on" in row or "group" in row for row in rows)
    answers = _enqueue_linked(rows, using) if linked else _enqueue_plain(rows, using)
    if answers is not None:
        return answers
    jobs = ",".join(map(_text_of_row, rows))
    found = db.fetch("enqueue_many", {"jobs": f"[{jobs}]"}, tuple, using=using)
    created_at = found[0][4]
    return [Enqueued._make((*answer[:4], created_at)) for answer in found]


def enqueue_ahead(
    said: Mapping[str, Any], parts: Iterable[tuple[Sequence[UUID], Sequence[str]]], *, using: str
) -> bool:
    """
    Enqueue plain jobs that all say what the row *said* does: the server stores a part while the caller makes the next.

    A part is the jobs' ids and their arguments as JSON text. Needs a transaction of the caller's. False when one of
    them is not plain, or not right: what was stored before it must be undone with that transaction.
    """
    parameters = _in_common([said])
    if parameters is None:
        return False
    with db.ahead(using) as line:
        for ids, texts in parts:
            own = {"job_ids": db.uuid_array(ids), "args": f"[{','.join(texts)}]"}
            line.send("enqueue_plain_many", parameters | own)
    return all(microseconds is not None for ((microseconds,),) in line.answers)


def _enqueue_plain(rows: Sequence[dict[str, Any]], using: str | db.Session) -> list[Enqueued] | None:
    """Try the short way, which takes half the time: None when a row needs the long one, and nothing is stored."""
    parameters = _in_common(rows)
    ids = None if parameters is None else _ids_of(rows)
    if parameters is None or ids is None:
        return None
    texts = [_text_of_args(row) for row in rows]
    if len(rows) == 1:
        parameters |= {"job_id": ids[0], "args": texts[0]}
        (microseconds,) = db.fetch("enqueue_plain", parameters, _only, using=using)
    else:
        # As one text each: the driver would look at every element of a list.
        parameters |= {"job_ids": db.uuid_array(ids), "args": f"[{','.join(texts)}]"}
        (microseconds,) = db.fetch("enqueue_plain_many", parameters, _only, using=using)
    return _made(ids, microseconds)


def _enqueue_linked(rows: Sequence[dict[str, Any]], using: str | db.Session) -> list[Enqueued] | None:
    """Try the short way of jobs that wait for others by their ids: None when a row needs the long one."""
    bare = [{name: value for name, value in row.items() if name not in _LINKS} for row in rows]
    parameters = _in_common(bare)
    ids = None if parameters is None else _ids_of(rows)
    if parameters is None or ids is None:
        return None
    group, on_failure = rows[0].get("group"), rows[0].get("on_failure") or "cancel"
    if any(row.get("group") != group or (row.get("on_failure") or "cancel") != on_failure for row in rows):
        return None
    names = [row.get("name") for row in rows]
    texts = [text for text in (group, on_failure, *names) if text is not None]
    edges = _edges_of(rows, ids)
    if edges is None or not all(type(text) is str and _PRINTABLE(text) for text in texts):
        return None
    places, earlier, others = edges
    parameters |= {
        "job_ids": db.uuid_array(ids),
        "args": f"[{','.join(map(_text_of_args, rows))}]",
        "group_name": group,
        "names": names if any(name is not None for name in names) else None,
        "edge_places": db.array(places),
        "edge_on": db.array("null" if place is None else place for place in earlier),
        "edge_ids": db.array("null" if other is None else other.hex for other in others),
        "on_failure": on_failure,
    }
    (microseconds,) = db.fetch("enqueue_linked_many", parameters, _only, using=using)
    return _made(ids, microseconds)


def _edges_of(
    rows: Sequence[dict[str, Any]], ids: Sequence[UUID]
) -> tuple[list[int], list[int | None], list[UUID | None]] | None:
    """Return who waits, and for which earlier row or which other job; None where a reference is no id."""
    place_of: dict[str, int] = {}
    places: list[int] = []
    earlier: list[int | None] = []
    others: list[UUID | None] = []
    try:
        for place, (row, job_id) in enumerate(zip(rows, ids, strict=True), 1):
            for reference in row.get("depends_on") or ():
                # As our own client writes them: to read a UUID from text costs more than all else here.
                if (on := place_of.get(reference)) is None:
                    other = UUID(reference)
                    on = place_of.get(other.hex)
                places.append(place)
                earlier.append(on)
                others.append(other if on is None else None)
            place_of[job_id.hex] = place
    except (TypeError, ValueError, AttributeError):
        return None
    return places, earlier, others


def _made(ids: Sequence[UUID], microseconds: int | None) -> list[Enqueued] | None:
    if microseconds is None:
        return None
    # To read an instant from text costs Django's connections a tenth of the call.
    created_at = _EPOCH + timedelta(microseconds=microseconds)
    return [Enqueued(place, job_id, "created", None, created_at) for place, job_id in enumerate(ids, 1)]


def _in_common(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return what plain rows say of themselves, None when they are not plain or differ."""
    first = rows[0]
    names = first.keys()
    if not names <= _PLAIN or not names >= {"id", *_SAID} or ("args" in names) == ("args_text" in names):
        return None
    texts = {name: first.get(name) for name in ("job_type", "queue", *_PLAIN_TEXTS)}
    numbers = {name: first[name] for name in _PLAIN_NUMBERS}
    # What may not fit a parameter of the statement is for the long way, which refuses the row and not the call.
    if not all(value is None or (type(value) is str and _PRINTABLE(value)) for value in texts.values()):
        return None
    if not all(type(value) is int and abs(value) < 2**31 for value in numbers.values()):
        return None
    if len(rows) > 1 and not _all_say(rows, [name for name in first if name not in _OWN]):
        return None
    return texts | numbers


def _all_say(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> bool:
    """Tell whether the rows say the same under *names*, and have an id and arguments besides."""
    said, count = itemgetter(*names), len(rows[0])
    wanted = said(rows[0])
    types = [*map(type, wanted)]
    try:
        # True is equal to 1, and is no number.
        return all(
            len(row) == count
            and ("args_text" in row or "args" in row)
            and (mine := said(row)) == wanted
            and [*map(type, mine)] == types
            for row in rows
        )
    except KeyError:
        return False


def _ids_of(rows: Sequence[dict[str, Any]]) -> list[UUID] | None:
    try:
        return [UUID(row["id"]) for row in rows]
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _only(values: Sequence[Any]) -> Any:
    return values[0]


def _text_of(value: Any) -> str:
    # A value that JSON does not know was refused where the arguments were encoded.
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _text_of_args(row: dict[str, Any]) -> str:
    return row["args_text"] if "args_text" in row else _text_of(row["args"])


def _text_of_row(row: dict[str, Any]) -> str:
    if "args_text" not in row:
        return _text_of(row)
    others = {name: value for name, value in row.items() if name != "args_text"}
    return (
        f'{{"args":{row["args_text"]},{_text_of(others)[1:]}' if others else f'{{"args":{row["args_text"]}}}'
    )

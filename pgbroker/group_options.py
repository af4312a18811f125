"""What `run_group` takes, checked, as the database takes it."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pgbroker import hooks, linked_rows, payload
from pgbroker.errors import InvalidArgument, InvalidOption
from pgbroker.policy.values import whole
from pgbroker.references import CallRef, DeferredRef, Edge, as_json, checked_policy, references_of
from pgbroker.registry import Call, JobTask
from pgbroker.shared_rows import row_of, shared_of

_PERCENT = re.compile(r"(\d{1,3}(?:\.\d+)?) ?%").fullmatch


def group_options(
    *,
    tolerate: int | str,
    callbacks: Mapping[str, Call | JobTask[[], Any] | None],
    depends_on: Iterable[Any],
    on_failure: str,
    using: str,
) -> dict[str, Any]:
    """Return the options of `pgbroker.open_group_1`; raises `InvalidOption` and what enqueueing a callback would."""
    options = _tolerance(tolerate)
    for name, call in callbacks.items():
        if call is not None:
            options[name] = _entry(name, call, using)
    if references := references_of("depends_on", depends_on):
        for reference in references:
            to = reference.to if isinstance(reference, Edge) else reference
            if isinstance(to, (CallRef, DeferredRef)):
                raise InvalidOption(
                    "depends_on",
                    f"has a {'call' if isinstance(to, CallRef) else 'DeferredRef'}, for a run group",
                    "A run group waits for what exists: enqueue that first, and give what it returned.",
                )
        options["depends_on"] = [as_json(each) for each in references]
    checked_policy("on_failure", on_failure)
    return options | {"on_failure": on_failure}


def _tolerance(tolerate: int | str) -> dict[str, Any]:
    if isinstance(tolerate, float):
        share = f"{tolerate * 100:g}" if 0 < tolerate < 1 else "5"
        raise InvalidOption(
            "tolerate", f"is {tolerate!r}", f'Give a whole number of members, or a share as text: "{share}%".'
        )
    if isinstance(tolerate, str):
        said = _PERCENT(tolerate)
        if said is None or float(said[1]) > 100:
            raise InvalidOption(
                "tolerate",
                f"is {tolerate!r}",
                'Give a number of members, or a share of them, from "0%" to "100%".',
            )
        return {"tolerate_percent": float(said[1])}
    return {"tolerate_count": count} if (count := whole("tolerate", tolerate, 0, 2**31 - 1)) else {}


def _entry(name: str, call: Call | JobTask[[], Any], using: str) -> dict[str, Any]:
    """Make the entry that the database keeps until the group ends."""
    bound: object = call.bind() if isinstance(call, JobTask) else call
    if not isinstance(bound, Call):
        raise InvalidOption(name, f"is a {type(call).__name__}", "Give task.bind(...).")
    bound = hooks.changed(bound)
    shared = shared_of(bound.task, using=None)
    if shared.database != using or shared.tenant is not None:
        raise InvalidOption(
            name, "would be enqueued in another database or tenant", "Give one of where the group is."
        )
    # In the row, whatever BODY_STORAGE says: a body would be nobody's until the group ends.
    try:
        _, _, text = payload.encode(
            shared.signature, bound.args, bound.kwargs, limit_bytes=shared.limit_bytes
        )
    except InvalidArgument as error:
        raise error.within(name) from error
    row = row_of(shared, "", text)
    if linked_rows.write_links(row, bound.task.call_options, None) is not None:
        raise linked_rows.not_in_the_list()
    del row["id"]
    return {"args": json.loads(row.pop("args_text"))} | row

"""open_group: -> open, in the caller's transaction."""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from pgbroker import db


def open_group(name: str, options: Mapping[str, Any], *, using: str | db.Session = "default") -> UUID:
    """
    Open a run group of the current tenant and return its id; *options* are those of `pgbroker.open_group_1`.

    Raises `GroupExists`, and what an entry of `enqueue_many_1` would be refused for; nothing is stored then.
    """
    (group_id,) = db.fetch(
        "open_group", {"name": name, "options": json.dumps(dict(options))}, _only, using=using
    )
    return group_id  # type: ignore[no-any-return] # a uuid


def _only(values: Sequence[Any]) -> Any:
    return values[0]

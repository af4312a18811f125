"""
Every statement a pgbroker process runs, one file each; the file name is the verb.

A statement's header is read by machine: `Scope:` says in which tenant scope it runs, `Plan: hot` that
the planner must not change its mind with the table's size, `Plan: hot, kept` that a session plans it once,
`Commit:` that the database looks at something once more when its transaction commits.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).parent
Scope = Literal["all", "tenant", "none"]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: its text as psycopg takes it, what its header declares, and its parameters in order."""

    name: str
    text: str
    scope: Scope
    hot: bool
    kept: bool
    deferred: bool
    parameters: tuple[str, ...]


@cache
def load(name: str) -> Statement:
    """Read the statement of that name; raises FileNotFoundError when there is none."""
    text = (FOLDER / f"{name}.sql").read_text(encoding="utf-8")
    header = "".join(line for line in text.splitlines(keepends=True) if line.startswith("--"))
    body = "\n".join(line.strip() for line in text.splitlines() if not line.lstrip().startswith("--"))
    scope = re.search(r"^-- Scope: +(all|tenant|none)\b", header, re.MULTILINE)
    assert scope, f"{name}.sql does not say its scope"
    found = dict.fromkeys(re.findall(r"%\((\w+)\)s", body))
    return Statement(
        name=name,
        # Without what is written for people: all of it is sent or hashed with every execution, and psycopg reads
        # a text of over 4,096 bytes anew each time, which for one job takes longer than all else of it.
        text=re.sub(r" */\*[^*]*\*/", "", body).strip(),
        scope=scope.group(1),  # type: ignore[arg-type]
        hot=bool(re.search(r"^-- Plan: +hot\b", header, re.MULTILINE)),
        kept=bool(re.search(r"^-- Plan: +hot, kept\b", header, re.MULTILINE)),
        deferred=bool(re.search(r"^-- Commit: +\S", header, re.MULTILINE)),
        parameters=tuple(found),
    )


def all_statements() -> list[Statement]:
    """Load every statement, in alphabetical order."""
    return [load(path.stem) for path in sorted(FOLDER.glob("*.sql"))]

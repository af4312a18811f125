"""
Write the parts of the reference that the code knows: `python docs/generated.py` (wants a migrated database).

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`. A test compares each with the code, so
a page that was forgotten fails there.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
PART = re.compile(r"(?<=<!-- generated: )(?P<name>[\w-]+)(?P<open> -->\n)(?P<body>.*?)(?=<!-- end -->)", re.S)


def first_sentence(thing: object) -> str:
    """Return the first sentence of a docstring, in one line."""
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.]) (?=[A-Z])", text)[0]


def row(*cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def table(headings: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    lines = [row(*headings), row(*["---"] * len(headings)), *(row(*cells) for cells in rows)]
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------ settings, errors, events


def settings() -> str:
    from pgbroker.conf import KEYS

    return table(
        ("Key", "Default", "Meaning"),
        [(f"`{key.name}`", _value(key.default), key.metadata["meaning"]) for key in KEYS.values()],
    )


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1024 and value % 1024 == 0:
        return f"`{value // 1024} * 1024`"
    if hasattr(value, "as_json"):
        value = {key: int(one) if isinstance(one, float) else one for key, one in value.as_json().items()}
    return f"`{value!r}`".replace("'", '"')


def errors() -> str:
    from pgbroker import errors

    own = [
        each
        for each in vars(errors).values()
        if isinstance(each, type)
        and issubclass(each, errors.PgBrokerError)
        and each is not errors.PgBrokerError
    ]
    return table(
        ("Code", "Class", "When"),
        [(f"`{each.code}`", f"`{each.__name__}`", first_sentence(each)) for each in own],
    )


def events() -> str:
    import logging

    from pgbroker.telemetry import EVENTS

    return table(
        ("Event", "Level", "Message"),
        [(f"`{name}`", logging.getLevelName(level).lower(), says) for name, (level, says) in EVENTS.items()],
    )


def _metrics(families: tuple[Any, ...]) -> str:
    return table(
        ("Metric", "Kind", "Labels", "What it tells"),
        [
            (f"`{each.sample_name}`", each.kind, ", ".join(f"`{label}`" for label in each.labels), each.says)
            for each in families
        ],
    )


def metrics_of_every_process() -> str:
    from pgbroker.metrics.catalogue import OF_EVERY_PROCESS

    return _metrics(OF_EVERY_PROCESS)


def metrics_of_schedulers() -> str:
    from pgbroker.metrics.catalogue import OF_SCHEDULERS

    return _metrics(OF_SCHEDULERS)


def metrics_of_workers() -> str:
    from pgbroker.metrics.catalogue import OF_WORKERS

    return _metrics(OF_WORKERS)


# ------------------------------------------------------------------ Python, SQL, commands


def public_names() -> str:
    import pgbroker

    rows = []
    for name in pgbroker.__all__:
        thing = getattr(pgbroker, name)
        kind = "class" if inspect.isclass(thing) else "function"
        if inspect.isclass(thing) and issubclass(thing, BaseException):
            kind = "exception"
        rows.append((f"`{name}`", kind, first_sentence(thing)))
    return table(("Name", "Kind", "What it does"), rows)


def testing_names() -> str:
    from pgbroker import testing

    rows = []
    for name in testing.__all__:
        thing = getattr(testing, name)
        rows.append((f"`{name}`", "class" if inspect.isclass(thing) else "function", first_sentence(thing)))
    return table(("Name", "Kind", "What it does"), rows)


def pytest_fixtures() -> str:
    from pgbroker import pytest_plugin

    tree = ast.parse(inspect.getsource(pytest_plugin))
    rows = [
        (f"`{node.name}`", " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()))
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.decorator_list and not node.name.startswith("_")
    ]
    return table(("Fixture", "What it is"), rows)


def job_options() -> str:
    from pgbroker import job

    rows = [
        (f"`{name}`", f"`{parameter.default!r}`".replace("'", '"'))
        for name, parameter in inspect.signature(job).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    return table(("Parameter of `@job`", "Default"), rows)


PUBLIC_FUNCTIONS = (
    "enqueue",
    "enqueue_many_1",
    "open_group_1",
    "seal_group_1",
    "add_dependencies_1",
    "ensure_partitions_1",
)


def sql_functions() -> str:
    from django.db import connection

    parts = []
    with connection.cursor() as cursor:
        for name in PUBLIC_FUNCTIONS:
            cursor.execute(
                "select pg_get_function_arguments(oid), pg_get_function_result(oid) from pg_proc "
                "where pronamespace = 'pgbroker'::regnamespace and proname = %s",
                [name],
            )
            ((arguments, result),) = cursor.fetchall()
            arguments = re.sub(r"::(text|jsonb|integer|timestamp with time zone)\b", "", arguments)
            arguments = arguments.replace("timestamp with time zone", "timestamptz").replace(
                "DEFAULT", "default"
            )
            shown = ",\n    ".join(arguments.replace("NULL", "null").split(", "))
            result = result.replace("TABLE", "table ").replace("SETOF", "setof")
            parts.append(f"pgbroker.{name}(\n    {shown}\n) returns {result}")
    return "```postgresql\n" + "\n\n".join(parts) + "\n```\n"


def commands() -> str:
    from django.core.management import load_command_class
    from django.core.management.base import BaseCommand

    folder = DOCS.parent / "pgbroker" / "management" / "commands"
    parts = []
    for path in sorted(folder.glob("broker_*.py")):
        command = load_command_class("pgbroker", path.stem)
        parts.append(f"## {path.stem}\n\n{command.help}\n")
        parser = command.create_parser("manage.py", path.stem)
        usual = {action.dest for action in BaseCommand().create_parser("manage.py", "none")._actions}
        subparsers = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if not subparsers:
            parts.append(_flags(parser, usual))
        for action in subparsers:
            helps = {choice.dest: choice.help for choice in action._choices_actions}
            for name, sub in action.choices.items():
                parts.append(f"### {path.stem} {name}\n\n{helps[name]}\n\n{_flags(sub, {'help'})}")
    return "\n".join(parts)


def _flags(parser: argparse.ArgumentParser, without: set[str]) -> str:
    rows = []
    for action in parser._actions:
        if action.dest in without or action.help == argparse.SUPPRESS:
            continue
        value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
        shown = " ".join(filter(None, [*action.option_strings[:1], str(value)]))
        meaning = action.help or ""
        if action.choices:
            meaning = f"{meaning.rstrip('.')}: {', '.join(f'`{choice}`' for choice in action.choices)}."
        if action.default not in (None, False, [], "") and "default" not in meaning.lower():
            meaning = f"{meaning.rstrip('.')} (default: `{action.default}`)."
        rows.append((f"`{shown}`", meaning))
    return table(("Flag", "Meaning"), rows)


# ------------------------------------------------------------------ states


def _existing(verb: str) -> bool:
    return (DOCS.parent / "pgbroker" / "lifecycle" / f"{verb}.py").exists()


def transitions() -> str:
    from pgbroker.states import TRANSITIONS

    rows = []
    for verb, pairs in TRANSITIONS.items():
        targets: dict[Any, list[str]] = defaultdict(list)
        for old, new in sorted(pairs):
            targets[old].append(new.label)
        by_target: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for old, new in targets.items():
            by_target[tuple(new)].append(old.label)
        ways = "; ".join(f"{', '.join(old)} → {', '.join(new)}" for new, old in by_target.items())
        rows.append((f"`{verb}`", ways, "yes" if _existing(verb) else "not yet"))
    return table(("Verb", "From → to", "In this release"), rows)


def mermaid() -> str:
    from pgbroker.states import ENTRY, TERMINAL, TRANSITIONS

    by_pair: dict[Any, list[str]] = defaultdict(list)
    for verb, pairs in TRANSITIONS.items():
        for pair in sorted(pairs):
            by_pair[pair].append(verb)
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {status.label}: enqueue" for status in sorted(ENTRY)]
    lines += [
        f"    {old.label} --> {new.label}: {', '.join(verbs)}"
        for (old, new), verbs in sorted(by_pair.items())
    ]
    lines += [f"    {status.label} --> [*]" for status in sorted(TERMINAL) if status.label == "completed"]
    return "```mermaid\n" + "\n".join(lines) + "\n```\n"


# ------------------------------------------------------------------ benchmarks


def bench_figures() -> str:
    from testproject.bench import tables

    return tables.figures()


def bench_conditions() -> str:
    from testproject.bench import tables

    return tables.conditions()


def bench_peers() -> str:
    from testproject.bench import tables

    return tables.peers()


PARTS: dict[str, Callable[[], str]] = {
    "settings": settings,
    "errors": errors,
    "events": events,
    "metrics-of-every-process": metrics_of_every_process,
    "metrics-of-schedulers": metrics_of_schedulers,
    "metrics-of-workers": metrics_of_workers,
    "public-names": public_names,
    "job-options": job_options,
    "testing-names": testing_names,
    "pytest-fixtures": pytest_fixtures,
    "sql-functions": sql_functions,
    "commands": commands,
    "transitions": transitions,
    "mermaid": mermaid,
    "bench-figures": bench_figures,
    "bench-conditions": bench_conditions,
    "bench-peers": bench_peers,
}


def pages() -> list[Path]:
    """List the pages that have generated parts."""
    return [page for page in sorted(DOCS.rglob("*.md")) if PART.search(page.read_text())]


def filled(page: Path) -> str:
    """Return a page with its generated parts as the code says now."""
    return PART.sub(lambda part: f"{part['name']}{part['open']}\n{PARTS[part['name']]()}\n", page.read_text())


def main() -> None:
    sys.path.insert(0, str(DOCS.parent))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    import django

    django.setup()
    for page in pages():
        page.write_text(filled(page))
    (DOCS / "reference" / "states.svg").write_text(import_module("docs.states_picture").draw())


if __name__ == "__main__":
    main()

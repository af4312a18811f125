"""The shape of the package: one verb, one name, three files; every import from a layer below."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pgbroker import errors, lifecycle, sql
from pgbroker.states import TRANSITIONS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pgbroker"
LIFECYCLE = Path(lifecycle.__file__).parent

# Verbs of TRANSITIONS that a later release makes; the guards let them pass already.
TO_COME = {"wake"}
MODULES = sorted(path.stem for path in LIFECYCLE.glob("*.py") if path.stem != "__init__")
STATEMENTS = {statement.name for statement in sql.all_statements()}


def fetched(path: Path) -> list[str]:
    """Return the names of the statements that a module runs."""
    return re.findall(r"\bfetch(?:\[[^\]]*\])?\(\s*\"(\w+)\"", path.read_text())


@pytest.mark.parametrize("verb", sorted(set(TRANSITIONS) - TO_COME))
def test_a_verb_of_the_table_has_a_module_a_statement_and_a_test_file(verb):
    assert (LIFECYCLE / f"{verb}.py").exists()
    assert (ROOT / "tests" / "lifecycle" / f"test_{verb}.py").exists()
    assert verb in fetched(LIFECYCLE / f"{verb}.py")


def test_what_is_to_come_is_not_there_yet():
    """Once one of them has a module it must leave the list, and be held to the rule above."""
    assert {verb for verb in TO_COME if (LIFECYCLE / f"{verb}.py").exists()} == set()


@pytest.mark.parametrize("module", MODULES)
def test_a_module_of_lifecycle_says_in_its_docstring_what_it_is(module):
    docstring = ast.get_docstring(ast.parse((LIFECYCLE / f"{module}.py").read_text()))

    assert re.match(rf"{module}( and \w+)*: \S", docstring or ""), docstring


def test_every_statement_is_run_from_exactly_one_module():
    used = [name for path in PACKAGE.rglob("*.py") for name in set(fetched(path))]

    assert sorted(used) == sorted(STATEMENTS)


def test_only_db_and_scoping_touch_a_cursor_or_a_setting_of_pgbroker():
    touching = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"\.cursor\(|set_config\(|current_setting\(", path.read_text())
    }

    # A migration runs its SQL through the schema editor; testing is an edge that empties tables.
    assert touching <= {"db.py", "scoping.py", "testing/rows.py"}


def test_verbs_open_no_transaction():
    """A verb is one statement and commits with its caller: whoever composes writes atomic()."""
    opening = [
        module for module in MODULES if re.search(r"\batomic\(", (LIFECYCLE / f"{module}.py").read_text())
    ]

    assert opening == []


def test_no_statement_is_put_together_from_pieces():
    for module in MODULES:
        text = (LIFECYCLE / f"{module}.py").read_text()
        assert not re.search(r"f\"(?:select|update|insert|delete|with)\b", text, re.IGNORECASE), module


def test_every_error_has_a_code_of_its_own():
    classes = [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.PgBrokerError)
    ]
    codes = [each.code for each in classes]

    assert len(codes) > 15
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z][a-z_]+", code) for code in codes)


def test_every_module_imports_only_from_below():
    """Once more here, so that a run of the tests alone finds it too."""
    command = "from importlinter.cli import lint_imports_command as c; c()"
    run = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )

    assert run.returncode == 0, run.stdout + run.stderr

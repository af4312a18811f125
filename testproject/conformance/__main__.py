"""`python3 testproject conformance`: Django's own tests of its task framework, on pgbroker's backend."""

from __future__ import annotations

import argparse
import os
import sys
import unittest
from typing import Any

from testproject.conformance import sources, verdict


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python3 testproject conformance",
        description="Run Django's own tests of its task framework on pgbroker's backend.",
        epilog="The tests are those of the installed Django, from its source distribution, which pip downloads "
        "once; on Django 5.2 those of 6.0, in the names of the backport. The exit code is 1 when a test fails "
        "that is not known to, or one that is known to does not.",
    )
    parser.parse_args(arguments)
    try:
        place = sources.fetch()
    except sources.NoSources as problem:
        print(problem, file=sys.stderr)
        return 1
    os.environ.setdefault("PGBROKER_PG_KIND", "test")
    os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.conformance.settings"
    from testproject import database, embedded_pg

    if database.is_embedded():
        embedded_pg.ensure_running(database.kind())
    import django

    django.setup()
    sys.path.insert(0, str(place))
    failures = run()
    wrong = verdict.complaints(failures)
    for complaint in wrong:
        print(f"{complaint}\n")
    passed = sum(failure is None for failure in failures.values())
    framework = "the backport" if sources.is_backport() else "Django"
    print(
        f"Django {django.get_version()}, the tests of {sources.version()} on {framework}'s tasks: {len(failures)} ran, "
        f"{passed} passed, {len(verdict.KNOWN)} are known to fail on any other backend than Django's own"
    )
    for name, known in verdict.KNOWN.items():
        print(f"  {name} {known.why}")
    print(f"{len(wrong)} not as expected" if wrong else "as expected")
    return 1 if wrong else 0


def run() -> dict[str, str | None]:
    """Run the tests in a test database; returns the traceback of each, or None."""
    from django.test.runner import DiscoverRunner

    runner = DiscoverRunner(verbosity=0, interactive=False)
    runner.setup_test_environment()
    databases = runner.setup_databases(aliases={"default"})
    try:
        result = Outcomes()
        unittest.defaultTestLoader.loadTestsFromTestCase(test_case()).run(result)
        return result.failures_by_name
    finally:
        runner.teardown_databases(databases)
        runner.teardown_test_environment()


def test_case() -> type[unittest.TestCase]:
    """Make a test case of Django's tests, without what belongs to the dummy backend."""
    from django.test import TransactionTestCase

    # Found on the path, in what was downloaded.
    from tasks.test_tasks import TaskTestCase  # type: ignore[import-not-found]

    from pgbroker.testing import FlushMixin

    left_out = verdict.LEFT_OUT - vars(TaskTestCase).keys()
    assert not left_out, f"there is no such test any more: {left_out}"
    tests: dict[str, Any] = {
        name: test
        for name, test in vars(TaskTestCase).items()
        if name.startswith("test_") and name not in verdict.LEFT_OUT
    }
    return type("TasksOnPgbroker", (FlushMixin, TransactionTestCase), tests)


class Outcomes(unittest.TestResult):
    """Keeps for each test how it failed, or None."""

    def __init__(self) -> None:
        super().__init__()
        self.failures_by_name: dict[str, str | None] = {}

    def stopTest(self, test: unittest.TestCase) -> None:
        """Note how a test went."""
        super().stopTest(test)
        said = [text for failed, text in (*self.errors, *self.failures) if failed is test]
        self.failures_by_name[test.id().rpartition(".")[2]] = "\n".join(said) or None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

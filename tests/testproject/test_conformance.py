"""What the check on Django's own tests makes of how they went, and of what it downloads."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from testproject.conformance import sources, verdict
from testproject.conformance.verdict import Known, complaints

KNOWN = {"test_a": Known("reads a list", r"AttributeError: no list")}


def test_all_as_expected_is_no_complaint() -> None:
    assert complaints({"test_a": "…\nAttributeError: no list", "test_b": None}, KNOWN) == []


@pytest.mark.parametrize(
    ("failures", "complaint"),
    [
        ({"test_a": "AttributeError: no list", "test_b": "ValueError: x"}, "test_b failed:\nValueError: x"),
        ({"test_a": None}, "test_a passed, though it reads a list"),
        ({"test_a": "KeyError: 1"}, "test_a failed otherwise than known"),
        ({"test_b": None}, "test_a is known to fail, but there is no such test"),
    ],
)
def test_anything_else_is_one(failures: dict[str, str | None], complaint: str) -> None:
    (found,) = complaints(failures, KNOWN)

    assert found.startswith(complaint)


def test_three_tests_are_known_to_fail_each_with_its_reason() -> None:
    assert set(verdict.KNOWN) == {"test_enqueue_task", "test_enqueue_task_async", "test_refresh_result"}
    assert all(known.why and known.failure for known in verdict.KNOWN.values())


def test_only_the_tests_of_tasks_are_taken_from_the_archive_and_by_their_names_alone(tmp_path: Path) -> None:
    names = (
        "django-9/tests/tasks/test_tasks.py",
        "django-9/tests/tasks/../../escaped.py",
        "django-9/tests/tasks/data.json",
        "django-9/tests/other/test_other.py",
        "django-9/setup.py",
    )
    archive = tmp_path / "django-9.tar.gz"
    with tarfile.open(archive, "w:gz") as made:
        for name in names:
            made.addfile(tarfile.TarInfo(name), io.BytesIO())

    sources._unpack(archive, tmp_path / "out" / "here")

    found = [str(path.relative_to(tmp_path)) for path in (tmp_path / "out").rglob("*.*")]
    assert found == ["out/here/tasks/test_tasks.py"]


@pytest.mark.skipif(not sources.is_backport(), reason="translates for the backport only")
def test_a_test_is_written_in_the_names_that_the_backport_has(tmp_path: Path) -> None:
    text = """
from django.tasks.exceptions import (
    InvalidTask,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
)
from django.tasks.exceptions import InvalidTask
from django.tasks import task
BACKEND = "django.tasks.backends.dummy.DummyBackend"
raised = InvalidTask
"""

    names: dict[str, object] = {}
    exec(sources.for_the_backport(text), names)  # noqa: S102 - written above

    assert names["BACKEND"] == "django_tasks.backends.dummy.DummyBackend"
    assert names["raised"].__module__ == "django_tasks.exceptions"  # type: ignore[attr-defined]

"""The matrix leaves nothing out that the package says it supports."""

import tomllib

import pytest

from testproject.__main__ import ROOT
from testproject.matrix import noxfile
from testproject.matrix.cells import CELLS
from testproject.matrix.programs import VERSIONS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def versions_of(classifier: str) -> set[str]:
    return {
        each.rpartition(" :: ")[2]
        for each in PROJECT["classifiers"]
        if each.startswith(classifier) and "." in each.rpartition(" :: ")[2]
    }


def test_every_supported_version_is_in_a_cell():
    assert {cell.python for cell in CELLS} == versions_of("Programming Language :: Python :: 3.")
    assert {cell.django for cell in CELLS} == versions_of("Framework :: Django :: ")
    assert {cell.postgresql for cell in CELLS} == {15, 16, 17, 18} == set(VERSIONS)
    assert {cell.packages for cell in CELLS} == {"locked", "oldest", "newest"}
    assert len({cell.name for cell in CELLS}) == len(CELLS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("django>=5.2,<6.2", "django==5.2"),
        ("psycopg[pool,binary]>=3.2.4", "psycopg[binary,pool]==3.2.4"),
        ("tzdata", None),
        ("django-tasks>=0.12; python_version < '3.12'", "django-tasks==0.12"),
        ("django-tasks>=0.12; python_version >= '3.12'", None),
    ],
)
def test_the_oldest_of_a_range_is_its_lower_bound(text: str, expected: str | None):
    assert noxfile.oldest(text, "3.11") == expected

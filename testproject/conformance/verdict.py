"""What is expected of Django's tests, and what is to be said of how they went. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """A test that fails on any backend but Django's own: why, and how its failure must look."""

    why: str
    failure: str


# Looks at the dummy backend's list of what was enqueued, which is no part of the contract.
_READS_RESULTS = Known(
    "reads the dummy backend's own list `results`", r"AttributeError: .*no attribute 'results'"
)
KNOWN = {
    "test_enqueue_task": _READS_RESULTS,
    "test_enqueue_task_async": _READS_RESULTS,
    "test_refresh_result": Known(
        "calls the sync refresh() in async code, which Django forbids to whoever asks a database",
        r"SynchronousOnlyOperation",
    ),
}
# Not run: they assert that the backend is the dummy one.
LEFT_OUT = frozenset({"test_using_correct_backend", "test_get_backend"})


def complaints(failures: Mapping[str, str | None], known: Mapping[str, Known] = KNOWN) -> list[str]:
    """
    List what is not as expected.

    *failures* has the traceback of each test that ran, None of one that passed.
    """
    found = []
    for name, traceback in sorted(failures.items()):
        expected = known.get(name)
        if expected is None:
            if traceback is not None:
                found.append(f"{name} failed:\n{traceback}")
        elif traceback is None:
            found.append(f"{name} passed, though it {expected.why}. Take it from the list of known failures.")
        elif not re.search(expected.failure, traceback):
            found.append(f"{name} failed otherwise than known (it {expected.why}):\n{traceback}")
    found += [
        f"{name} is known to fail, but there is no such test"
        for name in sorted(known.keys() - failures.keys())
    ]
    return found

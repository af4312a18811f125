"""
The kit for tests of a project that uses pgbroker, for pytest and unittest.

Nothing here is a fake: jobs are stored, claimed, called and settled by the statements of a worker, on the
test's own connection, so it works inside a `TestCase` transaction too.
"""

from pgbroker.testing.cases import FlushMixin
from pgbroker.testing.differences import EnqueuedJob
from pgbroker.testing.enqueued import Filters, all_enqueued, assert_enqueued, refute_enqueued
from pgbroker.testing.inline import inline_jobs
from pgbroker.testing.rows import age, flush, guards_off, settle_bodies
from pgbroker.testing.running import Ran, run_jobs, run_to_end

__all__ = [
    "EnqueuedJob",
    "Filters",
    "FlushMixin",
    "Ran",
    "age",
    "all_enqueued",
    "assert_enqueued",
    "flush",
    "guards_off",
    "inline_jobs",
    "refute_enqueued",
    "run_jobs",
    "run_to_end",
    "settle_bodies",
]

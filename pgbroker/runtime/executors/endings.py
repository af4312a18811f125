"""How attempts end whose child process is gone."""

import os
import signal
from typing import TYPE_CHECKING

from pgbroker.conf import Settings
from pgbroker.errors import AttemptCancelled, ChildCrashed
from pgbroker.outcomes import Ended
from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.watchdog import GRACE_SECONDS

if TYPE_CHECKING:
    from pgbroker.runtime.executors.child_link import ChildLink


class FailedInChild(Exception):
    """Stands for what a handler raised in a child process; its text is the traceback from there."""


def outcome_of_lost(
    attempt: Attempt, link: "ChildLink", status: int | None, settings: Settings
) -> Ended | None:
    """Say how an attempt ended that never reported, from its child's wait status; None for one that is released."""
    if link.nonsense is not None:
        return attempt.crashed(ChildCrashed(f"the child process said {link.nonsense}"), settings)
    if not link.killed:
        return attempt.crashed(
            ChildCrashed(f"the child process ended under the job: {how_it_ended(status)}"), settings
        )
    if "timed_out" in attempt.told:
        return attempt.timed_out(settings)
    if attempt.told[0] == "shutdown":
        return None
    return attempt.failed(
        AttemptCancelled(
            f"the attempt was asked to stop: {attempt.told[0]}; it did not in {GRACE_SECONDS:g} s, "
            "and its process was killed"
        ),
        settings,
    )


def how_it_ended(status: int | None) -> str:
    """Say in words what a wait status means."""
    if status is None:
        return "it ended; how is not known"
    if not os.WIFSIGNALED(status):
        return f"it exited with code {os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    try:
        name = f" ({signal.Signals(number).name})"
    except ValueError:
        name = ""
    return f"it was ended by signal {number}{name}"

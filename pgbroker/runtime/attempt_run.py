"""One attempt from its start to its outcome: the same in a thread, on an event loop and in a child process."""

from typing import TYPE_CHECKING, Protocol

from asgiref.sync import sync_to_async

from pgbroker.errors import UndecodableArgument
from pgbroker.payload import decode
from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.attempt_bodies import fetch_arguments, is_too_large, save_result
from pgbroker.runtime.calling import call_handler, call_handler_async
from pgbroker.runtime.isolation import clean_connections, end_if_forked, enter_empty, freshen_connections

if TYPE_CHECKING:
    from pgbroker.conf import Settings
    from pgbroker.outcomes import Ended


class Place(Protocol):
    """Where attempts run: a worker, or a child process of one."""

    settings: "Settings"
    # The process that runs the handlers: one may fork, and return in the child as well.
    pid: int

    def tell_started(self, attempt: Attempt) -> None:
        """Tell that a handler is about to be called."""

    def report(self, attempt: Attempt, ended: "Ended") -> None:
        """Take an outcome."""

    def next_after(self, attempt: Attempt) -> Attempt | None:
        """Take note that a handler's slot is free; returns what runs in it next."""

    def start(self, attempt: Attempt) -> None:
        """Start an attempt that has a slot."""


def run(attempt: Attempt, place: Place) -> "Ended":
    """
    Run a sync handler in this thread, in a context where nothing is set yet, and say how it ended.

    Never raises: out of here an exception would end the thread, and its slot.
    """
    settings = place.settings
    enter_empty(attempt)
    try:
        if (stopped := attempt.stopped_before_it_ran()) is not None:
            return attempt.failed(stopped, settings)
        freshen_connections()
        if attempt.lease.args_body is not None:
            fetch_arguments(attempt)
            if (stopped := attempt.stopped_before_it_ran()) is not None:
                return attempt.failed(stopped, settings)
        place.tell_started(attempt)
        try:
            args, kwargs = decode(attempt.job_type.signature, attempt.lease.args)
        except UndecodableArgument as error:
            return attempt.undecodable(error, settings)
        ended = attempt.completed(call_handler(attempt, args, kwargs), settings)
        return save_result(attempt, ended, settings) if is_too_large(ended, settings) else ended
    except BaseException as error:
        # SystemExit and KeyboardInterrupt too.
        return attempt.failed(error, settings)
    finally:
        end_if_forked(place.pid)
        clean_connections()


async def run_async(attempt: Attempt, place: Place) -> "Ended":
    """
    Run a coroutine in this task, whose context was entered, and say how it ended.

    Never raises: out of here SystemExit would end the loop. The connections are those of the thread of the
    job's sync parts; whoever gave it one sees to them.
    """
    settings = place.settings
    try:
        if (stopped := attempt.stopped_before_it_ran()) is not None:
            return attempt.failed(stopped, settings)
        if attempt.lease.args_body is not None:
            # In the thread of the job's sync parts: one that does not come back is given up with the job,
            # and connections that the storage opens there are cleaned like the handler's.
            await sync_to_async(fetch_arguments)(attempt)
            if (stopped := attempt.stopped_before_it_ran()) is not None:
                return attempt.failed(stopped, settings)
        place.tell_started(attempt)
        try:
            args, kwargs = decode(attempt.job_type.signature, attempt.lease.args)
        except UndecodableArgument as error:
            return attempt.undecodable(error, settings)
        ended = attempt.completed(await call_handler_async(attempt, args, kwargs), settings)
        if is_too_large(ended, settings):
            ended = await sync_to_async(save_result)(attempt, ended, settings)
        return ended
    except BaseException as error:
        # A cancel, SystemExit and KeyboardInterrupt too.
        return attempt.failed(error, settings)
    finally:
        end_if_forked(place.pid)

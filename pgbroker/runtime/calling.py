"""The call of a handler, inside the project's hooks."""

from collections.abc import Mapping, Sequence
from typing import Any

from pgbroker import hooks
from pgbroker.runtime.attempt import Attempt


def call_handler(attempt: Attempt, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function and return what it returns; raises what it, or a hook around it, raises."""
    task = attempt.job_type.task
    if not hooks.any_around_run():
        return task.func(*_first(attempt), *args, **kwargs)
    with hooks.entered(attempt.context()):
        return task.func(*_first(attempt), *args, **kwargs)


async def call_handler_async(attempt: Attempt, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a coroutine function and return what it returns; raises what it, or a hook around it, raises."""
    task = attempt.job_type.task
    if not hooks.any_around_run():
        return await task.func(*_first(attempt), *args, **kwargs)
    async with await hooks.entered_async(attempt.context()):
        return await task.func(*_first(attempt), *args, **kwargs)


def _first(attempt: Attempt) -> tuple[Any, ...]:
    return (attempt.context(),) if attempt.job_type.task.takes_context else ()

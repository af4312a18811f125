"""What every executor can do."""

from collections.abc import Sequence
from typing import Protocol

from pgbroker.runtime.attempt import Attempt


class Executor(Protocol):
    """Runs attempts that the board gave a slot. Any thread may call it."""

    def start_many(self, attempts: Sequence[Attempt]) -> None:
        """Run each of them."""

    def ask_to_stop(self, attempt: Attempt) -> None:
        """Tell a running handler, for the last of the reasons in `attempt.told`, besides its stop signal."""

    def end_by_force(self, attempt: Attempt) -> bool:
        """End a handler that does not stop, and report; False where nobody can."""

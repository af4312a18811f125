"""What all errors have in common."""

from typing import Any, ClassVar


def sentence(text: str) -> str:
    """End *text* as a sentence ends, once: what others wrote often has its mark already."""
    text = text.rstrip()
    return text if text.endswith((".", "?", "!", "…")) else f"{text}."


class PgBrokerError(Exception):
    """Base of all pgbroker errors. `code` is stable, `details` keeps the data behind the message."""

    code: ClassVar[str] = "pgbroker_error"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

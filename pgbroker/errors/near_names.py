"""Tell whoever mistyped a name what may have been meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str], *, most: int = 1) -> str:
    """Ask for at most so many of the *known* names that are near to *name*; an empty text where none is."""
    close = " or ".join(map(repr, get_close_matches(name, known, n=most)))
    return f"Did you mean {close}?" if close else ""

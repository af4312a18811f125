"""JSON as the database stores it, which may say what Python cannot: read one value at a time, none spoils another."""

import json
from typing import Any

_read = json.JSONDecoder().raw_decode


class Undecodable:
    """
    Stands where stored JSON cannot be read in Python: an SQL caller may store a number of 5,000 digits.

    It takes the value's place, so that one such row spoils neither its batch nor a list it stands in.
    """

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __str__(self) -> str:
        return f"(unreadable: {self.reason})"

    __repr__ = __str__


def read_json(text: str | bytes) -> Any:
    """Return the value of stored JSON, or `Undecodable`: numbers and depths that Python refuses are no error here."""
    try:
        characters = text if isinstance(text, str) else text.decode()
        # json.loads takes twice as long: it guesses the encoding, and looks for space around the value.
        value, end = _read(characters)
        return value if end == len(characters) else json.loads(characters)
    except (ValueError, RecursionError) as error:
        return Undecodable(f"{type(error).__name__}: {error}"[:200])

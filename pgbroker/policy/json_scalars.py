"""
The codecs of single values: how one type is written as JSON and read back as the same type. Pure.

A codec checks exactly: `write` raises `Refused` for a value that would come back changed, `read` for
JSON that its type never writes.
"""

import base64
import enum
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

from pgbroker.policy.moment_text import datetime_of, duration_of, duration_text, moment_text, time_of
from pgbroker.policy.plain_json import (
    Refused,
    Walk,
    finite,
    mismatch,
    write_int,
    write_lenient,
    write_plain,
    write_stable_float,
    write_text,
)

JSON_TYPES: Mapping[type, str] = {
    type(None): "null",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    list: "list",
    dict: "dict",
}
ALL_KINDS = frozenset(JSON_TYPES.values())


class Codec:
    """
    How one type travels.

    `kinds` are the JSON types it writes. `plain` is set when `read` only checks that a value is of that
    type, so a hot path may check it in place. `identity` says that `read` gives back what it got.
    """

    name: str = "a JSON value"
    kinds: frozenset[str] = ALL_KINDS
    plain: type | None = None
    identity: bool = False
    hashable: bool = True

    def write(self, value: Any, walk: Walk) -> Any:
        """Return JSON-ready data for *value*, or raise `Refused`."""
        raise NotImplementedError

    def read(self, stored: Any) -> Any:
        """Return the value of *stored* JSON data, or raise `Refused`."""
        raise NotImplementedError


class Anything(Codec):
    """JSON's own types, as they are."""

    identity = True
    hashable = False

    def write(self, value: Any, walk: Walk) -> Any:
        return write_plain(value, walk)

    def read(self, stored: Any) -> Any:
        return stored


class Lenient(Anything):
    """What Django's task framework accepts, changed as it does."""

    def write(self, value: Any, walk: Walk) -> Any:
        return write_lenient(value, walk)


class _Exactly(Codec):
    """One of JSON's scalar types."""

    identity = True
    of: ClassVar[type]

    def read(self, stored: Any) -> Any:
        if type(stored) is not self.of:
            raise mismatch(stored, self.name)
        return stored


class NoneCodec(_Exactly):
    """None."""

    name, kinds, plain, of = "None", frozenset({"null"}), type(None), type(None)

    def write(self, value: Any, walk: Walk) -> None:
        if value is not None:
            raise mismatch(value, self.name)


class BoolCodec(_Exactly):
    """A bool; an int is none."""

    name, kinds, plain, of = "a bool", frozenset({"bool"}), bool, bool

    def write(self, value: Any, walk: Walk) -> bool:
        if type(value) is not bool:
            raise mismatch(value, self.name)
        return value


class IntCodec(_Exactly):
    """An int; a bool is none."""

    name, kinds, plain, of = "an int", frozenset({"int"}), int, int

    def write(self, value: Any, walk: Walk) -> int:
        if type(value) is not int:
            raise mismatch(value, self.name)
        return write_int(value, walk)


class StrCodec(_Exactly):
    """A str."""

    name, kinds, plain, of = "a str", frozenset({"str"}), str, str

    def write(self, value: Any, walk: Walk) -> str:
        if type(value) is not str:
            raise mismatch(value, self.name)
        return write_text(value, walk)


def _float_of(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is not int:
        raise mismatch(value, "a float")
    try:
        number = float(value)
    except OverflowError:
        number = float("nan")
    if number != value:
        raise Refused("is an int that no float equals", "Annotate it as int or Decimal.")
    return number


class FloatCodec(Codec):
    """
    A float, or an int that equals one; it always comes back as a float.

    jsonb drops the sign of -0.0, so that travels as text.
    """

    name = "a float"
    kinds = frozenset({"int", "float", "str"})
    plain = float

    def write(self, value: Any, walk: Walk) -> float | str:
        number = finite(_float_of(value))
        return number if number or repr(number) == "0.0" else "-0.0"

    def read(self, stored: Any) -> float:
        if stored == "-0.0":
            return -0.0
        if type(stored) is not float and type(stored) is not int:
            raise mismatch(stored, self.name)
        try:
            # The shortest digits of a large float, spelled out, need not be the integer it equals.
            return finite(float(stored))
        except OverflowError as error:
            raise Refused("is too large for a float", "Store a number below 1.8e308.") from error


class StableFloatCodec(Codec):
    """A float among other types: only those that jsonb keeps apart from integers, and no -0.0."""

    name = "a float"
    kinds = frozenset({"float"})
    plain = float
    identity = True

    def __init__(self, *, takes_int: bool) -> None:
        self.takes_int = takes_int

    def write(self, value: Any, walk: Walk) -> float:
        if type(value) is not float and not self.takes_int:
            raise mismatch(value, self.name)
        return write_stable_float(_float_of(value))

    def read(self, stored: Any) -> float:
        if type(stored) is not float:
            raise mismatch(stored, self.name)
        return stored


class TextCodec(Codec):
    """A type that is written as text."""

    kinds = frozenset({"str"})

    def __init__(
        self, of: type, name: str, to_text: Callable[[Any], str], from_text: Callable[[str], Any]
    ) -> None:
        self.of, self.name, self.to_text, self.from_text = of, name, to_text, from_text

    def write(self, value: Any, walk: Walk) -> str:
        if type(value) is not self.of:
            raise mismatch(value, self.name)
        text = self.to_text(value)
        walk.take(len(text))
        return text

    def read(self, stored: Any) -> Any:
        if type(stored) is not str:
            raise mismatch(stored, self.name)
        try:
            return self.from_text(stored)
        except Refused:
            raise
        except (
            Exception
        ) as error:  # each type fails in its own way: ValueError, InvalidOperation, KeyError ...
            raise Refused(
                f"cannot be read as {self.name}", f"Give {self.name} as it is documented."
            ) from error


class BytesCodec(TextCodec):
    """Bytes, as base64."""

    def __init__(self) -> None:
        super().__init__(bytes, "bytes", _bytes_text, _bytes_of)

    def write(self, value: Any, walk: Walk) -> str:
        if type(value) is bytes and len(value) > walk.left:
            walk.take(len(value))  # too large: said before it is copied
        return super().write(value, walk)


def _bytes_text(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _bytes_of(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _decimal_text(value: Decimal) -> str:
    if not value.is_finite():
        raise Refused(f"is the Decimal {value}, which is not a number", "Pass None or a finite Decimal.")
    return str(value)


def _decimal_of(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        raise Refused(f"is the Decimal {value}, which is not a number", "Store a finite Decimal.")
    return value


ANYTHING = Anything()
LENIENT = Lenient()
SCALARS: Mapping[Any, Codec] = {
    None: NoneCodec(),
    type(None): NoneCodec(),
    Any: ANYTHING,
    object: ANYTHING,
    bool: BoolCodec(),
    int: IntCodec(),
    float: FloatCodec(),
    str: StrCodec(),
    UUID: TextCodec(UUID, "a UUID", str, UUID),
    Decimal: TextCodec(Decimal, "a Decimal", _decimal_text, _decimal_of),
    datetime: TextCodec(datetime, "a datetime", moment_text, datetime_of),
    date: TextCodec(date, "a date", date.isoformat, date.fromisoformat),
    time: TextCodec(time, "a time", moment_text, time_of),
    timedelta: TextCodec(timedelta, "a timedelta", duration_text, duration_of),
    bytes: BytesCodec(),
}


class EnumCodec(Codec):
    """Members of an enum: by value when all values are str or all are int, otherwise by name."""

    def __init__(self, of: type[enum.Enum]) -> None:
        self.of = of
        self.name = f"a member of {of.__qualname__}"
        self.is_flag = issubclass(of, enum.Flag)
        types = {type(member.value) for member in of.__members__.values()}
        mixed_in = issubclass(of, (str, int)) or self.is_flag
        self.by_value = mixed_in and types in ({str}, {int})
        self.of_text = not self.by_value or types == {str}
        self.kinds = frozenset({"str" if self.of_text else "int"})
        self.by_form = {self._form(member): member for member in of.__members__.values()}

    def _form(self, member: enum.Enum) -> Any:
        return member.value if self.by_value else member.name

    def write(self, value: Any, walk: Walk) -> Any:
        if not isinstance(value, self.of):
            raise mismatch(value, self.name)
        form = self._form(value)
        return write_text(form, walk) if self.of_text else write_int(form, walk)

    def read(self, stored: Any) -> Any:
        if type(stored) is not (str if self.of_text else int):
            raise mismatch(stored, self.name)
        if (member := self.by_form.get(stored)) is not None:
            return member
        if self.by_value:
            try:
                return self.of(stored)  # a combination of flags, or what the enum's `_missing_` knows
            except Exception as error:
                raise self._unknown() from error
        raise self._unknown()

    def _unknown(self) -> Refused:
        return Refused(
            f"is not {self.name}", f"Keep the members of {self.of.__qualname__} that jobs still use."
        )


class LiteralCodec(Codec):
    """A closed choice of values; *written* maps each (type, value) to its JSON form."""

    def __init__(self, values: Iterable[Any], written: Iterable[Any]) -> None:
        self.forms = dict(zip(((type(value), value) for value in values), written, strict=True))
        self.values = {(type(form), form): value for (_, value), form in self.forms.items()}
        self.types = {kind for kind, _ in self.forms}
        self.kinds = frozenset(JSON_TYPES[kind] for kind, _ in self.values)
        self.identity = all(kind is type(form) for (kind, _), form in self.forms.items())
        self.name = "one of " + ", ".join(repr(form) for _, form in self.values)

    def write(self, value: Any, walk: Walk) -> Any:
        if type(value) not in self.types or (type(value), value) not in self.forms:
            raise self._refusal(value)
        return self.forms[type(value), value]

    def read(self, stored: Any) -> Any:
        if JSON_TYPES.get(type(stored)) not in self.kinds or (type(stored), stored) not in self.values:
            raise self._refusal(stored)
        return self.values[type(stored), stored]

    def _refusal(self, value: Any) -> Refused:
        if type(value) in self.types:
            return Refused(f"is not {self.name}", f"Give {self.name}.", mismatch=True)
        return mismatch(value, self.name)

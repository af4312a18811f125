"""
Write the values of one type as JSON, and read them back as the same values of the same type. Pure.

A codec checks exactly: `write` raises `Refused` for a value that would come back changed, `read` for
JSON that its type never writes. Both know nothing of the parameter; containers add their step to the
path as the refusal passes them.
"""

import base64
import enum
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, ClassVar, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from pgbroker.policy.plain_json import (
    Refused,
    Walk,
    finite,
    key_step,
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

_Moment = TypeVar("_Moment", datetime, time)


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
        return finite(_float_of(stored))


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


def _zone_tag(zone: tzinfo | None) -> str:
    if zone is None or type(zone) is timezone:
        return ""
    if type(zone) is not ZoneInfo:
        raise Refused(
            f"has a time zone of type {type(zone).__module__}.{type(zone).__qualname__}",
            "Use zoneinfo.ZoneInfo or datetime.timezone.",
        )
    if not zone.key:
        raise Refused("has a ZoneInfo without a key", "Make it with ZoneInfo(key).")
    return f"[{zone.key}]"


def _moment_text(value: datetime | time) -> str:
    """Write ISO 8601, then the zone's key as RFC 9557 does, then the fold."""
    text = value.isoformat() + _zone_tag(value.tzinfo)
    return f"{text}[fold=1]" if value.fold else text


def _untagged(text: str) -> tuple[str, ZoneInfo | None, int]:
    """Split a moment's text into the ISO 8601 part, the zone and the fold."""
    moment, *tags = text.replace("]", "").split("[")
    fold = 0
    if tags and tags[-1] == "fold=1":
        fold = 1
        tags.pop()
    if len(tags) > 1:
        raise ValueError("more than one zone")
    return moment, ZoneInfo(tags[0]) if tags else None, fold


def _datetime_of(text: str) -> datetime:
    if "[" not in text:
        return datetime.fromisoformat(text)
    plain, zone, fold = _untagged(text)
    moment = datetime.fromisoformat(plain)
    if zone is None:
        return moment.replace(fold=fold)
    local = moment.replace(tzinfo=zone, fold=fold)
    if moment.tzinfo is not None and local.utcoffset() != moment.utcoffset():
        # The rules of the zone differ here from where the job was enqueued: the instant is kept.
        return moment.astimezone(zone)
    return local


def _time_of(text: str) -> time:
    if "[" not in text:
        return time.fromisoformat(text)
    plain, zone, fold = _untagged(text)
    moment = time.fromisoformat(plain)
    return moment.replace(tzinfo=zone, fold=fold) if zone else moment.replace(fold=fold)


_DURATION = re.compile(
    r"P(?:(-?\d{1,10})D)?(?:T(?:(-?\d{1,14})H)?(?:(-?\d{1,14})M)?(?:(-?)(\d{1,14})(?:\.(\d{1,6}))?S)?)?",
    re.ASCII,
)


def _duration_text(value: timedelta) -> str:
    """Write an ISO 8601 duration from the three numbers a timedelta keeps, so nothing is rounded."""
    fraction = f".{value.microseconds:06}" if value.microseconds else ""
    return f"P{value.days}DT{value.seconds}{fraction}S"


def _duration_of(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError("not a duration")
    days, hours, minutes, sign, seconds, fraction = match.groups()
    whole = timedelta(seconds=int(seconds or 0), microseconds=int((fraction or "").ljust(6, "0")))
    return timedelta(days=int(days or 0), hours=int(hours or 0), minutes=int(minutes or 0)) + (
        -whole if sign else whole
    )


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
    datetime: TextCodec(datetime, "a datetime", _moment_text, _datetime_of),
    date: TextCodec(date, "a date", date.isoformat, date.fromisoformat),
    time: TextCodec(time, "a time", _moment_text, _time_of),
    timedelta: TextCodec(timedelta, "a timedelta", _duration_text, _duration_of),
    bytes: BytesCodec(),
}


def _enum_form(member: enum.Enum, *, by_value: bool) -> Any:
    return member.value if by_value else member.name


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
        if type(value) is not self.of and not (isinstance(value, enum.Enum) and isinstance(value, self.of)):
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


class OptionalCodec(Codec):
    """None, or what another codec takes."""

    def __init__(self, inner: Codec) -> None:
        self.inner = inner
        self.name = f"{inner.name} or None"
        self.kinds = inner.kinds | {"null"}
        self.identity, self.hashable = inner.identity, inner.hashable
        self.plain = inner.plain

    def write(self, value: Any, walk: Walk) -> Any:
        return None if value is None else self.inner.write(value, walk)

    def read(self, stored: Any) -> Any:
        return None if stored is None else self.inner.read(stored)


class UnionCodec(Codec):
    """The first of several codecs that takes the value; their JSON forms never overlap."""

    def __init__(self, members: list[Codec]) -> None:
        self.members = members
        self.name = " or ".join(member.name for member in members)
        self.kinds = frozenset().union(*(member.kinds for member in members))
        self.identity = all(member.identity for member in members)
        self.hashable = all(member.hashable for member in members)

    def write(self, value: Any, walk: Walk) -> Any:
        depth, left = walk.depth, walk.left
        nearest: Refused | None = None
        for member in self.members:
            try:
                return member.write(value, walk)
            except Refused as refused:
                walk.depth, walk.left = depth, left
                nearest = _nearer(nearest, refused)
        raise self._refusal(nearest, value)

    def read(self, stored: Any) -> Any:
        nearest: Refused | None = None
        for member in self.members:
            try:
                return member.read(stored)
            except Refused as refused:
                nearest = _nearer(nearest, refused)
        raise self._refusal(nearest, stored)

    def _refusal(self, nearest: Refused | None, value: Any) -> Refused:
        # A member that recognised the value and refused something about it knows more than the union.
        if nearest is not None and (nearest.steps or not nearest.mismatch):
            return nearest
        return mismatch(value, self.name)


def _nearer(one: Refused | None, other: Refused) -> Refused:
    if one is None or one.mismatch > other.mismatch or len(one.steps) < len(other.steps):
        return other
    return one


class ListCodec(Codec):
    """A list of one type."""

    kinds = frozenset({"list"})
    hashable = False

    def __init__(self, item: Codec) -> None:
        self.item = item
        self.name = "a list"
        self.identity = item.identity

    def write(self, value: Any, walk: Walk) -> list[Any]:
        if type(value) is not list:
            raise mismatch(value, self.name)
        return write_items(value, self.item, walk)

    def read(self, stored: Any) -> list[Any]:
        return read_items(stored, self.item, self.name)


def write_items(values: Iterable[Any], item: Codec, walk: Walk) -> list[Any]:
    """Write each of *values*; a refusal tells the index."""
    items = list(values)
    walk.enter(len(items))
    written: list[Any] = []
    try:
        for value in items:
            written.append(item.write(value, walk))
    except Refused as refused:
        refused.within(f"[{len(written)}]")
        raise
    walk.leave()
    return written


def read_items(stored: Any, item: Codec, name: str) -> list[Any]:
    """Read each item of a JSON list; a refusal tells the index."""
    if type(stored) is not list:
        raise mismatch(stored, name)
    values: list[Any] = []
    try:
        for one in stored:
            values.append(item.read(one))
    except Refused as refused:
        refused.within(f"[{len(values)}]")
        raise
    return values


class TupleCodec(Codec):
    """A tuple with a type for each place."""

    kinds = frozenset({"list"})

    def __init__(self, items: list[Codec]) -> None:
        self.items = items
        self.name = f"a tuple of {len(items)}"
        self.hashable = all(item.hashable for item in items)

    def write(self, value: Any, walk: Walk) -> list[Any]:
        if type(value) is not tuple:
            raise mismatch(value, self.name)
        self._check_length(value)
        walk.enter(len(value))
        written = self._each(value, lambda item, one: item.write(one, walk))
        walk.leave()
        return written

    def read(self, stored: Any) -> tuple[Any, ...]:
        if type(stored) is not list:
            raise mismatch(stored, self.name)
        self._check_length(stored)
        return tuple(self._each(stored, lambda item, one: item.read(one)))

    def _check_length(self, values: list[Any] | tuple[Any, ...]) -> None:
        if len(values) != len(self.items):
            raise Refused(f"has {len(values)} items", f"Give {self.name}.")

    def _each(self, values: Iterable[Any], convert: Callable[[Codec, Any], Any]) -> list[Any]:
        done: list[Any] = []
        try:
            for item, value in zip(self.items, values, strict=True):
                done.append(convert(item, value))
        except Refused as refused:
            refused.within(f"[{len(done)}]")
            raise
        return done


class VariadicTupleCodec(Codec):
    """A tuple of any length, of one type."""

    kinds = frozenset({"list"})
    name = "a tuple"

    def __init__(self, item: Codec) -> None:
        self.item = item
        self.hashable = item.hashable

    def write(self, value: Any, walk: Walk) -> list[Any]:
        if type(value) is not tuple:
            raise mismatch(value, self.name)
        return write_items(value, self.item, walk)

    def read(self, stored: Any) -> tuple[Any, ...]:
        return tuple(read_items(stored, self.item, self.name))


class SetCodec(Codec):
    """A set or frozenset of one type; written in order, so that equal sets make equal payloads."""

    kinds = frozenset({"list"})

    def __init__(self, of: type, item: Codec) -> None:
        self.of, self.item = of, item
        self.name = f"a {of.__name__}"
        self.hashable = of is frozenset

    def write(self, value: Any, walk: Walk) -> list[Any]:
        if type(value) is not self.of:
            raise mismatch(value, self.name)
        written = write_items(value, self.item, walk)
        try:
            return sorted(written)
        except TypeError:  # items of several types
            return sorted(written, key=lambda item: (type(item).__name__, repr(item)))

    def read(self, stored: Any) -> Any:
        values = read_items(stored, self.item, self.name)
        try:
            return self.of(values)
        except TypeError as error:
            raise Refused("has an item that cannot be in a set", "Store scalars.") from error


class DictCodec(Codec):
    """A dict; keys that are not text are written as the text of their value."""

    kinds = frozenset({"dict"})
    name = "a dict"
    hashable = False

    def __init__(self, key: Codec, item: Codec) -> None:
        self.key, self.item = key, item
        self.of_ints = key.kinds == {"int"}
        self.identity = key.identity and item.identity and not self.of_ints

    def write(self, value: Any, walk: Walk) -> dict[str, Any]:
        if type(value) is not dict:
            raise mismatch(value, self.name)
        walk.enter(len(value))
        written: dict[str, Any] = {}
        key: Any = None
        try:
            for key, item in value.items():
                written[str(self.key.write(key, walk))] = self.item.write(item, walk)
        except Refused as refused:
            refused.within(key_step(key))
            raise
        walk.leave()
        return written

    def read(self, stored: Any) -> dict[Any, Any]:
        if type(stored) is not dict:
            raise mismatch(stored, self.name)
        values: dict[Any, Any] = {}
        key: Any = None
        try:
            for key, item in stored.items():
                values[self._read_key(key)] = self.item.read(item)
        except Refused as refused:
            refused.within(key_step(key))
            raise
        return values

    def _read_key(self, key: str) -> Any:
        if not self.of_ints:
            return self.key.read(key)
        try:
            number = int(key)
        except ValueError as error:
            raise Refused("is a key that is not an integer", "Store the digits of an int.") from error
        return self.key.read(number)


class RecordCodec(Codec):
    """
    An object with named, typed fields: a dataclass, a named tuple or a typed dict.

    Its fields are given after it is made, since a field may be of the record's own type.
    """

    kinds = frozenset({"dict"})

    def __init__(self, of: type, *, is_mapping: bool) -> None:
        self.of = of
        self.is_mapping = is_mapping
        self.name = f"a {of.__qualname__}"
        self.hashable = of.__hash__ is not None and not is_mapping
        self.fields: dict[str, Codec] = {}
        self.required: frozenset[str] = frozenset()

    def set_fields(self, fields: dict[str, Codec], required: Iterable[str]) -> None:
        """Complete the codec."""
        self.fields, self.required = fields, frozenset(required)

    def write(self, value: Any, walk: Walk) -> dict[str, Any]:
        if type(value) is not (dict if self.is_mapping else self.of):
            raise mismatch(value, self.name)
        walk.enter(len(self.fields))
        written = self._write_mapping(value, walk) if self.is_mapping else self._write_object(value, walk)
        walk.leave()
        return written

    def _write_object(self, value: Any, walk: Walk) -> dict[str, Any]:
        written: dict[str, Any] = {}
        name = ""
        try:
            for name, field in self.fields.items():
                written[name] = field.write(getattr(value, name), walk)
        except Refused as refused:
            refused.within(f".{name}")
            raise
        except AttributeError as error:
            refused = Refused(
                "is not set", f"Set it, or declare the field otherwise in {self.of.__qualname__}."
            )
            refused.within(f".{name}")
            raise refused from error
        return written

    def _write_mapping(self, value: dict[Any, Any], walk: Walk) -> dict[str, Any]:
        self._check_names(value)
        written: dict[str, Any] = {}
        name = ""
        try:
            for name, item in value.items():
                written[name] = self.fields[name].write(item, walk)
        except Refused as refused:
            refused.within(key_step(name))
            raise
        return written

    def _check_names(self, given: Mapping[Any, Any]) -> None:
        for name in given:
            if type(name) is not str or name not in self.fields:
                refused = Refused(
                    f"is not a field of {self.of.__qualname__}", f"Fields: {', '.join(self.fields)}."
                )
                refused.within(key_step(name))
                raise refused
        if missing := sorted(self.required - given.keys()):
            refused = Refused(f"is missing in {self.name}", "Give it, or give the field a default.")
            refused.within(key_step(missing[0]) if self.is_mapping else f".{missing[0]}")
            raise refused

    def read(self, stored: Any) -> Any:
        if type(stored) is not dict:
            raise mismatch(stored, self.name)
        self._check_names(stored)
        values: dict[str, Any] = {}
        name = ""
        try:
            for name, item in stored.items():
                values[name] = self.fields[name].read(item)
        except Refused as refused:
            refused.within(key_step(name) if self.is_mapping else f".{name}")
            raise
        return values if self.is_mapping else self._make(values)

    def _make(self, values: dict[str, Any]) -> Any:
        try:
            return self.of(**values)
        except Exception as error:  # the class checks its own fields in its own way
            raise Refused(
                f"cannot be made a {self.of.__qualname__}: it raised {type(error).__qualname__}",
                "Keep the class able to take what is stored.",
            ) from error

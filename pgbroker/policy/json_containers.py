"""
The codecs of values that hold others: unions, lists, tuples, sets, dicts and records. Pure.

Each adds its step to the path of a refusal that passes it, so the happy path builds none.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any

from pgbroker.policy.json_scalars import Codec
from pgbroker.policy.plain_json import Refused, Walk, key_step, mismatch, refused_at


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


def write_items(values: Collection[Any], item: Codec, walk: Walk) -> list[Any]:
    """Write each of *values*; a refusal tells the index."""
    walk.enter(len(values))
    written: list[Any] = []
    try:
        for value in values:
            written.append(item.write(value, walk))  # noqa: PERF401 - its length is the index of a refusal
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
            values.append(item.read(one))  # noqa: PERF401 - its length is the index of a refusal
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
        written = _place_by_place(self.items, value, lambda item, one: item.write(one, walk))
        walk.leave()
        return written

    def read(self, stored: Any) -> tuple[Any, ...]:
        if type(stored) is not list:
            raise mismatch(stored, self.name)
        self._check_length(stored)
        return tuple(_place_by_place(self.items, stored, lambda item, one: item.read(one)))

    def _check_length(self, values: list[Any] | tuple[Any, ...]) -> None:
        if len(values) != len(self.items):
            raise Refused(f"has {len(values)} items", f"Give {self.name}.")


def _place_by_place(
    items: list[Codec], values: Iterable[Any], convert: Callable[[Codec, Any], Any]
) -> list[Any]:
    done: list[Any] = []
    try:
        for item, value in zip(items, values, strict=True):
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

    def __init__(self, of: type[Any], item: Codec) -> None:
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
        except ValueError:
            number = None  # whose text is not the key either
        if str(number) != key:  # "07" and "7" would become one key
            raise Refused("is a key that is not an int", "Store the digits of an int.")
        return self.key.read(number)


class RecordCodec(Codec):
    """
    An object with named, typed fields: a dataclass, a named tuple or a typed dict.

    Its fields are given after it is made, since a field may be of the record's own type.
    """

    kinds = frozenset({"dict"})

    def __init__(self, of: type[Any], *, is_mapping: bool) -> None:
        self.of = of
        self.is_mapping = is_mapping
        self.name = f"a {of.__qualname__}"
        self.hashable = issubclass(of, Hashable)
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
            raise refused_at(f".{name}", "is not set", f"Set it in the {self.of.__qualname__}.") from error
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
                known = ", ".join(self.fields) or "none"
                raise refused_at(
                    key_step(name), f"is not a field of {self.of.__qualname__}", f"Its fields: {known}."
                )
        for name in self.fields:
            if name in self.required and name not in given:
                step = key_step(name) if self.is_mapping else f".{name}"
                raise refused_at(step, "is missing", f"Give it, or give {self.of.__qualname__} a default.")

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

"""Choose the codec of a type hint, once, when a handler is declared. Pure."""

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Iterable
from typing import Annotated, Any, Literal, NewType, NotRequired, Required, Union

from pgbroker.policy.json_containers import (
    DictCodec,
    ListCodec,
    OptionalCodec,
    RecordCodec,
    SetCodec,
    TupleCodec,
    UnionCodec,
    VariadicTupleCodec,
)
from pgbroker.policy.json_scalars import (
    ANYTHING,
    SCALARS,
    Codec,
    EnumCodec,
    LiteralCodec,
    StableFloatCodec,
)
from pgbroker.policy.plain_json import MAX_DEPTH, Refused, Walk

SUPPORTED = (
    "None, bool, int, float, str, Any, Literal, unions that JSON keeps apart, list, tuple, set, frozenset, "
    "dict, TypedDict, NamedTuple, dataclasses, Enum, UUID, Decimal, datetime, date, time, timedelta, bytes, "
    "Annotated and NewType"
)
_WRAPPERS = (Annotated, Required, NotRequired)
_LITERAL_BYTES = 1024


class Unsupported(Exception):
    """A type hint whose values cannot travel."""

    def __init__(self, trouble: str, cure: str) -> None:
        super().__init__(trouble, cure)
        self.trouble, self.cure = trouble, cure


def codec_for(hint: Any) -> Codec:
    """Return the codec of a resolved type *hint*; raises `Unsupported`."""
    return _Compiler().codec(hint, 0)


def shown(hint: Any) -> str:
    """Return a type hint as a person wrote it, for a message."""
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__qualname__
    return str(hint)[:200].replace("typing.", "")


def _unsupported(hint: Any) -> Unsupported:
    for base in getattr(hint, "__mro__", ()):
        if (base.__module__, base.__name__) == ("django.db.models.base", "Model"):
            return Unsupported(
                f"is annotated as the model {shown(hint)}", "Take its id and load it in the handler."
            )
    return Unsupported(f"is annotated as {shown(hint)}, which cannot be stored", f"Supported: {SUPPORTED}.")


class _Compiler:
    """One walk through a hint; `records` lets a record contain itself."""

    def __init__(self) -> None:
        self.records: dict[Any, RecordCodec] = {}

    def codec(self, hint: Any, depth: int) -> Codec:
        if depth > MAX_DEPTH:
            raise Unsupported(
                f"has a type nested deeper than {MAX_DEPTH} levels", "Use a recursive dataclass."
            )
        hint = _unwrapped(hint)
        try:
            if (scalar := SCALARS.get(hint)) is not None:
                return scalar
        except TypeError:  # a hint that cannot be hashed is none of them
            raise _unsupported(hint) from None
        if isinstance(hint, type) and not typing.get_args(hint):
            return self._class(hint, depth)
        return self._generic(hint, depth)

    def _class(self, hint: type, depth: int) -> Codec:
        if hint in (list, tuple, set, frozenset, dict):
            return self._bare(hint)
        if issubclass(hint, enum.Enum):
            return EnumCodec(hint)
        if issubclass(hint, dict) and hasattr(hint, "__required_keys__"):
            return self._record(hint, _typed_dict_fields, depth)
        if issubclass(hint, tuple) and hasattr(hint, "_fields"):
            return self._record(hint, _named_tuple_fields, depth)
        if dataclasses.is_dataclass(hint):
            return self._record(hint, _dataclass_fields, depth)
        raise _unsupported(hint)

    def _bare(self, hint: type) -> Codec:
        if hint is list:
            return ListCodec(ANYTHING)
        if hint is dict:
            return DictCodec(SCALARS[str], ANYTHING)
        if hint is tuple:
            return VariadicTupleCodec(ANYTHING)
        return SetCodec(hint, ANYTHING)

    def _generic(self, hint: Any, depth: int) -> Codec:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is Literal:
            return _literal(hint, arguments)
        if origin in (Union, types.UnionType):
            return self._union(hint, arguments, depth)
        if origin is list:
            return ListCodec(self.codec(arguments[0], depth + 1))
        if origin is tuple:
            return self._tuple(arguments, depth)
        if origin in (set, frozenset):
            return self._set(origin, arguments[0], depth)
        if origin is dict:
            return self._dict(arguments, depth)
        raise _unsupported(hint)

    def _union(self, hint: Any, arguments: tuple[Any, ...], depth: int) -> Codec:
        members = [_unwrapped(one) for one in arguments]
        without_none = [one for one in members if one not in (None, type(None))]
        if len(without_none) == 1:
            return OptionalCodec(self.codec(without_none[0], depth + 1))
        codecs = [
            StableFloatCodec(takes_int=int not in members) if one is float else self.codec(one, depth + 1)
            for one in members
        ]
        for number, one in enumerate(codecs):
            for other in codecs[:number]:
                if one.kinds & other.kinds and not (one.identity and other.identity):
                    raise Unsupported(
                        f"is annotated as {shown(hint)}, and JSON cannot tell {other.name} from {one.name}",
                        "Take one of the types, or a dataclass with a field for each.",
                    )
        return UnionCodec(codecs)

    def _tuple(self, arguments: tuple[Any, ...], depth: int) -> Codec:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return VariadicTupleCodec(self.codec(arguments[0], depth + 1))
        return TupleCodec([self.codec(one, depth + 1) for one in arguments if one != ()])

    def _set(self, origin: type, argument: Any, depth: int) -> Codec:
        item = self.codec(argument, depth + 1)
        if not item.hashable and item is not ANYTHING:
            raise Unsupported(
                f"is a {origin.__name__} of {shown(argument)}, which cannot be hashed", "Use a list."
            )
        return SetCodec(origin, item)

    def _dict(self, arguments: tuple[Any, ...], depth: int) -> Codec:
        key = self.codec(arguments[0], depth + 1)
        if key.kinds not in ({"str"}, {"int"}) or not key.hashable:
            raise Unsupported(
                f"is a dict with keys of type {shown(arguments[0])}",
                "Use keys of str, int, UUID, date, datetime, Decimal or an Enum.",
            )
        return DictCodec(key, self.codec(arguments[1], depth + 1))

    def _record(self, hint: Any, fields_of: Any, depth: int) -> Codec:
        if hint in self.records:
            return self.records[hint]
        record = self.records[hint] = RecordCodec(hint, is_mapping=issubclass(hint, dict))
        hints, required = fields_of(hint)
        fields: dict[str, Codec] = {}
        for name, one in hints.items():
            try:
                fields[name] = self.codec(one, depth + 1)
            except Unsupported as error:
                raise Unsupported(
                    f"has the field {hint.__qualname__}.{name} that {error.trouble}", error.cure
                ) from error
        record.set_fields(fields, required)
        return record


def _unwrapped(hint: Any) -> Any:
    """Take off what says nothing about JSON: Annotated, NewType, Required, and the name of an alias."""
    for _ in range(MAX_DEPTH):
        if typing.get_origin(hint) in _WRAPPERS:
            hint = hint.__origin__ if typing.get_origin(hint) is Annotated else typing.get_args(hint)[0]
        elif isinstance(hint, NewType):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType" and not typing.get_args(hint):
            hint = hint.__value__
        else:
            break
    return hint


def _literal(hint: Any, values: tuple[Any, ...]) -> Codec:
    forms: list[Any] = []
    for value in values:
        codec = EnumCodec(type(value)) if isinstance(value, enum.Enum) else SCALARS[type(value)]
        try:
            forms.append(codec.write(value, Walk(_LITERAL_BYTES)))
        except Refused as refused:
            raise Unsupported(
                f"is annotated as {shown(hint)}: a value {refused.trouble}", refused.cure
            ) from refused
    if len({(type(form), form) for form in forms}) < len(values):
        raise Unsupported(
            f"is annotated as {shown(hint)}, whose values JSON cannot tell apart", "Use an Enum."
        )
    return LiteralCodec(values, forms)


def _resolved(owner: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(owner, include_extras=True)
    except Exception as error:
        raise Unsupported(
            f"has a type {owner.__qualname__} whose annotations cannot be resolved ({error})",
            "Import the names at the top of its module, not only under TYPE_CHECKING.",
        ) from error


_Fields = tuple[dict[str, Any], Iterable[str]]


def _typed_dict_fields(hint: Any) -> _Fields:
    hints = _resolved(hint)
    required = set(hint.__required_keys__)
    # Under `from __future__ import annotations` the class itself has not seen these two.
    for name, one in hints.items():
        origin = typing.get_origin(one)
        if origin is Required:
            required.add(name)
        elif origin is NotRequired:
            required.discard(name)
    return hints, required


def _named_tuple_fields(hint: Any) -> _Fields:
    hints = _resolved(hint)
    return (
        {name: hints.get(name, Any) for name in hint._fields},
        [name for name in hint._fields if name not in hint._field_defaults],
    )


def _dataclass_fields(hint: Any) -> _Fields:
    hints = _resolved(hint)
    fields = dataclasses.fields(hint)
    stored = {field.name for field in fields}
    for name in sorted(stored ^ inspect.signature(hint).parameters.keys()):
        raise Unsupported(
            f"has the field {hint.__qualname__}.{name}, which is not both stored and given to __init__",
            "Make it a property, or a plain field.",
        )
    missing = dataclasses.MISSING
    return (
        {field.name: hints[field.name] for field in fields},
        [field.name for field in fields if field.default is missing and field.default_factory is missing],
    )

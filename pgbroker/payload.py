"""
Typed arguments to stored JSON and back, and a handler's result to JSON text.

A handler's signature is compiled once, when it is declared. Whatever cannot come back as the same
value of the same type is refused before it leaves the process: PostgreSQL would refuse it too late,
inside the caller's transaction, or not at all.
"""

import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from pgbroker.compat import TaskContext
from pgbroker.errors import (
    InvalidArgument,
    InvalidOption,
    PayloadTooLarge,
    ResultNotSerializable,
    ResultTooLarge,
    UndecodableArgument,
    sentence,
)
from pgbroker.policy.body_names import LARGEST_BYTES
from pgbroker.policy.json_scalars import ANYTHING, LENIENT, Codec
from pgbroker.policy.plain_json import Refused, TooLarge, Walk, key_step, refused_at, type_name, write_text
from pgbroker.policy.typed_json import Unsupported, codec_for

ENVELOPE_VERSION = 1

_dump = json.JSONEncoder(
    allow_nan=False, ensure_ascii=False, separators=(",", ":"), check_circular=False
).encode

_dump_sorted = json.JSONEncoder(
    allow_nan=False, ensure_ascii=False, separators=(",", ":"), check_circular=False, sort_keys=True
).encode


class Encoded(NamedTuple):
    """The envelope `{"v": 1, "args": [...], "kwargs": {...}}` of a call, its size in bytes of JSON, and that JSON."""

    envelope: dict[str, Any]
    size: int
    text: str


_VERSION_CURE = (
    "The job was stored by other code, or from SQL. Of code: keep the old parameter until its jobs have run, "
    "give a new parameter a default, and give a changed one a new name. From SQL: enqueue with the names and "
    "values that the handler takes."
)

_CONTEXT_CURE = (
    "Declare the job with takes_context=True, and let the context be the first parameter and the only one."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """
    What a handler takes, compiled: a codec for each parameter.

    `positional` are the parameters that may be given by position, in order, without the context;
    `keyword` those that may be given by name. `plain` names the JSON type that needs no reading, for
    each of them that has one. `result` is the codec of the return annotation, when there is a supported one.
    """

    name: str
    lenient: bool
    positional: tuple[tuple[str, Codec], ...]
    keyword: Mapping[str, Codec]
    plain: Mapping[str, type | None]
    required: frozenset[str]
    positional_only: frozenset[str]
    var_positional: tuple[str, Codec] | None
    var_keyword: tuple[str, Codec] | None
    reserved: frozenset[str]
    result: Codec | None


def signature_of(func: Callable[..., Any], *, takes_context: bool, lenient: bool = False) -> Signature:
    """
    Compile the signature of a handler.

    With *takes_context* the first parameter is left out. *lenient* treats parameters without a
    supported hint as Django's task framework does. Raises `InvalidOption`, naming the parameter, for a
    hint that cannot be resolved or stored.
    """
    name = getattr(func, "__qualname__", repr(func))
    if not lenient and (inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func)):
        raise InvalidOption(name, "yields, and nobody takes what it yields", "Return a list, or nothing.")
    parameters = list(inspect.signature(func).parameters.values())
    reserved: frozenset[str] = frozenset()
    if takes_context:
        reserved = frozenset({_context_of(parameters, name).name})
        parameters = parameters[1:]
    codecs = {one.name: _codec_of(func, name, one, lenient=lenient) for one in parameters}
    kinds = {kind: [one.name for one in parameters if one.kind is kind] for kind in inspect._ParameterKind}
    only, either, named = (
        kinds[inspect.Parameter.POSITIONAL_ONLY],
        kinds[inspect.Parameter.POSITIONAL_OR_KEYWORD],
        kinds[inspect.Parameter.KEYWORD_ONLY],
    )
    rest, extra = kinds[inspect.Parameter.VAR_POSITIONAL], kinds[inspect.Parameter.VAR_KEYWORD]
    return Signature(
        name=name,
        lenient=lenient,
        positional=tuple((one, codecs[one]) for one in only + either),
        keyword={one: codecs[one] for one in either + named},
        plain={one: codecs[one].plain for one in either + named},
        required=frozenset(
            one.name for one in parameters if one.default is one.empty and one.name not in rest + extra
        ),
        positional_only=frozenset(only),
        var_positional=(rest[0], codecs[rest[0]]) if rest else None,
        var_keyword=(extra[0], codecs[extra[0]]) if extra else None,
        reserved=reserved,
        result=_result_codec(func),
    )


def _context_of(parameters: list[inspect.Parameter], name: str) -> inspect.Parameter:
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in by_position:
        raise InvalidOption(
            f"takes_context of {name}",
            "is set, but the handler has no first parameter for it",
            "Add one, such as context: JobContext.",
        )
    return parameters[0]


def _codec_of(func: Callable[..., Any], name: str, parameter: inspect.Parameter, *, lenient: bool) -> Codec:
    without_hint = LENIENT if lenient else ANYTHING
    if parameter.annotation is parameter.empty:
        return without_hint
    try:
        return codec_for(_resolved(func, parameter.annotation))
    except Unsupported as error:
        if lenient:  # somebody else's task, which Django lets run
            return without_hint
        field = f"parameter {parameter.name} of {name}"
        if _means_context(func, parameter.annotation):
            raise InvalidOption(
                field, "is annotated as a context, which no caller gives", _CONTEXT_CURE
            ) from None
        raise InvalidOption(field, error.trouble, error.cure) from error


def _means_context(func: Callable[..., Any], annotation: Any) -> bool:
    """Tell whether a handler hopes for its context there: `JobContext`, a base or subclass, or one of them or None."""
    try:
        hint = _resolved(func, annotation)
    except Unsupported:  # it is often imported for type checkers alone
        named = annotation if isinstance(annotation, str) else ""
        return named.partition("|")[0].strip().rpartition(".")[2] in ("JobContext", "TaskContext")
    for one in (hint, *typing.get_args(hint)):
        kind = typing.get_origin(one) or one
        if isinstance(kind, type) and issubclass(kind, TaskContext):
            return True
    return False


def _resolved(func: Callable[..., Any], annotation: Any) -> Any:
    """Return *annotation* with names looked up in the handler's module."""
    unwrapped = inspect.unwrap(func)
    holder = types.SimpleNamespace(__annotations__={"hint": annotation})
    try:
        hints = typing.get_type_hints(
            holder, globalns=getattr(unwrapped, "__globals__", {}), include_extras=True
        )
    except Exception as error:
        raise Unsupported(
            f"has an annotation that cannot be resolved ({error})",
            "Import its names at the top of the module, not only under TYPE_CHECKING.",
        ) from error
    return hints["hint"]


def _result_codec(func: Callable[..., Any]) -> Codec | None:
    annotation = inspect.signature(func).return_annotation
    if annotation is inspect.Signature.empty:
        return None
    try:
        return codec_for(_resolved(func, annotation))
    except Unsupported:  # the plain rules for results hold, and they name what they refuse
        return None


def encode(
    signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any], *, limit_bytes: int
) -> Encoded:
    """
    Return a call as it is stored.

    Raises `InvalidArgument` with the path of what does not fit, `PayloadTooLarge` above *limit_bytes*.
    Nothing of the envelope is shared with the arguments.
    """
    walk = Walk(limit_bytes)
    try:
        stored_args, stored_kwargs = _bind(signature, args, kwargs, walk)
        envelope = {"v": ENVELOPE_VERSION, "args": stored_args, "kwargs": stored_kwargs}
        text = _dump(envelope)
    except Refused as refused:
        raise InvalidArgument(refused.path, refused.trouble, refused.cure) from refused.__cause__
    except TooLarge:
        raise PayloadTooLarge(None, limit_bytes, of_body=limit_bytes >= LARGEST_BYTES) from None
    if (size := size_of(text)) > limit_bytes:
        raise PayloadTooLarge(size, limit_bytes, of_body=limit_bytes >= LARGEST_BYTES)
    return Encoded(envelope, size, text)


def decode(signature: Signature, envelope: Any) -> tuple[Sequence[Any], dict[str, Any]]:
    """
    Return the positional and named arguments of a stored envelope, in the handler's types.

    Parameters that are not stored are left to their defaults. Raises `UndecodableArgument` when the
    payload does not fit the handler. What needs no conversion is shared with *envelope*.
    """
    if type(envelope) is not dict:
        _refuse_envelope(signature, f"is a {type_name(envelope)}, not an object")
    version = envelope.get("v")
    if version == 1 and type(version) is int:
        return _decode_1(signature, envelope)
    if version is None:
        _refuse_envelope(signature, 'has no version ("v")')
    _refuse_envelope(signature, "has a version that this release does not know: it is newer, or damaged")


def _decode_1(signature: Signature, envelope: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    args, kwargs = envelope.get("args", ()), envelope.get("kwargs", {})
    if args or type(kwargs) is not dict:
        return _decode_carefully(signature, args, kwargs)
    # The path of nearly every job. Anything odd is left to _bind, which tells what and where.
    plain = signature.plain
    decoded = kwargs
    try:
        for name, value in kwargs.items():
            if type(value) is not plain[name]:
                if decoded is kwargs:
                    decoded = kwargs.copy()
                decoded[name] = signature.keyword[name].read(value)
    except (KeyError, Refused, RecursionError):
        return _decode_carefully(signature, args, kwargs)
    if signature.required <= kwargs.keys():
        return (), decoded
    return _decode_carefully(signature, args, kwargs)


def _decode_carefully(signature: Signature, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    if not isinstance(args, (list, tuple)) or type(kwargs) is not dict:
        _refuse_envelope(signature, 'needs a list in "args" and an object in "kwargs"')
    try:
        return _bind(signature, args, kwargs, None)
    except Refused as refused:
        raise UndecodableArgument(
            f"argument {refused.path} of {signature.name} {sentence(refused.trouble)} {refused.cure} {_VERSION_CURE}",
            path=refused.path,
            handler=signature.name,
            trouble=refused.trouble,
        ) from refused.__cause__
    except RecursionError:
        _refuse_envelope(signature, "is nested too deeply")


def _refuse_envelope(signature: Signature, trouble: str) -> NoReturn:
    raise UndecodableArgument(
        f"the stored payload for {signature.name} {trouble}. "
        'Store {"v": 1, "args": [...], "kwargs": {...}}, or enqueue with this release.',
        handler=signature.name,
    )


def _bind(
    signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any], walk: Walk | None
) -> tuple[list[Any], dict[str, Any]]:
    """Match a call to the signature as Python would, and write each argument by its codec; read it without *walk*."""
    converted: list[Any] = []
    named: dict[str, Any] = {}
    positional, keyword = signature.positional, signature.keyword
    by_position = {name for name, _ in positional[: len(args)]}
    for index, value in enumerate(args):
        path, codec = positional[index] if index < len(positional) else _beyond(signature, index)
        try:
            converted.append(codec.read(value) if walk is None else codec.write(value, walk))
        except Exception as error:
            _refuse_within(path, error)
    for name, value in kwargs.items():
        path, found = name, keyword.get(name)
        if found is None or name in by_position:
            path, found = _named(signature, name, by_position)
        try:
            named[name] = found.read(value) if walk is None else found.write(value, walk)
        except Exception as error:
            _refuse_within(path, error)
    missing = signature.required.difference(by_position, named)
    if signature.positional_only:  # of which one may be named too, where **kwargs takes it
        missing |= (signature.required & signature.positional_only) - by_position
    for name in sorted(missing) if missing else ():
        how = " by position" if name in signature.positional_only else ""
        raise refused_at(name, "is missing", f"{signature.name} needs it{how}.")
    return converted, named


def refuse_unknown(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse what of a part of a call has no parameter, as `encode` does; the values may be anything."""
    by_position = {name for name, _ in signature.positional[: len(args)]}
    try:
        for index in range(len(signature.positional), len(args)):
            _beyond(signature, index)
        for name in kwargs:
            if name not in signature.keyword or name in by_position:
                _named(signature, name, by_position)
    except Refused as refused:
        raise InvalidArgument(refused.path, refused.trouble, refused.cure) from None


def _refuse_within(path: str, error: Exception) -> NoReturn:
    """Raise what the conversion of the value at *path* raised."""
    if isinstance(error, Refused):
        error.within(path)
        raise error
    if isinstance(error, (TooLarge, RecursionError)):
        raise error
    # Only a value that runs code of its own gets here, such as a sequence whose __iter__ raises.
    raise refused_at(path, f"raised {type_name(error)} when it was read", "Pass plain data.") from error


def _beyond(signature: Signature, index: int) -> tuple[str, Codec]:
    if signature.var_positional is None:
        raise refused_at(
            f"args[{index}]",
            "is one too many",
            f"{signature.name} takes {len(signature.positional)} by position.",
        )
    name, codec = signature.var_positional
    return f"{name}[{index - len(signature.positional)}]", codec


def _named(signature: Signature, name: str, by_position: set[str]) -> tuple[str, Codec]:
    if name in by_position and name in signature.keyword:
        raise refused_at(name, "is given twice, by position and by name", "Give it once.")
    if signature.var_keyword is None or name in signature.reserved:
        known = ", ".join(signature.keyword) or "none"
        raise refused_at(
            name, "is not a parameter of the handler", f"{signature.name} takes by name: {known}."
        )
    extra, codec = signature.var_keyword
    path = f"{extra}{key_step(name)}"
    try:
        write_text(name, Walk(len(name)))
    except Refused as refused:
        refused.within(path)
        raise
    return path, codec


def encode_result(value: Any, *, return_hint: Codec | None, limit_bytes: int) -> str | None:
    """
    Return the JSON text of what a handler returned; None for None, so that nothing is stored.

    A value that fits *return_hint* (`Signature.result`) is written by it; any other as Django's task
    framework would: tuples become lists. Raises `ResultNotSerializable` or `ResultTooLarge` and nothing
    else, whatever code of its own the value runs.
    """
    if value is None:
        return None
    try:
        text = _dump(_written_result(value, return_hint, limit_bytes))
    except Refused as refused:
        path = f"result{refused.path}"
        raise ResultNotSerializable(
            f"{path} {sentence(refused.trouble)} Return JSON data, or annotate what the handler returns.",
            path=path,
        ) from refused.__cause__
    except TooLarge:
        raise ResultTooLarge(None, limit_bytes, of_body=limit_bytes >= LARGEST_BYTES) from None
    except BaseException as error:  # SystemExit from an __iter__ must not end the worker
        raise ResultNotSerializable(
            f"the result raised {type_name(error)} when it was read. Return plain JSON data.", path="result"
        ) from error
    if (size := size_of(text)) > limit_bytes:
        raise ResultTooLarge(size, limit_bytes, of_body=limit_bytes >= LARGEST_BYTES)
    return text


def _written_result(value: Any, return_hint: Codec | None, limit_bytes: int) -> Any:
    if return_hint is None:
        return LENIENT.write(value, Walk(limit_bytes))
    try:
        return return_hint.write(value, Walk(limit_bytes))
    except Refused as by_hint:
        # The work is done: a return annotation that is not quite right must not fail it.
        try:
            return LENIENT.write(value, Walk(limit_bytes))
        except Refused as plain:
            raise (by_hint if len(by_hint.steps) >= len(plain.steps) else plain) from None


def envelope_body(envelope: Mapping[str, Any]) -> bytes:
    """Return an envelope as the bytes of a body: the same for equal arguments, as `jsonb` compares them."""
    return _dump_sorted(envelope).encode()


def size_of(text: str) -> int:
    """Return the size in bytes of JSON text."""
    return len(text) if text.isascii() else len(text.encode())

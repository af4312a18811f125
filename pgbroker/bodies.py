"""
Bodies: arguments and results that are too large for a row, as files in the storage `BODY_STORAGE`.

A body never changes. The row keeps its name in a column of its own, and a stub (size and digest) where
the value would be. Everything here waits for the storage: never call it from a worker's loops.
"""

import json
import logging
from typing import Any, NamedTuple

from django.core.files.base import ContentFile
from django.core.files.storage import InvalidStorageError, Storage, storages

from pgbroker import telemetry
from pgbroker.conf import Settings, settings
from pgbroker.errors import BodyDamaged, BodyMissing, BodyNotStored, BodyUnreadable, InvalidSetting
from pgbroker.policy.body_names import LARGEST_BYTES, Stub, is_owned, read_stub, stub_of

_log = logging.getLogger("pgbroker.bodies")


class Body(NamedTuple):
    """A body that was saved: its name, its stub, and the storage it lies in."""

    name: str
    stub: Stub
    storage: Storage


class Reference(NamedTuple):
    """What a row says of a body: name and stub, as they stand there."""

    name: str
    stored: Any
    tenant_id: str

    @property
    def size(self) -> int | None:
        """The body's size in bytes; None where the row does not say it."""
        stub = read_stub(self.stored)
        return stub.size if stub else None

    def __str__(self) -> str:
        size = "of unknown size" if self.size is None else f"{self.size:,} bytes"
        return f"({size}, in storage {settings().BODY_STORAGE!r}: {self.name})"

    def read(self) -> Any:
        """Read the body and return its JSON value; raises `BodyUnreadable`."""
        return read(self)


def row_limit(limit_bytes: int, chosen: Settings) -> int:
    """Return how large an encoding may be whose row takes *limit_bytes*: far larger where there is a storage."""
    return limit_bytes if chosen.BODY_STORAGE is None else LARGEST_BYTES


def chosen_storage() -> Storage:
    """Return the storage that `BODY_STORAGE` names; raises `InvalidSetting` when there is none."""
    alias = settings().BODY_STORAGE
    if alias is None:
        raise InvalidSetting("BODY_STORAGE", "is not set", "Name an alias of STORAGES, the same everywhere.")
    try:
        return storages[alias]
    except InvalidStorageError as error:
        raise InvalidSetting(
            "BODY_STORAGE", f"is {alias!r}, which STORAGES does not make: {error}", "Look at STORAGES."
        ) from error


def save(content: bytes, *, name: str, tenant: str) -> Body:
    """
    Save a body of *tenant* under *name*, or the name the storage makes of it.

    Raises `BodyNotStored`, with nothing left behind, and `InvalidSetting`.
    """
    assert is_owned(tenant, name), name
    storage = chosen_storage()
    try:
        saved: object = storage.save(name, ContentFile(content))
    except BaseException as error:
        # What was written until then lies under the name that was asked for, which nobody else has.
        _delete(storage, name)
        if not isinstance(error, Exception):
            raise
        raise BodyNotStored(f"the storage failed: {type(error).__name__}: {error}"[:500]) from error
    if not isinstance(saved, str):
        # Most likely it was saved as it was asked for.
        _delete(storage, name)
        raise BodyNotStored(f"the storage returned {type(saved).__name__} in place of a name")
    if not is_owned(tenant, saved):
        _delete(storage, saved)
        raise BodyNotStored(f"the storage saved it as {saved!r}, outside of the tenant's folder")
    return Body(saved, stub_of(content), storage)


def read(reference: Reference) -> Any:
    """
    Return the JSON value of a body, checked against its stub.

    Raises `BodyMissing`, `BodyDamaged`, or `BodyUnreadable` for everything else that the storage says.
    """
    name = reference.name
    stub = read_stub(reference.stored)
    if stub is None:
        raise BodyDamaged(name, "its row does not say size and digest")
    if not is_owned(reference.tenant_id, name):
        raise BodyUnreadable(name, "it lies outside of its tenant's folder")
    try:
        with chosen_storage().open(name, "rb") as file:
            content = file.read(stub.size + 1)
    except FileNotFoundError as error:
        raise BodyMissing(name) from error
    except Exception as error:
        raise BodyUnreadable(name, f"{type(error).__name__}: {error}"[:500]) from error
    if type(content) is not bytes:
        raise BodyDamaged(name, f"the storage gave {type(content).__name__} in place of bytes")
    if stub_of(content) != stub:
        raise BodyDamaged(name, f"{len(content)} bytes were read that are not the {stub.size} of its row")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BodyDamaged(name, f"its JSON cannot be read: {type(error).__name__}") from error


def remove(name: str, storage: Storage) -> None:
    """Remove a body that no row names; a storage that fails is told, never raised."""
    try:
        storage.delete(name)
    except Exception as error:
        tell_left(name, error)


def tell_left(name: str, error: BaseException) -> None:
    """Tell that a body stays in the storage, though it may be nobody's."""
    telemetry.emit("body.left", name=name, error_code=type(error).__name__, error=str(error))


def _delete(storage: Storage, name: str) -> None:
    try:
        storage.delete(name)
    except Exception:
        _log.debug("removing what a failed save left behind failed", exc_info=True)

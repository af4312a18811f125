"""Where a body lies in its storage, and the stub that its row keeps instead. Pure."""

import hashlib
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

Kind = Literal["arguments", "results"]

# Everything of ours in a storage lies below it.
ROOT = "pgbroker"
# The version in a stub's "v": an envelope of arguments has 1, so neither is taken for the other.
STUB_VERSION = 2
# The largest body: it is in memory as a whole, several times over, wherever it is written or read.
LARGEST_BYTES = 256 * 1024 * 1024
LONGEST_NAME = 500

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SPELLED_OUT = re.compile(r"[A-Z_.]")
_ODD_SEGMENT = re.compile(r"(^|/)[.]{0,2}(/|\Z)")
_ODD_CHARACTER = re.compile(r"[^ -~]|\\")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MILLISECOND = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


class Stub(NamedTuple):
    """What a row says of its body: whoever reads one checks it against this."""

    sha256: str
    size: int

    def as_json(self) -> dict[str, Any]:
        """Return the form a row keeps: equal for equal bodies, wherever they lie."""
        return {"v": STUB_VERSION, "sha256": self.sha256, "bytes": self.size}


def stub_of(content: bytes) -> Stub:
    """Make the stub of a body."""
    return Stub(hashlib.sha256(content).hexdigest(), len(content))


def read_stub(stored: Any) -> Stub | None:
    """Return the stub that a row keeps; None for anything else, which only a caller of SQL can have written."""
    if type(stored) is not dict or stored.keys() != {"v", "sha256", "bytes"} or stored["v"] != STUB_VERSION:
        return None
    digest, size = stored["sha256"], stored["bytes"]
    if type(digest) is not str or not _SHA256.fullmatch(digest):
        return None
    if type(size) is not int or not 0 < size <= LARGEST_BYTES:
        return None
    return Stub(digest, size)


def folder_of(tenant: str) -> str:
    """
    Return the folder of a tenant's bodies, as `pgbroker.owns_body_1` knows it too.

    Upper case and dots are spelled out, so that no file system takes the folders of two tenants for one,
    and none for the folder above.
    """
    spelled = _SPELLED_OUT.sub(lambda found: f"_{found[0]}", tenant).lower().replace(".", "2")
    return f"{ROOT}/{spelled}/"


def name_of(tenant: str, kind: Kind, job_id: UUID, *, attempt: int | None = None) -> str:
    """
    Name a body: tenant, kind, the day its job was made, job, and for a result the attempt's lease token.

    The day comes from the id, a UUIDv7, and serves those who list the storage; nothing is decided by it. An id of a
    caller's own making may lie further in the future than there are dates: it has the last of them.
    """
    milliseconds = min(job_id.int >> 80, _LAST_MILLISECOND) if job_id.version == 7 else 0
    day = _EPOCH + timedelta(milliseconds=milliseconds)
    ending = "" if attempt is None else f"-{attempt}"
    return f"{folder_of(tenant)}{kind}/{day:%Y-%m-%d}/{job_id}{ending}.json"


def is_owned(tenant: str, name: str) -> bool:
    """Tell whether a body of that name lies in the tenant's folder; the same as `pgbroker.owns_body_1`."""
    return (
        len(name) <= LONGEST_NAME
        and name.startswith(folder_of(tenant))
        and not _ODD_SEGMENT.search(name)
        and not _ODD_CHARACTER.search(name)
    )

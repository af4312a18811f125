"""Django's `TaskResult`, whose arguments and return value may lie in a body: read when they are asked for."""

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pgbroker.bodies import Reference
from pgbroker.compat import TaskResult, TaskResultStatus
from pgbroker.tenancy import tenant_context

if TYPE_CHECKING:

    class _TaskResult(TaskResult[..., Any]):
        pass
else:
    _TaskResult = TaskResult


class StoredCall:
    """A call's arguments in a body, read once."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference

    @cached_property
    def envelope(self) -> dict[str, Any]:
        """The stored call; raises `BodyUnreadable`."""
        value = self.reference.read()
        return value if isinstance(value, dict) else {}


class _Argument:
    """An attribute that may hold a `StoredCall` in place of its value."""

    def __init__(self, name: str, default: Any) -> None:
        self.name, self.default = name, default

    def __set__(self, result: Any, value: Any) -> None:
        result.__dict__[self.name] = value

    def __get__(self, result: Any, owner: type) -> Any:
        if result is None:
            return self
        value = result.__dict__[self.name]
        if isinstance(value, StoredCall):
            value = value.envelope.get(self.name, self.default)
        return value


class JobResult(_TaskResult):
    """
    What pgbroker's backend returns: a `TaskResult` that reads a body when it is asked for what lies there.

    A status is polled for; a body of megabytes must not come along each time. Reading `args`, `kwargs` or
    `return_value` may raise `BodyUnreadable` then.
    """

    # The job's tenant, once known: a result is looked for where its job is, wherever it is refreshed.
    tenant_id: str | None = None

    # Django's own are slots, which its frozen dataclass sets with object.__setattr__.
    args = _Argument("args", [])
    kwargs = _Argument("kwargs", {})

    def __post_init__(self) -> None:
        if not isinstance(self.__dict__["args"], StoredCall):
            _TaskResult.__post_init__(self)

    def of_tenant(self, tenant_id: str) -> "JobResult":
        """Remember whose job it is, and return the result."""
        object.__setattr__(self, "tenant_id", tenant_id)
        return self

    def refresh(self) -> None:
        """Read the job again, in its own tenant."""
        with self._in_its_tenant():
            _TaskResult.refresh(self)

    async def arefresh(self) -> None:
        """Read the job again, in its own tenant."""
        with self._in_its_tenant():
            await _TaskResult.arefresh(self)

    def _in_its_tenant(self) -> AbstractContextManager[None]:
        return nullcontext() if self.tenant_id is None else tenant_context(self.tenant_id)

    @property
    def return_value(self) -> Any:
        """What the task returned; raises Django's ValueError while there is nothing."""
        stored = getattr(self, "_return_value", None)
        if self.status == TaskResultStatus.SUCCESSFUL and isinstance(stored, Reference):
            object.__setattr__(self, "_return_value", stored.read())
        return _TaskResult.return_value.fget(self)  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"<{type(self).__qualname__} {self.id} {self.status}>"


def call_parts(stored: Any, args_body: str | None, tenant_id: str) -> tuple[Any, Any]:
    """Return what a `JobResult` takes as args and kwargs, of a call as its row has it."""
    if args_body is not None:
        call = StoredCall(Reference(args_body, stored, tenant_id))
        return call, call
    envelope = stored if isinstance(stored, dict) else {}
    return envelope.get("args", []), envelope.get("kwargs", {})

"""Run groups: jobs that belong together. Open one, fill it, seal it; look at it, cancel it, retry what failed."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import transaction

from pgbroker.bulk import Outcome, enqueue_calls
from pgbroker.conf import settings
from pgbroker.errors import AttemptCancelled, EnqueueRefused, GroupNotFound, InvalidOption
from pgbroker.group_control import cancel_group_pages, retry_failed_pages
from pgbroker.group_options import group_options
from pgbroker.lease import Lease
from pgbroker.lifecycle.cancel_group import CancelledGroup
from pgbroker.lifecycle.find_group import find_group, group_of_job
from pgbroker.lifecycle.group_progress import group_progress
from pgbroker.lifecycle.open_group import open_group
from pgbroker.lifecycle.seal_group import seal_group
from pgbroker.policy.values import remark, truth, whole
from pgbroker.progress import Progress, progress_of
from pgbroker.references import AnyPrerequisite, GroupRef, checked_name
from pgbroker.registry import Call, JobTask, signature_of, synchronise_apart
from pgbroker.shared_rows import database_of
from pgbroker.states import GroupState
from pgbroker.tenancy import tenant_context, tenant_of_statements
from pgbroker.wakeups import tell_freed

if TYPE_CHECKING:
    from pgbroker.compat import TaskResult


class RunGroup:
    """
    A handle of a run group: jobs that belong together, and end together.

    `run_group` opens one and gives its handle, `get_group` finds one. What it does it does in the caller's
    transaction, and in the group's tenant, whatever the current one. Methods that begin with *a* are for async code.
    """

    __slots__ = ("id", "name", "tenant_id", "using")

    def __init__(self, id: UUID, name: str, *, tenant_id: str, using: str) -> None:
        self.id, self.name, self.tenant_id, self.using = id, name, tenant_id, using

    def __repr__(self) -> str:
        return f"<RunGroup {self.name!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunGroup) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def reference(self) -> GroupRef:
        """The group as a prerequisite."""
        return GroupRef(self.name)

    def enqueue(
        self,
        task: JobTask[Any, Any] | Call,
        /,
        *args: Any,
        depends_on: Iterable[AnyPrerequisite] | None = None,
        on_failure: str | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> "TaskResult[..., Any]":
        """
        Enqueue a call into the group, while that is open, and return Django's `TaskResult`.

        *task* is a task with the arguments after it, or `task.bind(...)`. *name* is the job's in the group,
        *depends_on* what it waits for besides what the group does. Raises `GroupSealed`, `DuplicateJobName`, and
        what any enqueue does.
        """
        given = {"depends_on": depends_on, "on_failure": on_failure, "name": name}
        changes = {key: value for key, value in given.items() if value is not None}
        if isinstance(task, Call):
            if args or kwargs:
                raise InvalidOption("task", "is bound to its arguments already", "Give it alone.")
            bound, args, kwargs = task.task, tuple(task.args), dict(task.kwargs)
        else:
            bound = task
        _refuse_elsewhere(bound, self.using)
        if bound is task:
            _refuse_parameters(bound, changes)
        bound.call_options.refuse_if_at_odds(in_group=self.name)
        with self._in_its_tenant():
            return bound.options(group=self.name, **changes).enqueue(*args, **kwargs)

    def enqueue_many(self, calls: Iterable[Call]) -> list[Outcome]:
        """
        Enqueue many calls (`task.bind(...)`) into the group; as `pgbroker.enqueue_many`, one outcome each.

        A call that is refused does not sink the others.
        """
        with self._in_its_tenant():
            return enqueue_calls(calls, using=self.using, group=self.name)

    def seal(self) -> GroupState:
        """
        Add nothing any more: the group ends when its last member has, an empty one at once. Returns its state then.

        Waits for transactions that are adding to it. Raises `GroupNotFound`.
        """
        with self._in_its_tenant():
            state = seal_group(self.id, using=self.using)
        if state is None:
            raise self._not_found()
        tell_freed(using=self.using)
        return state

    def cancel(self, *, reason: str = "", by: str = "") -> CancelledGroup:
        """
        Seal the group and cancel its live members; those that run are asked to stop.

        What depends on it ends as its `on_failure` says. In batches, each committed by itself unless the caller has
        a transaction open. Returns the group's state, and how many were cancelled and asked. Raises `GroupNotFound`.
        """
        remark("reason", reason), remark("by", by)
        total: CancelledGroup | None = None
        with self._in_its_tenant():
            for page in cancel_group_pages(self.id, reason=reason, by=by, using=self.using):
                total = page._replace(
                    cancelled=page.cancelled + (total.cancelled if total else 0),
                    requested=page.requested + (total.requested if total else 0),
                )
        if total is None:
            raise self._not_found()
        tell_freed(using=self.using)
        return total

    def retry_failed(self, *, attempts: int = 1, cancelled: bool = False) -> int:
        """
        Run again what failed in the group: failed members and dead letters, and with *cancelled* cancelled ones too.

        What was cancelled because of one of them comes back by itself, and so do the dependents of the group.
        Members that completed stay as they are. In pages, as `pgbroker.redrive`; returns how many were retried.
        """
        whole("attempts", attempts, 1, 10_000), truth("cancelled", cancelled)
        with self._in_its_tenant():
            pages = retry_failed_pages(self.id, cancelled=cancelled, attempts=attempts, using=self.using)
            return sum(answer.outcome == "retried" for page in pages for answer in page)

    def progress(self) -> Progress:
        """Count the members by status. Raises `GroupNotFound`."""
        with self._in_its_tenant():
            row = group_progress(self.id, using=self.using)
        if row is None:
            raise self._not_found()
        return progress_of(row)

    def _in_its_tenant(self) -> AbstractContextManager[None]:
        return nullcontext() if tenant_of_statements() == self.tenant_id else tenant_context(self.tenant_id)

    def _not_found(self) -> GroupNotFound:
        return GroupNotFound(f"there is no run group {self.name!r}")

    # -------------------------------------------------------------- the same from async code

    async def aenqueue(
        self,
        task: JobTask[Any, Any] | Call,
        /,
        *args: Any,
        depends_on: Iterable[AnyPrerequisite] | None = None,
        on_failure: str | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> "TaskResult[..., Any]":
        """Enqueue a call into the group."""
        return await sync_to_async(self.enqueue, thread_sensitive=True)(
            task, *args, depends_on=depends_on, on_failure=on_failure, name=name, **kwargs
        )

    async def aenqueue_many(self, calls: Iterable[Call]) -> list[Outcome]:
        """Enqueue many calls into the group."""
        return await sync_to_async(self.enqueue_many, thread_sensitive=True)(calls)

    async def aseal(self) -> GroupState:
        """Add nothing any more."""
        return await sync_to_async(self.seal, thread_sensitive=True)()

    async def acancel(self, *, reason: str = "", by: str = "") -> CancelledGroup:
        """Seal the group and cancel its live members."""
        return await sync_to_async(self.cancel, thread_sensitive=True)(reason=reason, by=by)

    async def aretry_failed(self, *, attempts: int = 1, cancelled: bool = False) -> int:
        """Run again what failed in the group."""
        return await sync_to_async(self.retry_failed, thread_sensitive=True)(
            attempts=attempts, cancelled=cancelled
        )

    async def aprogress(self) -> Progress:
        """Count the members by status."""
        return await sync_to_async(self.progress, thread_sensitive=True)()


class run_group:
    """
    Open a run group, fill it and seal it in one transaction: `with run_group("nightly") as group:`.

    Nothing of it is seen, or runs, before the block has ended well; when the block raises, nothing of it was ever
    there. With `async with` the transaction is that of the thread of the async code's queries.

    *tolerate* says how many members may end badly, or what share ("5%"), for the group to complete all the same.
    *on_completed* and *on_failed* are calls (`task.bind(...)`) that are enqueued when it ends so, each once at most.
    The group, and with it each member, waits for *depends_on*; *on_failure* says what becomes of them otherwise.
    With `seal=False` it stays open, for `RunGroup.enqueue` and `context.graft`, until `RunGroup.seal`. Entering it
    raises `GroupExists`, `DependencyNotFound` and others; `InvalidOption` comes where it is written.
    """

    def __init__(
        self,
        name: str,
        *,
        tolerate: int | str = 0,
        on_completed: Call | JobTask[[], Any] | None = None,
        on_failed: Call | JobTask[[], Any] | None = None,
        depends_on: Iterable[AnyPrerequisite] = (),
        on_failure: str = "cancel",
        seal: bool = True,
        using: str | None = None,
    ) -> None:
        self._name = checked_name("name", name)
        self._using = using or settings().DATABASES[0]
        self._options = group_options(
            tolerate=tolerate,
            callbacks={"on_completed": on_completed, "on_failed": on_failed},
            depends_on=depends_on,
            on_failure=on_failure,
            using=self._using,
        )
        self._seal = seal
        self._stack = ExitStack()

    def __enter__(self) -> RunGroup:
        with ExitStack() as stack:
            stack.enter_context(transaction.atomic(using=self._using))
            group = _handle(self._open(), self._name, self._using)
            if self._seal:
                stack.push(lambda kind, *_: None if kind else _seal(group))
            self._stack = stack.pop_all()
        return group

    def __exit__(self, *error: Any) -> bool | None:
        return self._stack.__exit__(*error)

    async def __aenter__(self) -> RunGroup:
        return await sync_to_async(self.__enter__, thread_sensitive=True)()

    async def __aexit__(self, *error: Any) -> bool | None:
        return await sync_to_async(self.__exit__, thread_sensitive=True)(*error)

    def _open(self) -> UUID:
        if not self._options.keys() & {"on_completed", "on_failed"}:
            return open_group(self._name, self._options, using=self._using)
        try:
            with transaction.atomic(using=self._using):
                return open_group(self._name, self._options, using=self._using)
        except EnqueueRefused as refused:
            if refused.reason not in ("unknown_job_type", "unknown_queue"):
                raise
        # A callback that only lacked its declaration, because no worker has started since.
        synchronise_apart(using=self._using)
        return open_group(self._name, self._options, using=self._using)


def _seal(group: RunGroup) -> None:
    # Of what the block has told Django to roll back, nothing is left to seal.
    if not transaction.get_rollback(using=group.using):
        group.seal()


def get_group(name: str, *, using: str | None = None) -> RunGroup:
    """Find a run group of the current tenant by its name; raises `GroupNotFound`."""
    alias = using or settings().DATABASES[0]
    found = find_group(checked_name("name", name), using=alias)
    if found is None:
        raise GroupNotFound(f"there is no run group {name!r}")
    return _handle(found.id, found.name, alias)


def group_of(lease: Lease, *, using: str) -> RunGroup:
    """
    Return the run group of the job that an attempt of the current tenant works on.

    Raises `GroupNotFound` when it is in none, and `AttemptCancelled` when the lease is lost: another attempt runs, or
    the job is over, and whatever this one did would be done twice.
    """
    found = group_of_job(lease.job_id, lease_token=lease.lease_token, using=using)
    if found is None or not found.is_held:
        raise AttemptCancelled(f"the attempt has lost its lease on job {lease.job_id}")
    if found.id is None or found.name is None:
        raise GroupNotFound(f"job {lease.job_id} is in no run group")
    return _handle(found.id, found.name, using)


def _handle(group_id: UUID, name: str, using: str) -> RunGroup:
    return RunGroup(group_id, name, tenant_id=tenant_of_statements(), using=using)


def _refuse_parameters(task: JobTask[Any, Any], changes: dict[str, Any]) -> None:
    """Refuse an option that the handler has a parameter of the same name for: which one is meant, nobody knows."""
    signature = signature_of(task)
    parameters = {name for name, _ in signature.positional} | signature.keyword.keys()
    if both := sorted(parameters & changes.keys()):
        raise InvalidOption(
            both[0],
            f"is an option of this call and a parameter of {task.func.__name__}",
            f"Give the arguments apart: group.enqueue(task.bind({both[0]}=...), {both[0]}=...).",
        )


def _refuse_elsewhere(task: JobTask[Any, Any], using: str) -> None:
    """Refuse a task whose jobs would not be stored where the group is."""
    known: object = task
    if not isinstance(known, JobTask):
        raise InvalidOption("task", f"is a {type(task).__name__}", "Give a job, or task.bind(...).")
    task_class = getattr(task.get_backend(), "task_class", None)
    if not (isinstance(task_class, type) and issubclass(task_class, JobTask)):
        raise InvalidOption(
            "task",
            f"goes to {type(task.get_backend()).__name__} by TASKS[{task.backend!r}], and not to pgbroker",
            "Let TASKS name pgbroker's backend.",
        )
    if (alias := database_of(task)) != using:
        raise InvalidOption(
            "task",
            f"is stored in the database {alias!r}, the group in {using!r}",
            "Keep both in one database.",
        )

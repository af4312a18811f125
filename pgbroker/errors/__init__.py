"""
Every error pgbroker raises. Each has a stable `code`, owns its message and says what to do.

`code` is API: it is stored with attempts, returned by SQL functions and used in logs. Expected
outcomes of work are rows, not exceptions; what is here is a caller's mistake or the world's.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from pgbroker.errors.base import PgBrokerError as PgBrokerError
from pgbroker.errors.base import sentence as sentence
from pgbroker.errors.dependencies import AmbiguousDependency as AmbiguousDependency
from pgbroker.errors.dependencies import CyclicDependency as CyclicDependency
from pgbroker.errors.dependencies import DependencyError as DependencyError
from pgbroker.errors.dependencies import DependencyNotFound as DependencyNotFound
from pgbroker.errors.dependencies import DependencyTooDeep as DependencyTooDeep
from pgbroker.errors.dependencies import DependencyTooLate as DependencyTooLate
from pgbroker.errors.dependencies import DuplicateDependency as DuplicateDependency
from pgbroker.errors.dependencies import DuplicateJobName as DuplicateJobName
from pgbroker.errors.dependencies import GroupExists as GroupExists
from pgbroker.errors.dependencies import GroupNotFound as GroupNotFound
from pgbroker.errors.dependencies import GroupSealed as GroupSealed
from pgbroker.errors.dependencies import PrerequisiteFailed as PrerequisiteFailed
from pgbroker.errors.dependencies import PrerequisiteRefused as PrerequisiteRefused
from pgbroker.errors.dependencies import ReferenceExpired as ReferenceExpired
from pgbroker.errors.dependencies import SelfDependency as SelfDependency
from pgbroker.errors.dependencies import TooManyDependencies as TooManyDependencies
from pgbroker.errors.near_names import did_you_mean

_LONGEST_TROUBLE = 500


class InvalidSetting(PgBrokerError):
    """A key of `PGBROKER` is unknown or its value cannot be used."""

    code = "invalid_setting"

    def __init__(self, key: str, trouble: str, cure: str) -> None:
        super().__init__(f"{sentence(f'PGBROKER[{key!r}] {trouble}')} {cure}", key=key)
        self.key, self.trouble, self.cure = key, trouble, cure


class InvalidOption(PgBrokerError, ValueError):
    """An option of a job, a call or a command cannot be used."""

    code = "invalid_option"

    def __init__(self, field: str, trouble: str, cure: str) -> None:
        # What somebody wrote there may be anything, and as long as he liked.
        trouble = trouble if len(trouble) <= _LONGEST_TROUBLE else f"{trouble[: _LONGEST_TROUBLE - 3]}..."
        super().__init__(f"{field} {sentence(trouble)} {cure}", field=field)
        self.field, self.trouble, self.cure = field, trouble, cure


class InvalidArgument(PgBrokerError, TypeError):
    """An argument does not fit the handler's signature or cannot be stored; `path` tells which."""

    code = "invalid_argument"

    def __init__(self, path: str, trouble: str, cure: str) -> None:
        super().__init__(f"argument '{path}' {sentence(trouble)} {cure}", path=path)
        self.path, self.trouble, self.cure = path, trouble, cure

    def within(self, where: str) -> "InvalidArgument":
        """Return the same of an argument of *where*, one call among others."""
        return InvalidArgument(f"{where}.{self.path}", self.trouble, self.cure)


class PayloadTooLarge(PgBrokerError, ValueError):
    """
    The encoded arguments are larger than `MAX_PAYLOAD_BYTES`, or with `BODY_STORAGE` than any body may be.

    `size` is None where the encoding stopped at the limit, so that nobody knows it.
    """

    code = "payload_too_large"

    def __init__(self, size: int | None, limit: int, *, of_body: bool = False) -> None:
        super().__init__(
            f"the arguments {_beyond(size, limit, '' if of_body else 'MAX_PAYLOAD_BYTES')} "
            f"Store the data and pass its id{'.' if of_body else ', raise the limit, or set BODY_STORAGE.'}",
            size=size,
            limit=limit,
        )
        self.size, self.limit = size, limit


def _beyond(size: int | None, limit: int, setting: str) -> str:
    take = f"take {size} bytes, more than {limit}" if size is not None else f"take more than {limit} bytes"
    return f"{take} ({setting})." if setting else f"{take}, the most a body may have."


class UndecodableArgument(PgBrokerError):
    """A stored payload no longer fits the handler that is to run it."""

    code = "undecodable_argument"


class ResultNotSerializable(PgBrokerError, TypeError):
    """A handler returned something that cannot be stored as JSON; the attempt failed."""

    code = "result_not_serializable"


class ResultTooLarge(PgBrokerError, ValueError):
    """A handler returned more than `MAX_RESULT_BYTES`, or with `BODY_STORAGE` than any body may have."""

    code = "result_too_large"

    def __init__(self, size: int | None, limit: int, *, of_body: bool = False) -> None:
        super().__init__(
            f"what the handler returned would {_beyond(size, limit, '' if of_body else 'MAX_RESULT_BYTES')} "
            f"Store it and return its id{'.' if of_body else ', raise the limit, or set BODY_STORAGE.'}",
            size=size,
            limit=limit,
        )


class BodyNotStored(PgBrokerError):
    """The storage `BODY_STORAGE` did not take arguments or a result that are too large for the row."""

    code = "body_not_stored"

    def __init__(self, trouble: str) -> None:
        super().__init__(
            f"the body was not stored: {sentence(trouble)} Look at BODY_STORAGE and its storage."
        )


class BodyUnreadable(PgBrokerError):
    """The storage `BODY_STORAGE` did not give back arguments or a result that it should hold."""

    code = "body_unreadable"

    def __init__(self, name: str, trouble: str) -> None:
        super().__init__(
            f"body {name} cannot be read: {sentence(trouble)} Look at BODY_STORAGE and its storage.",
            name=name,
        )


class BodyMissing(BodyUnreadable):
    """The storage has no body of the name that the row says."""

    code = "body_missing"

    def __init__(self, name: str) -> None:
        super().__init__(name, "the storage has no file of that name")


class BodyDamaged(BodyUnreadable):
    """What the storage gave back is not the body that was saved."""

    code = "body_damaged"


class BodyLeft(PgBrokerError):
    """A body may be nobody's and stays in the storage, because that is not certain."""

    code = "body_left"


class UnknownQueue(PgBrokerError):
    """No queue of that name exists."""

    code = "unknown_queue"

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        meant = did_you_mean(name, known)
        super().__init__(
            f"there is no queue {name!r}. "
            + (f"{meant} " if meant else "")
            + "Declare it with @job(queue_name=...) and run migrate or start a worker on it, or create it with: "
            f"manage.py broker_queues create {name}",
            queue=name,
        )
        self.name = name


class QueueInUse(PgBrokerError):
    """A queue was not deleted: something refers to it, or may just be about to."""

    code = "queue_in_use"

    def __init__(self, name: str, why: str, cure: str) -> None:
        super().__init__(f"queue {name!r} was not deleted: {sentence(why)} {cure}", queue=name)
        self.name = name


class UnknownJobType(PgBrokerError):
    """No job type of that name is registered."""

    code = "unknown_job_type"

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        meant = did_you_mean(name, known)
        super().__init__(
            f"there is no job type {name!r}. "
            + (f"{meant} " if meant else "")
            + "Declare it with @job in jobs.py of an installed app, "
            "and run migrate or start a worker.",
            job_type=name,
        )
        self.name = name


class DuplicateJobType(PgBrokerError):
    """Two handlers claim one registry key."""

    code = "duplicate_job_type"


class IdempotencyConflict(PgBrokerError):
    """The key is held by a job with another body, or by any job where the caller asked to reject."""

    code = "idempotency_conflict"

    def __init__(self, key: str, job_id: Any, *, same_body: bool = False) -> None:
        super().__init__(
            f"idempotency key {key!r} is held by job {job_id}"
            + (
                ", and the call asked to reject what is there already. Leave on_conflict out to get that job."
                if same_body
                else " with a different body. Use another key, or give the same options and the same arguments "
                "in the same way: by position and by name are two bodies."
            ),
            key=key,
            job_id=job_id,
        )
        self.key, self.job_id = key, job_id


class NotReplaceable(IdempotencyConflict):
    """The call asked to replace the job that holds its key, and that one has started or has ended."""

    code = "not_replaceable"

    def __init__(self, key: str, job_id: Any) -> None:
        super(IdempotencyConflict, self).__init__(
            f"idempotency key {key!r} is held by job {job_id}, which has started or has ended, so it is not "
            "replaced. Enqueue again later, or use a scope that lets go of the key sooner.",
            key=key,
            job_id=job_id,
        )
        self.key, self.job_id = key, job_id


class JobNotFound(PgBrokerError, LookupError):
    """No job of that id is visible to this tenant."""

    code = "job_not_found"

    def __init__(self, job_id: Any) -> None:
        super().__init__(
            f"there is no job {str(job_id)[:100]}. Look at the id and the tenant: broker_jobs list tells both.",
            job_id=job_id,
        )
        self.job_id = job_id


class JobNotRetryable(PgBrokerError):
    """The job is not failed, dead-lettered or cancelled, so there is nothing to retry."""

    code = "job_not_retryable"


class KeyHeldByNewerJob(PgBrokerError):
    """A retry was refused: a newer job holds the idempotency key of this one."""

    code = "key_held_by_newer_job"


class EnqueueRefused(PgBrokerError):
    """A hook refused a call, or the database a row for a reason without a class of its own; `reason` tells which."""

    code = "enqueue_refused"

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, code=code)
        self.reason = code


class InvalidTenant(PgBrokerError, ValueError):
    """A tenant id is empty, too long or has characters outside `[A-Za-z0-9._-]`."""

    code = "invalid_tenant"

    def __init__(self, tenant: object) -> None:
        super().__init__(
            f"tenant {tenant!r} is not a tenant id. Use 1 to 63 characters of A-Z, a-z, 0-9, '.', '_', '-'.",
            tenant=tenant,
        )


class InvalidCron(PgBrokerError, ValueError):
    """A cron expression is not of pgbroker's dialect; `field` and `position`, a column from 1, tell where."""

    code = "invalid_cron"

    def __init__(self, expression: str, field: str, position: int, trouble: str, cure: str) -> None:
        super().__init__(
            f"cron expression {expression!r}: {field} (column {position}) {sentence(trouble)} {cure}",
            expression=expression,
            field=field,
            position=position,
        )
        self.field, self.position, self.trouble, self.cure = field, position, trouble, cure


class CronNeverFires(InvalidCron):
    """A cron expression can be read, but no time ever matches it."""

    code = "cron_never_fires"


class InvalidTimeZone(PgBrokerError, ValueError):
    """A time zone is not one of the IANA names that the zone data has."""

    code = "invalid_time_zone"

    def __init__(self, zone: str, cure: str) -> None:
        super().__init__(f"there is no time zone {zone!r}. {cure}", zone=zone)
        self.zone, self.cure = zone, cure


class InvalidSchedule(PgBrokerError, ValueError):
    """A schedule cannot be stored; `troubles` has everything that is wrong, each with its field and its cure."""

    code = "invalid_schedule"

    def __init__(self, name: str, troubles: Iterable[Any]) -> None:
        self.troubles = tuple(troubles)
        told = " ".join(f"{each.field} {sentence(each.trouble)} {each.cure}" for each in self.troubles)
        super().__init__(f"schedule {name!r}: {told}", name=name)
        self.name = name


class ScheduleNotFound(PgBrokerError, LookupError):
    """No schedule of that name or id is visible to this tenant."""

    code = "schedule_not_found"

    def __init__(
        self, schedule: Any, *, many: bool = False, unstored: str | None = None, known: Iterable[str] = ()
    ) -> None:
        meant = did_you_mean(str(schedule), known, most=3)
        super().__init__(
            f"the code declares the schedule {str(schedule)!r}, and it {unstored}"
            if unstored
            else f"several tenants have a schedule {schedule!r}. Say which tenant, or give its id."
            if many
            else f"there is no schedule {str(schedule)[:200]!r}. "
            + (f"{meant} " if meant else "")
            + "Look at the tenant, and at what there is: broker_schedules list",
            schedule=schedule,
        )
        self.schedule = schedule


class DuplicateSchedule(PgBrokerError):
    """Two schedules that the code declares have one name in one tenant."""

    code = "duplicate_schedule"

    def __init__(self, name: str, tenant: str) -> None:
        super().__init__(
            f"schedule {name!r} of tenant {tenant!r} is declared twice, and differently. "
            "Give one of them another name.",
            name=name,
        )
        self.name = name


class ScheduleDeclared(PgBrokerError):
    """A schedule cannot be deleted, since code declares it: the next start would make it again."""

    code = "schedule_declared"

    def __init__(self, name: str, project: str, *, ours: bool) -> None:
        super().__init__(
            f"schedule {name!r} is declared by the code of this project and would come back. "
            "Remove it from the code first, or disable it."
            if ours
            else f"schedule {name!r} is declared by the project {project!r} and would come back. "
            "Remove it from that code and let its scheduler start, or disable it.",
            name=name,
            project=project,
        )
        self.name, self.project = name, project


class DatabaseUnreachable(PgBrokerError):
    """The database could not be reached when a process started."""

    code = "database_unreachable"


class SchemaTooOld(PgBrokerError):
    """The database lacks a migration this release needs."""

    code = "schema_too_old"

    def __init__(self, alias: str, missing: Iterable[str] = ()) -> None:
        named = ", ".join(missing)
        super().__init__(
            f"database alias {alias!r} lacks migrations of pgbroker{named and f': {named}'}. "
            f"Run: manage.py migrate pgbroker --database {alias}",
            alias=alias,
        )


class NotPostgreSQL(PgBrokerError):
    """A broker alias is not served by PostgreSQL."""

    code = "not_postgresql"


class AttemptTimedOut(PgBrokerError):
    """An attempt ran longer than its `timeout`."""

    code = "timed_out"


class DeadlineExceeded(PgBrokerError):
    """A job passed its `deadline` before it was done."""

    code = "deadline_exceeded"


class AttemptCancelled(PgBrokerError):
    """The job was asked to cancel while this attempt ran."""

    code = "cancelled"


class JobReplaced(PgBrokerError):
    """A later call with the same idempotency key took the job's place before it had started."""

    code = "replaced"


class WorkerLost(PgBrokerError):
    """The worker that held the lease stopped renewing it."""

    code = "worker_lost"


class WorkerNameTaken(PgBrokerError):
    """Another worker of this name lives: it renewed its lease on the name while this one waited, or took it over."""

    code = "worker_name_taken"

    def __init__(self, name: str, lease: timedelta) -> None:
        super().__init__(
            f"another worker named {name!r} lives. Stop it first, or choose another --name. "
            f"The name of a worker that died is free within {lease.total_seconds():g} s.",
            name=name,
        )


class AlreadyStarted(PgBrokerError):
    """A worker was started that runs."""

    code = "already_started"


class PortUnavailable(PgBrokerError):
    """The port for Prometheus and probes cannot be opened: something has it, or the host has no such address."""

    code = "port_unavailable"

    def __init__(self, host: str, port: int, trouble: str) -> None:
        super().__init__(
            f"port {port} of {host} cannot be opened: {sentence(trouble)} Give each process on a host its own "
            "with --metrics-port, or METRICS_PORT; METRICS_HOST says on which address.",
            host=host,
            port=port,
        )


class ChildCrashed(PgBrokerError):
    """The child process that ran an attempt ended under it, by a signal or an exit; the worker lives."""

    code = "child_crashed"


class ChildrenUnavailable(PgBrokerError):
    """Child processes cannot be made, or end before they are ready; the worker ends."""

    code = "children_unavailable"


class AttemptsExhausted(PgBrokerError):
    """The job used its last attempt and became a dead letter."""

    code = "attempts_exhausted"


def refused(code: str, text: str) -> PgBrokerError:
    """Make the error of what the database refused, of the class that has this code; `EnqueueRefused` where none has."""
    for kind in DependencyError.__subclasses__():
        if kind.code == code:
            return kind(text)
    return EnqueueRefused(code, text)

"""What is refused about run groups, and about what a job waits for."""

from typing import ClassVar

from pgbroker.errors.base import PgBrokerError, sentence


class DependencyError(PgBrokerError):
    """Base of what is refused about run groups and about what a job waits for; nothing was stored then."""

    code = "dependency_error"
    cure: ClassVar[str] = ""

    def __init__(self, trouble: str, *, cure: str | None = None) -> None:
        super().__init__(f"{sentence(trouble)} {self.cure if cure is None else cure}".rstrip())
        self.trouble = trouble


class GroupNotFound(DependencyError, LookupError):
    """This tenant has no run group of that name."""

    code = "group_not_found"
    cure = "Open it first, with run_group(name, seal=False), and seal it when all is added. Or look at the tenant."


class GroupExists(DependencyError):
    """A run group of that name exists: a name is used once."""

    code = "group_exists"
    cure = "Choose another name, such as one with the date, or look at that one with get_group(...)."


class GroupSealed(DependencyError):
    """The run group is sealed, so that nothing is added to it any more."""

    code = "group_sealed"
    cure = "Open another group, or open it with run_group(..., seal=False) and seal it when all is added."


class DuplicateJobName(DependencyError):
    """The run group has another job of that name."""

    code = "duplicate_job_name"
    cure = "A name is used once in a group: choose another one, or leave it out."


class DependencyNotFound(DependencyError, LookupError):
    """What a job or a group is to wait for is not there, or another tenant's."""

    code = "dependency_not_found"
    cure = "Enqueue it first, or give a DeferredRef where it comes later."


class AmbiguousDependency(DependencyError):
    """A name alone means a job of the group and a run group."""

    code = "ambiguous_dependency"
    cure = "Give GroupRef(name) for the group, or JobRef(group, name) for the job."


class SelfDependency(DependencyError):
    """A job was to wait for itself."""

    code = "self_dependency"
    cure = "Leave it out of depends_on."


class CyclicDependency(DependencyError):
    """Jobs or groups would wait for each other, in a circle."""

    code = "cyclic_dependency"
    cure = "None of them could ever start: leave out one of the dependencies."


class DuplicateDependency(DependencyError):
    """A job was to wait for the same thing twice."""

    code = "duplicate_dependency"
    cure = "Name each prerequisite once."


class TooManyDependencies(DependencyError):
    """A job was to wait for more than 10,000 others."""

    code = "too_many_dependencies"
    cure = "Put the prerequisites into a run group, and let the job wait for the group."


class DependencyTooDeep(DependencyError):
    """A chain of dependencies was to have more than 10,000 levels."""

    code = "dependency_too_deep"
    cure = "Let a job that has done its part enqueue the next one instead."


class PrerequisiteRefused(DependencyError):
    """A call of the same list, which this one waits for, was refused."""

    code = "prerequisite_refused"
    cure = "Look at the outcome of that call, and enqueue both again."


class DependencyTooLate(DependencyError):
    """A job that runs or is over was to wait for something more."""

    code = "dependency_too_late"
    cure = "Enqueue a job that waits for both."


class PrerequisiteFailed(DependencyError):
    """What the job waits for has ended without success: it does not run, and is not retried by itself."""

    code = "prerequisite_failed"
    cure = "Retry the prerequisite: what waited for it comes back by itself."


class ReferenceExpired(DependencyError):
    """What the job was to wait for did not come to be within the time of its `DeferredRef`."""

    code = "reference_expired"

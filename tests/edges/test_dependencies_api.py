"""What a project says of jobs that wait for others: the forms of a prerequisite, lists of calls, and every refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from django.db import connection, transaction

from pgbroker import (
    DeferredRef,
    Edge,
    GroupRef,
    JobRef,
    add_dependency,
    cancel,
    enqueue_many,
    get_group,
    get_job,
    job,
    retry,
    run_group,
    tenant_context,
    unblock,
)
from pgbroker.errors import (
    AmbiguousDependency,
    CyclicDependency,
    DependencyNotFound,
    DependencyTooDeep,
    DependencyTooLate,
    DuplicateDependency,
    DuplicateJobName,
    GroupNotFound,
    GroupSealed,
    InvalidOption,
    JobNotFound,
    PgBrokerError,
    PrerequisiteFailed,
    SelfDependency,
    TooManyDependencies,
)
from pgbroker.models import (
    DeferredReference,
    Idempotency,
    Job,
    JobDependency,
    JobPayload,
    JobTag,
    Queue,
    RunGroup,
)
from pgbroker.states import OnFailure, Status
from pgbroker.testing import age, guards_off, run_jobs
from tests.support.jobs import claim_one, reason, settle_one, status
from tests.support.jobs import completed as settled_well

pytestmark = pytest.mark.django_db


@job(name="tests.waits.step")
def step(number: int = 0) -> int:
    return number


@job(name="tests.waits.breaks", max_attempts=1)
def breaks() -> None:
    raise LookupError("it is gone")


def edges(job_id: object) -> set[UUID]:
    """List what a job waits for, or waited for."""
    found = JobDependency.objects.filter(dependent_id=UUID(str(job_id)))
    return set(found.values_list("prerequisite_id", flat=True))


def stored_rows() -> dict[str, int]:
    """Count what a call may leave behind."""
    kinds = (Job, JobPayload, JobTag, JobDependency, DeferredReference, Idempotency, RunGroup)
    return {kind.__name__: kind._base_manager.count() for kind in kinds}


# ------------------------------------------------------------------ what a prerequisite may be


@pytest.fixture
def known() -> dict[str, Any]:
    """A job, and an open group "import" with a job "extract" in it; a group "alone" too."""
    with run_group("import", seal=False) as group:
        extract = group.enqueue(step, name="extract")
    with run_group("alone", seal=False) as alone:
        pass
    return {"job": step.enqueue(), "group": group, "extract": extract, "alone": alone}


FORMS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "UUID": (lambda known: UUID(known["job"].id), "job"),
    "text of an id": (lambda known: known["job"].id, "job"),
    "text in capitals": (lambda known: known["job"].id.upper(), "job"),
    "TaskResult": (lambda known: known["job"], "job"),
    "what get_job returns": (lambda known: get_job(known["job"]), "job"),
    "model": (lambda known: Job.objects.get(pk=known["job"].id), "job"),
    "RunGroup": (lambda known: known["group"], "group"),
    "GroupRef": (lambda known: GroupRef("import"), "group"),
    "name of a group": (lambda known: "import", "group"),
    "JobRef": (lambda known: JobRef("import", "extract"), "extract"),
    "tuple": (lambda known: ("import", "extract"), "extract"),
    "Edge": (lambda known: Edge(known["job"], on_failure="cancel"), "job"),
    "Edge to a name": (lambda known: Edge(("import", "extract"), on_failure="cancel"), "extract"),
    "Edge to the name of a group": (lambda known: Edge("import", on_failure="cancel"), "group"),
    "DeferredRef to what is there": (lambda known: DeferredRef("import", "extract", within=60), "extract"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_job_waits_for_what_it_names_in_any_form(known: dict[str, Any], form: str) -> None:
    make, meant = FORMS[form]

    waiting = step.options(depends_on=[make(known)]).enqueue()

    assert status(UUID(waiting.id)) == Status.WAITING
    assert edges(waiting.id) == {UUID(str(known[meant].id))}


def test_a_name_alone_is_a_job_of_the_own_group_where_there_is_one(known: dict[str, Any]) -> None:
    waiting = known["group"].enqueue(step, depends_on=["extract"])

    assert edges(waiting.id) == {UUID(known["extract"].id)}


def test_an_edge_takes_a_name_alone_wherever_prerequisites_are_taken(known: dict[str, Any]) -> None:
    by_name = Edge("extract", "ignore")
    member = known["group"].enqueue(step, depends_on=[by_name])
    (listed,) = known["group"].enqueue_many([step.options(depends_on=[by_name]).bind()])
    late = known["group"].enqueue(step)
    add_dependency(late, [by_name])
    with run_group("waiting", depends_on=[Edge("import", "ignore")], seal=False) as waiting:
        pass

    for each in (member.id, listed.job_id, late.id):
        assert edges(each) == {UUID(known["extract"].id)}
    assert edges(str(waiting.id)) == {known["group"].id}
    assert set(JobDependency.objects.values_list("on_failure", flat=True)) == {OnFailure.IGNORE}
    with pytest.raises(DependencyNotFound, match='no run group "nowhere"'):
        step.options(depends_on=[Edge("nowhere", "ignore")]).enqueue()


NO_PREREQUISITES: dict[str, object] = {
    "number": 7,
    "None": None,
    "object": object(),
    "tuple of one": ("a",),
    "tuple of three": ("a", "b", "c"),
    "tuple of numbers": (1, 2),
    "task": step,
    "model with a number": Queue(id=3),
    "bytes": b"a",
    "empty text": "",
    "NUL": "a\x00b",
    "long text": "x" * 256,
}


@pytest.mark.parametrize("value", NO_PREREQUISITES.values(), ids=NO_PREREQUISITES.keys())
def test_what_is_no_prerequisite_is_refused_where_it_is_written(value: object) -> None:
    with pytest.raises(InvalidOption, match="depends_on"):
        step.options(depends_on=[value])


@pytest.mark.parametrize(
    "value",
    ["import", b"x", {"group": "import"}, 7, step.bind(), step],
    ids=["text", "bytes", "mapping", "number", "call", "task"],
)
def test_prerequisites_come_in_a_list(value: object) -> None:
    with pytest.raises(InvalidOption, match=r"depends_on is a .*Give a list"):
        step.options(depends_on=value)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: GroupRef(""), "name"),
        (lambda: GroupRef(None), "name"),  # type: ignore[arg-type]
        (lambda: JobRef("g", "x" * 256), "name"),
        (lambda: JobRef("a\x00", "x"), "group"),
        (lambda: DeferredRef("g", within=0), "within"),
        (lambda: DeferredRef("g", within=timedelta(days=4000)), "within"),
        (lambda: DeferredRef("g", within=float("nan")), "within"),
        (lambda: DeferredRef("g", "", within=1), "name"),
        (lambda: Edge(uuid4(), on_failure="explode"), "on_failure"),
        (lambda: Edge(7, on_failure="block"), "depends_on"),  # type: ignore[arg-type]
        (lambda: Edge(Edge(uuid4(), "block"), on_failure="block"), "Edge"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_reference_that_means_nothing_is_refused_where_it_is_made(
    make: Callable[[], object], word: str
) -> None:
    with pytest.raises(InvalidOption, match=word):
        make()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"name": "extract"}, "group"),
        ({"on_failure": "block"}, "depends_on"),
        ({"depends_on": [], "on_failure": "explode"}, "on_failure"),
        ({"group": 7}, "group"),
        ({"group": ""}, "group"),
        ({"group": "import", "name": 7}, "name"),
    ],
    ids=str,
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidOption, match=word):
        step.options(**options).enqueue()

    assert stored_rows()["Job"] == 0


def test_no_prerequisites_are_none() -> None:
    made = step.options(depends_on=[], on_failure="block").enqueue()

    assert status(UUID(made.id)) == Status.READY


def test_each_edge_may_say_what_becomes_of_the_job(known: dict[str, Any]) -> None:
    waiting = step.options(
        depends_on=[known["job"], Edge(("import", "extract"), "ignore"), Edge(GroupRef("alone"), "block")],
        on_failure="block",
    ).enqueue()

    found = JobDependency.objects.filter(dependent_id=waiting.id)
    assert {each.prerequisite_id: OnFailure(each.on_failure) for each in found} == {
        UUID(known["job"].id): OnFailure.BLOCK,
        UUID(known["extract"].id): OnFailure.IGNORE,
        known["alone"].id: OnFailure.BLOCK,
    }


def test_linked_options_change_nothing_else_about_a_task() -> None:
    base = step.using(priority=3).options(tags=["a"], max_attempts=2)
    linked = base.options(group="import").options(depends_on=[uuid4()], name="x")

    assert linked.unlinked is base
    assert (linked.priority, linked.call_options.tags, linked.call_options.name) == (3, ("a",), "x")
    assert linked.options(tags=["b"]).unlinked.call_options.tags == ("b",)
    assert base.call_options.group is None
    assert linked.using(priority=4).unlinked.priority == 4


# ------------------------------------------------------------------ what is still to come


def test_what_is_still_to_come_becomes_an_edge_when_it_is_there() -> None:
    waiting = step.options(depends_on=[DeferredRef("tonight", within=timedelta(hours=1))]).enqueue(1)
    member = step.options(depends_on=[DeferredRef("tonight", "extract", within=60)]).enqueue(2)
    assert run_jobs() == []

    with run_group("tonight") as group:
        group.enqueue(step, 3, name="extract")

    assert next(ran.result for ran in run_jobs()) == 3
    assert {status(UUID(each.id)) for each in (waiting, member)} == {Status.COMPLETED}


@pytest.mark.parametrize(
    ("policy", "end"), [("cancel", Status.CANCELLED), ("block", Status.BLOCKED), ("ignore", Status.COMPLETED)]
)
def test_what_never_comes_is_a_prerequisite_that_failed(policy: str, end: Status) -> None:
    waiting = step.options(depends_on=[DeferredRef("never", within=60)], on_failure=policy).enqueue()
    age(waiting, seconds=61)

    run_jobs()

    assert status(UUID(waiting.id)) == end
    assert reason(UUID(waiting.id)) == (None if end == Status.COMPLETED else "reference_expired")


def test_what_came_too_late_is_waited_for_when_the_job_is_retried() -> None:
    waiting = step.options(depends_on=[DeferredRef("tonight", within=60)]).enqueue(1)
    age(waiting, seconds=61)
    run_jobs()

    with pytest.raises(
        PrerequisiteFailed, match=r"run group tonight, which is not there\. Open .* retry the job; or"
    ):
        retry(waiting)
    with run_group("tonight", seal=False) as group:
        pass
    retry(waiting)

    assert get_job(waiting).explain().code == "about_to_be_resolved"
    assert run_jobs() == []
    assert status(UUID(waiting.id)) == Status.WAITING
    group.seal()
    assert [ran.result for ran in run_jobs()] == [1]


# ------------------------------------------------------------------ refusals


def deepest(known: dict[str, Any]) -> Any:
    """A job at the end of as long a chain as there may be."""
    last = step.options(depends_on=[known["job"]]).enqueue()
    with guards_off():
        JobDependency.objects.filter(dependent_id=last.id).update(level=10_000)
    return last


REFUSALS: dict[str, tuple[type[PgBrokerError], Callable[[dict[str, Any]], Any]]] = {
    "a job that is not there": (
        DependencyNotFound,
        lambda known: step.options(depends_on=[known["job"], uuid4()]),
    ),
    "a group that is not there": (
        DependencyNotFound,
        lambda known: step.options(depends_on=[GroupRef("no")]),
    ),
    "a member that is not there": (
        DependencyNotFound,
        lambda known: step.options(depends_on=[("import", "load")]),
    ),
    "a name that is nothing": (DependencyNotFound, lambda known: step.options(depends_on=["no"])),
    "a name that is two things": (
        AmbiguousDependency,
        lambda known: step.options(group="import", depends_on=["alone"]),
    ),
    "itself": (
        SelfDependency,
        lambda known: step.options(group="import", name="me", depends_on=[("import", "me")]),
    ),
    "its own group": (CyclicDependency, lambda known: step.options(group="import", depends_on=["import"])),
    "the same twice": (DuplicateDependency, lambda known: step.options(depends_on=[known["job"]] * 2)),
    "the same by id and by name": (
        DuplicateDependency,
        lambda known: step.options(depends_on=[known["extract"], ("import", "extract")]),
    ),
    "too deep": (DependencyTooDeep, lambda known: step.options(depends_on=[deepest(known)])),
    "into no group": (GroupNotFound, lambda known: step.options(group="no")),
    "into a sealed group": (GroupSealed, lambda known: step.options(group=sealed(known))),
    "a name that is taken": (DuplicateJobName, lambda known: step.options(group="import", name="extract")),
}


def sealed(known: dict[str, Any]) -> Any:
    known["alone"].seal()
    return known["alone"]


@pytest.fixture
def ambiguous(known: dict[str, Any]) -> dict[str, Any]:
    known["group"].enqueue(step, name="alone")
    return known


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refused_call_has_an_error_of_its_own_and_leaves_nothing_behind(
    ambiguous: dict[str, Any], case: str
) -> None:
    error, make = REFUSALS[case]
    task = make(ambiguous).options(idempotency_key="once", tags=["a"])
    before = stored_rows()

    with pytest.raises(error) as caught:
        task.enqueue()

    assert type(caught.value) is error
    assert caught.value.code == error.code
    assert stored_rows() == before
    # The caller's transaction goes on, and so do other calls of a list.
    refused, made = enqueue_many([task.bind(), step.bind()])
    assert (refused.outcome, type(refused.error), made.outcome) == (error.code, error, "created")


def test_ten_thousand_prerequisites_are_the_most() -> None:
    with pytest.raises(TooManyDependencies, match="10001"):
        step.options(depends_on=[uuid4() for _ in range(10_001)])


def test_b137_the_id_of_another_tenant_reads_the_same_as_none(known: dict[str, Any]) -> None:
    texts = []
    for job_id in (UUID(known["job"].id), uuid4()):
        with tenant_context("acme"), pytest.raises(DependencyNotFound) as caught:
            step.options(depends_on=[job_id]).enqueue()
        texts.append(str(caught.value).replace(str(job_id), "…"))

    assert texts[0] == texts[1]
    with tenant_context("acme"):
        for reference in (GroupRef("import"), ("import", "extract"), "import"):
            with pytest.raises(DependencyNotFound):
                step.options(depends_on=[reference]).enqueue()
        with pytest.raises(GroupNotFound):
            step.options(group="import").enqueue()
        # A name is free in each tenant.
        with run_group("import") as group:
            pass
        assert group.id != known["group"].id


def test_a_job_of_another_tenant_in_the_same_list_is_not_found() -> None:
    theirs = step.options(tenant="acme").bind()

    made, refused = enqueue_many([theirs, step.options(depends_on=[theirs]).bind()])

    assert (made.outcome, refused.outcome) == ("created", "dependency_not_found")


def test_what_is_rolled_back_was_never_there(known: dict[str, Any]) -> None:
    before = stored_rows()

    with transaction.atomic():
        step.options(depends_on=[known["job"]], group="import", name="x").enqueue()
        step.options(depends_on=[DeferredRef("later", within=1)]).enqueue()
        transaction.set_rollback(True)

    assert stored_rows() == before


# ------------------------------------------------------------------ jobs that exist


def test_a_job_that_exists_is_made_to_wait(known: dict[str, Any]) -> None:
    late = step.enqueue(5)

    added = add_dependency(late, [known["job"], ("import", "extract")], on_failure="block")

    assert (added, status(UUID(late.id))) == (2, Status.WAITING)
    assert edges(late.id) == {UUID(known["job"].id), UUID(known["extract"].id)}
    assert add_dependency(late, [DeferredRef("later", within=60)]) == 1
    assert DeferredReference.objects.get().dependent_id == UUID(late.id)


@pytest.mark.parametrize(
    ("error", "make"),
    [
        (DependencyNotFound, lambda known, late: [uuid4()]),
        (DuplicateDependency, lambda known, late: [known["extract"]]),
        (SelfDependency, lambda known, late: [late]),
        (CyclicDependency, lambda known, late: [known["after"]]),
        (CyclicDependency, lambda known, late: ["import"]),
        (InvalidOption, lambda known, late: [step.bind()]),
        (InvalidOption, lambda known, late: [7]),
        (InvalidOption, lambda known, late: "import"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_what_a_job_cannot_be_made_to_wait_for_is_refused_and_changes_nothing(
    known: dict[str, Any], error: type[Exception], make: Callable[..., Any]
) -> None:
    late = known["group"].enqueue(step, depends_on=[known["extract"]])
    known["after"] = step.options(depends_on=[late]).enqueue()
    before = stored_rows()

    with pytest.raises(error):
        add_dependency(late, make(known, late))

    # The caller's transaction goes on.
    assert stored_rows() == before
    assert edges(late.id) == {UUID(known["extract"].id)}


def test_it_is_too_late_for_a_job_that_runs_or_is_over() -> None:
    runs = step.enqueue()
    lease = claim_one()
    with pytest.raises(DependencyTooLate):
        add_dependency(runs, [step.enqueue()])
    settle_one(settled_well(lease))
    with pytest.raises(DependencyTooLate):
        add_dependency(runs, [step.enqueue()])

    assert edges(runs.id) == set()


def test_another_tenants_job_is_not_there_to_be_made_to_wait(known: dict[str, Any]) -> None:
    with tenant_context("acme"):
        theirs = step.enqueue()
        for job_id in (known["job"].id, uuid4()):
            with pytest.raises(JobNotFound):
                add_dependency(job_id, [theirs])
            with pytest.raises(JobNotFound):
                unblock(job_id)

    assert status(UUID(known["job"].id)) == Status.READY


def test_a_blocked_job_goes_on_when_it_is_unblocked() -> None:
    first = breaks.enqueue()
    blocked = step.options(depends_on=[first], on_failure="block").enqueue(1)
    run_jobs()
    assert status(UUID(blocked.id)) == Status.BLOCKED

    with pytest.raises(JobNotFound):
        unblock(blocked, uuid4())
    assert status(UUID(blocked.id)) == Status.BLOCKED
    answers = unblock(blocked, first)

    assert [(answer.outcome, answer.status) for answer in answers] == [
        ("unblocked", Status.READY),
        ("unchanged", Status.DEAD_LETTER),
    ]
    assert [ran.status for ran in run_jobs()] == [Status.COMPLETED]


def test_a_job_whose_prerequisite_failed_is_not_retried_before_that_one() -> None:
    first = breaks.enqueue()
    after = step.options(depends_on=[first]).enqueue(1)
    run_jobs()
    assert (status(UUID(after.id)), reason(UUID(after.id))) == (Status.CANCELLED, "prerequisite_failed")

    with pytest.raises(PrerequisiteFailed, match=first.id):
        retry(after)

    retry(first)
    run_jobs()
    assert status(UUID(after.id)) == Status.CANCELLED
    error = step.get_backend().get_result(after.id).errors[-1]
    assert error.exception_class_path == "pgbroker.errors.PrerequisiteFailed"


def test_a_cancelled_job_takes_along_what_waits_for_it() -> None:
    calls = [step.bind(0)]
    for number in range(1, 5):
        calls.append(step.options(depends_on=[calls[-1]]).bind(number))
    made = enqueue_many(calls)

    cancel(made[0].job_id)
    run_jobs()

    assert {status(outcome.job_id) for outcome in made} == {Status.CANCELLED}
    assert get_job(made[4].job_id).reason_code == "prerequisite_failed"


@pytest.fixture
def first_commit_fails(transactional_db: None) -> Iterator[None]:
    """Let the first commit that looks at edges be the victim of a deadlock."""
    with connection.cursor() as cursor:
        cursor.execute("create sequence pgbroker.commits")
        cursor.execute(
            "create function pgbroker.fail_once() returns trigger language plpgsql as $$ begin "
            "if nextval('pgbroker.commits') = 1 then raise exception 'a victim' using errcode = '40P01'; end if; "
            "return null; end $$"
        )
        cursor.execute(
            "create constraint trigger fail_once after insert on pgbroker.edge_check deferrable initially deferred "
            "for each row execute function pgbroker.fail_once()"
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute("drop function pgbroker.fail_once() cascade")
        cursor.execute("drop sequence pgbroker.commits")


@pytest.mark.usefixtures("first_commit_fails")
@pytest.mark.parametrize("tenant", ["default", "acme"])
@pytest.mark.parametrize("many", [False, True], ids=["one call", "a list"])
def test_a_deadlock_at_the_commit_is_not_the_callers_matter(tenant: str, many: bool) -> None:
    with tenant_context(tenant):
        first = step.enqueue(1)
        waiting = step.options(depends_on=[first], tags=["the long way"])

        if many:
            (outcome,) = enqueue_many([waiting.bind(2)])
            made = outcome.job_id
        else:
            made = UUID(waiting.enqueue(2).id)

        assert edges(made) == {UUID(first.id)}
    assert status(made) == Status.WAITING


# ------------------------------------------------------------------ from SQL


def test_the_sql_function_takes_the_same(known: dict[str, Any]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "select pgbroker.enqueue('tests.waits.step', '{\"number\": 1}', \"group\" => 'import', name => 'load', "
            "depends_on => jsonb_build_array('extract', %s), on_failure => 'block')",
            [known["job"].id],
        )
        (loaded,) = cursor.fetchone()

    stored = Job.objects.get(pk=loaded)
    assert (stored.run_group_id, stored.name) == (get_group("import").id, "load")
    assert edges(loaded) == {UUID(known["extract"].id), UUID(known["job"].id)}
    assert set(JobDependency.objects.values_list("on_failure", flat=True)) == {OnFailure.BLOCK}


def test_the_sql_function_refuses_with_the_same_codes() -> None:
    with pytest.raises(psycopg.Error) as caught, transaction.atomic(), connection.cursor() as cursor:
        cursor.cursor.execute("select pgbroker.enqueue('tests.waits.step', depends_on => '[\"nobody\"]')")

    assert (caught.value.sqlstate, caught.value.diag.message_hint) == ("PB001", "dependency_not_found")

"""
The guards: row-level triggers with a condition, so that a legal change costs only the condition.

They guard against mistakes, whoever makes them (psql and the admin too), not against attackers: any
session can switch a pgtrigger trigger off. What must hold against those is a policy, a constraint or a
missing grant.
"""

from typing import Any

import pgtrigger
from django.db import models
from pgtrigger import compiler

from pgbroker.states import ENTRY, GROUP_TRANSITIONS, TRANSITIONS, legal_pairs

# What a refused statement gets: a condition of our own class, with pgbroker's code as the hint.
ERRCODE = "PB002"


class SchemaUpsertTriggerSql(compiler.UpsertTriggerSql):
    """
    The library's installation SQL with its functions in our schema, not wherever `search_path` points.

    Migrations refer to this class by its path: it is frozen, like the SQL of a released migration.
    """

    def get_template(self) -> str:
        template = super().get_template()
        for name in ("FUNCTION {pgid}()", "PROCEDURE {execute}"):
            assert name in template
        return template.replace("FUNCTION {pgid}()", "FUNCTION pgbroker.{pgid}()").replace(
            "PROCEDURE {execute}", "PROCEDURE pgbroker.{execute}"
        )

    def get_defaults(self, pgid: str) -> dict[str, str]:
        return {**super().get_defaults(pgid), "ignore_func_name": "pgbroker._pgtrigger_should_ignore"}


class Guard(pgtrigger.Protect):
    """
    Refuse what *condition* describes, with a sentence that says what to do instead.

    *unless* is an expression that only the trigger's function can ask, since a condition sees no other
    rows: where it is true the change passes.
    """

    def __init__(self, *, sentence: str, hint: str, unless: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sentence, self.hint, self.unless = sentence, hint, unless

    # The library's hints say an instance; it hands over the class.
    def get_func(self, model: models.Model) -> str:
        refuse = (
            f"RAISE EXCEPTION USING ERRCODE = '{ERRCODE}', MESSAGE = '{self.sentence}', HINT = '{self.hint}';"
        )
        if self.unless is None:
            return refuse
        passed = "OLD" if self.operation == pgtrigger.Delete else "NEW"
        return f"IF {self.unless} THEN RETURN {passed}; END IF; {refuse}"

    def compile(self, model: models.Model) -> compiler.Trigger:
        return compiler.Trigger(
            name=self.name,
            sql=SchemaUpsertTriggerSql(
                ignore_func_name="pgbroker._pgtrigger_should_ignore",
                pgid=self.get_pgid(model),
                func=self.render_func(model),
                table=model._meta.db_table,
                when=self.when,
                operation=self.operation,
                condition=self.render_condition(model),
            ),
        )


def legal_transition() -> pgtrigger.Trigger:
    """Refuse every status change that no verb in TRANSITIONS makes, whoever attempts it."""
    # One number for each pair: PostgreSQL reads the condition again with every statement, and that of pairs takes
    # longer to read than a job takes to claim.
    pairs = ",".join(str(100 * old + new) for old, new in legal_pairs())
    return Guard(
        name="legal_transition",
        operation=pgtrigger.UpdateOf("status"),
        condition=pgtrigger.Condition(
            f"OLD.status <> NEW.status AND 100 * OLD.status + NEW.status <> ALL ('{{{pairs}}}'::int[])"
        ),
        sentence="pgbroker: no verb makes this change of status",
        hint=f"Change jobs through the verbs: {', '.join(TRANSITIONS)}.",
    )


def legal_entry() -> pgtrigger.Trigger:
    """Refuse a new row that is already running or over: a job begins with enqueue."""
    statuses = ", ".join(str(int(status)) for status in sorted(ENTRY))
    return Guard(
        name="legal_entry",
        operation=pgtrigger.Insert,
        condition=pgtrigger.Condition(f"NEW.status NOT IN ({statuses})"),
        sentence="pgbroker: a job begins scheduled, waiting or ready",
        hint="Enqueue it: pgbroker.enqueue(...).",
    )


def numbers_only_rise() -> pgtrigger.Trigger:
    """Refuse to lower an attempt count or a lease token."""
    columns = ("lease_token", "attempt_count", "max_attempts", "crash_count")
    return Guard(
        name="numbers_only_rise",
        operation=pgtrigger.UpdateOf(*columns),
        condition=pgtrigger.Condition(" OR ".join(f"NEW.{column} < OLD.{column}" for column in columns)),
        sentence="pgbroker: counts and tokens only rise",
        hint="Enqueue a new job instead.",
    )


def stays_the_job_it_is() -> pgtrigger.Trigger:
    """Refuse to change what makes a job the job it is. Asked where a statement names one of these columns."""
    # A queue without a row, or a priority that its queue has not seen, is none that a claim looks at.
    columns = (
        "id",
        "tenant_id",
        "queue_id",
        "job_type_id",
        "priority",
        "created_at",
        "declared_attempts",
    )
    return Guard(
        name="stays_the_job_it_is",
        operation=pgtrigger.UpdateOf(*columns),
        condition=pgtrigger.Condition(" OR ".join(f"NEW.{column} <> OLD.{column}" for column in columns)),
        sentence="pgbroker: id, tenant, queue, type, priority, creation and declared attempts of a job never change",
        hint="Enqueue a new job instead.",
    )


def stays_in_its_group() -> pgtrigger.Trigger:
    """Refuse to move a job into a run group, out of one, or to another name there: what counts on it would not know."""
    columns = ("run_group_id", "name")
    return Guard(
        name="stays_in_its_group",
        operation=pgtrigger.UpdateOf(*columns),
        condition=pgtrigger.Condition(
            " OR ".join(f"NEW.{column} IS DISTINCT FROM OLD.{column}" for column in columns)
        ),
        sentence="pgbroker: the run group of a job, and its name there, never change",
        hint="Enqueue a new job instead.",
    )


def ended_is_final() -> pgtrigger.Trigger:
    """Refuse to touch a job that has ended, except to retry it."""
    return Guard(
        name="ended_is_final",
        operation=pgtrigger.Update,
        condition=pgtrigger.Condition("OLD.status >= 10 AND NEW.status = OLD.status"),
        sentence="pgbroker: a job that has ended does not change",
        hint="Retry it: manage.py broker_jobs retry ID.",
    )


def refuse_live_delete() -> pgtrigger.Trigger:
    """Refuse to delete a job that is not over: a committed job runs until it ends."""
    return Guard(
        name="refuse_live_delete",
        operation=pgtrigger.Delete,
        condition=pgtrigger.Condition("OLD.status < 10"),
        sentence="pgbroker: a live job is never deleted",
        hint="Cancel it: manage.py broker_jobs cancel ID.",
    )


def waited_for() -> pgtrigger.Trigger:
    """Refuse to delete a job while an edge still looks at how it ended."""
    return Guard(
        name="waited_for",
        operation=pgtrigger.Delete,
        unless="NOT EXISTS (SELECT FROM pgbroker.job_dependency AS edge"
        " WHERE edge.prerequisite_id = OLD.id AND edge.satisfied_at IS NULL)",
        sentence="pgbroker: other jobs still look at how this job ended",
        hint="Delete the jobs that depend on it first, or unblock them.",
    )


def legal_group_state() -> pgtrigger.Trigger:
    """Refuse every change of a group's state that no verb in GROUP_TRANSITIONS makes."""
    pairs = ",".join(
        str(number)
        for number in sorted(
            100 * old + new for changes in GROUP_TRANSITIONS.values() for old, new in changes
        )
    )
    return Guard(
        name="legal_group_state",
        operation=pgtrigger.UpdateOf("state"),
        condition=pgtrigger.Condition(
            f"OLD.state <> NEW.state AND 100 * OLD.state + NEW.state <> ALL ('{{{pairs}}}'::int[])"
        ),
        sentence="pgbroker: no verb makes this change of state",
        hint=f"Change groups through the verbs: {', '.join(GROUP_TRANSITIONS)}.",
    )


def stays_the_group_it_is() -> pgtrigger.Trigger:
    """Refuse to change what makes a group the group it is."""
    columns = ("id", "tenant_id", "name", "created_at")
    return Guard(
        name="stays_the_group_it_is",
        operation=pgtrigger.UpdateOf(*columns),
        condition=pgtrigger.Condition(" OR ".join(f"NEW.{column} <> OLD.{column}" for column in columns)),
        sentence="pgbroker: id, tenant, name and creation of a run group never change",
        hint="Open a new group instead.",
    )


def kept_with_its_members() -> pgtrigger.Trigger:
    """Refuse to delete a group that has jobs, or that an edge still looks at."""
    return Guard(
        name="kept_with_its_members",
        operation=pgtrigger.Delete,
        unless="NOT EXISTS (SELECT FROM pgbroker.job WHERE job.run_group_id = OLD.id)"
        " AND NOT EXISTS (SELECT FROM pgbroker.job_dependency AS edge"
        " WHERE edge.prerequisite_id = OLD.id AND edge.satisfied_at IS NULL)",
        sentence="pgbroker: a run group is kept as long as its jobs, and as long as others wait for it",
        hint="Delete its jobs first, once they are over.",
    )


def stays_the_edge_it_is() -> pgtrigger.Trigger:
    """Refuse to change what an edge joins, and to take back that it was satisfied."""
    columns = ("dependent_id", "prerequisite_id", "kind", "tenant_id", "on_failure")
    changed = " OR ".join(f"NEW.{column} <> OLD.{column}" for column in columns)
    return Guard(
        name="stays_the_edge_it_is",
        operation=pgtrigger.Update,
        condition=pgtrigger.Condition(
            f"OLD.satisfied_at IS NOT NULL AND NEW.satisfied_at IS DISTINCT FROM OLD.satisfied_at OR {changed}"
        ),
        sentence="pgbroker: an edge is satisfied once, and what it joins never changes",
        hint="Enqueue a new job instead.",
    )


def kept_with_its_dependent() -> pgtrigger.Trigger:
    """Refuse to delete an edge while its dependent is there: it would run before its time."""
    return Guard(
        name="kept_with_its_dependent",
        operation=pgtrigger.Delete,
        unless="NOT EXISTS (SELECT FROM pgbroker.job WHERE job.id = OLD.dependent_id)"
        " AND NOT EXISTS (SELECT FROM pgbroker.run_group WHERE run_group.id = OLD.dependent_id)",
        sentence="pgbroker: an edge is kept as long as its dependent",
        hint="Unblock the job: manage.py broker_jobs unblock ID.",
    )


def stays_the_schedule_it_is() -> pgtrigger.Trigger:
    """Refuse to change what makes a schedule the schedule it is, and to go back to an earlier revision of it."""
    columns = ("id", "tenant_id", "name", "created_at")
    changed = " OR ".join(f"NEW.{column} <> OLD.{column}" for column in columns)
    return Guard(
        name="stays_the_schedule_it_is",
        operation=pgtrigger.Update,
        condition=pgtrigger.Condition(f"NEW.revision < OLD.revision OR {changed}"),
        sentence="pgbroker: id, tenant, name and creation of a schedule never change, and its revision only rises",
        hint="Save another schedule, and disable this one.",
    )


def created_is_final() -> pgtrigger.Trigger:
    """Refuse to change whose occurrence it is, and one that was created: it would be created once more."""
    columns = ("schedule_id", "tenant_id", "scheduled_for")
    changed = " OR ".join(f"NEW.{column} <> OLD.{column}" for column in columns)
    told = (
        "kind",
        "state",
        "job_id",
        "run_group_id",
        "created_at",
        "lateness_seconds",
        "error_code",
        "error",
    )
    return Guard(
        name="created_is_final",
        # Whether it is over by now is no part of it.
        operation=pgtrigger.UpdateOf(*columns, *told),
        condition=pgtrigger.Condition(f"OLD.state = 'created' OR {changed}"),
        sentence="pgbroker: an occurrence that was created stays as it is",
        hint="Run the schedule now, or retry the job.",
    )


def deleted_by_its_verb() -> pgtrigger.Trigger:
    """Refuse to delete a queue in any other way than the one that has looked for what refers to it."""
    return Guard(
        name="deleted_by_its_verb",
        operation=pgtrigger.Delete,
        unless="pgbroker.deletes_queue_1(OLD.id)",
        sentence="pgbroker: jobs may refer to a queue by its number",
        hint="Delete it with: manage.py broker_queues delete NAME.",
    )


def refuse_delete(what: str) -> pgtrigger.Trigger:
    """Refuse to delete a row that jobs and history refer to by number."""
    return Guard(
        name="refuse_delete",
        operation=pgtrigger.Delete,
        sentence=f"pgbroker: a {what} is never deleted",
        hint="Jobs and history refer to it. Pause it instead.",
    )


def keeps_its_name(what: str) -> pgtrigger.Trigger:
    """Refuse to rename a row that code knows by its name, and to renumber one that jobs know by its number."""
    return Guard(
        name="keeps_its_name",
        operation=pgtrigger.Update,
        condition=pgtrigger.Condition("NEW.id <> OLD.id OR NEW.name <> OLD.name"),
        sentence=f"pgbroker: a {what} keeps its number and its name",
        hint="Jobs refer to the number, code to the name. Declare the new name beside it.",
    )


def epoch_only_rises() -> pgtrigger.Trigger:
    """Refuse to lower an epoch, and to delete the row that remembers it: an old one must never come back."""
    return Guard(
        name="epoch_only_rises",
        operation=pgtrigger.Update | pgtrigger.Delete,
        # A condition that names NEW is none for a delete.
        unless="TG_OP = 'UPDATE' AND NEW.duty = OLD.duty AND NEW.epoch >= OLD.epoch",
        sentence="pgbroker: the epoch of a duty only rises",
        hint="Let the lease run out: the next leader takes it by itself.",
    )


def only_added(what: str) -> pgtrigger.Trigger:
    """Refuse to change a row without which a claim does not see ready jobs."""
    return Guard(
        name="only_added",
        operation=pgtrigger.Update,
        sentence=f"pgbroker: a row of {what} is not changed",
        hint="A claim sees the ready jobs of the priorities that stand here. Leave the row; it costs nothing.",
    )


def kept_with_its_queue(what: str) -> pgtrigger.Trigger:
    """Refuse to delete a row without which a claim does not see ready jobs, as long as the queue is there."""
    return Guard(
        name="kept_with_its_queue",
        operation=pgtrigger.Delete,
        unless="NOT EXISTS (SELECT FROM pgbroker.queue WHERE queue.id = OLD.queue_id)",
        sentence=f"pgbroker: a row of {what} is kept as long as its queue",
        hint="A claim sees the ready jobs of the priorities that stand here. Leave the row; it costs nothing.",
    )


def kept_with_its_job(what: str) -> pgtrigger.Trigger:
    """Refuse to delete what a job needs to run, and to run again, while the job is there."""
    return Guard(
        name="kept_with_its_job",
        operation=pgtrigger.Delete,
        unless="NOT EXISTS (SELECT FROM pgbroker.job WHERE job.id = OLD.job_id)",
        sentence=f"pgbroker: a {what} is kept as long as its job",
        hint="Delete the job first, once it is over.",
    )


def written_once(what: str) -> pgtrigger.Trigger:
    """Refuse to change a row that is written once."""
    return Guard(
        name="written_once",
        operation=pgtrigger.Update,
        sentence=f"pgbroker: {what} is written once",
        hint="Enqueue a new job instead.",
    )


def append_only(what: str) -> pgtrigger.Trigger:
    """Refuse to change or delete history. Old history leaves by its partition."""
    return Guard(
        name="append_only",
        operation=pgtrigger.Update | pgtrigger.Delete,
        sentence=f"pgbroker: {what} is append-only",
        hint="History leaves by retention, a partition at a time.",
    )

"""broker_jobs: look at jobs, ask why one does not run, and retry, cancel, unblock or redrive them."""

import getpass
import json
from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser

from pgbroker import control, group_reports, reports
from pgbroker.bodies import Reference
from pgbroker.errors import JobNotFound
from pgbroker.group_reports import Preview, preview_cancel
from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.look import Job, look
from pgbroker.lifecycle.retry import retry_many
from pgbroker.lifecycle.unblock import unblock_many
from pgbroker.management import exits
from pgbroker.management.arguments import (
    Arguments,
    add_actions,
    add_database,
    add_format,
    add_tenant,
    checked,
    scope_of,
    teach,
)
from pgbroker.management.asking import ask, consent
from pgbroker.management.group_output import (
    facts_of_fates,
    facts_of_links,
    text_of_fates,
    text_of_links,
)
from pgbroker.management.output import Progress, as_json, harmless, pairs, table
from pgbroker.obstacles import find_obstacles
from pgbroker.states import RETRYABLE, TERMINAL, AttemptState, Status

LIMIT, LIMIT_MAX = 50, 1000
# A dry run counts no further.
COUNT_MAX = 1_000_000
# What a cancel would do to a job, in the words of what it does.
_WOULD_BE = {
    "cancelled": "would be cancelled",
    "requested": "runs, and would be asked to stop",
    "unchanged": "unchanged: it has ended",
    "job_not_found": "there is none: look at id and tenant: broker_jobs list",
}


class Command(BaseCommand):
    help = "Look at jobs, ask why one does not run, and retry, cancel, unblock or redrive them."

    def add_arguments(self, parser: CommandParser) -> None:
        teach(
            parser,
            """
broker_jobs list --status dead_letter --queue mail
broker_jobs list --group daily-import:2026-11-29 --status failed
broker_jobs list --tag customer:7 --format json --limit 200 --after 0199b0de-7a3c-7f11-9b7e-1f0a6c9d2e44
broker_jobs show 0199b0de-7a3c-7f11-9b7e-1f0a6c9d2e44
broker_jobs show 0199b0de-7a3c-7f11-9b7e-1f0a6c9d2e44 --format json
broker_jobs explain 0199b0de-7a3c-7f11-9b7e-1f0a6c9d2e44
broker_jobs explain 0199b0de-7a3c-7f11-9b7e-1f0a6c9d2e44 --tenant acme
broker_jobs retry 0199b0de-7a3c-7f11-9b7e-1f0a6c9d2e44
broker_jobs retry 0199b0de-7a3c-7f11-9b7e-1f0a6c9d2e44 0199b0df-02b5-7c60-8a51-5d3e9f7b1c20 --attempts 3
broker_jobs cancel 0199b0de-7a3c-7f11-9b7e-1f0a6c9d2e44 --dry-run
broker_jobs cancel 0199b0de-7a3c-7f11-9b7e-1f0a6c9d2e44
broker_jobs cancel 0199b0de-7a3c-7f11-9b7e-1f0a6c9d2e44 0199b0df-02b5-7c60-8a51-5d3e9f7b1c20 --reason "wrong month"
broker_jobs unblock 0199b0de-7a3c-7f11-9b7e-1f0a6c9d2e44
broker_jobs unblock 0199b0de-7a3c-7f11-9b7e-1f0a6c9d2e44 0199b0df-02b5-7c60-8a51-5d3e9f7b1c20
broker_jobs redrive --type shop.send_invoice --dry-run
broker_jobs redrive --queue mail --error-code SMTPServerDisconnected --limit 1000
broker_jobs redrive --status failed --tag customer:7 --attempts 3 --yes
""",
        )
        actions = add_actions(parser)

        one = actions.add_parser("list", help="List jobs, newest first, a page at a time.")
        self._add_filters(one, statuses=list(reports.STATUSES))
        one.add_argument("--group", metavar="NAME", help="Only of this run group, by its name or its id.")
        one.add_argument("--limit", metavar="N", default=LIMIT, help=f"Jobs to list, at most {LIMIT_MAX}.")
        one.add_argument("--after", metavar="ID", help="Go on after this job, the last of the page before.")

        one = actions.add_parser(
            "show", help="Show one job with its arguments, what it waits for, attempts and timeline."
        )
        one.add_argument("ids", metavar="ID", nargs=1, help="The job, by its id.")

        one = actions.add_parser("explain", help="Tell why one job does not run, and what to do about it.")
        one.add_argument("ids", metavar="ID", nargs=1, help="The job, by its id.")

        one = actions.add_parser("retry", help="Make failed, dead-lettered or cancelled jobs ready again.")
        one.add_argument("ids", metavar="ID", nargs="+", help="The jobs, by their ids.")
        one.add_argument("--attempts", metavar="N", default=1, help="Attempts to grant each.")

        one = actions.add_parser(
            "cancel", help="Cancel live jobs, and what waits for them; a running one is asked to stop."
        )
        one.add_argument("ids", metavar="ID", nargs="+", help="The jobs, by their ids.")
        one.add_argument("--reason", metavar="TEXT", default="", help="Kept with the jobs.")
        one.add_argument("--dry-run", action="store_true", help="Only tell what would go along.")

        one = actions.add_parser("unblock", help="Let blocked jobs run without what blocks them.")
        one.add_argument("ids", metavar="ID", nargs="+", help="The jobs, by their ids.")

        one = actions.add_parser("redrive", help="Retry all ended jobs that match, oldest end first.")
        self._add_filters(one, statuses=sorted(RETRYABLE), default=Status.DEAD_LETTER)
        one.add_argument("--error-code", metavar="CODE", help="Only where the last attempt ended with it.")
        one.add_argument("--limit", metavar="N", help="At most so many.")
        one.add_argument("--attempts", metavar="N", help="Attempts to grant each (default: as declared).")
        one.add_argument("--dry-run", action="store_true", help="Only tell how many would be retried.")
        one.add_argument("--yes", action="store_true", help="Do not ask.")

        for each in actions.choices.values():
            add_tenant(each)
            add_database(each)
            add_format(each)

    def _add_filters(self, parser: Any, *, statuses: list[Status], default: Status | None = None) -> None:
        parser.add_argument("--queue", metavar="NAME", help="Only of this queue.")
        parser.add_argument("--type", metavar="NAME", help="Only of this job type.")
        parser.add_argument("--tag", metavar="TAG", help="Only with this tag.")
        parser.add_argument(
            "--status",
            choices=[status.label for status in statuses],
            default=default.label if default else None,
            help="Only with this status.",
        )

    def handle(self, *args: Any, action: str, **given: Any) -> None:
        with checked(given) as arguments:
            alias, tenant = arguments.database(), arguments.tenant()
            asked = getattr(self, f"read_{action}")(arguments)
        with exits.errors_of_a_command(alias), scope_of(tenant):
            getattr(self, f"do_{action}")(asked, given["format"] == "json", alias)

    # -------------------------------------------------------------- list, show

    def read_list(self, arguments: Arguments) -> dict[str, Any]:
        after = arguments.job_id("after")
        return {
            **self._filters(arguments),
            "group": arguments.text("group"),
            "limit": arguments.whole("limit", 1, LIMIT_MAX, LIMIT),
            "after": after,
        }

    def _filters(self, arguments: Arguments) -> dict[str, Any]:
        status = arguments.given["status"]
        return {
            "queue": arguments.queue(),
            "job_type": arguments.text("type"),
            "tag": arguments.tag(),
            "status": Status[status.upper()] if status else None,
        }

    def do_list(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        queue_id, type_id = control.resolve(asked["queue"], asked["job_type"], using=alias)
        name = asked["group"]
        group = group_reports.find_group(name, using=alias) if name is not None else None
        jobs = reports.list_jobs(
            group_id=group.id if group else None,
            queue_id=queue_id,
            type_id=type_id,
            status=asked["status"],
            tag=asked["tag"],
            after=asked["after"],
            limit=asked["limit"] + 1,
            using=alias,
        )
        jobs, more = jobs[: asked["limit"]], len(jobs) > asked["limit"]
        if json_wanted:
            listed = [{**each._asdict(), "status": Status(each.status).label} for each in jobs]
            self.stdout.write(as_json({"jobs": listed, "next": jobs[-1].id if more else None}))
            return
        headings = ("id", "type", "queue", "tenant", "group", "status", "attempts", "created", "error")
        self.stdout.write(
            table(
                headings,
                (
                    (
                        each.id,
                        each.job_type,
                        each.queue,
                        each.tenant_id,
                        each.run_group,
                        Status(each.status).label,
                        f"{each.attempt_count}/{each.max_attempts}",
                        each.created_at,
                        each.error_code,
                    )
                    for each in jobs
                ),
            )
        )
        if more:
            self.stdout.write(f"\nMore: add --after {jobs[-1].id}")

    def read_show(self, arguments: Arguments) -> dict[str, Any]:
        return {"ids": arguments.ids()}

    def do_show(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        (job_id,) = asked["ids"]
        story = reports.read_story(job_id, using=alias)
        if story is None:
            raise JobNotFound(job_id)
        job, told = story.job, reports.moments(story)
        links = group_reports.read_links(job_id, using=alias)
        if json_wanted:
            facts = {**job._asdict(), "status": job.status.label, **facts_of_links(links)}
            facts["executions"] = [
                {**each._asdict(), "state": AttemptState(each.state).label} for each in story.attempts
            ]
            facts["timeline"] = [{"at": each.at, "what": each.what, "detail": each.detail} for each in told]
            self.stdout.write(as_json(facts))
            return
        shown = (
            ("id", job.id),
            ("type", f"{job.job_type} (version {job.type_version})"),
            ("queue", job.queue),
            ("tenant", job.tenant_id),
            ("status", job.status.label),
            ("priority", job.priority),
            ("attempts", f"{job.attempt_count} of {job.max_attempts}, {job.crash_count} crashed"),
            ("created", job.created_at),
            ("due", job.available_at),
            ("deadline", job.deadline_at),
            ("finished", job.finished_at),
            ("worker", reports.who_runs(job)),
            ("idempotency key", job.idempotency_key),
            ("correlation id", job.correlation_id),
            ("tags", ", ".join(job.tags or ())),
            ("run group", " as ".join(filter(None, (job.run_group, job.name)))),
            ("reason", " ".join(filter(None, (job.reason_code, job.reason)))),
            ("cause", job.cause_id),
            ("arguments", short_json(reports.arguments_of(job.stored_call))),
            ("result", short_json(job.stored_result) if job.status == Status.COMPLETED else None),
        )
        self.stdout.write(pairs(shown))
        self.stdout.write(text_of_links(links), ending="")
        self.stdout.write("\ntimeline")
        for each in told:
            line = f"  {each.at.isoformat(sep=' ', timespec='milliseconds')}  {each.what}"
            self.stdout.write(harmless(f"{line}  {each.detail}" if each.detail else line))
        for attempt in story.attempts:
            text = attempt.traceback or attempt.error
            if text:
                heading = f"\nattempt {attempt.attempt_no}: {attempt.error_code}"
                self.stdout.write(harmless(f"{heading}\n{text.rstrip()}"))
            if attempt.log_tail:
                self.stdout.write(
                    f"\nattempt {attempt.attempt_no}: log\n{harmless(attempt.log_tail).rstrip()}"
                )

    read_explain = read_show

    def do_explain(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        (job_id,) = asked["ids"]
        told = control.explain(job_id, using=alias)
        if json_wanted:
            self.stdout.write(as_json({"id": job_id, **asdict(told)}))
        else:
            self.stdout.write(harmless(f"{told.code}\n{told.sentence}\nWhat to do: {told.cure}"))

    # -------------------------------------------------------------- retry, cancel, unblock

    def read_retry(self, arguments: Arguments) -> dict[str, Any]:
        return {"ids": arguments.ids(), "attempts": arguments.whole("attempts", 1, 10_000, 1)}

    def do_retry(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        answers = retry_many(asked["ids"], attempts=asked["attempts"], using=alias)
        control.wake_queues(answers, using=alias)
        why = {
            "unchanged": "only failed, dead_letter and cancelled jobs are retried",
            "key_held_by_newer_job": "a newer job holds its idempotency key: {holder_id}",
        }
        barred = {job_id: str(each) for job_id, each in find_obstacles(answers, using=alias).items()}
        self._tell_outcomes(
            asked["ids"], answers, why, done={"retried"}, json_wanted=json_wanted, said=barred
        )

    def read_cancel(self, arguments: Arguments) -> dict[str, Any]:
        return {
            "ids": arguments.ids(),
            "reason": arguments.remark(),
            "dry_run": arguments.given["dry_run"],
        }

    def do_cancel(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        preview = preview_cancel(job_ids=asked["ids"], using=alias)
        if asked["dry_run"]:
            self._tell_what_would_be(asked["ids"], preview, json_wanted, alias)
            return
        answers = cancel_many(asked["ids"], reason=asked["reason"], by=operator(), using=alias)
        why = {"unchanged": "it has ended", "requested": "it runs, and is asked to stop"}
        if preview.fates and not json_wanted:
            # Once they have ended: those that run end later.
            self.stderr.write(f"What waits for them:\n{text_of_fates(preview)}\n")
        self._tell_outcomes(
            asked["ids"], answers, why, done={"cancelled", "requested"}, json_wanted=json_wanted
        )

    def _tell_what_would_be(self, ids: list[UUID], preview: Preview, json_wanted: bool, alias: str) -> None:
        found = {job_id: look(job_id, using=alias) for job_id in ids}
        would = {job_id: _would_be(job) for job_id, job in found.items()}
        if json_wanted:
            jobs = [{"id": job_id, "would_be": word} for job_id, word in would.items()]
            facts = {"totals": preview.totals, "exact": preview.is_exact, "along": facts_of_fates(preview)}
            self.stdout.write(as_json({"jobs": jobs, **facts}))
        else:
            rows = (
                (job_id, _WOULD_BE[word], job.status.label if (job := found[job_id]) else None)
                for job_id, word in would.items()
            )
            self.stdout.write(f"{table(('id', 'outcome', 'now'), rows, cut=False)}\n{text_of_fates(preview)}")
        if left := [word for word in would.values() if word in ("unchanged", "job_not_found")]:
            raise CommandError(
                f"{len(left)} of {len(ids)} jobs would be left as they are.", returncode=exits.ERROR
            )

    read_unblock = read_show

    def do_unblock(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        answers = unblock_many(asked["ids"], using=alias)
        why = {"unchanged": "only blocked jobs are unblocked"}
        self._tell_outcomes(
            asked["ids"], answers, why, done={"unblocked"}, json_wanted=json_wanted, status="status"
        )

    def _tell_outcomes(
        self,
        ids: list[Any],
        answers: list[Any],
        why: dict[str, str],
        *,
        done: set[str],
        json_wanted: bool,
        status: str = "was",
        said: Mapping[Any, str] = MappingProxyType({}),
    ) -> None:
        """Tell what became of each job; ends with 1 when one of them was not done."""
        by_id = {each.job_id: each for each in answers}
        told = []
        for job_id in ids:
            each = by_id.get(job_id)
            if each is None:
                told.append(
                    {
                        "id": job_id,
                        "outcome": "job_not_found",
                        "status": None,
                        "why": "look at id and tenant: broker_jobs list",
                    }
                )
            else:
                reason = said.get(job_id) or why.get(each.outcome, "").format(**each._asdict())
                told.append(
                    {
                        "id": job_id,
                        "outcome": each.outcome,
                        "status": Status(each.status).label,
                        "why": reason,
                    }
                )
        if json_wanted:
            self.stdout.write(as_json({"jobs": told}))
        else:
            headings = ("id", "outcome", status, "why")
            # Not cut: at the end of why stands what to type next.
            self.stdout.write(table(headings, (tuple(each.values()) for each in told), cut=False))
        left = [each for each in told if each["outcome"] not in done]
        if left:
            raise CommandError(f"{len(left)} of {len(ids)} jobs left as they are.", returncode=exits.ERROR)

    # -------------------------------------------------------------- redrive

    def read_redrive(self, arguments: Arguments) -> dict[str, Any]:
        return {
            **self._filters(arguments),
            "error_code": arguments.text("error_code"),
            "limit": arguments.whole("limit", 1, 2**31 - 1),
            "attempts": arguments.whole("attempts", 1, 10_000),
            **consent(arguments),
        }

    def do_redrive(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        control.resolve(asked["queue"], asked["job_type"], using=alias)
        narrowed = {name: asked[name] for name in ("status", "queue", "job_type", "tag", "error_code")}
        most = min(asked["limit"] or COUNT_MAX, COUNT_MAX)
        count = reports.count_ended(**narrowed, limit=most, using=alias)
        many = f"{count}+" if count == COUNT_MAX else str(count)
        if asked["dry_run"]:
            answer = {"matching": count, "exact": count < COUNT_MAX, "retried": 0, "refused": 0}
            self.stdout.write(as_json(answer) if json_wanted else f"{_jobs(many)} would be retried.")
            return
        if count and not asked["yes"]:
            ask(f"Retry {many} {asked['status'].label} jobs?")
        retried = refused = 0
        progress = Progress(self.stderr, total=count, what="jobs")
        pages = control.redrive_pages(
            **narrowed, attempts=asked["attempts"], limit=asked["limit"], using=alias
        )
        for page in pages:
            done = len([each for each in page if each.outcome == "retried"])
            retried, refused = retried + done, refused + len(page) - done
            progress.tell(retried + refused)
        progress.end()
        if json_wanted:
            self.stdout.write(as_json({"matching": count, "retried": retried, "refused": refused}))
        else:
            left = f" {refused} left alone: a newer job holds their key, or they changed." if refused else ""
            self.stdout.write(f"{_jobs(retried)} ready again.{left}")


def short_json(value: Any) -> str:
    """Write a value in one line; of a body, which may be huge, only where it lies."""
    if isinstance(value, Reference):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str)


def operator() -> str:
    """Name who runs the command; empty where the system does not know."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""


def _jobs(count: int | str) -> str:
    return "1 job" if str(count) == "1" else f"{count} jobs"


def _would_be(job: Job | None) -> str:
    """Tell what a cancel would do to a job, None where there is none."""
    if job is None:
        return "job_not_found"
    if job.status in TERMINAL:
        return "unchanged"
    return "requested" if job.status == Status.RUNNING else "cancelled"

"""broker_groups: look at run groups, seal them, retry what failed in them, cancel them."""

from collections import Counter
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser

from pgbroker import group_control, group_reports
from pgbroker.errors import GroupNotFound
from pgbroker.group_reports import GroupLine
from pgbroker.lifecycle.look import look
from pgbroker.lifecycle.retry import Retried
from pgbroker.lifecycle.seal_group import seal_group
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
from pgbroker.management.commands.broker_jobs import operator
from pgbroker.management.group_output import (
    facts_of,
    facts_of_links,
    facts_of_preview,
    jobs,
    many,
    text_of_callback,
    text_of_links,
    text_of_preview,
)
from pgbroker.management.output import Progress, as_json, harmless, pairs, table
from pgbroker.obstacles import find_obstacles, obstacle_at
from pgbroker.states import GroupState, Status

LIMIT, LIMIT_MAX = 50, 1000
# What is in the way of members, each told once.
WHY_MAX = 20


class Command(BaseCommand):
    help = "Look at run groups, seal them, retry what failed in them, cancel them."

    def add_arguments(self, parser: CommandParser) -> None:
        teach(
            parser,
            """
broker_groups list --state failed
broker_groups list --tenant acme --limit 200
broker_groups show daily-import:2026-11-29
broker_groups show daily-import:2026-11-29 --limit 1000 --format json
broker_groups seal daily-import:2026-11-29
broker_groups seal 0199b0de-7a3c-7f11-9b7e-1f0a6c9d2e44
broker_groups retry daily-import:2026-11-29
broker_groups retry daily-import:2026-11-29 --cancelled --attempts 3
broker_groups cancel daily-import:2026-11-29 --dry-run
broker_groups cancel daily-import:2026-11-29 --reason "wrong file" --yes
""",
        )
        actions = add_actions(parser)

        one = actions.add_parser("list", help="List run groups with their progress, newest first.")
        one.add_argument("--state", choices=[state.label for state in GroupState], help="Only in this state.")
        one.add_argument("--limit", metavar="N", default=LIMIT, help=f"Groups to list, at most {LIMIT_MAX}.")
        one.add_argument("--after", metavar="ID", help="Go on after this group, the last of the page before.")

        one = actions.add_parser(
            "show", help="Show one group: progress, what it waits for, what waits for it, members."
        )
        self._add_name(one)
        one.add_argument(
            "--limit",
            metavar="N",
            default=LIMIT,
            help=f"Members to list, those that went wrong first, at most {LIMIT_MAX}.",
        )

        one = actions.add_parser("seal", help="Seal a group: nothing is added any more, so that it can end.")
        self._add_name(one)

        one = actions.add_parser(
            "retry", help="Retry the members that failed; what was cancelled because of them comes back."
        )
        self._add_name(one)
        one.add_argument(
            "--cancelled",
            action="store_true",
            help="Those too that were cancelled by hand; of a cancelled group they always are.",
        )
        one.add_argument("--attempts", metavar="N", default=1, help="Attempts to grant each.")
        one.add_argument("--limit", metavar="N", help="At most so many members.")

        one = actions.add_parser("cancel", help="Cancel the live members of a group, and what waits for it.")
        self._add_name(one)
        one.add_argument("--reason", metavar="TEXT", default="", help="Kept with the jobs.")
        one.add_argument("--dry-run", action="store_true", help="Only tell what would go along.")
        one.add_argument("--yes", action="store_true", help="Do not ask.")

        for each in actions.choices.values():
            add_tenant(each)
            add_database(each)
            add_format(each)

    def _add_name(self, parser: Any) -> None:
        parser.add_argument("name", metavar="NAME", help="The group, by its name or its id.")

    def handle(self, *args: Any, action: str, **given: Any) -> None:
        with checked(given) as arguments:
            alias, tenant = arguments.database(), arguments.tenant()
            asked = getattr(self, f"read_{action}")(arguments)
        with exits.errors_of_a_command(alias), scope_of(tenant):
            if "name" in given:
                asked["group"] = group_reports.find_group(given["name"], using=alias)
            getattr(self, f"do_{action}")(asked, given["format"] == "json", alias)

    # -------------------------------------------------------------- list, show

    def read_list(self, arguments: Arguments) -> dict[str, Any]:
        state = arguments.given["state"]
        return {
            "state": GroupState[state.upper()] if state else None,
            "after": arguments.job_id("after"),
            "limit": arguments.whole("limit", 1, LIMIT_MAX, LIMIT),
        }

    def do_list(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        limit = asked.pop("limit")
        groups = group_reports.list_groups(**asked, limit=limit + 1, using=alias)
        groups, more = groups[:limit], len(groups) > limit
        progress = group_reports.count_members([each.id for each in groups], using=alias)
        if json_wanted:
            listed = [facts_of(each, progress[each.id]) for each in groups]
            self.stdout.write(as_json({"groups": listed, "next": groups[-1].id if more else None}))
            return
        self.stdout.write(
            table(
                ("id", "name", "tenant", "state", "progress", "created", "finished"),
                (
                    (
                        each.id,
                        each.name,
                        each.tenant_id,
                        each.label,
                        progress[each.id].words,
                        each.created_at,
                        each.finished_at,
                    )
                    for each in groups
                ),
            )
        )
        if more:
            self.stdout.write(f"\nMore: add --after {groups[-1].id}")

    def read_show(self, arguments: Arguments) -> dict[str, Any]:
        return {"limit": arguments.whole("limit", 1, LIMIT_MAX, LIMIT)}

    def do_show(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        group: GroupLine = asked["group"]
        progress = group_reports.count_members([group.id], using=alias)[group.id]
        links = group_reports.read_links(group.id, using=alias)
        members = group_reports.list_members(group.id, limit=asked["limit"], using=alias)
        if json_wanted:
            facts = facts_of(group, progress)
            facts |= facts_of_links(links)
            facts["jobs"] = [{**each._asdict(), "status": Status(each.status).label} for each in members]
            self.stdout.write(as_json(facts))
            return
        shown = (
            ("id", group.id),
            ("name", group.name),
            ("tenant", group.tenant_id),
            ("state", group.label),
            ("policy", group.policy),
            ("progress", progress.words),
            *((status.label, many(count)) for status, count in sorted(progress.counts.items())),
            ("created", group.created_at),
            ("sealed", group.sealed_at),
            ("cancel requested", group.cancel_requested_at),
            ("finished", group.finished_at),
            ("on completed", text_of_callback(group.on_completed, group.completed_job_id)),
            ("on failed", text_of_callback(group.on_failed, group.failed_job_id)),
            ("callback error", group.callback_error),
        )
        self.stdout.write(pairs(shown))
        self.stdout.write(text_of_links(links), ending="")
        if members:
            self.stdout.write("\nmembers")
            self.stdout.write(
                table(
                    ("id", "name", "type", "status", "attempts", "error"),
                    (
                        (
                            each.id,
                            each.name,
                            each.job_type,
                            Status(each.status).label,
                            f"{each.attempt_count}/{each.max_attempts}",
                            each.error_code,
                        )
                        for each in members
                    ),
                )
            )
            if progress.members > len(members):
                self.stdout.write(
                    f"\n{many(progress.members - len(members))} more: --limit shows up to {LIMIT_MAX}"
                )

    # -------------------------------------------------------------- seal, retry

    def read_seal(self, arguments: Arguments) -> dict[str, Any]:
        return {}

    def do_seal(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        group: GroupLine = asked["group"]
        state = seal_group(group.id, using=alias)
        if state is None:
            raise GroupNotFound(f"there is no run group {group.name!r}")
        sealed, name = group.state == GroupState.OPEN, harmless(group.name)
        now = state.label
        if json_wanted:
            self.stdout.write(
                as_json({"id": group.id, "outcome": "sealed" if sealed else "unchanged", "state": now})
            )
        else:
            self.stdout.write(
                f"Sealed: {name} is {now}." if sealed else f"It was sealed before: {name} is {now}."
            )

    def read_retry(self, arguments: Arguments) -> dict[str, Any]:
        return {
            "cancelled": arguments.given["cancelled"],
            "attempts": arguments.whole("attempts", 1, 10_000, 1),
            "limit": arguments.whole("limit", 1, 2**31 - 1),
        }

    def do_retry(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        group: GroupLine = asked.pop("group")
        asked["cancelled"] = asked["cancelled"] or group.state == GroupState.CANCELLED
        progress = group_reports.count_members([group.id], using=alias)[group.id]
        answers: dict[UUID, Retried] = {}
        line = Progress(self.stderr, total=progress.bad, what="jobs")
        for page in group_control.retry_failed_pages(group.id, **asked, using=alias):
            answers |= {each.job_id: each for each in page}
            line.tell(len(answers))
        line.end()
        counts = Counter(each.outcome for each in answers.values())
        retried = counts.pop("retried", 0)
        left = sum(counts.values())
        why = list(dict.fromkeys(map(str, find_obstacles(answers.values(), using=alias).values())))
        outside = self._outside(group, answers, alias) if asked["limit"] is None else []
        why += outside
        if json_wanted:
            report = {"id": group.id, "retried": retried, "refused": dict(counts), "why": why}
            self.stdout.write(as_json(report))
        else:
            refused = f" {left} left alone: {', '.join(sorted(counts))}." if left else ""
            self.stdout.write(f"{jobs(retried)} of {harmless(group.name)} live again.{refused}")
            for each in why[:WHY_MAX]:
                self.stdout.write(harmless(f"In the way: {each}"))
        if not answers and group.state == GroupState.FAILED:
            # No member is in its own way.
            bad = group_reports.find_bad_prerequisite(group.id, using=alias)
            if bad is not None:
                raise CommandError(
                    f"{harmless(group.name)} is failed: {harmless(str(obstacle_at(bad, using=alias)))}",
                    returncode=exits.ERROR,
                )
        if left:
            raise CommandError(f"{left} of {len(answers)} jobs left as they are.", returncode=exits.ERROR)
        if outside:
            raise CommandError("Members wait for what failed outside of the group.", returncode=exits.ERROR)

    @staticmethod
    def _outside(group: GroupLine, answers: dict[UUID, Retried], alias: str) -> list[str]:
        """Say what keeps members from coming back that is none of those retried: it has to be retried where it is."""
        causes: dict[UUID, None] = {}
        for each in group_reports.list_members(group.id, limit=LIMIT, using=alias):
            if each.id in answers or each.status not in (Status.BLOCKED, Status.CANCELLED):
                continue
            job = look(each.id, using=alias)
            if job is None or job.reason_code != "prerequisite_failed" or job.cause_id is None:
                continue
            if job.cause_id not in answers:
                causes[job.cause_id] = None
        return [str(obstacle_at(each, using=alias)) for each in list(causes)[:WHY_MAX]]

    # -------------------------------------------------------------- cancel

    def read_cancel(self, arguments: Arguments) -> dict[str, Any]:
        return {"reason": arguments.remark(), **consent(arguments)}

    def do_cancel(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        group: GroupLine = asked["group"]
        name = harmless(group.name)
        progress = group_reports.count_members([group.id], using=alias)[group.id]
        if asked["dry_run"] or not asked["yes"]:
            preview = group_reports.preview_cancel(group_ids=[group.id], using=alias)
            if asked["dry_run"] and json_wanted:
                self.stdout.write(as_json(facts_of_preview(group, progress, preview)))
                return
            stream = self.stdout if asked["dry_run"] else self.stderr
            stream.write(text_of_preview(group, progress, preview))
            if asked["dry_run"]:
                return
            ask(f"Cancel {name}?")
        cancelled = requested = 0
        state = GroupState(group.state)
        line = Progress(self.stderr, total=progress.live, what="jobs")
        for page in group_control.cancel_group_pages(
            group.id, reason=asked["reason"], by=operator(), using=alias
        ):
            cancelled, requested = cancelled + page.cancelled, requested + page.requested
            state = GroupState(page.state)
            line.tell(cancelled + requested)
        line.end()
        if json_wanted:
            answer = {"id": group.id, "state": state.label, "cancelled": cancelled, "requested": requested}
            self.stdout.write(as_json(answer))
        else:
            running = f", {jobs(requested)} running and asked to stop" if requested else ""
            self.stdout.write(f"{jobs(cancelled)} cancelled{running}. {name} is {state.label}.")

"""broker_schedules: look at schedules and ahead, run, pause and backfill them, and store what the code declares."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from pgbroker.declared_rows import write_names
from pgbroker.errors import InvalidOption
from pgbroker.management import exits
from pgbroker.management.arguments import (
    Arguments,
    add_actions,
    add_database,
    add_format,
    checked,
    scope_of,
    teach,
)
from pgbroker.management.asking import ask, consent
from pgbroker.management.commands.broker_jobs import operator
from pgbroker.management.output import Progress, as_json, harmless, pairs, table
from pgbroker.management.schedule_drift import (
    drift_for_people,
    drift_for_programs,
    other_readings,
    refuse_held,
    refuse_invalid,
    rowless_for_programs,
    why,
)
from pgbroker.management.schedule_lines import (
    LISTED,
    LOOKED_BACK,
    coming,
    coming_or_why,
    facts_of,
    fires,
    pairs_of,
    row_of,
    row_of_run,
    table_of_ticks,
    ticks_for_programs,
    warnings_of,
    when_it_fires,
)
from pgbroker.management.schedule_ranges import as_typed, of_range, range_of
from pgbroker.schedules import operate
from pgbroker.schedules.backfill import BACKFILL_PAGE
from pgbroker.schedules.look import MOST_TICKS
from pgbroker.schedules.remove import delete, refuse_declared
from pgbroker.schedules.shown import local_time, utc_time
from pgbroker.schedules.survey import rowless_of, survey
from pgbroker.schedules.sync import BY_HAND, Drift, drift_of, held_of, sync

LIMIT, LIMIT_MAX = 200, 1000
TICKS, HISTORY, HISTORY_MAX = 5, 10, 1000
# Ticks that a dry run writes out; the count is of all.
PREVIEWED = 20


class Command(BaseCommand):
    help = (
        "Look at schedules and ahead to their next ticks, run, pause and backfill them, and store what the code "
        "declares. Times are shown on the clock of the schedule's zone and in UTC."
    )
    tenant: str | None = None

    def add_arguments(self, parser: CommandParser) -> None:
        teach(
            parser,
            """
broker_schedules list
broker_schedules show nightly
broker_schedules next nightly -n 10                the next ticks, with what a change of the clock does
broker_schedules run-now nightly                   an occurrence at once; ticks go on as they would
broker_schedules pause nightly --for 2h --reason "month end"
broker_schedules resume nightly
broker_schedules backfill nightly --from 2026-03-01 --to 2026-03-07 --dry-run
broker_schedules delete old-report                 asks first; its jobs go on; not what the code declares
broker_schedules sync --dry-run                    where code and rows differ
""",
        )
        actions = add_actions(parser)
        one = actions.add_parser(
            "list", help="List schedules by name, with what comes next and where they drift."
        )
        one.add_argument(
            "--limit", metavar="N", default=LIMIT, help=f"Schedules to list, at most {LIMIT_MAX}."
        )
        one.add_argument(
            "--after", metavar="ID", help="Go on after this schedule, the last of the page before."
        )

        one = self._add(
            actions, "show", "Show one schedule: what it says, what comes, what became of its ticks."
        )
        one.add_argument(
            "--history", metavar="N", default=HISTORY, help=f"Ticks to look back, at most {HISTORY_MAX}."
        )
        one = self._add(
            actions, "next", "Show the next ticks; those that it would have, of one that is stopped."
        )
        one.add_argument("-n", "--count", metavar="N", default=TICKS, help=f"Ticks, at most {MOST_TICKS}.")
        self._add(actions, "run-now", "Create an occurrence at once, also of a paused or disabled schedule.")
        one = self._add(actions, "pause", "Create nothing more; what comes meanwhile is not made up for.")
        one.add_argument("--for", dest="duration", metavar="TIME", help="90, 10m, 2h or 1d; until resumed.")
        one.add_argument("--reason", metavar="TEXT", default="", help="Shown wherever the pause is.")
        self._add(actions, "resume", "End a pause: the next tick is the first one from now on.")
        one = self._add(actions, "disable", "Fire no more until it is enabled; what runs goes on.")
        one.add_argument("--reason", metavar="TEXT", default="", help="Shown with the schedule.")
        self._add(actions, "enable", "Let a disabled schedule fire again, from now on.")
        one = self._add(actions, "delete", "Delete what no code declares. What it has created goes on.")
        one.add_argument("--dry-run", action="store_true", help="Only tell what would be deleted.")
        one.add_argument("--yes", action="store_true", help="Do not ask.")

        one = self._add(
            actions, "backfill", "Create the occurrences of a range of the past that were not created."
        )
        one.add_argument(
            "--from",
            dest="start",
            metavar="TIME",
            required=True,
            help="The first tick or earlier: a date, or a time on the clock of the schedule's zone, or with +02:00.",
        )
        one.add_argument(
            "--to",
            dest="end",
            metavar="TIME",
            help="The last tick or later, a date with all of it. Default: now.",
        )
        one.add_argument("--dry-run", action="store_true", help="Only tell what would be created.")

        one = actions.add_parser(
            "sync", help="Store the schedules that the code declares, as a scheduler's start does."
        )
        one.add_argument("--dry-run", action="store_true", help="Only tell where code and rows differ.")

        for name, each in actions.choices.items():
            if name != "sync":
                each.add_argument(
                    "--tenant", metavar="ID", help="Only schedules of this tenant (default: of all tenants)."
                )
            add_database(each)
            add_format(each)

    def _add(self, actions: Any, name: str, what: str) -> Any:
        one = actions.add_parser(name, help=what)
        one.add_argument("name", metavar="NAME", help="The schedule, by its name or its id.")
        return one

    def handle(self, *args: Any, action: str, **given: Any) -> None:
        verb = action.replace("-", "_")
        with checked(given) as arguments:
            alias, self.tenant = arguments.database(), arguments.tenant()
            asked = getattr(self, f"read_{verb}", self.read_name)(arguments)
        with exits.errors_of_a_command(alias), scope_of(self.tenant):
            getattr(self, f"do_{verb}")(asked, given["format"] == "json", alias)

    def read_name(self, arguments: Arguments) -> dict[str, Any]:
        """Read the schedule, and what an action has besides."""
        read = {
            name: arguments.given[name]
            for name in ("name", "start", "end", "dry_run")
            if name in arguments.given
        }
        return read | ({"reason": arguments.remark()} if "reason" in arguments.given else {})

    # -------------------------------------------------------------- list, show, next

    def read_list(self, arguments: Arguments) -> dict[str, Any]:
        after = arguments.schedule_id("after")
        return {"limit": arguments.whole("limit", 1, LIMIT_MAX, LIMIT), "after": after}

    def do_list(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        after = operate.FIRST
        if asked["after"] is not None:
            last = operate.get_schedule(asked["after"], using=alias)
            after = (last.name, last.id)
        lines = operate.list_schedules(after=after, limit=asked["limit"] + 1, using=alias)
        lines, more = lines[: asked["limit"]], len(lines) > asked["limit"]
        drifted = drift_of(lines, using=alias)
        # Of those without a row only the first page tells.
        rowless = [] if asked["after"] else rowless_of(self._drift(alias), using=alias)
        if json_wanted:
            listed = [facts_of(each, drifted.get(each.id)) for each in lines]
            following = lines[-1].id if more else None
            self.stdout.write(
                as_json({"schedules": listed, **rowless_for_programs(rowless), "next": following})
            )
            return
        self.stdout.write(table(LISTED, (row_of(each, drifted.get(each.id)) for each in lines)))
        if more:
            self.stdout.write(f"\nMore: add --after {lines[-1].id}")
        for each in [*(each for each in drifted.values() if each.detail), *rowless]:
            self.stdout.write(why(each))
        for told in warnings_of(lines):
            self.stdout.write(told)

    def _drift(self, alias: str) -> list[Drift]:
        """List where code and rows differ, of the tenants that this command looks at."""
        found = survey(using=alias)
        return [each for each in found if self.tenant in (None, each.tenant)]

    def read_show(self, arguments: Arguments) -> dict[str, Any]:
        return {
            **self.read_name(arguments),
            "history": arguments.whole("history", 0, HISTORY_MAX, HISTORY),
        }

    def do_show(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        line = operate.get_schedule(asked["name"], using=alias)
        drifted = drift_of([line], using=alias).get(line.id)
        ticks, unreadable = coming_or_why(line, TICKS, alias)
        history = operate.history(line.id, limit=asked["history"], using=alias) if asked["history"] else []
        if json_wanted:
            shown = facts_of(line, drifted) | {
                "template": line.template,
                "next_ticks": ticks_for_programs(ticks),
                "unreadable": unreadable,
                "history": [each._asdict() for each in history],
            }
            self.stdout.write(as_json(shown))
            return
        self.stdout.write(pairs(pairs_of(line, drifted)))
        self.stdout.write(f"\nnext ticks{when_it_fires(line)}")
        self.stdout.write(harmless(unreadable, keep="") if unreadable else table_of_ticks(ticks))
        if history:
            self.stdout.write("\nwhat became of ticks, the latest first")
            self.stdout.write(table(LOOKED_BACK, (row_of_run(each, line.time_zone) for each in history)))

    def read_next(self, arguments: Arguments) -> dict[str, Any]:
        count = arguments.whole("count", 1, MOST_TICKS, TICKS)
        return {**self.read_name(arguments), "count": count}

    def do_next(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        line = operate.get_schedule(asked["name"], using=alias)
        ticks = coming(line, asked["count"], alias)
        if json_wanted:
            facts = {
                "name": line.name,
                "time_zone": line.time_zone,
                "state": line.state,
                "ticks": ticks_for_programs(ticks),
            }
            self.stdout.write(as_json(facts))
            return
        self.stdout.write(
            harmless(f"{line.name}: {line.expression} in {line.time_zone}{when_it_fires(line)}", keep="")
        )
        self.stdout.write(table_of_ticks(ticks))

    # -------------------------------------------------------------- run now, pause, resume, enable, disable

    def do_run_now(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        made = operate.run_now(asked["name"], using=alias)
        facts = {
            name: getattr(made, name)
            for name in ("scheduled_for", "state", "job_id", "run_group_id", "error_code", "error")
        }
        if json_wanted:
            self.stdout.write(as_json(facts))
        elif made.state == "created":
            what = f"run group {made.run_group_id}" if made.run_group_id else f"job {made.job_id}"
            self.stdout.write(f"Created {what} for {utc_time(made.scheduled_for)} UTC.")
        if made.state != "created":
            raise CommandError(harmless(f"[{made.error_code}] {made.error}"), returncode=exits.ERROR)

    def read_pause(self, arguments: Arguments) -> dict[str, Any]:
        return {**self.read_name(arguments), "duration": arguments.duration("duration")}

    def do_pause(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        duration: timedelta | None = asked["duration"]
        line = operate.pause(
            asked["name"], until=duration, by=operator(), reason=asked["reason"], using=alias
        )
        until = line.paused_until
        ends = f"until {local_time(until, line.time_zone)}" if until else "until it is resumed"
        self._tell(line, json_wanted, f"Paused {line.name!r}, {ends}. What runs goes on.", alias)

    def do_resume(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        was_paused = operate.get_schedule(asked["name"], using=alias).paused_at is not None
        line = operate.resume(asked["name"], using=alias)
        if not was_paused:
            raise CommandError(f"{line.name!r} was not paused.", returncode=exits.ERROR)
        self._tell(line, json_wanted, f"Resumed {line.name!r}{fires(line)}", alias)

    def do_disable(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        line = operate.disable(asked["name"], reason=asked["reason"], using=alias)
        self._tell(line, json_wanted, f"Disabled {line.name!r}. What runs goes on.", alias)

    def do_enable(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        line = operate.enable(asked["name"], using=alias)
        self._tell(line, json_wanted, f"Enabled {line.name!r}{fires(line)}", alias)

    def read_delete(self, arguments: Arguments) -> dict[str, Any]:
        return {**self.read_name(arguments), **consent(arguments)}

    def do_delete(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        line = operate.get_schedule(asked["name"], using=alias)
        refuse_declared(line, alias)
        if asked["dry_run"]:
            told = f"{line.name!r} of tenant {line.tenant_id} would be deleted. What runs goes on."
        else:
            if not asked["yes"]:
                ask(f"Delete {line.name!r} of tenant {line.tenant_id}? What runs goes on.")
            line = delete(line.id, using=alias)
            told = f"Deleted {line.name!r}. What runs goes on."
        if json_wanted:
            self.stdout.write(as_json({"id": line.id, "name": line.name, "tenant_id": line.tenant_id}))
        else:
            self.stdout.write(harmless(told, keep=""))

    def _tell(self, line: operate.ScheduleLine, json_wanted: bool, told: str, alias: str) -> None:
        if json_wanted:
            self.stdout.write(as_json(facts_of(line, drift_of([line], using=alias).get(line.id))))
        else:
            self.stdout.write(harmless(told, keep=""))

    # -------------------------------------------------------------- backfill

    def do_backfill(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        line = operate.get_schedule(asked["name"], using=alias)
        start, end = range_of(asked, line)
        try:
            found = operate.backfill(line.id, start=start, end=end, dry_run=True, using=alias)
        except InvalidOption as error:
            raise as_typed(error) from error
        counts = {
            "name": line.name, "from": start, "to": end,
            "ticks": len(found.ticks), "to_create": len(found.create),
        }  # fmt: skip
        if asked["dry_run"]:
            shown = [each.tick for each in found.ticks if each.tick.instant in set(found.create)]
            if json_wanted:
                self.stdout.write(as_json({**counts, "first": ticks_for_programs(shown[:PREVIEWED])}))
                return
            self.stdout.write(f"{of_range(counts)} would be created.")
            if shown:
                self.stdout.write(table_of_ticks(shown[:PREVIEWED]))
            if len(shown) > PREVIEWED:
                self.stdout.write(f"and {len(shown) - PREVIEWED:,} more")
            return
        created, failed = self._backfill(line, found.create, alias)
        if json_wanted:
            self.stdout.write(as_json({**counts, "created": created, "failed": len(failed)}))
        else:
            self.stdout.write(f"{of_range({**counts, 'to_create': created})} created.")
        if failed:
            first = failed[0]
            raise CommandError(
                harmless(
                    f"{len(failed):,} could not be created, the first: [{first.error_code}] {first.error}"
                ),
                returncode=exits.ERROR,
            )

    def _backfill(
        self, line: operate.ScheduleLine, wanted: Sequence[Any], alias: str
    ) -> tuple[int, list[operate.Occurrence]]:
        """Create a page after the other, each of its own: what was done stays when somebody stops it."""
        created, failed = 0, list[operate.Occurrence]()
        progress = Progress(self.stderr, total=len(wanted), what="occurrences")
        for at in range(0, len(wanted), BACKFILL_PAGE):
            page = wanted[at : at + BACKFILL_PAGE]
            made = operate.backfill(line.id, start=page[0], end=page[-1], dry_run=False, using=alias)
            created, failed = created + len(made.created), failed + list(made.failed)
            progress.tell(created + len(failed))
        progress.end()
        return created, failed

    # -------------------------------------------------------------- sync

    def read_sync(self, arguments: Arguments) -> dict[str, Any]:
        return {"dry_run": arguments.given["dry_run"]}

    def do_sync(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        if asked["dry_run"]:
            left = self._drift(alias)
            self._tell_drift({}, left, json_wanted)
            refuse_invalid(left)
            return
        names = write_names(patience=BY_HAND, using=alias)
        done = sync(using=alias)
        did = {"created": done.created, "updated": done.updated, "disabled": done.disabled}
        self._tell_drift(did, done.left, json_wanted)
        for told in other_readings({*done.created, *done.updated}, alias):
            self.stderr.write(self.style.WARNING(harmless(told, keep="")))
        refuse_invalid(done.left)
        refuse_held([*names.held, *held_of(done)])

    def _tell_drift(self, done: Mapping[str, list[str]], left: Sequence[Drift], json_wanted: bool) -> None:
        self.stdout.write(drift_for_programs(done, left) if json_wanted else drift_for_people(done, left))

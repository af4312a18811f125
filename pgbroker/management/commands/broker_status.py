"""broker_status: one look at everything, or a look every few seconds."""

import sys
from datetime import timedelta
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from pgbroker import reports
from pgbroker.management import exits
from pgbroker.management.arguments import add_database, add_format, add_tenant, checked, scope_of, teach
from pgbroker.management.lines import BARS, PLAIN_BARS, Frame, Line
from pgbroker.management.output import as_json
from pgbroker.management.picture import draw
from pgbroker.management.screen import Screen, is_drawable
from pgbroker.management.watching import Asked, watch_in_lines, watch_on_screen
from pgbroker.overview import Overview, look
from pgbroker.policy.durations import seconds_of

MINUTES = 5
EVERY_SECONDS = 2.0
SHORTEST = timedelta(seconds=0.1)
# How long one statement of a single look may take.
PATIENCE = timedelta(seconds=30)


class Command(BaseCommand):
    help = (
        "Show queues, workers, what fails, schedules in trouble, pauses and rates: once, or again and again with "
        "--watch."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        teach(
            parser,
            """
broker_status
broker_status --watch
broker_status --top 10 --minutes 60
broker_status --format json | jq '.queues[] | select(.ready > 1000)'
broker_status --format json --watch 60 | tee -a status.jsonl
""",
        )
        add_tenant(parser)
        add_database(parser)
        add_format(parser)
        parser.add_argument(
            "--watch",
            metavar="SECONDS",
            nargs="?",
            const=EVERY_SECONDS,
            help="Look again every so many seconds (default: 2), in place on a terminal, until q or Ctrl-C. "
            "Elsewhere one report follows the other, each in one line with --format json.",
        )
        parser.add_argument(
            "--top",
            metavar="N",
            help="List so many queues, those with most trouble first (default: all, by name).",
        )
        parser.add_argument(
            "--all-workers",
            action="store_true",
            help="Show workers too that stopped, or were silent for more than 10 minutes, in the last day.",
        )
        parser.add_argument("--minutes", metavar="N", default=MINUTES, help="Rates over so many minutes.")

    def handle(self, *args: Any, **given: Any) -> None:
        with checked(given) as arguments:
            alias, tenant = arguments.database(), arguments.tenant()
            minutes = arguments.whole("minutes", 1, 1440, MINUTES)
            top = arguments.whole("top", 1, 32_767, 0) or None
            every = arguments.duration("watch")
            if every is not None and every < SHORTEST:
                arguments.wrong(
                    "--watch", f"is {seconds_of(every)}", f"Give at least {seconds_of(SHORTEST)}."
                )
        self.json, self.all_workers = given["format"] == "json", given["all_workers"]
        self.frame = Frame(top=top, bars=self._bars(), all_workers=self.all_workers)
        asked = Asked(alias=alias, tenant=tenant, minutes=minutes, scope=partial(scope_of, tenant))
        if every is None:
            with (
                exits.errors_of_a_command(alias),
                scope_of(tenant),
                reports.limited_time(PATIENCE, using=alias),
            ):
                overview = look(tenant=tenant, minutes=minutes, using=alias)
            self._report(overview)
        elif self.json or not is_drawable(sys.stdout):
            seconds = every.total_seconds()
            watch_in_lines(asked, every=seconds, report=self._report_again, complain=self._complain)
        else:
            watch_on_screen(
                asked,
                Screen(sys.stdout),
                every=every.total_seconds(),
                bars=self.frame.bars,
                all_workers=self.all_workers,
                dress=self._dress,
            )

    def _bars(self) -> str:
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"
        try:
            BARS.encode(encoding)
        except UnicodeEncodeError:
            return PLAIN_BARS
        return BARS

    def _dress(self, line: Line) -> str:
        styles = {
            "heading": self.style.MIGRATE_HEADING,
            "warning": self.style.WARNING,
            "error": self.style.ERROR,
            "faint": self.style.HTTP_NOT_MODIFIED,
        }
        return styles[line.tone](line.text) if line.tone in styles else line.text

    def _complain(self, trouble: str) -> None:
        self.stderr.write(f"no figures, trying again: {trouble}")

    def _report_again(self, overview: Overview) -> None:
        self._report(overview, indent=None)
        if not self.json:
            self.stdout.write("")
        self.stdout.flush()

    def _report(self, overview: Overview, *, indent: int | None = 2) -> None:
        if self.json:
            self.stdout.write(as_json(self._facts(overview), indent=indent))
            return
        self.stdout.write(f"database time {overview.database_time.isoformat(sep=' ', timespec='seconds')}")
        for line in draw(overview, self.frame):
            self.stdout.write(self._dress(line))
        self.stdout.write(f"\n{reports.CLAIMED}")

    def _facts(self, overview: Overview) -> dict[str, Any]:
        workers = [each for each in overview.workers if self.all_workers or not each.is_gone]
        depths = (
            overview.depths if self.frame.top is None else overview.most_trouble_first()[: self.frame.top]
        )
        return {
            "database_time": overview.database_time,
            "tenant": overview.tenant,
            "count_bound": reports.BOUND,
            "queues": [self._facts_of_queue(overview, each) for each in depths],
            "oldest_ready_seconds": overview.oldest_ready_seconds,
            "dead_letters": overview.dead_letters,
            "failing": [{**each._asdict(), "error": each.error} for each in overview.failing],
            "pauses": [each._asdict() for each in overview.pauses],
            "workers": [each._asdict() for each in workers],
            "workers_left_out": len(overview.workers) - len(workers),
            "leaders": [{**each._asdict(), "leads": each.leads} for each in overview.leaders],
            "scheduler": None if overview.scheduler is None else overview.scheduler.name,
            "lacks_scheduler": overview.lacks_scheduler,
            "troubled_schedules": [
                {**each._asdict(), "cure": overview.cure_of(each)} for each in overview.troubled_schedules
            ],
            "over_long": [each._asdict() for each in overview.over_long],
            "minutes": overview.rated_minutes,
            "rates": overview.totals,
        }

    def _facts_of_queue(self, overview: Overview, depth: reports.QueueDepth) -> dict[str, Any]:
        rates = overview.rates_of(depth)
        return {
            "queue": depth.queue,
            **depth.counts,
            "oldest_ready_seconds": depth.oldest_ready_seconds,
            "paused": depth.queue in overview.paused_queues,
            "done_per_minute": None if rates is None else round(overview.per_minute(rates.done), 3),
            "errors_per_minute": None if rates is None else round(overview.per_minute(rates.errors), 3),
        }

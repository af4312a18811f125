"""broker_status: one look at everything."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from pgbroker import reports
from pgbroker.lifecycle.clock import database_time
from pgbroker.management import exits
from pgbroker.management.arguments import add_database, add_format, add_tenant, checked, scope_of, teach
from pgbroker.management.output import ago, as_json, harmless, table, table_of_pauses
from pgbroker.runtime.duties import UPKEEP

MINUTES = 5


class Command(BaseCommand):
    help = "Show queues, workers, dead letters and the rates of the last minutes."

    def add_arguments(self, parser: CommandParser) -> None:
        teach(
            parser,
            """
broker_status
broker_status --format json | jq '.queues[] | select(.ready > 1000)'
broker_status --tenant acme --minutes 60
""",
        )
        add_tenant(parser)
        add_database(parser)
        add_format(parser)
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
        with exits.errors_of_a_command(alias), scope_of(tenant):
            now = database_time(using=alias)
            depths, pauses = reports.list_depths(using=alias), reports.list_pauses(using=alias)
            known = reports.list_workers(using=alias)
            leaders, over_long = reports.list_leaders(using=alias), reports.list_over_long(using=alias)
            workers = [each for each in known if given["all_workers"] or not each.is_gone]
            # Counters know no tenant: what all tenants did is not told as if it were one's.
            rates = None
            if tenant is None:
                rates = reports.total(reports.list_minutes(minutes=minutes, using=alias))
        paused = {each.queue for each in pauses if each.queue and each.tenant is None}
        dead = min(sum(each.dead_letter for each in depths), reports.BOUND)
        oldest = max((each.oldest_ready_seconds or 0.0 for each in depths), default=0.0)
        if given["format"] == "json":
            queues = [
                {
                    "queue": each.queue,
                    **each.counts,
                    "oldest_ready_seconds": each.oldest_ready_seconds,
                    "paused": each.queue in paused,
                }
                for each in depths
            ]
            report = {
                "database_time": now,
                "tenant": tenant,
                "count_bound": reports.BOUND,
                "queues": queues,
                "oldest_ready_seconds": oldest,
                "dead_letters": dead,
                "pauses": [each._asdict() for each in pauses],
                "workers": [each._asdict() for each in workers],
                "workers_left_out": len(known) - len(workers),
                "leaders": [{**each._asdict(), "leads": each.leads} for each in leaders],
                "over_long": [each._asdict() for each in over_long],
                "minutes": minutes,
                "rates": rates,
            }
            self.stdout.write(as_json(report))
            return
        self.stdout.write(f"database time {now.isoformat(sep=' ', timespec='seconds')}\n\nqueues")
        rows = (
            (
                each.queue,
                *map(reports.at_most, each.counts.values()),
                ago(each.oldest_ready_seconds),
                "paused" if each.queue in paused else "",
            )
            for each in depths
        )
        self.stdout.write(table(("queue", *map(reports.heading, reports.COUNTED), "oldest", "paused"), rows))
        self.stdout.write(reports.CLAIMED)
        if pauses:
            self.stdout.write("\npauses")
            self.stdout.write(table_of_pauses(pauses))
        self.stdout.write("\nworkers")
        lines = (
            (w.name, w.state, ago(w.silent_seconds), w.slots, w.running, w.held, w.queues) for w in workers
        )
        headings = ("worker", "state", "heard of", "slots", "running", "held", "queues")
        self.stdout.write(table(headings, lines) if workers else "none")
        if left_out := len(known) - len(workers):
            self.stdout.write(f"{left_out} more stopped or silent for over 10 minutes: --all-workers")
        self.stdout.write(f"\nleader: {told_of_leader(leaders)}")
        if over_long:
            first = max(over_long, key=lambda each: each.seconds)
            self.stdout.write(
                f"over-long: {len(over_long)} running jobs beyond their timeout or deadline; the longest, "
                f"{first.job_id}, for {ago(first.seconds)}"
            )
        self.stdout.write(f"dead letters: {reports.at_most(dead)}")
        if rates is not None:
            counts = ", ".join(f"{rates[name]} {name}" for name in ("done", "retried", "failed", "dead"))
            self.stdout.write(
                f"last {minutes} minutes: {counts}; {rates['done'] / minutes:.1f} done a minute, "
                f"mean run {rates['mean_run_seconds']:.3f} s, mean wait {rates['mean_wait_seconds']:.3f} s"
            )


def told_of_leader(leaders: list[reports.LeaderLine]) -> str:
    """Say who does the upkeep, or since when nobody does."""
    leader = next((each for each in leaders if each.duty == UPKEEP), None)
    if leader is None:
        return "none yet: a worker leads as soon as one runs"
    if not leader.leads:
        return f"none: the lease of {harmless(leader.name, keep='')} ended {ago(-leader.seconds)} ago"
    since = leader.since.isoformat(sep=" ", timespec="seconds")
    return f"{harmless(leader.name, keep='')} since {since} (epoch {leader.epoch})"

"""broker_scheduler: create what schedules are due until told to stop."""

import logging
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser, SystemCheckError

from pgbroker import backend, logs
from pgbroker.conf import settings
from pgbroker.management import exits
from pgbroker.management.arguments import Arguments, add_database, checked, teach
from pgbroker.management.commands.broker_worker import MIN_START_SECONDS, log_somewhere
from pgbroker.management.signals import StopSignals
from pgbroker.management.start import Target, limited_start, look_at
from pgbroker.patience import limit_waits
from pgbroker.runtime.scheduler import Scheduler, SchedulerOptions, run_once
from pgbroker.worker import answering_scheduler

_log = logging.getLogger("pgbroker.scheduler")


class Command(BaseCommand):
    help = (
        "Create the jobs of schedules when they are due, and keep the broker tidy, until told to stop. Start several: "
        "one leads, and another takes over within LEADER_SECONDS + 2 s when it is gone. SIGTERM or Ctrl-C ends it "
        "after the page that is under way, and hands the lead over; a second one exits at once. It runs no jobs. "
        "Exit codes: 0 clean, 1 error, 2 configuration, 3 database unreachable at start, 4 migrations missing."
    )
    signals: StopSignals | None = None

    def run_from_argv(self, argv: list[str]) -> None:
        """Take the signals before anything slow: system checks, connections, imports of handlers."""
        self.signals = StopSignals()
        self.signals.install()
        super().run_from_argv(argv)

    def add_arguments(self, parser: CommandParser) -> None:
        teach(
            parser,
            """
broker_scheduler                          lead, or stand by
broker_scheduler --metrics-port 9470      and answer Prometheus and probes
broker_scheduler --once                   create what is due now and end: from cron, every minute
broker_worker --with-scheduler            instead of this, for a small site
""",
        )
        parser.add_argument(
            "--once",
            action="store_true",
            help="Create what is due and exit, for hosts that have cron and no long-running processes. "
            "What came due since the last time is decided by each schedule's misfire policy.",
        )
        parser.add_argument(
            "--name",
            metavar="NAME",
            help="What it is called where it is told who leads. Default: host and process id.",
        )
        parser.add_argument(
            "--metrics-port",
            metavar="PORT",
            help="Answer /metrics, /healthz and /readyz on this port of METRICS_HOST; 0: any free one. "
            "Default: METRICS_PORT.",
        )
        add_database(parser)

    def check(self, *args: Any, **options: Any) -> Any:
        """Run the system checks; what they refuse is a matter of configuration (2)."""
        try:
            return super().check(*args, **options)
        except SystemCheckError as error:
            error.returncode = exits.CONFIGURATION
            raise

    def handle(self, *args: Any, **given: Any) -> None:
        with checked(given) as arguments:
            options = read(arguments)
        log_somewhere(given["verbosity"])
        logs.serve_logs()
        backend.serve_signals()
        limit_waits()
        assert options.database is not None
        with exits.errors_of_a_command(options.database), limited_start(MIN_START_SECONDS):
            target = look_at(options.database)
            tell(target)
            if given.get("once"):
                created = run_once(options.database)
                self.stdout.write(f"{created} created")
                return
            code = self.work(Scheduler(options), target)
        if code:
            sys.exit(code)

    def work(self, scheduler: Scheduler, target: Target) -> int:
        """Be a scheduler until it has ended; returns the exit code."""
        with answering_scheduler(scheduler, facts=target.facts):
            if self.signals is not None:
                self.signals.running(scheduler.stop)
            try:
                return scheduler.run()
            except KeyboardInterrupt:  # without our signals, in call_command(): run() has ended its loops
                return 0


def read(arguments: Arguments) -> SchedulerOptions:
    """Read the flags; what is wrong is gathered in *arguments*."""
    return SchedulerOptions(
        database=arguments.database(),
        name=arguments.worker_name(),
        metrics_port=arguments.whole("metrics_port", 0, 65535, settings().METRICS_PORT),
    )


def tell(target: Target) -> None:
    """Say where this scheduler works, so that a wrong database is seen at once."""
    _log.info(
        "starting: host=%s port=%s database=%s user=%s alias=%s server=%s migration=%s",
        target.host,
        target.port,
        target.database,
        target.user,
        target.alias,
        target.server,
        target.migration,
    )
    for warning in target.warnings:
        _log.warning("%s", warning)

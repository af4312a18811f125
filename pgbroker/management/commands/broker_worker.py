"""broker_worker: claim and run jobs until told to stop."""

import gc
import logging
import os
import sys
from argparse import SUPPRESS
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser, SystemCheckError
from django.db import Error

from pgbroker import backend, logs, reports
from pgbroker.conf import settings
from pgbroker.errors import InvalidOption
from pgbroker.management import exits
from pgbroker.management.arguments import Arguments, add_database, checked, teach
from pgbroker.management.signals import StopSignals
from pgbroker.management.start import Target, limited_start, look_at
from pgbroker.patience import limit_waits
from pgbroker.registry import EXECUTORS
from pgbroker.runtime.batch_work import be_batch_work
from pgbroker.runtime.executors.choice import needs_children
from pgbroker.runtime.executors.nursery import Nursery
from pgbroker.runtime.memory import resident_bytes
from pgbroker.runtime.options import MOST_SLOTS, effective_settings
from pgbroker.runtime.parent import Born, Parent, command_of, hear_signals, options_of
from pgbroker.runtime.supervisor import Worker, WorkerOptions
from pgbroker.tenancy import scope_all
from pgbroker.worker import answering, unknown_queues

_log = logging.getLogger("pgbroker.worker")
MIN_START_SECONDS = 10.0
MOST_PROCESSES = 64
SMALLEST_RSS = 32 * 1024**2


class Command(BaseCommand):
    help = (
        "Claim and run jobs until told to stop. SIGTERM or Ctrl-C drains: nothing more is claimed, running "
        "jobs end, the process exits with 0; a second one exits at once. Exit codes: 0 clean, 1 error, "
        "2 configuration, 3 database unreachable at start, 4 migrations missing, 75 start me again. "
        "With --processes a parent starts the workers again, and exits with 0 once all have drained."
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
broker_worker                                     all queues, 8 jobs at once
broker_worker --queues mail,reports --concurrency 20
broker_worker --exclude-queues slow --lease-seconds 120
broker_worker --executor process --max-rss 512M   each job in a child process
broker_worker --processes 4                       four workers under one parent
broker_worker --with-scheduler                    create what schedules are due as well: all in one process
broker_worker --burst                             work off what is ready, then exit
""",
        )
        parser.add_argument(
            "--queues",
            metavar="A,B",
            help="Serve only these. Each must exist or be declared by a job. Default: all queues.",
        )
        parser.add_argument("--exclude-queues", metavar="A,B", help="Serve all queues but these.")
        parser.add_argument("--concurrency", metavar="N", default=8, help="Jobs to run at once.")
        parser.add_argument(
            "--name",
            metavar="NAME",
            help="Be the only worker of this name: a second start waits for one lease and fails if the first lives.",
        )
        parser.add_argument(
            "--with-scheduler",
            action="store_true",
            help="Be a scheduler too, for small sites: of all schedulers one leads, and any other takes over.",
        )
        parser.add_argument(
            "--executor",
            choices=EXECUTORS,
            default="thread",
            help="Where jobs run whose type does not say: in this process, or in child processes of it.",
        )
        parser.add_argument(
            "--max-jobs-per-child", metavar="N", help="Replace a child process after so many jobs."
        )
        parser.add_argument(
            "--max-rss",
            metavar="SIZE",
            help="Memory (RSS, such as 512M or 2G) beyond which a child process is replaced between two jobs, "
            "and a worker drains and exits with 75.",
        )
        parser.add_argument(
            "--processes", metavar="N", default=1, help="Worker processes, under a parent that restarts them."
        )
        parser.add_argument("--parent-pid", type=int, help=SUPPRESS)
        parser.add_argument("--lease-seconds", metavar="S", help="Override LEASE_SECONDS; heartbeats follow.")
        parser.add_argument("--poll-interval", metavar="S", help="Override POLL_SECONDS.")
        parser.add_argument("--shutdown-timeout", metavar="S", help="Override SHUTDOWN_TIMEOUT_SECONDS.")
        parser.add_argument("--burst", action="store_true", help="Exit when nothing is ready or due.")
        parser.add_argument("--max-jobs", metavar="N", help="Exit after so many jobs.")
        parser.add_argument(
            "--heartbeat-file",
            metavar="PATH",
            help="Touched each second while the claim loop turns, for probes; with --processes PATH.1, PATH.2, ….",
        )
        parser.add_argument(
            "--metrics-port",
            metavar="PORT",
            help="Answer /metrics, /healthz and /readyz on this port of METRICS_HOST; 0: any free one; with "
            "--processes on this and those that follow. "
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
            processes = arguments.whole("processes", 1, MOST_PROCESSES, 1)
            if processes > 1 and self.signals is None:
                arguments.wrong("--processes", "was given to call_command()", "Run it from a command line.")
        log_somewhere(given["verbosity"])
        logs.serve_logs()
        backend.serve_signals()
        if processes > 1:
            options = self.be_parent(processes, options)
        elif options.parent_pid is not None and self.signals is not None:
            self.signals.patient = True
        self.work(options)

    def be_parent(self, processes: int, options: WorkerOptions) -> WorkerOptions:
        """Start workers and exit once they have ended; returns in each of the workers, with its options."""
        parent_pid = os.getpid()
        parent = Parent(
            processes,
            finite=options.burst or options.max_jobs is not None,
            drain_seconds=effective_settings(options).SHUTDOWN_TIMEOUT_SECONDS,
            command=lambda number: command_of(options_of(number, options, parent_pid)),
        )
        try:
            sys.exit(parent.run())
        except Born as born:
            self.signals = StopSignals(patient=True)
            self.signals.install()
            hear_signals()
            return options_of(born.number, options, parent_pid)

    def work(self, options: WorkerOptions) -> None:
        """Be a worker until it has ended."""
        assert options.database is not None
        limit_waits()
        if self.signals is not None:
            # First: what is started from here on inherits it, threads and child processes.
            be_batch_work()
        # Before there is a connection or a thread, so that it can be forked off. Not in call_command(): the process
        # is not ours.
        early = self.signals is not None and needs_children(options.executor)
        nursery = Nursery.early() if early else None
        try:
            with exits.errors_of_a_command(options.database), limited_start(start_seconds(options)):
                target = look_at(options.database)
                refuse_unknown_queues(options, options.database)
                refuse_too_little_memory(options)
                worker = Worker(options, nursery)
                tell(target, options)
                with answering(worker, facts=target.facts):
                    if self.signals is not None:
                        self.signals.running(worker.stop)
                        # What the project has loaded is there for good: no collection is to go through it again.
                        gc.collect()
                        gc.freeze()
                    try:
                        code = worker.run()
                    except KeyboardInterrupt:  # without our signals, in call_command(): run() has drained
                        code = 0
        finally:
            if nursery is not None:
                nursery.close()
        if options.burst and not code:
            tell_what_is_left(options, options.database)
        if self.signals is not None and (code or worker.left_running):
            # Threads that ignored their stop must not keep the process: Python would wait for some of them.
            leave(code)
        if code:
            sys.exit(code)


def read(arguments: Arguments) -> WorkerOptions:
    """Read the flags; what is wrong is gathered in *arguments*."""
    queues, exclude = arguments.queues("queues"), arguments.queues("exclude_queues")
    if queues and exclude:
        arguments.wrong("--exclude-queues", "was given together with --queues", "Give one of them.")
    heartbeat_file = arguments.text("heartbeat_file")
    if heartbeat_file and not os.access(Path(heartbeat_file).absolute().parent, os.W_OK):
        arguments.wrong(
            "--heartbeat-file", f"is {heartbeat_file!r}, which cannot be written", "Make its folder."
        )
    elif heartbeat_file and Path(heartbeat_file).is_dir():
        arguments.wrong("--heartbeat-file", f"is {heartbeat_file!r}, a folder", "Name a file.")
    executor = arguments.given.get("executor") or "thread"
    if needs_children(executor) and sys.platform != "linux":
        arguments.wrong("--executor", "asks for child processes, which need Linux", "Run it in a container.")
    per_child = arguments.whole("max_jobs_per_child", 1, 2**31 - 1)
    if per_child is not None and not needs_children(executor):
        arguments.wrong(
            "--max-jobs-per-child",
            "was given, but no job runs in a child process",
            'Give --executor process, or declare jobs with executor="process".',
        )
    return WorkerOptions(
        executor=executor,
        with_scheduler=bool(arguments.given.get("with_scheduler")),
        max_jobs_per_child=per_child,
        max_rss=arguments.size("max_rss", SMALLEST_RSS),
        parent_pid=arguments.given.get("parent_pid"),
        queues=queues,
        exclude_queues=exclude,
        concurrency=arguments.whole("concurrency", 1, MOST_SLOTS, 1),
        database=arguments.database(),
        lease_seconds=arguments.setting("lease_seconds", "LEASE_SECONDS"),
        poll_interval=arguments.setting("poll_interval", "POLL_SECONDS"),
        shutdown_timeout=arguments.setting("shutdown_timeout", "SHUTDOWN_TIMEOUT_SECONDS"),
        burst=bool(arguments.given.get("burst")),
        max_jobs=arguments.whole("max_jobs", 1, 2**31 - 1),
        heartbeat_file=heartbeat_file,
        name=arguments.worker_name(),
        metrics_port=arguments.whole("metrics_port", 0, 65535, settings().METRICS_PORT),
    )


def start_seconds(options: WorkerOptions) -> float:
    """Return how long a start may take: whoever waits longer is better started again."""
    return max(MIN_START_SECONDS, effective_settings(options).LEASE_SECONDS)


def refuse_unknown_queues(options: WorkerOptions, alias: str) -> None:
    """Raise, with exit code 2, for each named queue that neither exists nor is declared: a slip, most likely."""
    if unknown := unknown_queues(options.queues, alias):
        raise exits.refused(unknown, code=exits.CONFIGURATION)
    for each in unknown_queues(options.exclude_queues, alias):
        _log.warning("--exclude-queues leaves nothing out: %s", each.message)


def refuse_too_little_memory(options: WorkerOptions) -> None:
    """Raise, with exit code 2, for a limit that the process is beyond before its first job."""
    holds = resident_bytes()
    if options.max_rss is not None and holds >= options.max_rss:
        raise InvalidOption(
            "--max-rss",
            f"is less than this process holds without a job ({holds // 1024**2 + 1}M)",
            "Give it room for the jobs too.",
        )


def log_somewhere(verbosity: int) -> None:
    """Write pgbroker's lines to stderr where the project configured no logging for them."""
    log = logging.getLogger("pgbroker")
    if log.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    log.addHandler(handler)
    log.setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG))


def tell(target: Target, options: WorkerOptions) -> None:
    """Say where this worker works, so that a wrong database is seen at once."""
    queues = ",".join(options.queues) or "all"
    if options.exclude_queues:
        queues += f" but {','.join(options.exclude_queues)}"
    _log.info(
        "starting: host=%s port=%s database=%s user=%s alias=%s server=%s migration=%s "
        "queues=%s slots=%d executor=%s notify=%s",
        target.host,
        target.port,
        target.database,
        target.user,
        target.alias,
        target.server,
        target.migration,
        queues,
        options.concurrency,
        options.executor,
        settings().NOTIFY,
    )
    for warning in target.warnings:
        _log.warning("%s", warning)


def tell_what_is_left(options: WorkerOptions, alias: str) -> None:
    """Say that jobs are due later, or paused: whoever tries a burst would take them for lost."""
    try:
        with scope_all():
            depths = reports.list_depths(using=alias)
    except Error:
        # The work is done; that the database has gone away since changes nothing about it.
        return
    served = [
        each
        for each in depths
        if each.queue not in options.exclude_queues and (not options.queues or each.queue in options.queues)
    ]
    for count, what in (
        (sum(each.scheduled for each in served), "scheduled for later, which a burst does not wait for."),
        (
            sum(each.ready for each in served),
            "left ready: paused, as broker_status shows, or beyond --max-jobs.",
        ),
    ):
        if count:
            jobs = "1 job is" if count == 1 else f"{reports.at_most(count)} jobs are"
            _log.info("%s %s", jobs, what)


def leave(code: int) -> None:
    """End the process without waiting for threads."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

"""The catalogue of what is measured: names, kinds and labels are API; the reference page is made from it."""

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]

# Each queue and job type that a process has met, and no more of them than this; what comes later counts as
# OTHER. Types are declared by code and queues by people, so that one who makes a queue for each customer finds
# a bill in one line and not in the memory of the monitoring.
MOST_PAIRS = 200
OTHER = "other"
# Of a type, or in a queue, that this process has not loaded.
UNKNOWN = "unknown"

# Jobs take milliseconds or hours.
BUCKETS = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)


class Family(NamedTuple):
    """One measured thing. A counter's samples bear the suffix `_total`."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    says: str

    @property
    def sample_name(self) -> str:
        """The name to ask Prometheus for; a histogram's samples have their own suffixes."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


_PAIR = ("queue", "job_type")

ENQUEUED = Family(
    "pgbroker_jobs_enqueued",
    "counter",
    _PAIR,
    "Jobs that this process stored. One whose transaction rolls back later stays counted.",
)
CLAIMED = Family("pgbroker_attempts_claimed", "counter", _PAIR, "Attempts that this worker claimed.")
SETTLED = Family(
    "pgbroker_attempts_settled",
    "counter",
    (*_PAIR, "outcome"),
    "Attempts whose outcome was written: completed, failed, timed_out, crashed, cancelled or snoozed.",
)
RETRIED = Family("pgbroker_jobs_retried", "counter", _PAIR, "Attempts that failed, with another one to come.")
ENDED = Family(
    "pgbroker_jobs_ended",
    "counter",
    (*_PAIR, "status"),
    "Jobs that this worker brought to an end: completed, failed, dead_letter or cancelled.",
)
REAPED = Family(
    "pgbroker_attempts_reaped", "counter", _PAIR, "Attempts taken back because their lease ran out."
)
RELEASED = Family("pgbroker_attempts_released", "counter", _PAIR, "Attempts handed back unharmed.")
LOST = Family(
    "pgbroker_leases_lost",
    "counter",
    _PAIR,
    "Leases that this worker lost: a handler told to stop, or an outcome refused. One attempt may be both.",
)
EXPIRED = Family(
    "pgbroker_jobs_expired", "counter", _PAIR, "Jobs that passed their deadline before they ran."
)
RUN = Family(
    "pgbroker_attempt_run_seconds",
    "histogram",
    _PAIR,
    "How long handlers ran, of attempts that were settled.",
)
WAIT = Family(
    "pgbroker_attempt_wait_seconds",
    "histogram",
    _PAIR,
    "From ready to the start of the handler, of attempts that were settled.",
)
CONNECTION_LOSSES = Family(
    "pgbroker_connection_losses", "counter", ("loop",), "How often a loop of this worker lost its connection."
)
SLOTS = Family("pgbroker_slots", "gauge", (), "Jobs that this worker can run at once.")
RUNNING = Family("pgbroker_running", "gauge", (), "Handlers that run in this worker now.")
HELD = Family("pgbroker_held", "gauge", (), "Jobs that this worker has claimed and that wait for a slot.")
UNSETTLED = Family("pgbroker_unsettled", "gauge", (), "Outcomes that are not written yet.")
LOOP_AGE = Family(
    "pgbroker_loop_age_seconds", "gauge", ("loop",), "How long ago a loop of this worker began its last turn."
)
DATABASE_UP = Family(
    "pgbroker_database_up",
    "gauge",
    ("database",),
    "1 when the last question about depths was answered in time, else 0; the next five are left out then.",
)
DEPTH = Family(
    "pgbroker_queue_depth",
    "gauge",
    ("database", "queue", "status"),
    "Jobs of all tenants in a queue: ready, scheduled, waiting, blocked, running, failed, dead_letter. "
    "It stops at 10000.",
)
OLDEST = Family(
    "pgbroker_queue_oldest_ready_seconds",
    "gauge",
    ("database", "queue"),
    "How long the oldest ready job of a queue has waited; 0 when none is ready.",
)
WORKERS = Family(
    "pgbroker_workers", "gauge", ("database", "state"), "Worker processes: alive, draining or silent."
)

SCHEDULES = Family(
    "pgbroker_schedules",
    "gauge",
    ("database", "state"),
    "Schedules of all tenants that stand still: disabled or paused. It stops at 10000.",
)
OVERDUE = Family(
    "pgbroker_schedule_overdue_seconds",
    "gauge",
    ("database",),
    "For how long the tick that is due longest has waited; 0 when none is due. It grows where no scheduler runs.",
)
OCCURRENCES = Family(
    "pgbroker_schedule_occurrences",
    "counter",
    ("state",),
    "Ticks of schedules that this process decided upon: created, skipped (overlap), buffered, failed, or duplicate "
    "(created before, and prevented).",
)
MISFIRED = Family(
    "pgbroker_schedule_misfires",
    "counter",
    ("result",),
    "Ticks that were seen late: made up for (late), or left out for good (missed).",
)
LATENESS = Family(
    "pgbroker_schedule_lateness_seconds",
    "histogram",
    (),
    "From a tick to the creation of its occurrence, of ticks that are not made up for.",
)
CREATION = Family(
    "pgbroker_schedule_creation_seconds",
    "histogram",
    (),
    "How long a page of occurrences took to be created.",
)
DISABLED = Family(
    "pgbroker_schedules_disabled",
    "counter",
    (),
    "Schedules that this process disabled: unreadable, or not declared any more.",
)
OCCURRENCES_FAILED = Family(
    "pgbroker_schedule_jobs_failed",
    "counter",
    _PAIR,
    "Jobs of schedules that ended without success in this worker: failed, discarded or dead letters.",
)
SCHEDULER_LEADS = Family(
    "pgbroker_scheduler_leads", "gauge", (), "1 while this process is the scheduler that leads, else 0."
)

OF_SCHEDULERS = (
    OCCURRENCES,
    MISFIRED,
    LATENESS,
    CREATION,
    DISABLED,
    OCCURRENCES_FAILED,
    SCHEDULER_LEADS,
)
OF_EVERY_PROCESS = (ENQUEUED, DATABASE_UP, DEPTH, OLDEST, WORKERS, SCHEDULES, OVERDUE)
OF_WORKERS = (
    CLAIMED,
    SETTLED,
    RETRIED,
    ENDED,
    REAPED,
    RELEASED,
    LOST,
    EXPIRED,
    RUN,
    WAIT,
    CONNECTION_LOSSES,
    SLOTS,
    RUNNING,
    HELD,
    UNSETTLED,
    LOOP_AGE,
)

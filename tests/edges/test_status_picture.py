"""What broker_status draws: within its width and its rows, the most trouble first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from docs.generated import DOCS
from pgbroker.lifecycle.over_long import OverLong
from pgbroker.lifecycle.take_due import SCHEDULER
from pgbroker.management.lines import BARS, PLAIN_BARS, Column, Frame, cut, table
from pgbroker.management.picture import draw, sparkline
from pgbroker.overview import TROUBLED_MAX, Failing, Overview, QueueRates, TroubledSchedule
from pgbroker.reports import BOUND, COUNTED, LeaderLine, Minute, PauseLine, QueueDepth, WorkerLine, total
from pgbroker.runtime.duties import UPKEEP
from pgbroker.states import AttemptState
from tests.docs.walkthrough import blocks

NOW = datetime(2026, 3, 1, 10, 0, 29, tzinfo=UTC)


def depth(number: int, name: str | None = None, **counts: Any) -> QueueDepth:
    zero: dict[str, Any] = dict.fromkeys(COUNTED, 0)
    known = zero | {"oldest_ready_seconds": None} | counts
    return QueueDepth(number, name or f"queue-{number:03d}", None, None, **known)


def minute(back: int, done: int = 0, **counts: int) -> Minute:
    zero = dict.fromkeys(("retried", "failed", "dead", "cancelled"), 0) | counts
    return Minute(NOW - timedelta(minutes=back), done, **zero, run_seconds=done * 0.5, wait_seconds=0.0)


def worker(number: int, state: str = "alive", **facts: Any) -> WorkerLine:
    known = {"name": f"worker-{number}", "queues": ["mail", "default"], "silent_seconds": 1.0} | facts
    return WorkerLine(
        id=UUID(int=number),
        host="h",
        pid=1,
        version="0",
        slots=4,
        running=1,
        held=0,
        started_at=NOW,
        heartbeat_at=NOW,
        state=state,
        **known,
    )


def pause(queue: str | None, **facts: Any) -> PauseLine:
    known = {"job_type": None, "tenant": None, "until": None, "by": "ada", "reason": "repairs"} | facts
    return PauseLine("queue", queue, paused_at=NOW, **known)


def failing(
    name: str = "shop.send",
    code: str | None = "shop.jobs.ProviderDown",
    times: int = 7,
    state: AttemptState = AttemptState.FAILED,
) -> Failing:
    return Failing(name, code, state, times, 12.0)


def leader(**facts: Any) -> LeaderLine:
    known = {"duty": UPKEEP, "name": "worker-1", "epoch": 3, "seconds": 20.0} | facts
    return LeaderLine(holder=UUID(int=1), since=NOW, **known)


def troubled(name: str = "nightly", trouble: str = "failing", **facts: Any) -> TroubledSchedule:
    known = {"tenant_id": "default", "seconds": 75.0, "times": 3, "error": "unknown_queue"} | facts
    return TroubledSchedule(name, trouble=trouble, **known)


def overview(**facts: Any) -> Overview:
    minutes = [minute(back, done=back) for back in range(30, 0, -1)]
    known: dict[str, Any] = {
        "database_time": NOW,
        "tenant": None,
        "depths": [depth(1, "mail", ready=2, oldest_ready_seconds=3.0)],
        "pauses": [],
        "workers": [worker(1)],
        "leaders": [leader()],
        "over_long": [],
        "failing": [],
        "ticks_come": False,
        "troubled_schedules": [],
        "rates": {},
        "minutes": minutes,
        "totals": total(minutes[-5:]),
        "rated_minutes": 5,
    }
    return Overview(**known | facts)


BUSY = overview(
    depths=[depth(number, ready=number, oldest_ready_seconds=float(number)) for number in range(1, 201)],
    pauses=[pause(f"queue-{number:03d}", reason="a long reason " * 9) for number in range(5)],
    workers=[worker(number) for number in range(40)],
    failing=[failing(f"an.app.with.a.long.name.job_{number}" * 3, "x" * 190) for number in range(9)],
    rates={number: QueueRates(number, done=number * 1000, errors=number) for number in range(1, 201)},
)

TROUBLES = overview(
    depths=BUSY.depths,
    pauses=BUSY.pauses,
    workers=BUSY.workers,
    failing=BUSY.failing,
    rates=BUSY.rates,
    ticks_come=True,
    troubled_schedules=[troubled(f"a-schedule-{number}" * 9, error="y" * 190) for number in range(30)],
)


def texts(shown: Overview, **frame: Any) -> list[str]:
    return [line.text for line in draw(shown, Frame(**frame))]


def found(lines: list[str], start: str) -> str:
    (line,) = (each for each in lines if each.startswith(start))
    return line


@pytest.mark.parametrize(
    "shown",
    [BUSY, TROUBLES, overview(), overview(depths=[], workers=[])],
    ids=["busy", "troubles", "calm", "new"],
)
@pytest.mark.parametrize("width", [1, 20, 60, 80, 200])
def test_it_fits_whatever_there_is_and_however_small_the_screen(shown: Overview, width: int) -> None:
    for rows in range(1, 60):
        lines = texts(shown, width=width, rows=rows)

        assert len(lines) <= rows
        assert max(map(len, lines)) <= width


def test_a_screen_of_80_by_24_has_all_sections_and_counts_the_rest() -> None:
    lines = texts(BUSY, width=80, rows=24)

    assert len(lines) == 24
    assert lines[0].startswith("200 queues: 10000+ ready, oldest 3m 20s, 0 claimed, ")
    assert found(lines, "QUEUE").split() == [
        "QUEUE", "READY", "OLDEST", "CLAIMED", "DONE/M", "ERR/M", "DEAD", "FAILED", "SCHED"
    ]  # fmt: skip
    assert found(lines, "+ 19").startswith("+ 195 more: ")
    assert found(lines, "+ 6").startswith("+ 6 more kinds of failure")
    assert found(lines, "+ 4").startswith("+ 4 more pauses")
    assert found(lines, "workers:") == "workers: 40 alive; 40 of 160 slots busy"
    # Names are cut, figures are not.
    first = found(lines, "queue-200")
    assert first.split() == ["queue-200", "200", "3m", "20s", "0", "44,444", "44", "0", "0", "0"]


def test_a_long_name_is_cut_on_a_screen_and_whole_elsewhere() -> None:
    long = "q" * 63
    shown = overview(depths=[depth(1, long, ready=1)])

    assert any(line.startswith(long + " ") for line in texts(shown))
    assert any(line.startswith("q" * 15) and "…" in line for line in texts(shown, width=80, rows=24))
    assert not any(long in line for line in texts(shown, width=80, rows=24))


def test_queues_stand_by_trouble_on_a_screen_and_by_name_on_a_page() -> None:
    shown = overview(
        depths=[
            depth(1, "a-calm"),
            depth(2, "b-waits", ready=1, oldest_ready_seconds=90.0),
            depth(3, "c-waits-longer", ready=1, oldest_ready_seconds=900.0),
            depth(4, "d-fails", ready=5, oldest_ready_seconds=1.0),
            depth(5, "e-dead", dead_letter=3),
            depth(6, "f-full", ready=9000, oldest_ready_seconds=2.0),
        ],
        rates={4: QueueRates(4, done=1, errors=9)},
    )

    def names(**frame: Any) -> str:
        lines = draw(shown, Frame(**frame))
        return "".join(line.text[0] for line in lines if line.text[1:2] == "-")

    assert names(rows=24, width=80) == "cbdefa"
    assert names() == "abcdef"
    assert names(top=2) == "cb"
    tones = {line.text[0]: line.tone for line in draw(shown, Frame()) if line.text[1:2] == "-"}
    assert tones == {"a": "plain", "b": "warning", "c": "warning", "d": "error", "e": "plain", "f": "plain"}


def test_workers_that_are_silent_come_first_and_in_red() -> None:
    shown = overview(workers=[worker(1), worker(2, "draining"), worker(3, "silent"), worker(4, "stopped")])

    lines = draw(shown, Frame(width=80, rows=24))

    heading = next(line for line in lines if line.text.startswith("workers:"))
    assert heading.text == "workers: 1 silent, 1 draining, 1 alive; 3 of 12 slots busy; left out: 1 gone"
    assert heading.tone == "error"
    assert [line.text.split()[0] for line in lines[-3:]] == ["worker-3", "worker-2", "worker-1"]
    assert (
        "left out: 1 that stopped, or are silent for over 10 minutes (--all-workers shows them)"
        in "\n".join(texts(shown))
    )
    assert "worker-4" in "\n".join(texts(shown, all_workers=True))


@pytest.mark.parametrize(
    ("leaders", "told", "tone"),
    [
        ([leader()], "leader: worker-1 since 2026-03-01 10:00:29+00:00 (epoch 3)", "plain"),
        (
            [leader(seconds=-90.0)],
            "leader: none: worker-1 led until 1m 30s ago, and no worker has taken over",
            "error",
        ),
        ([leader(duty="other")], "leader: none yet: a worker leads as soon as one runs", "faint"),
    ],
    ids=["leads", "has led", "nobody"],
)
def test_who_does_the_upkeep_is_told(leaders: list[LeaderLine], told: str, tone: str) -> None:
    for frame in (Frame(), Frame(width=80, rows=24)):
        lines = draw(overview(leaders=leaders), frame)

        assert (told, tone) in lines


@pytest.mark.parametrize(
    "workers", [[], [worker(1, "stopped", silent_seconds=40.0)]], ids=["none", "stopped"]
)
def test_without_a_worker_it_is_no_failure_that_nobody_leads(workers: list[WorkerLine]) -> None:
    (line,) = [
        each
        for each in draw(overview(leaders=[leader(seconds=-40.0)], workers=workers), Frame())
        if each.text.startswith("leader: ")
    ]

    assert line.text == "leader: none: worker-1 led until 40s ago, and no worker runs that could take over"
    assert line.tone == "faint"


NO_SCHEDULER = "scheduler: none runs: start broker_scheduler, or broker_worker --with-scheduler"
OVERDUE = [troubled(trouble="overdue", times=0, error="")]


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"ticks_come": False}, []),
        ({"ticks_come": None}, []),
        ({"ticks_come": True}, [(NO_SCHEDULER, "warning")]),
        ({"ticks_come": True, "troubled_schedules": OVERDUE}, [(NO_SCHEDULER, "error")]),
        # Of one tenant it is known by what is late alone.
        ({"ticks_come": None, "troubled_schedules": OVERDUE}, [(NO_SCHEDULER, "error")]),
        ({"ticks_come": True, "leaders": [leader()]}, [(NO_SCHEDULER, "warning")]),
        (
            {"ticks_come": True, "leaders": [leader(duty=SCHEDULER, name="s1", seconds=-1.0)]},
            [(NO_SCHEDULER, "warning")],
        ),
        (
            {"ticks_come": True, "leaders": [leader(duty=SCHEDULER, name="s1")]},
            [("scheduler: s1", "plain")],
        ),
    ],
)
def test_who_creates_what_is_due_is_told_or_that_nobody_does(facts: Any, told: list[Any]) -> None:
    for frame in (Frame(), Frame(width=80, rows=24)):
        lines = draw(overview(**facts), frame)

        assert [line for line in lines if line.text.startswith("scheduler: ")] == told


def test_each_schedule_in_trouble_has_its_cure_on_a_page() -> None:
    shown = overview(
        leaders=[leader(duty=SCHEDULER)],
        troubled_schedules=[
            troubled("late", "overdue", times=0, error=""),
            troubled("two words", "failing", tenant_id="acme"),
            troubled("odd", "disabled", seconds=None, times=0, error="[invalid_cron] no"),
        ],
    )

    lines = draw(shown, Frame())

    heading = next(place for place, line in enumerate(lines) if line.text.startswith("SCHEDULE "))
    at, end = lines[heading].text.index("CURE"), lines[heading].text.index("ERROR")
    assert [line.text[at:end].strip() for line in lines[heading : heading + 4]] == [
        "CURE",
        "broker_schedules show late --tenant default",
        "broker_schedules show 'two words' --tenant acme",
        "broker_schedules enable odd --tenant default",
    ]
    assert lines[heading + 3].text.endswith("  [invalid_cron] no")
    assert lines[heading + 2].text.split()[2:7] == ["acme", "failing", "1m", "15s", "3"]
    assert {line.tone for line in lines[heading + 1 : heading + 4]} == {"error"}


def test_what_is_late_since_no_scheduler_runs_is_cured_by_one() -> None:
    assert found(texts(overview(troubled_schedules=OVERDUE)), "nightly").split()[-2:] == [
        "broker_scheduler", "-"
    ]  # fmt: skip


def test_a_screen_keeps_three_rows_for_schedules_and_the_cure_of_the_first() -> None:
    lines = texts(TROUBLES, width=80, rows=40)

    heading = next(place for place, line in enumerate(lines) if line.startswith("SCHEDULE "))
    assert lines[heading].split() == ["SCHEDULE", "TENANT", "TROUBLE", "SINCE", "TIMES", "ERROR"]
    assert [line[:12] for line in lines[heading + 1 : heading + 3]] == ["a-schedule-0", "a-schedule-1"]
    assert lines[heading + 3] == "+ 28 more schedules in trouble: broker_schedules list"
    assert lines[heading + 4].startswith("cure of the first: broker_schedules show a-schedule-0")
    assert lines[heading - 1] == NO_SCHEDULER


def test_where_many_are_overdue_what_fails_is_to_be_seen_too() -> None:
    late = [troubled(f"late-{number}", "overdue", times=0, error="") for number in range(40)]
    shown = overview(troubled_schedules=[*late, troubled("fails"), troubled("odd", "disabled")])

    lines = texts(shown)
    heading = next(place for place, line in enumerate(lines) if line.startswith("SCHEDULE "))

    names = [line.split()[0] for line in lines[heading + 1 : heading + 20]]
    assert names == [*(f"late-{number}" for number in range(17)), "fails", "odd"]
    on_a_screen = texts(shown, width=80, rows=30)
    assert [line.split()[0] for line in on_a_screen if line.startswith(("late", "fails", "odd"))] == [
        "late-0", "fails"
    ]  # fmt: skip


def test_that_no_scheduler_runs_outlasts_the_list_where_there_is_little_room() -> None:
    lines = texts(TROUBLES, width=80, rows=15)

    assert NO_SCHEDULER in lines
    assert not any(line.startswith("SCHEDULE ") for line in lines)


def test_a_kind_of_trouble_that_is_listed_up_to_its_bound_says_so() -> None:
    many = [troubled(f"s{number}") for number in range(TROUBLED_MAX)]

    assert f"+ {TROUBLED_MAX - 19}+ more schedules in trouble: broker_schedules list" in texts(
        overview(troubled_schedules=many)
    )
    assert f"+ {TROUBLED_MAX - 20} more schedules in trouble: broker_schedules list" in texts(
        overview(troubled_schedules=many[1:])
    )


def test_what_runs_for_too_long_is_told_with_the_longest() -> None:
    late = [
        OverLong(UUID(int=number), 1, UUID(int=9), "default", 1, 1, 1, number * 60.0) for number in (1, 2)
    ]

    told = found(texts(overview(over_long=late)), "over-long: 2 running jobs")

    assert told.endswith(f"the longest, {UUID(int=2)}, for 2m 0s")


def test_what_fails_is_told_by_type_and_error_and_how_the_attempt_ended_where_there_is_no_code() -> None:
    shown = overview(failing=[failing(), failing("shop.crash", None, 1, AttemptState.CRASHED)])

    lines = texts(shown)

    assert found(lines, "FAILING").split() == ["FAILING", "ERROR", "TIMES", "LAST"]
    assert found(lines, "shop.send").split() == ["shop.send", "shop.jobs.ProviderDown", "7", "12s"]
    assert found(lines, "shop.crash").split() == ["shop.crash", "crashed", "1", "12s"]


def test_rates_are_over_the_time_that_has_passed_since_the_first_of_the_minutes() -> None:
    shown = overview(rated_minutes=2, totals=total([minute(1, done=90), minute(0, done=90, retried=18)]))

    # A minute and 30 seconds.
    assert found(texts(shown), "last 2 minutes:").startswith("last 2 minutes: 120 done/min, 12 errors/min")


def test_a_tenant_s_picture_tells_no_rates() -> None:
    lines = texts(overview(tenant="acme", rates=None, minutes=None, totals=None))

    assert not any("done/min" in line for line in lines)
    assert found(lines, "mail").split()[4:6] == ["-", "-"]


def test_a_paused_queue_says_so_and_a_pause_of_one_tenant_does_not_stop_the_queue() -> None:
    shown = overview(
        depths=[depth(1, "mail"), depth(2, "reports")],
        pauses=[pause("mail"), pause("reports", tenant="acme")],
    )

    lines = texts(shown)

    assert next(line for line in lines if line.startswith("mail")).endswith("paused")
    assert not next(line for line in lines if line.startswith("reports")).endswith("paused")
    assert "repairs" in lines[-1]


def test_counts_that_reach_their_bound_say_so() -> None:
    assert found(texts(overview(depths=[depth(1, "mail", ready=BOUND)])), "mail").split()[1] == "10000+"


def test_names_cannot_move_the_cursor() -> None:
    shown = overview(
        workers=[worker(1, name="\x1b[2Jgone\n")],
        pauses=[pause("mail", reason="\x1b]0;x\x07")],
        leaders=[leader(duty=SCHEDULER, name="\x1b[2J")],
        troubled_schedules=[troubled("\x1b[2Jgone\n", error="\x1b]0;x\x07")],
    )

    assert "\x1b" not in "".join(texts(shown, width=80, rows=24))
    assert "\n" not in "".join(texts(shown, width=80, rows=24))


@pytest.mark.parametrize(
    ("values", "drawn"),
    [([], ""), ([0, 0], "▁▁"), ([1], "█"), ([0, 1, 1000], "▁▂█"), (list(range(8)), "▁▂▃▄▅▆▇█")],
    ids=str,
)
def test_a_sparkline_tells_little_from_nothing(values: list[float], drawn: str) -> None:
    assert sparkline(values) == drawn
    assert sparkline(values, PLAIN_BARS) == drawn.translate(str.maketrans(BARS, PLAIN_BARS))


def test_a_table_gives_the_longest_names_up_first_and_never_figures() -> None:
    columns = (Column("a", flexible=True), Column("b", flexible=True), Column("n", right=True))

    lines = table(columns, [["x" * 40, "short", 123456789]], 40)

    assert [len(line) for line in lines] == [40, 40]
    assert lines[1].endswith("short  123456789")
    assert lines[1].startswith("x" * 20)


@pytest.mark.parametrize(
    ("width", "text"), [(5, "abcd…"), (6, "abcdef"), (1, "…"), (0, ""), (None, "abcdef")]
)
def test_a_text_is_cut_to_a_width(width: int | None, text: str) -> None:
    assert cut("abcdef", width) == text


EXAMPLE = overview(
    depths=[
        depth(1, "default", ready=3, oldest_ready_seconds=0.4, running=2),
        depth(2, "mail", ready=1420, oldest_ready_seconds=200.0, running=8, dead_letter=9, scheduled=31),
        depth(3, "reports", ready=4, oldest_ready_seconds=90.0),
    ],
    rates={1: QueueRates(1, 5400, 0), 2: QueueRates(2, 310, 118)},
    totals=total([minute(4, done=5710, retried=110, dead=8)]),
    minutes=[minute(31 - number, done=900 + 37 * (number * 7 % 11)) for number in range(30)],
    failing=[
        failing("shop.send_receipt", "shop.jobs.ProviderDown", 109),
        failing("shop.close_books", "timed_out", 9),
    ],
    workers=[
        worker(1, name="web1", queues=["default"]),
        worker(2, "silent", name="mail1", queues=["mail"], silent_seconds=75.0),
    ],
    leaders=[leader(name="web1")],
    pauses=[pause("reports", reason="month end")],
)


def test_the_guide_shows_what_is_drawn() -> None:
    (shown,) = (
        block.body for block in blocks(DOCS / "howto" / "watch-the-broker.md") if block.language == "text"
    )

    drawn = texts(EXAMPLE, width=80, rows=23)

    assert shown.splitlines()[0].startswith("pgbroker on default  2026-03-01 10:00:29 UTC")
    assert shown.splitlines()[1:] == drawn

"""An overview as lines of text, for a page without end or for a screen of so many rows. Pure."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pgbroker import reports
from pgbroker.management.lines import BARS, Column, Frame, Line, Tone, cut, limited, table
from pgbroker.management.output import ago, harmless
from pgbroker.management.schedule_troubles import tell_scheduler, tell_troubles
from pgbroker.overview import LONG_WAIT_SECONDS, Failing, Overview
from pgbroker.runtime.duties import UPKEEP

# What a screen keeps for each section beside the queues, where there is more to tell.
FAILING_ROWS, WORKER_ROWS, PAUSE_ROWS = 4, 3, 2
LEAST_QUEUES = 3
_TROUBLED = ("silent", "draining", "alive", "stopped")


def draw(overview: Overview, frame: Frame) -> list[Line]:
    """Return the lines of an overview; with rows, never more than these."""
    lines = _page(overview, frame) if frame.rows is None else _screen(overview, frame, frame.rows)
    return [Line(cut(line.text, frame.width), line.tone) for line in lines]


def _page(overview: Overview, frame: Frame) -> list[Line]:
    sections = [
        [*_summary(overview), *_throughput(overview, frame)],
        _queues(overview, frame, frame.top),
        _failing(overview, frame, None),
        [*tell_scheduler(overview), *tell_troubles(overview, frame)],
        [*_workers(overview, frame, None), *_upkeep(overview)],
        _pauses(overview, frame, None),
    ]
    return [line for section in filter(None, sections) for line in (*section, Line(""))][:-1]


def _screen(overview: Overview, frame: Frame, rows: int) -> list[Line]:
    head = [*_summary(overview), *_throughput(overview, frame)]
    left = rows - len(head)
    sections = []
    scheduler = tell_scheduler(overview)
    # The queues get what the others leave; where there is little room, the least pressing goes first.
    for section in (
        _failing(overview, frame, FAILING_ROWS),
        scheduler if overview.lacks_scheduler else [],
        tell_troubles(overview, frame),
        _pauses(overview, frame, PAUSE_ROWS),
        _upkeep(overview),
        [] if overview.lacks_scheduler else scheduler,
        _workers(overview, frame, WORKER_ROWS),
    ):
        if section and left - len(section) >= LEAST_QUEUES + 2:
            sections.append(section)
            left -= len(section)
    # A heading, and where not all fit one line that counts the rest.
    room = max(0, left - 1)
    fitting = None if len(overview.depths) <= room else max(0, room - 1)
    queues = _queues(overview, frame, fitting, in_order=False) if left >= 2 else []
    return [*head, *queues, *(line for section in sections for line in section)][:rows]


def sparkline(values: Sequence[float], bars: str = BARS) -> str:
    """Draw values as bars; the highest is the largest, and only zero is the lowest."""
    highest = max(values, default=0)
    if highest <= 0:
        return bars[0] * len(values)
    steps = len(bars) - 1
    return "".join(bars[0 if value <= 0 else max(1, round(value / highest * steps))] for value in values)


def _rate(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:.1f}" if 0 < number < 10 else f"{number:,.0f}"


# ------------------------------------------------------------------ sections


def _summary(overview: Overview) -> Iterable[Line]:
    def of_all(count: Callable[[reports.QueueDepth], int]) -> str:
        return reports.at_most(min(sum(map(count, overview.depths)), reports.BOUND))

    def some_of_all(word: str, count: Callable[[reports.QueueDepth], int]) -> str:
        return f", {of_all(count)} {word}" if any(map(count, overview.depths)) else ""

    oldest = overview.oldest_ready_seconds
    waits = f", oldest {ago(oldest)}" if oldest >= 1 else ""
    text = (
        f"{_counted(len(overview.depths), 'queue')}: {of_all(lambda each: each.ready)} ready{waits}, "
        f"{of_all(lambda each: each.running)} claimed, {of_all(lambda each: each.scheduled)} scheduled, "
        f"{of_all(lambda each: each.dead_letter)} dead, {of_all(lambda each: each.failed)} failed"
        f"{some_of_all('waiting', lambda each: each.waiting)}{some_of_all('blocked', lambda each: each.blocked)}"
    )
    yield Line(text, "warning" if oldest >= LONG_WAIT_SECONDS else "plain")


def _throughput(overview: Overview, frame: Frame) -> Iterable[Line]:
    if overview.totals is None or overview.minutes is None:
        return
    totals = overview.totals
    errors = totals["retried"] + totals["failed"] + totals["dead"]
    text = (
        f"last {_counted(overview.rated_minutes, 'minute')}: {_rate(overview.per_minute(totals['done']))} done/min, "
        f"{_rate(overview.per_minute(errors))} errors/min, mean run {totals['mean_run_seconds']:.3f} s, "
        f"wait {totals['mean_wait_seconds']:.3f} s"
    )
    yield Line(text, "warning" if errors else "plain")
    done = [minute.done for minute in overview.minutes]
    if any(done):
        label = f"done a minute, {len(done)} min: "
        yield Line(f"{label}{sparkline(done, frame.bars)} at most {max(done):,}")


# What a narrow screen cuts off comes last.
_QUEUES = (
    Column("queue", flexible=True),
    *(Column(name, right=True) for name in ("ready", "oldest", "claimed", "done/m", "err/m")),
    *(Column(name, right=True) for name in ("dead", "failed", "sched")),
)


def _queues(overview: Overview, frame: Frame, limit: int | None, *, in_order: bool = True) -> list[Line]:
    paused = overview.paused_queues
    ordered = overview.depths if in_order and limit is None else overview.most_trouble_first()
    shown, rest = (ordered, []) if limit is None else (ordered[:limit], ordered[limit:])
    columns = (*_QUEUES, Column("")) if paused else _QUEUES
    lines = table(
        columns, [_row_of_queue(overview, each, paused)[: len(columns)] for each in shown], frame.width
    )
    told = [
        Line(lines[0], "heading"),
        *(Line(text, _tone_of(overview, each)) for text, each in zip(lines[1:], shown, strict=True)),
    ]
    if rest:
        told.append(Line(_rest(rest), "faint"))
    return told


def _row_of_queue(overview: Overview, depth: reports.QueueDepth, paused: set[str]) -> list[Any]:
    rates = overview.rates_of(depth)
    return [
        depth.queue,
        reports.at_most(depth.ready),
        ago(depth.oldest_ready_seconds),
        reports.at_most(depth.running),
        _rate(None if rates is None else overview.per_minute(rates.done)),
        _rate(None if rates is None else overview.per_minute(rates.errors)),
        reports.at_most(depth.dead_letter),
        reports.at_most(depth.failed),
        reports.at_most(depth.scheduled),
        "paused" if depth.queue in paused else " ",
    ]


def _tone_of(overview: Overview, depth: reports.QueueDepth) -> Tone:
    rates = overview.rates_of(depth)
    if rates is not None and rates.errors > rates.done:
        return "error"
    if (depth.oldest_ready_seconds or 0) >= LONG_WAIT_SECONDS or (rates is not None and rates.errors):
        return "warning"
    return "plain"


def _rest(depths: Sequence[reports.QueueDepth]) -> str:
    ready = min(sum(each.ready for each in depths), reports.BOUND)
    dead = min(sum(each.dead_letter for each in depths), reports.BOUND)
    oldest = max(each.oldest_ready_seconds or 0.0 for each in depths)
    text = f"+ {len(depths)} more: {reports.at_most(ready)} ready, {reports.at_most(dead)} dead"
    return text + (f", oldest {ago(oldest)}" if oldest >= 1 else "")


def _failing(overview: Overview, frame: Frame, limit: int | None) -> list[Line]:
    failing = overview.failing
    if not failing:
        return []
    shown, rest = limited(failing, limit)
    columns = (
        Column("failing", flexible=True),
        Column("error", flexible=True),
        Column("times", right=True),
        Column("last", right=True),
    )
    lines = table(columns, [_row_of_failing(each) for each in shown], frame.width)
    told = [Line(lines[0], "heading"), *(Line(text, "error") for text in lines[1:])]
    if rest:
        told.append(Line(f"+ {len(rest)} more kinds of failure in the last hour", "faint"))
    return told


def _row_of_failing(each: Failing) -> list[Any]:
    return [each.job_type, each.error, each.times, ago(each.last_seconds)]


def _workers(overview: Overview, frame: Frame, limit: int | None) -> list[Line]:
    known = [each for each in overview.workers if frame.all_workers or not each.is_gone]
    gone = len(overview.workers) - len(known)
    by_state = {state: sum(each.state == state for each in known) for state in _TROUBLED}
    states = ", ".join(f"{count} {state}" for state, count in by_state.items() if count)
    slots, running = (sum(getattr(each, name) for each in known) for name in ("slots", "running"))
    text = f"workers: {states}; {running} of {slots} slots busy" if known else "workers: none"
    if gone and frame.rows is None:
        text += (
            f"; left out: {gone} that stopped, or are silent for over 10 minutes (--all-workers shows them)"
        )
    elif gone:
        text += f"; left out: {gone} gone"
    told = [Line(text, "error" if not known or by_state["silent"] else "heading")]
    if not known:
        return told
    ordered = sorted(known, key=lambda each: _TROUBLED.index(each.state)) if limit is not None else known
    # The line above tells how many there are.
    shown = ordered if limit is None else ordered[:limit]
    columns = (
        Column("worker", flexible=True),
        Column("state"),
        *(Column(name, right=True) for name in ("heard of", "slots", "running", "held")),
        Column("queues", flexible=True),
    )
    rows = [[w.name, w.state, ago(w.silent_seconds), w.slots, w.running, w.held, w.queues] for w in shown]
    lines = table(columns, rows, frame.width)
    tones: dict[str, Tone] = {"silent": "error", "draining": "warning"}
    told.append(Line(lines[0], "heading"))
    told += [Line(text, tones.get(each.state, "plain")) for text, each in zip(lines[1:], shown, strict=True)]
    return told


def _upkeep(overview: Overview) -> list[Line]:
    """Say who does the upkeep, or since when nobody does; and what it found that only a person can end."""
    told = []
    leader = next((each for each in overview.leaders if each.duty == UPKEEP), None)
    if leader is None:
        told.append(Line("leader: none yet: a worker leads as soon as one runs", "faint"))
    elif not leader.leads:
        name = harmless(leader.name, keep="")
        # A worker that runs should have taken over long since; without any, that is what to tell, and is told above.
        alive = any(each.state == "alive" for each in overview.workers)
        missing = "no worker has taken over" if alive else "no worker runs that could take over"
        text = f"leader: none: {name} led until {ago(-leader.seconds)} ago, and {missing}"
        told.append(Line(text, "error" if alive else "faint"))
    else:
        since = leader.since.isoformat(sep=" ", timespec="seconds")
        name = harmless(leader.name, keep="")
        told.append(Line(f"leader: {name} since {since} (epoch {leader.epoch})"))
    if overview.over_long:
        first = max(overview.over_long, key=lambda each: each.seconds)
        told.append(
            Line(
                f"over-long: {len(overview.over_long)} running jobs beyond their timeout or deadline; the longest, "
                f"{first.job_id}, for {ago(first.seconds)}",
                "error",
            )
        )
    return told


def _pauses(overview: Overview, frame: Frame, limit: int | None) -> list[Line]:
    if not overview.pauses:
        return []
    shown, rest = limited(overview.pauses, limit)
    columns = (
        Column("paused queue", flexible=True),
        Column("type", flexible=True),
        Column("tenant", flexible=True),
        Column("since"),
        Column("until"),
        Column("by", flexible=True),
        Column("reason", flexible=True),
    )
    rows = [
        [p.queue, p.job_type, p.tenant, _time(p.paused_at), _time(p.until), p.by, p.reason] for p in shown
    ]
    lines = table(columns, rows, frame.width)
    told = [Line(lines[0], "heading"), *(Line(text, "warning") for text in lines[1:])]
    if rest:
        told.append(Line(f"+ {len(rest)} more pauses", "faint"))
    return told


def _time(instant: Any) -> str | None:
    return None if instant is None else f"{instant:%m-%d %H:%M}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"

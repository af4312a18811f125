"""Schedulers on a host whose clock is wrong, and behind a pooler that changes connections at each transaction."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection

from pgbroker.models import ScheduleRun
from pgbroker.policy.cron import zones
from testproject import database
from testproject.chaos import clock
from testproject.matrix.pooler import pooler
from tests import conftest
from tests.runtime.fleet import ROOT, wait_until
from tests.runtime.test_schedulers import APART, ONCE_A_YEAR, check_each_once, one_after_the_other, reign
from tests.support.schedules import jobs, make, now, row, runs, set_row
from tests.support.sessions import environment_of_processes

pytestmark = pytest.mark.django_db(transaction=True)


class Process:
    """A scheduler of its own, with an environment of its own: what runs in `fleet` shares that of its zygote."""

    def __init__(self, log: Path, *flags: str, **environment: str) -> None:
        self.log_path = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-W", "ignore", "testproject/manage.py", "broker_scheduler", "--skip-checks",
                    *flags,
                ],
                cwd=ROOT,
                env={**os.environ, **environment_of_processes(), "PYTHONPATH": str(ROOT), **environment},
                stdout=out,
                stderr=out,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_until_started(self) -> None:
        wait_until(lambda: "scheduler started" in self.log or self._process.poll(), "it has started", of=self)
        assert self._process.poll() is None, self.log

    def end(self, how: int = signal.SIGTERM) -> int:
        self._process.send_signal(how)
        return self._process.wait(20)

    def wait(self) -> int:
        return self._process.wait(30)

    def clean(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def start(tmp_path, _pgbroker_flush) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def start_one(*flags: str, **environment: str) -> Process:
        made.append(Process(tmp_path / f"scheduler-{len(made)}.log", *flags, **environment))
        return made[-1]

    yield start_one
    for each in made:
        each.clean()


@pytest.mark.parametrize("seconds", [600, -600])
def test_b084_on_a_host_whose_clock_is_wrong_ticks_come_by_the_databases_time(seconds, start, tmp_path):
    try:
        wrong = clock.environment(tmp_path, seconds)
    except clock.NoClock as reason:
        pytest.skip(str(reason))
    process = start(**wrong)
    process.wait_until_started()
    made = one_after_the_other(5)
    # On a clock that is ten minutes fast it has come.
    (early,) = one_after_the_other_in(1, timedelta(minutes=5))

    check_each_once(made, process, latest=timedelta(seconds=5))

    assert [each.next_run_at.date().replace(year=2000).isoformat() for each in map(row, made)] == [
        "2000-02-29"
    ] * 5
    assert all(row(each).next_run_at > now() for each in made)
    assert runs(early) == []
    assert process.end() == 0


def test_once_from_cron_on_a_host_whose_clock_is_fast_creates_what_is_due_and_no_more(start, tmp_path):
    try:
        wrong = clock.environment(tmp_path, 600)
    except clock.NoClock as reason:
        pytest.skip(str(reason))
    due = make("due")
    (early,) = one_after_the_other_in(1, timedelta(minutes=5))

    assert start("--once", **wrong).wait() == 0

    assert [each.state for each in runs(due)] == ["created"]
    assert 0 <= runs(due)[0].lateness_seconds < 90
    assert runs(early) == []


@contextmanager
def pooled(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Run PgBouncer before the test's server; gives what makes a process go through it."""
    if not database.is_embedded():
        pytest.skip("the pooler is put before the embedded server")
    try:
        with pooler(request.config.stash[conftest.server]) as address:
            name = connection.settings_dict["NAME"]
            before, _, after = address.partition("?")
            yield {"DATABASE_URL": f"{before.rpartition('/')[0]}/{name}?{after}"}
    except SystemExit as reason:
        pytest.skip(str(reason))


@pytest.mark.slow
def test_b121_behind_a_pooler_in_transaction_mode_one_leads_and_another_takes_over(request, start, superuser):
    with pooled(request) as through:
        first = start(**through)
        first.wait_until_started()
        wait_until(lambda: reign(1), "the first leads", of=first)
        second = start(**through)
        second.wait_until_started()
        made = one_after_the_other(20)
        wait_until(lambda: ScheduleRun.objects.count() >= 3, "some are created", of=first)
        (shared,) = superuser.execute(
            "select count(*) from pg_stat_activity where datname = current_database() "
            "and application_name like 'pgbroker schedule%'"
        ).fetchone()

        first.end(signal.SIGKILL)

        # The lease of the one that was killed is as long as the settings say that its project has.
        check_each_once(made, second, latest=timedelta(seconds=10 + 2) + 20 * APART)
        assert reign(2)
        assert shared > 0
        (locks,) = superuser.execute("select count(*) from pg_locks where locktype = 'advisory'").fetchone()
        assert locks == 0
        assert second.end() == 0
        assert "schedule.failed" not in first.log + second.log
        assert len(jobs()) == 20


def one_after_the_other_in(number: int, ahead: timedelta) -> list:
    """Make schedules whose ticks come in so long, and then none for years."""
    made = [
        make(f"later-{place}", **ONCE_A_YEAR, zone_rules=zones.load("UTC").fingerprint)
        for place in range(number)
    ]
    for each in made:
        set_row(each, next_run_at=now() + ahead)
    return made

"""Worker processes as Prometheus and probes see them."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections import Counter

import psycopg
import pytest
from django.db import connection

from pgbroker.models import Execution
from pgbroker.states import AttemptState, Status
from pgbroker.tenancy import scope_all
from tests.runtime import handlers
from tests.runtime.fleet import (
    Fleet,
    WorkerProcess,
    count_by_status,
    end_sessions,
    put,
    wait_for_effect,
    wait_for_status,
    wait_until,
)
from tests.support.scraping import Answered, Samples, get, samples, total, value

pytestmark = pytest.mark.django_db(transaction=True)

PORT = ("--metrics-port", "0")


def ask(worker: WorkerProcess, path: str) -> Answered:
    found = re.search(r"http://[^/]+", worker.log)
    assert found, worker.log
    return get(f"{found[0]}{path}")


def scrape(worker: WorkerProcess) -> Samples:
    return samples(ask(worker, "/metrics").text)


def queued_and_ended() -> tuple[Counter[str], Counter[str]]:
    """Count attempts by outcome and jobs by status, as the database has them."""
    with scope_all():
        outcomes = Counter(
            AttemptState(state).label for state in Execution.objects.values_list("state", flat=True)
        )
    return outcomes, Counter({status.label: count for status, count in count_by_status().items()})


def test_what_a_worker_counted_is_what_the_database_has_and_never_falls(fleet: Fleet):
    ids = [put(handlers.note, "n") for _ in range(20)] + [put(handlers.note_async, "n") for _ in range(20)]
    ids += [put(handlers.raise_it, kind) for kind in ("discard", "snooze")]
    ids += [put(handlers.raise_it, "group", max_attempts=2, backoff=0.05) for _ in range(3)]
    worker = fleet.start(*PORT)
    seen = []
    settled = (Status.COMPLETED, Status.FAILED, Status.DEAD_LETTER, Status.SCHEDULED)

    def finished() -> bool:
        seen.append(total(scrape(worker), "pgbroker_attempts_settled_total"))
        return seen[-1] >= 20 + 20 + 2 + 6

    wait_until(finished, "all attempts are counted", of=worker)
    wait_for_status(ids, *settled)

    read = scrape(worker)
    outcomes, statuses = queued_and_ended()
    assert seen == sorted(seen)
    assert outcomes == {"completed": 40, "failed": 7, "snoozed": 1}
    assert {
        each: total(read, "pgbroker_attempts_settled_total", outcome=each) for each in outcomes
    } == outcomes
    del statuses["scheduled"]
    assert {each: total(read, "pgbroker_jobs_ended_total", status=each) for each in statuses} == statuses
    assert total(read, "pgbroker_jobs_retried_total") == 3
    assert total(read, "pgbroker_attempts_claimed_total") == 48
    assert total(read, "pgbroker_attempt_run_seconds_count") == 48
    assert total(read, "pgbroker_attempt_wait_seconds_count", job_type=handlers.note.key) == 20
    with connection.cursor() as cursor, scope_all():
        cursor.execute("select sum(run_seconds), sum(wait_seconds) from pgbroker.job_counter")
        run, waited = cursor.fetchone()
    assert total(read, "pgbroker_attempt_run_seconds_sum") == pytest.approx(run, rel=1e-3)
    assert total(read, "pgbroker_attempt_wait_seconds_sum") == pytest.approx(waited, rel=1e-3)


def test_b161_the_depth_is_each_workers_the_same_and_a_killed_worker_is_missed(fleet: Fleet):
    workers = [fleet.start(*PORT, slots=1, SAMPLE_SECONDS=1) for _ in range(3)]
    running = [put(handlers.work, 60) for _ in range(3)]
    wait_for_status(running, Status.RUNNING)
    waiting = [put(handlers.note, "n") for _ in range(10)]

    def depths(of: list[WorkerProcess]) -> list[float]:
        # A worker may hold a job of its own; what is held is told as running.
        return [total(scrape(each), "pgbroker_queue_depth", status="ready") for each in of]

    def alive(of: list[WorkerProcess]) -> list[float]:
        return [value(scrape(each), "pgbroker_workers", database="default", state="alive") for each in of]

    wait_until(lambda: depths(workers) == [len(waiting)] * 3, "every worker tells the depth")
    assert alive(workers) == [3.0] * 3
    workers[0].kill()
    wait_until(lambda: alive(workers[1:]) == [2.0] * 2, "the killed one is no more alive")

    assert [total(scrape(each), "pgbroker_running") for each in workers[1:]] == [1, 1]
    assert depths(workers[1:])[0] in (len(waiting), len(waiting) + 1)


def two_free_ports() -> tuple[int, int]:
    """Find two ports, one after the other, that nobody has at this moment."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            number = first.getsockname()[1]
            try:
                socket.create_server(("127.0.0.1", number + 1)).close()
            except (OSError, OverflowError):
                continue
            return number, number + 1


def test_b159_each_of_several_processes_has_its_port_and_together_they_count_each_job_once(fleet: Fleet):
    ports = two_free_ports()
    parent = fleet.start("--processes", "2", "--metrics-port", str(ports[0]), slots=1, PREFETCH_MAX=0)
    wait_until(lambda: parent.log.count("worker started") == 2, "both have started", of=parent)
    ids = [put(handlers.stubborn_quiet, 0.02) for _ in range(60)]
    seen: dict[int, list[float]] = {port: [] for port in ports}

    def settled(port: int) -> float:
        read = samples(get(f"http://127.0.0.1:{port}/metrics").text)
        seen[port].append(total(read, "pgbroker_attempts_settled_total"))
        return seen[port][-1]

    wait_until(lambda: sum(map(settled, ports)) == len(ids), "all are counted", of=parent)

    assert all(counted == sorted(counted) and counted[-1] > 0 for counted in seen.values())
    facts = get(f"http://127.0.0.1:{ports[1]}/healthz").text
    victim = int(re.search(r"^pid: (\d+)$", facts, re.M)[1])
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: parent.log.count("worker started") == 3, "it was started again", of=parent)
    assert settled(ports[1]) == 0
    assert settled(ports[0]) == seen[ports[0]][-2]


def test_a_worker_that_works_is_live_and_ready_and_tells_where(fleet: Fleet):
    worker = fleet.start(*PORT)
    wait_until(lambda: ask(worker, "/readyz").status == 200, "it is ready", of=worker)

    live = ask(worker, "/healthz")

    assert live.status == 200
    told = dict(line.split(": ", 1) for line in live.text.splitlines() if ": " in line)
    assert told["database"] == connection.settings_dict["NAME"]
    assert told["alias"] == "default"
    assert told["migration"] == "0001_initial"
    assert int(told["pid"]) == worker.pid


def test_a_draining_worker_lives_and_is_not_ready(fleet: Fleet):
    worker = fleet.start(*PORT, SHUTDOWN_TIMEOUT_SECONDS=30)
    put(handlers.work, 2.0)
    wait_for_effect("enter", of=worker)
    worker.signal(signal.SIGTERM)
    wait_until(lambda: ask(worker, "/readyz").text.startswith("draining"), "it drains", of=worker)

    answers = [ask(worker, path).status for path in ("/readyz", "/healthz", "/metrics")]

    assert answers == [503, 200, 200]
    assert worker.wait() == 0


def test_b163_while_the_database_is_away_a_worker_lives_is_not_ready_and_says_so(
    fleet: Fleet, superuser: psycopg.Connection
):
    # A lease that outlasts the test: it is the connections that are missed, not the heartbeat.
    worker = fleet.start(*PORT, SAMPLE_SECONDS=1, LEASE_SECONDS=300)
    wait_until(lambda: ask(worker, "/readyz").status == 200, "it is ready", of=worker)
    name = connection.settings_dict["NAME"]

    superuser.execute(f'alter database "{name}" connection limit 0')
    try:
        end_sessions(superuser, like="pgbroker %")
        wait_until(lambda: ask(worker, "/readyz").status == 503, "it is not ready", of=worker)
        unready, live = ask(worker, "/readyz"), ask(worker, "/healthz")
        wait_until(
            lambda: value(scrape(worker), "pgbroker_database_up", database="default") == 0, "it is told"
        )
        read = scrape(worker)
    finally:
        superuser.execute(f'alter database "{name}" connection limit -1')

    assert unready.text.startswith("not connected")
    assert live.status == 200
    assert not total(read, "pgbroker_queue_depth")
    assert value(read, "pgbroker_connection_losses_total", loop="claim") == 1
    done = put(handlers.note, "n")
    wait_for_status(done, Status.COMPLETED, of=worker)
    wait_until(lambda: ask(worker, "/readyz").status == 200, "it is ready again", of=worker)


def test_a_port_that_is_taken_ends_the_start_with_code_2(fleet: Fleet):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]

        worker = fleet.start("--metrics-port", str(number), wait=False)

        assert worker.wait() == 2
    assert f"[port_unavailable] port {number} of 127.0.0.1 cannot be opened" in worker.log
    assert "worker started" not in worker.log


def test_the_setting_opens_a_port_and_the_flag_overrides_it(fleet: Fleet):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]

        refused = fleet.start(wait=False, METRICS_PORT=number)
        chosen = fleet.start(*PORT, METRICS_PORT=number)

        assert refused.wait() == 2
        assert ask(chosen, "/healthz").status == 200

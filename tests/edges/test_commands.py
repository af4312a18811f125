"""broker_jobs, broker_queues, broker_status: what an operator types and what comes back."""

from __future__ import annotations

import argparse
import json
import re
from datetime import timedelta
from io import StringIO
from uuid import UUID, uuid4

import pytest
from django.core.management import CommandError, call_command, load_command_class
from django.core.management.base import BaseCommand

from pgbroker import control, reports
from pgbroker.models import Pause, Queue
from pgbroker.states import AttemptState, Status
from pgbroker.tenancy import tenant_context
from tests.factories import JobFactory, WorkerFactory, now
from tests.support.commands import read, refused, run
from tests.support.groups import after
from tests.support.jobs import (
    TYPE,
    age,
    alive,
    claim_one,
    completed,
    ended,
    enqueue_one,
    failed,
    queue_id,
    row,
    settle_one,
    status,
    type_id,
)
from tests.support.leaders import ADA, age_lease, ask

pytestmark = pytest.mark.django_db


# ------------------------------------------------------------------ jobs


def test_jobs_are_listed_of_all_tenants_newest_first():
    first = enqueue_one()
    with tenant_context("acme"):
        second = enqueue_one()

    listed = read("broker_jobs", "list")["jobs"]

    assert [each["id"] for each in listed] == sorted([str(first), str(second)], reverse=True)
    assert {each["tenant_id"] for each in listed} == {"default", "acme"}


def test_a_tenant_narrows_the_list_and_what_can_be_done():
    enqueue_one()
    with tenant_context("acme"):
        other = enqueue_one()

    listed = read("broker_jobs", "list", "--tenant", "acme")["jobs"]
    error = refused("broker_jobs", "cancel", other, "--tenant", "default")

    assert [each["id"] for each in listed] == [str(other)]
    assert error.returncode == 1
    assert status(other) == Status.READY


def test_pages_show_every_job_once():
    made = {str(enqueue_one()) for _ in range(5)}
    seen, after = [], None

    while True:
        page = read("broker_jobs", "list", "--limit", 2, *(["--after", after] if after else []))
        seen += [each["id"] for each in page["jobs"]]
        after = page["next"]
        if after is None:
            break

    assert len(seen) == 5
    assert set(seen) == made


def test_filters_narrow_the_list():
    wanted = enqueue_one(queue="mail", job_type="tests.mail")
    enqueue_one()
    JobFactory(dead_letter=True, queue_id=queue_id("mail"), job_type_id=type_id("tests.mail"))

    listed = read("broker_jobs", "list", "--queue", "mail", "--type", "tests.mail", "--status", "ready")[
        "jobs"
    ]

    assert [each["id"] for each in listed] == [str(wanted)]


def test_a_status_that_no_job_can_have_yet_is_no_choice_but_is_told():
    job = JobFactory(suspended=True)

    with pytest.raises(CommandError, match="invalid choice: 'suspended'"):
        run("broker_jobs", "list", "--status", "suspended")

    assert [(each["id"], each["status"]) for each in read("broker_jobs", "list")["jobs"]] == [
        (str(job.pk), "suspended")
    ]


def test_the_table_has_a_line_a_job():
    job = enqueue_one()
    settle_one(failed(claim_one(), delay=None))

    lines = run("broker_jobs", "list").splitlines()

    assert lines[0].split() == [
        "ID", "TYPE", "QUEUE", "TENANT", "GROUP", "STATUS", "ATTEMPTS", "CREATED", "ERROR",
    ]  # fmt: skip
    assert str(job) in lines[1]
    assert "boom" in lines[1]


def test_text_of_others_cannot_move_the_cursor():
    job = enqueue_one()
    bad = "bad\x1b[2Jtext\r"
    settle_one(
        ended(
            claim_one(),
            AttemptState.FAILED,
            error_code=bad,
            error=bad,
            traceback=f"first\n{bad}",
            log_tail=bad,
        )
    )

    for text in (run("broker_jobs", "list"), run("broker_jobs", "show", job)):
        assert "\x1b" not in text
        assert "\r" not in text
        assert "bad [2Jtext" in text
    assert "first\nbad" in run("broker_jobs", "show", job)


def test_a_job_is_shown_with_its_timeline():
    job = enqueue_one(args={"v": 1, "args": [7], "kwargs": {}})
    settle_one(failed(claim_one(), traceback="Traceback: here", log_tail="the last line"))

    text = run("broker_jobs", "show", job)
    facts = read("broker_jobs", "show", job)

    for told in ("attempt 1 started", "attempt 1 failed", "Traceback: here", "the last line", '"args": [7]'):
        assert told in text
    assert facts["status"] == "scheduled"
    assert facts["timeline"][0]["what"] == "enqueued"
    assert facts["executions"][0]["error"] == "it broke"
    assert facts["executions"][0]["state"] == "failed"


def test_a_retry_tells_what_became_of_each():
    dead, live, missing = JobFactory(dead_letter=True).pk, enqueue_one(), uuid4()

    said = StringIO()
    with pytest.raises(CommandError, match="2 of 3 jobs left as they are") as caught:
        call_command("broker_jobs", "retry", str(dead), str(live), str(missing), "--format=json", stdout=said)

    assert caught.value.returncode == 1
    assert [each["outcome"] for each in json.loads(said.getvalue())["jobs"]] == [
        "retried",
        "unchanged",
        "job_not_found",
    ]
    assert (status(dead), status(live)) == (Status.READY, Status.READY)


def test_a_retry_grants_what_was_asked_for():
    dead = JobFactory(dead_letter=True).pk

    run("broker_jobs", "retry", dead, "--attempts", 3)

    assert row(dead).max_attempts == 8


def test_a_cancel_keeps_reason_and_who():
    job = enqueue_one()

    answer = read("broker_jobs", "cancel", job, "--reason", "wrong month")

    assert answer["jobs"][0]["outcome"] == "cancelled"
    assert control.get_job(job).reason == "wrong month"


def test_a_cancel_tells_what_goes_along_before_and_when_it_does():
    root = enqueue_one()
    waiting = after(root)

    dry = run("broker_jobs", "cancel", root, "--dry-run")
    facts = read("broker_jobs", "cancel", root, "--dry-run")

    assert "1 job that waits would be cancelled along" in dry
    assert str(waiting) in dry
    assert (facts["totals"], facts["exact"], facts["along"][0]["id"]) == (
        {"cancelled": 1},
        True,
        str(waiting),
    )
    assert (status(root), status(waiting)) == (Status.READY, Status.WAITING)
    said = StringIO()
    call_command("broker_jobs", "cancel", str(root), stderr=said, stdout=StringIO())
    assert "1 job that waits would be cancelled along" in said.getvalue()
    assert status(root) == Status.CANCELLED
    assert "Nothing else would change" in run("broker_jobs", "cancel", enqueue_one(), "--dry-run")


def test_a_dry_run_of_a_cancel_tells_what_becomes_of_the_jobs_themselves():
    ready, running, ended = enqueue_one(), JobFactory(running=True).pk, JobFactory(dead_letter=True).pk

    assert "would be cancelled  ready" in run("broker_jobs", "cancel", ready, "--dry-run")
    assert "would be asked to stop" in run("broker_jobs", "cancel", running, "--dry-run")
    for job, told in ((ended, "unchanged: it has ended"), (uuid4(), "there is none: look at id and tenant")):
        out = StringIO()
        with pytest.raises(CommandError, match="1 of 1 jobs would be left as they are") as failed:
            call_command("broker_jobs", "cancel", str(job), "--dry-run", stdout=out)
        assert failed.value.returncode == 1
        assert told in out.getvalue()
    assert status(ready) == Status.READY


def test_a_redrive_looks_first_and_takes_what_matches():
    dead = [JobFactory(dead_letter=True).pk for _ in range(3)]
    other = JobFactory(dead_letter=True, job_type_id=type_id("tests.mail")).pk
    failed_one = JobFactory(failed=True).pk

    looked = read("broker_jobs", "redrive", "--type", TYPE, "--dry-run")
    assert {status(each) for each in dead} == {Status.DEAD_LETTER}
    done = read("broker_jobs", "redrive", "--type", TYPE, "--yes")

    assert (looked["matching"], looked["retried"]) == (3, 0)
    assert done == {"matching": 3, "retried": 3, "refused": 0}
    assert {status(each) for each in dead} == {Status.READY}
    assert (status(other), status(failed_one)) == (Status.DEAD_LETTER, Status.FAILED)


def test_a_redrive_reaches_all_tenants_but_only_one_when_told():
    with tenant_context("acme"):
        theirs = JobFactory(dead_letter=True).pk
    ours = JobFactory(dead_letter=True).pk

    run("broker_jobs", "redrive", "--tenant", "acme", "--yes")
    assert (status(theirs), status(ours)) == (Status.READY, Status.DEAD_LETTER)
    run("broker_jobs", "redrive", "--yes")

    assert status(ours) == Status.READY


def test_a_redrive_with_a_limit_stops_there():
    dead = [JobFactory(dead_letter=True).pk for _ in range(3)]

    answer = read("broker_jobs", "redrive", "--limit", 2, "--yes")

    assert answer["retried"] == 2
    assert [status(each) for each in dead].count(Status.READY) == 2


def test_a_redrive_without_anybody_to_ask_is_refused(monkeypatch):
    monkeypatch.setattr("sys.stdin", StringIO())
    dead = JobFactory(dead_letter=True).pk

    error = refused("broker_jobs", "redrive")

    assert error.returncode == 2
    assert "--yes is missing" in str(error)
    assert status(dead) == Status.DEAD_LETTER


@pytest.mark.parametrize(
    ("answer", "expected"), [("y", Status.READY), ("n", Status.DEAD_LETTER), ("", Status.DEAD_LETTER)]
)
def test_a_redrive_asks_who_is_there(monkeypatch, answer, expected):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: answer)
    dead = JobFactory(dead_letter=True).pk

    if expected == Status.READY:
        run("broker_jobs", "redrive")
    else:
        assert refused("broker_jobs", "redrive").returncode == 1

    assert status(dead) == expected


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        (["broker_jobs", "list", "--limit", "0"], "--limit"),
        (["broker_jobs", "list", "--limit", "1001"], "--limit"),
        (["broker_jobs", "list", "--limit", "many"], "--limit"),
        (["broker_jobs", "list", "--after", "xyz"], "--after"),
        (["broker_jobs", "list", "--queue", "no good"], "--queue"),
        (["broker_jobs", "show", "xyz"], "ID"),
        (["broker_jobs", "retry", str(UUID(int=1)), "--attempts", "-1"], "--attempts"),
        (["broker_jobs", "list", "--database", "nowhere"], "--database"),
        (["broker_queues", "create", "no good"], "NAME"),
        (["broker_queues", "pause"], "--queue"),
        (["broker_queues", "pause", "--type", "a", "--queue", "b"], "--type"),
        (["broker_queues", "pause", "--queue", "b", "--for", "soon"], "--for"),
        (["broker_queues", "pause", "--queue", "b", "--for", "0"], "--for"),
        (["broker_queues", "set", "default"], "--lease-seconds"),
        (["broker_queues", "set", "default", "--lease-seconds", "2"], "--lease-seconds"),
        (["broker_status", "--minutes", "0"], "--minutes"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_name_and_code(typed, field):
    error = refused(*typed)

    assert error.returncode == 2
    assert str(error).startswith(f"[invalid_option] {field} ")


def test_a_bad_tenant_is_refused():
    error = refused("broker_jobs", "list", "--tenant", "a b")

    assert (error.returncode, str(error).split()[0]) == (2, "[invalid_tenant]")


def test_all_that_is_wrong_is_told_at_once():
    error = refused("broker_jobs", "list", "--limit", "x", "--after", "y", "--tenant", "z z")

    assert len(str(error).splitlines()) == 3


@pytest.mark.parametrize(
    ("typed", "code"),
    [
        (["broker_jobs", "show", str(UUID(int=7))], "job_not_found"),
        (["broker_jobs", "list", "--queue", "nowhere"], "unknown_queue"),
        (["broker_jobs", "redrive", "--type", "no.such", "--yes"], "unknown_job_type"),
        (["broker_queues", "pause", "--queue", "nowhere"], "unknown_queue"),
        (["broker_queues", "set", "nowhere", "--lease-seconds", "90"], "unknown_queue"),
    ],
)
def test_what_is_not_there_is_an_error_with_its_code(typed, code):
    error = refused(*typed)

    assert (error.returncode, str(error).split()[0]) == (1, f"[{code}]")


@pytest.mark.parametrize("command", ["broker_jobs", "broker_queues", "broker_status", "broker_worker"])
def test_help_teaches_by_examples(command, capsys):
    with pytest.raises(SystemExit):
        call_command(command, "--help")

    said = capsys.readouterr().out
    assert "examples:" in said
    assert f"  manage.py {command}" in said


FLAGS_OF_DJANGO = {
    "verbosity": ("-v", "2"),
    "settings": ("--settings", "testproject.settings"),
    "pythonpath": ("--pythonpath", "."),
    "traceback": ("--traceback",),
    "no_color": ("--no-color",),
    "force_color": ("--force-color",),
    "skip_checks": ("--skip-checks",),
}


@pytest.mark.parametrize("flag", FLAGS_OF_DJANGO)
@pytest.mark.parametrize(
    "typed", [("broker_jobs", "list", "--limit", "3"), ("broker_queues", "create", "mail")]
)
def test_a_flag_of_django_is_heard_on_both_sides_of_the_action(typed, flag):
    command, *rest = typed
    parser = load_command_class("pgbroker", command).create_parser("manage.py", command)
    given = FLAGS_OF_DJANGO[flag]

    before = parser.parse_args([*given, *rest])
    between = parser.parse_args([rest[0], *given, *rest[1:]])
    behind = parser.parse_args([*rest, *given])

    assert before == between == behind
    assert getattr(behind, flag) != getattr(parser.parse_args(rest), flag)


def test_every_flag_of_django_is_among_them():
    parser = BaseCommand().create_parser("manage.py", "any")

    assert {action.dest for action in parser._actions} - {"help", "version"} == set(FLAGS_OF_DJANGO)


def test_what_no_action_knows_is_refused_still():
    with pytest.raises(CommandError, match="unrecognized arguments: --colour"):
        run("broker_jobs", "list", "--colour")
    with pytest.raises(CommandError, match="invalid choice: 9"):
        run("broker_jobs", "list", "--verbosity", "9")


@pytest.mark.parametrize("command", ["broker_jobs", "broker_queues"])
def test_every_argument_of_an_action_has_a_help_text(command):
    parser = load_command_class("pgbroker", command).create_parser("manage.py", command)
    (actions,) = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]

    without = [
        (name, argument.dest)
        for name, action in actions.choices.items()
        for argument in action._actions
        if not argument.help
    ]

    assert without == []


# ------------------------------------------------------------------ queues


def test_queues_are_listed_with_depth_age_and_settings():
    enqueue_one()
    enqueue_one(available_at="2999-01-01T00:00:00Z")
    JobFactory(dead_letter=True)
    JobFactory(running=True)
    JobFactory(waiting=True)
    JobFactory(status=Status.BLOCKED, ready_at=None)

    queues = {each["queue"]: each for each in read("broker_queues", "list")["queues"]}

    default = queues["default"]
    assert [default[name] for name in reports.COUNTED] == [1, 1, 1, 1, 1, 0, 1]
    assert 0 <= default["oldest_ready_seconds"] < 60
    assert (default["ageing_seconds"], default["lease_seconds"], default["paused"]) == (60, 60, False)


def test_a_count_stops_at_its_bound(monkeypatch):
    monkeypatch.setattr(reports, "BOUND", 2)
    for _ in range(4):
        enqueue_one()

    (line,) = [each for each in run("broker_queues", "list").splitlines() if each.startswith("default")]

    assert line.split()[1] == "2+"


def test_depths_are_those_of_the_tenant():
    enqueue_one()
    with tenant_context("acme"):
        enqueue_one()
        enqueue_one()

    def ready(*typed: str) -> int:
        queues = read("broker_queues", "list", *typed)["queues"]
        return next(each["ready"] for each in queues if each["queue"] == "default")

    assert (ready(), ready("--tenant", "acme"), ready("--tenant", "nobody")) == (3, 2, 0)


def test_a_queue_is_made_paused_changed_and_resumed():
    run("broker_queues", "create", "mail")
    run("broker_queues", "pause", "--queue", "mail", "--for", "2h", "--reason", "down")
    pause = Pause.objects.get()
    listed = read("broker_queues", "list")
    run("broker_queues", "set", "mail", "--lease-seconds", "300", "--ageing-seconds", "0")
    changed = Queue.objects.get(name="mail")
    run("broker_queues", "set", "mail", "--lease-seconds", "default")
    run("broker_queues", "resume", "--queue", "mail")

    assert (pause.until - pause.paused_at).total_seconds() == 7200
    assert [(each["queue"], each["reason"]) for each in listed["pauses"]] == [("mail", "down")]
    assert (changed.lease_seconds, changed.ageing_seconds) == (300, 0)
    assert Queue.objects.get(name="mail").lease_seconds is None
    assert not Pause.objects.exists()


def test_a_resume_of_what_is_not_paused_says_so():
    assert refused("broker_queues", "resume", "--queue", "default").returncode == 1


@pytest.mark.parametrize(
    ("typed", "seconds"), [("90", 90), ("10m", 600), ("2h", 7200), ("1d", 86400), ("1.5m", 90)]
)
def test_a_duration_has_a_unit(typed, seconds):
    run("broker_queues", "pause", "--tenant", "acme", "--for", typed)

    pause = Pause.objects.get()
    assert (pause.until - pause.paused_at).total_seconds() == seconds


# ------------------------------------------------------------------ status


def test_the_status_tells_of_everything():
    enqueue_one()
    settle_one(completed(claim_one()))
    enqueue_one()
    JobFactory(dead_letter=True)
    alive()
    WorkerFactory(silent=True)
    control.pause(queue="default")

    report = read("broker_status", "--all-workers")

    default = next(each for each in report["queues"] if each["queue"] == "default")
    assert (default["ready"], default["dead_letter"], default["paused"]) == (1, 1, True)
    assert report["dead_letters"] == 1
    assert sorted(each["state"] for each in report["workers"]) == ["alive", "silent"]
    assert report["rates"]["done"] == 1
    assert report["oldest_ready_seconds"] >= 0
    assert report["rates"]["mean_run_seconds"] == 0.25
    assert [each["error"] for each in report["failing"]] == ["boom"]
    text = run("broker_status")
    assert ", 1 dead, " in text
    assert "last 5 minutes: 0." in text
    assert next(line for line in text.splitlines() if line.startswith("default ")).endswith("paused")


def test_the_status_tells_who_leads_or_since_when_nobody_does():
    assert "leader: none yet" in run("broker_status")

    ask(ADA)
    (leader,) = read("broker_status")["leaders"]
    assert (leader["name"], leader["epoch"], leader["leads"]) == ("candidate a1", 1, True)
    assert re.search(r"^leader: candidate a1 since \d{4}-.* \(epoch 1\)$", run("broker_status"), re.M)

    age_lease(70)
    assert read("broker_status")["leaders"][0]["leads"] is False
    assert "leader: none: candidate a1 led until 1m 0s ago, and no worker runs that could take over" in run(
        "broker_status"
    )


def test_the_status_tells_what_runs_for_too_long_though_its_worker_lives():
    assert "over-long" not in run("broker_status")
    job_id = enqueue_one(options={"timeout": 1})
    claim_one()
    age(job_id, only=["leased_at"], minutes=5)

    (found,) = read("broker_status")["over_long"]

    assert (found["job_id"], found["attempt_no"]) == (str(job_id), 1)
    assert f"{job_id}, for 5m" in run("broker_status")


def test_the_status_lists_every_pause_with_its_reason():
    control.pause(tenant="acme", reason="unpaid", by="ada")

    lines = run("broker_status").splitlines()

    place = next(number for number, line in enumerate(lines) if line.startswith("PAUSED QUEUE"))
    headings, pause = lines[place : place + 2]
    assert headings.split() == ["PAUSED", "QUEUE", "TYPE", "TENANT", "SINCE", "UNTIL", "BY", "REASON"]
    assert pause.split()[:3] == ["-", "-", "acme"]
    assert pause.split()[-2:] == ["ada", "unpaid"]


def test_claimed_jobs_are_told_apart_from_what_a_worker_runs_and_holds():
    JobFactory(running=True)
    JobFactory(running=True)
    WorkerFactory(name="one", slots=3, running=1, held=1)

    lines = run("broker_status").splitlines()
    headings = next(line for line in lines if line.startswith("QUEUE"))
    place = next(number for number, line in enumerate(lines) if line.startswith("WORKER"))
    workers, one = lines[place : place + 2]

    assert headings.split()[:4] == ["QUEUE", "READY", "OLDEST", "CLAIMED"]
    assert next(each for each in lines if each.startswith("default")).split()[3] == "2"
    assert reports.CLAIMED in lines
    assert workers.split() == ["WORKER", "STATE", "HEARD", "OF", "SLOTS", "RUNNING", "HELD", "QUEUES"]
    assert one.split()[-4:] == ["3", "1", "1", "default"]
    assert "CLAIMED" in run("broker_queues", "list").splitlines()[0]
    assert {each["queue"]: each["running"] for each in read("broker_status")["queues"]}["default"] == 2


def test_workers_that_are_gone_are_counted_and_shown_when_asked_for():
    WorkerFactory(name="here")
    WorkerFactory(name="quiet", heartbeat_at=now() - timedelta(minutes=9), expires_at=now())
    WorkerFactory(name="lost", silent=True)
    WorkerFactory(name="done", stopped_at=now())

    def names(*typed: str) -> set[str]:
        return {each["name"] for each in read("broker_status", *typed)["workers"]}

    assert names() == {"here", "quiet"}
    assert read("broker_status")["workers_left_out"] == 2
    assert "left out: 2 that stopped, or are silent for over 10 minutes (--all-workers shows them)" in run(
        "broker_status"
    )
    assert names("--all-workers") == {"here", "quiet", "lost", "done"}
    assert "--all-workers" not in run("broker_status", "--all-workers")


def test_a_tenants_status_does_not_tell_the_rates_of_all():
    enqueue_one()
    settle_one(completed(claim_one()))

    report = read("broker_status", "--tenant", "acme")

    assert (report["tenant"], report["rates"]) == ("acme", None)
    assert "last 5 minutes" not in run("broker_status", "--tenant", "acme")

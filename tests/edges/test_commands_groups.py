"""broker_groups, and explain and unblock of broker_jobs: what an operator types and what comes back."""

from __future__ import annotations

import json
import random
import re
from contextlib import nullcontext
from io import StringIO
from uuid import UUID, uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pgbroker import control, group_control, group_reports
from pgbroker.lifecycle.settle import settle
from pgbroker.states import GroupState, Status
from pgbroker.tenancy import tenant_context
from tests.support.commands import read, refused, run
from tests.support.groups import after, fail, member, open_group
from tests.support.jobs import claim_many, claim_one, completed, enqueue_one, row, status
from tests.support.links import DEAD, group, passes, seal
from tests.support.links import run as run_one

pytestmark = pytest.mark.django_db


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def failed_group(name: str = "import") -> tuple[UUID, list[UUID]]:
    """A sealed group: one member completed, one failed, and one was cancelled because of that."""
    made = open_group(name)
    good, bad = member(name), member(name, name="bad")
    along = member(name, depends_on=["bad"])
    seal(made)
    run_one(good)
    fail(bad)
    passes()
    assert group(made).state == GroupState.FAILED
    return made, [good, bad, along]


# ------------------------------------------------------------------ broker_jobs explain, unblock


def test_a_job_is_explained_for_people_and_for_programs():
    first = enqueue_one()
    job = after(first)

    text = run("broker_jobs", "explain", job)
    told = read("broker_jobs", "explain", job)

    assert text.startswith("waiting_for_prerequisites\nIt waits for its prerequisite: job ")
    assert f"What to do: Ask the same of what it waits for: broker_jobs explain {first}" in text
    assert (told["id"], told["code"], told["ids"]) == (str(job), "waiting_for_prerequisites", [str(first)])


def test_an_explanation_keeps_to_the_tenant_and_reaches_all_without_one():
    with tenant_context("acme"):
        theirs = enqueue_one()

    assert read("broker_jobs", "explain", theirs)["code"] == "no_worker"
    assert "job_not_found" in str(refused("broker_jobs", "explain", theirs, "--tenant", "default"))
    assert refused("broker_jobs", "explain", uuid4()).returncode == 1
    assert refused("broker_jobs", "explain", "nonsense").returncode == 2


def test_what_others_wrote_cannot_move_the_cursor():
    job = enqueue_one()
    control.pause(queue="default", reason="bad\x1b[2Jtext")

    assert "\x1b" not in run("broker_jobs", "explain", job)


def test_a_blocked_job_is_unblocked_and_the_others_are_left():
    root = enqueue_one()
    blocked, other = after(root, on_failure="block"), enqueue_one()
    fail(root)
    said = StringIO()

    with pytest.raises(CommandError, match="1 of 2 jobs left as they are") as caught:
        call_command("broker_jobs", "unblock", str(blocked), str(other), "--format=json", stdout=said)

    assert caught.value.returncode == 1
    assert [(each["outcome"], each["status"]) for each in json.loads(said.getvalue())["jobs"]] == [
        ("unblocked", "ready"),
        ("unchanged", "ready"),
    ]
    assert status(blocked) == Status.READY


def test_a_retry_of_what_was_cancelled_along_names_what_is_in_its_way():
    root = enqueue_one()
    along = after(root)
    fail(root)
    said = StringIO()

    with pytest.raises(CommandError):
        call_command("broker_jobs", "retry", str(along), stdout=said)

    assert "prerequisite_failed" in said.getvalue()
    assert str(root) in said.getvalue()


def test_a_job_is_shown_with_its_group_and_its_cause():
    _, (_, bad, along) = failed_group()

    text = run("broker_jobs", "show", bad)
    facts = read("broker_jobs", "show", along)

    assert re.search(r"^run group +import as bad$", text, re.M)
    assert (facts["run_group"], facts["cause_id"]) == ("import", str(bad))


def test_a_job_is_shown_with_what_it_waits_for_and_what_waits_for_it():
    first = enqueue_one()
    job = after(first, on_failure="block")
    waiting = after(job, on_failure="ignore")

    text = run("broker_jobs", "show", job)
    facts = read("broker_jobs", "show", job)

    before, behind = text.split("\nwhat waits for it\n")
    assert re.search(rf"^waits for\n.*\n.*{first}.* block", before, re.M | re.S)
    assert re.search(rf"{waiting}.* ignore", behind)
    assert [(each["id"], each["status"]) for each in facts["prerequisites"]] == [(str(first), "ready")]
    assert [(each["id"], each["on_failure"]) for each in facts["dependents"]] == [(str(waiting), "ignore")]
    assert "waits for" not in run("broker_jobs", "show", enqueue_one())


def test_a_name_with_spaces_or_worse_is_told_as_one_can_type_it():
    open_group("two words")
    job = after({"group": "two words"})
    open_group("bad\x1b[2Jname")

    assert "broker_groups seal 'two words'" in read("broker_jobs", "explain", job)["cure"]
    for typed in (
        ["list"],
        ["show", "bad\x1b[2Jname"],
        ["seal", "bad\x1b[2Jname"],
        ["retry", "bad\x1b[2Jname"],
    ):
        assert "\x1b" not in run("broker_groups", *typed)
    for typed in (["--dry-run"], ["--yes"]):
        assert "\x1b" not in run("broker_groups", "cancel", "bad\x1b[2Jname", *typed)


# ------------------------------------------------------------------ list, show


def test_groups_are_listed_newest_first_with_their_progress():
    first, _ = failed_group("one")
    with tenant_context("acme"):
        second = open_group("two")
        member("two")

    listed = read("broker_groups", "list")["groups"]
    text = run("broker_groups", "list")

    assert [each["id"] for each in listed] == sorted([str(first), str(second)], reverse=True)
    by_name = {each["name"]: each for each in listed}
    assert by_name["one"]["members"] == {"completed": 1, "failed": 1, "cancelled": 1}
    assert (by_name["one"]["state"], by_name["two"]["state"]) == ("failed", "open")
    assert "3 of 3 over, 2 badly" in text
    assert "0 of 1 over" in text


def test_a_list_is_narrowed_and_paged():
    made = [open_group(f"g{n}") for n in range(5)]
    seal(made[0])
    with tenant_context("acme"):
        open_group("theirs")
    seen, after_id = [], None

    while True:
        page = read(
            "broker_groups", "list", "--tenant", "default", "--limit", 2,
            *(["--after", after_id] if after_id else []),
        )  # fmt: skip
        seen += [each["id"] for each in page["groups"]]
        after_id = page["next"]
        if after_id is None:
            break

    assert seen == [str(each) for each in sorted(made, reverse=True)]
    assert [each["name"] for each in read("broker_groups", "list", "--state", "completed")["groups"]] == [
        "g0"
    ]
    assert refused("broker_groups", "list", "--limit", 0).returncode == 2


def test_a_list_costs_the_same_with_more_groups():
    open_group("g0")
    with CaptureQueriesContext(connection) as few:
        run("broker_groups", "list")
    for n in range(1, 10):
        open_group(f"g{n}")

    with CaptureQueriesContext(connection) as many:
        run("broker_groups", "list")

    assert len(many) == len(few)


def test_a_group_is_shown_with_what_it_waits_for_and_what_waits_for_it():
    first = enqueue_one()
    made = open_group(
        "load", depends_on=[str(first)], on_failure="block", tolerate_percent=12.5,
        on_completed={"job_type": "tests.ok"},
    )  # fmt: skip
    job = member("load", name="extract")
    waiting = after({"group": "load"}, on_failure="ignore")

    text = run("broker_groups", "show", "load")
    facts = read("broker_groups", "show", "load")

    for told in (
        "tolerates 12.5 % that end badly", "0 of 1 over", "waits for\n", "what waits for it\n", "members\n", "extract",
    ):  # fmt: skip
        assert told in text
    assert facts["id"] == str(made)
    assert [(each["id"], each["on_failure"]) for each in facts["prerequisites"]] == [(str(first), "block")]
    assert [(each["id"], each["on_failure"]) for each in facts["dependents"]] == [(str(waiting), "ignore")]
    assert [(each["id"], each["status"]) for each in facts["jobs"]] == [(str(job), "waiting")]
    assert facts["on_completed"] == {"job_type": "tests.ok"}


def test_members_that_went_wrong_come_first_and_the_rest_is_counted():
    _, (_, bad, along) = failed_group()

    shown = read("broker_groups", "show", "import", "--limit", 2)["jobs"]

    assert [(each["id"], each["error_code"]) for each in shown] == [
        (str(bad), "boom"), (str(along), "prerequisite_failed"),
    ]  # fmt: skip
    assert "1 more: --limit shows up to 1000" in run("broker_groups", "show", "import", "--limit", 2)


def test_a_group_is_found_by_its_id_too_and_never_by_anothers_tenant():
    with tenant_context("acme"):
        made = open_group("import")

    assert read("broker_groups", "show", made)["name"] == "import"
    for name in ("import", made, "nonsense"):
        error = refused("broker_groups", "show", name, "--tenant", "default")
        assert error.returncode == 1
        assert f"[group_not_found] there is no run group '{name}'" in str(error)


def test_a_name_that_several_tenants_use_asks_for_one():
    ours = open_group("import")
    with tenant_context("acme"):
        open_group("import")

    error = refused("broker_groups", "show", "import")

    assert error.returncode == 2
    assert "--tenant is missing" in str(error)
    assert "acme, default" in str(error)
    assert read("broker_groups", "show", "import", "--tenant", "default")["id"] == str(ours)


# ------------------------------------------------------------------ seal, retry


def test_a_refused_retry_names_the_run_group_or_the_cause_and_the_command_that_works():
    _, (_, bad, along) = failed_group("G 1")
    of_group, of_member = after({"group": "G 1"}), after(along)
    passes()
    said = StringIO()

    with pytest.raises(CommandError):
        call_command("broker_jobs", "retry", str(of_group), str(of_member), "--format=json", stdout=said)

    first, second = (each["why"] for each in json.loads(said.getvalue())["jobs"])
    assert first == "its prerequisite, run group G 1, is failed: broker_groups retry 'G 1'"
    assert f"job {along} (tests.ok), is cancelled because of job {bad}: broker_jobs retry {bad}" in second


def test_a_retry_of_a_group_that_failed_because_of_another_names_that_one():
    failed_group("G1")
    made = open_group("G2", depends_on=[{"group": "G1"}])
    member("G2")
    seal(made)
    passes()

    error = refused("broker_groups", "retry", "G2")

    assert error.returncode == 1
    assert str(error) == "G2 is failed: its prerequisite, run group G1, is failed: broker_groups retry G1"
    assert read("broker_groups", "retry", "G1")["retried"] == 1


def test_a_seal_ends_an_empty_group_and_says_when_it_was_sealed_before():
    made = open_group("import")

    assert read("broker_groups", "seal", "import") == {
        "id": str(made),
        "outcome": "sealed",
        "state": "completed",
    }
    assert read("broker_groups", "seal", "import")["outcome"] == "unchanged"
    assert "It was sealed before: import is completed." in run("broker_groups", "seal", "import")


def test_a_retry_takes_what_failed_and_the_rest_comes_back():
    made, (good, bad, along) = failed_group()

    answer = read("broker_groups", "retry", "import")
    passes()

    assert answer == {"id": str(made), "retried": 1, "refused": {}, "why": []}
    assert (status(good), status(bad), status(along)) == (Status.COMPLETED, Status.READY, Status.WAITING)
    assert group(made).state == GroupState.SEALED


@pytest.mark.parametrize(("asked", "granted"), [([], 1), (["--attempts", 3], 3)])
def test_a_retry_grants_one_attempt_unless_told_otherwise(asked, granted):
    made = open_group("import")
    job = member("import", max_attempts=1)
    seal(made)
    run_one(job, how=DEAD)

    run("broker_groups", "retry", "import", *asked)

    assert row(job).max_attempts == 1 + granted


def test_a_member_that_was_cancelled_by_hand_is_left_unless_asked_for():
    made = open_group("import")
    by_hand, bad = member("import"), member("import")
    seal(made)
    control.cancel(by_hand)
    fail(bad)
    assert group(made).state == GroupState.FAILED

    assert read("broker_groups", "retry", "import")["retried"] == 1
    assert (status(by_hand), status(bad)) == (Status.CANCELLED, Status.READY)
    assert read("broker_groups", "retry", "import", "--cancelled")["retried"] == 1

    assert status(by_hand) == Status.READY


def test_a_retry_of_a_group_names_what_failed_outside_and_keeps_its_members_away():
    root = enqueue_one()
    group = open_group("out")
    blocked = member("out", depends_on=[str(root)], on_failure="block")
    seal(group)
    fail(root)
    passes()
    assert status(blocked) == Status.BLOCKED

    said = StringIO()
    with pytest.raises(CommandError, match="failed outside of the group") as error:
        call_command("broker_groups", "retry", "out", stdout=said)

    assert error.value.returncode == 1
    assert (
        f"In the way: its prerequisite, job {root} (tests.ok), is failed: broker_jobs retry {root}"
        in said.getvalue()
    )
    control.retry(root)
    passes()
    assert read("broker_groups", "retry", "out") == {
        "id": str(group), "retried": 0, "refused": {}, "why": []
    }  # fmt: skip


def test_a_retry_with_a_limit_stops_there():
    made = open_group("import")
    jobs = [member("import") for _ in range(3)]
    seal(made)
    fail(*jobs)

    assert read("broker_groups", "retry", "import", "--limit", 2)["retried"] == 2
    assert [status(job) for job in jobs].count(Status.READY) == 2


def test_a_retry_of_a_cancelled_group_takes_all_pages_and_what_was_in_the_way_of_each_other(monkeypatch):
    made = open_group("import")
    # The first waits for the last: their order is not that of their ids.
    ids = sorted(uuid4() for _ in range(5))
    for place in range(4, -1, -1):
        member("import", id=str(ids[place]), depends_on=[str(ids[place + 1])] if place < 4 else [])
    seal(made)
    run("broker_groups", "cancel", "import", "--yes")
    assert group(made).state == GroupState.CANCELLED
    monkeypatch.setattr(group_control, "PAGE", 2)

    answer = read("broker_groups", "retry", "import")
    passes()

    assert answer == {"id": str(made), "retried": 5, "refused": {}, "why": []}
    assert [status(each) for each in ids] == [Status.WAITING] * 4 + [Status.READY]


def test_what_cannot_be_retried_is_told_with_an_exit_code():
    made = open_group("import")
    held = member("import", idempotency_key="k")
    seal(made)
    fail(held)
    newer = enqueue_one(idempotency_key="k")
    said = StringIO()

    with pytest.raises(CommandError, match="1 of 1 jobs left as they are") as caught:
        call_command("broker_groups", "retry", "import", "--format=json", stdout=said)

    assert caught.value.returncode == 1
    assert json.loads(said.getvalue())["refused"] == {"key_held_by_newer_job": 1}
    assert status(newer) == Status.READY


def test_a_terminal_shows_how_far_a_retry_is():
    failed_group()
    shown = Terminal()

    call_command("broker_groups", "retry", "import", stdout=StringIO(), stderr=shown)

    assert "] 1 jobs" in shown.getvalue()


# ------------------------------------------------------------------ cancel


def test_a_dry_run_tells_what_would_go_along_and_changes_nothing():
    open_group("import")
    running, ready = member("import"), None
    claim_one()
    ready = member("import")
    taken, blocked, freed = (
        after({"group": "import"}, on_failure=policy) for policy in ("cancel", "block", "ignore")
    )
    further = after(taken)

    facts = read("broker_groups", "cancel", "import", "--dry-run")
    text = run("broker_groups", "cancel", "import", "--dry-run")

    assert facts["members"] == {"live": 2, "running": 1}
    assert facts["totals"] == {"cancelled": 2, "blocked": 1, "freed": 1}
    assert {each["id"]: each["fate"] for each in facts["along"]} == {
        str(taken): "cancelled", str(further): "cancelled", str(blocked): "blocked", str(freed): "freed",
    }  # fmt: skip
    for told in (
        "2 jobs of import would be cancelled.",
        "1 job of them run",
        "2 jobs that wait would be cancelled along.",
    ):
        assert told in text
    assert [status(each) for each in (running, ready, taken)] == [
        Status.RUNNING,
        Status.READY,
        Status.WAITING,
    ]


def test_a_preview_is_what_then_happens():
    """Through jobs, groups and policies; what is told before is compared with what is true afterwards."""
    open_group("import")
    inside = [member("import", name=f"m{n}", depends_on=[f"m{n - 1}"] if n else []) for n in range(3)]
    by_job = after(inside[0])
    strict, lenient, broken, half = (
        open_group(name, **how)
        for name, how in (
            ("strict", {"on_failed": {"job_type": "tests.ok"}}),
            ("lenient", {"tolerate_count": 1}),
            ("broken", {"tolerate_percent": 40}),
            ("half", {"tolerate_percent": 50}),
        )
    )
    in_strict, in_lenient, in_half = (
        member(name, depends_on=[{"group": "import"}]) for name in ("strict", "lenient", "half")
    )
    in_broken = [member("broken", depends_on=[str(inside[2])]) for _ in range(2)]
    others = [member(name) for name in ("strict", "lenient", "broken", "half")]
    for made in (strict, lenient, broken, half):
        seal(made)
    behind = {name: after({"group": name}) for name in ("strict", "lenient", "broken", "half")}
    blocked = after(by_job, on_failure="block")
    behind_blocked = after(blocked)
    freed = after(in_strict, on_failure="ignore")
    untouched = after(others[0])

    told = group_reports.preview_cancel(
        group_ids=[group_reports.find_group("import", using="default").id], using="default"
    )
    run("broker_groups", "cancel", "import", "--yes")
    passes()
    for each in others:
        run_one(each)
    passes()

    assert {each.id for each in told.of("cancelled")} == {
        by_job, in_strict, in_lenient, in_half, *in_broken, behind["strict"], behind["broken"],
    }  # fmt: skip
    assert {each.id for each in told.of("blocked")} == {blocked}
    assert {each.id for each in told.of("freed")} == {freed}
    assert {each.id: each.callback for each in told.of("fails")} == {strict: "tests.ok", broken: None}
    assert told.is_exact
    assert all(status(each.id) == Status.CANCELLED for each in told.of("cancelled"))
    assert all(group(each.id).state == GroupState.FAILED for each in told.of("fails"))
    goes_on = (freed, behind["lenient"], behind["half"], untouched)
    assert [status(each) for each in (blocked, behind_blocked, *goes_on)] == [
        Status.BLOCKED, Status.WAITING, Status.READY, Status.READY, Status.READY, Status.READY,
    ]  # fmt: skip
    assert (group(lenient).state, group(half).state) == (GroupState.COMPLETED, GroupState.COMPLETED)


@pytest.mark.parametrize("seed", [0, 2, 4, 10, 15])
def test_a_preview_of_any_graph_is_what_then_happens(seed):
    chance = random.Random(seed)
    groups = [
        open_group(f"g{n}", **chance.choice([{}, {"tolerate_count": 1}, {"tolerate_percent": 50}]))
        for n in range(4)
    ]
    # Each job, and the highest group that it is in or waits for: nothing waits for what is above it, or for itself.
    jobs: dict[UUID, int] = {}
    for _ in range(16):
        inside = chance.choice([None, 0, 1, 2, 3])
        highest = chance.randrange(4) if inside is None else inside - 1
        known = [{"group": f"g{n}"} for n in range(highest + 1)]
        known += [str(job) for job, above in jobs.items() if above <= highest and not row(job).run_group_id]
        how = {
            "depends_on": chance.sample(known, min(len(known), chance.choice([0, 1, 1, 2]))),
            "on_failure": chance.choice(["cancel", "cancel", "ignore"]),
        }
        job = enqueue_one(**how) if inside is None else member(f"g{inside}", **how)
        jobs[job] = highest if inside is None else inside
    for made in groups:
        seal(made)
    passes()
    told = group_reports.preview_cancel(group_ids=[groups[0]], using="default")

    run("broker_groups", "cancel", "g0", "--yes")
    passes()
    while leases := claim_many():
        settle([completed(lease) for lease in leases])
        passes()

    own = {job for job in jobs if row(job).run_group_id == groups[0]}
    cancelled = {job for job in jobs if status(job) == Status.CANCELLED} - own
    failed = {made for made in groups[1:] if group(made).state == GroupState.FAILED}
    assert cancelled == {each.id for each in told.of("cancelled")}
    assert failed == {each.id for each in told.of("fails")}
    assert {status(job) for job in jobs} <= {Status.CANCELLED, Status.COMPLETED}


def test_a_preview_of_a_job_goes_the_same_way():
    first = enqueue_one()
    second = after(first)
    third = after(second)

    told = group_reports.preview_cancel(job_ids=[first], using="default")

    assert [each.id for each in told.of("cancelled")] == sorted([second, third])


def test_a_preview_has_a_bound_and_says_so(monkeypatch):
    job = enqueue_one()
    jobs = [after(job) for _ in range(6)]
    whole = group_reports.preview_cancel(job_ids=[job], using="default")
    monkeypatch.setattr(group_reports, "WALK_MAX", 3)
    monkeypatch.setattr(group_reports, "PREVIEW_MAX", 1)

    cut = group_reports.preview_cancel(job_ids=[job], using="default")

    assert ([each.id for each in whole.of("cancelled")], whole.is_exact) == (sorted(jobs), True)
    assert (len(cut.fates), cut.totals, cut.is_exact) == (1, {"cancelled": 2}, False)
    assert cut.told("cancelled") == "at least 2 jobs that wait would be cancelled along"


def test_policies_that_take_too_many_rounds_are_told_as_a_bound(monkeypatch):
    monkeypatch.setattr(group_reports, "ROUNDS_MAX", 1)
    job = enqueue_one()
    made = open_group("lenient", tolerate_count=0)
    member("lenient", depends_on=[str(job)])
    behind = after({"group": "lenient"})

    told = group_reports.preview_cancel(job_ids=[job], using="default")

    assert not told.is_exact
    assert behind not in {each.id for each in told.fates}
    monkeypatch.undo()
    told = group_reports.preview_cancel(job_ids=[job], using="default")
    assert ({each.id for each in told.of("fails")}, told.is_exact) == ({made}, True)
    assert behind in {each.id for each in told.of("cancelled")}


def test_a_preview_keeps_to_the_tenant():
    open_group("import")
    member("import")
    with tenant_context("acme"):
        told = group_reports.preview_cancel(group_ids=[], job_ids=[enqueue_one()], using="default")

    assert told.fates == []


def test_a_cancel_takes_all_pages_and_keeps_reason_and_who(monkeypatch):
    monkeypatch.setattr(group_control, "PAGE", 2)
    made = open_group("import")
    jobs = [member("import") for _ in range(5)]
    waiting = after({"group": "import"})
    shown = Terminal()
    said = StringIO()

    call_command(
        "broker_groups", "cancel", "import", "--yes", "--reason", "wrong file", "--format=json",
        stdout=said, stderr=shown,
    )  # fmt: skip
    passes()

    assert json.loads(said.getvalue()) == {
        "id": str(made), "state": "cancelled", "cancelled": 5, "requested": 0,
    }  # fmt: skip
    assert "] 5 jobs" in shown.getvalue()
    assert {status(job) for job in jobs} == {Status.CANCELLED}
    assert control.get_job(jobs[0]).reason == "wrong file"
    assert status(waiting) == Status.CANCELLED
    assert group(made).state == GroupState.CANCELLED


def test_a_group_whose_members_run_ends_with_them():
    made = open_group("import")
    member("import")
    lease = claim_one()

    text = run("broker_groups", "cancel", "import", "--yes")

    assert "0 jobs cancelled, 1 job running and asked to stop. import is sealed." in text
    assert "cancelling" in run("broker_groups", "list")
    assert row(lease.job_id).cancel_requested_at is not None
    assert group(made).state == GroupState.SEALED


def test_a_cancel_without_anybody_to_ask_is_refused(monkeypatch):
    monkeypatch.setattr("sys.stdin", StringIO())
    made = open_group("import")

    error = refused("broker_groups", "cancel", "import")

    assert error.returncode == 2
    assert "--yes is missing" in str(error)
    assert group(made).state == GroupState.OPEN


@pytest.mark.parametrize(("answer", "state"), [("y", GroupState.CANCELLED), ("n", GroupState.OPEN)])
def test_a_cancel_shows_the_preview_and_asks(monkeypatch, answer, state):
    monkeypatch.setattr("sys.stdin", Terminal())
    asked = []
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or answer)
    made = open_group("import")
    member("import")
    shown = StringIO()

    with pytest.raises(CommandError, match="Nothing was changed") if answer == "n" else nullcontext():
        call_command("broker_groups", "cancel", "import", stdout=StringIO(), stderr=shown)

    assert asked == ["Cancel import? [y/N] "]
    assert "1 job of import would be cancelled." in shown.getvalue()
    assert group(made).state == state


@pytest.mark.parametrize("action", ["list", "show", "seal", "retry", "cancel"])
def test_help_teaches_with_examples(action, capsys):
    for typed in (["broker_groups", "--help"], ["broker_groups", action, "--help"]):
        with pytest.raises(SystemExit) as ended:
            call_command(*typed)
        assert ended.value.code == 0
    assert "examples:" in capsys.readouterr().out

"""
Why a job does not run: the one reason that comes first, in words. Pure.

The order is that of what keeps it from running: an end, an attempt under way, a pause, what it waits for, then who
could take it.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pgbroker.policy.expired_reference import cure_of_expired, ids_of_expired, what_is_there
from pgbroker.policy.job_facts import (
    Facts,
    because,
    ids_of,
    many,
    moment_words,
    named_cause,
    prerequisite,
    reference,
    since_words,
    slots_taken,
    time_of,
    upper,
)
from pgbroker.states import AttemptState, GroupState, OnFailure, Status


@dataclass(frozen=True, slots=True)
class Explanation:
    """
    The reason why a job does not run, or that it does.

    *code* is stable, *sentence* is for people, *ids* are the jobs, run groups or workers that it is about, and *cure*
    says what to do.
    """

    code: str
    sentence: str
    ids: tuple[UUID, ...]
    cure: str


def explanation_of(facts: Facts) -> Explanation:
    """Tell the first reason that is true."""
    return next(_reasons(facts))


def _reasons(facts: Facts) -> Iterator[Explanation]:
    status = Status(facts.status)
    if status in (Status.COMPLETED, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED):
        yield _over(facts, status)
    if status == Status.RUNNING:
        yield _running(facts)
    if facts.deadline_at and facts.deadline_at <= facts.now:
        yield Explanation(
            "deadline_passed",
            f"Its deadline was {moment_words(facts.deadline_at, facts.now)}: it is about to fail as not done in time.",
            (),
            "A worker's upkeep ends it within seconds. Retry it if it is wanted all the same.",
        )
    if facts.pauses:
        yield _paused(facts)
    if status == Status.WAITING:
        yield from _waiting(facts)
    if status == Status.BLOCKED:
        yield _blocked(facts)
    if status == Status.SUSPENDED:
        yield Explanation(
            "suspended", "It is suspended: it sleeps, or waits for a signal.", (), "It comes back by itself."
        )
    if facts.unknown_times:
        yield _unknown_type(facts)
    if status == Status.SCHEDULED and facts.available_at and facts.available_at > facts.now:
        yield _not_due(facts, facts.available_at)
    if not facts.workers:
        yield _no_worker(facts)
    if facts.ahead:
        yield _behind(facts)
    yield _first_in_line(facts)


# ------------------------------------------------------------------ over, or under way


def _over(facts: Facts, status: Status) -> Explanation:
    when = moment_words(facts.finished_at, facts.now)
    look = f"Look at its attempts (broker_jobs show {facts.job_id}), mend the cause and retry it."
    attempts = f"attempt {facts.attempt_count} of {facts.max_attempts}"
    if status == Status.COMPLETED:
        return Explanation("completed", f"It is over: it completed {when}, with {attempts}.", (), "Nothing.")
    if status == Status.DEAD_LETTER:
        code = f" with {facts.last_error_code}" if facts.last_error_code else ""
        since = since_words(facts.finished_at, facts.now)
        sentence = f"It is a dead letter since {since}: {attempts} was the last, and ended badly{code}."
        return Explanation("dead_letter", sentence, (), look)
    if status == Status.FAILED:
        why = because(facts) or (f": {facts.last_error_code}" if facts.last_error_code else "")
        return Explanation("failed", f"It is over: it failed for good {when}{why}.", (), look)
    if facts.reason_code == "prerequisite_failed":
        return _cancelled_along(facts, when)
    by = f" by {facts.by}" if facts.by else ""
    sentence = f"It is over: it was cancelled {when}{by}{because(facts)}."
    if facts.reason_code == "reference_expired":
        sentence += what_is_there(facts)
        return Explanation("cancelled", sentence, ids_of_expired(facts), cure_of_expired(facts))
    return Explanation("cancelled", sentence, (), "Retry it if it is wanted after all.")


def _cancelled_along(facts: Facts, when: str) -> Explanation:
    ids, named = ids_of(facts, facts.cause_id), named_cause(facts)
    if _is_coming_back(facts):
        cure = _COMES_BACK
    elif _was_replaced(facts):
        cure = f"{_REPLACED}."
    else:
        cure = f"{upper(_retry_of(facts) or 'retry what it waited for')}: then it comes back by itself."
    return Explanation(
        "prerequisite_failed", f"It is over: it was cancelled {when}{because(facts)}.{named}", ids, cure
    )


_REPLACED = "Another job took the place of the cause, which comes back no more: enqueue this one again"
_COMES_BACK = "Nothing: its cause lives again, and a worker's upkeep brings this one back. Is one running?"


def _cause_lives(facts: Facts) -> bool:
    return facts.cause is not None and facts.cause["status"] <= Status.COMPLETED


def _still_in_the_way(facts: Facts) -> UUID | str | None:
    """Return the job to retry: the cause, unless that lives again and another one that is waited for went wrong too."""
    if _cause_lives(facts):
        for each in facts.prerequisites or []:
            if each["kind"] == "job" and each["status"] in (Status.FAILED, Status.DEAD_LETTER):
                return str(each["id"])
    return facts.cause_id


def _was_replaced(facts: Facts) -> bool:
    return facts.cause is not None and facts.cause["reason_code"] == "replaced"


def _retry_of(facts: Facts) -> str:
    """Say what to type for all that is in its way, as far as it is named; empty where nothing is."""
    jobs: dict[str, None] = {}
    groups: dict[str, None] = {}
    for each in facts.prerequisites or []:
        if each["outcome"] <= Status.COMPLETED:
            continue
        if each["kind"] == "group" and each["bad"] != 1:
            groups[shlex.quote(each["name"])] = None
        elif each["kind"] == "job" and each["status"] in (Status.FAILED, Status.DEAD_LETTER):
            jobs[str(each["id"])] = None
        elif facts.cause_id is not None and not _cause_lives(facts):
            # It fell along, or is the group of the cause.
            jobs[str(facts.cause_id)] = None
    if not jobs and not groups and (cause := _still_in_the_way(facts)) is not None:
        jobs[str(cause)] = None
    typed = [f"broker_groups retry {name}" for name in groups]
    if jobs:
        typed.insert(0, f"broker_jobs retry {' '.join(jobs)}")
    what = "the cause" if len(jobs) + len(groups) == 1 else "all that is in its way"
    return f"retry {what} ({', '.join(typed)})" if typed else ""


def _is_coming_back(facts: Facts) -> bool:
    """Tell whether the cause has been retried and nothing else that went wrong by itself is in the way."""
    return (
        _cause_lives(facts)
        and _still_in_the_way(facts) == facts.cause_id
        and not any(
            each["kind"] == "group" and each["status"] > Status.COMPLETED
            for each in facts.prerequisites or []
        )
    )


def _running(facts: Facts) -> Explanation:
    who = f"worker {facts.worker} ({facts.worker_id})" if facts.worker else f"worker {facts.worker_id}"
    has_it = f"since {since_words(facts.leased_at, facts.now)} {who} has it"
    ids = (facts.worker_id,) if facts.worker_id else ()
    if facts.lease_expires_at and facts.lease_expires_at <= facts.now:
        ended = moment_words(facts.lease_expires_at, facts.now)
        return Explanation(
            "lease_expired",
            f"It ran: {has_it}, but the lease ended {ended} and was not renewed.",
            ids,
            "Another worker takes it back within REAP_SECONDS. Look whether that worker lives.",
        )
    attempt = f"attempt {facts.attempt_count} of {facts.max_attempts}"
    if facts.cancel_requested_at:
        asked = f"and was asked to stop {moment_words(facts.cancel_requested_at, facts.now)}{because(facts)}"
        return Explanation(
            "cancel_requested",
            f"It runs, {attempt}: {has_it}, {asked}.",
            ids,
            "It ends cancelled, whatever its handler then reports. One that does not listen is ended by its timeout.",
        )
    return Explanation(
        "running",
        f"It runs, {attempt}: {has_it}. A worker may hold it for its next free slot.",
        ids,
        "Nothing. A handler that hangs is ended by a timeout of its type.",
    )


# ------------------------------------------------------------------ held back


_PAUSED = {
    "queue": ("its queue {queue}", "--queue {queue}"),
    "job_type": ("its type {job_type}", "--type {job_type}"),
    "tenant": ("its tenant {tenant}", "--tenant {tenant}"),
    "queue_tenant": ("its tenant {tenant} in queue {queue}", "--queue {queue} --tenant {tenant}"),
}


def _paused(facts: Facts) -> Explanation:
    pauses = facts.pauses or []
    pause, names = pauses[0], {"queue": facts.queue, "job_type": facts.job_type, "tenant": facts.tenant_id}
    what, flags = (text.format(**names) for text in _PAUSED[pause["kind"]])
    until = (
        f", until {since_words(time_of(pause['until']), facts.now)}"
        if pause["until"]
        else ", until it is resumed"
    )
    by = f" by {pause['by']}" if pause["by"] else ""
    why = f": {pause['reason'].rstrip('.')}" if pause["reason"] else ""
    more = f" {len(pauses) - 1} more pauses hold it too." if len(pauses) > 1 else ""
    since = since_words(time_of(pause["since"]), facts.now)
    # Of a pause alone somebody would think that a resume is enough.
    beyond = next(_reasons(facts._replace(pauses=None)))
    then = "" if beyond.code in _NEXT_IN_LINE else f" Then this is left: {beyond.sentence}"
    return Explanation(
        "paused",
        f"{upper(what)} is paused since {since}{by}{until}{why}.{more}{then}",
        beyond.ids if then else (),
        f"broker_queues resume {flags} ends the pause.",
    )


def _waiting(facts: Facts) -> Iterator[Explanation]:
    named, references = facts.prerequisites or [], facts.deferred or []
    ids = ids_of(facts)
    ended = [each for each in named if each["outcome"] > Status.COMPLETED]
    later = f" It also waits for {reference(references[0], facts)}." if references else ""
    if ended:
        # Their ends are not yet decided about: a pass is due.
        fate = OnFailure(ended[0]["on_failure"])
        what = "cancelled" if fate == OnFailure.CANCEL else "blocked"
        yield Explanation(
            "about_to_be_resolved",
            f"{upper(prerequisite(ended[0]))} ended badly, so that it is about to be {what}.",
            ids,
            "A worker's upkeep does that within seconds: is one running?",
        )
    elif named and len(named) == facts.prerequisite_count and all(each["status"] >= 10 for each in named):
        yield Explanation(
            "about_to_be_resolved",
            f"What it waits for has ended: {', '.join(map(prerequisite, named))}. It is about to be looked at.",
            ids,
            "A worker's upkeep does that within seconds: is one running?",
        )
    if facts.prerequisite_count:
        more = facts.prerequisite_count - len(named)
        listed = [*map(prerequisite, named), *([f"{many(more)} more"] if more else [])]
        count = (
            "its prerequisite"
            if facts.prerequisite_count == 1
            else f"{many(facts.prerequisite_count)} prerequisites"
        )
        yield Explanation(
            "waiting_for_prerequisites",
            f"It waits for {count}: {', '.join(listed)}.{later}",
            ids,
            _cure_of_waiting(named),
        )
    if references and time_of(references[0]["deadline"]) <= facts.now:
        yield Explanation(
            "about_to_be_resolved",
            "What it refers to is about to be looked up.",
            (),
            "A worker's upkeep does that within seconds: is one running?",
        )
    if references:
        more_of_them = f", and {len(references) - 1} more" if len(references) > 1 else ""
        yield Explanation(
            "waiting_for_reference",
            f"It waits for {reference(references[0], facts)}{more_of_them}.",
            (),
            "Enqueue what it refers to before that; afterwards it counts as a prerequisite that failed.",
        )
    yield Explanation(
        "about_to_be_resolved",
        "All that it waited for is there: it is about to be freed.",
        (),
        "A worker's upkeep does that within seconds: is one running?",
    )


def _cure_of_waiting(named: list[dict[str, Any]]) -> str:
    for each in named:
        if each["kind"] == "group" and each["status"] == GroupState.OPEN and not each["live"]:
            name = shlex.quote(each["name"])
            return (
                f"Seal the run group (broker_groups seal {name}): until then nobody knows that it is whole."
            )
    for each in named:
        if each["kind"] == "job":
            return f"Ask the same of what it waits for: broker_jobs explain {each['id']}"
    for each in named:
        return f"Look at what it waits for: broker_groups show {shlex.quote(each['name'])}"
    return "An upkeep pass repairs edges to what is not there: is a worker running?"


def _blocked(facts: Facts) -> Explanation:
    named = [prerequisite(each) for each in facts.prerequisites or []]
    why = f"{upper(', '.join(named))} ended badly" if named else "A prerequisite ended badly"
    if facts.reason_code == "reference_expired":
        why = f"What it refers to did not come in time{because(facts)}"
        return Explanation(
            "blocked",
            f"It is blocked. {why}.{what_is_there(facts)}",
            ids_of(facts, *ids_of_expired(facts)),
            cure_of_expired(facts),
        )
    retry = _retry_of(facts)
    mend = f"Mend and {retry}" if retry else "Mend the cause"
    if _was_replaced(facts):
        mend = _REPLACED
    cure = f"{mend}, or let it run without (broker_jobs unblock {facts.job_id})."
    return Explanation(
        "blocked",
        f"It is blocked. {why}, and blocks what waits for it.{named_cause(facts)}",
        ids_of(facts, facts.cause_id),
        _COMES_BACK if _is_coming_back(facts) else cure,
    )


# ------------------------------------------------------------------ not yet, or nobody to take it


def _unknown_type(facts: Facts) -> Explanation:
    since = f" since {since_words(facts.unknown_since, facts.now)}" if facts.unknown_since else ""
    again = ""
    if facts.available_at and facts.available_at > facts.now:
        again = f" It is offered again {moment_words(facts.available_at, facts.now)}."
    times = "once" if facts.unknown_times == 1 else f"{facts.unknown_times} times"
    return Explanation(
        "unknown_job_type",
        f"No worker that took it had loaded {facts.job_type}: it was put back {times}{since}.{again}",
        (),
        "Start a worker whose code declares that type, in this version. After UNKNOWN_TYPE_GRACE_SECONDS it is a "
        "dead letter.",
    )


def _not_due(facts: Facts, due: datetime) -> Explanation:
    last = AttemptState(facts.last_state) if facts.last_state else None
    code = f" with {facts.last_error_code}" if facts.last_error_code else ""
    match last:
        case None:
            why = "It is scheduled"
        case AttemptState.SNOOZED:
            why = "Its handler asked to come back later"
        case AttemptState.RELEASED:
            why = "A worker handed it back"
        case _:
            why = (
                f"Attempt {facts.attempt_count} of {facts.max_attempts} ended badly{code} and is tried again"
            )
    return Explanation(
        "not_due", f"{why}: it is due {moment_words(due, facts.now)}.", (), "Nothing: it runs then."
    )


def _no_worker(facts: Facts) -> Explanation:
    draining = f" {facts.draining} that served it are shutting down." if facts.draining else ""
    return Explanation(
        "no_worker",
        f"No live worker serves queue {facts.queue}.{draining}",
        (),
        f"Start one: broker_worker --queues {facts.queue}",
    )


_NEXT_IN_LINE = frozenset({"behind_others", "slots_busy", "about_to_run"})


def _behind(facts: Facts) -> Explanation:
    count = facts.ahead or 0
    jobs = "1 job goes" if count == 1 else f"{many(count)} jobs go"
    whose = "" if facts.sees_all else f" of tenant {facts.tenant_id}"
    return Explanation(
        "behind_others",
        f"It is ready, and {jobs} before it in queue {facts.queue}{whose}. {upper(slots_taken(facts))}.",
        (),
        "Add workers, give it a higher priority, or give slow jobs a queue of their own.",
    )


def _first_in_line(facts: Facts) -> Explanation:
    others = "" if facts.sees_all else f" among the jobs of tenant {facts.tenant_id}"
    ready = "ready" if facts.status == Status.READY else "due"
    if facts.busy >= facts.slots:
        return Explanation(
            "slots_busy",
            f"It is {ready} and the next one in queue {facts.queue}{others}, but {slots_taken(facts)}.",
            (),
            "Add workers, or give slow jobs a queue of their own.",
        )
    return Explanation(
        "about_to_run",
        f"It is {ready} and the next one in queue {facts.queue}{others}: {slots_taken(facts)}.",
        (),
        "Nothing: a worker takes it within POLL_SECONDS.",
    )

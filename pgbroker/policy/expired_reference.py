"""What to do about a job that was stopped since what it refers to did not come, or could not be waited for. Pure."""

from typing import Any
from uuid import UUID

from pgbroker.policy.job_facts import Facts
from pgbroker.states import Status

# As the pass that makes edges of references says it.
_TOO_DEEP = "the chain would be longer than 10000 jobs"


def what_is_there(facts: Facts) -> str:
    """Tell in a sentence what there is by now of what the job refers to; nothing where nothing is."""
    if circular := _circular(facts):
        return f" It would wait for itself: {circular['words']} is there, and waits for it."
    if there := [each for each in facts.expired or [] if each["id"]]:
        ended = f", and {Status(there[0]['outcome']).label}" if there[0]["outcome"] else ""
        return f" By now {there[0]['words']} is there{ended}."
    return ""


def ids_of_expired(facts: Facts) -> tuple[UUID, ...]:
    """Return the ids of what is there by now."""
    return tuple(UUID(each["id"]) for each in facts.expired or [] if each["id"])


def cure_of_expired(facts: Facts) -> str:
    """Say what lets a cancelled or blocked job go on: what a retry would come to is seen from what there is by now."""
    retry = f"retry it (broker_jobs retry {facts.job_id})"
    without = "To have it run without, enqueue it anew."
    if facts.status == Status.BLOCKED:
        retry = (
            f"cancel it and retry it (broker_jobs cancel {facts.job_id}, broker_jobs retry {facts.job_id})"
        )
        without = _anew(facts)
    if circular := _circular(facts):
        return (
            f"{_anew(facts)} A retry ends the same way as long as {circular['words']} waits for it: "
            f"look there who does ({_look(circular)})."
        )
    if (facts.reason or "").endswith(_TOO_DEEP):
        return f"{_anew(facts)} A retry ends the same way: let it wait for something that is less deep."
    expired = facts.expired or []
    bad = [each for each in expired if (each["outcome"] or 0) > Status.COMPLETED]
    if any(each["id"] is None for each in expired) or not expired:
        wait = f"enqueue what it refers to, then {retry}: it waits for that then."
    elif bad:
        wait = f"retry {bad[0]['words']} ({_retry(bad[0])}), then {retry}."
    else:
        wait = f"{retry}: it waits for that then."
    if facts.status == Status.BLOCKED:
        return f"{without} To have it wait again, {wait}"
    return f"{wait[0].upper()}{wait[1:]} {without}"


def _circular(facts: Facts) -> dict[str, Any] | None:
    return next((each for each in facts.expired or [] if each["circular"]), None)


def _anew(facts: Facts) -> str:
    if facts.status == Status.BLOCKED:
        return f"Let it run without (broker_jobs unblock {facts.job_id})."
    return "Enqueue it anew, without that reference."


def _look(named: dict[str, Any]) -> str:
    return f"broker_jobs explain {named['id']}" if _is_job(named) else f"broker_groups show {named['id']}"


def _retry(named: dict[str, Any]) -> str:
    return f"{'broker_jobs' if _is_job(named) else 'broker_groups'} retry {named['id']}"


def _is_job(named: dict[str, Any]) -> bool:
    return bool(named["words"].startswith("job "))

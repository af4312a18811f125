"""How broker_schedules writes what a synchronisation did, and what is left that differs."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from django.core.management.base import CommandError

from pgbroker.declared_rows import HeldRow
from pgbroker.lifecycle.clock import database_time
from pgbroker.management import exits
from pgbroker.management.output import as_json, harmless, table
from pgbroker.schedules.otherwise import read_otherwise
from pgbroker.schedules.shown import DRIFT
from pgbroker.schedules.sync import Drift, declared_of
from pgbroker.schedules.written import written


def drift_for_programs(done: Mapping[str, list[str]], left: Sequence[Drift]) -> str:
    """Write it as a JSON document."""
    return as_json({**done, "drift": [each._asdict() for each in left]})


def drift_for_people(done: Mapping[str, list[str]], left: Sequence[Drift]) -> str:
    """Write it in lines."""
    lines = [harmless(f"{what} {name}", keep="") for what, names in done.items() for name in names]
    if left:
        headings = ("name", "tenant", "drift", "which means")
        rows = ((each.name, each.tenant, each.what, DRIFT[each.what]) for each in left)
        lines.append(table(headings, rows))
        lines += map(why, (each for each in left if each.detail))
    return "\n".join(lines) or "Code and rows agree."


def rowless_for_programs(found: Sequence[Drift]) -> dict[str, list[dict[str, str]]]:
    """Write what has no row, by what is the matter, for a JSON document."""
    return {
        what: [
            {"name": each.name, "tenant_id": each.tenant, "detail": each.detail}
            for each in found
            if each.what == what
        ]
        for what in ("missing", "invalid")
    }


def refuse_invalid(left: Sequence[Drift]) -> None:
    """End the command with 1 where anything that is declared cannot be stored."""
    if broken := [each.name for each in left if each.what == "invalid"]:
        many = f"{len(broken)} declared schedule{'s' * (len(broken) > 1)} cannot be stored"
        raise CommandError(harmless(f"{many}: {', '.join(map(repr, broken))}"), returncode=exits.ERROR)


def refuse_held(held: Sequence[HeldRow]) -> None:
    """End the command with 1 where anything was not written since somebody holds it."""
    if held:
        names = ", ".join(f"{each.what} {each.name!r}" for each in held)
        cure = "Look who does in pg_stat_activity, and call this again; what runs tries again by itself."
        raise CommandError(
            harmless(f"held by somebody's open transaction, and not written: {names}. {cure}"),
            returncode=exits.ERROR,
        )


def why(drift: Drift) -> str:
    """Write in a paragraph which schedule differs from the code and how, with the reason in full."""
    told = ": ".join(filter(None, (DRIFT[drift.what], drift.detail)))
    return harmless(f"\n{drift.name} of tenant {drift.tenant}: {told}", keep="\n")


def other_readings(names: Collection[str], alias: str) -> Iterator[str]:
    """Tell of those of some declared schedules that others would read otherwise."""
    since = database_time(using=alias).date()
    for each in declared_of(names, using=alias):
        definition, _ = written(each)
        if definition is not None and (told := read_otherwise(definition, since)) is not None:
            yield f"{each.name}: {told}"

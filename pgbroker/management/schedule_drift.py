"""How broker_schedules writes what a synchronisation did, and what is left that differs."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from pgbroker.lifecycle.clock import database_time
from pgbroker.management.output import as_json, harmless, table
from pgbroker.schedules.otherwise import declared_otherwise
from pgbroker.schedules.shown import DRIFT
from pgbroker.schedules.sync import Drift, declared_of


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


def why(drift: Drift) -> str:
    """Write in a paragraph which schedule differs from the code and how, with the reason in full."""
    told = ": ".join(filter(None, (DRIFT[drift.what], drift.detail)))
    return harmless(f"\n{drift.name} of tenant {drift.tenant}: {told}", keep="\n")


def other_readings(names: Collection[str], alias: str) -> Iterator[str]:
    """Tell of those of some declared schedules that others would read otherwise."""
    since = database_time(using=alias).date()
    for each in declared_of(names, using=alias):
        if (told := declared_otherwise(each, since)) is not None:
            yield f"{each.name}: {told}"

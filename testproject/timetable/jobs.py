"""
The timetable: a refresh of everything each night, something each minute, and something in the morning of an island.

What a job needs to know of its day is the tick that it was created for, never the moment at which it runs.
"""

from __future__ import annotations

from datetime import date
from zoneinfo import ZoneInfo

from django.db.models import Count

from pgbroker import JobContext, job, schedule
from testproject.airports import dataset
from testproject.airports.jobs import (
    CountryFacts,
    batch_digest,
    country_report,
    import_airports,
    nearest_neighbours,
)
from testproject.airports.models import Airport, Unit

# More than there are: a slice beyond the end is empty.
AIRPORTS = 29_000
COUNTRIES = ["AU", "BR", "IS", "NP", "ZA"]
# Its clock changes by half an hour, at two in the morning.
ISLAND, ITS_ZONE = "YLHI", "Australia/Lord_Howe"
NOON = 12


@job(name="timetable.nightly_report", queue_name="reports", takes_context=True)
def nightly_report(context: JobContext, country: str) -> CountryFacts:
    """Report on a country as of the night that this is for."""
    day = _day(context)
    return country_report.func(context, country, f"nightly-{day}", day, Unit.METRES)


@job(name="timetable.nightly_digest", queue_name="reports", takes_context=True)
def nightly_digest(context: JobContext, countries: list[str]) -> dict[str, int]:
    """Sum the reports of the night up."""
    day = _day(context)
    return batch_digest.func(context, f"nightly-{day}", countries, day)


def _day(context: JobContext) -> date:
    assert context.scheduled_for is not None, "it is enqueued by its schedule alone"
    return context.scheduled_for.date()


@job(name="timetable.airports_at_noon", queue_name="airports", takes_context=True)
def airports_at_noon(context: JobContext) -> int:
    """Count the airports whose clocks show noon at the tick."""
    assert context.scheduled_for is not None, "it is enqueued by its schedule alone"
    zones = Airport.objects.values_list("time_zone").annotate(airports=Count("icao"))
    return sum(
        airports for zone, airports in zones if context.scheduled_for.astimezone(ZoneInfo(zone)).hour == NOON
    )


_imports = [import_airports.bind(dataset.edition(), *slice_) for slice_ in dataset.slices(AIRPORTS)]
_reports = [nightly_report.options(depends_on=_imports).bind(country) for country in COUNTRIES]

schedule(
    "nightly-refresh",
    [*_imports, *_reports, nightly_digest.options(depends_on=_reports).bind(COUNTRIES)],
    cron="30 1 * * *",
    timezone="UTC",
    overlap="skip",
)
schedule("every-minute", airports_at_noon, cron="* * * * *", timezone="UTC", misfire="skip", overlap="skip")
schedule("island-morning", nearest_neighbours, args=[ISLAND], cron="15 2 * * *", timezone=ITS_ZONE)

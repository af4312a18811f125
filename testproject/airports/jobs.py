"""
What this application has done by jobs.

A job may run more than once: a worker can die after the work and before its end is recorded. So each
one here writes the same rows again when it runs again, and none adds to what it finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

from django.db.models import Avg, Count, Max, Min

from pgbroker import Backoff, Discard, JobContext, Snooze, job
from testproject.airports import dataset
from testproject.airports.geodesy import KILOMETRES_IN_A_DEGREE, kilometres, kilometres_from
from testproject.airports.models import Airport, Cabin, Check, Country, Neighbour, Quote, Report, Unit

IMPORTED = ["iata", "name", "city", "region", "country", "elevation", "latitude", "longitude", "time_zone"]
METRES_IN_A_FOOT = Decimal("0.3048")
# Half the width, in latitude, of where neighbours are looked for first.
BELT_DEGREES = 1.0
# The civil clock may lead the sun: by three hours in the west of China, nowhere by more.
MOST_HOURS_FROM_THE_SUN = 3.0


@dataclass(frozen=True)
class Leg:
    """A flight from one airport to another, by their ICAO codes."""

    origin: str
    destination: str


@dataclass(frozen=True)
class CountryFacts:
    """What a country report states: elevations in its own unit, extremes as ICAO codes."""

    country: str
    airports: int
    time_zones: int
    unit: Unit
    lowest: Decimal
    highest: Decimal
    mean: Decimal


class RegistryUnavailable(ConnectionError):
    """The registry of airports did not answer, as remote services now and then do not."""


# ------------------------------------------------------------------ import


@job(queue_name="imports", priority=50, timeout=120)
def import_airports(edition: str, start: int, stop: int) -> int:
    """Store the airports *start* to *stop* of the data, as one slice; returns how many."""
    _refuse_other_edition(edition)
    return _store(dataset.rows()[start:stop])


@job(queue_name="imports", priority=50, timeout=120)
def import_country(edition: str, country: str, start: int, stop: int) -> int:
    """Store the airports *start* to *stop* of a country, as one slice; returns how many."""
    _refuse_other_edition(edition)
    return _store(dataset.rows_of(country)[start:stop])


def _refuse_other_edition(edition: str) -> None:
    if edition != dataset.edition():
        raise Discard(f"this worker has edition {dataset.edition()} of the data, not {edition}")


def _store(chosen: Sequence[dataset.Row]) -> int:
    # Sorted, as any two slices have countries in common: in another order their inserts could deadlock.
    countries = [Country(code=code) for code in sorted({row.country for row in chosen})]
    Country.objects.bulk_create(countries, ignore_conflicts=True)
    Airport.objects.bulk_create(
        (
            Airport(
                icao=row.icao,
                iata=row.iata,
                name=row.name,
                city=row.city,
                region=row.region,
                country_id=row.country,
                elevation=row.elevation,
                latitude=row.latitude,
                longitude=row.longitude,
                time_zone=row.time_zone,
            )
            for row in chosen
        ),
        update_conflicts=True,
        unique_fields=["icao"],
        update_fields=IMPORTED,
        batch_size=500,
    )
    return len(chosen)


def _not_yet(icao: str) -> Discard | Snooze:
    """Say what to do about an airport that is not stored: wait for its import, if it will ever come."""
    if icao not in dataset.codes():
        return Discard(f"there is no airport {icao}")
    return Snooze(0.5, f"{icao} is not imported yet")


def _airport(icao: str) -> Airport:
    try:
        return Airport.objects.get(icao=icao)
    except Airport.DoesNotExist:
        raise _not_yet(icao) from None


# ------------------------------------------------------------------ what is worked out


@job(queue_name="airports")
def nearest_neighbours(icao: str, count: int = 5) -> list[str]:
    """Find and store the *count* airports of the same country that are nearest, nearest first."""
    airport = _airport(icao)
    nearest = _nearest(airport, count)
    Neighbour.objects.bulk_create(
        (
            Neighbour(airport=airport, rank=rank, other_id=other, kilometres=away)
            for rank, (other, away) in enumerate(nearest, start=1)
        ),
        update_conflicts=True,
        unique_fields=["airport", "rank"],
        update_fields=["other", "kilometres"],
    )
    return [other for other, _ in nearest]


def _nearest(airport: Airport, count: int) -> list[tuple[str, float]]:
    """Look along the airport's parallel first, which an index serves: what is beyond is farther than the belt."""
    others = Airport.objects.filter(country=airport.country_id).exclude(icao=airport.icao)
    belt = others.filter(latitude__range=(airport.latitude - BELT_DEGREES, airport.latitude + BELT_DEGREES))
    away = kilometres_from(airport.latitude, airport.longitude)
    found: list[tuple[str, float]] = []
    for candidates in (belt, others):
        ranked = candidates.annotate(away=away).order_by("away", "icao")
        found = list(ranked.values_list("icao", "away")[:count])
        if len(found) == count and found[-1][1] <= BELT_DEGREES * KILOMETRES_IN_A_DEGREE:
            break
    return found


@job(queue_name="airports", takes_context=True)
def charter_quote(
    context: JobContext, leg: Leg, departure: date, cabin: Cabin, price_per_kilometre: Decimal
) -> Decimal:
    """Price a charter flight and store the quote under the job's id; business costs half as much again."""
    origin, destination = _airport(leg.origin), _airport(leg.destination)
    away = kilometres(origin.latitude, origin.longitude, destination.latitude, destination.longitude)
    factor = Decimal("1.5") if cabin is Cabin.BUSINESS else Decimal(1)
    price = (Decimal(str(away)) * price_per_kilometre * factor).quantize(Decimal("0.01"))
    Quote.objects.update_or_create(
        job_id=context.job_id,
        defaults={
            "tenant_id": context.tenant_id,
            "origin": origin,
            "destination": destination,
            "departure": departure,
            "cabin": cabin,
            "price": price,
        },
    )
    return price


@job(queue_name="reports", takes_context=True)
def country_report(context: JobContext, country: str, batch: str, as_of: date, unit: Unit) -> CountryFacts:
    """Aggregate a country's airports into a report of the job's tenant; waits for the first import of one."""
    facts = _facts(country, unit)
    if facts is None:
        raise Snooze(0.5, f"no airport of {country} is imported yet")
    body = {name: str(value) for name, value in asdict(facts).items()}
    Report.objects.update_or_create(
        tenant_id=context.tenant_id, batch=batch, country=country, defaults={"as_of": as_of, "body": body}
    )
    return facts


def _facts(country: str, unit: Unit) -> CountryFacts | None:
    found = Airport.objects.filter(country=country).aggregate(
        airports=Count("icao"),
        time_zones=Count("time_zone", distinct=True),
        lowest=Min("elevation"),
        highest=Max("elevation"),
        mean=Avg("elevation"),
    )
    if not found["airports"]:
        return None

    def stated(feet: float) -> Decimal:
        factor = METRES_IN_A_FOOT if unit is Unit.METRES else Decimal(1)
        return (Decimal(str(feet)) * factor).quantize(Decimal("0.1"))

    return CountryFacts(
        country=country,
        airports=found["airports"],
        time_zones=found["time_zones"],
        unit=unit,
        lowest=stated(found["lowest"]),
        highest=stated(found["highest"]),
        mean=stated(found["mean"]),
    )


@job(queue_name="reports", takes_context=True)
def batch_digest(context: JobContext, batch: str, countries: list[str], as_of: date) -> dict[str, int]:
    """
    Sum a batch of country reports up, once the last of them is there; until then it comes back later.

    Enqueued so that it depends on those reports, it starts when they are all there.
    """
    made = dict(
        Report.objects.filter(tenant_id=context.tenant_id, batch=batch, country__in=countries).values_list(
            "country", "body"
        )
    )
    missing = len(set(countries) - set(made))
    if missing:
        raise Snooze(0.5, f"{missing} of {len(countries)} reports are not there yet")
    digest = {
        "countries": len(made),
        "airports": sum(int(body["airports"]) for body in made.values()),
    }
    Report.objects.update_or_create(
        tenant_id=context.tenant_id, batch=batch, country="", defaults={"as_of": as_of, "body": digest}
    )
    return digest


@job(queue_name="reports", takes_context=True, timeout=300)
def slow_summary(context: JobContext, country: str, seconds: float) -> dict[str, int]:
    """
    Count a country's airports by time zone, taking its time: *seconds* in all.

    It waits through its context and looks around in between, so a cancel or a shutdown ends it soon.
    """
    airports = Airport.objects.filter(country=country)
    zones = list(airports.order_by("time_zone").values_list("time_zone", flat=True).distinct())
    if not zones:
        raise Snooze(0.5, f"no airport of {country} is imported yet")
    summary = {}
    pause = seconds / len(zones)
    for zone in zones:
        summary[zone] = airports.filter(time_zone=zone).count()
        if context.wait(pause):
            context.raise_if_cancelled()
    return summary


# ------------------------------------------------------------------ checks


def _check(icao: str, kind: Check.Kind, note: str) -> tuple[list[Check], list[str], list[str]]:
    """Return what `bulk_create` needs to store a check, or to replace the last one of its kind."""
    check = Check(airport_id=icao, kind=kind, suspect=bool(note), note=note)
    return [check], ["airport", "kind"], ["suspect", "note", "checked_at"]


def _store_check(icao: str, kind: Check.Kind, note: str = "") -> None:
    checks, unique, updated = _check(icao, kind, note)
    Check.objects.bulk_create(checks, update_conflicts=True, unique_fields=unique, update_fields=updated)


async def _astore_check(icao: str, kind: Check.Kind, note: str = "") -> None:
    checks, unique, updated = _check(icao, kind, note)
    await Check.objects.abulk_create(
        checks, update_conflicts=True, unique_fields=unique, update_fields=updated
    )


@job(queue_name="airports")
def audit_elevation(icao: str, lowest: Decimal, highest: Decimal) -> None:
    """
    Check an airport's elevation, in feet, against what is possible.

    What is impossible will not become possible by another attempt: the job fails for good (`Discard`).
    """
    airport = _airport(icao)
    elevation = Decimal(str(airport.elevation))
    note = ""
    if not lowest <= elevation <= highest:
        note = f"{elevation} ft is outside {lowest} to {highest} ft"
    elif elevation <= 0 and airport.country_id in dataset.LANDLOCKED:
        note = f"{elevation} ft, in {airport.country_id}, which has no coast"
    _store_check(icao, Check.Kind.ELEVATION, note)
    if note:
        raise Discard(f"{icao}: {note}")


@job(queue_name="airports")
async def geocode_check(icao: str, day: date) -> float:
    """Compare an airport's longitude with its clock at noon of *day*; returns the hours between them."""
    try:
        airport = await Airport.objects.aget(icao=icao)
    except Airport.DoesNotExist:
        raise _not_yet(icao) from None
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=ZoneInfo(airport.time_zone))
    offset = noon.utcoffset()
    assert offset is not None
    standard = offset - (noon.dst() or offset * 0)
    apart = (standard.total_seconds() / 3600 - airport.longitude / 15 + 12) % 24 - 12
    note = f"the clock is {apart:+.1f} h from the sun" if abs(apart) > MOST_HOURS_FROM_THE_SUN else ""
    await _astore_check(icao, Check.Kind.COORDINATES, note)
    return round(apart, 2)


@job(
    queue_name="airports",
    takes_context=True,
    max_attempts=5,
    backoff=Backoff(base=0.5, factor=2.0, cap=2.0, jitter=False),
)
def flaky_lookup(context: JobContext, icao: str, outages: int = 1) -> None:
    """Ask the registry about an airport: it is down for the first *outages* attempts, then it answers."""
    if context.attempt <= outages:
        raise RegistryUnavailable(f"503 Service Unavailable: registry, airport {icao}")
    _store_check(_airport(icao).icao, Check.Kind.REGISTRY)


@job(queue_name="airports", max_attempts=3, backoff=Backoff(base=0.2, factor=2.0, cap=1.0, jitter=False))
def notify_retired_registry(icao: str) -> None:
    """Tell the old registry, which nobody runs any more: this fails until it is a dead letter."""
    raise RegistryUnavailable(f"could not resolve the host of the old registry, airport {icao}")


# ------------------------------------------------------------------ nothing, to measure the broker


@job(queue_name="nothing")
async def nothing_async(number: int) -> None:
    """Do nothing, on the event loop."""


@job(queue_name="nothing")
def nothing_sync(number: int) -> None:
    """Do nothing, in a thread."""

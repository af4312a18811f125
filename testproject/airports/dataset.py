"""The data that the jobs import: 28,000 airports, as the package `airportsdata` ships them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import airportsdata

# No coast, no lowland: an airport at sea level in one of these is a gap in the data.
# fmt: off
LANDLOCKED = frozenset(
    {
        "AD", "AF", "AM", "AT", "BF", "BI", "BO", "BT", "BW", "BY", "CF", "CH", "CZ", "ET",
        "HU", "KG", "LA", "LI", "LS", "LU", "MD", "MK", "ML", "MN", "MW", "NE", "NP", "PY",
        "RS", "RW", "SK", "SM", "SS", "SZ", "TD", "UG", "UZ", "XK", "ZM", "ZW",
    }
)
# fmt: on
_reading = threading.Lock()


class Row(NamedTuple):
    """One airport as it stands in the data: elevation in feet, coordinates in degrees."""

    icao: str
    iata: str
    name: str
    city: str
    region: str
    country: str
    elevation: float
    latitude: float
    longitude: float
    time_zone: str


def rows() -> tuple[Row, ...]:
    """Return all airports, always in the same order, so that a slice means the same to every job."""
    with _reading:  # or each of a worker's threads would parse the file for itself
        return _rows()


@cache
def _rows() -> tuple[Row, ...]:
    return tuple(
        Row(
            icao=icao,
            iata=each["iata"],
            name=each["name"],
            city=each["city"],
            region=each["subd"],
            country=each["country"],
            elevation=each["elevation"],
            latitude=each["lat"],
            longitude=each["lon"],
            time_zone=each["tz"],
        )
        for icao, each in sorted(airportsdata.load("ICAO").items())
    )


def edition() -> str:
    """Return the edition of the data: another one is another import."""
    return str(airportsdata.__version__)


@cache
def codes() -> frozenset[str]:
    """Return the ICAO codes of all airports."""
    return frozenset(row.icao for row in rows())


def rows_of(country: str) -> tuple[Row, ...]:
    """Return the airports of a country, in the order of the data."""
    return _by_country().get(country, ())


@cache
def _by_country() -> dict[str, tuple[Row, ...]]:
    found: dict[str, list[Row]] = {}
    for row in rows():
        found.setdefault(row.country, []).append(row)
    return {country: tuple(those) for country, those in found.items()}


def slices(airports: int, size: int = 1000) -> Iterator[tuple[int, int]]:
    """Yield the start and the stop of each slice that the first *airports* are imported in."""
    for start in range(0, airports, size):
        yield start, min(start + size, airports)

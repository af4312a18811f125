"""Distances on the globe: in Python for two points, and for many rows in PostgreSQL."""

from __future__ import annotations

import math

from django.db.models import Expression, F
from django.db.models.functions import ASin, Cos, Least, Power, Radians, Sin, Sqrt

EARTH_RADIUS = 6371.0088  # km: the mean radius that the IUGG recommends
KILOMETRES_IN_A_DEGREE = math.pi * EARTH_RADIUS / 180  # of latitude


def kilometres(latitude: float, longitude: float, other_latitude: float, other_longitude: float) -> float:
    """Return the great-circle distance between two points given in degrees (haversine)."""
    north, south = math.radians(latitude), math.radians(other_latitude)
    across = math.sin((south - north) / 2) ** 2
    along = math.sin(math.radians(other_longitude - longitude) / 2) ** 2
    return (
        2 * EARTH_RADIUS * math.asin(min(1.0, math.sqrt(across + math.cos(north) * math.cos(south) * along)))
    )


def kilometres_from(latitude: float, longitude: float) -> Expression:
    """Return the same distance, from one point to each row's `latitude` and `longitude`, as an expression."""
    across = Power(Sin(Radians(F("latitude") - latitude) / 2.0), 2)
    along = Power(Sin(Radians(F("longitude") - longitude) / 2.0), 2)
    chord = Sqrt(across + math.cos(math.radians(latitude)) * Cos(Radians(F("latitude"))) * along)
    return ASin(Least(chord, 1.0)) * (2 * EARTH_RADIUS)

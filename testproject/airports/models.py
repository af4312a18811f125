"""Airports, which all tenants share, and what each tenant had made of them."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models.functions import Now


class Cabin(models.TextChoices):
    """Where a passenger sits; an argument of jobs, too."""

    ECONOMY = "economy"
    BUSINESS = "business"


class Unit(models.TextChoices):
    """How a report states elevations; an argument of jobs, too."""

    FEET = "ft"
    METRES = "m"


class Country(models.Model):
    """A country, by its ISO 3166 code."""

    code = models.CharField(max_length=2, primary_key=True)

    class Meta:
        ordering: ClassVar = ["code"]
        verbose_name_plural = "countries"

    def __str__(self) -> str:
        return self.code


class Airport(models.Model):
    """An airport, by its ICAO code."""

    icao = models.CharField(max_length=4, primary_key=True)
    iata = models.CharField(max_length=3, blank=True)
    name = models.CharField(max_length=100)
    city = models.CharField(max_length=100, blank=True)
    region = models.CharField(max_length=100, blank=True)
    country = models.ForeignKey(Country, on_delete=models.CASCADE, related_name="airports")
    elevation = models.FloatField(help_text="Above sea level, in feet.")
    latitude = models.FloatField()
    longitude = models.FloatField()
    time_zone = models.CharField(max_length=64)

    class Meta:
        ordering: ClassVar = ["icao"]
        indexes: ClassVar = [models.Index(fields=["country", "latitude"], name="airports_country_latitude")]

    def __str__(self) -> str:
        return f"{self.icao} {self.name}"


class Neighbour(models.Model):
    """One of the airports of the same country that are nearest to an airport."""

    airport = models.ForeignKey(Airport, on_delete=models.CASCADE, related_name="neighbours")
    rank = models.PositiveSmallIntegerField()
    other = models.ForeignKey(Airport, on_delete=models.CASCADE, related_name="+")
    kilometres = models.FloatField()

    class Meta:
        ordering: ClassVar = ["airport", "rank"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["airport", "rank"], name="airports_neighbour_rank"),
        ]

    def __str__(self) -> str:
        return f"{self.airport_id} to {self.other_id}: {self.kilometres:.0f} km"


class Check(models.Model):
    """What the last check of one kind said about an airport."""

    class Kind(models.TextChoices):
        ELEVATION = "elevation"
        COORDINATES = "coordinates"
        REGISTRY = "registry"

    airport = models.ForeignKey(Airport, on_delete=models.CASCADE, related_name="checks")
    kind = models.CharField(max_length=20, choices=Kind.choices)
    suspect = models.BooleanField()
    note = models.CharField(max_length=200, blank=True)
    checked_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering: ClassVar = ["airport", "kind"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["airport", "kind"], name="airports_check_kind"),
        ]

    def __str__(self) -> str:
        return f"{self.airport_id} {self.kind}: {self.note or 'fine'}"


class Report(models.Model):
    """A report on one country (or, without one, the digest of a whole batch) that a tenant ordered."""

    tenant_id = models.CharField(max_length=63)
    batch = models.CharField(max_length=64)
    country = models.CharField(max_length=2, blank=True)
    as_of = models.DateField()
    body = models.JSONField()
    made_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering: ClassVar = ["-made_at"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["tenant_id", "batch", "country"], name="airports_report_in_batch"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.country or 'digest'} for {self.tenant_id}"


class Quote(models.Model):
    """The price of a charter flight, made by the job of that id: a second attempt writes the same row."""

    job_id = models.UUIDField(primary_key=True)
    tenant_id = models.CharField(max_length=63)
    origin = models.ForeignKey(Airport, on_delete=models.CASCADE, related_name="+")
    destination = models.ForeignKey(Airport, on_delete=models.CASCADE, related_name="+")
    departure = models.DateField()
    cabin = models.CharField(max_length=10, choices=Cabin.choices)
    price = models.DecimalField(max_digits=12, decimal_places=2)

    class Meta:
        ordering: ClassVar = ["-departure"]

    def __str__(self) -> str:
        return f"{self.origin_id} to {self.destination_id}: {self.price}"

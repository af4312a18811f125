"""The admin of the airports: to look at what the jobs wrote."""

from __future__ import annotations

from django.contrib import admin

from testproject.airports.models import Airport, Check, Country, Neighbour, Quote, Report


@admin.register(Country)
class CountryAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Countries."""

    search_fields = ["code"]


class NeighbourInline(admin.TabularInline):  # type: ignore[type-arg]
    """The nearest airports, on an airport's page."""

    model = Neighbour
    fk_name = "airport"
    fields = ["rank", "other", "kilometres"]
    autocomplete_fields = ["other"]
    extra = 0


@admin.register(Airport)
class AirportAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Airports, with their neighbours."""

    list_display = ["icao", "iata", "name", "city", "country", "elevation", "time_zone"]
    list_select_related = ["country"]
    search_fields = ["icao", "iata", "name", "city"]
    autocomplete_fields = ["country"]
    inlines = [NeighbourInline]


@admin.register(Check)
class CheckAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Checks, the suspects to be filtered."""

    list_display = ["airport", "kind", "suspect", "note", "checked_at"]
    list_filter = ["suspect", "kind"]
    list_select_related = ["airport"]
    autocomplete_fields = ["airport"]


@admin.register(Report)
class ReportAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Reports of all tenants."""

    list_display = ["tenant_id", "batch", "country", "as_of", "made_at"]
    list_filter = ["tenant_id"]


@admin.register(Quote)
class QuoteAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Quotes of all tenants."""

    list_display = ["tenant_id", "origin", "destination", "departure", "cabin", "price"]
    list_filter = ["tenant_id", "cabin"]
    list_select_related = ["origin", "destination"]
    autocomplete_fields = ["origin", "destination"]

"""The app's label and name."""

from django.apps import AppConfig


class AirportsConfig(AppConfig):
    """Airports, distances between them, and what was found out about them."""

    name = "testproject.airports"
    label = "airports"

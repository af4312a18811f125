"""The one field of our own: PostgreSQL's array of text, without an app for it in the host project."""

from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.core import checks


class TextArrayField(ArrayField):  # type: ignore[type-arg] # generic in the stubs only
    """
    An `ArrayField` of text that does not ask for `django.contrib.postgres` in INSTALLED_APPS.

    From Django 6.1 on a check wants it there, for form widgets and lookups that pgbroker does not use; naming
    pgbroker alone must be enough.
    """

    def __init__(self, **kwargs: Any) -> None:
        from django.db import models

        kwargs.setdefault("base_field", models.TextField())
        super().__init__(**kwargs)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Check what an ArrayField checks, but for the missing app."""
        return [message for message in super().check(**kwargs) if message.id != "postgres.E005"]

    def deconstruct(self) -> Any:
        """Write itself into migrations as the field that it is."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.contrib.postgres.fields.ArrayField", args, kwargs

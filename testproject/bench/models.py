"""The one table of the measurements: what handlers with the ORM read and write."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Item(models.Model):
    """A row that a job reads, and one that it writes: each job has its own two."""

    name = models.CharField(max_length=40)
    count = models.IntegerField(default=0)

    class Meta:
        ordering: ClassVar = ["id"]

    def __str__(self) -> str:
        return self.name

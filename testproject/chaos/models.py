"""What handlers do to the world, a row for each time they do it; and what has been repaired in it."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Effect(models.Model):
    """That a handler did its work: written in its own transaction, as an application would."""

    job_id = models.UUIDField()
    lease_token = models.BigIntegerField()
    attempt_no = models.IntegerField()
    worker_id = models.UUIDField()

    class Meta:
        ordering: ClassVar = ["id"]

    def __str__(self) -> str:
        return f"{self.job_id} attempt {self.attempt_no}"


class Repaired(models.Model):
    """That whatever was broken in a graph of run groups works by now."""

    graph = models.CharField(max_length=100, unique=True)

    def __str__(self) -> str:
        return self.graph

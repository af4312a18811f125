"""Ask as Prometheus and probes do."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Answered(NamedTuple):
    status: int
    text: str
    content_type: str


def get(url: str, *, seconds: float = 15.0, **headers: str) -> Answered:
    """Ask for a page; any status is an answer."""
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - our own port
    try:
        with urllib.request.urlopen(request, timeout=seconds) as response:  # noqa: S310
            return Answered(response.status, response.read().decode(), response.headers["Content-Type"])
    except urllib.error.HTTPError as error:
        return Answered(error.code, error.read().decode(), error.headers["Content-Type"] or "")


def samples(page: str) -> Samples:
    """Read a page of metrics as Prometheus does."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(read: Samples, name: str, **labels: str) -> float:
    """Return one sample; nothing counted is 0."""
    return read.get((name, frozenset(labels.items())), 0.0)


def total(read: Samples, name: str, **labels: str) -> float:
    """Add up all samples of a name that have these labels, among others."""
    return sum(
        number for (known, bound), number in read.items() if known == name and labels.items() <= set(bound)
    )

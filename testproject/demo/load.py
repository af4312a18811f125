"""The demo's load: jobs on the airports of the world, of two tenants, enqueued in bulk and one by one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import date, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any
from uuid import UUID

from django.db import transaction

from pgbroker import GroupRef, cancel, get_job, run_group, tenant_context
from pgbroker.states import Status
from testproject.airports import dataset, jobs
from testproject.airports.models import Cabin, Unit
from testproject.demo.batch import Batch, Task

TENANTS = ("default", "acme")
ACME_SHARE = 0.25
BULK = 500
# Airports that one job imports.
SLICE = 200
# How a hundred jobs divide. Reports are as many, at most, as there are countries.
SHARES = {"neighbours": 32, "clocks": 26, "audits": 20, "quotes": 10, "lookups": 4, "reports": 8}
# A small load works with the airports of a part of the world.
FEWEST_AIRPORTS, AIRPORTS_A_JOB = 1000, 8
# The lowest airport there is, and the highest that has scheduled flights.
LOWEST, HIGHEST = Decimal(-1266), Decimal(14472)


class AirportsLoad:
    """About *size* jobs of the application, and the imports they wait for."""

    def __init__(self, batch: Batch, size: int, *, today: date) -> None:
        self.batch, self.size, self.today = batch, size, today
        self._dice = random.Random(batch.name)
        self._airports = dataset.rows()[: max(FEWEST_AIRPORTS, size * AIRPORTS_A_JOB)]
        self._countries = [code for code, _ in Counter(row.country for row in self._airports).most_common()]
        self._unwanted: UUID | None = None

    def enqueue(self) -> Iterator[None]:
        """Enqueue everything, a bit for each turn of the iterator."""
        yield from self._imports()
        yield from self._bulk()
        yield from self._reports()
        yield from self._quotes()
        yield from self._odd_ones()

    def _imports(self) -> Iterator[None]:
        """
        Import each country as a run group, and ask twice for each slice, as an impatient click does.

        The key makes one job of both. Whoever needs a country waits for its group.
        """
        task, edition = self.batch.named(jobs.import_country), dataset.edition()
        for country in self._countries:
            with run_group(self._group(country)) as group:
                calls = [
                    # Another run imports again ("live"): the rows may be gone, and the job that made them still there.
                    task.options(
                        group=group,
                        idempotency_key=f"{self.batch.name}:{edition}:{country}:{start}-{stop}",
                        idempotency_scope="live",
                    ).bind(edition, country, start, stop)
                    for start, stop in dataset.slices(len(dataset.rows_of(country)), size=SLICE)
                ]
                self.batch.many(calls + calls)
            yield

    def _group(self, country: str) -> str:
        return f"{self.batch.name}:import:{country}"

    def _bulk(self) -> Iterator[None]:
        named = self.batch.named
        calls = [
            *(named(jobs.nearest_neighbours).bind(icao) for icao in self._some("neighbours")),
            *(named(jobs.geocode_check).bind(icao, day=self.today) for icao in self._some("clocks")),
            *(named(jobs.audit_elevation).bind(icao, LOWEST, HIGHEST) for icao in self._audited()),
            *(
                named(jobs.flaky_lookup).bind(icao, outages=1 + number % 3)
                for number, icao in enumerate(self._some("lookups"))
            ),
        ]
        self._dice.shuffle(calls)
        acmes = int(len(calls) * ACME_SHARE)
        for tenant, part in zip(TENANTS, (calls[acmes:], calls[:acmes]), strict=True):
            for bulk in batches(part, BULK):
                with tenant_context(tenant):
                    self.batch.many(bulk)
                yield

    def _audited(self) -> list[str]:
        """Choose the suspects first: their jobs are discarded, and a demo should show that."""
        suspects = [
            row.icao
            for row in self._airports
            if row.elevation > HIGHEST or (row.elevation <= 0 and row.country in dataset.LANDLOCKED)
        ]
        return (suspects + self._some("audits"))[: self._share("audits")]

    def _reports(self) -> Iterator[None]:
        """
        Report each country when its import is complete, and the world when all of them are reported.

        A group is its tenant's own: the other tenant's reports cannot wait for it. They look, and come back later.
        """
        countries = self._countries[: max(1, self._share("reports") // len(TENANTS))]
        ours, theirs = zip(TENANTS, Unit, strict=True)
        reports = []
        for country in countries:
            after_import = jobs.country_report.options(depends_on=[GroupRef(self._group(country))])
            reports.append(self._report(after_import, country, *ours))
            self._report(jobs.country_report, country, *theirs)
            yield
        world = jobs.batch_digest.using(queue_name="airports").options(depends_on=reports)
        with tenant_context(ours[0]):
            self.batch.one(world, self.batch.name, countries, as_of=self.today)
        with tenant_context(theirs[0]):
            self.batch.one(jobs.batch_digest, self.batch.name, countries, as_of=self.today)
        yield

    def _report(self, task: Task, country: str, tenant: str, unit: Unit) -> UUID:
        with tenant_context(tenant):
            return self.batch.one(task, country, self.batch.name, as_of=self.today, unit=unit)

    def _quotes(self) -> Iterator[None]:
        legs = zip(self._some("quotes"), self._some("quotes"), strict=True)
        for number, (origin, destination) in enumerate(legs):
            with tenant_context(TENANTS[number % len(TENANTS)]):
                self.batch.one(
                    jobs.charter_quote,
                    jobs.Leg(origin, destination),
                    departure=self.today + timedelta(days=number % 60),
                    cabin=list(Cabin)[number % len(Cabin)],
                    price_per_kilometre=Decimal("2.50") + number % 4,
                )
            yield

    def _odd_ones(self) -> Iterator[None]:
        """Enqueue slow ones, one that is cancelled while it runs, and some that cannot succeed."""
        for country in self._countries[:3]:
            self.batch.one(jobs.slow_summary, country, seconds=2.0)
        self._unwanted = self.batch.one(jobs.slow_summary, self._countries[0], seconds=600.0)
        for icao in self._some("neighbours")[:5]:
            self.batch.one(jobs.notify_retired_registry, icao)
        yield

    def cancel_the_unwanted(self) -> bool:
        """Cancel the job that takes too long, once it runs; tells whether that was now."""
        if self._unwanted is None or get_job(self._unwanted).status != Status.RUNNING:
            return False
        cancel(self._unwanted, reason="takes too long", by="demo")
        self._unwanted = None
        return True

    def _share(self, name: str) -> int:
        return max(1, self.size * SHARES[name] // 100)

    def _some(self, name: str) -> list[str]:
        return [row.icao for row in self._dice.choices(self._airports, k=self._share(name))]


def enqueue_nothing(batch: Batch, task: Task, count: int) -> None:
    """Enqueue *count* jobs that do nothing in one transaction: workers see none of them before the last."""
    named = batch.named(task)
    with transaction.atomic():
        for numbers in batches(range(count), BULK * 10):
            batch.many([named.bind(number) for number in numbers])


def batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Cut *items* into lists of *size*, the last one perhaps shorter."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part

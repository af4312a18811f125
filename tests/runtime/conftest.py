"""Workers for tests: forked from one process that has imported everything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime import fleet as fleets


@pytest.fixture(scope="session")
def zygote(
    django_db_setup, django_db_blocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[fleets.Fleet]:
    """The process that forks workers, for the whole run."""
    with django_db_blocker.unblock():
        fleet = fleets.Fleet(tmp_path_factory.mktemp("workers"))
    yield fleet
    fleet.close()


@pytest.fixture
def fleet(zygote: fleets.Fleet, transactional_db: None, _pgbroker_flush: None) -> Iterator[fleets.Fleet]:
    """Workers of one test; whatever still runs is killed at its end."""
    fleets.make_effects_table()
    yield zygote
    zygote.kill_all()

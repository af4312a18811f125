"""broker_scheduler: what it says, and how it ends."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command

from pgbroker.errors import SchemaTooOld
from pgbroker.management.commands.broker_scheduler import Command
from tests.support.schedules import make, states

pytestmark = pytest.mark.django_db(transaction=True)


def test_once_creates_what_is_due_and_says_how_much(capsys):
    schedule = make()

    call_command("broker_scheduler", "--once", "--skip-checks")

    assert "1 created" in capsys.readouterr().out
    assert states(schedule) == ["created"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--database", "nowhere"], "--database"),
        (["--metrics-port", "many"], "--metrics-port"),
        (["--name", "two words"], "--name"),
    ],
)
def test_a_flag_that_cannot_be_used_is_named_and_ends_with_2(flags, words):
    with pytest.raises(CommandError, match=words) as caught:
        call_command("broker_scheduler", *flags, "--skip-checks")

    assert caught.value.returncode == 2


def test_missing_migrations_end_with_4(monkeypatch):
    def missing(alias):
        raise SchemaTooOld(alias, ["0001_initial"])

    monkeypatch.setattr("pgbroker.management.commands.broker_scheduler.look_at", missing)

    with pytest.raises(CommandError) as caught:
        call_command("broker_scheduler", "--once", "--skip-checks")

    assert caught.value.returncode == 4


def test_the_help_teaches():
    text = Command().create_parser("manage.py", "broker_scheduler").format_help()

    for words in ("broker_scheduler --once", "--with-scheduler", "takes over", "Exit codes"):
        assert words in text

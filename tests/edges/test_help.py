"""--help of commands with actions: each action shows what one types, and that is what the command takes."""

from __future__ import annotations

import argparse
import shlex

import pytest
from django.core.management import load_command_class
from django.core.management.base import CommandParser

from pgbroker.management.arguments import Arguments

COMMANDS = ("broker_jobs", "broker_groups", "broker_queues")


def parser_of(command: str) -> CommandParser:
    return load_command_class("pgbroker", command).create_parser("manage.py", command)


def actions_of(command: str) -> dict[str, CommandParser]:
    (found,) = [each for each in parser_of(command)._actions if isinstance(each, argparse._SubParsersAction)]
    return dict(found.choices)


def examples_of(text: str) -> list[list[str]]:
    """Return the lines that somebody could type, without `manage.py`."""
    return [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("  manage.py broker_")]


ACTIONS = [(command, action) for command in COMMANDS for action in actions_of(command)]


@pytest.mark.parametrize(("command", "action"), ACTIONS)
def test_the_help_of_an_action_has_examples_of_it_that_can_be_typed(command, action):
    text = actions_of(command)[action].format_help()

    shown = examples_of(text)
    assert 2 <= len(shown) <= 4
    assert len({tuple(each) for each in shown}) == len(shown)
    for typed in shown:
        assert typed[:2] == [command, action]
        # Where nobody is there to ask, it would be missing.
        given = {**vars(parser_of(command).parse_args(typed[1:])), "yes": True}
        arguments = Arguments(given)
        getattr(load_command_class("pgbroker", command), f"read_{action}")(arguments)
        assert arguments.troubles == []
    assert "Django's flags (--settings" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_shows_the_first_example_of_each_action(command):
    shown = examples_of(parser_of(command).format_help())

    assert [typed[1] for typed in shown] == list(actions_of(command))
    for name, action in actions_of(command).items():
        assert examples_of(action.format_help())[0] in shown, name


def test_a_default_is_told_by_the_help_of_an_action_too():
    assert "(default: 50)" in actions_of("broker_jobs")["list"].format_help()
    assert "(default: None)" not in actions_of("broker_jobs")["list"].format_help()

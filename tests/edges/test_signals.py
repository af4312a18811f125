"""Signals of a long-running command, when they come at an awkward moment."""

from __future__ import annotations

import signal

import pytest

from pgbroker.management.signals import StopSignals


def test_b173_a_signal_whose_exit_was_swallowed_still_stops_what_runs_later() -> None:
    signals, stopped = StopSignals(), []
    with pytest.raises(SystemExit):
        # In a callback of the import system Python would print and ignore this exit.
        signals._hear(signal.SIGTERM, None)

    signals.running(lambda: stopped.append(True))

    assert stopped == [True]

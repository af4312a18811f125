"""
When a cron expression fires in a time zone. Pure, and the one answer that pgbroker has to that question.

`fields` and `expression` read the dialect, `days` and `times` are what it means on a clock that is never
changed, `zones` and `clock` know how clocks are, and `ticks` puts both together.
"""

from pgbroker.policy.cron.changes import Ambiguous, Nonexistent
from pgbroker.policy.cron.clock import Repeat
from pgbroker.policy.cron.parse import parse
from pgbroker.policy.cron.ticks import Cron, Tick

__all__ = ["Ambiguous", "Cron", "Nonexistent", "Repeat", "Tick", "parse"]

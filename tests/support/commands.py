"""Call management commands as they are typed."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command


def run(*typed: object, **given: Any) -> str:
    """Call a command; returns what it wrote."""
    said = StringIO()
    call_command(*map(str, typed), **{"stdout": said, "stderr": StringIO(), **given})
    return said.getvalue()


def read(*typed: object) -> Any:
    """Call a command with --format json; returns what it wrote."""
    return json.loads(run(*typed, "--format", "json"))


def refused(*typed: object) -> CommandError:
    """Call a command that must be refused; returns the error."""
    with pytest.raises(CommandError) as caught:
        run(*typed)
    return caught.value

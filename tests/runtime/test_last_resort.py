"""What a handler logs still reaches stderr where the project configures no logging, though its tail is kept."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.settings"
import django
from django.conf import settings
settings.LOGGING_CONFIG = None
django.setup()

import logging
from uuid import uuid4
from pgbroker.runtime.isolation import LogTail

{before}
for _ in range(2):
    logging.getLogger().addHandler(LogTail(uuid4()))
logging.getLogger("shop.orders").error("sold out")
logging.getLogger("shop.orders").info("still open")
"""
PLAIN = ""
ROOT = "logging.getLogger().addHandler(logging.StreamHandler())"
OWN = "logging.getLogger('shop').addHandler(logging.StreamHandler())"
SILENCED = "logging.getLogger('shop').addHandler(logging.NullHandler())"
NONE = "logging.lastResort = None"


@pytest.mark.parametrize(
    ("before", "lines"),
    [(PLAIN, ["sold out"]), (ROOT, ["sold out"]), (OWN, ["sold out"]), (SILENCED, []), (NONE, [])],
    ids=["plain", "root", "own", "silenced", "none"],
)
def test_it_is_shown_as_without_a_worker_and_once(before: str, lines: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", CODE.format(before=before)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert [line for line in ran.stderr.splitlines() if line] == lines

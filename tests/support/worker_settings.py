"""The project's settings with the handlers that tests need. The environment chooses what a test varies."""

from __future__ import annotations

import json
import os

from testproject import settings
from testproject.settings import *  # noqa: F403
from testproject.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.support.handlers", *os.environ.get("TEST_APPS", "").split()]
PGBROKER = {**settings.PGBROKER, **json.loads(os.environ.get("TEST_PGBROKER", "{}"))}

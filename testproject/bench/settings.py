"""What is measured: the project as in production, with one application more. The environment says what a row varies."""

import json
import os

from testproject.settings import *  # noqa: F403
from testproject.settings import DATABASES, INSTALLED_APPS, LOGGING

# With DEBUG Django keeps every statement, which no production does.
DEBUG = False
INSTALLED_APPS = [*INSTALLED_APPS, "testproject.bench"]
DATABASES["default"]["CONN_MAX_AGE"] = 300
# A second database on the same server, for rows that put a large table beside a small one.
DATABASES["beside"] = {**DATABASES["default"], "NAME": f"{DATABASES['default']['NAME']}_beside"}
LOGGING = {**LOGGING, "loggers": {"pgbroker": {"level": "WARNING"}}}
PGBROKER = json.loads(os.environ.get("BENCH_PGBROKER", "{}"))

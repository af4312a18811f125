"""The settings of the demo's workers, as in production: no DEBUG, lasting connections, log lines of failures alone."""

from testproject.settings import *  # noqa: F403
from testproject.settings import DATABASES, LOGGING

DEBUG = False
# Django's default of 0 closes the connection after each job: most would take longer to connect than to run.
DATABASES["default"]["CONN_MAX_AGE"] = 300
LOGGING = {**LOGGING, "loggers": {"pgbroker": {"level": "WARNING"}}}

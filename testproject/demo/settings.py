"""The settings of the demo's workers and scheduler, as in production: no DEBUG, few connections, few lines."""

from testproject.settings import *  # noqa: F403
from testproject.settings import DATABASES, INSTALLED_APPS, LOGGING

DEBUG = False
INSTALLED_APPS = [*INSTALLED_APPS, "testproject.timetable"]
# Django's default of 0 closes the connection after each job: most would take longer to connect than to run.
DATABASES["default"]["CONN_MAX_AGE"] = 300
LOGGING = {**LOGGING, "loggers": {"pgbroker": {"level": "WARNING"}}}

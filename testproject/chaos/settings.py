"""The project under fire: short leases, every event recorded, and attempts enough for whatever is done to it."""

import os

from testproject.settings import *  # noqa: F403
from testproject.settings import INSTALLED_APPS, LOGGING

LEASE_SECONDS = 5.0

DEBUG = False
INSTALLED_APPS = [*INSTALLED_APPS, "testproject.chaos"]
LOGGING = {**LOGGING, "loggers": {"pgbroker": {"level": "WARNING"}, "pgbroker.worker": {"level": "INFO"}}}
# What is too large for a row goes here, and must be there as long as a row names it.
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    "bodies": {
        "BACKEND": "django.core.files.storage.FileSystemStorage",
        "OPTIONS": {"location": os.environ.get("CHAOS_BODIES", "build/bodies")},
    },
}
PGBROKER = {
    "BODY_STORAGE": "bodies",
    "MAX_PAYLOAD_BYTES": 16_384,
    "MAX_RESULT_BYTES": 16_384,
    "LEASE_SECONDS": LEASE_SECONDS,
    "HEARTBEAT_SECONDS": 1.5,
    "POLL_SECONDS": 1,
    "REAP_SECONDS": 1,
    "SHUTDOWN_TIMEOUT_SECONDS": 5,
    "EVENTS": "all",
    # Who is killed again and again takes innocent jobs along: they must not become dead letters for it.
    "MAX_CRASHES": 100,
    "MAX_ATTEMPTS": 100,
    "BACKOFF": {"base": 0.2, "factor": 2, "cap": 1},
}

"""The settings that Django's tests override for themselves, with pgbroker's backend in place of the dummy one."""

import importlib.util

from testproject.database import configured_database

SECRET_KEY = "for these tests only"  # noqa: S105
DATABASES = {"default": configured_database()}
INSTALLED_APPS = ["pgbroker"]
USE_TZ = True

_tasks = "django.tasks" if importlib.util.find_spec("django.tasks") else "django_tasks"
TASKS = {
    "default": {"BACKEND": "pgbroker.backend.PgBrokerBackend", "QUEUES": ["default", "queue_1"]},
    "immediate": {"BACKEND": f"{_tasks}.backends.immediate.ImmediateBackend", "QUEUES": []},
    "missing": {"BACKEND": "does.not.exist"},
}

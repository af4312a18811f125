"""Django settings of the peers that are backends of Django's task framework; BENCH_PEER says which."""

import os

from psycopg.conninfo import conninfo_to_dict

_PEER = os.environ["BENCH_PEER"]
_parameters = conninfo_to_dict(os.environ["BENCH_URL"])

SECRET_KEY = "of a database that lives for seconds"  # noqa: S105
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _parameters.get("dbname"),
        "USER": _parameters.get("user"),
        "PASSWORD": _parameters.get("password", ""),
        "HOST": _parameters.get("host", ""),
        "PORT": _parameters.get("port", ""),
        "CONN_MAX_AGE": None,
    }
}
LOGGING = {"version": 1, "disable_existing_loggers": False, "root": {"level": "ERROR"}}

if _PEER == "django-tasks-db":
    INSTALLED_APPS = ["django_tasks_db"]
    TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
elif _PEER == "django-ox":
    INSTALLED_APPS = ["django_ox"]
    TASKS = {"default": {"BACKEND": "django_ox.backend.OxBackend", "QUEUES": []}}
else:
    INSTALLED_APPS = ["dj_queue"]
    DATABASE_ROUTERS = ["dj_queue.routers.DjQueueRouter"]
    _WORKER = {"queues": "*", "threads": 8, "processes": 1, "polling_interval": 0.1, "prefetch_multiplier": 4}
    TASKS = {
        "default": {
            "BACKEND": "dj_queue.backend.DjQueueBackend",
            "QUEUES": [],
            "OPTIONS": {"mode": "fork", "preserve_finished_jobs": True, "workers": [_WORKER]},
        }
    }

"""Settings for development. They only declare: importing them starts nothing and writes nothing."""

import importlib.util
import os
from pathlib import Path

import django

from testproject.database import configured_database, django_database

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = "for development only, never for anything that others can reach"  # noqa: S105
DEBUG = True
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]

PGBROKER = {}
DATABASES = {"default": configured_database()}
if url := os.environ.get("PGBROKER_DIRECT_URL"):
    # The default is behind a pooler (testproject/matrix/pooler.py), which takes everything but LISTEN.
    DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True
    DATABASES["direct"] = {**django_database(url), "TEST": {"MIRROR": "default"}}
    PGBROKER = {"LISTEN_DATABASE": "direct"}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_prometheus",
    "pgbroker",
    "testproject.airports",
]
if importlib.util.find_spec("django.tasks") is None:
    # The backport, for Django 5.2. Beside Django's own it would be a second registry of tasks.
    INSTALLED_APPS.append("django_tasks")

MIDDLEWARE = [
    "django_prometheus.middleware.PrometheusBeforeMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_prometheus.middleware.PrometheusAfterMiddleware",
]

# The admin must work under a policy that allows no inline script, no inline style and no other host.
SECURE_CSP = {"default-src": ["'self'"]}
if django.VERSION >= (6, 0):
    MIDDLEWARE.insert(2, "django.middleware.csp.ContentSecurityPolicyMiddleware")
else:
    MIDDLEWARE.insert(2, "testproject.csp.ContentSecurityPolicyMiddleware")

ROOT_URLCONF = "testproject.urls"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "build" / "static"

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "{asctime} {levelname:<7} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {"pgbroker": {"level": "INFO"}},
}

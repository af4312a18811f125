"""The settings of the demo's web server: those of development, and the timetable, whose schedules its admin shows."""

from testproject.settings import *  # noqa: F403
from testproject.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "testproject.timetable"]

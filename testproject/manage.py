#!/usr/bin/env python3
"""Django's command line on the project's database, whose server runs as long as the command does."""

import os
import sys
from pathlib import Path

WITHOUT_DATABASE = {"help", "version", "--help", "-h", "--version", "makemessages", "compilemessages"}


def main(arguments: list[str]) -> None:
    root = str(Path(__file__).resolve().parent.parent)
    sys.path[:] = [root, *(entry for entry in sys.path if entry != root)]
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")

    from django.core.management import execute_from_command_line

    from testproject import database, embedded_pg

    if database.is_embedded() and arguments and arguments[0] not in WITHOUT_DATABASE:
        try:
            embedded_pg.ensure_running(database.kind())  # let go of when this process ends
        except embedded_pg.EmbeddedPostgresError as error:
            sys.exit(str(error))
    execute_from_command_line(["manage.py", *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])

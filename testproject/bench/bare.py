"""A Django process of the same project that does nothing, for `memory`: set up, connected, and waiting to be ended."""

from __future__ import annotations

import sys

import django
from django.db import connection


def main() -> None:
    django.setup()
    connection.ensure_connection()
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

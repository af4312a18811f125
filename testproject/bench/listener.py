"""The bare worker that `pickup` is compared with: it listens, takes one row with one statement, and notes when."""

from __future__ import annotations

import os

import psycopg

from testproject.bench.ran import Stamps

_TAKE = """
update bench_line
set taken_at = statement_timestamp()
where id = (select id from bench_line where taken_at is null order by id limit 1 for no key update skip locked)
returning id
"""


def main() -> None:
    stamps = Stamps.given()
    url = os.environ["DATABASE_URL"]
    # A connection whose notifications are being read runs nothing else.
    with (
        psycopg.connect(url, autocommit=True) as listening,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        listening.execute("listen bench_line")
        print("listening", flush=True)
        for _ in listening.notifies():
            while (taken := connection.execute(_TAKE, prepare=True).fetchone()) is not None:
                stamps.stamp(taken[0])


if __name__ == "__main__":
    main()

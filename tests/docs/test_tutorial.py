"""The tutorial works as it is written, block by block, and the admin shows what it says."""

from __future__ import annotations

import http.cookiejar
import re
import urllib.parse
import urllib.request
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from django.db import connections

from docs.generated import DOCS
from testproject.database import drop_database
from testproject.pg_cluster import SUPERUSER
from tests.docs.walkthrough import Reader, blocks, reader


def look_into_the_admin(somebody: Reader) -> str:
    """Log in and return the list of jobs, with the page of one that was dead."""
    site = f"http://127.0.0.1:{somebody.port}/admin"
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))

    def get(path: str, **form: str) -> str:
        body = urllib.parse.urlencode(form).encode() if form else None
        with opener.open(f"{site}{path}", body, timeout=30) as answer:
            text: str = answer.read().decode()
            return text

    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', get("/login/"))
    assert token
    get("/login/", csrfmiddlewaretoken=token[1], username="me", password="open-sesame", next="/admin/")
    jobs = get("/pgbroker/job/")
    newest = re.search(r'href="(/admin)?(/pgbroker/job/[0-9a-f-]{36}/change/)', jobs)
    assert newest, jobs
    return jobs + get(newest[2])


@pytest.mark.own_session
def test_the_tutorial_runs(tmp_path: Path) -> None:
    with reader(tmp_path) as somebody:
        somebody.follow(DOCS / "tutorial.md")
        shown = look_into_the_admin(somebody)

    assert "orders.send_receipt" in shown
    assert "ProviderDown: 503 Service Unavailable" in shown


def test_the_sql_makes_an_ordinary_role_that_owns_the_database() -> None:
    (sql,) = (block.body for block in blocks(DOCS / "tutorial.md") if block.language == "postgresql")
    parameters = connections["default"].get_connection_params()
    where = {key: parameters[key] for key in ("host", "port") if parameters.get(key)}
    name = f"docs_{uuid4().hex[:12]}"
    try:
        server = psycopg.connect(**where, user=SUPERUSER, dbname="postgres", autocommit=True)
    except psycopg.OperationalError as error:
        pytest.skip(f"needs a superuser of the tests' server: {error}")
    with server:
        try:
            for statement in sql.replace("bookshop", name).splitlines():
                server.execute(statement)
            role = {"user": name, "password": "open-sesame", "dbname": name}
            with psycopg.connect(**where, **role) as made:
                made.execute("create schema pgbroker")  # as the migration does
                found = made.execute("select rolsuper or rolbypassrls from pg_roles where rolname = user")

                assert found.fetchone() == (False,)
        finally:
            drop_database(server, name)
            server.execute(f"drop role if exists {name}")

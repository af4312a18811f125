"""Every page: links lead somewhere, code compiles, commands have the flags that are typed."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import psycopg
import pytest
from django.core.management import CommandError, load_command_class
from django.db import connection

from docs.generated import DOCS
from pgbroker.lifecycle.declare import DeclaredType, declare_types
from pgbroker.states import Status
from tests.docs.walkthrough import ROOT, blocks

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<page>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
COMMAND = re.compile(r"(?:manage\.py )?(broker_\w+ [^`\n]+)")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """List the anchors that headings make, as GitHub and MyST do."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for link in LINK.finditer(prose(page)):
        if link["page"].startswith(("http:", "https:")):
            continue
        target = (page.parent / link["page"]).resolve() if link["page"] else page
        if not target.is_file() or (link["anchor"] and link["anchor"] not in anchors(target)):
            wrong.append(link[0])

    assert not wrong


@each_page
def test_python_compiles(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            ast.parse(block.body, filename=f"{page.name}:{block.line}")


@each_page
def test_commands_have_the_flags_that_are_typed(page: Path) -> None:
    typed = [
        line for block in blocks(page) if block.language == "console" for line in COMMAND.findall(block.body)
    ]
    typed += [line for code in re.findall(r"`([^`\n]+)`", prose(page)) for line in COMMAND.findall(code)]
    for line in typed:
        name, *arguments = shlex.split(line.partition(" | ")[0])
        parser = load_command_class("pgbroker", name).create_parser("manage.py", name)
        # As from a program: a wrong flag is an error, not an exit.
        parser.called_from_command_line = False
        try:
            parser.parse_args([word for word in arguments if word != "…"])
        except CommandError as error:
            raise AssertionError(f"{page.name}: {line}: {error}") from error


@pytest.mark.parametrize("page", sorted((DOCS / "howto").glob("*-*.md")), ids=lambda page: page.stem)
def test_a_guide_is_named_after_its_title(page: Path) -> None:
    title = page.read_text().partition("\n")[0].removeprefix("# ")

    assert re.sub(r"[^a-z ]", "", title.lower()).replace(" ", "-") == page.stem


@pytest.mark.parametrize("page", sorted(DOCS.glob("*/index.md")), ids=lambda page: page.parent.name)
def test_an_index_links_to_each_page_by_its_title(page: Path) -> None:
    (toctree,) = (block.body for block in blocks(page) if block.language == "{toctree}")
    listed = [line for line in toctree.splitlines() if line and not line.startswith(":")]
    titles = {
        each.stem: each.read_text().partition("\n")[0].removeprefix("# ")
        for each in page.parent.glob("*.md")
        if each != page
    }

    assert sorted(listed) == sorted(titles)
    assert re.findall(r"^- \[(.+)\]\((.+)\.md\)$", page.read_text(), re.M) == [
        (titles[name], name) for name in listed
    ]


def test_fragments_of_the_changelog_say_what_they_are_about_and_their_kind() -> None:
    kinds = "added|changed|fixed|removed|deprecated|security"

    assert all(
        re.fullmatch(rf"[a-z0-9]+\.({kinds})\.md", path.name) for path in (DOCS / "changelog.d").iterdir()
    )


@pytest.mark.django_db
def test_the_sql_of_the_guide_runs() -> None:
    declare_types([DeclaredType("shop.send_receipt", 1, (), {"queue": "default"})], using="default")
    statements = [
        block.body
        for block in blocks(DOCS / "howto" / "enqueue-from-sql.md")
        if block.language == "postgresql"
    ]
    grants = [body for body in statements if body.startswith("grant")]
    with connection.cursor() as cursor:
        cursor.execute("create table shop_order (id int)")
        for body in statements:
            if body not in grants:
                cursor.execute(re.sub(r"^(begin|commit);\n", "", body, flags=re.M))
        cursor.execute("insert into shop_order values (11)")
        cursor.execute("select set_config('pgbroker.scope', 'all', true)")
        cursor.execute("select count(*) filter (where tenant_id = 'acme'), count(*) from pgbroker.job")

        assert cursor.fetchone() == (2, 7)  # the trigger worked as the same tenant
    assert len(grants) == 3


def statements_about(word: str) -> list[str]:
    """List the SQL of the guide that has this word in it."""
    guide = blocks(DOCS / "howto" / "enqueue-from-sql.md")
    return [block.body for block in guide if block.language == "postgresql" and word in block.body]


def test_the_grants_of_the_guide_are_enough_and_no_more_than_it_takes(superuser: psycopg.Connection) -> None:
    first, waiting, second = (
        block.body
        for block in blocks(DOCS / "howto" / "enqueue-from-sql.md")
        if block.language == "postgresql" and block.body.startswith("grant")
    )
    enqueue = "select pgbroker.enqueue('shop.send_receipt', '{}', idempotency_key => 'k'"
    with superuser.transaction(force_rollback=True):
        superuser.execute("insert into pgbroker.job_type (name) values ('shop.send_receipt')")
        superuser.execute("create role shop_writer")
        superuser.execute(first)
        superuser.execute("set local role shop_writer")
        superuser.execute(f"{enqueue})")
        with pytest.raises(psycopg.errors.InsufficientPrivilege), superuser.transaction():
            superuser.execute(f"{enqueue}, on_conflict => 'replace')")
        superuser.execute("reset role")
        superuser.execute(waiting)
        superuser.execute("set local role shop_writer")
        for body in statements_about("open_group_1"):
            superuser.execute(body)
        (waits,) = superuser.execute("select count(*) from pgbroker.job where status = 1").fetchone()
        superuser.execute("reset role")
        superuser.execute(second)
        superuser.execute("set local role shop_writer")
        superuser.execute(f"{enqueue}, on_conflict => 'replace')")
        superuser.execute("reset role")
        statuses = superuser.execute("select status from pgbroker.job order by status").fetchall()

        assert statuses == [(Status.WAITING,), (Status.READY,), (Status.READY,), (Status.CANCELLED,)]
        assert waits == 1

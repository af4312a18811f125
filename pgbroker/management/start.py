"""What a process looks at before it starts: can the database be reached, and does it have our migrations?"""

from dataclasses import dataclass

import psycopg
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from pgbroker import db
from pgbroker.management.exits import not_migrated, unreachable


@dataclass(frozen=True, slots=True)
class Target:
    """The database a process works on, as it answers."""

    alias: str
    host: str
    port: int
    database: str
    user: str
    server: str
    migration: str
    warnings: tuple[str, ...]


def look_at(alias: str) -> Target:
    """Connect once; raises `DatabaseUnreachable`, `NotPostgreSQL` or `SchemaTooOld`."""
    session = db.Session(alias, purpose="start")
    try:
        answering = session.connection.info
        host, port, database, user = answering.host, answering.port, answering.dbname, answering.user
        server = answering.server_version
    except psycopg.OperationalError as error:
        raise unreachable(alias, error) from error
    finally:
        session.drop()
    executor = MigrationExecutor(connections[alias])
    leaves = executor.loader.graph.leaf_nodes("pgbroker")
    missing = [
        migration.name
        for migration, _ in executor.migration_plan(leaves)
        if migration.app_label == "pgbroker"
    ]
    if missing:
        raise not_migrated(alias, missing)
    return Target(
        alias=alias,
        host=host,
        port=port,
        database=database,
        user=user,
        server=f"{server // 10000}.{server % 10000}",
        migration=", ".join(name for _, name in leaves),
        warnings=(),
    )

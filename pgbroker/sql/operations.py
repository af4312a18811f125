"""The one migration operation of our own: run a file of SQL, forward and back."""

from pathlib import Path
from typing import Any

from django.db import router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

PACKAGE = Path(__file__).parent.parent


class RunFile(Operation):
    """
    Run the SQL of a file in the package on PostgreSQL aliases where the router allows the app.

    *reverse* names the file that undoes it; without one, going back does nothing here, because the
    down file of the same migration drops what this one made.
    """

    reduces_to_sql = True
    reversible = True

    def __init__(self, path: str, reverse: str | None = None) -> None:
        self.path, self.reverse = path, reverse

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Change nothing: state operations stand beside this one."""

    def _run(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, path: str) -> None:
        connection = schema_editor.connection
        if connection.vendor == "postgresql" and router.allow_migrate(connection.alias, app_label):
            schema_editor.execute((PACKAGE / path).read_text(encoding="utf-8"), params=None)

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Run the file."""
        self._run(app_label, schema_editor, self.path)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Run the reverse file, if there is one."""
        if self.reverse:
            self._run(app_label, schema_editor, self.reverse)

    def describe(self) -> str:
        """Return what `migrate --plan` shows."""
        return f"Run {self.path}"

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """Return what a squashed migration needs to write this operation again."""
        return type(self).__qualname__, [self.path], {"reverse": self.reverse} if self.reverse else {}

"""Ask whoever typed a command, before it changes what is not easily put back."""

import sys

from django.core.management.base import CommandError

from pgbroker.management import exits
from pgbroker.management.arguments import Arguments
from pgbroker.management.output import harmless


def consent(arguments: Arguments) -> dict[str, bool]:
    """Return --dry-run and --yes: one of them must be there where nobody can be asked."""
    given = {name: bool(arguments.given[name]) for name in ("dry_run", "yes")}
    if not any(given.values()) and not sys.stdin.isatty():
        arguments.wrong(
            "--yes", "is missing, and nobody is there to ask", "Add --yes, or --dry-run to look first."
        )
    return given


def ask(question: str) -> None:
    """Ask; end the command with 1 unless the answer is yes."""
    if input(f"{harmless(question)} [y/N] ").strip().lower() not in {"y", "yes"}:
        raise CommandError("Nothing was changed.", returncode=exits.ERROR)

"""What is tested against what. Every version that pgbroker supports is in a cell, not every combination."""

from __future__ import annotations

from typing import Literal, NamedTuple

# Of all packages: as in the lock file; the oldest that pyproject.toml allows; whatever is newest today.
Packages = Literal["locked", "oldest", "newest"]


class Cell(NamedTuple):
    """One environment and one server."""

    python: str
    django: str
    postgresql: int
    packages: Packages = "locked"
    pooled: bool = False

    @property
    def name(self) -> str:
        parts = [f"py{self.python}", f"django{self.django}", f"pg{self.postgresql}"]
        if self.packages != "locked":
            parts.append(self.packages)
        return "-".join([*parts, "pgbouncer"] if self.pooled else parts)


CELLS = (
    Cell("3.11", "5.2", 18),
    Cell("3.11", "5.2", 16),
    Cell("3.12", "5.2", 15),
    Cell("3.12", "6.0", 17),
    Cell("3.12", "6.1", 16),
    Cell("3.13", "6.0", 18),
    Cell("3.13", "6.1", 15),
    Cell("3.11", "5.2", 15, "oldest"),
    Cell("3.13", "6.1", 18, "newest"),
    Cell("3.11", "5.2", 18, pooled=True),
)

"""What a person wants to see of run groups and of what waits for what. Reads only; every count has a bound."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from pgbroker import correlation, db
from pgbroker.errors import GroupNotFound, InvalidOption
from pgbroker.errors.near_names import did_you_mean
from pgbroker.policy.graph_layout import Band, bands
from pgbroker.states import TERMINAL, GroupState, OnFailure, Status

# A count that reaches it is told as "10000+".
BOUND = 10_000
# A graph of more members is told by levels: so many boxes can still be read, and so many lines followed.
GRAPH_MAX, EDGES_MAX, BANDS_MAX = 200, 600, 40
# Groups, the newest, among whose names one is looked for that was meant.
NEAR_MAX = 200
# Members, and links on either side, that are listed.
LISTED_MAX = 100
# Members whose level is looked up.
LEVELS_MAX = 100_000
# What a preview walks through, with the members of the group itself, and lists of each fate.
WALK_MAX, PREVIEW_MAX = 50_000, 50
# How often a preview is looked at again because of groups that tolerate some failures, but not so many.
ROUNDS_MAX = 20
BAD = frozenset({Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED})


def _tenant_predicate() -> str | None:
    return None if correlation.scope_all.get() else correlation.tenant.get() or correlation.DEFAULT_TENANT


class GroupLine(NamedTuple):
    """One run group."""

    id: UUID
    name: str
    tenant_id: str
    state: int
    tolerate_count: int | None
    tolerate_percent: float | None
    on_completed: dict[str, Any] | None
    on_failed: dict[str, Any] | None
    completed_job_id: UUID | None
    failed_job_id: UUID | None
    callback_error: str | None
    cancel_requested_at: datetime | None
    created_at: datetime
    sealed_at: datetime | None
    finished_at: datetime | None

    @property
    def label(self) -> str:
        """The state as people write it; one that is being cancelled is `cancelling`."""
        cancelling = self.state == GroupState.SEALED and self.cancel_requested_at
        return "cancelling" if cancelling else GroupState(self.state).label

    @property
    def policy(self) -> str:
        """When it completes, in words."""
        if self.tolerate_count is not None:
            return f"tolerates {self.tolerate_count} that end badly"
        if self.tolerate_percent is not None:
            return f"tolerates {self.tolerate_percent:.15g} % that end badly"
        return "every member must complete"


def list_groups(
    *,
    name: str | None = None,
    state: GroupState | None = None,
    after: UUID | None = None,
    limit: int,
    using: str,
) -> list[GroupLine]:
    """List run groups, newest first, from *after* on."""
    asked = {"tenant": _tenant_predicate(), "name": name, "state": state, "after": after, "limit": limit}
    return db.fetch("list_groups", asked, GroupLine._make, using=using)


def read_groups(group_ids: Sequence[UUID], *, using: str) -> list[GroupLine]:
    """Read groups of the current tenant, by their ids; those that it does not have are left out."""
    return db.fetch("get_groups", {"group_ids": list(group_ids)}, GroupLine._make, using=using)


def find_group(name: str, *, using: str) -> GroupLine:
    """
    Find a group by its name, or by its id.

    Raises `GroupNotFound`, and in scope all `InvalidOption` where several tenants have a group of that name.
    """
    found = list_groups(name=name, limit=20, using=using)
    if not found:
        try:
            found = read_groups([UUID(name)], using=using)
        except ValueError:
            found = []
    if not found:
        raise GroupNotFound(f"there is no run group {name!r}", cure=_cure_of_unknown(name, using=using))
    if len(found) > 1:
        tenants = ", ".join(sorted(each.tenant_id for each in found))
        raise InvalidOption(
            "--tenant",
            f"is missing, and several tenants have a run group {name!r}",
            f"Name one of: {tenants}.",
        )
    return found[0]


def _cure_of_unknown(name: str, *, using: str) -> str:
    """Name the groups that may have been meant, and what lists them all."""
    known = {each.name for each in list_groups(limit=NEAR_MAX, using=using)}
    meant = did_you_mean(name, known, most=3)
    return f"{meant}{' ' if meant else ''}Look at the tenant, and at what there is: broker_groups list"


def find_bad_prerequisite(group_id: UUID, *, using: str) -> UUID | None:
    """Find a prerequisite of a group that ended badly, so that no member of the group is in the group's way."""
    for each in read_links(group_id, using=using).prerequisites:
        if each.id is not None and each.outcome > Status.COMPLETED and each.satisfied_at is None:
            return each.id
    return None


@dataclass(frozen=True, slots=True)
class MemberCounts:
    """How many members of a group have which status; a count of BOUND means that many or more."""

    counts: Mapping[Status, int] = field(default_factory=dict)

    def _sum(self, statuses: Sequence[Status] | frozenset[Status]) -> int:
        return sum(self.counts.get(status, 0) for status in statuses)

    @property
    def members(self) -> int:
        """All members."""
        return self._sum(list(Status))

    @property
    def over(self) -> int:
        """Members that have ended."""
        return self._sum(TERMINAL)

    @property
    def bad(self) -> int:
        """Members that ended without success."""
        return self._sum(BAD)

    @property
    def live(self) -> int:
        """Members still to end."""
        return self.members - self.over

    @property
    def is_exact(self) -> bool:
        """No count stopped at the bound."""
        return all(count < BOUND for count in self.counts.values())

    @property
    def words(self) -> str:
        """The progress in one line."""
        if not self.members:
            return "no members"
        more = "" if self.is_exact else "+"
        bad = f", {self.bad} badly" if self.bad else ""
        return f"{self.over} of {self.members}{more} over{bad}"


def count_members(group_ids: Sequence[UUID], *, using: str) -> dict[UUID, MemberCounts]:
    """Count the members of groups by status."""
    if not group_ids:
        return {}
    counts: dict[UUID, dict[Status, int]] = defaultdict(dict)
    asked = {"group_ids": list(group_ids), "bound": BOUND}
    for group_id, status, count in db.fetch("count_members", asked, tuple, using=using):
        counts[group_id][Status(status)] = count
    return {group_id: MemberCounts(counts[group_id]) for group_id in group_ids}


class Member(NamedTuple):
    """A member of a group, in a list."""

    id: UUID
    name: str | None
    job_type: str
    queue: str
    status: int
    attempt_count: int
    max_attempts: int
    created_at: datetime
    finished_at: datetime | None
    error_code: str | None

    @property
    def shown(self) -> str:
        """Its name in the group, or its type."""
        return self.name or self.job_type


def list_members(group_id: UUID, *, limit: int, using: str) -> list[Member]:
    """List members of a group, those that went wrong first."""
    return db.fetch("group_members", {"group_id": group_id, "limit": limit}, Member._make, using=using)


class Edge(NamedTuple):
    """What a member waits for. *kind*, *name* and *status* are of a prerequisite outside of the group."""

    dependent_id: UUID
    prerequisite_id: UUID
    on_failure: int
    outcome: int
    is_satisfied: bool
    kind: str | None
    name: str | None
    status: int | None


@dataclass(frozen=True, slots=True)
class Graph:
    """A group's members and edges, all of them; or, where that is too much to be drawn, counts by levels."""

    members: list[Member]
    edges: list[Edge]
    bands: list[Band]
    # Of how many members the bands tell, where not of all.
    seen: int | None = None


def read_graph(group: GroupLine, progress: MemberCounts, members: list[Member], *, using: str) -> Graph:
    """Read what is drawn of a group, of which at least GRAPH_MAX *members* are known already where it has so many."""
    if progress.members <= GRAPH_MAX:
        asked = {"group_id": group.id, "limit": EDGES_MAX + 1}
        edges = db.fetch("group_edges", asked, Edge._make, using=using)
        if len(edges) <= EDGES_MAX:
            return Graph(members, edges, [])
    counts = {
        (level, status): count
        for level, status, count in db.fetch(
            "group_levels", {"group_id": group.id, "bound": LEVELS_MAX}, tuple, using=using
        )
    }
    seen = sum(counts.values())
    return Graph([], [], bands(counts, most=BANDS_MAX), seen if seen >= LEVELS_MAX else None)


class Link(NamedTuple):
    """What a job or group waits for, or what waits for it. *kind* is job, group, reference, or gone."""

    is_dependent: bool
    kind: str
    id: UUID | None
    name: str | None
    status: int | None
    on_failure: int
    outcome: int
    satisfied_at: datetime | None
    deadline_at: datetime | None

    @property
    def status_label(self) -> str:
        """Where it is; empty where nobody knows."""
        if self.status is None:
            return ""
        return (GroupState if self.kind == "group" else Status)(self.status).label

    @property
    def outcome_label(self) -> str:
        """How it ended for the edge; empty while it has not."""
        return Status(self.outcome).label if self.outcome else ""

    @property
    def policy(self) -> str:
        """What becomes of who waits, should it end badly."""
        return OnFailure(self.on_failure).label


class Links(NamedTuple):
    """Both sides of a job or a group, at most LISTED_MAX each; whether there are more."""

    prerequisites: list[Link]
    dependents: list[Link]
    more_prerequisites: bool
    more_dependents: bool


def read_links(node_id: UUID, *, limit: int = LISTED_MAX, using: str) -> Links:
    """Read what a job or a group waits for, and what waits for it."""
    found = db.fetch("list_links", {"id": node_id, "limit": limit + 1}, Link._make, using=using)
    before, after = ([each for each in found if each.is_dependent == side] for side in (False, True))
    return Links(before[:limit], after[:limit], len(before) > limit, len(after) > limit)


# ------------------------------------------------------------------ what a cancel takes along


# What a preview says of each fate, after a number.
FATES = {
    "cancelled": "that wait would be cancelled along",
    "blocked": "that wait would be blocked",
    "freed": "would no longer wait for it",
    "fails": "would fail",
}


class Fate(NamedTuple):
    """A job or a group that a cancel would change, and how; *total* have this fate, not all of which are listed."""

    kind: str
    id: UUID
    name: str
    status: int
    fate: str
    # The job that would be enqueued for a group that fails.
    callback: str | None
    total: int

    @property
    def status_label(self) -> str:
        """Where it is now."""
        return (GroupState if self.kind == "group" else Status)(self.status).label


@dataclass(frozen=True, slots=True)
class Preview:
    """What a cancel would take along, by fate: jobs `cancelled`, `blocked` and `freed`, groups that `fails`."""

    fates: list[Fate]
    # Everything that would go along was found; else there may be more than is told.
    is_exact: bool = True

    def of(self, fate: str) -> list[Fate]:
        """List those of one fate, as far as they are listed."""
        return [each for each in self.fates if each.fate == fate]

    @property
    def totals(self) -> dict[str, int]:
        """How many have each fate."""
        return {each.fate: each.total for each in self.fates}

    def told(self, fate: str) -> str:
        """Tell how many have a fate, in words."""
        total = self.totals[fate]
        what = "other run group" if fate == "fails" else "job"
        words = FATES[fate] if total > 1 else FATES[fate].replace("that wait ", "that waits ")
        return f"{'' if self.is_exact else 'at least '}{total} {what}{'' if total == 1 else 's'} {words}"


def preview_cancel(*, job_ids: Sequence[UUID] = (), group_ids: Sequence[UUID] = (), using: str) -> Preview:
    """Tell what would go along with jobs and groups of the current tenant if they were cancelled now."""
    failing: set[UUID] = set()
    for _ in range(ROUNDS_MAX):
        asked = {
            "job_ids": list(job_ids),
            "group_ids": list(group_ids),
            "failing": sorted(failing),
            "bound": WALK_MAX,
            "limit": PREVIEW_MAX,
        }
        fates = db.fetch("preview_cancel", asked, Fate._make, using=using)
        # They tolerate some of what ends badly, but not as many: look again with them.
        more = {each.id for each in fates if each.fate == "unsure"} - failing
        if not more:
            break
        failing |= more
    # Anything left to look at again, or a walk that came to its bound: then there may be more.
    cut = bool(more) or any(each.fate == "cut" for each in fates)
    return Preview([each for each in fates if each.fate in FATES], not cut)

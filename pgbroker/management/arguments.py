"""What is typed after a command: each flag checked, all troubles told at once, with their cure."""

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from django.core.management.base import CommandParser

from pgbroker.conf import KEYS, settings
from pgbroker.errors import InvalidOption, InvalidSetting, PgBrokerError
from pgbroker.management.exits import refused
from pgbroker.options import checked_queue, checked_tag
from pgbroker.policy.values import duration as checked_duration
from pgbroker.policy.values import remark, whole
from pgbroker.runtime.options import checked_name
from pgbroker.tenancy import checked_tenant, scope_all, tenant_context

T = TypeVar("T")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZES = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_LARGEST_SIZE = 2**50
MOST_IDS = 10_000


class Keep(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Leave the examples of an epilog as they are written."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        # "(default: None)" says nothing.
        if action.default is None or action.default is False or action.default == []:
            return action.help
        return super()._get_help_string(action)


def teach(parser: CommandParser, examples: str) -> None:
    """
    Show *examples* at the end of `--help`, a line each.

    Where a command has actions, the help of each shows its own, and that of the command the first of each.
    """
    parser.formatter_class = Keep
    parser.epilog = _written(examples.strip().splitlines())


def _written(examples: Iterable[str]) -> str:
    return "\n".join(["examples:", *(f"  manage.py {line}" for line in examples)])


class ActionParser(CommandParser):
    """
    The parser of an action (`broker_jobs list`): Django's own flags work after it as well as before it.

    They are read by a parser beside it. Its own flags stay what its help and the reference list.
    """

    # By action, as they are typed after manage.py.
    examples: ClassVar[Mapping[str, Sequence[str]]] = {}

    def __init__(self, **how: Any) -> None:
        *_, action = str(how["prog"]).split()
        flags = "Django's flags (--settings, --verbosity and so on) may stand here too."
        own = self.examples.get(action)
        how.setdefault("epilog", f"{_written(own)}\n\n{flags}" if own else flags)
        super().__init__(formatter_class=Keep, **how)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Read Django's flags out of *args*, the action's own from the rest."""
        told, rest = _flags_of_django(self).parse_known_args(args)
        parsed, unknown = super().parse_known_args(rest, namespace)
        for name, value in vars(told).items():
            setattr(parsed, name, value)
        return parsed, unknown


def _flags_of_django(parser: CommandParser) -> argparse.ArgumentParser:
    # Suppressed: a flag that is not given here must not undo what was given before the action.
    flags = CommandParser(
        prog=parser.prog,
        called_from_command_line=parser.called_from_command_line,
        add_help=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    flags.add_argument("-v", "--verbosity", type=int, choices=[0, 1, 2, 3])
    for valued in ("--settings", "--pythonpath"):
        flags.add_argument(valued)
    for switch in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
        flags.add_argument(switch, action="store_true", default=argparse.SUPPRESS)
    return flags


def add_actions(parser: CommandParser) -> Any:
    """Add the word after the command that chooses what it does; returns where parsers of actions are added."""
    taught: dict[str, list[str]] = {}
    for line in (parser.epilog or "").splitlines()[1:]:
        _, command, action, *rest = line.split(maxsplit=3)
        taught.setdefault(action, []).append(" ".join([command, action, *rest]))
    if taught:
        parser.epilog = _written(first for first, *_ in taught.values())

    # Django takes a class, and nothing that makes one.
    class TaughtParser(ActionParser):
        examples = taught

    return parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=TaughtParser)


def add_database(parser: CommandParser) -> None:
    """Add `--database`."""
    parser.add_argument(
        "--database", metavar="ALIAS", help="Alias of DATABASES (default: the first of PGBROKER)."
    )


def add_tenant(parser: CommandParser) -> None:
    """Add `--tenant`."""
    parser.add_argument("--tenant", metavar="ID", help="Only jobs of this tenant (default: of all tenants).")


def add_format(parser: CommandParser) -> None:
    """Add `--format`."""
    parser.add_argument(
        "--format",
        choices=("table", "json"),
        default="table",
        help="For people, or for programs (one JSON document).",
    )


class Arguments:
    """Reads flags by name and gathers what is wrong with them; `refuse_if_wrong()` tells all at once."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        self.troubles: list[PgBrokerError] = []

    def _flag(self, name: str) -> str:
        return "--" + name.replace("_", "-")

    def _read(self, name: str, check: Callable[[str, Any], T], default: T) -> T:
        value = self.given.get(name)
        if value is None:
            return default
        try:
            return check(self._flag(name), value)
        except InvalidSetting as error:
            self.wrong(self._flag(name), error.trouble, error.cure)
        except InvalidOption as error:
            # `queue_name` is how the code calls it.
            self.wrong(
                error.field if error.field.startswith("--") else self._flag(name), error.trouble, error.cure
            )
        except PgBrokerError as error:
            self.troubles.append(error)
        return default

    def wrong(self, field: str, trouble: str, cure: str) -> None:
        """Note that a flag cannot be used."""
        self.troubles.append(InvalidOption(field, trouble, cure))

    def refuse_if_wrong(self) -> None:
        """Raise one `CommandError` with exit code 2 that names everything wrong, or return."""
        if self.troubles:
            raise refused(self.troubles)

    def text(self, name: str) -> str | None:
        """Return a flag as it is; empty counts as not given."""
        return self.given.get(name) or None

    def remark(self, name: str = "reason") -> str:
        """Return what somebody says about what he does."""
        return self._read(name, remark, "")

    def whole(self, name: str, smallest: int, largest: int, default: Any = None) -> Any:
        """Return a whole number in the range."""
        return self._read(
            name, lambda flag, value: whole(flag, _number(value, int), smallest, largest), default
        )

    def size(self, name: str, smallest: int) -> int | None:
        """Return a number of bytes: a whole number with K, M or G."""
        return self._read(name, lambda flag, value: _size(flag, value, smallest), None)

    def setting(self, name: str, key: str) -> float | None:
        """Return a number that overrides the setting *key*, within what the setting allows."""
        check: Callable[[str, Any], float | None] = KEYS[key].metadata["check"]
        return self._read(name, lambda flag, value: check(flag, _number(value, float)), None)

    def duration(self, name: str) -> timedelta | None:
        """Return a duration: seconds, or a number with s, m, h or d."""
        flag = "--for" if name == "duration" else self._flag(name)
        return self._read(name, lambda _, value: _duration(flag, value), None)

    def queue(self, name: str = "queue") -> str | None:
        """Return the name of a queue."""
        return self._read(name, lambda _, value: checked_queue(value), None)

    def queues(self, name: str) -> tuple[str, ...]:
        """Return names of queues, separated by commas."""
        value = self.given.get(name)
        if value is None:
            return ()
        names = [part.strip() for part in value.split(",")] if isinstance(value, str) else list(value)
        if not any(names):
            self.wrong(self._flag(name), f"is {value!r}", "Name queues, separated by commas.")
        for each in filter(None, names):
            try:
                checked_queue(each)
            except InvalidOption as error:
                self.wrong(self._flag(name), f"names {each!r}, which is no name of a queue", error.cure)
        return tuple(dict.fromkeys(filter(None, names)))

    def tag(self) -> str | None:
        """Return a tag."""
        return self._read("tag", checked_tag, None)

    def worker_name(self) -> str | None:
        """Return the name of a worker."""
        return self._read("name", checked_name, None)

    def tenant(self) -> str | None:
        """Return the tenant."""
        return self._read("tenant", lambda _, value: checked_tenant(value), None)

    def database(self) -> str:
        """Return the broker alias to work on."""
        aliases = settings().DATABASES
        chosen = self.given.get("database")
        if chosen is None:
            return aliases[0]
        if chosen not in aliases:
            self.wrong(
                "--database",
                f"is {chosen!r}, not a broker alias",
                f'Choose one of: {", ".join(aliases)}; or add it to PGBROKER["DATABASES"].',
            )
        return str(chosen)

    def job_id(self, name: str) -> UUID | None:
        """Return one id of a job."""
        return self._id(name, "a job")

    def schedule_id(self, name: str) -> UUID | None:
        """Return one id of a schedule."""
        return self._id(name, "a schedule")

    def _id(self, name: str, of: str) -> UUID | None:
        try:
            return self._read(name, lambda _, value: UUID(str(value)), None)
        except ValueError:
            self.wrong(self._flag(name), f"is {self.given[name]!r}, not {of}'s id", "Give a UUID.")
            return None

    def ids(self, name: str = "ids") -> list[UUID]:
        """Return ids of jobs, each once, in the order given."""
        ids = []
        for value in self.given.get(name) or []:
            try:
                ids.append(value if isinstance(value, UUID) else UUID(str(value)))
            except ValueError:
                self.wrong(
                    "ID", f"is {value!r}, not a job's id", "Give UUIDs, as broker_jobs list shows them."
                )
        if len(ids) > MOST_IDS:
            self.wrong(
                "ID", f"was given {len(ids)} times", f"Give at most {MOST_IDS} at once, or use redrive."
            )
        return list(dict.fromkeys(ids))


def scope_of(tenant: str | None) -> AbstractContextManager[None]:
    """Work as *tenant*, or on the rows of all tenants."""
    return scope_all() if tenant is None else tenant_context(tenant)


def _number(value: Any, kind: type[int] | type[float]) -> Any:
    """Read a number that was typed; what is none is returned as it is, for the check to refuse."""
    if not isinstance(value, str):
        return value
    try:
        return kind(value)
    except ValueError:
        return value


def _size(flag: str, value: Any, smallest: int) -> int:
    found = re.fullmatch(r"(\d+)\s*([KMG]?)(?:i?B)?", str(value).strip(), re.IGNORECASE)
    size = int(found[1]) * _SIZES[found[2].upper()] if found else 0
    if not smallest <= size <= _LARGEST_SIZE:
        raise InvalidOption(
            flag, f"is {value!r}", f"Give a size such as 512M or 2G, at least {smallest // _SIZES['M']}M."
        )
    return size


def _duration(flag: str, value: Any) -> timedelta:
    if isinstance(value, str):
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", value.strip())
        if not found:
            raise InvalidOption(
                flag, f"is {value!r}", "Give seconds, or a number with s, m, h or d: 90, 10m, 2h, 1d."
            )
        value = float(found[1]) * _UNITS[found[2] or "s"]
    return checked_duration(flag, value, longest=timedelta(days=3660))


@contextmanager
def checked(given: Mapping[str, Any]) -> Iterator[Arguments]:
    """Read flags inside; what is wrong with them is told at the end, all at once."""
    try:
        arguments = Arguments(given)
        yield arguments
    except InvalidSetting as error:
        raise refused([error]) from error
    arguments.refuse_if_wrong()

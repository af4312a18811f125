"""broker_queues: look at queues, make them, pause and resume them."""

from collections import defaultdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from pgbroker import control, reports
from pgbroker.conf import settings
from pgbroker.errors import InvalidOption, UnknownQueue
from pgbroker.lifecycle.configure import configure_queue
from pgbroker.lifecycle.declare import declare_queues, list_queues
from pgbroker.management import exits
from pgbroker.management.arguments import (
    Arguments,
    add_actions,
    add_database,
    add_format,
    add_tenant,
    checked,
    scope_of,
    teach,
)
from pgbroker.management.commands.broker_jobs import operator
from pgbroker.management.output import ago, as_json, table, table_of_pauses
from pgbroker.options import checked_queue

DEFAULT = "default"


class Command(BaseCommand):
    help = "Look at queues, make them, pause and resume claims, and change how they age."

    def add_arguments(self, parser: CommandParser) -> None:
        teach(
            parser,
            """
broker_queues list
broker_queues list --tenant acme --format json
broker_queues create mail
broker_queues create mail reports
broker_queues delete mial
broker_queues delete mial repots
broker_queues pause --queue mail --for 2h --reason "provider is down"
broker_queues pause --type shop.send_invoice
broker_queues pause --queue mail --tenant acme
broker_queues resume --queue mail
broker_queues resume --type shop.send_invoice
broker_queues set mail --lease-seconds 300
broker_queues set mail --lease-seconds default --ageing-seconds 30
""",
        )
        actions = add_actions(parser)
        one = actions.add_parser("list", help="List queues with depth, pauses and settings.")
        add_tenant(one)
        one = actions.add_parser("create", help="Make queues; those that exist stay as they are.")
        one.add_argument("names", metavar="NAME", nargs="+", help="The queues to make.")
        one = actions.add_parser(
            "delete", help="Delete queues that no job, history or declaration refers to."
        )
        one.add_argument("names", metavar="NAME", nargs="+", help="The queues to delete.")
        for name, what in (("pause", "Stop claims; running jobs go on."), ("resume", "End a pause.")):
            one = actions.add_parser(name, help=what)
            one.add_argument("--queue", metavar="NAME", help="This queue.")
            one.add_argument("--type", metavar="NAME", help="This job type, in every queue.")
            one.add_argument("--tenant", metavar="ID", help="This tenant; with --queue only in that queue.")
            if name == "pause":
                one.add_argument(
                    "--for", dest="duration", metavar="TIME", help="90, 10m, 2h or 1d; until resumed."
                )
                one.add_argument("--reason", metavar="TEXT", default="", help="Shown wherever the pause is.")
        one = actions.add_parser("set", help="Change ageing and lease of a queue.")
        one.add_argument("name", metavar="NAME", help="The queue to change.")
        one.add_argument("--ageing-seconds", metavar="S", help=f"A number, or {DEFAULT!r}: AGEING_SECONDS.")
        one.add_argument("--lease-seconds", metavar="S", help=f"A number, or {DEFAULT!r}: LEASE_SECONDS.")
        for each in actions.choices.values():
            add_database(each)
            add_format(each)

    def handle(self, *args: Any, action: str, **given: Any) -> None:
        with checked(given) as arguments:
            alias, tenant = arguments.database(), arguments.tenant()
            asked = getattr(self, f"read_{action}")(arguments)
        with exits.errors_of_a_command(alias), scope_of(tenant if action == "list" else None):
            getattr(self, f"do_{action}")(asked, given["format"] == "json", alias)

    def read_list(self, arguments: Arguments) -> None: ...

    def do_list(self, asked: None, json_wanted: bool, alias: str) -> None:
        depths, pauses = reports.list_depths(using=alias), reports.list_pauses(using=alias)
        of_queue: dict[str | None, list[reports.PauseLine]] = defaultdict(list)
        for pause in pauses:
            of_queue[pause.queue].append(pause)
        whole = {
            depth.queue: [each for each in of_queue[depth.queue] if each.tenant is None] for depth in depths
        }
        chosen = settings()
        if json_wanted:
            queues = [
                {
                    "queue": depth.queue,
                    **depth.counts,
                    "oldest_ready_seconds": depth.oldest_ready_seconds,
                    "paused": bool(whole[depth.queue]),
                    "ageing_seconds": _or(depth.ageing_seconds, chosen.AGEING_SECONDS),
                    "lease_seconds": _or(depth.lease_seconds, chosen.LEASE_SECONDS),
                }
                for depth in depths
            ]
            report = {
                "count_bound": reports.BOUND,
                "queues": queues,
                "pauses": [each._asdict() for each in pauses],
            }
            self.stdout.write(as_json(report))
            return
        rows = (
            (
                depth.queue,
                *map(reports.at_most, depth.counts.values()),
                ago(depth.oldest_ready_seconds),
                "paused" if whole[depth.queue] else "",
                f"{_or(depth.ageing_seconds, chosen.AGEING_SECONDS):g}",
                f"{_or(depth.lease_seconds, chosen.LEASE_SECONDS):g}",
            )
            for depth in depths
        )
        headings = (
            "queue", *map(reports.heading, reports.COUNTED), "oldest", "paused", "ageing", "lease",
        )  # fmt: skip
        self.stdout.write(table(headings, rows))
        self.stdout.write(reports.CLAIMED)
        if pauses:
            self.stdout.write("\npauses")
            self.stdout.write(table_of_pauses(pauses))

    def read_create(self, arguments: Arguments) -> list[str]:
        names = arguments.given["names"]
        for name in names:
            try:
                checked_queue(name)
            except InvalidOption as error:
                arguments.wrong("NAME", error.trouble, error.cure)
        return list(names)

    def do_create(self, names: list[str], json_wanted: bool, alias: str) -> None:
        made = declare_queues(names, using=alias)
        if json_wanted:
            self.stdout.write(as_json({"queues": [{"queue": each.name} for each in made]}))
        else:
            self.stdout.write(f"Queues there now: {', '.join(sorted(each.name for each in made))}.")

    def read_delete(self, arguments: Arguments) -> list[str]:
        return list(dict.fromkeys(arguments.given["names"]))

    def do_delete(self, names: list[str], json_wanted: bool, alias: str) -> None:
        for name in names:
            control.delete_queue(name, using=alias)
            if not json_wanted:
                self.stdout.write(f"Deleted queue {name}.")
        if json_wanted:
            self.stdout.write(as_json({"deleted": names}))

    def read_pause(self, arguments: Arguments) -> dict[str, Any]:
        return {
            **self.read_resume(arguments),
            "duration": arguments.duration("duration"),
            "reason": arguments.remark(),
        }

    def do_pause(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        until = control.pause(**asked, by=operator(), using=alias)
        target = {name: asked[name] for name in ("queue", "job_type", "tenant")}
        if json_wanted:
            self.stdout.write(as_json({**target, "paused": True, "until": until}))
        else:
            ends = f"until {until.isoformat(sep=' ', timespec='seconds')}" if until else "until it is resumed"
            self.stdout.write(f"Paused {_named(target)}, {ends}. Running jobs go on.")

    def read_resume(self, arguments: Arguments) -> dict[str, Any]:
        queue, job_type = arguments.queue(), arguments.text("type")
        tenant = arguments.given["tenant"]
        if job_type and (queue or tenant):
            arguments.wrong("--type", "was given with --queue or --tenant", "Name a type alone.")
        if not (queue or job_type or tenant or arguments.given["queue"]):
            arguments.wrong("--queue", "is missing", "Name what is meant: --queue, --type or --tenant.")
        return {"queue": queue, "job_type": job_type, "tenant": tenant}

    def do_resume(self, asked: dict[str, Any], json_wanted: bool, alias: str) -> None:
        # A name that is mistyped was never paused, and what was meant stays so.
        control.resolve(asked["queue"], asked["job_type"], using=alias)
        ended = control.resume(**asked, using=alias)
        if json_wanted:
            self.stdout.write(as_json({**asked, "paused": False, "was_paused": ended}))
        elif ended:
            self.stdout.write(f"Resumed {_named(asked)}.")
        if not ended:
            raise CommandError(f"{_named(asked)} was not paused.", returncode=exits.ERROR)

    def read_set(self, arguments: Arguments) -> dict[str, Any]:
        changes: dict[str, Any] = {"name": arguments.given["name"]}
        for name, key in (("ageing_seconds", "AGEING_SECONDS"), ("lease_seconds", "LEASE_SECONDS")):
            given = arguments.given[name]
            if given == DEFAULT:
                changes[name] = None
            elif given is not None:
                changes[name] = arguments.setting(name, key)
        lease = changes.get("lease_seconds")
        if lease is not None and lease < 3 * settings().HEARTBEAT_SECONDS:
            arguments.wrong(
                "--lease-seconds",
                f"is {lease:g}, less than three times HEARTBEAT_SECONDS ({settings().HEARTBEAT_SECONDS:g})",
                "Give more, or lower the setting first.",
            )
        if len(changes) == 1 and not arguments.troubles:
            arguments.wrong("--lease-seconds", "is missing", "Say what to change: it or --ageing-seconds.")
        return changes

    def do_set(self, changes: dict[str, Any], json_wanted: bool, alias: str) -> None:
        changed = configure_queue(**changes, using=alias)
        if changed is None:
            raise UnknownQueue(changes["name"], [each.name for each in list_queues(using=alias)])
        if json_wanted:
            self.stdout.write(as_json(changed._asdict()))
        else:
            self.stdout.write(f"{changed.name}: workers follow within half a minute.")


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _named(target: dict[str, Any]) -> str:
    words = {"queue": "queue", "job_type": "job type", "tenant": "tenant"}
    return " and ".join(f"{words[name]} {value!r}" for name, value in target.items() if value)

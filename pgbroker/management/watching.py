"""Look again and again: the overview in place on a terminal, or one report after another where there is none."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import psycopg
from django.db import Error

from pgbroker import db
from pgbroker.errors import PgBrokerError
from pgbroker.management.lines import Frame, Line, cut
from pgbroker.management.output import ago, harmless
from pgbroker.management.picture import draw
from pgbroker.management.screen import Screen
from pgbroker.overview import Overview, look

# How long one statement may take.
STATEMENT_SECONDS = 5
# How long an answer may be on its way before the screen says so.
PATIENCE_SECONDS = 2.0
TROUBLE = (psycopg.Error, Error, PgBrokerError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be looked at."""

    alias: str
    tenant: str | None
    minutes: int
    scope: Callable[[], AbstractContextManager[None]]

    def look(self, session: db.Session) -> Overview:
        """Look once."""
        with self.scope():
            return look(tenant=self.tenant, minutes=self.minutes, using=session)

    def session(self) -> db.Session:
        """Make a connection for it, which finds out soon when the other side is gone."""
        return db.Session(self.alias, purpose="status", statement_timeout=f"{STATEMENT_SECONDS}s")


class Reader:
    """
    Asks the database in a thread of its own: one that does not answer must not hold up the keys.

    *answered* is called in that thread. `overview` is the last answer, `trouble` what the database or the
    network said since, and `waiting_since` the monotonic clock when the question was sent that is not answered.
    """

    def __init__(self, asked: Asked, answered: Callable[[], None]) -> None:
        self._asked, self._answered = asked, answered
        self.overview: Overview | None = None
        self.trouble: str | None = None
        self.troubled_since = 0.0
        self.waiting_since: float | None = None
        # An error of ours, which the thread could not raise.
        self.failure: BaseException | None = None
        self._go = threading.Event()
        threading.Thread(target=self._run, name="pgbroker-status", daemon=True).start()

    def ask(self) -> None:
        """Begin to ask, unless an answer is on its way."""
        if self.waiting_since is None:
            self.waiting_since = time.monotonic()
            self._go.set()

    def _run(self) -> None:
        session = self._asked.session()
        while True:
            self._go.wait()
            self._go.clear()
            try:
                self.overview = self._asked.look(session)
                self.trouble = None
            except TROUBLE as error:
                session.drop()
                self._take_note(error)
            except BaseException as error:
                self.failure = error
                self._answered()
                return
            self.waiting_since = None
            self._answered()

    def _take_note(self, error: Exception) -> None:
        if self.trouble is None:
            self.troubled_since = time.monotonic()
        self.trouble = told_in_a_line(error)


def told_in_a_line(error: Exception) -> str:
    """Write what went wrong, on one line."""
    return " ".join(harmless(str(error), keep="").split()) or type(error).__name__


def watch_on_screen(
    asked: Asked, screen: Screen, *, every: float, bars: str, all_workers: bool, dress: Callable[[Line], str]
) -> None:
    """Draw the overview every so many seconds until `q` or a signal ends it; any other key looks at once."""
    with screen:
        reader = Reader(asked, screen.wake)
        reader.ask()
        due = time.monotonic() + every
        while True:
            if reader.failure is not None:
                raise reader.failure
            now = time.monotonic()
            if now >= due:
                reader.ask()
                due = now + every
            columns, rows = screen.size
            head = _head(reader, asked, every, columns)
            frame = Frame(width=columns, rows=rows - len(head), bars=bars, all_workers=all_workers)
            body = draw(reader.overview, frame) if reader.overview is not None else []
            screen.show([dress(line) for line in (*head, *body)][:rows])
            # While something is late the seconds are counted on the screen.
            late = reader.waiting_since is not None or reader.trouble is not None
            match screen.wait(min(due - now, 1.0) if late else due - now):
                case "quit":
                    return
                case "key":
                    reader.ask()


def _head(reader: Reader, asked: Asked, every: float, width: int) -> list[Line]:
    told = f"{every:g} s, q quits"
    when = "" if reader.overview is None else f"{reader.overview.database_time:%Y-%m-%d %H:%M:%S %Z}"
    whose = "" if asked.tenant is None else f", tenant {asked.tenant}"
    left = f"pgbroker on {asked.alias}{whose}  {when}"
    gap = max(2, width - len(left) - len(told))
    head = [Line(cut(f"{left}{' ' * gap}{told}", width), "heading")]
    if (trouble := _trouble(reader)) is not None:
        head.append(Line(cut(trouble, width), "error"))
    return head


def _trouble(reader: Reader) -> str | None:
    now, since = time.monotonic(), reader.waiting_since
    if reader.trouble is not None:
        return f"no figures for {ago(now - reader.troubled_since)}, trying again: {reader.trouble}"
    if since is not None and now - since >= PATIENCE_SECONDS:
        return f"no answer from the database for {ago(now - since)}"
    if reader.overview is None:
        return "asking the database"
    return None


def watch_in_lines(
    asked: Asked, *, every: float, report: Callable[[Overview], None], complain: Callable[[str], None]
) -> None:
    """Report every so many seconds, one report after the other, until a signal or the reader's end ends it."""
    session = asked.session()
    try:
        while True:
            try:
                overview = asked.look(session)
            except TROUBLE as error:
                session.drop()
                complain(told_in_a_line(error))
            else:
                report(overview)
            time.sleep(every)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        # Whoever read has left; Python must not stumble over it once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    finally:
        session.drop()

"""announce: say which code speaks for the schedules of a project."""

from datetime import timedelta

from pgbroker import db


def announce(
    project: str, digest: str, *, quiet: timedelta, insist: bool = False, using: str | db.Session = "default"
) -> bool | None:
    """
    Say that code runs which declares what *digest* is of; None while newer code of the project has the word.

    Otherwise whether it has it anew. Newer is what was first seen later, and was seen within *quiet*. With *insist*
    the word is this code's from now on. Writers of one project's schedules take turns by the row that this locks.
    """
    wanted = {"project": project, "digest": digest, "quiet": quiet, "insist": insist}
    answers = db.fetch("announce_declarations", wanted, lambda row: bool(row[0]), using=using)
    return answers[0] if answers else None

"""django-tasks-db: one worker, which runs one job at a time."""

from __future__ import annotations

from testproject.bench.peers.django_peer import DjangoPeer
from testproject.bench.peers.driver import main


class DjangoTasksDb(DjangoPeer):
    distribution = "django-tasks-db"
    settings = "one worker, no start-up delay"
    remaining = "select count(*) from django_tasks_database_dbtaskresult where status in ('READY', 'RUNNING')"

    def worker_command(self) -> list[str]:
        return self.manage("db_worker", "--no-startup-delay", "--interval", "0.1", "--queue-name", "*")


if __name__ == "__main__":
    main(DjangoTasksDb)

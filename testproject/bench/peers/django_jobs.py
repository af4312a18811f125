"""The one task of the peers that are backends of Django's task framework."""

from django.tasks import task

from testproject.bench import ran


@task
def noop(number: int) -> None:
    ran.note(number)

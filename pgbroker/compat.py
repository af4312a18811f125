"""Django's task framework, wherever it lives: in Django from 6.0 on, in the backport before."""

from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from django.tasks import (
        DEFAULT_TASK_BACKEND_ALIAS,
        Task,
        TaskContext,
        TaskResult,
        TaskResultStatus,
        task_backends,
    )
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import task_enqueued, task_finished, task_started
else:
    try:
        from django.tasks import (
            DEFAULT_TASK_BACKEND_ALIAS,
            Task,
            TaskContext,
            TaskResult,
            TaskResultStatus,
            task_backends,
        )
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.base import TaskError
        from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
        from django.tasks.signals import task_enqueued, task_finished, task_started
    except ModuleNotFoundError:
        try:
            from django_tasks import (
                DEFAULT_TASK_BACKEND_ALIAS,
                TaskContext,
                TaskResult,
                TaskResultStatus,
                task_backends,
            )
            from django_tasks.backends.base import BaseTaskBackend
            from django_tasks.base import Task, TaskError
            from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
            from django_tasks.signals import task_enqueued, task_finished, task_started
        except ModuleNotFoundError as error:
            if error.name != "django_tasks":
                raise
            raise ImproperlyConfigured(
                "pgbroker needs Django's task framework, and this Django has none: it came with Django 6.0. "
                'Install the backport: pip install "pgbroker[tasks]". Or use Django 6.0 or later.'
            ) from error

        try:
            from django_tasks.exceptions import InvalidTask
        except ImportError:
            from django_tasks.exceptions import InvalidTaskError as InvalidTask

__all__ = [
    "DEFAULT_TASK_BACKEND_ALIAS",
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]

"""Deleting schedules in the admin and by command."""

from __future__ import annotations

from io import StringIO

import pytest
from django.urls import reverse

from pgbroker.models import Schedule
from pgbroker.schedules.declare import declarations
from tests.edges.test_admin_schedules import LIST, act, declare, fresh, page_of, root, save, staff, text_of
from tests.edges.test_command_schedules import read, refused, run
from tests.support.schedules import jobs, make, states, tick_all

__all__ = ["fresh", "root"]

pytestmark = pytest.mark.django_db


def test_a_schedule_is_deleted_by_button_after_a_question(root):
    line = save()

    assert page_of(line.id, "delete") in text_of(root.get(page_of(line.id)))
    question = text_of(root.get(page_of(line.id, "delete")))
    assert "go on" in question
    assert Schedule.objects.count() == 1
    root.post(page_of(line.id, "delete"), {"post": "yes"})

    assert Schedule.objects.count() == 0


def test_deleting_in_the_admin_leaves_jobs_and_history(root):
    made = make()
    tick_all()

    root.post(page_of(made.pk, "delete"), {"post": "yes"})

    assert (len(jobs()), states(made)) == (1, ["created"])


def test_what_the_code_declares_has_no_button_and_is_refused(root):
    line = declare()

    text = text_of(root.get(page_of(line.id)))
    answer = root.post(page_of(line.id, "delete"), {"post": "yes"})

    assert page_of(line.id, "delete") not in text
    assert "deleted once the code has it no more" in text
    assert answer.status_code == 403
    assert Schedule.objects.count() == 1


def test_of_what_the_code_has_no_more_the_page_says_so_and_has_the_button(root):
    line = declare()
    declarations.forget(line.name)

    text = text_of(root.get(page_of(line.id)))

    assert "has declared it, and has it no more: it can be deleted." in text
    assert "so what it says is changed there" not in text
    assert page_of(line.id, "delete") in text


def test_several_are_deleted_at_once_and_declared_ones_stop_it_with_the_cure(root):
    first, second, kept = save("first"), save("second"), declare()

    question = act(root, "delete_selected", first.id, kept.id)
    root.post(
        LIST,
        {"action": "delete_selected", "_selected_action": [str(first.id), str(kept.id)], "post": "yes"},
    )
    assert Schedule.objects.count() == 3
    assert "Remove them from the code first" in text_of(question)
    root.post(
        LIST,
        {"action": "delete_selected", "_selected_action": [str(first.id), str(second.id)], "post": "yes"},
        follow=True,
    )

    assert [each.name for each in Schedule.objects.all()] == ["declared"]


def test_who_may_not_delete_has_no_button_and_no_action():
    client = staff("view_schedule", "change_schedule")
    line = save()

    assert page_of(line.id, "delete") not in text_of(client.get(page_of(line.id)))
    assert "delete_selected" not in text_of(client.get(LIST))
    act(client, "delete_selected", line.id)
    assert client.get(reverse("admin:pgbroker_schedule_delete", args=[line.id])).status_code == 403
    assert Schedule.objects.count() == 1


def test_a_command_deletes_and_says_so():
    line = save()
    assert run("delete", "nightly", "--yes") == "Deleted 'nightly'. What runs goes on.\n"

    again = save()
    assert read("delete", again.id, "--yes") == {
        "id": str(again.id),
        "name": "nightly",
        "tenant_id": "default",
    }
    assert again.id != line.id
    assert refused("delete", "nightly", "--yes").returncode == 1
    assert Schedule.objects.count() == 0


def test_a_command_refuses_what_the_code_declares_with_the_cure():
    declare()

    error = refused("delete", "declared", "--yes")

    assert error.returncode == 1
    assert "Remove it from the code first, or disable it." in str(error)
    assert Schedule.objects.count() == 1


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_delete_asks_and_a_dry_run_only_tells(monkeypatch):
    save()

    assert "'nightly' of tenant default would be deleted" in run("delete", "nightly", "--dry-run")
    monkeypatch.setattr("sys.stdin", StringIO())
    error = refused("delete", "nightly")
    assert (error.returncode, "--yes is missing" in str(error)) == (2, True)
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert "Nothing was changed" in str(refused("delete", "nightly"))
    assert Schedule.objects.count() == 1

    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert "Deleted 'nightly'" in run("delete", "nightly")
    assert Schedule.objects.count() == 0

"""The few things one can fill in in the admin."""

from datetime import timedelta
from typing import Any

from django import forms

from pgbroker import reports
from pgbroker.conf import KEYS, settings
from pgbroker.errors import InvalidOption, InvalidSetting, sentence
from pgbroker.lifecycle.declare import list_queues
from pgbroker.models import JobType, Queue
from pgbroker.options import LONGEST_TAG, checked_queue, checked_tag
from pgbroker.states import Status

DURATIONS = {
    "": "until resumed",
    "600": "10 minutes",
    "3600": "1 hour",
    "14400": "4 hours",
    "86400": "1 day",
    "604800": "1 week",
}


class ReasonForm(forms.Form):
    """Why, for whoever looks later."""

    reason = forms.CharField(required=False, max_length=500, widget=forms.TextInput(attrs={"size": 60}))


class PauseForm(ReasonForm):
    """How long to pause, and why."""

    duration = forms.ChoiceField(choices=list(DURATIONS.items()), required=False, label="For")

    field_order = ("duration", "reason")

    def clean_duration(self) -> timedelta | None:
        """Return how long, or None: until resumed."""
        seconds = self.cleaned_data["duration"]
        return timedelta(seconds=int(seconds)) if seconds else None


class RedriveForm(forms.Form):
    """Which ended jobs to retry."""

    status = forms.ChoiceField(
        choices=[
            (status.label, status.label.replace("_", " "))
            for status in (Status.DEAD_LETTER, Status.FAILED, Status.CANCELLED)
        ]
    )
    queue = forms.ChoiceField(required=False)
    job_type = forms.ChoiceField(required=False, label="Type")
    tag = forms.CharField(required=False, max_length=LONGEST_TAG)
    error_code = forms.CharField(required=False, max_length=200)

    def __init__(self, *args: Any, using: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        queues = [each.name for each in list_queues(using=using)]
        types = JobType.objects.using(using).order_by("name").values_list("name", flat=True)
        for name, known in (("queue", queues), ("job_type", types)):
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = [("", "all"), *((each, each) for each in known)]

    def clean_tag(self) -> str:
        """Refuse what cannot be a tag."""
        tag: str = self.cleaned_data["tag"]
        try:
            return checked_tag("tag", tag) if tag else tag
        except InvalidOption as error:
            raise forms.ValidationError(f"It {sentence(error.trouble)} {error.cure}") from error

    def narrowed(self) -> dict[str, Any]:
        """Return the filter as `redrive_pages` and `count_ended` take it."""
        chosen = self.cleaned_data
        return {
            "status": Status[chosen["status"].upper()],
            **{name: chosen[name] or None for name in ("queue", "job_type", "tag", "error_code")},
        }


class QueueForm(forms.ModelForm):  # type: ignore[type-arg]
    """A queue's name, when it is made, and how it ages and leases."""

    class Meta:
        model = Queue
        fields = ("name", "ageing_seconds", "lease_seconds")

    def clean_name(self) -> str:
        """Refuse what cannot name a queue, and a name that is taken."""
        try:
            name = checked_queue(self.cleaned_data["name"])
        except InvalidOption as error:
            raise forms.ValidationError(f"This {sentence(error.trouble)} {error.cure}") from error
        if Queue.objects.filter(name=name).exists():
            raise forms.ValidationError("There is a queue of this name.")
        return name

    def clean_ageing_seconds(self) -> float | None:
        """Keep to what AGEING_SECONDS allows."""
        return self._checked("ageing_seconds", "AGEING_SECONDS")

    def clean_lease_seconds(self) -> float | None:
        """Keep to what LEASE_SECONDS allows, and to three heartbeats."""
        lease = self._checked("lease_seconds", "LEASE_SECONDS")
        beat = settings().HEARTBEAT_SECONDS
        if lease is not None and lease < 3 * beat:
            raise forms.ValidationError(f"Give at least three times HEARTBEAT_SECONDS: {3 * beat:g}.")
        return lease

    def _checked(self, name: str, key: str) -> float | None:
        value: float | None = self.cleaned_data[name]
        if value is None:
            return None
        try:
            KEYS[key].metadata["check"](key, value)
        except InvalidSetting as error:
            raise forms.ValidationError(error.cure) from error
        return value


def bounded(count: int) -> str:
    """Write a count that stopped at the bound."""
    return f"at least {count}" if count >= reports.BOUND else str(count)

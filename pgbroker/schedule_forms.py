"""The forms of the schedules' admin: what a schedule says, and a range of the past."""

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.forms.fields import InvalidJSONInput

from pgbroker.errors import InvalidOption, sentence
from pgbroker.models import Schedule
from pgbroker.schedules import operate
from pgbroker.schedules.look import find
from pgbroker.schedules.operate import Definition, ScheduleLine, Trouble
from pgbroker.schedules.shown import read_moment
from pgbroker.schedules.sync import declared_names
from pgbroker.tenancy import current_tenant

# More than any check lets through, and less than a timedelta holds.
_SECONDS_MAX = 1e12
EXAMPLE = {"jobs": [{"job_type": "app.name", "queue": "default", "args": {"v": 1, "args": [], "kwargs": {}}}]}
_HELP = {
    "expression": "Five fields: minute, hour, day of the month, month, day of the week. Or @daily and so on.",
    "time_zone": "An IANA name, such as Africa/Johannesburg. The expression is read on its clock.",
    "template": 'The jobs of each tick, as pgbroker.enqueue_many_1 takes them: {"jobs": [{"job_type": …}]}. '
    "Types are named by their key. Jobs with a name and depends_on make a run group.",
    "ambiguous": "What becomes of a time that the clock shows twice. auto: fixed times fire once.",
    "nonexistent": "What becomes of a time that the clock skips. auto: fixed times fire when the gap ends.",
    "misfire": "What becomes of ticks that nobody created in time.",
    "misfire_count": "Of catch_up: the most ticks that are made up for.",
    "misfire_window_seconds": "Of catch_up: older ones are left out.",
    "overlap": "What becomes of a tick while an earlier occurrence is not over.",
    "jitter_seconds": "The longest that a job waits after its tick.",
}


class TemplateField(forms.JSONField):
    """A template, written to be read. Half a character, which no page can show, is written as its escape."""

    def prepare_value(self, value: Any) -> Any:
        """Write it as it is typed."""
        if isinstance(value, InvalidJSONInput):
            return value
        written = json.dumps(value, indent=2, ensure_ascii=False)
        return written if written.isascii() or _is_showable(written) else json.dumps(value, indent=2)


def _is_showable(text: str) -> bool:
    return not any("\ud800" <= each <= "\udfff" for each in text)


class ScheduleForm(forms.ModelForm):  # type: ignore[type-arg]
    """What a schedule says. Everything wrong with it is told at once, at the field that is meant."""

    # Where the form is told by its admin.
    using = "default"

    class Meta:
        model = Schedule
        fields = (
            "name",
            "expression",
            "time_zone",
            "enabled",
            "template",
            "ambiguous",
            "nonexistent",
            "starts_at",
            "ends_at",
            "misfire",
            "misfire_count",
            "misfire_window_seconds",
            "overlap",
            "jitter_seconds",
        )
        help_texts = _HELP
        labels = {"misfire_window_seconds": "Misfire window, seconds", "jitter_seconds": "Jitter, seconds"}
        field_classes = {"template": TemplateField}
        widgets = {"template": forms.Textarea(attrs={"rows": 12, "cols": 90, "spellcheck": "false"})}

    def clean_name(self) -> str:
        """Refuse a name that is taken: stored, this would be an edit of the other one."""
        name: str = self.cleaned_data["name"]
        if self.instance.pk is None:
            if find(name, using=self.using) is not None:
                raise forms.ValidationError("There is a schedule of this name.")
            if name in declared_names(current_tenant(), using=self.using):
                raise forms.ValidationError("The code declares a schedule of this name.")
        return name

    def clean_template(self) -> dict[str, Any]:
        """Refuse what has not the shape of a template; what its jobs say is looked at with the rest."""
        template: Any = self.cleaned_data["template"]
        if not isinstance(template, dict) or not isinstance(template.get("jobs"), list):
            raise forms.ValidationError(
                'Give an object with a list of jobs: {"jobs": [{"job_type": "app.name"}]}.'
            )
        if unknown := sorted(template.keys() - {"jobs", "group"}):
            raise forms.ValidationError(
                f"It has {unknown[0]!r}: give jobs, and group for options of a run group."
            )
        if not isinstance(template.get("group", {}), dict | None):
            raise forms.ValidationError('Its group is no object: give one such as {"tolerate_count": 1}.')
        return template

    def clean(self) -> dict[str, Any] | None:
        """Look at it as whoever declares a schedule in code is looked at."""
        super().clean()
        if "name" in self.fields and "name" in self.errors:
            return self.cleaned_data
        self._tell(operate.check(self.definition(), using=self.using))
        return self.cleaned_data

    def _tell(self, troubles: Iterable[Trouble]) -> None:
        # What could not even be read was told, and something else stood in for it.
        told = set(self.errors)
        for each in troubles:
            if each.field not in told:
                message = forms.ValidationError(f"It {sentence(each.trouble)} {each.cure}", code=each.code)
                self.add_error(each.field if each.field in self.fields else None, message)

    def definition(self) -> Definition:
        """Return what was filled in."""
        given = self.cleaned_data
        template = given.get("template") or {"jobs": EXAMPLE["jobs"]}
        return Definition(
            name=given.get("name", self.instance.name),
            expression=given.get("expression", "* * * * *"),
            time_zone=given.get("time_zone", "UTC"),
            jobs=template["jobs"],
            group=template.get("group"),
            ambiguous=given.get("ambiguous", "auto"),
            nonexistent=given.get("nonexistent", "auto"),
            misfire=given.get("misfire", "run_once"),
            misfire_count=given.get("misfire_count", 1),
            misfire_window=_seconds(given.get("misfire_window_seconds", 1)),
            overlap=given.get("overlap", "allow"),
            jitter=_seconds(given.get("jitter_seconds", 0)),
            starts_at=given.get("starts_at"),
            ends_at=given.get("ends_at"),
            enabled=given.get("enabled", True),
        )


def _seconds(number: float) -> timedelta:
    return timedelta(seconds=max(-_SECONDS_MAX, min(number, _SECONDS_MAX)))


class BackfillForm(forms.Form):
    """A range of the past, on the clock of the schedule's zone."""

    start = forms.CharField(
        label="From", max_length=40, help_text="A date, or a time such as 2026-03-29T02:30, or with +02:00."
    )
    end = forms.CharField(
        label="To", max_length=40, required=False, help_text="A date with all of it, or a time. Empty: now."
    )

    def __init__(self, *args: Any, line: ScheduleLine, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.line = line

    def clean_start(self) -> datetime:
        """Return the instant from which on ticks are meant."""
        return self._read("start", is_end=False)

    def clean_end(self) -> datetime:
        """Return the instant until which ticks are meant."""
        return self._read("end", is_end=True) if self.cleaned_data["end"] else self.line.now

    def _read(self, name: str, *, is_end: bool) -> datetime:
        try:
            return read_moment(name, self.cleaned_data[name], self.line.time_zone, is_end=is_end)
        except InvalidOption as error:
            raise forms.ValidationError(f"It {sentence(error.trouble)} {error.cure}") from error

    def refuse(self, error: InvalidOption) -> None:
        """Tell what the range as a whole is refused for."""
        field = error.field if error.field in self.fields else None
        self.add_error(field, f"It {sentence(error.trouble)} {error.cure}")

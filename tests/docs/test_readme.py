"""The quickstart of README.md works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.walkthrough import ROOT, reader


@pytest.mark.own_session
def test_the_quickstart_runs(tmp_path: Path) -> None:
    quickstart = re.search(r"^## Quickstart\n.*?(?=^## )", (ROOT / "README.md").read_text(), re.M | re.S)
    assert quickstart
    page = ROOT / "build" / f"quickstart-{tmp_path.name}.md"
    with reader(tmp_path) as somebody:
        somebody.type("$ django-admin startproject mysite .\n", "set-up")
        with (tmp_path / "mysite" / "settings.py").open("a") as settings:
            engine = "django.db.backends.postgresql"
            settings.write(
                f'\nDATABASES = {{"default": {{"ENGINE": "{engine}", "NAME": "{somebody.database}"}}}}\n'
            )
        page.parent.mkdir(exist_ok=True)
        page.write_text(quickstart[0])
        try:
            somebody.follow(page)
        finally:
            page.unlink()

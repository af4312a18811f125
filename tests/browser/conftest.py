"""A browser for tests: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

# Where to keep pictures, for people who want to look at them.
PICTURES = os.environ.get("PGBROKER_SCREENSHOTS")
CHROMIUM = "/usr/bin/chromium"
# No first-run traffic: nothing but the live server is talked to.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


# For a module and no longer: the event loop would be in the way of other tests.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A running browser; skips where there is none."""
    if not Path(CHROMIUM).exists():
        pytest.skip(f"no {CHROMIUM}: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with pytest.MonkeyPatch.context() as patch:
        # Playwright keeps an event loop in this thread, which Django takes for async code.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        with api.sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            yield browser
            browser.close()


class Console:
    """What a page said; a policy's violations are said there."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def watch(self, page: Any) -> None:
        page.on(
            "console",
            lambda message: self.said.append(f"{message.type}: {message.text} {message.location['url']}"),
        )
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))

    @property
    def complaints(self) -> list[str]:
        return [each for each in self.said if "favicon" not in each and not each.startswith("log")]


@pytest.fixture
def console() -> Console:
    return Console()


@pytest.fixture
def page(chromium: Any, console: Console) -> Iterator[Any]:
    """A page with nothing remembered."""
    context = chromium.new_context(viewport={"width": 1400, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(15_000)
    console.watch(opened)
    yield opened
    context.close()


@pytest.fixture
def picture(page: Any, tmp_path: Path) -> Callable[[str], None]:
    """Take a picture of the page, under a name."""

    def take(name: str) -> None:
        page.screenshot(path=Path(PICTURES or tmp_path) / f"{name}.png", full_page=True)

    return take


@pytest.fixture
def admin(page: Any, live_server: Any) -> Any:
    """The admin, logged in."""
    User.objects.create_superuser("root", password="x")
    page.goto(f"{live_server.url}/admin/login/")
    page.fill("#id_username", "root")
    page.fill("#id_password", "x")
    page.click("[type=submit]")
    page.wait_for_url(f"{live_server.url}/admin/")
    return page

"""The distribution's Chromium, driven by Playwright. Whatever a page complains of or asks of others is kept."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
ABSENT = "Chromium is not installed: `apt-get install chromium`, or `make chromium` as root"
PATIENCE_MS = 20_000


def executable() -> str | None:
    """A Chromium that is there; CHROMIUM names another."""
    given = os.environ.get("CHROMIUM")
    return given or next((found for found in map(shutil.which, NAMES) if found), None)


@contextlib.contextmanager
def launched() -> Iterator[Browser]:
    """A browser. While it runs, this thread counts as one with an event loop: nothing else may start one."""
    from playwright.sync_api import expect, sync_playwright

    found = executable()
    if found is None:
        pytest.skip(ABSENT)
    expect.set_options(timeout=PATIENCE_MS)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Person:
    """A browser of somebody's own, at one desk. Addresses begin with `/` and stand below the desk's."""

    context: BrowserContext
    home: str
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.context.set_default_timeout(PATIENCE_MS)
        self.context.on("request", self._asked)
        self.context.on("console", self._said)
        self.context.on("weberror", lambda error: self.wrong.append(str(error.error)))
        self.page: Page = self.context.new_page()

    def _asked(self, request: Any) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.home).netloc and not request.url.startswith("data:"):
            self.wrong.append(f"asks another host: {request.url}")

    def _said(self, message: Any) -> None:
        if message.type in {"error", "warning"}:
            self.wrong.append(f"{message.type} at {self.page.url}: {message.text}")

    def go(self, address: str, status: int = 200) -> Page:
        """Open a page of the desk."""
        answer = self.page.goto(self.home + address, wait_until="load")
        assert answer is not None
        assert answer.status == status, (address, answer.status)
        return self.page

    def links(self) -> list[str]:
        """Where this page leads to on the desk, without the desk's own address."""
        root = urlsplit(self.home).path
        found = self.page.locator("a[href]").evaluate_all("all => all.map(one => one.getAttribute('href'))")
        own = [link for link in map(str, found) if link.startswith(f"{root}/")]
        assert all(link.startswith(("/", "?", "#")) for link in map(str, found)), found
        return [link.removeprefix(root) for link in own]

    def close(self) -> None:
        """Whatever went wrong is told now."""
        self.context.close()
        assert self.wrong == []

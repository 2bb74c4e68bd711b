"""Take pictures of the desk: `python -m tests.browser.pictures OUT`; with `--overview` those of the README alone.

Light and dark, and narrow as a telephone is, each of an empty ledger, of the demonstration's, and of one with ten
thousand rows more. They are there to be looked at.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.app.discover import load
from penstock.model.clock import SystemClock
from penstock.settings.file import FILE
from tests.support.chromium import launched
from tests.support.crawl import pages, some_of_each
from tests.support.fleet import COMMAND
from tests.support.staged import fill, opened, serving, stage

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WAYS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1440, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1440, "height": 900}},
    "narrow": {"color_scheme": "light", "viewport": {"width": 420, "height": 900}},
}
ROWS = 10_000
WHOLE = 62
"""Days of the whole demonstration."""


def ledgers(folder: Path, days: int) -> Iterator[tuple[str, Path]]:
    """By name: the folder of each."""
    normal = folder / "normal"
    stage(normal, f"sqlite:///{normal / 'penstock.db'}", days)
    yield "normal", normal
    fill(normal, ROWS)
    yield "full", normal
    empty = folder / "empty"
    empty.mkdir()
    text = (normal / FILE).read_text().replace(str(normal / "penstock.db"), str(empty / "penstock.db"))
    (empty / FILE).write_text(text.replace('"secrets/', f'"{normal}/secrets/'))
    program = load(empty / FILE, environment={})
    opened(program, program.configuration.ledger_url(), SystemClock()).close()
    yield "empty", empty


def shoot(browser: Browser, home: str, links: list[str], out: Path, *, ways: tuple[str, ...] = tuple(WAYS)) -> None:
    """Each page in each way, named for its address."""
    for way in ways:
        context = browser.new_context(**WAYS[way])
        page = context.new_page()
        for link in links:
            page.goto(home + link, wait_until="load")
            name = re.sub(r"[^A-Za-z0-9._-]+", "-", link).strip("-")[:110] or "overview"
            page.screenshot(path=out / f"{name}-{way}.png", full_page=True)
        context.close()


def overview(browser: Browser, home: str, out: Path) -> None:
    """What the README shows: the upper part, in few colours that a small file can keep."""
    for way in ("light", "dark"):
        context = browser.new_context(**{**WAYS[way], "viewport": {"width": 1440, "height": 1000}})
        page = context.new_page()
        page.goto(home, wait_until="load")
        page.screenshot(path=out / f"overview-{way}.png", animations="disabled")
        context.close()


def demonstrated(folder: Path) -> Path:
    """The folder of a demonstration that has run."""
    run = [*COMMAND, "demo", "--once", "--dir", str(folder / "demo")]
    subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
    return folder / "demo"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--overview", action="store_true", help="the two of the README alone")
    parser.add_argument("--days", type=int, default=WHOLE, help="of the demonstration")
    given = parser.parse_args()
    with launched() as browser, tempfile.TemporaryDirectory() as folder:
        if given.overview:
            given.out.mkdir(parents=True, exist_ok=True)
            with serving(demonstrated(Path(folder))) as home:
                return overview(browser, f"{home}/", given.out)
        for name, one in ledgers(Path(folder), given.days):
            (given.out / name).mkdir(parents=True, exist_ok=True)
            with serving(one) as home:
                shoot(browser, home, some_of_each(pages(home)), given.out / name)
    return None


if __name__ == "__main__":
    main()

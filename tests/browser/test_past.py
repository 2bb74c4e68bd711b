"""Every page of a moment that is over: what was then, no action, and links that stay there."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from penstock.app.discover import load
from penstock.ledger.ledger import Ledger
from penstock.model.clock import instant, instant_text
from penstock.settings.file import FILE
from tests.support.crawl import fetched, pages

pytestmark = pytest.mark.timeout(300)  # the first one stages a ledger
OF_NOW = "This page shows how things stand now."
"""What a reading without a past says."""


class Told:
    """What the history tells, read by itself."""

    def __init__(self, folder: Path) -> None:
        sql = "SELECT machine, unit_id, at, to_status FROM transition_log ORDER BY seq"
        with Ledger.open(load(folder / FILE, environment={}).configuration.ledger_url()) as ledger:
            self.rows = [
                (str(machine), str(unit), instant(at), state)
                for machine, unit, at, state in ledger.read(lambda cursor: cursor.rows(sql))
            ]
        self.first, self.last = self.rows[0][2], self.rows[-1][2]

    def states(self, at: datetime) -> dict[str, dict[str, str]]:
        """By machine the state of each unit that was there."""
        found: dict[str, dict[str, str]] = {}
        for machine, unit, moment, state in self.rows:
            if moment <= at:
                found.setdefault(machine, {})[unit] = state
        return {name: {unit: state for unit, state in units.items() if state} for name, units in found.items()}


@pytest.fixture(scope="module")
def told(still_folder: Path) -> Told:
    return Told(still_folder)


@pytest.fixture(scope="module")
def moments(told: Told) -> list[datetime]:
    whole = told.last - told.first
    return [told.first + whole * 0.3 + timedelta(seconds=7), told.first + whole * 0.7]


@pytest.fixture(scope="module")
def past(still: str, moments: list[datetime]) -> Mapping[tuple[datetime, str], str]:
    """Every page that leads anywhere now, at both moments."""
    now = [link for link in pages(still) if "at=" not in link]
    assert len(now) > 80
    assert sum(link.startswith("/do/") for link in now) > 15
    found = {}
    for at in moments:
        for link in now:
            address = f"{link}{'&' if '?' in link else '?'}at={quote(instant_text(at))}"
            status, text = fetched(still + address)
            assert status == 200, (address, status, re.sub(r"<[^>]+>|\s+", " ", text)[-300:])
            found[at, link] = text
    return found


def test_no_page_of_the_past_offers_to_act(past: Mapping[tuple[datetime, str], str]):
    for (_, link), text in past.items():
        assert "<body data-live=" in text, link
        assert re.search(r"<body [^>]*data-past", text), link
        assert 'method="post"' not in text, link
        assert not [one for one in links_of(text) if one.startswith("/do/")], link
        enabled = re.findall(r"<button(?![^>]*disabled)[^>]*>([^<]*)", text)
        assert {*enabled} <= {"Slide there", "Go", "Show"}, (link, enabled)
        assert "back to now" in text, link
        if OF_NOW not in text:
            assert 'type="range"' in text, f"{link} has no time bar"


def links_of(text: str) -> Iterator[str]:
    """The links of a page beside those that lead to another moment: the time bar, and the way back to now."""
    shown = re.sub(r'<section class="panel time" aria-label="Time">.*?</section>', "", text, flags=re.DOTALL)
    shown = re.sub(r'<a class="link nowrap" href="[^"]*">back to now</a>', "", shown)
    yield from map(html.unescape, re.findall(r'href="([^"]*)"', shown))


def test_every_link_stays_in_the_past(past: Mapping[tuple[datetime, str], str]):
    for (at, link), text in past.items():
        moment = f"at={quote(instant_text(at), safe='')}"
        lost = [one for one in links_of(text) if not one.startswith(("#", "/static/")) and moment not in one]
        assert not lost, (link, lost[:5])
        for form in re.findall(r"<form[^>]*>(.*?)</form>", text, re.DOTALL):
            assert 'name="at"' in form, (link, form[:200])


def test_no_page_knows_units_that_were_not_there_yet(past: Mapping[tuple[datetime, str], str], told: Told):
    looked_at = 0
    for (at, link), text in past.items():
        if OF_NOW in text:
            continue
        there = told.states(at)
        for one in links_of(text):
            found = re.match(r"/units/([^/]+)/([^?]+)", one)
            if found is not None:
                looked_at += 1
                assert unquote(found[2]) in {unquote(unit) for unit in there.get(found[1], {})}, (link, one)
    assert looked_at > 100


def test_counts_are_those_of_the_history(past: Mapping[tuple[datetime, str], str], told: Told):
    counted = set()
    for (at, link), text in past.items():
        if link.startswith("/machines/") and "?" not in link:
            machine = link.removeprefix("/machines/")
            states = list(told.states(at).get(machine, {}).values())
            assert f"<b>{len(states):,}</b> unit{'s' if len(states) != 1 else ''}<" in text, (link, at)
            tabs = text.partition('<nav class="tabs"')[2].partition("</nav>")[0]
            shown = dict(re.findall(r"</span>(\S+) ([\d,]+)</a>", tabs))
            assert shown == {state: f"{states.count(state):,}" for state in {*states}}, (link, at)
            counted.add((machine, len(states)))
    assert len({machine for machine, _ in counted}) > 10
    assert len(counted) > len({machine for machine, _ in counted}), "at both moments the same: that proves nothing"


def test_the_overview_tells_how_many_there_were(past: Mapping[tuple[datetime, str], str], told: Told):
    seen = set()
    for (at, link), text in past.items():
        if link == "/":
            machines = told.states(at)
            total = sum(len(units) for units in machines.values())
            assert f"<p>{total:,} units in " in text
            seen.add(total)
    assert len(seen) == 2

"""Every page in a real browser: wide and narrow, light and dark, with and without JavaScript, now and in the past."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Opens
from tests.support.chromium import Person
from tests.support.crawl import fetched, kind_of, pages, some_of_each
from tests.support.staged import LONG, RTL

pytestmark = pytest.mark.timeout(300)  # the first one stages a ledger, and follows every link
NARROW = 420
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
ENABLED = '.column a[href*="/do/"], .column form[method=post] button:not([disabled])'


@pytest.fixture(scope="package")
def found(still: str) -> Mapping[str, str]:
    """One page of each kind, as the server sends it."""
    return pages(still)


def samples(found: Mapping[str, str]) -> list[str]:
    """One page of each template, and of each lifecycle: for what is the same on all of one kind."""
    first: dict[str, str] = {}
    for link in found:
        top = urlsplit(link).path.split("/")[1]
        first.setdefault(link if top == "lifecycles" else top, link)
    return [*first.values(), "/read/partitions", "/read/alerts", "/read/gates", "/machines/rule_target"]


def test_the_crawl_finds_all_there_is(found: Mapping[str, str]):
    tops = {urlsplit(link).path.split("/")[1] for link in found}
    assert {"", "read", "do", "machines", "units", "lifecycles"} <= tops
    machines = {link.split("/")[2].partition("?")[0] for link in found if link.startswith("/machines/")}
    assert {"report", "partition", "harvest_run", "query", "rule_run", "rule_target", "invoice", "alert"} <= machines
    assert len(found) > 100


def test_views_are_the_same_on_postgresql(acting: str, opens: Opens):
    """Now and in the past, where there is little room."""
    person = opens(acting, width=NARROW)
    links = samples(pages(acting, most=60))
    assert len(links) > 15
    for link in links:
        for address in (link, f"{link}{'&' if '?' in link else '?'}at=2026-01-01%2000:00"):
            status, _ = fetched(acting + address)
            assert status == 200 or (status, link.startswith("/units/")) == (404, True), address
            page = person.go(address, status)
            assert page.locator("h1").count() == 1, address
            assert page.evaluate(OVERFLOW) <= 0, address
    person.wrong = [one for one in person.wrong if "404" not in one]  # a unit that was not there yet


@pytest.mark.parametrize("width", [NARROW, 1280])
def test_long_text_stays_in_its_place(width: int, still: str, opens: Opens):
    """A name or a reason without a place to break it at."""
    person = opens(still, width=width)
    unit = f"/units/invoice/hostile/{LONG}"
    for link in ("/", unit, "/read/gates", "/read/units?machine=invoice&status=QUEUED", "/read/needs"):
        page = person.go(link)
        expect(page.locator("main")).to_contain_text(LONG[:80])
        assert page.evaluate(OVERFLOW) <= 0, link
        assert page.evaluate(OUTSIDE) == [], link


SIDEWAYS = """() => [...document.querySelectorAll(".panel > .body")]
  .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent.trim().slice(0, 80))"""
LAID_OVER = """() => [...document.querySelectorAll("td[data-name]")].filter((one) => one.checkVisibility())
  .filter((one) => one.scrollHeight > one.clientHeight + 1).map((one) => one.dataset.name)"""


def test_tables_have_room_for_what_they_show(found: Mapping[str, str], still: str, opens: Opens):
    """On a small desk no table is wider than its panel; on a telephone no name is taller than its cell."""
    wide, narrow = opens(still), opens(still, width=NARROW)
    links = [
        link for link in found if "<table" in found[link] and link.split("/")[1] in {"", "machines", "read", "units"}
    ]
    assert len(links) > 40
    for link in some_of_each(links):
        assert wide.go(link).evaluate(SIDEWAYS) == [], link
        assert narrow.go(link).evaluate(LAID_OVER) == [], link


OUTSIDE = """() => [...document.querySelectorAll("main :is(p, h1, h3, code, td, dd, a, span)")]
  .filter((one) => one.checkVisibility() && !one.closest("svg, .portrait, .diagram") && !one.matches(".doors *, .skip"))
  .filter((one) => one.getBoundingClientRect().right > one.closest("main").getBoundingClientRect().right + 1)
  .map((one) => one.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize("links", [some_of_each, pytest.param(list, marks=pytest.mark.nightly)])
def test_every_view_renders_where_there_is_little_room(links: Any, found: Mapping[str, str], still: str, opens: Opens):
    person = opens(still, width=NARROW)
    wide = []
    for link in links(found):
        page = person.go(link)
        assert page.locator("h1").count() == 1, link
        if page.evaluate(OVERFLOW) > 0:
            wide.append(link)
    assert wide == []


CUT = """() => [...document.querySelectorAll(".portrait")]
  .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent.slice(0, 80))"""


def test_pictures_fit_where_there_is_little_room(found: Mapping[str, str], still: str, opens: Opens):
    """Each is drawn for a page and for a card, and one of them is seen."""
    narrow, wide = opens(still, width=NARROW), opens(still)
    links = [link for link, text in found.items() if "at=" not in link and '<figure class="portrait">' in text]
    assert len(links) > 8
    for link in links:
        for person, shown in ((narrow, "slim"), (wide, "broad")):
            page = person.go(link)
            assert page.locator(".portrait svg:visible").count() == page.locator(f".portrait .{shown} svg").count() > 0
            assert page.evaluate(CUT) == [], (link, shown)


def test_a_walk_without_javascript(found: Mapping[str, str], still: str, opens: Opens):
    person = opens(still, java_script_enabled=False)
    for link in samples(found):
        page = person.go(link)
        expect(page.locator("h1")).to_be_visible()
        expect(page.locator("nav.side a", has_text="Overview")).to_be_visible()
    page = person.go("/")
    page.locator("input[name=q]").fill("invoice")
    page.locator("input[name=q]").press("Enter")
    expect(page).to_have_url(re.compile("invoice"))
    page = person.go("/do/gates/pause")
    page.locator("[name=gate]").fill("demo/held")
    page.locator("[name=reason]").fill("to look only")
    page.get_by_role("button", name="Show what would be done").click()
    expect(page.get_by_role("heading", name="What would be done")).to_be_visible()


def test_the_past_is_shown_and_nothing_can_be_done_in_it(found: Mapping[str, str], still: str, opens: Opens):
    person = opens(still)
    now = counts(person.go("/machines/invoice"))
    moment = "2020-01-01 00:00"
    assert counts(person.go(f"/machines/invoice?at={moment}")) != now
    for link in samples(found):
        address = link + ("&" if "?" in link else "?") + f"at={moment.replace(' ', '%20')}"
        if "at=" in link:
            continue
        status, text = fetched(still + address)
        if status == 404 and link.startswith("/units/"):
            continue  # it was not there yet
        page = person.go(address, status)
        expect(page.locator(".top .pill", has_text="the past")).to_be_visible()
        if link.split("/")[1] in {"", "machines", "units", "lifecycles"}:
            expect(page.locator("#at")).to_have_value(moment)
        assert page.locator(ENABLED).count() == 0, address
        assert "live-dot" not in text, address


def counts(page: Page) -> str:
    return page.locator(".facts").first.inner_text()


def test_hostile_text_is_inert(found: Mapping[str, str], still: str, opens: Opens):
    person = opens(still)
    shown = [link for link, text in found.items() if "document.title=" in text]
    (status, text) = fetched(f"{still}/read/units?machine=invoice&status=QUEUED")
    links = re.findall(r'href="(/units/invoice/hostile[^"]*)"', text)
    assert (status, len(links) > 0) == (200, True)
    for link in [*shown, "/read/gates?gate=demo/held", "/read/units?machine=invoice&status=QUEUED", links[0]]:
        page = person.go(link)
        expect(page).to_have_title(re.compile("Penstock"))
        assert page.locator("main img, main script").count() == 0, link
        assert not re.search("[\x00-\x08\x1b\u202a-\u202e\u2066-\u2069]", page.content()), link
    expect(person.go(links[0]).locator("h1")).to_contain_text("<script>")
    assert RTL not in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_told_from_its_ground(scheme: str, found: Mapping[str, str], still: str, opens: Opens):
    """At least 4.5 to 1, and a shape beside every colour."""
    person = opens(still, color_scheme=scheme)
    for link in samples(found):
        page = person.go(link)
        pale = page.evaluate(CONTRAST)
        assert pale == [], (scheme, link)
        assert page.locator(".pill:not(:has(.mark))").count() == 0, link


CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const over = (top, under) => top.slice(0, 3).map((one, i) => one * top[3] / 255 + under[i] * (1 - top[3] / 255));
  const ground = (node) => {
    const layers = [];
    for (let one = node; one; one = one.parentElement) layers.push(rgba(getComputedStyle(one).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const light = (colour) => {
    const linear = (one) => one <= .04045 ? one / 12.92 : ((one + .055) / 1.055) ** 2.4;
    const [r, g, b] = colour.map((one) => linear(one / 255));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const pale = new Set();
  for (const node of document.querySelectorAll("body *")) {
    const text = [...node.childNodes].some((one) => one.nodeType === 3 && one.textContent.trim());
    if (!text || node.closest("svg, option") || !node.checkVisibility()) continue;
    const under = ground(node), top = over(rgba(getComputedStyle(node).color), under);
    const [low, high] = [light(under), light(top)].sort((a, b) => a - b), ratio = (high + .05) / (low + .05);
    const name = `${node.localName}.${node.className} ${node.textContent.trim().slice(0, 30)}`;
    if (ratio < 4.5) pale.add(`${name}: ${ratio.toFixed(2)}`);
  }
  return [...pale];
}"""


def test_the_first_page_is_small(still: str, opens: Opens):
    """With its style, as a browser gets it: of this ledger, not of an empty one."""
    person = opens(still)
    answers: list[Any] = []

    def keep(one: Any) -> None:
        answers.append(one)

    person.page.on("response", keep)
    person.go("/")
    kept = {urlsplit(one.url).path: one for one in answers if "live" not in one.url and "icon" not in one.url}
    assert kept.keys() == {"/", "/static/desk.css", "/static/desk.js"}
    assert {one.headers.get("content-encoding") for one in kept.values()} == {"gzip"}
    assert sum(one.request.sizes()["responseBodySize"] for one in kept.values()) < 30 * 1024


def test_below_a_path_all_links_stay_below_it(prefixed: str, tokens: Mapping[str, str], opens: Opens):
    person: Person = opens(prefixed)
    page = person.go("/", 401)
    page.locator("[name=token]").fill(tokens["operator"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator(".side .foot")).to_contain_text("operator")
    assert urlsplit(page.url).path == "/below/here/"
    found = pages(prefixed, tokens["operator"], most=25)
    for link in samples(found):
        assert len(person.go(link).locator("nav.side a").all()) > 5
        assert kind_of(link)
    expect(person.go("/").locator(".live")).to_have_text("live")
    person.wrong = [one for one in person.wrong if "401" not in one]  # the browser tells of the first page

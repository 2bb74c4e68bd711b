"""Thousands of rows: pages say how many there are, show some, and lead to the others."""

from __future__ import annotations

import html
import re
from datetime import UTC, date, datetime
from typing import Annotated, Any

import pytest

from penstock.model.machine import Actor
from penstock.operations import pictures
from penstock.operations.alerts.machine import Alert
from penstock.operations.declare import Ask, Page, Reading
from penstock.operations.fields import Parameters, Row, option
from penstock.operations.forecast import ForecastAnswer, GateAheadRow
from penstock.web.answers import PAGE
from penstock.web.forecast import busiest
from penstock.web.frame import breakable
from penstock.web.pictures import Painter
from tests.support import shop
from tests.support.web import Client, Site

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
GATES = 2 * PAGE + 50
REASON = "they asked us to call less " * 40


@pytest.fixture
def browser(shop_site: Site) -> Client:
    return shop_site.browser()


def rows(text: str) -> int:
    """In the first table."""
    return text.partition("<tbody>")[2].partition("</tbody>")[0].count("<tr>")


def button(text: str, name: str) -> str | None:
    found = re.search(rf'<a class="button" href="([^"]*)">{name}</a>', text)
    return None if found is None else html.unescape(found[1])


def test_a_long_answer_is_shown_in_pages(shop_site: Site, browser: Client):
    for number in range(GATES):
        shop_site.ledger.gates.pause(f"many/{number:04}", "operator:ana", REASON)
    link, seen = "/read/gates?gate=many", list[str]()
    for page in range(3):
        text = browser.get(link).text
        shown = GATES - 2 * PAGE if page == 2 else PAGE
        assert rows(text) == shown
        assert f"Rows {page * PAGE + 1} to {page * PAGE + shown} of {GATES}." in text
        assert (button(text, "From the beginning") is None) == (page == 0)
        seen += re.findall(r">many/(\d{4})<", text)
        following = button(text, "More")
        assert (following is None) == (page == 2)
        link = f"/read/gates{following}"
    assert len(set(seen)) == GATES
    assert "skip" not in re.search(r'"A name" = "([^"]*)"', text)[1]  # type: ignore[index]
    status = browser.get("/read/status").text
    assert f"Rows 1 to {PAGE} of {GATES}; the command below shows all of them." in status
    assert status.count(">many/") == PAGE
    assert "<h2>Gates</h2>" in status
    assert f"{GATES} closed" in browser.get("/").text


@pytest.mark.parametrize(("skip", "said"), [("x", 2), ("-1", 2), ("", 2), ("9" * 30, 2), ("5000", 0)])
def test_what_cannot_be_skipped_is_not(skip: str, said: int, still_site: Site):
    answer = still_site.browser().get(f"/read/dead?skip={skip}")
    assert answer.status == 200
    assert (len(re.findall("order:acme/", answer.text)) > 0) == (said > 0)
    assert (button(answer.text, "From the beginning") is not None) == (said == 0)


def test_a_page_with_a_cursor_leads_back_to_the_first(still_site: Site):
    browser = still_site.browser()
    first = browser.get("/read/units?machine=order&limit=2").text
    assert button(first, "From the beginning") is None
    second = browser.get(f"/read/units{button(first, 'More')}").text
    assert button(second, "From the beginning") == "?machine=order&limit=2"


def test_a_machine_says_how_many_of_its_units_are_shown(shop_site: Site, browser: Client):
    assert "by name</span>" not in browser.get("/machines/order").text
    made = [shop.Order(shop="many", number=n, day=date(2026, 11, 18)) for n in range(1_500)]
    shop_site.ledger.birth(made, actor=Actor.API, who="test")
    text = browser.get("/machines/order").text
    total = re.search(r"the first 25 of (1,5\d\d), by name", text)
    assert total is not None
    assert f"<b>{total[1]}</b> units" in text
    assert "There may be more of order" not in browser.get("/read/find?text=many/1499").text
    assert "There may be more of order: a longer piece finds fewer" in browser.get("/read/find?text=many").text
    assert "All of them" not in browser.get("/machines/bulk_action").text


def test_every_alert_that_fires_is_counted(shop_site: Site, browser: Client):
    now = shop_site.clock.now()
    shop_site.ledger.birth(
        [
            Alert(policy="stale_flow", subject=f"{n}", severity="warning", says=f"{n} rests", since=now)
            for n in range(1_100)
        ],
        actor=Actor.WORKER,
        who="watch",
    )
    text = browser.get("/").text
    assert "<h1>1,101 things need you." in text  # and the lost orders
    told = re.search(rf"Rows 1 to {PAGE} of (1,1\d\d)\. 1,101 need a person", browser.get("/read/needs").text)
    assert told is not None
    assert f">{int(told[1].replace(',', '')) - 8:,} more</a>" in text


class Series(Row, frozen=True):
    name: str
    first: date
    days: list[shop.S]


def test_a_picture_says_what_it_leaves_out_and_stays_small(still_site: Site):
    of = pictures.Calendar(says="s", reading=shop.orders, series="name", first="first", days="days", leads=shop.orders)
    painter = Painter(still_site.frame(), NOW)

    def drawn(series: int, days: int, *, wide: bool = True) -> str:
        found = [Series(name=f"n/{n}", first=date(2026, 1, 1), days=[shop.S.SENT] * days) for n in range(series)]
        made = painter.draw(shop.lifecycle, of, Page(rows=found, next="n/99"), wide=wide)
        assert made is not None
        return made

    few = drawn(3, 30)
    assert "figcaption" not in few
    assert few.count("<a ") == 90  # those of the wide one: the small one is too small to be hit
    assert "The first 60 of 70." in drawn(70, 10)
    assert "The first 5 of 70." in drawn(70, 10, wide=False)
    many = drawn(60, 366)
    assert "<a " not in many
    assert len(many) < 60 * 366 * 2 * 110


def test_of_many_gates_those_that_are_asked_are_forecast():
    def answer(gates: int, calls: int) -> ForecastAnswer:
        unknown: dict[str, Any] = {
            "opens": None,
            "budget": None,
            "starves": None,
            "put_off": 0,
            "held": True,
            "hours": [],
        }
        made = [GateAheadRow(gate=f"g/{n}", calls=max(0, n - gates + calls + 1), **unknown) for n in range(gates)]
        return ForecastAnswer(start=NOW, end=NOW, total=0, notes=[], gates=made, coming=[])

    assert len(busiest(answer(50, 3))) == 50
    assert [one.gate for one in busiest(answer(2_000, 3))] == ["g/1999", "g/1998", "g/1997"]
    assert len(busiest(answer(2_000, 0))) == 50


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("extraction:google_ads/1111111111/campaign_daily/2026-10-20", 5),
        ("8d11ef2f-901c-41ba-b5cd-1ba00ac8161b", 5),
        ("harvest.watermark_advanced", 1),
        ("published:diamonds:2026-09-18T00:00:00.000Z", 4),
        ("long" * 60, 10),
        ("short words stay as they are", 0),
    ],
)
def test_long_words_break_at_few_places(text: str, pieces: int):
    shown = str(breakable(text))
    assert re.sub("<[^>]*>", "", shown) == text
    assert shown.count("<wbr>") == max(0, pieces - 1)
    assert ('class="whole"' in shown) == (pieces > 0)
    assert max(map(len, re.split(r"<[^>]*>| ", shown))) <= 26


class Wanted(Parameters, frozen=True):
    limit: Annotated[int, option("How many.")] = 50


def endless(_: Ask[shop.ShopSettings], wanted: Wanted) -> Page[Series]:
    """As many as are asked for, and always more; the name of the last tells how many."""
    found = [Series(name=f"n/{n + 1}", first=date(2026, 1, 1), days=[shop.S.SENT]) for n in range(wanted.limit)]
    return Page(rows=found, next=found[-1].name)


@pytest.mark.parametrize(("wide", "room"), [(True, 25), (False, 5)])
def test_a_picture_asks_for_what_there_is_room_for(wide: bool, room: int, still_site: Site):
    """What its reading has besides is told of, on a card too."""
    reading: Reading[Any] = Reading("endless", "Without end.", endless)
    of = pictures.Calendar(says="s", reading=reading, series="name", first="first", days="days")
    drawn = Painter(still_site.frame(), NOW).ask(shop.lifecycle, of, "ana", wide=wide)
    assert drawn is not None
    assert f">{room}</text>" in drawn
    assert f">{room + 1}</text>" not in drawn
    assert f"<figcaption>The first {room}.</figcaption>" in drawn

"""Pictures: what lifecycles declare can be drawn, and nothing is told by colour alone."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

import pytest

from penstock.app.kernel import lifecycle as kernel
from penstock.app.lifecycle import Lifecycle, NoSettings
from penstock.app.shipped import SHIPPED, shipped
from penstock.lifecycles.queries.machine import S
from penstock.lifecycles.queries.readings import QueryRow
from penstock.model.errors import UsageError
from penstock.operations import pictures
from penstock.operations.declare import Page
from penstock.operations.fields import Row, fields_of
from penstock.web.pictures import Painter, parameters_at
from penstock.web.svg import portraits
from penstock.web.svg.charts import Bar
from tests.support import shop
from tests.support.web import Client, Site

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
PARTS = [("applied", 399.0, "done"), ("failed", 1.0, "fault")]
HOSTILE = '<script>alert(1)</script>"&'


def rows_of(reading) -> set[str]:
    """The fields of a row of its answer."""
    answer = reading.answer
    row = getattr(answer, "__args__", (answer,))[0]
    return {one.attribute for one in fields_of(row)}


@pytest.mark.parametrize("name", [*SHIPPED, "kernel"])
def test_every_picture_draws_fields_that_its_reading_has(name: str):
    lifecycle = kernel if name == "kernel" else shipped(name)
    assert lifecycle.pictures, "a flow has a picture of its own"
    for picture in lifecycle.pictures:
        assert set(picture.names()) <= rows_of(picture.reading), picture.says


def test_rings_and_windows_of_the_past_are_those_of_its_moment(still_site: Site):
    """One that began a day before is drawn as it was then, and when it was to come next nobody knows any more."""
    queries = shipped("queries")
    cycle, windows = queries.pictures
    at = NOW - timedelta(days=3)
    wanted = parameters_at(cycle.reading, at)
    assert wanted is not None
    assert wanted.at == at
    row = QueryRow(
        query="python", client="jobs", state=S.RUNNING, last_run=at - timedelta(minutes=1), last_success=None,
        failures=0, next_run=None, how_far=None, waits=None, key="jobs-1", configured=True, seeded_back_to="2026-11-01",
        covered_through=at - timedelta(days=1), seeding=False,
    )  # fmt: skip
    then, now = (Painter(still_site.frame(), NOW, moment) for moment in (at, None))
    ring, ring_now = (str(one.draw(queries, cycle, Page(rows=[row]), wide=False)) for one in (then, now))
    assert "python is RUNNING; next not known any more" in ring
    assert ">?</text>" in ring
    assert ">0%<" not in ring
    assert "python is RUNNING; next not known yet" in ring_now
    span, span_now = (str(one.draw(queries, windows, Page(rows=[row]), wide=False)) for one in (then, now))
    assert "python: 2026-11-01 to 2026-11-14 12:00" in span
    assert span != span_now, "the right end is the moment"


def test_a_picture_of_a_reading_that_is_not_there_is_refused():
    picture = shop.lifecycle.pictures[0]
    with pytest.raises(UsageError, match="shows 'orders', which is none of its readings"):
        Lifecycle("empty", "Nothing.", settings=NoSettings, pictures=[picture])


def test_each_meaning_has_a_shape_of_its_own():
    def shape(meaning: str) -> str:
        drawn = portraits.calendar([portraits.Line("acme", [Bar(1.0, "", None, meaning)])], date(2026, 11, 1), "days")
        return drawn.replace(f"is-{meaning}", "")

    assert len({shape(meaning) for meaning in ("done", "rest", "work", "hold", "fault")}) == 5


def test_names_from_outside_are_inert_and_shares_fit_their_bar():
    share = portraits.Share(HOSTILE, 400.0, PARTS, "399 of 400", "says")
    drawn = portraits.shares([share], HOSTILE)
    assert "<script>" not in drawn
    boxes = [(float(x), float(w)) for x, w in re.findall(r'class="is-\w+" x="([\d.]+)" y="2" width="([\d.]+)"', drawn)]
    assert len(boxes) == 2
    left, long = map(float, re.findall(r'class="soft" x="([\d.]+)" y="3" width="([\d.]+)"', drawn)[0])
    assert boxes[0][0] + boxes[0][1] <= boxes[1][0]
    assert boxes[1][0] + boxes[1][1] <= left + long + 0.2


def test_rings_and_windows_say_how_far():
    ring = portraits.Ring("python", 0.25, "done", "python", "in 3 h")
    assert ">25%<" in portraits.rings([ring], "cycle")
    span = portraits.Span("python", NOW - timedelta(days=10), NOW - timedelta(days=5), "done", "five days")
    drawn = portraits.windows([span], NOW, "read")
    ((x, wide),) = re.findall(r'class="is-done" x="([\d.]+)" y="3" width="([\d.]+)"', drawn)
    assert float(wide) == pytest.approx((340 - float(x)) / 2, abs=0.2)


def test_a_ladder_sums_the_rows_of_a_step(still_site: Site):
    class Step(Row, frozen=True):
        age: str
        kind: str
        changed: int
        compared: int

    of = pictures.Ladder(says="s", reading=shop.orders, group="kind", step="age", part="changed", whole="compared")
    answer = Page(
        rows=[Step(age="1d", kind="a", changed=1, compared=2), Step(age="1d", kind="a", changed=0, compared=2)]
    )
    drawn = Painter(still_site.frame(), NOW).draw(shop.lifecycle, of, answer, wide=False)
    assert drawn is not None
    assert "25%" in drawn


def test_what_nobody_knows_any_more_is_not_drawn_as_nothing(still_site: Site):
    class Part(Row, frozen=True):
        name: str
        status: str
        at: datetime
        of: int | None
        done: int | None

    rows = [
        Part(name="p-0", status="fetching", at=NOW, of=9, done=None),
        Part(name="p-1", status="x", at=NOW, of=9, done=0),
    ]
    painter = Painter(still_site.frame(), NOW, NOW)
    shares = pictures.Shares(says="s", reading=shop.orders, name="name", whole="of", parts={"done": "done"})
    drawn = painter.draw(shop.lifecycle, shares, Page(rows=rows), wide=False)
    assert drawn is not None
    assert re.findall(r">([?\d] of 9)<", drawn) == ["? of 9", "0 of 9"]
    runs = pictures.Runs(says="s", reading=shop.orders, at="at", amount="done", note="name", state="status")
    drawn = painter.draw(shop.lifecycle, runs, Page(rows=rows), wide=False)
    assert drawn is not None
    assert re.findall(r">([?\d]) p-\d, \w+<", drawn) == ["?", "0"]


def test_the_overview_has_a_card_with_the_picture_of_each_flow(still_browser: Client):
    text = still_browser.get("/").text
    assert "Orders, in pieces." in text
    assert text.count('<article class="flow panel">') == 1  # the kernel has no units here
    page = still_browser.get("/lifecycles/shop").text
    assert 'figure class="portrait"' in page
    assert "order:acme/1" in page


def test_a_picture_that_knows_no_past_gives_way_to_what_moved(still_browser: Client):
    text = still_browser.get("/?at=2026-01-01").text
    assert "Orders, in pieces." not in text


def test_the_page_of_a_reading_has_its_picture(still_browser: Client):
    assert "Orders, in pieces." in still_browser.get("/read/shop/orders").text


@pytest.fixture(scope="module")
def still_browser(still_site: Site) -> Client:
    return still_site.browser()

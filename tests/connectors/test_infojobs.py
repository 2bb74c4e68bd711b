"""InfoJobs' client against the simulator: spans by a clock that may be wrong, pages that overlap, and bad answers."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.connectors.infojobs.parameters import check
from penstock.connectors.infojobs.wire import read_offer
from penstock.connectors.searches import OFFER_COLUMNS, Bad, Item, Wanted
from penstock.model.errors import Fatal, Rejected, Throttled, Transient
from penstock.simulators.infojobs import HTML, Fault, throttle
from penstock.simulators.infojobs_data import DEFECTS, Filter
from tests.support.infojobs import NOW, PYTHON, Both, bad, on
from tests.support.reading import read

DAY = timedelta(days=1)


def listed(both: Both, q: str = "python", since: datetime | None = None) -> set[str]:
    """What the list shows now, by the word of the simulator."""
    now = both.clock.now()
    seen = both.simulator.offers_of({"q": q}, now, now + timedelta(seconds=1))
    return {one.id for one in seen if since is None or max(updated for _, _, updated in one.spans) >= since}


RECORD: dict[str, Any] = {
    "id": "2f1",
    "title": " Desarrollador/a Python ",
    "province": {"id": 33, "value": "Madrid"},
    "city": "Alcalá de Henares",
    "link": "https://www.infojobs.example/2f1",
    "category": {"id": 150, "value": "Informática"},
    "contractType": {"id": 1, "value": "Indefinido"},
    "salaryMin": {"id": 9, "value": "24.000 €"},
    "salaryMax": {"id": 10, "value": "1.250,50 €"},
    "salaryPeriod": {"id": 3, "value": "Bruto/año"},
    "published": "2026-05-09T14:04:02.000Z",
    "updated": "2026-05-10T14:04:02.123+0200",
    "author": {"id": "77", "name": "Núñez, S.L."},
    "requirementMin": "Dos años",
    "bold": True,
    "applications": "17",
}


def test_an_offer_is_read_field_by_field():
    item = read_offer(RECORD)
    assert isinstance(item, Item)
    assert (item.id, item.at) == ("2f1", datetime(2026, 5, 10, 12, 4, 2, 123_000, UTC))
    assert dict(zip(OFFER_COLUMNS, item.values, strict=True)) == {
        "title": "Desarrollador/a Python",
        "company": "Núñez, S.L.",
        "company_ref": "77",
        "city": "Alcalá de Henares",
        "province": "Madrid",
        "country": None,
        "url": "https://www.infojobs.example/2f1",
        "category": "Informática",
        "contract_type": "Indefinido",
        "salary_min": 24_000.0,
        "salary_max": 1_250.5,
        "salary_period": "Bruto/año",
        "description": "Dos años",
        "published_at": datetime(2026, 5, 9, 14, 4, 2, tzinfo=UTC),
    }
    assert json.loads(item.payload) == RECORD


def test_what_changes_with_every_look_is_no_change():
    again = {**RECORD, "applications": "18", "bold": False, "updated": "2026-05-11T14:04:02.000Z"}
    first, second = read_offer(RECORD), read_offer(again)
    assert isinstance(first, Item)
    assert isinstance(second, Item)
    assert first.values == second.values
    assert first.at < second.at


@pytest.mark.parametrize(
    ("change", "reason", "knows"),
    [
        ({"id": None}, "it has no id", (None, True)),
        ({"id": ""}, "it has no id", (None, True)),
        ({"id": {"a": 1}}, "its id cannot be used: {'a': 1}", (None, True)),
        ({"id": "x" * 300}, "its id cannot be used: ", (None, True)),
        ({"updated": None, "published": None}, "it has no date", ("2f1", False)),
        ({"updated": "hace un rato"}, "its date cannot be read: 'hace un rato'", ("2f1", False)),
        ({"updated": 1_700_000_000}, "its date cannot be read", ("2f1", False)),
        ({"updated": "0001-01-01T00:00:00+05:00"}, "its date cannot be read", ("2f1", False)),
        ({"updated": "2026-05-09T14:04:02"}, "its date cannot be read", ("2f1", False)),
        ({"title": None}, "it has no title", ("2f1", True)),
        ({"title": " \x00"[:1]}, "it has no title", ("2f1", True)),
        ({"more": "x" * 300_000}, "it is longer than 262,144 characters", ("2f1", True)),
    ],
)
def test_an_offer_that_cannot_be_used_says_why(change, reason, knows):
    found = read_offer({**RECORD, **change})
    assert isinstance(found, Bad)
    assert found.reason.startswith(reason)
    assert (found.id, found.at is not None) == knows
    assert len(found.payload) <= 2_000


@pytest.mark.parametrize("record", [None, 7, "offer", [RECORD]])
def test_what_is_no_object_is_no_offer(record):
    found = read_offer(record)
    assert isinstance(found, Bad)
    assert found.reason == "it is not an object"
    assert json.loads(found.payload) == record


def test_fields_of_another_kind_are_nothing_and_texts_are_bounded():
    known = {"id": 12, "title": "t" * 1_000 + "\x00", "updated": "", "author": "me"}
    item = read_offer(
        {
            **{name: ["x"] for name in RECORD},
            **known,
            "published": RECORD["published"],
            "requirementMin": "a\x00" * 30_000,
        }
    )
    assert isinstance(item, Item)
    assert (item.id, item.at.day) == ("12", 9)
    values = dict(zip(OFFER_COLUMNS, item.values, strict=True))
    assert len(values["title"]) == 500
    assert len(values["description"]) == 20_000
    assert "\x00" not in values["description"]
    assert r"\u0000" not in item.payload
    assert {values[name] for name in ("company", "city", "province", "salary_min", "salary_max", "url")} == {None}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("24.000 €", 24_000), ("24000", 24_000), ("1.250,50", 1_250.5), ("1,250.50 $", 1_250.5), ("12,5", 12.5),
        ("desde 30 000 €", 30_000), ("1.234.567", 1_234_567), (31_000, 31_000), ("-5", None), ("", None),
        ("a convenir", None), (True, None), (10**400, None), (float("nan"), None), ("9" * 40, None),
        ("1.2.3,4,5", None),
    ],
)  # fmt: skip
def test_salaries_are_numbers_where_they_can_be(written, meant):
    item = read_offer({**RECORD, "salaryMin": {"value": written}})
    assert isinstance(item, Item)
    assert item.values[OFFER_COLUMNS.index("salary_min")] == meant


def test_parameters_go_as_they_are_and_lists_are_repeated(tmp_path):
    async def test(both: Both) -> None:
        parameters = {"q": 'Python AND "Big Data" ñ&=', "province": ["Madrid", 9], "teleworking": True, "new": 1.5}
        await both.client.page(parameters, Wanted())
        assert list(both.simulator.requests[-1].parameters) == [
            ("q", 'Python AND "Big Data" ñ&='),
            *(("province", "Madrid"), ("province", "9"), ("teleworking", "true"), ("new", "1.5")),
            *(("order", "updated-desc"), ("sinceDate", "ANY"), ("page", "1"), ("maxResults", "50")),
        ]

    on(tmp_path, test)


def test_parameters_that_cannot_be_sent_are_named(tmp_path):
    assert check({"q": "python", "province": ["Madrid"]}) == []
    assert check({"page": 2})[0].startswith("'page' cannot be a parameter of a query")
    wrong = {"maxResults": 1, "order": "x", "SinceDate": "ANY", "a": None, "b": {}, "c": [], "d": [[1]], "e": "\ud800"}
    assert [fault.split("'")[1] for fault in check(wrong)] == list(wrong)

    async def test(both: Both) -> None:
        with pytest.raises(Rejected, match="'sinceDate' cannot be a parameter"):
            await both.client.page({"sinceDate": "ANY"}, Wanted())
        assert not both.simulator.requests

    on(tmp_path, test)


@pytest.mark.parametrize("key", ["items", "offers"])
@pytest.mark.parametrize("page_size", [10, 50])
def test_a_list_is_read_whole_in_its_order(tmp_path, key, page_size):
    async def test(both: Both) -> None:
        first = await both.page()
        assert first.total == len(listed(both)) > 100
        ats = [item.at for item in first.records if isinstance(item, Item)]
        assert ats == sorted(ats, reverse=True)
        assert len(ats) == page_size
        assert set(await both.everything()) == listed(both)

    on(tmp_path, test, list_key=key, page_size=page_size)


@pytest.mark.parametrize(
    ("wrong_by", "tells_date"),
    [
        *((days * DAY, True) for days in (0, 3, -3, 400, -400)),
        # Where the server does not tell its time, this machine's clock may be ahead, or behind by less than a day.
        *((0 * DAY, False), (3 * DAY, False), (400 * DAY, False), (timedelta(hours=-22), False)),
    ],
)
def test_a_wrong_clock_loses_nothing(tmp_path, wrong_by, tells_date):
    async def test(both: Both) -> None:
        for hours in (3, 23, 24 * 5, 24 * 7 - 1, 24 * 14, 24 * 40):
            since = NOW - timedelta(hours=hours)
            assert listed(both, since=since) <= set(await both.everything(since)), hours
        assert "_24_HOURS" in both.spans or wrong_by > DAY or not tells_date

    on(tmp_path, test, wrong_by=wrong_by, tells_date=tells_date)


def test_the_smallest_span_that_covers_is_asked_for(tmp_path):
    async def test(both: Both) -> None:
        hours = {1: "_24_HOURS", 21: "_24_HOURS", 23: "_7_DAYS", 165: "_7_DAYS", 167: "_15_DAYS", 359: "ANY"}
        for ago in hours:
            await both.page(since=both.clock.now() - timedelta(hours=ago))
        await both.page()
        assert both.spans == [*hours.values(), "ANY"]

    on(tmp_path, test)


def test_a_span_that_turns_out_too_short_is_asked_for_again_once(tmp_path):
    async def test(both: Both) -> None:
        since = NOW - timedelta(days=9)
        await both.page(since=since)
        assert both.spans == ["_24_HOURS", "_15_DAYS"], "the clock here is ten days behind"
        both.advance(3_600)
        await both.page(since=since)
        assert both.spans[2:] == ["_15_DAYS"], "the server's time is remembered"

    on(tmp_path, test, wrong_by=-10 * DAY)


def test_a_date_that_lies_behind_does_not_shorten_the_span(tmp_path):
    """What stands between may write the header `Date`: the list goes back by another clock."""

    async def test(both: Both) -> None:
        since = NOW - timedelta(days=9)
        assert listed(both, since=since) <= set(await both.everything(since))

    on(tmp_path, test, date_off=-40 * DAY)


def test_without_the_servers_time_the_margin_is_a_day(tmp_path):
    async def test(both: Both) -> None:
        await both.page(since=NOW - timedelta(hours=12))
        assert both.spans == ["_24_HOURS", "_7_DAYS"]

    on(tmp_path, test, tells_date=False)


@pytest.mark.parametrize("seed", range(3))
def test_a_list_that_changes_while_it_is_read_is_read_without_a_hole(tmp_path, seed):
    """As a reader does it: a page that does not begin with what the last one ended with is asked for from before."""

    async def test(both: Both) -> None:
        begun = both.clock.now()
        found: set[str] = set()
        place, batch = 0, await both.page(q="camarero")
        while not batch.last:
            items = [item.id for item in batch.records if isinstance(item, Item)]
            known = place == 0 or any(one in found for one in items[: place - batch.place])
            found.update(items)
            place = batch.place + len(items) if known else max(0, place - 25)
            both.advance(3 * 3_600)
            batch = await both.page(place, q="camarero")
        found.update(item.id for item in batch.records if isinstance(item, Item))
        ended = both.clock.now()
        seen = both.simulator.offers_of({"q": "camarero"}, begun, ended)
        # What is bumped meanwhile goes to the top, where the next reading finds it.
        always = {one.id for one in seen if any(start <= begun and end > ended for start, end, _ in one.spans)}
        assert len(always) > 300
        assert len({one.id for one in seen} - always) > 50
        assert always <= found

    on(tmp_path, test, market={"seed": seed})


@pytest.mark.parametrize("removed", [0, 1, 3, 7, 8, 30])
def test_removed_offers_are_noticed_by_the_overlap(tmp_path, removed):
    async def test(both: Both) -> None:
        first = await both.page(q="camarero")
        second = await both.page(50, q="camarero")
        place = second.place + len(second.records)
        before = [one.id for batch in (first, second) for one in batch.records]
        assert both.simulator.market is not None
        del both.simulator.market._lists[Filter.of("camarero")][:removed]
        third = await both.page(place, q="camarero")
        overlap = [one.id for one in third.records][: place - third.place]
        still = [one for one in overlap if one in before]
        assert len(still) == max(0, place - third.place - removed)
        assert overlap != before[-len(overlap) :] or removed == 0

    on(tmp_path, test)


def test_every_page_after_the_first_overlaps(tmp_path):
    async def test(both: Both) -> None:
        place = 0
        while True:
            batch = await both.page(place, q="camarero")
            assert batch.place < place or place == 0
            assert batch.place + len(batch.records) > place
            place = batch.place + len(batch.records)
            if batch.last:
                break
        assert (batch.cut, place) == (False, batch.total)
        assert (await both.page(place, q="camarero")).last
        beyond = await both.page(place + 500, q="camarero")
        assert (beyond.last, beyond.cut) == (True, False)

    on(tmp_path, test)


@pytest.mark.parametrize(
    ("limits", "reach"),
    [({"most_pages": 10}, 500), ({"most_offers": 430, "most_pages": None}, 430), ({"most_pages": 1}, 50)],
)
@pytest.mark.parametrize("repeats_last", [True, False])
def test_a_list_that_is_cut_is_read_as_far_as_it_is_given(tmp_path, limits, reach, repeats_last):
    async def test(both: Both) -> None:
        place = 0
        while not (batch := await both.page(place, q="camarero")).last:
            place = batch.place + len(batch.records)
        assert batch.cut
        assert (batch.total or 0) > reach
        assert max(place, batch.place + len(batch.records)) == reach

    on(tmp_path, test, repeats_last=repeats_last, **limits)


@pytest.mark.parametrize("simulated", [{"largest_page": 20}, {"rigid": True}])
def test_pages_of_another_size_than_asked_for_are_understood(tmp_path, simulated):
    async def test(both: Both) -> None:
        assert set(await both.everything()) == listed(both)
        middle = await both.page(100)
        assert middle.place <= 100 < middle.place + len(middle.records)

    on(tmp_path, test, **simulated)

    async def resumed(both: Both) -> None:
        middle = await both.page(101)
        everything = list(await both.everything())
        ids = [item.id for item in middle.records if isinstance(item, Item)]
        assert everything[middle.place :][: len(ids)] == ids

    on(tmp_path, resumed, **simulated)


def test_without_totals_an_empty_page_is_the_last(tmp_path):
    async def test(both: Both) -> None:
        assert set(await both.everything()) == listed(both)
        nothing = await both.page(q="nobody")
        assert (list(nothing.records), nothing.last, nothing.cut) == ([], True, False)

    on(tmp_path, test, tells_totals=False)


def test_a_list_without_offers_is_the_last_page(tmp_path):
    async def test(both: Both) -> None:
        nothing = await both.page(q="nobody")
        assert (list(nothing.records), nothing.last, nothing.cut, nothing.total) == ([], True, False, 0)

    on(tmp_path, test)


def test_malformed_offers_are_told_apart_and_stop_nothing(tmp_path):
    async def test(both: Both) -> None:
        for defect in DEFECTS:
            both.simulator.faults["offers"].append(Fault(spoils=defect))
            batch = await both.page()
            assert len(bad(batch)) == 17
            assert len(batch.records) == 50
        reasons = {one.reason for _ in range(3) for one in bad(await both.page())}
        assert not reasons, "it was the answer, not the offers"

    on(tmp_path, test)


def test_broken_characters_of_one_offer_spoil_no_other(tmp_path):
    body = rb'{"items":[{"id":"a","title":"\ud83d x \u0000","updated":"2026-05-09T14:04:02Z"},{"id":"b","n":1e999}]}'

    async def test(both: Both) -> None:
        both.simulator.faults["offers"].extend([Fault(200, body), Fault(200, body.replace(b" x ", b"\xff"))])
        for title in ("\ufffd x \ufffd", "\ufffd\ufffd\ufffd"):
            first, second = (await both.page()).records
            assert isinstance(first, Item)
            assert first.values[0] == title
            assert isinstance(second, Bad)
            first.payload.encode()

    on(tmp_path, test)


@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        (throttle("7"), Throttled, "429 Too many requests"),
        (throttle(), Throttled, "429 Too many requests"),
        (Fault(500, {"error_description": "Error processing API call", "status": 500}), Transient, "500 Error proc"),
        (Fault(503, b"busy"), Transient, "503 busy"),
        (Fault(302, b"", (("location", "http://elsewhere"),)), Transient, "302"),
        (Fault(cut=True), Transient, "without a whole answer"),
        (HTML, Transient, "the answer is not JSON: <!DOCTYPE html>"),
        (Fault(200, []), Transient, "has neither 'items' nor 'offers'"),
        (Fault(200, {"items": None}), Transient, "has neither"),
        (Fault(200, b"[" * 100_000), Transient, "is not JSON"),
        (Fault(400, {"error": "202", "error_description": "Missing parameter"}), Rejected, "400 202 Missing parameter"),
        (Fault(400, {"error": "101", "error_description": "Who?"}), Fatal, "400 101 Who?"),
        (Fault(403, {"error": "102"}), Fatal, "403 102"),
        (Fault(200, {"error": "101", "error_description": "Not authenticated"}), Fatal, "200 101 Not authenticated"),
        (Fault(200, {"error": "202", "error_description": "simulated-secret"}), Rejected, r"202 \[secret\]$"),
        (Fault(200, {"error_description": "x" * 900, "status": 500}), Transient, "200 x{200}$"),
        (Fault(200, {"error_description": "slow down", "status": 429}), Throttled, "slow down"),
    ],
)
def test_what_an_error_means(tmp_path, fault, error, says):
    async def test(both: Both) -> None:
        both.simulator.faults["offers"].append(fault)
        with pytest.raises(error, match=says) as caught:
            await both.page()
        assert "simulated-secret" not in str(caught.value)
        if isinstance(caught.value, Throttled):
            assert caught.value.retry_after == (7.0 if fault.headers else None)
        assert len((await both.page()).records) == 50

    on(tmp_path, test)


def test_wrong_credentials_stop_the_account_and_say_whose(tmp_path):
    async def test(both: Both) -> None:
        with pytest.raises(Fatal, match=r"401 101 The user has not been .*; check the client id and the secret of sim"):
            await both.page()
        (tmp_path / "secret").unlink()
        with pytest.raises(Fatal, match="cannot be read"):
            await both.page()

    on(tmp_path, test, client_secret="another-secret")


def test_pages_that_repeat_for_ever_are_passed_on_as_they_are(tmp_path):
    """Whoever reads them sees that nothing is new; here no page is the last, and none leads nowhere."""

    async def test(both: Both) -> None:
        first = await both.page()
        second = await both.page(50)
        assert not second.last
        assert second.place < 50
        assert {one.id for one in second.records if isinstance(one, Item)} <= {one.id for one in first.records}

    on(tmp_path, test, repeats=True)


@pytest.mark.parametrize("offers", [60, 130, 400])
@pytest.mark.parametrize("size", [50, 20])
def test_a_first_page_for_every_page_is_noticed(tmp_path, offers, size):
    """Also where the totals say how many there are: the list ends, and most of it was never shown."""

    async def test(both: Both) -> None:
        both.simulator.every["offers", 1] = Fault(repeats=True)
        found, done = await read(both.client, PYTHON, both.clock.now())
        assert (done.repeating, len(found)) == (True, size)

    on(tmp_path, test, most_offers=offers, page_size=size)


@pytest.mark.parametrize(
    "totals", [{"totalResults": -1}, {"totalResults": "many", "totalPages": True}, {"totalPages": 0}]
)
def test_nonsense_totals_are_not_believed(tmp_path, totals):
    async def test(both: Both) -> None:
        body = {"items": [RECORD], "currentPage": "one", "pageSize": None, **totals}
        both.simulator.faults["offers"].append(Fault(200, body))
        batch = await both.page()
        assert (len(batch.records), batch.last, batch.cut) == (1, False, False)

    on(tmp_path, test)


def test_several_queries_share_a_client(tmp_path):
    async def test(both: Both) -> None:
        pages = await asyncio.gather(*(both.page(q=q) for q in ("python", "datos", "contable")))
        assert [len(page.records) for page in pages] == [50, 50, 50]
        assert PYTHON == {"q": "python"}

    on(tmp_path, test)

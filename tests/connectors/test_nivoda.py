"""The connector, through real HTTP on loopback, against Nivoda's simulator."""

from __future__ import annotations

import asyncio
import itertools
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.connectors.http.in_process import InProcess
from penstock.connectors.nivoda.client import LIMIT, Api, Credentials, Nivoda, Order, Query
from penstock.lifecycles.partitions.machine import Extraction
from penstock.model import correlation
from penstock.model.clock import VirtualClock
from penstock.model.errors import Fatal, InDoubt, Rejected, StepError, Throttled, Transient, UsageError
from penstock.settings.redaction import MARK, redact
from penstock.settings.secret import Secret
from penstock.simulators.nivoda import Churn, Fault, NivodaSimulator, errors, throttle
from tests.support.nivoda import NOW, Login, on, secrets

STYLES = pytest.mark.parametrize("style", ["bearer", "as"])


@STYLES
@pytest.mark.parametrize("lean", [True, False])
def test_every_stone_comes_once_with_the_text_that_came(tmp_path, style, lean):
    async def test(n: Login) -> None:
        items = await n.everything()
        assert len({item.stone_id for item in items}) == len(items) == 1_000
        for item in items[::100]:
            record = json.loads(item.payload)
            assert (record["id"], record["diamond"]["id"]) == (item.offer_id, item.stone_id)
            assert item.offer_id is not None
            assert item.offer_id.startswith("DIAMOND/")
            assert set(record) == {"id", "price", "discount", "diamond"}
            assert set(record["diamond"]["certificate"]) >= {"lab", "certNumber", "carats"}
            assert item.updated_at is None
        (logged_in,) = n.simulator.calls("authenticate")
        assert "authorization" not in logged_in.headers
        headers = n.simulator.calls("page")[0].headers
        assert ("authorization" in headers) == (style == "bearer")

    on(tmp_path, test, api={"authentication": style}, styles=frozenset({style}), lean=lean)


@pytest.mark.parametrize("bounds", ["exact", "whole"])
def test_ranges_of_price_leave_nothing_out_and_have_nothing_in_common(tmp_path, bounds):
    async def test(n: Login) -> None:
        ends = [0, 300, 301, 450, 1_000, 2_500, None]
        ranges = [Query(low, high) for low, high in itertools.pairwise(ends)]
        counts = [await n.nivoda.count(one) for one in ranges]
        assert sum(counts) == 1_000
        assert all(counts)
        found = [item.stone_id for one in ranges for item in await n.everything(one)]
        assert len(found) == len(set(found)) == 1_000
        below = await n.everything(Query(high=450))
        assert max(json.loads(item.payload)["price"] for item in below) < 45_000
        assert any(json.loads(item.payload)["price"] % 100 for item in below)

    on(tmp_path, test, api={"price_bounds": bounds}, whole_dollars=bounds == "whole")


def test_a_filter_of_whole_dollars_says_that_exact_bounds_are_refused(tmp_path):
    async def test(n: Login) -> None:
        with pytest.raises(Fatal, match="cannot represent"):
            await n.nivoda.count(Query(100, 200))

    on(tmp_path, test, whole_dollars=True)


def test_a_window_of_updates(tmp_path):
    async def test(n: Login) -> None:
        n.clock.advance(3_600)
        changed = n.stones.touch(40, n.clock.now())
        window = Query(updated_from=NOW + timedelta(minutes=30), updated_to=NOW + timedelta(hours=1))
        assert await n.nivoda.count(window) == 40
        found = {item.stone_id for item in await n.everything(window)}
        assert found == {n.stones.stone_id(number) for number in changed}
        assert await n.nivoda.count(Query(updated_from=NOW + timedelta(hours=2))) == 0
        sent = n.simulator.calls("count")[0].variables["q"]
        assert sent == {"updated": {"from": "2026-11-15T12:30:00.000Z", "to": "2026-11-15T13:00:00.000Z"}}

    on(tmp_path, test)


def test_other_filters_are_sent_as_they_are(tmp_path):
    async def test(n: Login) -> None:
        await n.nivoda.count(Query(100, filters={"labgrown": False, "shapes": ["ROUND"]}))
        sent = n.simulator.calls("count")[0].variables["q"]
        assert sent == {"labgrown": False, "shapes": ["ROUND"], "dollar_value": {"from": 100}}
        with pytest.raises(Fatal, match="not defined"):
            await n.nivoda.count(Query(filters={"colour": "D"}))

    on(tmp_path, test)


@pytest.mark.parametrize("kind", ["price", "createdAt"])
def test_an_order_is_always_asked_for(tmp_path, kind):
    async def test(n: Login) -> None:
        up = await n.everything(order=Order(kind))
        down = await n.everything(order=Order(kind, "DESC"))
        assert [item.stone_id for item in up] == [item.stone_id for item in reversed(down)]
        if kind == "price":
            prices = [json.loads(item.payload)["price"] for item in up]
            assert prices == sorted(prices)
        assert n.simulator.calls("page")[0].variables["ord"] == {"type": kind, "direction": "ASC"}

    on(tmp_path, test, stones=200)


def test_what_is_no_page_is_not_asked_for(tmp_path):
    async def test(n: Login) -> None:
        for offset, limit in ((0, 0), (0, LIMIT + 1), (-1, 30), (0, -5)):
            with pytest.raises(UsageError, match="1 to 50 records"):
                await n.nivoda.page(Query(), offset, limit)
        assert not n.simulator.requests
        assert len((await n.nivoda.page(Query(), 990, LIMIT)).items) == 10
        assert (await n.nivoda.page(Query(), 1_000, LIMIT)).items == []

    on(tmp_path, test)
    for wrong in ({"type": "colour"}, {"direction": "asc"}):
        with pytest.raises(UsageError, match="is not an order"):
            Order(**wrong)
    for bad in ({"url": "nivoda.net"}, {"updated_field": "a b"}, {"updated_field": "id"}, {"token_life": timedelta()}):
        with pytest.raises(UsageError):
            Api(**bad)


def test_the_total_is_reported_and_nothing_else(tmp_path):
    async def test(n: Login) -> None:
        page = await n.nivoda.page(Query(), 0, 30)
        assert page.total_count == 37_000
        assert await n.nivoda.count(Query()) == 1_000
        assert len(await n.everything()) == 1_000

    on(tmp_path, test, total_count_factor=37)


def test_rows_follow_after_the_count_without_end(tmp_path):
    async def test(n: Login) -> None:
        assert len((await n.nivoda.page(Query(), 99, 30)).items) == 30
        assert len((await n.nivoda.page(Query(), 89_850, 30)).items) == 30
        n.simulator.rows_past_count = 5
        assert len((await n.nivoda.page(Query(), 90, 30)).items) == 15

    on(tmp_path, test, stones=100, rows_past_count=None)


def test_pages_by_birth_lose_nothing_that_stays_while_prices_change(tmp_path):
    async def test(n: Login) -> None:
        before = {n.stones.stone_id(number) for number in range(1_000)}
        found = [item.stone_id for item in await n.everything()]
        assert len(found) == len(set(found)) == 1_000
        assert set(found) == before
        assert len({item.stone_id for item in await n.everything(order=Order("price"))}) < 1_000

    on(tmp_path, test, churn=Churn(pages=1, changed=20, inserted=0, removed=0))


@pytest.mark.parametrize("place", ["updated_at", None])
def test_when_a_stone_was_updated_is_read_where_it_is_told(tmp_path, place):
    async def test(n: Login) -> None:
        n.clock.advance(60)
        number = n.stones.touch(1, n.clock.now())[0]
        n.clock.advance(1)
        page = await n.nivoda.page(Query(), number // 30 * 30, 30)
        found = {item.stone_id: item.updated_at for item in page.items}[n.stones.stone_id(number)]
        assert found == (NOW + timedelta(seconds=60) if place else None)
        assert page.asked_at == NOW + timedelta(seconds=61)

    on(tmp_path, test, tells_updated=True, api={"updated_field": place})


def test_a_field_that_is_not_there_is_fatal(tmp_path):
    async def test(n: Login) -> None:
        with pytest.raises(Fatal, match='Cannot query field "updated_at"'):
            await n.nivoda.page(Query(), 0, 30)

    on(tmp_path, test, api={"updated_field": "updated_at"})


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ('{"id":"o","diamond":{"id":"s","seen":"2026-11-15T12:00:00+01:00"}}', ("o", "s", NOW - timedelta(hours=1))),
        ('{"id":"o","diamond":{"id":"s","seen":1794744000000}}', ("o", "s", NOW)),
        ('{"id":"o","diamond":{"id":"s","seen":1794744000}}', ("o", "s", NOW)),
        ('{"id":"o","diamond":{"id":"s","seen":"yesterday"}}', ("o", "s", None)),
        ('{"id":"o","diamond":{"id":"s","seen":1e300}}', ("o", "s", None)),
        ('{"id":7,"diamond":{"id":"","seen":true}}', (None, None, None)),
        ('{"id":"o","diamond":null}', ("o", None, None)),
        ('{"id":"o","diamond":[]}', (None, None, None)),
        ("{}", (None, None, None)),
        ("null", (None, None, None)),
        ("[1]", (None, None, None)),
    ],
)
def test_a_record_that_is_wrong_spoils_no_other(tmp_path, item, expected):
    async def test(n: Login) -> None:
        good = ' {"diamond" : {"id":"é\\u0041"}} '
        body = f'{{"data":{{"diamonds_by_query":{{"items":[{item},{good}]}}}}}}'
        n.simulator.faults["page"].append(Fault(200, body.encode()))
        first, second = (await n.nivoda.page(Query(), 0, 30)).items
        assert (first.payload, first.offer_id, first.stone_id, first.updated_at) == (item, *expected)
        assert (second.payload, second.stone_id) == (good.strip(), "éA")

    on(tmp_path, test, stones=1, api={"updated_field": "diamond.seen"})


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (throttle(), Throttled, "429"),
        (throttle("7"), Throttled, "429"),
        (errors("Slow down", "THROTTLED"), Throttled, "Slow down"),
        (errors("Rate limit reached"), Throttled, "Rate limit"),
        (Fault(500), Transient, "500"),
        (Fault(502, b"<html>Bad Gateway</html>"), Transient, "Bad Gateway"),
        (Fault(503), Transient, "503"),
        (Fault(504), Transient, "504"),
        (Fault(404), Rejected, "404"),
        (Fault(400, b"no"), Rejected, "400 no"),
        (Fault(cut=True), Transient, "without a whole answer"),
        (errors("Internal server error", "INTERNAL_SERVER_ERROR"), Transient, "INTERNAL_SERVER_ERROR"),
        (errors("Something went wrong"), Transient, "Something"),
        (errors("Variable is bad", "BAD_USER_INPUT", status=400), Fatal, "BAD_USER_INPUT"),
        (errors('Cannot query field "x" on type "Item".'), Fatal, "Cannot query"),
        (Fault(200, {"errors": "broken"}), Transient, "broken"),
        (Fault(200, {"data": {"diamonds_by_query": None}, "errors": [{}]}), Transient, "without words"),
        (Fault(200, b""), Transient, "cannot be read"),
        (Fault(200, b'{"data":{"diamonds_by'), Transient, "cannot be read"),
        (Fault(200, b'{"data":{"diamonds_by_query":{"items":["\xff"]}}}'), Transient, "cannot be read|not UTF-8"),
        (Fault(200, b"<html>"), Transient, "cannot be read"),
        (Fault(200, {"data": None}), Transient, "no data"),
        (Fault(200, {"data": {}}), Transient, "no items"),
        (Fault(200, {"data": {"diamonds_by_query": {"items": {}}}}), Transient, "cannot be read"),
        (Fault(200, {"data": {"diamonds_by_query": {"items": None}}}), Transient, "no items"),
    ],
)
def test_what_a_failed_page_means(tmp_path, fault, kind, words):
    async def test(n: Login) -> None:
        n.simulator.faults["page"].append(fault)
        with pytest.raises(StepError, match=words) as caught:
            await n.nivoda.page(Query(), 0, 30)
        assert type(caught.value) is kind
        assert not isinstance(caught.value, InDoubt)
        assert "/api/diamonds" in str(caught.value)
        assert len((await n.nivoda.page(Query(), 0, 30)).items) == 30
        assert len(n.simulator.calls("authenticate")) == 1

    on(tmp_path, test)


@pytest.mark.parametrize(
    ("fault", "seconds"),
    [
        (throttle("7"), 7.0),
        (throttle("Sun, 15 Nov 2026 12:01:00 GMT"), 60.0),
        (throttle("soon"), None),
        (throttle(), None),
        (errors("x", "THROTTLED", retryAfter=2.5), 2.5),
        (errors("x", "RATE_LIMITED", retryAfter=1e12), 1e12),
        (errors("x", "RATE_LIMITED", retryAfter="later"), None),
    ],
)
def test_how_long_a_throttle_lasts(tmp_path, fault, seconds):
    async def test(n: Login) -> None:
        n.simulator.faults["count"].append(fault)
        with pytest.raises(Throttled) as caught:
            await n.nivoda.count(Query())
        assert caught.value.retry_after == seconds

    on(tmp_path, test)


@pytest.mark.parametrize("count", ["7", 7.5, None, -1, True, [1]])
def test_a_count_is_a_whole_number(tmp_path, count):
    async def test(n: Login) -> None:
        n.simulator.faults["count"].append(Fault(200, {"data": {"diamonds_by_query_count": count}}))
        with pytest.raises(Transient, match="no count"):
            await n.nivoda.count(Query())

    on(tmp_path, test)


@STYLES
@pytest.mark.parametrize("refuses", ["graphql", "http"])
def test_a_refused_token_is_renewed_once(tmp_path, style, refuses):
    async def test(n: Login) -> None:
        await n.nivoda.count(Query())
        n.simulator.expire_tokens()
        assert await n.nivoda.count(Query()) == 1_000
        assert len(n.simulator.calls("authenticate")) == 2
        refusal = errors("no", "UNAUTHENTICATED")
        n.simulator.faults["count"].extend([refusal, refusal])
        with pytest.raises(Fatal):
            await n.nivoda.count(Query())
        assert len(n.simulator.calls("authenticate")) == 3
        assert await n.nivoda.count(Query()) == 1_000

    on(tmp_path, test, api={"authentication": style}, refuses=refuses)


@pytest.mark.parametrize("tells_expiry", [True, False])
def test_a_token_is_renewed_before_it_expires(tmp_path, tells_expiry):
    async def test(n: Login) -> None:
        await n.nivoda.count(Query())
        n.clock.advance(3_600 - 70)
        await n.nivoda.count(Query())
        assert n.simulator.counted["authenticate"] == asked
        n.clock.advance(20)
        await n.nivoda.count(Query())
        assert n.simulator.counted["authenticate"] == asked + 1
        assert n.simulator.counted["count"] == 3, "no call was refused"

    asked = 1 if tells_expiry else 2  # the first time with `expires`, which is unknown, then without
    hour = timedelta(hours=1)
    assumed = timedelta(hours=9) if tells_expiry else hour
    on(tmp_path, test, token_life=hour, tells_expiry=tells_expiry, api={"token_life": assumed})


@pytest.mark.parametrize(
    ("expires", "life"),
    [
        (7_200, 7_200),
        ("2026-11-15T14:00:00Z", 7_200),
        (1_794_751_200, 7_200),
        (1_794_751_200_000, 7_200),
        ("2026-11-15T11:00:00Z", 21_600),
        ("whenever", 21_600),
        (None, 21_600),
        (True, 21_600),
    ],
)
def test_when_a_token_expires_may_be_said_in_many_ways(tmp_path, expires, life):
    async def test(n: Login) -> None:
        token = {"token": "a-token", "expires": expires}
        n.simulator.faults["authenticate"].append(
            Fault(200, {"data": {"authenticate": {"username_and_password": token}}})
        )
        n.simulator._tokens["a-token"] = datetime(2030, 1, 1, tzinfo=UTC)
        await n.nivoda.count(Query())
        n.clock.advance(life - 61)
        await n.nivoda.count(Query())
        assert n.simulator.counted["authenticate"] == 1
        n.clock.advance(2)
        await n.nivoda.count(Query())
        assert n.simulator.counted["authenticate"] == 2

    on(tmp_path, test)


def test_many_that_need_a_token_ask_for_one(tmp_path):
    async def test(n: Login) -> None:
        assert await asyncio.gather(*(n.nivoda.count(Query()) for _ in range(30))) == [1_000] * 30
        assert n.simulator.counted["authenticate"] == 1
        n.simulator.expire_tokens()
        pages = await asyncio.gather(*(n.nivoda.page(Query(), at * 30, 30) for at in range(30)))
        assert [len(page.items) for page in pages] == [30] * 30
        assert n.simulator.counted["authenticate"] == 2
        n.simulator.expire_tokens()
        n.simulator.faults["authenticate"].append(Fault(503))
        found = await asyncio.gather(*(n.nivoda.count(Query()) for _ in range(5)), return_exceptions=True)
        assert [type(one) for one in found] == [Transient] * 5
        assert len({id(one) for one in found}) == 5

    on(tmp_path, test)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"authenticate": None},
        {"authenticate": {"username_and_password": None}},
        {"authenticate": {"username_and_password": {"token": ""}}},
        {"authenticate": {"username_and_password": {"token": "a\nb"}}},
        {"authenticate": {"username_and_password": {"token": 7}}},
    ],
)
def test_a_login_without_a_token_may_work_later(tmp_path, answer):
    async def test(n: Login) -> None:
        n.simulator.faults["authenticate"].append(Fault(200, {"data": answer}))
        with pytest.raises(Transient, match="no token"):
            await n.nivoda.count(Query())
        assert await n.nivoda.count(Query()) == 1_000

    on(tmp_path, test)


def test_wrong_credentials_are_fatal_and_name_no_secret(tmp_path):
    async def test(n: Login) -> None:
        n.simulator.password = "another-password"
        with pytest.raises(Fatal, match=r"check the user name and the password of buyer@example\.com"):
            await n.nivoda.count(Query())
        (tmp_path / "password").unlink()
        with pytest.raises(Fatal, match="cannot be read"):
            await n.nivoda.count(Query())

    on(tmp_path, test)


@STYLES
def test_a_token_stands_in_no_text(tmp_path, style):
    async def test(n: Login) -> None:
        await n.nivoda.count(Query())
        (token,) = n.simulator._tokens
        assert redact(f"Bearer {token}") == f"Bearer {MARK}"
        n.simulator.faults["count"].append(errors(f"Cannot serve {token}"))
        with pytest.raises(Transient) as caught:
            await n.nivoda.count(Query())
        assert token not in str(caught.value)

    on(tmp_path, test, api={"authentication": style})


def test_a_step_is_named_in_its_call(tmp_path):
    async def test(n: Login) -> None:
        unit = Extraction(
            unit_id="g/1/q/é", version=7, source="g", customer_id="1", query_name="q", logical_date=NOW.date()
        )
        correlation.STEP.set(("extraction", unit, 1))
        await n.nivoda.page(Query(), 0, 1)
        assert n.simulator.calls("page")[0].headers["x-correlation-id"] == "extraction:g/1/q/%C3%A9@7"

    on(tmp_path, test)


def test_it_runs_in_process_without_a_socket(tmp_path):
    async def main() -> None:
        clock = VirtualClock(NOW)
        simulator = NivodaSimulator(clock)
        api = Api("http://nivoda.sim/api/diamonds")
        nivoda = Nivoda(secrets(tmp_path, simulator), clock, api=api, transport=InProcess(simulator))
        assert await nivoda.count(Query()) == 1_000
        assert len((await nivoda.page(Query(), 0, 50)).items) == 50
        await nivoda.close()

    asyncio.run(main())


def test_an_answer_that_breaks_off_may_come_whole(tmp_path):
    async def test(n: Login) -> None:
        n.simulator.faults["page"].append(Fault(cut=True))
        with pytest.raises(Transient, match="breaks off"):
            await n.nivoda.page(Query(), 0, 30)
        assert len((await n.nivoda.page(Query(), 0, 30)).items) == 30

    on(tmp_path, test, lean=False)


def test_a_server_that_is_not_there_may_come_back(tmp_path):
    async def main() -> None:
        (tmp_path / "password").write_text("some-password")
        credentials = Credentials("u", Secret("file", str(tmp_path / "password")))
        nivoda = Nivoda(credentials, VirtualClock(NOW), api=Api("http://127.0.0.1:1/api/diamonds"))
        with pytest.raises(Transient, match="could not connect"):
            await nivoda.count(Query())
        await nivoda.close()

    asyncio.run(main())


def test_thirty_at_once_have_the_same_answers_as_one_by_one(tmp_path):
    async def test(n: Login) -> None:
        one_by_one = await n.everything()
        pages = await asyncio.gather(*(n.nivoda.page(Query(), at, 30) for at in range(0, 3_000, 30)))
        together: list[Any] = [item for page in pages for item in page.items]
        assert together == one_by_one

    on(tmp_path, test, stones=3_000)

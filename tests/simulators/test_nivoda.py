"""What the simulator promises to those who test against it, beyond what the connector's tests show."""

from __future__ import annotations

import itertools
import json
import statistics
import urllib.error
import urllib.request
from datetime import datetime, timedelta
from typing import Any

import pytest

from penstock.connectors.nivoda.client import Api, Order, Query
from penstock.model.clock import VirtualClock
from penstock.model.errors import Throttled, Transient
from penstock.simulators.graphql import BadDocument, parse
from penstock.simulators.nivoda import PATH, Churn, Fault, NivodaSimulator, errors, throttle
from penstock.simulators.nivoda_data import DEFECTS, MOST_STONES, Catalogue, Wanted
from penstock.simulators.nivoda_process import control, in_process
from penstock.simulators.server import in_thread
from tests.support.nivoda import NOW, Login, on


def prices(catalogue: Catalogue) -> list[int]:
    return [catalogue.price(number) or 0 for number in catalogue.page(Wanted(), 0, len(catalogue))]


def test_a_seed_is_a_catalogue():
    assert prices(Catalogue(500, NOW)) == prices(Catalogue(500, NOW))
    assert prices(Catalogue(500, NOW)) != prices(Catalogue(500, NOW, seed=8))
    ids = {Catalogue(500, NOW).stone_id(number) for number in range(500)}
    assert len(ids) == 500
    with pytest.raises(ValueError, match="cannot be simulated"):
        Catalogue(MOST_STONES, NOW)


def test_prices_are_as_skewed_as_real_ones():
    found = prices(Catalogue(50_000, NOW))
    assert found == sorted(found)
    middle = statistics.median(found)
    assert 50_000 < middle < 200_000
    assert statistics.fmean(found) > 2 * middle
    assert found[-1] > 100 * middle
    at = {price: found.count(price) for price in (100_000, 100_100, 50_000, 50_100)}
    assert at[100_000] > 20 * max(1, at[100_100])
    assert at[50_000] > 10 * max(1, at[50_100])
    cents = sum(price % 100 != 0 for price in found) / len(found)
    assert 0.2 < cents < 0.6


def test_counts_are_what_looking_at_each_would_give():
    catalogue = Catalogue(3_000, NOW)
    for low, high in ((None, None), (30_000, 60_000), (60_000, 60_000), (0, 1), (90_000, 10_000), (None, 45_678)):
        for since in (None, NOW - timedelta(days=30)):
            wanted = Wanted(low, high, since)
            expected = [
                number
                for number in range(3_000)
                if (low or 0) <= (catalogue.price(number) or 0) <= (10**9 if high is None else high)
                and (since is None or catalogue.updated(number) >= since)
            ]
            assert catalogue.count(wanted) == len(expected)
            by_birth = list(catalogue.page(wanted, 0, 3_000, by_price=False))
            assert by_birth == expected
            assert sorted(catalogue.page(wanted, 0, 3_000)) == expected
            assert list(catalogue.page(wanted, 10, 5, by_price=False, descending=True)) == expected[::-1][10:15]


@pytest.mark.parametrize("by_price", [True, False])
def test_every_view_is_told_of_every_change(by_price):
    catalogue = Catalogue(500, NOW)
    later = NOW + timedelta(hours=1)
    views = [
        Wanted(low, high, since)
        for low, high in ((None, None), (20_000, 50_000), (50_001, None))
        for since in (None, later)
    ]

    def shown() -> list[list[int]]:
        return [list(catalogue.page(view, 0, 1_000, by_price=by_price)) for view in views]

    shown()
    for _ in range(5):
        changed = catalogue.change(7, later)
        born = catalogue.insert(5, later)
        gone = catalogue.remove(6)
        catalogue.touch(3, later)
        assert (len(changed), len(born), len(gone)) == (7, 5, 6)
        kept = shown()
        catalogue._views.clear()
        assert kept == shown()
    assert len(catalogue) == 500 - 5
    assert catalogue.price(gone[0]) is None
    assert catalogue.count(Wanted(since=later)) == len(catalogue.page(Wanted(since=later), 0, 1_000)) > 0


def test_a_change_of_price_moves_a_stone_and_says_when():
    catalogue = Catalogue(200, NOW)
    before = {number: catalogue.price(number) for number in range(200)}
    changed = catalogue.change(20, NOW + timedelta(seconds=5))
    assert sum(catalogue.price(number) != before[number] for number in changed) > 10
    assert {catalogue.updated(number) for number in changed} == {NOW + timedelta(seconds=5)}
    touched = catalogue.touch(200, NOW + timedelta(seconds=6))
    assert len(touched) == 200


def test_bad_records_are_of_every_kind_and_no_more_than_asked_for(tmp_path):
    async def test(n: Login) -> None:
        records = [json.loads(item.payload) for item in await n.everything()]
        defects = [n.stones.defect(number) for number in range(1_000)]
        assert set(defects) == {None, *DEFECTS}
        assert 100 < sum(one is not None for one in defects) < 300
        wrong = dict(zip(defects, records, strict=True))
        assert wrong["no certificate"]["diamond"]["certificate"] is None
        assert wrong["no price"]["price"] is None
        assert wrong["no diamond"]["diamond"] is None
        assert wrong["no stone id"]["diamond"]["id"] is None
        assert wrong["negative price"]["price"] < 0
        assert wrong["absurd price"]["price"] > 10**12
        assert wrong["absurd carats"]["diamond"]["certificate"]["carats"] == 1e9
        assert wrong["unknown words"]["diamond"]["certificate"]["shape"] == "BLOB"
        assert wrong[None]["diamond"]["certificate"]["carats"] > 0

    on(tmp_path, test, bad=0.2)


@pytest.mark.parametrize("unit", [1, 100])
def test_prices_in_cents_or_in_dollars(tmp_path, unit):
    async def test(n: Login) -> None:
        page = await n.nivoda.page(Query(), 0, 30)
        shown = [json.loads(item.payload)["price"] for item in page.items]
        assert shown == [(n.stones.price(number) or 0) / unit for number in range(30)]

    on(tmp_path, test, unit=unit)


def test_a_catalogue_that_changes_shifts_pages_by_price(tmp_path):
    async def test(n: Login) -> None:
        found = [item.stone_id for item in await n.everything(order=Order("price"))]
        assert len(set(found)) < len(found), "some come twice"
        before = {n.stones.stone_id(number) for number in range(1_000)}
        assert before - set(found), "some are missed"

    on(tmp_path, test, churn=Churn(pages=2, changed=25, inserted=3, removed=3))


def test_so_many_calls_in_a_second_and_then_throttles(tmp_path):
    async def test(n: Login) -> None:
        await n.nivoda.count(Query())  # a login and a count
        with pytest.raises(Throttled) as caught:
            await n.nivoda.count(Query())
        assert caught.value.retry_after == 1.0
        n.clock.advance(1)
        assert await n.nivoda.count(Query()) == 1_000

    on(tmp_path, test, per_second=2)


def test_each_so_many_th_call_fails(tmp_path):
    async def test(n: Login) -> None:
        failed = []
        for number in range(1, 10):
            try:
                await n.nivoda.page(Query(), 0, 1)
            except Transient:
                failed.append(number)
        assert failed == [3, 6, 9]

    on(tmp_path, test, every={("page", 3): Fault(502)})


def post(address: str, query: str, variables: dict[str, Any] | None = None, token: str = "") -> tuple[int, Any]:
    body = json.dumps({"query": query, "variables": variables}).encode()
    request = urllib.request.Request(f"{address}{PATH}", body, {"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


LOGIN = '{authenticate{username_and_password(username:"buyer@example.com",password:"simulated-password"){token}}}'


def test_it_speaks_graphql_with_literals_too():
    simulator = NivodaSimulator(VirtualClock(NOW))
    with in_thread(simulator) as address:
        status, answer = post(address, LOGIN)
        token = answer["data"]["authenticate"]["username_and_password"]["token"]
        query = """query Found {
          diamonds_by_query(query: {dollar_value: {from: 100, to: 2000}, shapes: ["ROUND"]}, limit: 3,
                            order: {type: price, direction: DESC}) { items { id diamond { id certificate { lab } } } }
          diamonds_by_query_count(query: {})
        }"""
        status, answer = post(address, query, token=token)
        assert status == 200
        assert answer["data"]["diamonds_by_query_count"] == 1_000
        items = answer["data"]["diamonds_by_query"]["items"]
        assert [set(item) for item in items] == [{"id", "diamond"}] * 3
        assert [set(item["diamond"]["certificate"]) for item in items] == [{"lab"}] * 3
        status, answer = post(address, 'query{as(token:"%s"){diamonds_by_query_count(query:{})}}' % token)  # noqa: UP031
        assert answer == {"data": {"as": {"diamonds_by_query_count": 1_000}}}
        status, answer = post(address, "{diamonds_by_query_count(query:{})}")
        assert (status, answer["errors"][0]["extensions"]["code"]) == (200, "UNAUTHENTICATED")
        for wrong, code in (
            ("{diamonds_by_query(query:{}){items{colour}}}", "GRAPHQL_VALIDATION_FAILED"),
            ("{diamonds_by_query(query:{}){items{diamond}}}", "GRAPHQL_VALIDATION_FAILED"),
            ("{diamonds_by_query(query:{}){things}}", "GRAPHQL_VALIDATION_FAILED"),
            ("{diamonds}", "GRAPHQL_VALIDATION_FAILED"),
            ("{diamonds_by_query_count(query:{colour:D})}", "GRAPHQL_VALIDATION_FAILED"),
            ("{diamonds_by_query_count(query:{dollar_value:{from:true}})}", "BAD_USER_INPUT"),
            ("{diamonds_by_query_count(", "GRAPHQL_PARSE_FAILED"),
        ):
            status, answer = post(address, wrong, token=token)
            assert (status, answer["errors"][0]["extensions"]["code"]) == (400, code), wrong


@pytest.mark.parametrize(("over_limit", "rows"), [("clamp", 50), ("error", None)])
def test_a_limit_above_fifty(over_limit, rows):
    simulator = NivodaSimulator(VirtualClock(NOW), over_limit=over_limit)
    with in_thread(simulator) as address:
        token = post(address, LOGIN)[1]["data"]["authenticate"]["username_and_password"]["token"]
        query = "query($l:Int){diamonds_by_query(query:{},limit:$l){items{id}}}"
        _, answer = post(address, query, {"l": 90}, token)
        if rows is None:
            assert answer["errors"][0]["message"] == "limit must not be greater than 50"
        else:
            assert len(answer["data"]["diamonds_by_query"]["items"]) == rows


@pytest.mark.parametrize(
    "document",
    ["", "{", "{}", "{a", "{a(b:)}", "{a(b:[)}", "mutation{a}", "{a}}", "{a(b:1}", "query($a:Int", "{a(%:1)}", "{a:b}"],
)
def test_what_is_no_query_is_refused(document):
    with pytest.raises(BadDocument):
        parse(document)


def test_values_of_every_kind_are_read():
    (field,) = parse('{a(b:[1,-2.5,"x\\"y",true,null,D],c:{d:$e,f:{g:[$h]}})}').values()
    assert field.argument("b", {}) == [1, -2.5, 'x"y', True, None, "D"]
    assert field.argument("c", {"e": 7, "h": 8}) == {"d": 7, "f": {"g": [8]}}
    assert field.argument("c", {}) == {"d": None, "f": {"g": [None]}}
    assert field.argument("z", {}) is None


def test_faults_are_what_they_say():
    assert throttle("3").headers == (("retry-after", "3"),)
    assert throttle().headers == ()
    assert errors("x").body == {"data": None, "errors": [{"message": "x"}]}


def test_in_a_process_of_its_own_it_can_be_changed_and_measured(tmp_path):
    with in_process(2_000, "--seed", "11", "--latency", "1", "--tells-updated") as about:
        assert about["stones"] == 2_000
        assert Api(about["api_url"]).url.endswith(PATH)
        token = post(about["address"], LOGIN)[1]["data"]["authenticate"]["username_and_password"]["token"]
        query = "{diamonds_by_query(query:{},limit:2){items{id updated_at}}}"
        items = post(about["address"], query, token=token)[1]["data"]["diamonds_by_query"]["items"]
        assert all(datetime.fromisoformat(item["updated_at"]) for item in items)
        told = control(about, insert=10, remove=3, change=5, touch=2, latency=0)
        assert told["stones"] == 2_007
        assert told["asked"] == {"authenticate": 1, "page": 1}
        assert told["cpu_seconds"] > 0


def test_a_whole_catalogue_by_many_ranges(tmp_path):
    async def test(n: Login) -> None:
        ends: list[int | None] = [0, *range(150, 3_000, 150), None]
        ranges = list(itertools.pairwise(ends))
        counts = [await n.nivoda.count(Query(low, high)) for low, high in ranges]
        assert sum(counts) == 20_000
        assert max(counts) > 5 * statistics.median(counts), "equal steps are unequal parts"

    on(tmp_path, test, stones=20_000)

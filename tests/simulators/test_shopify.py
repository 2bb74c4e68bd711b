"""Shopify's simulator itself: its bucket, its refusals, its faults, and what its journal proves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from datetime import timedelta
from http.client import IncompleteRead
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from penstock.connectors.prices import VariantPrice
from penstock.connectors.shopify import wire
from penstock.connectors.shopify.client import Shopify
from penstock.model.clock import SystemClock, VirtualClock
from penstock.model.errors import InDoubt
from penstock.settings.secret import Secret
from penstock.simulators.graphql import BadDocument, operation
from penstock.simulators.server import in_thread
from penstock.simulators.shopify import TOKEN_PATH, ShopifySimulator
from penstock.simulators.shopify_data import Bucket, Store
from penstock.simulators.shopify_documents import plan
from penstock.simulators.shopify_faults import LOST, Fault
from penstock.simulators.shopify_journal import (
    ALL,
    OTHER,
    Entry,
    Mutation,
    Read,
    Throttle,
    Write,
    from_lines,
    mutations_per_product,
    overwritten,
    prices_seen,
    repeated_unread,
    to_lines,
)
from penstock.simulators.shopify_process import Controlled, control, in_process, journal
from tests.support.shopify import NOW

PATH = "/admin/api/2026-10/graphql.json"
PARTIAL = wire.UPDATE
ATOMIC = wire.UPDATE.replace("allowPartialUpdates:true", "allowPartialUpdates:false")
NEGATIVE = {"field": ["variants", "1", "price"], "code": "NEGATIVE_PRICE_VALUE"}


@contextlib.contextmanager
def served(**options: Any) -> Iterator[tuple[ShopifySimulator, VirtualClock, str]]:
    clock = VirtualClock(NOW)
    simulator = ShopifySimulator(clock, Store(3, NOW, variants=4), **options)
    with in_thread(simulator) as address:
        yield simulator, clock, address


def post(
    address: str, query: str, variables: object = None, *, token: str = "shpat_simulated_admin_token", path: str = PATH
) -> tuple[int, Any, dict[str, str]]:
    body = json.dumps({"query": query, "variables": variables}).encode()
    headers = {"content-type": "application/json", "x-shopify-access-token": token}
    try:
        with urlopen(Request(address + path, body, headers), timeout=10) as answer:
            return answer.status, json.load(answer), {k.lower(): v for k, v in answer.headers.items()}
    except HTTPError as error:
        with error:
            return error.code, json.load(error), {k.lower(): v for k, v in error.headers.items()}


def changes(product: int, *prices: object) -> dict[str, Any]:
    first = 1_000_000 + 4 * product
    variants = [
        {"id": f"gid://shopify/ProductVariant/{first + place}", "price": price} for place, price in enumerate(prices)
    ]
    return {"p": f"gid://shopify/Product/{1_000 + product}", "v": variants}


@pytest.mark.parametrize(("document", "set_"), [(PARTIAL, ["5.00", "6.00"]), (ATOMIC, [])])
def test_of_a_bad_change_the_others_are_made_or_none(document, set_):
    with served() as (simulator, _, address):
        before = [variant.price for variant in simulator.admin.store][:3]
        status, answer, _ = post(address, document, changes(0, "5", "-1", 6))
        found = answer["data"]["productVariantsBulkUpdate"]
        assert status == 200
        assert [{k: v for k, v in one.items() if k != "message"} for one in found["userErrors"]] == [NEGATIVE]
        assert [one["price"] for one in found["productVariants"]] == set_
        after = [variant.price for variant in simulator.admin.store][:3]
        assert after == ([set_[0], before[1], set_[1]] if set_ else before)


def test_a_price_alone_leaves_the_other_one():
    with served() as (simulator, _, address):
        variant = next(iter(simulator.admin.store))
        assert variant.compare_at is not None
        post(address, PARTIAL, changes(0, "5.00"))
        assert variant.price == "5.00"
        assert variant.compare_at is not None
        asked = changes(0, "6")
        asked["v"][0]["compareAtPrice"] = None
        post(address, PARTIAL, asked)
        assert variant.prices == ("6.00", None)


def test_the_bucket_must_hold_what_is_requested_and_gets_back_what_is_not_used():
    with served() as (simulator, clock, address):
        ids = [f"gid://shopify/ProductVariant/{one}" for one in range(999_800, 1_000_012)]
        _, answer, headers = post(address, wire.READ_QUERY, {"i": ids})
        status = {"maximumAvailable": 2000.0, "currentlyAvailable": 1988.0, "restoreRate": 100.0}
        cost = {"requestedQueryCost": 212.0, "actualQueryCost": 12.0, "throttleStatus": status}
        assert answer["extensions"]["cost"] == cost
        assert headers["x-shopify-api-version"] == "2026-10"
        clock.advance(1)
        assert simulator.points.available == 2_000
        assert simulator.points.charged == 12


@pytest.mark.parametrize(("status", "header"), [(200, None), (429, "1.0")])
def test_a_throttle_says_what_is_missing(status, header):
    with served(throttle_status=status) as (simulator, _, address):
        simulator.points.take(1_995)
        code, answer, headers = post(address, PARTIAL, changes(0, "5", "6"))
        assert (code, headers.get("retry-after")) == (status, header)
        assert answer["errors"][0]["extensions"]["code"] == "THROTTLED"
        assert "data" not in answer
        assert answer["extensions"]["cost"]["requestedQueryCost"] == 10.4
        assert answer["extensions"]["cost"]["throttleStatus"]["currentlyAvailable"] == 5
        (entry,) = simulator.journal
        assert isinstance(entry, Throttle)
        assert (entry.requested, entry.available) == (10.4, 5)


def test_the_limit_of_calls_has_its_header():
    with served(calls_per_second=2.0) as (_, clock, address):
        told = [post(address, wire.SHOP_QUERY)[2]["x-shopify-shop-api-call-limit"] for _ in range(40)]
        assert (told[0], told[31], told[39]) == ("1/40", "32/40", "40/40")
        code, answer, headers = post(address, wire.SHOP_QUERY)
        assert (code, headers["retry-after"]) == (429, "2.0")
        assert answer["errors"].startswith("Exceeded 2 calls per second")
        clock.advance(0.5)
        assert post(address, wire.SHOP_QUERY)[0] == 200


def test_tokens_end():
    with served(token_life=timedelta(minutes=1)) as (_, clock, address):
        form = b"grant_type=client_credentials&client_id=simulated-client&client_secret=simulated-client-secret"
        with urlopen(Request(address + TOKEN_PATH, form), timeout=10) as answer:
            told = json.load(answer)
        assert told["expires_in"] == 59
        assert post(address, wire.SHOP_QUERY, token=told["access_token"])[0] == 200
        clock.advance(60)
        code, answer, _ = post(address, wire.SHOP_QUERY, token=told["access_token"])
        assert (code, "Invalid API key" in answer["errors"]) == (401, True)
        assert post(address, wire.SHOP_QUERY, token="")[0] == 401


@pytest.mark.parametrize(
    ("query", "variables", "code"),
    [
        ("query{shop{secret}}", None, None),
        ("query{nothing{id}}", None, "undefinedField"),
        ("query($i:[ID!]!){nodes(ids:$i){...on ProductVariant{barcode}}}", {"i": []}, "undefinedField"),
        ("mutation{shop{name}}", None, "undefinedField"),
        ("{shop{name} nodes{id}}", None, "undefinedField"),
        (wire.READ_QUERY, {"i": "x"}, "INVALID_VARIABLE"),
        (wire.READ_QUERY, {"i": ["x"] * 251}, "MAX_INPUT_SIZE_EXCEEDED"),
        (wire.PAGE_QUERY, {"n": 251, "a": None}, "MAX_COST_EXCEEDED"),
        (PARTIAL, changes(0, "cheap"), "INVALID_VARIABLE"),
        (PARTIAL, changes(0, True), "INVALID_VARIABLE"),
    ],
)
def test_what_cannot_be_asked(query, variables, code):
    with served() as (simulator, _, address):
        status, answer, _ = post(address, query, variables)
        assert status == 200
        assert (answer["errors"][0]["extensions"]["code"] if code else answer["data"]["shop"]["name"]) == (
            code or "Simulated store"
        )
        assert not [entry for entry in simulator.journal if isinstance(entry, Write | Mutation)]
        assert post(address, query, variables, path="/admin/api/unstable")[0] == 404


@pytest.mark.parametrize("document", ["subscription{a}", "{...on{a}}", "{... X{a}}", "{...on X}", "query{a}{b}"])
def test_documents_that_are_none(document):
    with pytest.raises(BadDocument):
        operation(document)


def test_a_document_is_looked_at_once():
    assert plan(wire.UPDATE) is plan(wire.UPDATE)
    assert operation("mutation($a:Int){a{...on B{c} d}}")[0] == "mutation"


def test_faults_by_turn_by_number_and_by_chance():
    with served() as (simulator, _, address):
        simulator.faults["shop"].append(Fault(502, {"errors": "x"}))
        simulator.every["shop", 4] = Fault(503, {"errors": "x"})
        assert [post(address, wire.SHOP_QUERY)[0] for _ in range(8)] == [502, 200, 200, 503, 200, 200, 200, 503]
        simulator.every.clear()
        simulator.chances["shop"] = (0.5, Fault(500, {"errors": "x"}))
        seen = [post(address, wire.SHOP_QUERY)[0] for _ in range(60)]
        assert 15 < seen.count(500) < 45


def test_a_failure_comes_before_or_after_the_prices_are_set():
    with served() as (simulator, _, address):
        first = next(iter(simulator.admin.store))
        for carried_out, price in ((False, first.price), (True, "5.00")):
            simulator.faults["update"].append(Fault(502, {"errors": "x"}, carried_out=carried_out))
            assert post(address, PARTIAL, changes(0, "5"))[0] == 502
            assert first.price == price
        told = [(entry.answer, entry.points) for entry in simulator.journal if isinstance(entry, Mutation)]
        assert told == [("lost", 10.2)]


def test_edits_by_others_are_repeatable_and_told():
    def edited(seed: int) -> list[Write]:
        with served(seed=seed, edits=0.5) as (simulator, _, address):
            for _ in range(20):
                post(address, wire.SHOP_QUERY)
            return [entry for entry in simulator.journal if isinstance(entry, Write)]

    assert [entry.variant for entry in edited(1)] == [entry.variant for entry in edited(1)]
    assert [entry.variant for entry in edited(1)] != [entry.variant for entry in edited(2)]
    assert {entry.who for entry in edited(1)} == {OTHER}
    assert 3 < len(edited(3)) < 17


def read(number: int, *variants: str) -> Read:
    return Read(number, 0.0, "t", variants, 1.0)


def mutation(number: int, *variants: str) -> Mutation:
    return Mutation(number, 0.0, "t", "p", variants, 10.2, "given")


def write(number: int, before: str, after: str, who: str = "t") -> Write:
    return Write(number, 0.0, who, "p", "v", (before, None), (after, None))


def test_a_journal_proves_what_was_repeated_unread():
    entries: list[Entry] = [mutation(0, "a", "b"), read(1, "a"), mutation(2, "a"), mutation(3, "a"), read(4, "b")]
    entries += [mutation(5, "b"), read(6, ALL), mutation(7, "a", "b"), mutation(8, "b", "c")]
    assert [entry.number for entry in repeated_unread(entries)] == [3, 8]
    assert mutations_per_product(entries) == {"p": 6}
    assert from_lines(to_lines(entries)) == entries


def test_a_journal_proves_what_was_overwritten():
    entries: list[Entry] = [write(0, "1", "2"), write(1, "2", "9", OTHER), write(2, "9", "1"), write(3, "1", "2")]
    entries += [write(4, "2", "8", OTHER), write(5, "8", "8")]
    assert [entry.number for entry in overwritten(entries)] == [2]
    assert prices_seen(entries) == {"v": [(price, None) for price in ("1", "2", "9", "1", "2", "8", "8")]}


def test_products_and_variants_go_and_come():
    store = Store(3, NOW, variants=2)
    store.delete_variant("1000002")
    store.delete_product("1000")
    added = store.add(NOW, ["5.00", "6.00"])
    assert [variant.id for variant in store] == ["1000003", "1000004", "1000005", "1000006", "1000007"]
    assert [variant.price for variant in added.variants] == ["5.00", "6.00"]
    assert store.page("1000004", 2)[0] == [store.variants["1000005"], store.variants["1000006"]]
    assert store.page("1000004", 2)[1]
    assert store.page("1000006", 2) == ([store.variants["1000007"]], False)


def test_a_bucket_is_never_fuller_than_full():
    clock = VirtualClock(NOW)
    bucket = Bucket(clock, 100, 10)
    assert bucket.take(100)
    assert not bucket.take(0.5)
    clock.advance(3)
    assert bucket.available == pytest.approx(30)
    bucket.give_back(500)
    assert bucket.available == 100


def test_in_a_process_of_its_own_it_is_quick_and_its_journal_can_be_read(tmp_path):
    (tmp_path / "token").write_text("shpat_simulated_admin_token")

    async def update_all(url: str, products: int) -> int:
        shopify = Shopify(url, Secret("file", str(tmp_path / "token")), SystemClock())
        lost = 0
        for product in range(products):
            variants = [VariantPrice(str(1_000_000 + 4 * product + one), "7.50") for one in range(4)]
            try:
                await shopify.update(str(1_000 + product), variants)
            except InDoubt:
                lost += 1
        await shopify.close()
        return lost

    with in_process(500, "--burst", "1e9", "--rate", "1e9", "--seed", "3") as about:
        before = control(about)
        began = time.monotonic()
        assert asyncio.run(update_all(about["shop_url"], 500)) == 0
        told = control(about, lost=0.3)
        each = (told["cpu_seconds"] - before["cpu_seconds"]) / 500
        assert each < 0.002, f"{each * 1000:.2f} ms a mutation"  # usually 0.2, on a machine that others use too
        assert told["points_charged"] == pytest.approx(500 * 10.8)
        lost = asyncio.run(update_all(about["shop_url"], 60))
        assert 5 < lost < 35
        control(about, edit={"1000000": "1.11"}, edit_any=2, delete_variants=["1000001"], delete_products=["1001"])
        entries = journal(about)
        assert [entry.number for entry in entries] == list(range(len(entries)))
        mutations = [entry for entry in entries if isinstance(entry, Mutation)]
        assert [entry.answer for entry in mutations].count("lost") == lost
        assert mutations_per_product(entries).most_common(1)[0][1] == 2
        assert len(repeated_unread(entries)) == 60
        assert sum(isinstance(entry, Write) and entry.who == OTHER for entry in entries) == 3
        assert journal(about, after=len(entries) - 1) == entries[-1:]
        assert prices_seen(entries)["1000000"][-2:] == [("7.50", None), ("1.11", None)]
        assert began <= entries[0].at <= time.monotonic()
        assert control(about)["variants"] == 2_000 - 1 - 4


def test_it_can_be_controlled_on_a_usual_server_too():
    simulator = ShopifySimulator(VirtualClock(NOW))
    with in_thread(Controlled(simulator)) as address:
        about = {"control_url": f"{address}/simulator", "journal_url": f"{address}/simulator/journal"}
        assert control(about, edit_any=3, refuses=1.0, latency=0.0)["entries"] == 3
        assert journal(about, after=1) == simulator.journal[1:]
        _, answer, _ = post(address, PARTIAL, changes(0, "5"))
        assert [one["code"] for one in answer["data"]["productVariantsBulkUpdate"]["userErrors"]] == ["INVALID_INPUT"]


def test_lost_answers_are_cut_off_on_a_usual_server_too():
    with served() as (simulator, _, address):
        simulator.faults["update"].append(LOST)
        with pytest.raises(IncompleteRead):
            post(address, PARTIAL, changes(0, "5"))
        assert next(iter(simulator.admin.store)).price == "5.00"

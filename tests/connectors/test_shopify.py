"""The connector, through real HTTP on loopback, against Shopify's simulator."""

from __future__ import annotations

import asyncio
import json
import socket
from datetime import timedelta

import pytest

from penstock.connectors.http.download import LinkExpired, RefusedLink
from penstock.connectors.prices import FREE, Cost, Refusal, VariantPrice, is_price
from penstock.connectors.shopify.client import (
    CATALOGUE,
    PRICES,
    BulkStatus,
    ClientCredentials,
    Shopify,
    page_cost,
    read_cost,
    write_cost,
)
from penstock.connectors.shopify.errors import BucketEmpty
from penstock.model.clock import VirtualClock
from penstock.model.errors import Fatal, InDoubt, Rejected, StepError, Throttled, Transient, UsageError
from penstock.settings.secret import Secret
from penstock.simulators.shopify_faults import LOST, Fault, errors, slow
from penstock.simulators.shopify_journal import Mutation, Write
from tests.support.shopify import NOW, Site, on, prices

BOTH = pytest.mark.parametrize("lean", [True, False])


@BOTH
@pytest.mark.parametrize("admin", [True, False])
def test_every_variant_comes_once_with_all_that_rules_ask_for(tmp_path, admin, lean):
    async def test(s: Site) -> None:
        shop = await s.shopify.shop()
        assert (shop.currency, shop.name) == ("EUR", "Simulated store")
        items = await s.everything()
        assert len({item.variant_id for item in items}) == len(items) == 80
        for item, variant in zip(items, s.store, strict=True):
            product = variant.product
            assert (item.variant_id, item.product_id, item.sku) == (variant.id, product.id, variant.sku)
            assert (item.title, item.vendor, item.tags) == (product.title, product.vendor, product.tags)
            assert (item.price, item.compare_at_price, item.cost) == (variant.price, variant.compare_at, variant.cost)
            assert (item.status, item.reference_price, item.updated_at) == ("active", None, NOW)
        assert s.shopify.notice is None

    on(tmp_path, test, admin=admin, lean=lean)


def test_a_product_with_more_variants_than_a_page_loses_none(tmp_path):
    async def test(s: Site) -> None:
        s.simulator.points.maximum = 10_000
        items = await s.everything(size=7)
        assert [item.variant_id for item in items] == [variant.id for variant in s.store]
        assert len(items) == 600
        for wrong in (0, 201):
            with pytest.raises(UsageError, match="1 to 200"):
                await s.shopify.catalogue_page(None, wrong)

    on(tmp_path, test, products=2, variants=300)


def test_variants_of_many_products_are_read_at_once(tmp_path):
    async def test(s: Site) -> None:
        ids = [variant.id for variant in s.store][:250]
        s.store.delete_variant(ids[3])
        found, cost = await s.shopify.variants([*ids[:248], "no-id", "\u0661"])
        assert list(found) == [one for one in ids[:248] if one != ids[3]]
        assert all(found[one].price == s.store.variants[one].price for one in found)
        assert all(found[one].compare_at_price == s.store.variants[one].compare_at for one in found)
        assert found[ids[0]].updated_at == NOW
        assert cost == Cost(248.0, 247.0, 2_000 - 247.0, 100.0, 2_000.0)
        assert read_cost(248) == 248
        assert await s.shopify.variants(["x"]) == ({}, FREE)
        for wrong in ([], [*ids, "1"]):
            with pytest.raises(UsageError, match="1 to 250"):
                await s.shopify.variants(wrong)
        assert s.simulator.counted["read"] == 1

    on(tmp_path, test, products=100)


@BOTH
def test_prices_are_set_by_one_mutation_for_all_variants_of_a_product(tmp_path, lean):
    async def test(s: Site) -> None:
        variants = s.of(0)
        outcome, cost = await s.shopify.update(variants[0].product.id, prices(variants, "19.9", "24"))
        assert outcome == {variant.id: None for variant in variants}
        assert (cost.requested, cost.actual) == (write_cost(4), write_cost(4)) == (10.8, 10.8)
        assert {variant.prices for variant in variants} == {("19.90", "24.00")}
        await s.shopify.update(variants[0].product.id, prices(variants, "19.90", None))
        assert {variant.prices for variant in variants} == {("19.90", None)}
        assert s.simulator.counted["update"] == 2

    on(tmp_path, test, lean=lean)


def test_what_is_refused_is_told_variant_by_variant_and_the_others_are_set(tmp_path):
    async def test(s: Site) -> None:
        variants, stranger = list(s.of(0)), s.of(1)[0]
        product = variants[0].product.id
        s.store.delete_variant(variants[1].id)
        s.simulator.admin.refusals[variants[2].id] = ("INVALID_INPUT", "No")
        outcome, _ = await s.shopify.update(product, prices([*variants, stranger], "3.00"))
        assert outcome == {
            variants[0].id: None,
            variants[1].id: Refusal("PRODUCT_VARIANT_DOES_NOT_EXIST", "Product variant does not exist"),
            variants[2].id: Refusal("INVALID_INPUT", "No"),
            variants[3].id: None,
            stranger.id: Refusal("MUST_BE_FOR_THIS_PRODUCT", "Product variant must be for this product"),
        }
        assert [variant.price for variant in variants if variant.id in s.store.variants][0::2] == ["3.00", "3.00"]
        s.store.delete_product(product)
        with pytest.raises(Rejected, match="PRODUCT_DOES_NOT_EXIST"):
            await s.shopify.update(product, prices(variants))

    on(tmp_path, test)


def test_what_would_never_be_taken_is_not_sent(tmp_path):
    async def test(s: Site) -> None:
        good, *bad = s.of(0)
        product = good.product.id
        wrong = ("-1.00", "NaN", "1e3")
        changes = [VariantPrice(one.id, price) for one, price in zip(bad, wrong, strict=True)]
        outcome, _ = await s.shopify.update(product, [*changes, VariantPrice(good.id, "1.00"), VariantPrice("x", "1")])
        assert {one: refusal and refusal.code for one, refusal in outcome.items()} == {
            **{one.id: "INVALID_PRICE" for one in bad},
            good.id: None,
            "x": "INVALID_ID",
        }
        assert [e.variants for e in s.simulator.journal if isinstance(e, Mutation)] == [(good.id,)]
        assert (await s.shopify.update(product, changes))[1] == FREE
        with pytest.raises(Rejected, match="not the id of a product"):
            await s.shopify.update("gid://1", prices([good]))
        for many in ([], prices([good]) * 2, [VariantPrice(str(one), "1") for one in range(251)]):
            with pytest.raises(UsageError, match="1 to 250 different variants"):
                await s.shopify.update(product, many)
        assert s.simulator.counted["update"] == 1

    on(tmp_path, test)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        *((text, True) for text in ("19.99", "0", "100000.5")),
        *((text, False) for text in (" 1", "1.", ".5", "+1", "-1", "1e3", "NaN", "Infinity", "1,5", "\u0661", "")),
        *((text, False) for text in ("1\n", "9" * 40, 5, None)),
    ],
)
def test_a_price_is_a_plain_decimal(text, good):
    assert is_price(text) is good


UPDATED = {"product": {"id": "gid://shopify/Product/1"}, "productVariants": [], "userErrors": []}
COST = {"requestedQueryCost": 752, "actualQueryCost": None}
STATUS = {"maximumAvailable": 1000.0, "currentlyAvailable": 666, "restoreRate": 50.0}


def said(**updated: object) -> Fault:
    return Fault(200, {"data": {"productVariantsBulkUpdate": {**UPDATED, **updated}}})


def about(variant: str, price: object = "7.50", **more: object) -> dict[str, object]:
    return {"id": f"gid://shopify/ProductVariant/{variant}", "price": price, "compareAtPrice": None, **more}


ANSWERS_IN_DOUBT = {
    "nothing said": said(),
    "no variants": said(productVariants=None),
    "one of two": said(productVariants=[about("1000000")]),
    "another price": said(productVariants=[about("1000000"), about("1000001", "7.49")]),
    "another compare price": said(productVariants=[about("1000000"), about("1000001", compareAtPrice="9.00")]),
    "a number": said(productVariants=[about("1000000", 7.5), about("1000001")]),
    "no price": said(productVariants=[about("1000000", "-7.50"), about("1000001")]),
    "no id": said(productVariants=[about("x"), about("1000001")]),
    "against all, and set": said(
        productVariants=[about("1000000"), about("1000001")], userErrors=[{"field": None, "message": "x", "code": "Y"}]
    ),
    "against one, and set": said(
        productVariants=[about("1000000"), about("1000001")],
        userErrors=[{"field": ["variants", "0", "price"], "message": "x", "code": "Y"}],
    ),
    "errors as a text": said(userErrors="no"),
    "no payload": Fault(200, {"data": {"productVariantsBulkUpdate": None}}),
    "no data": Fault(200, {"data": None}),
    "an array": Fault(200, []),
    "nothing": Fault(200, b""),
    "half of it": Fault(200, b'{"data":{"productVariantsBulkUpdate":{"produ'),
    "a page": Fault(200, b"<html>Something went wrong</html>"),
    "a page with 400": Fault(400, b"<html>Bad request</html>"),
    "a redirect": Fault(302, b"", (("location", "https://example.com/maintenance"),)),
    "500": Fault(500),
    "502": Fault(502),
    "503": Fault(503, b"", (("retry-after", "1"),)),
    "504": Fault(504, {"errors": "Gateway timeout"}),
    "520": Fault(520, b"<html>"),
    "408": Fault(408, b""),
    "internal": errors("Internal error", "INTERNAL_SERVER_ERROR"),
    "an unknown error": errors("something new"),
    "throttled, and carried out": Fault(
        200,
        {
            "data": {"productVariantsBulkUpdate": UPDATED},
            "errors": [{"message": "Throttled", "extensions": {"code": "THROTTLED"}}],
        },
    ),
    "cut": Fault(cut=True),
    "deep": Fault(200, b"[" * 100_000),
    "not UTF-8": Fault(200, b'{"data":"\xff"}'),
}


@pytest.mark.parametrize("name", ANSWERS_IN_DOUBT)
@pytest.mark.parametrize("carried_out", [True, False])
def test_a_write_whose_answer_does_not_say_what_became_of_it_is_in_doubt(tmp_path, name, carried_out):
    fault = ANSWERS_IN_DOUBT[name]
    if carried_out:
        fault = Fault(fault.status, fault.body, fault.headers, carried_out=True, cut=fault.cut)

    async def test(s: Site) -> None:
        variants = s.of(0)
        assert [variant.id for variant in variants] == ["1000000", "1000001"]
        s.simulator.faults["update"].append(fault)
        with pytest.raises(InDoubt):
            await s.shopify.update(variants[0].product.id, prices(variants))
        assert s.simulator.counted["update"] == 1, "it is sent once"
        found, _ = await s.shopify.variants([variant.id for variant in variants])
        assert ({one.price for one in found.values()} == {"7.50"}) == carried_out, "a read tells"

    on(tmp_path, test, products=1, variants=2)


NOT_READ = {name: fault for name, fault in ANSWERS_IN_DOUBT.items() if not isinstance(fault.body, dict)} | {
    "internal": errors("Internal error", "INTERNAL_SERVER_ERROR"),
    "no nodes": Fault(200, {"data": {"nodes": None}}),
    "fewer": Fault(200, {"data": {"nodes": []}}),
    "another one": Fault(200, {"data": {"nodes": [about("7"), None]}}),
    "a price of another type": Fault(200, {"data": {"nodes": [about("1000000", 7.5), None]}}),
    "a price that is none": Fault(200, {"data": {"nodes": [about("1000000", "1e3"), None]}}),
    "an id that is none": Fault(
        200, {"data": {"nodes": [{**about("1"), "id": "gid://shopify/Product/1000000"}, None]}}
    ),
    "another type": Fault(200, {"data": {"nodes": [{}, None]}}),
    "errors beside data": Fault(
        200, {"data": {"nodes": [None, None]}, "errors": [{"message": "Timeout", "path": ["nodes", 0]}]}
    ),
}


@pytest.mark.parametrize("name", NOT_READ)
def test_a_read_without_an_answer_to_be_believed_is_transient(tmp_path, name):
    async def test(s: Site) -> None:
        ids = [variant.id for variant in s.of(0)]
        s.simulator.faults["read"].append(NOT_READ[name])
        with pytest.raises(Transient):
            await s.shopify.variants(ids)
        assert len((await s.shopify.variants(ids))[0]) == 2

    on(tmp_path, test, products=1, variants=2)


@pytest.mark.parametrize(
    "answer",
    [
        {"productVariants": None},
        {"productVariants": {"nodes": [], "pageInfo": {"hasNextPage": True, "endCursor": None}}},
        {"productVariants": {"nodes": [], "pageInfo": {"hasNextPage": True, "endCursor": "5"}}},
        {"productVariants": {"nodes": [about("1", product=None)], "pageInfo": {"hasNextPage": False}}},
        {"productVariants": {"nodes": [None], "pageInfo": {"hasNextPage": False}}},
    ],
)
def test_a_page_that_cannot_be_is_transient(tmp_path, answer):
    async def test(s: Site) -> None:
        s.simulator.faults["page"].append(Fault(200, {"data": answer}))
        with pytest.raises(Transient):
            await s.shopify.catalogue_page("5", 10)

    on(tmp_path, test)


def throttled(cost: object = None, status: int = 200, retry_after: str | None = None) -> Fault:
    body = {"errors": [{"message": "Throttled", "extensions": {"code": "THROTTLED"}}]}
    headers = () if retry_after is None else (("retry-after", retry_after),)
    return Fault(status, body if cost is None else {**body, "extensions": {"cost": cost}}, headers)


@pytest.mark.parametrize("operation", ["read", "update"])
@pytest.mark.parametrize(
    ("fault", "wait"),
    [
        (throttled({**COST, "throttleStatus": STATUS}), 86 / 50),
        (throttled({**COST, "throttleStatus": STATUS}, 429, "9"), 86 / 50),
        (throttled(), None),
        (throttled(None, 429), None),
        (throttled(None, 429, "7"), 7),
        (throttled(None, 429, "2.0"), 2),
        (throttled(None, 429, "Sun, 15 Nov 2026 12:00:30 GMT"), 30),
        (throttled({**COST, "throttleStatus": {**STATUS, "restoreRate": 0}}, 429, "3"), 3),
        (throttled({**COST, "throttleStatus": {**STATUS, "currentlyAvailable": 900}}, 200, "4"), 4),
        (throttled({**COST, "throttleStatus": {**STATUS, "currentlyAvailable": "many"}}), None),
        (throttled([], 429, "5"), 5),
        (Fault(429, {"errors": "Exceeded 2 calls per second"}, (("retry-after", "2.0"),)), 2),
        (Fault(429, b"<html>Too many requests</html>"), None),
    ],
)
def test_a_throttle_says_how_long(tmp_path, fault, wait, operation):
    async def test(s: Site) -> None:
        s.simulator.faults[operation].append(fault)
        with pytest.raises(Throttled) as caught:
            await (
                s.shopify.variants([s.of(0)[0].id])
                if operation == "read"
                else s.shopify.update(s.of(0)[0].product.id, prices(s.of(0)))
            )
        assert caught.value.retry_after == (None if wait is None else pytest.approx(wait))
        assert not [entry for entry in s.simulator.journal if isinstance(entry, Write)]

    on(tmp_path, test)


@pytest.mark.parametrize("status", [200, 429])
def test_after_the_wait_the_bucket_holds_enough(tmp_path, status):
    async def test(s: Site) -> None:
        ids = [variant.id for variant in s.store]
        for _ in range(8):
            await s.shopify.variants(ids[:250])
        with pytest.raises(BucketEmpty) as caught:
            await s.shopify.variants(ids[:250])
        assert caught.value.retry_after == pytest.approx(2.5)
        assert caught.value.cost == Cost(250.0, None, 0.0, 100.0, 2_000.0)
        s.clock.advance(2.4)
        with pytest.raises(BucketEmpty):
            await s.shopify.variants(ids[:250])
        s.clock.advance(0.1)
        _, cost = await s.shopify.variants(ids[:250])
        assert cost.available == 0

    on(tmp_path, test, products=63, throttle_status=status)


REFUSED = {
    "402": (Fault(402, {"errors": "This shop is unavailable"}), Fatal),
    "403": (Fault(403, {"errors": "[API] This action requires merchant approval"}), Fatal),
    "404": (Fault(404, {"errors": "Not Found"}), Fatal),
    "423": (Fault(423, {"errors": "Locked"}), Fatal),
    "denied": (errors("Access denied for productVariantsBulkUpdate field.", "ACCESS_DENIED"), Fatal),
    "inactive": (errors("Inactive", "SHOP_INACTIVE"), Fatal),
    "our document": (errors("Field 'x' doesn't exist on type 'Mutation'", "undefinedField"), Fatal),
    "too dear": (errors("Query cost is 2000", "MAX_COST_EXCEEDED"), Rejected),
    "a value": (errors("Variable $v was provided invalid value", "INVALID_VARIABLE"), Rejected),
    "a request": (Fault(400, {"errors": {"query": "Required parameter missing or invalid"}}), Rejected),
}


@pytest.mark.parametrize("operation", ["read", "update"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_will_never_work(tmp_path, name, operation):
    fault, kind = REFUSED[name]

    async def test(s: Site) -> None:
        s.simulator.faults[operation].append(fault)
        call = s.shopify.variants([s.of(0)[0].id])
        if operation == "update":
            call.close()
            call = s.shopify.update(s.of(0)[0].product.id, prices(s.of(0)))  # type: ignore[assignment]
        with pytest.raises(kind):
            await call

    on(tmp_path, test)


def test_errors_against_no_certain_variant_are_against_all(tmp_path):
    async def test(s: Site) -> None:
        variants = s.of(0)
        for where in (None, [], ["productId"], ["variants"], ["variants", "9", "price"], ["variants", "x"], "price"):
            complaint = {"field": where, "message": "No", "code": "INVALID_INPUT"}
            own = {"field": ["variants", 1, "price"], "message": "Own", "code": "NEGATIVE_PRICE_VALUE"}
            s.simulator.faults["update"].append(said(userErrors=[own, complaint]))
            outcome, _ = await s.shopify.update("1000", prices(variants))
            assert outcome == {
                variants[0].id: Refusal("INVALID_INPUT", "No"),
                variants[1].id: Refusal("NEGATIVE_PRICE_VALUE", "Own"),
            }

    on(tmp_path, test, products=1, variants=2)


def test_what_never_left_is_not_in_doubt(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    (tmp_path / "token").write_text("shpat_token")

    async def test() -> None:
        shopify = Shopify(address, Secret("file", str(tmp_path / "token")), VirtualClock(NOW))
        with pytest.raises(Transient, match="could not connect"):
            await shopify.update("1", [VariantPrice("2", "1.00")])
        await shopify.close()

    asyncio.run(test())


def test_a_token_is_renewed_before_its_end_and_once_when_it_is_refused(tmp_path):
    async def test(s: Site) -> None:
        variants = s.of(0)
        product = variants[0].product.id
        await s.shopify.shop()
        s.clock.advance(timedelta(hours=23, minutes=58).total_seconds())
        await s.shopify.shop()
        assert s.simulator.counted["token"] == 1
        s.clock.advance(90)
        await s.shopify.shop()
        assert s.simulator.counted["token"] == 2
        s.simulator.expire_tokens()
        outcome, _ = await s.shopify.update(product, prices(variants))
        assert set(outcome.values()) == {None}
        assert s.simulator.counted["token"] == 3
        s.simulator.faults["shop"].extend([Fault(401, {"errors": "no"}), Fault(401, {"errors": "no"})])
        with pytest.raises(Fatal, match="401"):
            await s.shopify.shop()
        assert s.simulator.counted["token"] == 4

    on(tmp_path, test)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(401, {"error": "invalid_client"}), Fatal),
        (Fault(400, {"error": "shop_not_permitted"}), Fatal),
        (Fault(404, b"<html>"), Fatal),
        (Fault(302, b"", (("location", "/login"),)), Transient),
        (Fault(200, b"<html>"), Transient),
        (Fault(200, {"access_token": "x", "expires_in": "soon"}), Transient),
        (Fault(502), Transient),
        (Fault(429, b"", (("retry-after", "3"),)), Throttled),
        (Fault(cut=True), Transient),
    ],
)
def test_a_login_that_fails(tmp_path, fault, kind):
    async def test(s: Site) -> None:
        s.simulator.faults["token"].append(fault)
        with pytest.raises(kind):
            await s.shopify.update("1000", prices(s.of(0)))
        assert not s.simulator.journal

    on(tmp_path, test)


def test_an_admin_token_that_was_replaced_is_read_anew(tmp_path):
    async def test(s: Site) -> None:
        await s.shopify.shop()
        s.simulator.revoke_admin_token()
        with pytest.raises(Fatal, match="refuses the admin token"):
            await s.shopify.shop()
        s.simulator._tokens["shpat_another_token"] = None
        (tmp_path / "secret").write_text("shpat_another_token")
        await s.shopify.shop()
        (tmp_path / "secret").unlink()
        s.simulator._tokens.clear()
        with pytest.raises(Fatal, match="cannot be read"):
            await s.shopify.shop()

    on(tmp_path, test, admin=True)


def test_secrets_stand_in_no_error(tmp_path):
    async def test(s: Site) -> None:
        await s.shopify.shop()
        token = next(iter(set(s.simulator._tokens) - {s.simulator.admin_token}))
        for body in (f"<html>{token} {s.simulator.client_secret}", {"errors": [{"message": f"bad {token}"}]}):
            s.simulator.faults["shop"].append(Fault(403 if isinstance(body, str) else 200, body))
            with pytest.raises(StepError) as caught:
                await s.shopify.shop()
            assert token not in str(caught.value)
            assert s.simulator.client_secret not in str(caught.value)
        complaint = {"field": ["variants", "0"], "message": f"by {token}", "code": "X"}
        s.simulator.faults["update"].append(said(userErrors=[complaint]))
        outcome, _ = await s.shopify.update("1000", prices(s.of(0)[:1]))
        assert token not in str(outcome)

    on(tmp_path, test)


def test_another_version_of_the_api_is_noticed(tmp_path):
    async def test(s: Site) -> None:
        await s.shopify.shop()
        assert s.shopify.notice == "Shopify answers in version 2027-01 of its API, and 2026-10 was asked for"
        s.simulator.served_version = None
        await s.shopify.shop()
        assert s.shopify.notice is None

    on(tmp_path, test, served_version="2027-01")


@pytest.mark.parametrize(
    "extensions",
    [
        None,
        [],
        {"cost": 5},
        {"cost": {"requestedQueryCost": "x", "throttleStatus": []}},
        {"cost": {"requestedQueryCost": -1}},
        {"cost": {"requestedQueryCost": True, "throttleStatus": {"currentlyAvailable": 1e300}}},
    ],
)
def test_where_the_cost_is_not_told_it_is_the_expected_one(tmp_path, extensions):
    async def test(s: Site) -> None:
        ids = [variant.id for variant in s.of(0)]
        answer = {"data": {"nodes": [None] * 4}, "extensions": extensions}
        s.simulator.faults["read"].append(Fault(200, answer))
        assert await s.shopify.variants(ids) == ({}, Cost(4.0))

    on(tmp_path, test)


def test_the_largest_page_costs_less_than_one_query_may(tmp_path):
    async def test(s: Site) -> None:
        page = await s.shopify.catalogue_page(None, 200)
        assert (len(page.items), page.cost.requested) == (200, page_cost(200))
        assert page.cost.requested <= 1_000

    on(tmp_path, test, products=100)


def test_a_slow_answer_is_an_answer(tmp_path):
    async def test(s: Site) -> None:
        s.simulator.faults["update"].append(slow(0.2))
        began = asyncio.get_running_loop().time()
        outcome, _ = await s.shopify.update("1000", prices(s.of(0)))
        assert set(outcome.values()) == {None}
        assert asyncio.get_running_loop().time() - began >= 0.2

    on(tmp_path, test)


@BOTH
@pytest.mark.parametrize("query", [PRICES, CATALOGUE])
def test_a_whole_store_is_read_by_a_bulk_query(tmp_path, query, lean):
    async def test(s: Site) -> None:
        s.simulator.admin.bulk_seconds = 5
        bulk_id = await s.shopify.bulk_start(query)
        status = await s.shopify.bulk_status(bulk_id)
        assert (status.state, status.said) == ("pending", "RUNNING")
        with pytest.raises(UsageError, match="it is RUNNING"):
            await anext(s.shopify.bulk_variants(status))
        s.clock.advance(5)
        status = await s.shopify.bulk_status(bulk_id)
        assert (status.state, status.objects) == ("completed", 4_000)
        if query == PRICES:
            variants = [one async for batch in s.shopify.bulk_variants(status) for one in batch]
            assert {one.variant_id: (one.price, one.compare_at_price) for one in variants} == {
                one.id: one.prices for one in s.store
            }
        else:
            items = [one async for batch in s.shopify.bulk_items(status) for one in batch]
            page = await s.shopify.catalogue_page(None, 200)
            assert items[:200] == page.items
            assert len(items) == 4_000

    on(tmp_path, test, products=1_000, lean=lean)


def test_bulk_queries_that_fail(tmp_path):
    async def test(s: Site) -> None:
        with pytest.raises(Rejected, match="INVALID"):
            await s.shopify.bulk_start("{nonsense{id}}")
        s.simulator.admin.bulk_seconds, s.simulator.admin.bulk_limit, s.simulator.admin.bulk_failures = 9, 1, 1
        bulk_id = await s.shopify.bulk_start(PRICES)
        with pytest.raises(Transient, match="OPERATION_IN_PROGRESS"):
            await s.shopify.bulk_start(PRICES)
        s.clock.advance(9)
        status = await s.shopify.bulk_status(bulk_id)
        assert (status.state, status.said) == ("failed", "FAILED INTERNAL_SERVER_ERROR")
        assert (await s.shopify.bulk_status("77")).state == "failed"
        s.simulator.faults["bulk"].append(Fault(502))
        with pytest.raises(Transient):
            await s.shopify.bulk_start(PRICES)
        with pytest.raises(RefusedLink):
            await anext(s.shopify.bulk_variants(BulkStatus("1", "completed", "", "https://evil.example.com/x", 1)))

    on(tmp_path, test)


def test_a_store_without_variants_has_an_empty_result(tmp_path):
    async def test(s: Site) -> None:
        status = await s.shopify.bulk_status(await s.shopify.bulk_start(PRICES))
        assert (status.state, status.url, status.objects) == ("completed", None, 0)
        assert [batch async for batch in s.shopify.bulk_variants(status)] == []
        assert (await s.shopify.catalogue_page(None, 10)).items == []

    on(tmp_path, test, products=0)


LINE = json.dumps(about("1")).encode() + b"\n"


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(200, LINE), Transient),
        (Fault(200, LINE * 81), Transient),
        (Fault(200, LINE * 79 + b'{"id":'), Transient),
        (Fault(200, b"<html>"), Transient),
        (Fault(200, b"x" * (2 << 20)), Transient),
        (Fault(200, LINE * 79 + LINE.replace(b"7.50", b"-7")), Transient),
        (Fault(403), LinkExpired),
        (Fault(500), Transient),
        (Fault(cut=True), Transient),
    ],
)
def test_a_result_that_breaks_off_or_cannot_be_read_is_transient(tmp_path, fault, kind):
    async def test(s: Site) -> None:
        status = await s.shopify.bulk_status(await s.shopify.bulk_start(PRICES))
        s.simulator.faults["download"].append(fault)
        with pytest.raises(kind):
            async for _ in s.shopify.bulk_variants(status):
                pass
        assert len([one async for batch in s.shopify.bulk_variants(status) for one in batch]) == 80

    on(tmp_path, test)


def test_a_lost_answer_is_told_by_a_read(tmp_path):
    async def test(s: Site) -> None:
        variants = s.of(0)
        s.simulator.faults["update"].append(LOST)
        with pytest.raises(InDoubt):
            await s.shopify.update(variants[0].product.id, prices(variants))
        found, _ = await s.shopify.variants([variant.id for variant in variants])
        assert {one.price for one in found.values()} == {"7.50"}

    on(tmp_path, test)


def test_an_address_that_is_not_https_is_refused():
    secret = ClientCredentials("client", Secret("env", "SHOPIFY_SECRET"))
    with pytest.raises(UsageError, match="plain http is only for this machine"):
        Shopify("http://acme.myshopify.com", secret, VirtualClock(NOW))

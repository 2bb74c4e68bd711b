"""The connector, through real HTTP on loopback, against Google's simulator."""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import date, datetime, timedelta
from typing import Any

import pytest

from penstock.connectors.google_ads.client import GoogleAds, Query, selected, whole_paths, wire_name
from penstock.connectors.google_ads.customer import customer_digits
from penstock.connectors.google_ads.endpoint import Endpoint
from penstock.connectors.google_ads.stream import BadAnswer, BrokenStream
from penstock.connectors.http.in_process import InProcess
from penstock.connectors.records import Limits
from penstock.lifecycles.partitions.machine import Extraction
from penstock.model import correlation
from penstock.model.clock import VirtualClock
from penstock.model.errors import Fatal, Rejected, StepError, Throttled, Transient, UsageError
from penstock.model.retry import LONGEST_WAIT
from penstock.settings.redaction import MARK, redact
from penstock.simulators.google_ads import Fault, GoogleAdsSimulator, failure, quota
from penstock.simulators.google_data import Campaigns
from tests.support.google import CUSTOMER, DAILY, DAY, GAQL, NOW, Login, on, secrets


def test_rows_come_as_google_names_them_with_numbers_for_its_texts(tmp_path):
    async def test(g: Login) -> None:
        rows = await g.rows()
        assert len(rows) == 5
        assert [set(row) for row in rows] == [{"campaign", "metrics", "segments"}] * 5
        first = rows[0]
        assert first["campaign"]["resourceName"] == f"customers/{CUSTOMER}/campaigns/{first['campaign']['id']}"
        assert first["campaign"]["name"] == 'Campaña 0 "[{}]"'
        assert [type(first["metrics"][name]) for name in ("clicks", "costMicros", "conversions")] == [int, int, float]
        assert type(first["campaign"]["id"]) is int
        assert first["segments"] == {"date": "2026-11-14"}
        (request,) = g.simulator.calls("search_stream")
        assert request.path == f"/v26/customers/{CUSTOMER}/googleAds:searchStream"
        assert json.loads(request.body) == {"query": GAQL}
        assert "login-customer-id" not in request.headers
        assert "developer-token" not in request.headers

    on(tmp_path, test)


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 501])
def test_many_batches_are_one_answer(tmp_path, count, compress):
    async def test(g: Login) -> None:
        found = [row["campaign"]["id"] for row in await g.rows("SELECT campaign.id FROM campaign")]
        assert found == [10**10 + number for number in range(count)]

    on(tmp_path, test, campaigns=Campaigns(campaigns=count), batch_rows=2, compress=compress)


def test_a_large_answer_arrives_in_parts(tmp_path):
    async def test(g: Login) -> None:
        batches = await g.batches()
        assert len(batches) > 3
        assert sum(map(len, batches)) == 5_000

    on(tmp_path, test, campaigns=Campaigns(campaigns=5_000))


@pytest.mark.parametrize(
    "body", [None, b"[]", b" [ {} ]\n", b'[{"results": []}]', b'[{"fieldMask":"a"},{"results":[]}]']
)
def test_an_answer_without_rows_is_valid(tmp_path, body):
    async def test(g: Login) -> None:
        if body is not None:
            g.simulator.bodies.append(body)
        assert await g.rows() == []

    on(tmp_path, test, campaigns=Campaigns(campaigns=0))


def test_what_is_not_set_is_left_out_and_what_is_no_number_stays(tmp_path):
    async def test(g: Login) -> None:
        rows = await g.rows("SELECT ad_group.id, ad_group.name FROM ad_group")
        assert [set(row["adGroup"]) for row in rows[3:5]] == [{"resourceName", "id", "name"}, {"resourceName", "id"}]
        odd: tuple[dict[str, Any], ...] = {"id": "12x", "other": "7"}, {"id": str(2**63)}, {"id": None}, {"id": {}}, {}
        g.simulator.bodies.append(json.dumps([{"results": [{"campaign": part} for part in odd]}]).encode())
        found = await g.rows("SELECT campaign.id FROM campaign", fields={"campaign.other": "whole?"})
        assert [row["campaign"] for row in found] == [{"id": "12x", "other": 7}, *odd[1:]]

    on(tmp_path, test)


def test_a_customer_id_is_digits(tmp_path):
    async def test(g: Login) -> None:
        assert len(await g.rows(customer="111-111-1111")) == 5
        for wrong in ("", "12a", "1/../2", "٣٣٣", "1 2", "1" * 20, "-"):
            with pytest.raises(UsageError, match="is not a customer id"):
                await g.rows(customer=wrong)
        assert len(g.simulator.calls("search_stream")) == 1

    on(tmp_path, test)
    assert customer_digits(" 123-456-7890 ") == "1234567890"


def test_a_manager_is_named_in_the_header(tmp_path):
    async def test(g: Login) -> None:
        assert len(await g.rows()) == 5
        assert g.simulator.calls("search_stream")[0].headers["login-customer-id"] == "9999999999"

    on(tmp_path, test, through="999-999-9999", manager="9999999999")


def test_a_step_is_named_in_its_call(tmp_path):
    async def test(g: Login) -> None:
        unit = Extraction(
            unit_id="g/1/q/2026-11-14", version=7, source="g", customer_id="1", query_name="q", logical_date=DAY
        )
        correlation.STEP.set(("extraction", unit, 1))
        await g.rows()
        sent = g.simulator.calls("search_stream")[0].headers["x-correlation-id"]
        assert sent == "extraction:g/1/q/2026-11-14@7"

    on(tmp_path, test)


def test_a_token_serves_many_calls_and_is_renewed_before_it_expires(tmp_path):
    async def test(g: Login) -> None:
        await asyncio.gather(*(g.rows() for _ in range(10)))
        assert len(g.simulator.calls("token")) == 1
        g.clock.advance(3_599 - 59)
        await g.rows()
        assert len(g.simulator.calls("token")) == 2

    on(tmp_path, test)


def test_a_refused_token_is_renewed_once(tmp_path):
    async def test(g: Login) -> None:
        await g.rows()
        g.simulator.expire_tokens()
        assert len(await g.rows()) == 5
        assert len(g.simulator.calls("token")) == 2
        g.simulator.faults["search_stream"].extend([Fault(401, b"no"), Fault(401, b"no")])
        with pytest.raises(Fatal, match="401"):
            await g.rows()
        assert len(g.simulator.calls("search_stream")) == 5

    on(tmp_path, test)


@pytest.mark.parametrize("wrong", ["refresh", "client"])
def test_revoked_credentials_are_fatal_and_never_shown(tmp_path, wrong):
    async def test(g: Login) -> None:
        (tmp_path / wrong).write_text("revoked-or-mistyped-secret")
        with pytest.raises(Fatal, match=r"invalid_grant|invalid_client") as caught:
            await g.rows()
        assert "revoked-or-mistyped-secret" not in str(caught.value)
        assert not g.simulator.calls("search_stream")
        secrets(tmp_path, g.simulator)
        await g.rows()
        assert redact("ya29.simulated-000001") == MARK

    on(tmp_path, test)


ODD = {"error": {"code": "x", "message": 7, "details": [None, {"errors": [3, {"errorCode": [], "details": 1}]}]}}
NOT_APPROVED = "CLOUD_PROJECT_NOT_APPROVED_FOR_PRODUCTION"


@pytest.mark.parametrize("in_array", [False, True])
@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        (Fault(403, failure(403, "authorizationError", NOT_APPROVED, "Not approved")), Fatal, NOT_APPROVED),
        (Fault(400, failure(400, "authorizationError", "ACTION_NOT_PERMITTED", "No")), Fatal, "ACTION_NOT_PERMITTED"),
        (Fault(400, failure(400, "authenticationError", "NOT_ADS_USER", "No")), Fatal, "NOT_ADS_USER"),
        (Fault(400, failure(400, "quotaError", "ACCESS_PROHIBITED", "No")), Fatal, "ACCESS_PROHIBITED"),
        (Fault(400, failure(400, "requestError", "UNSUPPORTED_VERSION", "Old")), Fatal, "it is the setting 'version'"),
        (Fault(400, failure(400, "queryError", "BAD_ENUM_CONSTANT", "Bad enum")), Rejected, "Bad enum .request simul"),
        (Fault(400, failure(400, "internalError", "TRANSIENT_ERROR", "Try again")), Transient, "Try again"),
        (Fault(500, failure(500, "internalError", "INTERNAL_ERROR", "Oops")), Transient, "500 INTERNAL"),
        (Fault(503, {"error": {"code": 503, "message": "Away", "status": "UNAVAILABLE"}}), Transient, "Away"),
        (Fault(504, {"error": {"status": "DEADLINE_EXCEEDED"}}), Transient, "504 DEADLINE_EXCEEDED"),
        (Fault(400, ODD), Rejected, "400"),
        (Fault(502, b"<html>bad gateway"), Transient, "bad gateway"),
        (Fault(400, b"<html>bad request"), Rejected, "bad request"),
        (Fault(400, b"[" * 200_000), Rejected, "400"),
        (Fault(403, None), Fatal, "403"),
    ],
)
def test_what_an_error_means(tmp_path, fault, error, said, in_array):
    async def test(g: Login) -> None:
        g.simulator.faults["search_stream"].append(fault)
        with pytest.raises(StepError, match=said) as caught:
            await g.rows()
        assert type(caught.value) is error
        assert len(str(caught.value)) < 700
        assert len(await g.rows()) == 5

    in_array = in_array and isinstance(fault.body, dict)
    on(tmp_path, test, errors_in_array=in_array)


@pytest.mark.parametrize(
    ("fault", "seconds"),
    [
        (quota(30), 30.0),
        (quota(40_591), 40_591.0),
        (quota(40_591, told_in_text=True), 40_591.0),
        (quota(5, name="RESOURCE_TEMPORARILY_EXHAUSTED"), 5.0),
        (quota(None, name="EXCESSIVE_SHORT_TERM_QUERY_RESOURCE_CONSUMPTION"), None),
        (quota(None, name="EXCESSIVE_LONG_TERM_QUERY_RESOURCE_CONSUMPTION"), None),
        (quota(10**11), 10**11),
        (Fault(429, b"slow down", (("retry-after", "7"),)), 7.0),
        (Fault(429, quota(30).body, (("retry-after", "70"),)), 70.0),
        (Fault(429, None), None),
        (Fault(400, failure(400, "quotaError", "RESOURCE_EXHAUSTED", "Retry in 9 seconds.")), 9.0),
        (Fault(429, {"error": {"details": [{"@type": "…RetryInfo", "retryDelay": "2.5s"}]}}), 2.5),
        (Fault(429, {"error": {"details": [{"retryDelay": "soon"}, {"retryDelay": 5}]}}), None),
    ],
)
def test_a_spent_quota_says_how_long_also_for_hours(tmp_path, fault, seconds):
    async def test(g: Login) -> None:
        g.simulator.faults["search_stream"].append(fault)
        with pytest.raises(Throttled) as caught:
            await g.rows()
        assert caught.value.retry_after == seconds

    on(tmp_path, test)


def test_the_quota_of_a_day_lasts_until_its_end(tmp_path):
    async def test(g: Login) -> None:
        await g.rows()
        await g.rows()
        with pytest.raises(Throttled, match="Too many requests") as caught:
            await g.rows()
        assert caught.value.retry_after == 12 * 3_600
        g.clock.advance(12 * 3_600)
        assert len(await g.rows()) == 5

    on(tmp_path, test, daily_operations=2)


def test_a_customer_that_is_not_ours_and_a_version_that_is_gone_are_fatal(tmp_path):
    async def test(g: Login) -> None:
        with pytest.raises(Fatal, match="USER_PERMISSION_DENIED"):
            await g.rows(customer="3333333333")
        g.simulator.versions.clear()
        with pytest.raises(Fatal, match="this version of the API may no longer be served"):
            await g.rows()

    on(tmp_path, test)


@pytest.mark.parametrize(
    ("gaql", "said"),
    [
        ("SELECT campaign.nope FROM campaign", "UNRECOGNIZED_FIELD: Unrecognized field in the query: 'campaign.nope'"),
        ("SELECT campaign.id FROM nowhere", "not a valid resource name"),
        ("SELECT segments.date FROM campaign", "finite date range"),
        ("DROP TABLE campaign", "UNEXPECTED_INPUT"),
        ("SELECT campaign.id FROM campaign WHERE segments.date = '2026-13-01'", "Invalid date literal"),
    ],
)
def test_a_query_that_google_refuses_is_rejected_with_its_words(tmp_path, gaql, said):
    async def test(g: Login) -> None:
        with pytest.raises(Rejected, match=said):
            await g.rows(gaql)

    on(tmp_path, test)


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("quiet", [True, False])
@pytest.mark.parametrize("cut", [0, 1, 300, 1_000])
def test_a_stream_that_breaks_off_is_transient_by_name(tmp_path, cut, quiet, compress):
    async def test(g: Login) -> None:
        g.simulator.faults["search_stream"].append(Fault(cut=cut, quiet=quiet))
        with pytest.raises(BrokenStream, match="POST /v26/customers/1111111111") as caught:
            await g.rows()
        assert isinstance(caught.value, Transient)
        assert len(await g.rows()) == 100

    on(tmp_path, test, campaigns=Campaigns(campaigns=100), compress=compress)


def test_a_connection_that_cannot_be_made_is_transient(tmp_path):
    async def test(g: Login) -> None:
        place = Endpoint("http://127.0.0.1:9", f"{g.address}/token")
        ads = GoogleAds(secrets(tmp_path, g.simulator), g.clock, endpoint=place)
        with pytest.raises(Transient, match="could not connect"):
            await anext(ads.search_stream(CUSTOMER, GAQL))
        await ads.close()

    on(tmp_path, test)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (quota(40_591).body, Throttled),
        (failure(400, "queryError", "X", "no"), Rejected),
        ({"error": {"message": "?"}}, Transient),
        ({"error": None}, Transient),
    ],
)
def test_an_error_in_the_middle_of_an_answer_counts(tmp_path, body, error):
    async def test(g: Login) -> None:
        g.simulator.faults["search_stream"].append(Fault(body=body, late=True))
        with pytest.raises(error) as caught:
            await g.rows()
        if error is Throttled:
            assert caught.value.retry_after == 40_591

    on(tmp_path, test)


def test_an_answer_that_is_too_large_is_refused(tmp_path):
    async def test(g: Login) -> None:
        with pytest.raises(BadAnswer, match="larger than 100,000 bytes"):
            await g.rows()

    for compress in (True, False):
        limits = Limits(max_bytes=100_000)
        on(tmp_path, test, limits=limits, campaigns=Campaigns(campaigns=1_000), compress=compress)


def test_a_bomb_is_refused_before_it_grows(tmp_path):
    sent = 0

    def bomb() -> Any:
        nonlocal sent
        yield b'[{"results":['
        row = b'{"a":"' + b" " * 60_000 + b'"},'
        while True:
            sent += len(row)
            yield row

    async def test(g: Login) -> None:
        g.simulator.bodies.append(bomb)
        with pytest.raises(BadAnswer, match="more than 200 times as much"):
            await g.rows()
        assert 1 << 24 < sent < 1 << 30

    on(tmp_path, test)


def test_an_encoding_that_nobody_asked_for_and_damaged_gzip_are_transient(tmp_path):
    async def test(g: Login) -> None:
        for encoding, said in (("br", "one layer of gzip"), ("gzip", "damaged")):
            g.simulator.faults["search_stream"].append(Fault(headers=(("content-encoding", encoding),)))
            with pytest.raises(BrokenStream, match=said):
                await g.rows()

    on(tmp_path, test, compress=False)


def test_who_stops_reading_closes_the_connection(tmp_path):
    async def test(g: Login) -> None:
        async with contextlib.aclosing(g.ads.search_stream(CUSTOMER, GAQL)) as batches:
            async for batch in batches:
                assert batch
                break
        assert len(await g.rows("SELECT customer.id FROM customer")) == 1

    on(tmp_path, test, campaigns=Campaigns(campaigns=5_000), compress=False)


def test_the_same_connector_runs_in_process(tmp_path):
    clock = VirtualClock(NOW)
    simulator = GoogleAdsSimulator(clock)

    async def main() -> int:
        place = Endpoint("http://google.sim", "http://login.sim/token")
        transport = InProcess(simulator)
        ads = GoogleAds(secrets(tmp_path, simulator), clock, endpoint=place, transport=transport)
        found = [row async for batch in ads.search_stream(CUSTOMER, GAQL) for row in batch]
        await ads.close()
        return len(found)

    assert asyncio.run(main()) == 5


def test_a_query_of_the_configuration_takes_a_day_and_nothing_else():
    query = Query("campaign_daily", DAILY, "1")
    assert query.text(DAY) == GAQL
    for wrong in ("2026-11-14", "x' OR 1=1", datetime(2026, 11, 14), None):  # noqa: DTZ001
        with pytest.raises(UsageError, match="needs a date without a time"):
            query.text(wrong)  # type: ignore[arg-type]
    assert Query("snapshot", "SELECT campaign.id FROM campaign", "1").text(date(1, 2, 3)).endswith("campaign")


@pytest.mark.parametrize(
    ("gaql", "said"),
    [
        ("", "is not GAQL"),
        ("SELECT * FROM campaign", "is not GAQL"),
        ("SELECT campaign.id", "is not GAQL"),
        ("SELECT campaign.id, FROM campaign", "is not GAQL"),
        ("SELECT campaign.id FROM campaign WHERE segments.date = '{day}'", "has a brace"),
        ("SELECT campaign.id FROM campaign WHERE segments.date = '{date}}'", "has a brace"),
    ],
)
def test_a_query_that_cannot_be_one_is_refused(gaql, said):
    with pytest.raises(UsageError, match=said):
        Query("odd", gaql, "1")


@pytest.mark.parametrize("version", ["26", "v0", "v26/../v25", "", "v26 "])
def test_a_version_is_a_version(version):
    with pytest.raises(UsageError, match="write one such as v26"):
        Endpoint(version=version)


def test_names_of_fields():
    gaql = "select\n campaign.id ,\tmetrics.cost_micros,ad_group_criterion.criterion_id , campaign.name FROM ad_group"
    assert selected(gaql) == ["campaign.id", "metrics.cost_micros", "ad_group_criterion.criterion_id", "campaign.name"]
    assert wire_name("metrics.video_quartile_p100_rate") == "metrics.videoQuartileP100Rate"
    assert whole_paths(gaql, {"segments.hour": "whole?", "campaign.id": "whole", "campaign.name": "text"}) == [
        ("campaign", "id"),
        ("metrics", "costMicros"),
        ("adGroupCriterion", "criterionId"),
        ("segments", "hour"),
    ]
    # A product's id is a text, also one that is all digits.
    assert whole_paths("SELECT segments.product_item_id FROM shopping_performance_view", {}) == []


def test_googles_own_hosts_are_the_defaults():
    assert Endpoint() == Endpoint("https://googleads.googleapis.com", "https://oauth2.googleapis.com/token", "v26")
    assert timedelta(hours=11) < LONGEST_WAIT

"""The connector, through real HTTP on loopback, against Amazon's simulator."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal

import pytest

from penstock.connectors.amazon_ads.client import (
    COLUMNS,
    DOWNLOAD_HOSTS,
    REGIONS,
    Amazon,
    DuplicateReport,
    Region,
    daily,
    differences,
)
from penstock.connectors.amazon_ads.report import ReportState
from penstock.connectors.http.download import Allowed, LinkExpired
from penstock.connectors.http.in_process import InProcess
from penstock.connectors.records import BadReport
from penstock.model.clock import VirtualClock
from penstock.model.errors import Fatal, InDoubt, Rejected, Throttled, Transient, UsageError
from penstock.settings.redaction import MARK, redact
from penstock.simulators.amazon_ads import AmazonAdsSimulator, Fate, Fault, throttle
from tests.support.amazon import DAY, NOW, Profile, on, secrets

SPEC = daily("target", DAY)


def test_a_report_is_created_becomes_ready_and_is_read(tmp_path):
    async def test(p: Profile) -> None:
        created = await p.ads.create(SPEC)
        assert (created.created_at, created.adopted) == (NOW, False)
        assert (await p.ads.status(created.report_id)).state is ReportState.PENDING
        p.clock.advance(180)
        working = await p.ads.status(created.report_id)
        assert (working.state, working.said, working.url) == (ReportState.PENDING, "PROCESSING", None)
        p.clock.advance(600)
        done = await p.ads.status(created.report_id)
        assert done.state is ReportState.COMPLETED
        assert done.created_at == NOW
        assert done.generated_at == NOW + timedelta(minutes=8)
        assert done.url_expires_at == p.clock.now() + timedelta(hours=1)
        assert done.url is not None
        pieces = [piece async for piece in p.ads.download(done.url)]
        assert sum(map(len, pieces)) == done.file_size
        rows = await p.read(done.url)
        assert len(rows) == 20
        assert [set(row) for row in rows] == [set(SPEC.columns)] * 20
        assert {type(row["cost"]) for row in rows} == {Decimal}
        assert {type(row["campaignId"]) for row in rows} == {int}

    on(tmp_path, test)


@pytest.mark.parametrize(("entity", "kind"), [("target", "spTargeting"), ("product", "spAdvertisedProduct")])
def test_an_entity_type_is_a_report_type(tmp_path, entity, kind):
    async def test(p: Profile) -> None:
        created = await p.ads.create(daily(entity, DAY))
        assert p.simulator.reports[created.report_id].request["configuration"]["reportTypeId"] == kind
        rows = await p.read(await p.ready(created))
        assert tuple(rows[0]) == COLUMNS[entity]

    on(tmp_path, test)


def test_an_entity_type_that_is_not_known_and_a_report_that_ends_first_are_refused():
    with pytest.raises(UsageError, match="one of target, product"):
        daily("campaign", DAY)
    with pytest.raises(UsageError, match="ends before it starts"):
        replace(SPEC, end=DAY - timedelta(days=1))


def test_the_download_host_sees_no_credentials(tmp_path):
    async def test(p: Profile) -> None:
        await p.read(await p.ready(await p.ads.create(SPEC)))
        (request,) = p.simulator.calls("download")
        assert "authorization" not in request.headers
        assert not [name for name in request.headers if name.startswith("amazon-advertising")]
        assert p.simulator.calls("status")[0].headers["amazon-advertising-api-scope"] == "1001"

    on(tmp_path, test)


def test_an_expired_link_is_asked_for_again_not_the_report(tmp_path):
    async def test(p: Profile) -> None:
        created = await p.ads.create(SPEC)
        old = await p.ready(created)
        p.clock.advance(3_601)
        with pytest.raises(LinkExpired, match="ask for another") as caught:
            await p.read(old)
        assert "signature" not in str(caught.value)
        fresh = (await p.ads.status(created.report_id)).url
        assert fresh is not None
        assert fresh != old
        assert len(await p.read(fresh)) == 20
        assert len(p.simulator.calls("create")) == 1

    on(tmp_path, test)


def test_a_token_serves_many_calls_and_is_renewed_before_it_expires(tmp_path):
    async def test(p: Profile) -> None:
        created = await p.ads.create(SPEC)
        for _ in range(5):
            await p.ads.status(created.report_id)
        assert len(p.simulator.calls("token")) == 1
        p.clock.advance(3_600 - 59)
        await p.ads.status(created.report_id)
        assert len(p.simulator.calls("token")) == 2

    on(tmp_path, test)


def test_many_calls_at_once_ask_for_one_token_and_share_it_between_profiles(tmp_path):
    async def test(p: Profile) -> None:
        other = p.amazon.profile("1002", secrets(tmp_path, p.simulator))
        days = [DAY - timedelta(days=n) for n in range(20)]
        await asyncio.gather(*(ads.create(daily("target", day)) for ads in (p.ads, other) for day in days))
        assert len(p.simulator.calls("token")) == 1
        assert len(p.simulator.reports) == 40

    on(tmp_path, test)


def test_a_refused_token_is_renewed_once(tmp_path):
    async def test(p: Profile) -> None:
        created = await p.ads.create(SPEC)
        p.simulator.expire_tokens()
        assert (await p.ads.status(created.report_id)).said == "PENDING"
        assert len(p.simulator.calls("token")) == 2

    on(tmp_path, test)


def test_a_profile_that_is_not_ours_is_fatal_after_one_renewal(tmp_path):
    async def test(p: Profile) -> None:
        stranger = p.amazon.profile("9999", secrets(tmp_path, p.simulator))
        with pytest.raises(Fatal, match="Not authorized to access scope"):
            await stranger.create(SPEC)
        assert len(p.simulator.calls("token")) == 2
        assert len(p.simulator.calls("create")) == 2

    on(tmp_path, test)


@pytest.mark.parametrize("wrong", ["refresh", "client"])
def test_revoked_credentials_are_fatal_and_never_shown(tmp_path, wrong):
    async def test(p: Profile) -> None:
        (tmp_path / wrong).write_text("revoked-or-mistyped-secret")
        with pytest.raises(Fatal, match=r"invalid_grant|invalid_client") as caught:
            await p.ads.create(SPEC)
        assert "revoked-or-mistyped-secret" not in str(caught.value)
        assert redact("it was revoked-or-mistyped-secret") == f"it was {MARK}"
        # Repaired, it works again: the secret is read anew.
        secrets(tmp_path, p.simulator)
        await p.ads.create(SPEC)

    on(tmp_path, test)


def test_a_secret_that_is_missing_is_fatal_and_names_its_place(tmp_path):
    async def test(p: Profile) -> None:
        (tmp_path / "refresh").unlink()
        with pytest.raises(Fatal, match="refresh cannot be read"):
            await p.ads.create(SPEC)

    on(tmp_path, test)


def test_a_failed_exchange_is_told_to_all_that_wait_each_its_own_error(tmp_path):
    async def test(p: Profile) -> None:
        p.simulator.faults["token"].append(Fault(503))
        found = await asyncio.gather(*(p.ads.status(str(n)) for n in range(10)), return_exceptions=True)
        assert [type(error) for error in found] == [Transient] * 10
        assert len({id(error) for error in found}) == 10
        assert len(p.simulator.calls("token")) == 1

    on(tmp_path, test)


def test_a_caller_that_gives_up_leaves_the_token_to_the_others(tmp_path):
    async def test(p: Profile) -> None:
        calls = [asyncio.create_task(p.ads.status("x")) for _ in range(3)]
        await asyncio.sleep(0)
        calls[0].cancel()
        assert [(await call).said for call in calls[1:]] == ["404", "404"]
        assert len(p.simulator.calls("token")) == 1

    on(tmp_path, test)


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", "token", {"access_token": None}, {"access_token": "x", "expires_in": "soon"}),
        {"access_token": "x" * 8_193, "expires_in": 3_600},
    ],
)
def test_a_login_that_answers_nonsense_is_transient(tmp_path, answer):
    async def test(p: Profile) -> None:
        p.simulator.faults["token"].append(Fault(200, None if answer == b"" else answer))
        with pytest.raises(Transient, match=r"no access token|a token of 8,193 characters"):
            await p.ads.create(SPEC)

    on(tmp_path, test)


def test_tokens_are_kept_out_of_texts_and_forgotten_in_the_end(tmp_path):
    async def test(p: Profile) -> None:
        for _ in range(4):
            p.simulator.expire_tokens()
            await p.ads.status("x")
        assert redact("Atza|simulated-000004") == MARK
        assert redact("Atza|simulated-000001") == "Atza|simulated-000001"

    on(tmp_path, test)


@pytest.mark.parametrize(("asked", "seconds"), [("7", 7.0), ("2.5", 2.5), (None, None)])
def test_a_throttle_says_how_long_where_amazon_does(tmp_path, asked, seconds):
    async def test(p: Profile) -> None:
        p.simulator.faults["create"].append(throttle(asked))
        with pytest.raises(Throttled) as caught:
            await p.ads.create(SPEC)
        assert caught.value.retry_after == seconds
        assert not p.simulator.reports
        assert not (await p.ads.create(SPEC)).adopted

    on(tmp_path, test)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (throttle(accept=True), Throttled),
        (Fault(504, accept=True), InDoubt),
        (Fault(cut=True, accept=True), InDoubt),
        (Fault(200, {"nonsense": 1}, accept=True), InDoubt),
    ],
)
def test_a_create_whose_answer_is_lost_is_adopted_by_the_next_one(tmp_path, fault, error):
    async def test(p: Profile) -> None:
        p.simulator.faults["create"].append(fault)
        with pytest.raises(error):
            await p.ads.create(SPEC)
        p.clock.advance(30)
        again = await p.ads.create(SPEC)
        assert again.adopted
        assert again.created_at == NOW
        assert list(p.simulator.reports) == [again.report_id]

    on(tmp_path, test)


def test_another_report_is_not_adopted(tmp_path):
    summary = replace(SPEC, time_unit="SUMMARY", columns=("startDate", *SPEC.columns[1:]))

    async def test(p: Profile) -> None:
        created = await p.ads.create(summary)
        with pytest.raises(DuplicateReport, match="differs in timeUnit, columns") as caught:
            await p.ads.create(SPEC)
        assert caught.value.report_id == created.report_id
        assert caught.value.retry_after == 60
        assert isinstance(caught.value, Transient)
        p.clock.advance(3_600)
        assert not (await p.ads.create(SPEC)).adopted

    on(tmp_path, test, collide_time_units=True)


@pytest.mark.parametrize(
    ("said", "named"), [("The Request is a duplicate of : {id}", "FAILED"), ("a duplicate", "names no report")]
)
def test_a_duplicate_that_failed_or_has_no_name_is_not_adopted(tmp_path, said, named):
    async def test(p: Profile) -> None:
        p.simulator.fates.append(Fate(ends="FAILED", reason="internal"))
        created = await p.ads.create(SPEC)
        p.clock.advance(3_600)
        text = said.format(id=created.report_id)
        p.simulator.faults["create"].append(Fault(425, {"code": "425", "detail": text}))
        with pytest.raises(DuplicateReport, match=named):
            await p.ads.create(SPEC)

    on(tmp_path, test)


def test_the_order_of_columns_and_filters_does_not_make_another_report():
    spec = replace(SPEC, filters=(("keywordType", ("BROAD", "EXACT")), ("adKeywordStatus", ("ENABLED",))))
    body = spec.body()
    shuffled = body["configuration"] | {
        "columns": body["configuration"]["columns"][::-1],
        "filters": [
            {"values": ["ENABLED"], "field": "adKeywordStatus"},
            {"field": "keywordType", "values": ["EXACT", "BROAD"]},
        ],
    }
    assert differences(spec, body | {"configuration": shuffled}) == []
    assert differences(SPEC, SPEC.body() | {"configuration": SPEC.body()["configuration"] | {"filters": None}}) == []
    assert differences(spec, SPEC.body()) == ["filters"]
    assert differences(SPEC, daily("target", DAY + timedelta(days=1)).body()) == ["startDate", "endDate"]
    assert differences(SPEC, {}) == [
        "startDate",
        "endDate",
        "adProduct",
        "reportTypeId",
        "timeUnit",
        "groupBy",
        "columns",
    ]


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("FAILED", ReportState.FAILED),
        ("FAILURE", ReportState.FAILED),
        ("CANCELLED", ReportState.FAILED),
        ("EXPIRED_OR_WHATEVER", ReportState.PENDING),
        (None, ReportState.PENDING),
    ],
)
def test_what_the_words_of_amazon_mean(tmp_path, said, state):
    async def test(p: Profile) -> None:
        p.simulator.faults["status"].append(Fault(200, {"status": said, "failureReason": "because"}))
        status = await p.ads.status("x")
        assert status.state is state
        assert status.failure_reason == "because"

    on(tmp_path, test)


@pytest.mark.parametrize("answer", [None, "down for maintenance", ["COMPLETED"], {}])
def test_an_answer_that_is_no_report_says_nothing_of_it(tmp_path, answer):
    async def test(p: Profile) -> None:
        p.simulator.faults["status"].append(Fault(200, answer))
        with pytest.raises(Transient, match="not a report"):
            await p.ads.status("x")

    on(tmp_path, test)


def test_a_report_completed_without_its_link_is_not_ready(tmp_path):
    async def test(p: Profile) -> None:
        p.simulator.fates.append(Fate(linkless=1))
        created = await p.ads.create(SPEC)
        p.clock.advance(3_600)
        first, second = await p.ads.status(created.report_id), await p.ads.status(created.report_id)
        assert (first.state, first.said, second.state) == (ReportState.PENDING, "COMPLETED", ReportState.COMPLETED)

    on(tmp_path, test)


def test_a_report_that_amazon_does_not_know_has_failed(tmp_path):
    async def test(p: Profile) -> None:
        status = await p.ads.status("../../auth/o2/token?x=1")
        assert status.state is ReportState.FAILED
        assert status.failure_reason == "Amazon does not know this report"
        assert len(p.simulator.calls("token")) == 1, "an id cannot lead to another path"

    on(tmp_path, test)


def test_only_a_pending_report_can_be_cancelled(tmp_path):
    async def test(p: Profile) -> None:
        created = await p.ads.create(SPEC)
        assert await p.ads.cancel(created.report_id)
        assert (await p.ads.status(created.report_id)).said == "CANCELLED"
        second = await p.ads.create(SPEC)
        assert second.report_id != created.report_id
        p.clock.advance(180)
        assert not await p.ads.cancel(second.report_id)
        assert not await p.ads.cancel("unknown")
        p.simulator.faults["cancel"].append(Fault(500))
        with pytest.raises(Transient):
            await p.ads.cancel(second.report_id)

    on(tmp_path, test)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (replace(SPEC, start=date(2026, 10, 1), end=date(2026, 11, 1)), "range .32 days. must not exceed"),
        (daily("target", NOW.date() - timedelta(days=96)), "within the last 95 days"),
        (replace(SPEC, time_unit="SUMMARY"), "columns .'date'. are not valid"),
    ],
)
def test_what_amazon_refuses_is_rejected_with_its_words(tmp_path, spec, said):
    async def test(p: Profile) -> None:
        with pytest.raises(Rejected, match=said):
            await p.ads.create(spec)

    on(tmp_path, test)


def test_reading_breaks_off_with_a_download_that_breaks_off(tmp_path):
    async def test(p: Profile) -> None:
        url = await p.ready(await p.ads.create(SPEC))
        p.simulator.faults["download"].append(Fault(cut=True))
        with pytest.raises(Transient, match="breaks off"):
            await p.read(url)
        p.simulator.faults["download"].append(Fault(500))
        with pytest.raises(Transient, match="500"):
            await p.read(url)
        p.simulator.bodies.append(b"not gzip at all")
        with pytest.raises(BadReport, match="not a whole gzip file"):
            await p.read(url)
        assert len(await p.read(url)) == 20

    on(tmp_path, test)


def test_the_same_connector_runs_in_process(tmp_path):
    clock = VirtualClock(NOW)
    simulator = AmazonAdsSimulator(clock)

    async def main() -> int:
        transport = InProcess(simulator)
        region = Region("http://amazon.sim", "http://login.sim/auth/o2/token")
        amazon = Amazon(region, clock, downloads=Allowed((), ("amazon.sim:80",)), transport=transport)
        ads = amazon.profile("1001", secrets(tmp_path, simulator))
        made = Profile(simulator, clock, amazon, ads, "http://amazon.sim")
        rows = await made.read(await made.ready(await ads.create(SPEC)))
        await amazon.close()
        return len(rows)

    assert asyncio.run(main()) == 20


def test_amazons_own_hosts_are_the_defaults():
    allowed = Allowed(DOWNLOAD_HOSTS)
    assert allowed.public("offline-report-storage-eu-west-1-prod.s3.amazonaws.com")
    assert allowed.public("offline-report-storage-eu-west-1-prod.s3.eu-west-1.amazonaws.com")
    assert not allowed.public("somebody.s3.amazonaws.com")
    assert not allowed.public("offline-report-storage-x.s3.evil.test.amazonaws.com")
    assert not allowed.public("offline-report-storage-x.s3.amazonaws.com.evil.test")
    assert set(REGIONS) == {"NA", "EU", "FE"}

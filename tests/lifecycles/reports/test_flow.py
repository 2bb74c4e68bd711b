"""The life of a dataset: a real worker and the real connector against Amazon's simulator, over sixty days."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
import structlog

from penstock.lifecycles.reports.machine import Aggregation, EntityType, S
from penstock.lifecycles.reports.settings import ReportSettings
from penstock.model.clock import instant_text
from penstock.model.unit import replace
from penstock.simulators.amazon_ads import Fate, Fault, compressed, throttle
from penstock.simulators.amazon_stream import StreamSimulator
from tests.support.reports import ACME, REF, START, dataset, days, on_bench, ref_of

T = datetime(2026, 10, 31, 23, tzinfo=UTC)  # midnight of the first of November in Madrid
DAILY = (1, 3, 5, 7, 14, 30, 60)
ROUND = [("fetching", "parsing"), ("parsing", "completed")]


def test_a_dataset_is_fetched_at_each_of_its_offsets(ledger_url, tmp_path):
    async def test(b):
        assert b.unit().timestamp == T
        await b.until(T + days(61))
        unit = b.unit()
        assert unit.status is S.COMPLETED
        assert unit.due_at is None
        assert unit.report_id is None
        created = [r.created for r in b.simulator.reports.values()]
        # The first was due before the test began; every later one is created at its offset.
        assert created == [START, *(T + days(n) for n in DAILY[1:])]
        assert b.edges() == [("missing", "fetching"), *ROUND, *([("completed", "fetching"), *ROUND] * 6)]
        assert unit.last_processed_report_id == unit.loaded_report_id == list(b.simulator.reports)[-1]
        assert b.rows("SELECT count(*), count(DISTINCT report_id) FROM performance_daily") == [(20, 1)]
        loads = b.rows("SELECT serving_offset / 86400, changed FROM report_load ORDER BY serving_offset")
        # Restated after 3 days (impressions), 7 and 28 (conversions), which the simulator counts from an hour later.
        assert [(int(n), c if c is None else bool(c)) for n, c in loads] == [
            (1, None),
            (3, False),
            (5, True),
            (7, False),
            (14, True),
            (30, True),
            (60, False),
        ]
        assert not b.alerts()

    on_bench(ledger_url, tmp_path, test)


def test_what_was_loaded_is_what_the_provider_says(ledger_url, tmp_path):
    async def test(b):
        await b.until(START + timedelta(minutes=30))
        rows = list(b.simulator._rows(next(iter(b.simulator.reports.values()))))
        wanted = sorted((str(r["keywordId"]), r["keyword"], r["impressions"], round(r["cost"], 2)) for r in rows)
        found = b.rows("SELECT entity_id, entity, impressions, cost FROM performance_daily ORDER BY entity_id")
        assert [(i, e, n, round(float(c), 2)) for i, e, n, c in found] == wanted
        landed = list((tmp_path / "raw").rglob("payload.jsonl"))
        assert len(landed) == 1
        assert [json.loads(line)["keywordId"] for line in landed[0].read_text().splitlines()] == [
            r["keywordId"] for r in rows
        ]

    on_bench(ledger_url, tmp_path, test)


def test_parsing_is_committed_before_the_download_starts(ledger_url, tmp_path):
    seen = []

    async def test(b):
        def body():
            seen.append(b.rows("SELECT status, refreshing FROM report_dataset_metadata"))
            yield from ()

        b.simulator.bodies.append(body)
        await b.until(START + timedelta(minutes=12))
        status, refreshing = seen[0][0]
        assert (status, bool(refreshing)) == ("parsing", True)

    on_bench(ledger_url, tmp_path, test)


def test_a_failed_report_does_not_serve_its_offset(ledger_url, tmp_path):
    async def test(b):
        b.simulator.fates.append(Fate(ends="FAILED", reason="internal failure"))
        await b.until(START + timedelta(minutes=11))
        failed = b.unit()
        assert failed.status is S.ERROR
        assert "internal failure" in failed.error
        assert (failed.provider_failures, failed.serving_offset, failed.report_id) == (1, 86_400, None)
        await b.until(START + timedelta(hours=1))
        done = b.unit()
        assert done.status is S.COMPLETED
        assert (done.provider_failures, done.serving_offset, done.error) == (0, None, None)
        assert done.due_at == T + days(3)
        assert len(b.simulator.reports) == 2
        assert not b.alerts()

    on_bench(ledger_url, tmp_path, test)


def test_at_its_limit_a_failing_offset_rests_with_one_alert_and_the_next_is_served(ledger_url, tmp_path):
    async def test(b):
        b.simulator.fates.extend([Fate(ends="FAILED", reason="no")] * 3)
        await b.until(START + days(1))
        resting = b.unit()
        assert resting.status is S.ERROR
        assert resting.due_at == T + days(3)
        assert len(b.simulator.reports) == 3
        ((kind, payload),) = b.alerts()
        assert kind == "report.given_up"
        assert "T+1d" in payload
        await b.until(T + days(4))
        assert b.unit().status is S.COMPLETED
        assert len(b.alerts()) == 1

    on_bench(ledger_url, tmp_path, test)


def test_an_expired_link_is_asked_for_again_and_nothing_is_created_anew(ledger_url, tmp_path):
    async def test(b):
        b.simulator.faults["download"].append(Fault(403, "<Error><Message>Request has expired</Message></Error>"))
        await b.until(START + timedelta(minutes=30))
        assert b.unit().status is S.COMPLETED
        assert len(b.simulator.reports) == 1
        assert len(b.simulator.calls("download")) == 2
        assert len({r.query for r in b.simulator.calls("download")}) >= 1
        assert b.edges() == [("missing", "fetching"), *ROUND]

    on_bench(ledger_url, tmp_path, test)


def test_links_that_always_expire_end_in_error_without_another_report(ledger_url, tmp_path):
    async def test(b):
        b.simulator.link_life = timedelta(seconds=-1)
        await b.until(START + days(1))
        unit = b.unit()
        assert unit.status is S.ERROR
        assert "expired 3 times" in unit.error
        assert unit.due_at == T + days(3)
        assert len(b.simulator.reports) == 1

    on_bench(ledger_url, tmp_path, test)


@pytest.mark.parametrize("accepted", [False, True])
def test_a_throttle_closes_the_account_and_charges_nobody(ledger_url, tmp_path, accepted):
    async def test(b):
        b.simulator.faults["create"].append(throttle("120", accept=accepted))
        await b.quiet()
        assert b.unit().status is S.MISSING
        assert b.unit().attempts == 0
        await b.until(START + timedelta(minutes=30))
        unit = b.unit()
        assert unit.status is S.COMPLETED
        assert unit.create_failures == 0
        assert len(b.simulator.reports) == 1  # what a throttled call made is adopted, not made again

    on_bench(ledger_url, tmp_path, test)


def test_a_create_whose_answer_is_lost_is_adopted(ledger_url, tmp_path):
    async def test(b):
        b.simulator.faults["create"].append(Fault(cut=True, accept=True))
        await b.until(START + timedelta(minutes=30))
        assert b.unit().status is S.COMPLETED
        assert len(b.simulator.reports) == 1
        assert len(b.simulator.calls("create")) == 2
        assert "adopted" in b.history()[1][2]

    on_bench(ledger_url, tmp_path, test)


def test_an_adopted_report_from_before_the_offset_is_followed_by_another(ledger_url, tmp_path):
    async def test(b):
        # Somebody else's request of the same report, an hour before T+3d, is still under way at T+3d.
        await b.until(T + days(3) - timedelta(hours=1))
        first = next(iter(b.simulator.reports.values()))
        b.simulator.reports["00000000-0000-4000-8000-000000000001"] = type(first)(
            "00000000-0000-4000-8000-000000000001",
            "1001",
            first.request,
            b.clock.now(),
            Fate(pending=timedelta(hours=2)),
        )
        await b.until(T + days(3) + timedelta(hours=4))
        unit = b.unit()
        assert unit.status is S.COMPLETED
        assert unit.last_report_created_at >= T + days(3)
        assert unit.due_at == T + days(5)
        assert len(b.simulator.reports) == 3  # ours of T+1d, theirs, and ours that serves T+3d

    on_bench(ledger_url, tmp_path, test)


def test_a_report_pending_for_six_hours_is_cancelled_and_created_anew(ledger_url, tmp_path):
    async def test(b):
        b.simulator.fates.append(Fate(pending=days(9)))
        await b.until(START + timedelta(hours=5, minutes=59))
        assert b.simulator.calls("cancel") == []
        await b.until(START + timedelta(hours=7))
        first, second = b.simulator.reports.values()
        assert first.cancelled == START + timedelta(hours=6)
        assert second.created == START + timedelta(hours=6)
        assert b.unit().status is S.COMPLETED
        assert ("fetching", "error") in b.edges()
        assert any("pending for 6 h and was cancelled: PENDING" in reason for *_, reason in b.history())

    on_bench(ledger_url, tmp_path, test)


def test_a_report_that_cannot_be_cancelled_is_polled_on_and_then_given_up(ledger_url, tmp_path):
    async def test(b):
        b.simulator.fates.append(Fate(pending=timedelta(minutes=1), processing=days(9)))
        await b.until(START + timedelta(hours=8))
        assert b.unit().status is S.FETCHING
        assert b.unit().cancel_refused_at == START + timedelta(hours=6)
        assert len(b.simulator.calls("cancel")) == 1
        b.simulator.reports.clear()  # else the next create would be called its duplicate
        still = Fault(200, {"reportId": b.unit().report_id, "status": "PROCESSING"})
        b.simulator.faults["status"].extend([*[Fault(503)] * 3, *[still] * 50])
        await b.until(START + timedelta(hours=9, minutes=20))
        b.simulator.faults.clear()
        await b.until(START + timedelta(hours=26))
        assert any(
            "could not be cancelled" in (reason or "") and target == "error" for _, target, reason in b.history()
        )
        assert b.unit().status is S.COMPLETED

    known = ReportSettings(accounts=ACME, give_up_after=timedelta(hours=9))
    on_bench(ledger_url, tmp_path, test, settings=known)


def test_a_report_that_cannot_be_created_ends_in_error(ledger_url, tmp_path):
    async def test(b):
        refusal = Fault(400, {"code": "400", "detail": "columns: unknown column"})
        b.simulator.faults["create"].extend([refusal] * 3)
        await b.until(START + days(1))
        unit = b.unit()
        assert unit.status is S.ERROR
        assert "unknown column" in unit.error
        assert b.edges() == [("missing", "error")]
        assert unit.due_at == T + days(3)
        await b.until(T + days(4))
        assert b.unit().status is S.COMPLETED

    on_bench(ledger_url, tmp_path, test)


def test_an_outage_of_the_provider_is_waited_out(ledger_url, tmp_path):
    async def test(b):
        b.simulator.faults["create"].extend([Fault(503)] * 12)
        await b.until(START + days(1))
        assert b.unit().status is S.COMPLETED
        assert sorted(kind for kind, _ in b.alerts()) == ["gate.breaker", "gate.recovered"]

    on_bench(ledger_url, tmp_path, test)


def test_revoked_credentials_stop_their_account_with_one_alert_and_the_others_go_on(ledger_url, tmp_path):
    ours = [dataset(entity=entity) for entity in EntityType]
    theirs = dataset("globex")

    async def test(b):
        b.simulator.profiles.discard("1001")
        await b.until(START + days(1))
        assert [kind for kind, _ in b.alerts()] == ["gate.stopped"]
        assert [b.unit(ref_of(u)).status for u in ours] == [S.MISSING] * 2
        assert b.unit(ref_of(theirs)).status is S.COMPLETED
        # The account is opened again by a person, and catches up.
        b.simulator.profiles.add("1001")
        b.ledger.gates.resume("amazon_ads/acme", "operator:test")
        await b.until(START + days(1) + timedelta(hours=1))
        assert [b.unit(ref_of(u)).status for u in ours] == [S.COMPLETED] * 2

    on_bench(ledger_url, tmp_path, test, *ours, theirs)


def test_a_dataset_of_an_unknown_account_rests_in_error_with_one_alert(ledger_url, tmp_path):
    strangers = [dataset(entity=e) for e in EntityType]
    strangers = [replace(u, account="nobody") for u in strangers]

    async def test(b):
        await b.until(START + days(1))
        for unit in (b.unit(ref_of(u)) for u in strangers):
            assert unit.status is S.ERROR
            assert "add [reports.accounts.nobody]" in unit.error
            assert unit.due_at is None
        assert [kind for kind, _ in b.alerts()] == ["report.account_unknown"]

    on_bench(ledger_url, tmp_path, test, *strangers)


def test_a_report_that_is_created_is_looked_at_five_minutes_later_and_not_before(ledger_url, tmp_path):
    async def test(b):
        await b.quiet()
        unit = b.unit()
        assert (unit.status, unit.due_at) == (S.FETCHING, START + timedelta(minutes=5))
        assert (b.worker.counts.claimed, b.simulator.calls("status")) == (1, [])

    on_bench(ledger_url, tmp_path, test)


def test_a_report_that_is_loaded_is_left_alone_until_the_next_offset(ledger_url, tmp_path):
    async def test(b):
        b.simulator.fate = Fate(pending=timedelta(minutes=1), processing=timedelta(minutes=1))
        await b.until(START + timedelta(hours=1))
        unit = b.unit()
        assert (unit.status, unit.due_at) == (S.COMPLETED, T + days(3))
        assert b.worker.counts.claimed == 2  # one to create, one to load

    on_bench(ledger_url, tmp_path, test)


def test_the_log_calls_a_step_by_the_name_of_its_job(ledger_url, tmp_path):
    async def test(b):
        b.simulator.faults["create"].append(Fault(400, {"code": "400", "detail": "no"}))
        with structlog.testing.capture_logs() as lines:
            await b.until(START + timedelta(hours=1))
        found = {line["event"] for line in lines if line.get("job") == "update-report-status"}
        assert found == {"report.step", "step.failed"}
        actions = [line["action"] for line in lines if line["event"] == "report.step"]
        assert actions == ["create", "create", "create", "create", "process", "process"]

    on_bench(ledger_url, tmp_path, test)


def adoptions(b):
    return [reason for _, _, reason in b.history() if "adopted" in reason]


def foreign(b, number, *, created):
    """Somebody else's report of the same dataset, done long ago."""
    like = next(iter(b.simulator.reports.values()))
    report_id = f"00000000-0000-4000-8000-{number:012}"
    b.simulator.reports[report_id] = type(like)(report_id, "1001", like.request, created, like.fate)
    return report_id


def test_a_finished_report_that_is_older_than_the_offset_serves_once_and_then_the_wait_grows(ledger_url, tmp_path):
    async def test(b):
        await b.until(T + days(3) - timedelta(hours=2))
        b.simulator.remembers = days(60)
        old = foreign(b, 1, created=T + days(3) - timedelta(hours=1))
        del b.simulator.reports[b.unit().last_processed_report_id]
        before = len(b.simulator.calls("create"))
        await b.until(T + days(4))
        unit = b.unit()
        assert (unit.status, unit.loaded_report_id, unit.serving_offset) == (S.COMPLETED, old, 3 * 86_400)
        assert len(adoptions(b)) == 1
        assert len(b.simulator.calls("download")) == 2  # the first offset's, and this one
        # Asked again after 10, 20, 40, … minutes, give or take a fifth.
        assert 6 <= len(b.simulator.calls("create")) - before <= 10
        assert (unit.create_failures, b.alerts()) == (0, [])
        before = len(b.simulator.calls("create"))
        await b.until(T + days(5) - timedelta(hours=1))
        assert 3 <= len(b.simulator.calls("create")) - before <= 5  # every six hours
        # Nor does it serve the next offset.
        await b.until(T + days(6))
        assert (b.unit().serving_offset, len(adoptions(b)), len(b.simulator.calls("download"))) == (5 * 86_400, 1, 2)
        # The provider forgets it: the offset is served.
        b.simulator.remembers = timedelta()
        await b.until(T + days(6) + timedelta(hours=8))
        unit = b.unit()
        assert unit.last_report_created_at >= T + days(6)
        assert (unit.serving_offset, unit.duplicates, unit.due_at) == (None, 0, T + days(7))

    on_bench(ledger_url, tmp_path, test)


def test_a_provider_that_names_old_reports_in_turn_has_one_of_them_loaded_for_an_offset(ledger_url, tmp_path):
    async def test(b):
        await b.until(T + days(3) - timedelta(hours=2))
        b.simulator.remembers = days(60)
        olds = [foreign(b, n, created=T + days(3) - timedelta(hours=1, minutes=n)) for n in range(5)]
        del b.simulator.reports[b.unit().last_processed_report_id]

        def turn():
            """Another of them is found first, each time."""
            first = next(iter(b.simulator.reports))
            b.simulator.reports[first] = b.simulator.reports.pop(first)

        for hours in range(40):
            await b.until(T + days(3) + timedelta(hours=hours))
            turn()
        assert len(adoptions(b)) == 1
        assert b.unit().loaded_report_id in olds

    on_bench(ledger_url, tmp_path, test)


def test_a_report_that_is_older_than_the_loaded_one_never_takes_its_place(ledger_url, tmp_path):
    async def test(b):
        await b.until(T + days(3) - timedelta(hours=2))
        loaded = b.unit().loaded_report_id
        b.simulator.remembers = days(60)
        foreign(b, 1, created=b.unit().last_report_created_at - timedelta(minutes=1))
        del b.simulator.reports[loaded]
        await b.until(T + days(4))
        unit = b.unit()
        assert (unit.status, unit.loaded_report_id, unit.serving_offset) == (S.COMPLETED, loaded, 3 * 86_400)
        assert (adoptions(b), len(b.simulator.calls("download"))) == ([], 1)
        assert unit.duplicates > 3
        b.simulator.remembers = timedelta()
        await b.until(T + days(4) + timedelta(hours=8))
        assert b.unit().last_report_created_at >= T + days(4)
        assert (b.unit().status, b.unit().serving_offset) == (S.COMPLETED, None)

    on_bench(ledger_url, tmp_path, test)


HOUR = datetime(2026, 11, 1, 5, tzinfo=UTC)


def hourly():
    return dataset(aggregation=Aggregation.HOURLY, hour=HOUR)


def test_an_hour_without_a_file_is_waited_for_and_never_taken_for_zero(ledger_url, tmp_path):
    stream, unit = StreamSimulator(tmp_path / "stream"), hourly()
    stream.quiet("1001", HOUR - timedelta(hours=1))

    async def test(b):
        ref = ref_of(unit)
        await b.until(START + timedelta(hours=2))
        assert b.unit(ref).status is S.FETCHING
        await b.until(START + timedelta(hours=19))
        resting = b.unit(ref)
        assert (resting.status, resting.due_at, resting.pending_failures) == (S.ERROR, HOUR + timedelta(hours=72), 3)
        assert "no file of 2026-11-01T05 for sp-traffic and sp-conversion" in resting.error
        assert [kind for kind, _ in b.alerts()] == ["report.given_up"]
        # Only its traffic has come by the next offset: still not known.
        traffic, conversion = stream.write("1001", HOUR)
        conversion.unlink()
        await b.until(HOUR + timedelta(hours=73))
        assert b.unit(ref).status is S.FETCHING
        stream.write("1001", HOUR)
        await b.until(HOUR + timedelta(hours=74))
        assert (b.unit(ref).status, b.unit(ref).loaded_rows) == (S.COMPLETED, 20)
        assert traffic.exists()
        assert b.rows("SELECT count(*) FROM report_load") == [(1,)]

    on_bench(ledger_url, tmp_path, test, unit)


def test_an_hour_whose_files_say_zero_is_completed_with_no_rows(ledger_url, tmp_path):
    unit = hourly()
    StreamSimulator(tmp_path / "stream").quiet("1001", HOUR)

    async def test(b):
        await b.until(START + timedelta(hours=1))
        done = b.unit(ref_of(unit))
        assert (done.status, done.loaded_rows, done.due_at) == (S.COMPLETED, 0, HOUR + timedelta(hours=72))
        assert not b.alerts()

    on_bench(ledger_url, tmp_path, test, unit)


def test_a_stream_that_vanishes_makes_its_datasets_fail_and_is_taken_up_when_it_is_back(ledger_url, tmp_path):
    unit, ref = hourly(), ref_of(hourly())
    StreamSimulator(tmp_path / "stream").write("1001", HOUR)
    folder, away = tmp_path / "stream" / "1001", tmp_path / "away"

    async def test(b):
        await b.until(START + timedelta(hours=1))
        assert b.unit(ref).status is S.COMPLETED
        folder.rename(away)
        await b.until(HOUR + timedelta(hours=72))
        gone = b.unit(ref)
        assert gone.status is S.ERROR
        assert gone.error.startswith(f"hourly data has no source: {folder} cannot be read")
        assert b.rows("SELECT count(*) FROM performance_hourly") == [(20,)]  # what was loaded stays
        await b.until(HOUR + days(6))
        still = b.unit(ref)
        assert (still.status, still.create_failures, still.serving_offset) == (S.ERROR, 0, 72 * 3_600)
        # After a quarter of an hour, an hour, four hours, and then every six, with an alert a day.
        assert 10 <= still.attempts <= 20
        assert {kind for kind, _ in b.alerts()} == {"report.stream_gone"}
        assert len(b.alerts()) <= 5
        away.rename(folder)
        await b.until(HOUR + days(6) + timedelta(hours=8))
        assert (b.unit(ref).status, b.unit(ref).due_at) == (S.COMPLETED, HOUR + timedelta(hours=312))

    on_bench(ledger_url, tmp_path, test, unit)


def test_a_stream_that_vanishes_under_a_report_fails_it(ledger_url, tmp_path):
    unit, ref = hourly(), ref_of(hourly())
    stream = StreamSimulator(tmp_path / "stream")
    stream.quiet("1001", HOUR - timedelta(hours=1))

    async def test(b):
        await b.until(START + timedelta(minutes=10))
        assert b.unit(ref).status is S.FETCHING
        (tmp_path / "stream").rename(tmp_path / "away")
        await b.until(START + timedelta(minutes=16))
        assert b.unit(ref).status is S.ERROR
        assert "has no source" in b.unit(ref).error

    on_bench(ledger_url, tmp_path, test, unit)


def test_hours_without_a_configured_stream_fail_with_a_reason(ledger_url, tmp_path):
    unit = hourly()

    async def test(b):
        await b.until(START + timedelta(hours=1))
        gone = b.unit(ref_of(unit))
        assert gone.status is S.ERROR
        assert "reports.stream is not set" in gone.error
        assert gone.loaded_report_id is None

    on_bench(ledger_url, tmp_path, test, unit, stream=None)


def test_hours_that_are_switched_off_rest_and_are_taken_up_when_they_are_back(ledger_url, tmp_path):
    unit, ref = hourly(), ref_of(hourly())
    StreamSimulator(tmp_path / "stream").write("1001", HOUR)

    async def test(b):
        await b.until(START + timedelta(hours=1))
        resting = b.unit(ref)
        assert (resting.status, resting.due_at) == (S.MISSING, START + days(1))
        b.flow.settings = ReportSettings(accounts=ACME)
        await b.until(START + days(2))
        assert b.unit(ref).status is S.COMPLETED

    known = ReportSettings(accounts=ACME, hourly_offsets=())
    on_bench(ledger_url, tmp_path, test, unit, settings=known)


def test_hours_come_from_the_stream(ledger_url, tmp_path):
    hour, unit = HOUR, hourly()
    stream = StreamSimulator(tmp_path / "stream")

    async def test(b):
        stream.write("1001", hour)
        await b.until(hour + days(2))
        early = b.rows("SELECT count(*), sum(impressions) FROM performance_hourly")
        assert early[0][0] == 20
        stream.write("1001", hour, late=True)
        await b.until(hour + days(14))
        late = b.rows("SELECT count(*), sum(impressions) FROM performance_hourly")
        assert late[0][0] == 20
        assert late[0][1] > early[0][1]
        done = b.unit(ref_of(unit))
        assert (done.status, done.due_at) == (S.COMPLETED, None)
        assert b.rows("SELECT count(*) FROM report_load") == [(3,)]
        assert b.simulator.requests == []  # the API is not asked for hours

    on_bench(ledger_url, tmp_path, test, unit)


def test_a_backfill_waits_for_the_daily_work_of_its_account(ledger_url, tmp_path):
    old = dataset(day=START.date() - days(80), backfill=True)
    daily = [dataset(entity=entity) for entity in EntityType]

    async def test(b):
        await b.until(START + timedelta(hours=2))
        order = [r.request["startDate"] for r in b.simulator.reports.values()]
        assert b.unit(ref_of(old)).status is S.COMPLETED
        assert order[-1] == old.period

    on_bench(ledger_url, tmp_path, test, old, *daily)


def test_the_unit_is_named_as_the_documents_do():
    assert ref_of(dataset()) == REF
    assert str(REF) == "report:acme/2026-11-01/daily/target"


@pytest.mark.by_day
def test_a_refresh_typed_while_a_report_is_loaded_stands(ledger_url, tmp_path):
    later = START + timedelta(hours=5)

    async def test(b):
        def body():
            sql = f"UPDATE report_dataset_metadata SET next_refresh_at = '{instant_text(later)}'"
            b.ledger.database.write(lambda cursor: cursor.run(sql))
            yield from compressed(b.simulator._rows(next(iter(b.simulator.reports.values()))))

        b.simulator.bodies.append(body)
        await b.until(START + timedelta(hours=4))
        unit = b.unit()
        assert (unit.status, unit.due_at, unit.refreshing) == (S.PARSING, later, False)
        assert b.rows("SELECT count(*) FROM performance_daily") == [(0,)]
        assert b.history()[-1] == ("parsing", "parsing", "changed next_refresh_at")
        await b.until(later + timedelta(hours=1))
        assert b.unit().status is S.COMPLETED
        assert b.rows("SELECT count(*), count(DISTINCT report_id) FROM performance_daily") == [(20, 1)]
        assert len(b.simulator.reports) == 1
        assert b.worker.counts.lost == 1
        assert not b.alerts()

    on_bench(ledger_url, tmp_path, test)

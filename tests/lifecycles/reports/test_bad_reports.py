"""Reports that are not what was asked for: each ends in a named state, with an error that a person can act on."""

from __future__ import annotations

import gzip
import json
import zlib
from datetime import timedelta

from penstock.ledger.care.doctor import examine
from penstock.lifecycles.reports.flow import raw_key, raw_run_id
from penstock.lifecycles.reports.machine import S, machine
from penstock.lifecycles.reports.settings import ReportSettings
from penstock.raw.sink import RawSink
from tests.support.reports import ACME, START, days, on_bench

ROW = {
    "date": "2026-11-01",
    "campaignId": 1,
    "adGroupId": 2,
    "keywordId": 3,
    "keyword": "shoes",
    "matchType": "BROAD",
    "impressions": 10,
    "clicks": 1,
    "cost": 0.5,
    "purchases7d": 0,
    "sales7d": 0,
}


def packed(text):
    return gzip.compress(text.encode())


def report(*rows):
    return packed(json.dumps(list(rows)))


def without(name, **more):
    return {column: value for column, value in ROW.items() if column != name} | more


def bomb():
    packer = zlib.compressobj(9, wbits=31)
    yield packer.compress(b"[")
    for _ in range(10 * 1024):
        yield packer.compress(b" " * 1_048_576)
    yield packer.compress(b"]") + packer.flush()


BAD = {
    "truncated gzip": (report(ROW)[:-9], "ends in the middle"),
    "no gzip": (b"<html>sorry</html>", "not a whole gzip file"),
    "empty file": (b"", "the file is empty"),
    "wrong JSON": (packed('[{"date": ]'), "record 1 is not a flat JSON object"),
    "not an array": (packed('{"date": "2026-11-01"}'), "not a JSON array of records"),
    "NaN": (packed(json.dumps([ROW | {"cost": float("nan")}])), "near record 1"),
    "long number": (packed(json.dumps([ROW])[:-2] + ', "more": ' + "9" * 4_300 + "}]"), "near record 1"),
    "deep nesting": (packed("[" * 100_000 + "]" * 100_000), "record 1 is not a flat JSON object"),
    "bomb": (bomb, "the report cannot be read"),
    "missing column": (report(without("cost")), "record 1 has no column cost; its columns are"),
    "renamed column": (report(without("sales7d", sales=1)), "record 1 has no column sales7d; its columns are"),
    "retyped count": (report(ROW | {"clicks": "1"}), "record 1: clicks is '1', not a whole number"),
    "retyped amount": (report(ROW | {"cost": "0.50"}), "record 1: cost is '0.50', not a number"),
    "null": (report(ROW | {"impressions": None}), "record 1: impressions is None, not a whole number"),
    "retyped id": (report(ROW | {"keywordId": 1.5}), "keywordId is Decimal('1.5'), not an id"),
    "long id": (report(ROW | {"keywordId": "k" * 256}), "keywordId is 'kkkk"),
    "NUL": (report(ROW | {"keyword": "shoes\0"}), "near record 1: a text holds a NUL character"),
    "half a character": (packed(json.dumps([ROW | {"keyword": "\ud800"}])), "near record 1: JSON is malformed"),
    "absurd amount": (packed(json.dumps([ROW]).replace("0.5", "1e999999")), "a number of more than 40 digits"),
    "absurd count": (packed(json.dumps([ROW]).replace('"clicks": 1', f'"clicks": {2**63}')), "beyond 64 bits"),
    "duplicate rows": (report(ROW, ROW, ROW | {"keywordId": 4}), "a record has the ids of another record"),
    "another date": (
        report(ROW, ROW | {"date": "2026-11-02"}),
        "record 2 has the date '2026-11-02'; the dataset is of",
    ),
}


def test_each_bad_report_ends_in_error_and_shows_nothing(ledger_url, tmp_path):
    """One after the other on one dataset, which bears them all; then a good one."""

    async def test(b):
        for name, (body, wanted) in BAD.items():
            b.simulator.bodies.append(body)
            while b.simulator.bodies or b.unit().status is not S.ERROR:
                await b.next()
            unit = b.unit()
            assert wanted in unit.error, name
            assert (unit.parked_at, unit.report_id) == (None, None), name
            assert unit.parse_failures > 0, name
            assert b.edges()[-1] == ("parsing", "error"), name
            assert b.rows("SELECT count(*) FROM performance_daily") == [(0,)], name
        await b.until(b.clock.now() + timedelta(hours=8))
        assert b.unit().status is S.COMPLETED
        assert b.rows("SELECT count(*) FROM performance_daily") == [(20,)]
        assert not b.alerts()
        assert not examine(b.ledger.database, {"report": machine})

    patient = ReportSettings(accounts=ACME, parse_limit=100)
    on_bench(ledger_url, tmp_path, test, settings=patient)


def test_a_bad_report_leaves_what_was_loaded_before(ledger_url, tmp_path):
    async def test(b):
        await b.until(START + timedelta(hours=1))
        before = b.rows("SELECT entity_id, impressions FROM performance_daily ORDER BY entity_id")
        b.simulator.bodies.extend([report(ROW | {"clicks": "1"})] * 3)
        await b.until(START + days(2))
        unit = b.unit()
        assert unit.status is S.ERROR
        assert unit.parse_failures == 3
        assert b.rows("SELECT entity_id, impressions FROM performance_daily ORDER BY entity_id") == before
        assert [kind for kind, _ in b.alerts()] == ["report.given_up"]

    on_bench(ledger_url, tmp_path, test)


def test_an_empty_report_is_valid_and_replaces_what_was_there(ledger_url, tmp_path):
    async def test(b):
        await b.until(START + timedelta(hours=1))
        b.simulator.bodies.append(packed("[]"))
        await b.until(START + days(2))
        unit = b.unit()
        assert (unit.status, unit.loaded_rows) == (S.COMPLETED, 0)
        assert b.rows("SELECT count(*) FROM performance_daily") == [(0,)]
        assert b.rows("SELECT rows_difference FROM report_load ORDER BY serving_offset") == [(None,), (-20,)]

    on_bench(ledger_url, tmp_path, test)


def test_what_has_landed_is_not_downloaded_again(ledger_url, tmp_path):
    async def test(b):
        await b.until(START + timedelta(minutes=1))
        unit = b.unit()
        assert unit.status is S.FETCHING
        sink = RawSink(tmp_path / "raw")
        line = json.dumps(ROW).encode()
        sink.write_partition(raw_key(unit), raw_run_id(unit), [line], schema_version="1", created_at=START)
        await b.until(START + timedelta(minutes=12))
        assert (b.unit().status, b.unit().loaded_rows) == (S.COMPLETED, 1)
        assert b.simulator.calls("download") == []

    on_bench(ledger_url, tmp_path, test)


def test_a_break_in_the_download_is_tried_again_without_another_report(ledger_url, tmp_path):
    async def test(b):
        def broken():
            yield report(ROW)[:10]
            raise ConnectionResetError

        b.simulator.bodies.extend([broken, broken])
        await b.until(START + timedelta(minutes=15))
        assert b.unit().status is S.COMPLETED
        assert len(b.simulator.reports) == 1

    on_bench(ledger_url, tmp_path, test)

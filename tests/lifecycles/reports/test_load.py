"""From landed records to rows: quick and slow come to the same rows, the same sums and the same digest.

A column that nobody asked for sends a block the slow way, and is otherwise of no interest.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.records import BadReport
from penstock.lifecycles.refreshes import Digest, differ
from penstock.lifecycles.reports.load import Loader, Totals, quick_reader
from penstock.lifecycles.reports.machine import Aggregation, EntityType
from penstock.lifecycles.reports.shape import COLUMNS, shape_of
from penstock.model.outcome import MAX_ROWS
from tests.support.reports import START, dataset, days, on_bench

DAILY = dataset()
HOURLY = dataset(aggregation=Aggregation.HOURLY, entity=EntityType.PRODUCT, hour=START)
ROW = {
    "date": DAILY.report_date.isoformat(),
    "campaignId": 1,
    "adGroupId": "2",
    "keywordId": 3,
    "keyword": 'sho"es\\',
    "matchType": None,
    "impressions": 10,
    "clicks": 1,
    "cost": Decimal("0.50"),
    "purchases7d": 0,
    "sales7d": 7,
}
_ENCODER = msgspec.json.Encoder(decimal_format="number")


def lines(rows: Iterable[Any]) -> bytes:
    return _ENCODER.encode_lines(rows)


def loaded(*blocks: bytes, report: Any = DAILY) -> tuple[list[Any], Totals]:
    loader = Loader(report, iter(blocks))
    rows: list[Any] = []
    while some := loader.some():
        assert len(some) <= MAX_ROWS
        rows += some
    return rows, loader.totals


def outcome(block: bytes) -> Any:
    try:
        rows, totals = loaded(block)
    except BadReport as error:
        return error.reason.partition("; its columns are")[0]
    return rows, totals.digest, totals.impressions, totals.clicks, totals.cost, totals.sales


IDS = st.integers(-(2**63), 2**63 - 1) | st.text(max_size=260) | st.sampled_from([True, None, Decimal("1.5")])
COUNTS = st.integers(0, 9) | st.sampled_from(
    [2**62, 2**62 - 1, -(2**62), True, None, "1", Decimal("5.0"), Decimal("5.5")]
)
AMOUNTS = (
    st.integers(-(2**63), 2**63 - 1)
    | st.decimals(-999, 999, places=3)
    | st.sampled_from(
        [Decimal("0.0"), Decimal("-0.0"), Decimal("1E+3"), Decimal("1.5E-9"), Decimal("0.0000001"), True, None, "0.5"]
    )
)
TEXTS = st.none() | st.text(max_size=9) | st.just(7)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "campaignId": st.integers(1, 9) | st.just("x"),
                "cost": st.integers(0, 99) | st.decimals(0, 99, places=2),
                "sales7d": AMOUNTS,
                "keyword": TEXTS,
            },
            optional={"keywordId": IDS, "impressions": COUNTS},
        ),
        min_size=1,
        max_size=4,
    )
)
def test_quick_and_slow_come_to_the_same(changes):
    rows = [ROW | change for change in changes]
    assert outcome(lines(rows)) == outcome(lines(row | {"more": 1} for row in rows))


def test_what_reports_hold_goes_the_quick_way():
    hourly = {name: value for name, value in ROW.items() if name not in ("date", "keyword", "matchType", "keywordId")}
    hourly |= {"hour": shape_of(HOURLY).moment, "adId": 4}
    for report, row in ((DAILY, ROW), (HOURLY, hourly)):
        quick = quick_reader(shape_of(report))
        part = quick(lines([row]))
        assert part is not None
        assert part.rows == loaded(lines([row | {"more": 1}]), report=report)[0]
        assert len(part.rows[0]) == len(COLUMNS)
        assert quick(lines([row, row | {"more": 1}])) is None
        assert quick(lines([row]) + b"\n") is None


def test_amounts_are_exact_and_equal_ones_are_the_same():
    texts = ("1.50", "1.5", "100", "100.0", "1E+2", "0.10000000000000001")
    rows, totals = loaded(*(lines([ROW | {"keywordId": text, "cost": Decimal(text)}]) for text in texts))
    assert [row[COLUMNS.index("cost")] for row in rows] == ["1.5", "1.5", "100", "100", "100", "0.10000000000000001"]
    assert totals.cost == Decimal("303.10000000000000001")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"clicks": "1"}, "record 7,001: clicks is '1', not a whole number"),
        ({"clicks": 2**62}, "record 7,001: clicks is 4611686018427387904, not a whole number"),
        ({"cost": "0.50"}, "record 7,001: cost is '0.50', not a number"),
        ({"keywordId": ""}, "record 7,001: keywordId is '', not an id"),
        ({"keyword": 1}, "record 7,001: keyword is 1, not text"),
        ({"date": "2026-01-01"}, "record 7,001 has the date '2026-01-01'; the dataset is of"),
        ({"sales7d": None}, "record 7,001: sales7d is None, not a number"),
    ],
    ids=itertools.count(),
)
def test_a_bad_record_in_the_middle_is_told_by_its_number(change, reason):
    rows = [ROW | {"keywordId": n} for n in range(9_000)]
    rows[7_000] |= change
    with pytest.raises(BadReport) as refused:
        loaded(lines(rows[:4_000]), lines(rows[4_000:]))
    assert refused.value.reason.startswith(reason)


def test_a_missing_column_is_told_with_those_that_are_there():
    short = {name: value for name, value in ROW.items() if name != "matchType"}
    with pytest.raises(BadReport, match="record 2 has no column matchType; its columns are adGroupId, campaignId, "):
        loaded(lines([ROW, short, ROW]))


def test_a_block_of_many_short_records_is_given_in_chunks():
    rows, totals = loaded(lines(ROW | {"keywordId": n} for n in range(MAX_ROWS + 1)), lines([ROW]))
    assert len(rows) == totals.rows == MAX_ROWS + 2


def test_the_digest_is_that_of_the_rows_in_any_order():
    rows = [ROW | {"keywordId": n} for n in range(50)]
    there, back = loaded(lines(rows))[1].digest, loaded(lines(rows[30:]), lines(rows[:30]))[1].digest
    assert there == back
    assert loaded(lines(rows[1:]))[1].digest != there
    assert loaded(lines([*rows[1:], rows[0] | {"clicks": 2}]))[1].digest != there


def test_the_digest_says_its_version_and_another_one_is_no_change():
    digest = Digest()
    digest.add(b'["1","2","3",null,null,1,2,"0.5","7",0]\n')
    assert digest.text == "2:1-29c25cf661fed44b", "another way of making it needs another version"
    assert differ(digest.text, digest.text) is False
    assert differ("2:1-0000000000000000", digest.text) is True
    assert differ("1-0000000000000000", digest.text) is None
    assert differ("1-0000000000000000", "1-0000000000000001") is True


def test_a_load_of_the_former_version_is_not_taken_for_a_change(ledger_url, tmp_path):
    async def test(b):
        await b.until(START + timedelta(hours=1))
        b.ledger.database.write(lambda cursor: cursor.run("UPDATE report_load SET digest = '14-00000000000000ff'"))
        await b.until(START + days(2))
        found = b.rows("SELECT changed, row_count, rows_difference FROM report_load ORDER BY serving_offset")
        assert found == [(None, 20, None), (None, 20, 0)]

    on_bench(ledger_url, tmp_path, test)

"""Datasets, their loads and accounts as they stood at a moment that is over."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.ledger.births import birth_products
from penstock.ledger.care.prune import Ages, Pruner
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.reports import operations
from penstock.lifecycles.reports.machine import S, machine
from penstock.lifecycles.reports.past import PAST
from penstock.lifecycles.reports.settings import ReportSettings
from penstock.lifecycles.reports.tables import DATA_TABLES, VIEWS, report_load
from penstock.model.clock import Rng, VirtualClock
from penstock.model.errors import UnknownUnit
from penstock.model.machine import Actor
from penstock.model.outcome import Write
from penstock.operations.declare import Ask
from penstock.operations.reader import Reader
from tests.support.reports import ACCOUNTS, START, dataset, ref_of

YESTERDAY = START.date() - timedelta(days=1)
UNIT = dataset(day=YESTERDAY)
pytestmark = pytest.mark.by_day
LOAD = {"aggregation": "daily", "entity_type": "target", "row_count": 7, "digest": "d", "impressions": 0, "clicks": 0}


@pytest.fixture
def told(ledger_url):
    """Born at minute 0, fetching from 10 on, loaded at 20, given up at 30."""
    clock = VirtualClock(START)
    with Ledger.open(
        ledger_url, [machine], clock=clock, rng=Rng(5), create=True, data_tables=DATA_TABLES, views=VIEWS
    ) as ledger:
        ledger.birth([UNIT], actor=Actor.SCHEDULER, who="test")

        def later(status: S, reason: str, **changes: Any) -> None:
            clock.advance(600)
            ledger.move(ref_of(UNIT), status, actor=Actor.WORKER, who="test", reason=reason, **changes)

        later(S.FETCHING, "asked for", report_id="r1")
        ledger.move(ref_of(UNIT), S.PARSING, actor=Actor.WORKER, who="test", reason="ready")
        later(S.COMPLETED, "loaded", report_id=None, loaded_report_id="r1", loaded_rows=7, loaded_at=clock.now())
        loaded = {**LOAD, "unit_id": ref_of(UNIT).unit_id, "report_id": "r1", "serving_offset": 86_400, "cost": 2.5}
        write = Write(report_load, [{**loaded, "sales": 9.0, "loaded_at": clock.now()}])
        birth_products(ledger, [], actor=Actor.SCHEDULER, who="test", writes=[write])
        later(S.ERROR, "no more reports", error="no more reports")
        clock.advance(600)
        yield ledger


def read(ledger: Ledger, reading: Any, minute: int | None, **wanted: Any) -> Any:
    at = None if minute is None else START + timedelta(minutes=minute)
    reader = Reader(ledger.database, [machine], PAST)
    ask = Ask(reader, ReportSettings(accounts=ACCOUNTS), START + timedelta(hours=1))
    return reading(ask, reading.parameters(at=at, **wanted))


def test_datasets_are_listed_as_they_stood(told):
    pages = [read(told, operations.datasets, minute) for minute in (-1, 5, 15, 25, None)]
    assert [page.counts for page in pages] == [{}, {"missing": 1}, {"parsing": 1}, {"completed": 1}, {"error": 1}]
    assert [page.note for page in pages] == [None] * 5
    rows = [page.rows[0] for page in pages[1:]]
    assert [row.report_id for row in rows] == [None, "r1", None, None]
    assert [row.loaded_rows for row in rows] == [None, None, 7, 7]
    assert [row.error for row in rows] == [None, None, None, "no more reports"]
    assert [row.refreshing for row in rows] == [None, None, None, False]
    assert {(row.account, row.report_date, row.country) for row in rows} == {("acme", YESTERDAY, UNIT.country)}
    assert read(told, operations.datasets, 15, status=S.PARSING).rows == [rows[1]]
    assert read(told, operations.datasets, 15, status=S.ERROR).rows == []
    assert read(told, operations.datasets, 15, account="acme", first=YESTERDAY).rows == [rows[1]]


def test_one_dataset_is_shown_with_the_loads_of_then(told):
    name = ref_of(UNIT).unit_id
    early, late = (read(told, operations.show, minute, dataset=name) for minute in (15, 25))
    assert (early.status, early.loads) == (S.PARSING, [])
    assert (late.status, late.loaded_at, [load.report_id for load in late.loads]) == (
        S.COMPLETED,
        START + timedelta(minutes=20),
        ["r1"],
    )
    with pytest.raises(UnknownUnit, match=r"there was no dataset .*; .penstock reports datasets --at 2"):
        read(told, operations.show, -1, dataset=name)


def test_cadence_and_accounts_are_those_of_then(told):
    assert read(told, operations.cadence, 15).note == "nothing has been loaded yet"
    assert [row.loads for row in read(told, operations.cadence, 25).rows] == [1]
    pages = [read(told, operations.accounts, minute).rows for minute in (-1, 15, 25)]
    counts = [(rows[0].account, rows[0].datasets, rows[0].under_way) for rows in pages]
    assert counts == [("acme", 0, 0), ("acme", 1, 1), ("acme", 1, 0)]


def test_a_baseline_does_not_say_why_a_dataset_has_an_error(told):
    told.clock.advance(40 * 86_400)
    ages = Ages({"units": timedelta(days=3_000), "transition_log": timedelta(days=30)})
    Pruner(told.database, ages, who="operator:jo", rng=Rng(6)).prune()
    told.move(ref_of(UNIT), S.MISSING, actor=Actor.OPERATOR, who="jo", reason="again")
    (row,) = read(told, operations.datasets, 60).rows
    assert (row.status, row.error) == (S.ERROR, None)

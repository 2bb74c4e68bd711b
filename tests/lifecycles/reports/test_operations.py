"""What people ask of reports and do to them: readings answer, operations plan, and the kernel carries plans out."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pytest

from penstock.ledger.births import birth_products
from penstock.ledger.care.doctor import examine
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.reports import operations
from penstock.lifecycles.reports.machine import Aggregation, EntityType, S, machine
from penstock.lifecycles.reports.operations import (
    BackfillWanted,
    CadenceWanted,
    DatasetPage,
    OneDataset,
    RefreshWanted,
    ResetWanted,
)
from penstock.lifecycles.reports.settings import Account, ReportSettings
from penstock.lifecycles.reports.tables import DATA_TABLES, VIEWS, report_load
from penstock.model.clock import Rng, VirtualClock
from penstock.model.errors import UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Write
from penstock.model.unit import replace
from penstock.operations.carry import Done, Planned, carry_out, make_plan
from penstock.operations.declare import Ask, Operation
from penstock.operations.fields import Parameters
from penstock.operations.reader import Reader
from penstock.testing import check_hands
from tests.support.reports import ACCOUNTS, START, dataset, ref_of

YESTERDAY = START.date() - timedelta(days=1)
FAILED = {"error": "no", "create_failures": 3, "serving_offset": 86_400, "due_at": None}
LOADED = {"loaded_stage": "s1", "loaded_report_id": "r1", "last_processed_report_id": "r1", "loaded_rows": 7}


class Desk:
    """A ledger, and somebody who asks."""

    def __init__(self, url: str) -> None:
        clock = VirtualClock(START)
        self.ledger = Ledger.open(
            url, [machine], clock=clock, rng=Rng(5), create=True, data_tables=DATA_TABLES, views=VIEWS
        )
        self.settings = ReportSettings(accounts=ACCOUNTS)

    def ask(self, reason: str = "a test") -> Ask[ReportSettings]:
        return Ask(Reader(self.ledger.database, [machine]), self.settings, START, "tester", reason)

    def read(self, reading: Any, parameters: Parameters | None = None) -> Any:
        return reading(self.ask(), parameters)

    def plan(self, operation: Operation[Any], parameters: Parameters, reason: str = "a test") -> Planned:
        return make_plan(operation, self.ask(reason), parameters, owner="reports", version="v1")

    def do(self, operation: Operation[Any], parameters: Parameters) -> Done:
        return carry_out(self.ledger, self.ask(), self.plan(operation, parameters))

    def born(self, *units: Any, **failed: Any) -> None:
        self.ledger.birth(units, actor=Actor.SCHEDULER, who="test")
        for unit in units if failed else ():
            self.ledger.move(ref_of(unit), S.ERROR, actor=Actor.WORKER, who="test", reason="no", **failed)


@pytest.fixture
def desk(ledger_url):
    made = Desk(ledger_url)
    with made.ledger:
        yield made


def test_the_declaration_imports_nothing_heavy():
    code = (
        "import sys, penstock.lifecycles.reports\n"
        "heavy = {'sqlalchemy', 'aiohttp', 'rich', 'click', 'alembic', 'psycopg', 'pysqlite3'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_dataset_is_moved_past_its_operations():
    assert check_hands(machine) == 0


def test_datasets_are_listed_counted_and_shown(desk):
    mine, other = dataset(day=YESTERDAY), dataset(day=YESTERDAY - timedelta(days=1))
    desk.born(mine, other, dataset("globex", day=YESTERDAY))
    found = desk.read(operations.datasets, DatasetPage(account="acme", first=YESTERDAY))
    assert found.counts == {"missing": 1}
    (row,) = found.rows
    assert (row.unit_id, row.status, row.refreshing) == (ref_of(mine).unit_id, S.MISSING, False)
    assert (row.report_date, row.next_refresh_at) == (YESTERDAY, mine.due_at)
    none = desk.read(operations.datasets, DatasetPage(status=S.ERROR))
    assert (none.counts, none.rows) == ({}, [])
    for name in (ref_of(mine).unit_id, str(ref_of(mine))):
        shown = desk.read(operations.show, OneDataset(dataset=name))
        assert (shown.unit_id, shown.loads) == (ref_of(mine).unit_id, [])


def test_a_list_goes_on_where_it_ended(desk):
    units = [dataset(day=YESTERDAY - timedelta(days=n), entity=e) for n in range(3) for e in EntityType]
    resting = dataset(day=YESTERDAY - timedelta(days=9))
    desk.born(*units)
    desk.born(resting, replace(resting, entity_type=EntityType.PRODUCT), **FAILED)
    whole = desk.read(operations.datasets, DatasetPage(limit=100))
    assert (len(whole.rows), whole.next, whole.counts) == (8, None, {"error": 2, "missing": 6})
    seen, after = [], None
    while True:
        some = desk.read(operations.datasets, DatasetPage(limit=1, after=after))
        seen += some.rows
        after = some.next
        if after is None:
            break
    assert seen == whole.rows
    assert [row.next_refresh_at for row in seen[-2:]] == [None, None]


DAY: dict[str, Any] = {"first": YESTERDAY, "last": YESTERDAY}
WRONG = [
    (operations.show, OneDataset(dataset="acme/never/daily/target"), "no dataset 'acme/never/daily/target'"),
    (operations.show, OneDataset(dataset=""), "no dataset ''"),
    (operations.datasets, DatasetPage(first=date(2026, 11, 5), last=date(2026, 11, 1)), "ends before it starts"),
    (operations.datasets, DatasetPage(account="nobody"), "no account is called 'nobody'; the ledger has none"),
    (operations.datasets, DatasetPage(account=""), "no account is called ''"),
    (operations.datasets, DatasetPage(after="yesterday"), "'yesterday' is not a cursor"),
    (operations.refresh, RefreshWanted(), "this would be every dataset; name some"),
    (operations.refresh, RefreshWanted(datasets=("",)), "no dataset ''"),
    (operations.refresh, RefreshWanted(datasets=("acme/never/daily/target",)), "no dataset 'acme/never/daily/target'"),
    (operations.refresh, RefreshWanted(account="nobody"), "no account is called 'nobody'"),
    (operations.refresh, RefreshWanted(first=date(2026, 11, 5), last=date(2026, 11, 1)), "ends before it starts"),
    (operations.reset, ResetWanted(), "this would be every dataset in error; name some"),
    (operations.reset, ResetWanted(datasets=("acme/never/daily/target",)), "no dataset 'acme/never/daily/target'"),
    (operations.reset, ResetWanted(account="nobody"), "no account is called 'nobody'"),
    (
        operations.backfill,
        BackfillWanted(**DAY, aggregation=Aggregation.HOURLY),
        "hourly is off for acme, globex: reports.stream is not set",
    ),
    (operations.backfill, BackfillWanted(first=date.min, last=date.max), "is not over yet"),
    (operations.backfill, BackfillWanted(first=date(2020, 1, 1), last=date(2020, 1, 2)), "the provider keeps 95 days"),
    (operations.backfill, BackfillWanted(first=date(2999, 1, 1), last=date(2999, 1, 2)), "is not over yet"),
    (operations.backfill, BackfillWanted(first=YESTERDAY, last=date(2026, 1, 1)), "ends before it starts"),
    (operations.backfill, BackfillWanted(**DAY, account=("nobody",)), "no account is called 'nobody'"),
]


@pytest.mark.parametrize(("declared", "wanted", "said"), WRONG)
def test_what_cannot_be_done_is_one_line(desk, declared, wanted, said):
    with pytest.raises(UsageError) as told:
        desk.plan(declared, wanted) if isinstance(declared, Operation) else desk.read(declared, wanted)
    assert said in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("declared", [operations.refresh, operations.reset, operations.backfill])
def test_the_history_keeps_why(desk, declared):
    wanted = {"account": "acme"} if declared is not operations.backfill else DAY
    with pytest.raises(UsageError, match=f"reports {declared.name} needs a reason"):
        desk.plan(declared, declared.parameters(**wanted), reason=" ")


def test_a_ledger_without_reports_is_refused(ledger_url):
    with Ledger.open(ledger_url, [], clock=VirtualClock(START), create=True) as ledger:
        ask = Ask(Reader(ledger.database, [machine]), ReportSettings(), START)
        for declared in (operations.datasets, operations.cadence, operations.accounts):
            with pytest.raises(UsageError, match="this ledger keeps no reports yet; 'penstock db upgrade' adds them"):
                declared(ask)


def test_refresh_asks_for_a_report_now_and_says_what_it_leaves(desk):
    resting = dataset(day=YESTERDAY)
    stranger = replace(resting, account="nobody")
    desk.born(resting, **FAILED)
    desk.born(stranger)
    would = desk.plan(operations.refresh, RefreshWanted(first=YESTERDAY))
    assert (would.preview.says, would.preview.count) == ("fetch 1 dataset again", 1)
    assert would.preview.sample == [str(ref_of(resting))]
    assert would.preview.skipped_sample == {str(ref_of(stranger)): "account 'nobody' is not configured"}
    assert desk.ledger.get(ref_of(resting)).create_failures == 3
    names = (str(ref_of(resting)), "no/such/daily/target")
    done = desk.do(operations.refresh, RefreshWanted(datasets=names))
    assert (done.count, done.skipped_sample) == (1, {"report:no/such/daily/target": "no such dataset"})
    after = desk.ledger.get(ref_of(resting))
    assert (after.status, after.create_failures, after.due_at) == (S.ERROR, 0, START)
    assert after.serving_offset == 86_400
    assert (after.changed_by, after.change_reason) == ("operator:tester", "a test")


def test_what_is_under_way_worked_on_parked_or_off_is_skipped_with_its_reason(desk):
    fetching, parked = (dataset(day=YESTERDAY - timedelta(days=n)) for n in range(2))
    hourly = dataset(aggregation=Aggregation.HOURLY, hour=START - timedelta(days=2))
    desk.born(fetching, parked, hourly)
    desk.ledger.move(ref_of(fetching), S.FETCHING, actor=Actor.WORKER, who="test", reason="x", report_id="r9")
    desk.ledger.park([ref_of(parked)], who="test", reason="poison")
    desk.settings = ReportSettings(accounts=ACCOUNTS, hourly_offsets=())
    plan = desk.plan(operations.refresh, RefreshWanted(account="acme"))
    assert plan.preview.count == 0
    assert plan.preview.skipped_sample == {
        str(ref_of(fetching)): "report r9 is under way",
        str(ref_of(parked)): "it is parked: poison",
        str(ref_of(hourly)): "hourly is switched off: reports.hourly_offsets is empty",
    }


def test_reset_puts_what_is_in_error_back_to_the_day_it_was_made(desk):
    one, other, healthy = (dataset(day=YESTERDAY - timedelta(days=n)) for n in range(3))
    desk.born(one, **FAILED)
    desk.born(other, **FAILED, **LOADED)
    desk.born(healthy)
    would = desk.plan(operations.reset, ResetWanted(account="acme"))
    assert (would.preview.says, would.preview.count, would.preview.skipped) == ("reset 2 datasets", 2, {})
    assert would.preview.warnings == ["the loaded rows of 1 dataset are hidden until the next load"]
    assert desk.ledger.get(ref_of(one)).status is S.ERROR
    named = ResetWanted(datasets=(str(ref_of(one)), str(ref_of(healthy))))
    done = desk.do(operations.reset, named)
    assert done.count == 1
    assert done.skipped_sample == {str(ref_of(healthy)): "it is missing; only datasets in error are reset"}
    assert desk.do(operations.reset, ResetWanted(datasets=(ref_of(other).unit_id,))).count == 1
    for after in (desk.ledger.get(ref_of(u)) for u in (one, other)):
        assert (after.status, after.error, after.create_failures, after.serving_offset) == (S.MISSING, None, 0, None)
        assert (after.loaded_stage, after.loaded_rows, after.last_processed_report_id) == (None, None, None)
        assert after.due_at == START
        assert (after.changed_by, after.change_reason) == ("operator:tester", "a test")
    assert not examine(desk.ledger.database, {"report": machine})


def test_a_backfill_is_spread_and_marked(desk):
    days: dict[str, Any] = {"first": YESTERDAY - timedelta(days=80), "last": YESTERDAY - timedelta(days=71)}
    wanted = BackfillWanted(**days, per_hour=10)
    would = desk.plan(operations.backfill, wanted)
    assert would.preview.says == "make 40 datasets of 2 accounts, unless they exist"
    assert would.preview.count == 2 * 2 * 10
    until = START + timedelta(hours=2)
    assert would.preview.warnings == [
        f"the last falls due at {until:%Y-%m-%d %H:%M} UTC; each waits while its account has daily work"
    ]
    assert desk.do(operations.backfill, wanted).count == 40
    assert desk.do(operations.backfill, wanted).count == 0
    rows = desk.ledger.read(
        lambda c: c.rows(
            "SELECT account, count(DISTINCT next_refresh_at), count(*) FROM report_dataset_metadata"
            " WHERE backfill GROUP BY account ORDER BY account"
        )
    )
    assert [tuple(row) for row in rows] == [("acme", 20, 20), ("globex", 20, 20)]


def test_a_backfill_leaves_out_who_is_paused_or_has_no_hours_and_says_so(desk, tmp_path):
    (tmp_path / "1001").mkdir()
    idle = Account(profile_id="9", paused=True)
    desk.settings = ReportSettings(accounts={**ACCOUNTS, "idle": idle}, stream=tmp_path)
    plan = desk.plan(operations.backfill, BackfillWanted(**DAY, aggregation=Aggregation.HOURLY))
    assert plan.preview.says == "make 48 datasets of 1 account, unless they exist"
    paused, hourly, _ = plan.preview.warnings
    assert paused == "paused accounts are left out: idle"
    assert hourly.startswith(f"hourly is off for globex: {tmp_path / '1002'} cannot be read")
    with pytest.raises(UsageError, match="account 'idle' is paused in the configuration"):
        desk.plan(operations.backfill, BackfillWanted(**DAY, account=("acme", "idle")))
    desk.settings = ReportSettings()
    with pytest.raises(UsageError, match=r"no account is configured; add \[reports.accounts.NAME\]"):
        desk.plan(operations.backfill, BackfillWanted(**DAY))


def load(report: str, offset: int, **more: Any) -> dict[str, Any]:
    made = {
        "unit_id": report,
        "report_id": f"r{offset}",
        "aggregation": "daily",
        "entity_type": "target",
        "serving_offset": offset * 86_400,
        "loaded_at": datetime(2026, 11, 1, tzinfo=UTC),
        "row_count": 10,
        "digest": "d",
        "impressions": 1,
        "clicks": 1,
        "cost": 110.0,
        "sales": 50.0,
        "changed": None,
        "rows_difference": None,
        "cost_difference": None,
        "sales_difference": None,
    }
    return made | more


def test_cadence_says_per_offset_how_often_and_by_how_much(desk):
    changed = {"changed": True, "rows_difference": 0, "cost_difference": 10.0, "sales_difference": 0.0}
    same = {"changed": False, "rows_difference": 0, "cost_difference": 0.0, "sales_difference": 0.0}
    assert desk.read(operations.cadence, CadenceWanted()).note == "nothing has been loaded yet"
    mine = dataset(day=YESTERDAY)
    desk.born(mine)
    unit_id = ref_of(mine).unit_id
    loads = [
        *(load(u, 1) for u in (unit_id, "b")),
        load(unit_id, 3, **changed),
        load("b", 3, **same),
        *(load(u, 5, **same) for u in (unit_id, "b")),
    ]
    writes = [Write(report_load, loads)]
    birth_products(desk.ledger, [], actor=Actor.SCHEDULER, who="test", writes=writes)
    found = desk.read(operations.cadence, CadenceWanted(aggregation=Aggregation.DAILY)).rows
    assert [(c.offset, c.loads, c.changed_percent, c.cost_percent) for c in found] == [
        ("T+1d", 2, None, None),
        ("T+3d", 2, 50.0, 5.0),
        ("T+5d", 2, 0.0, 0.0),
    ]
    assert desk.read(operations.cadence, CadenceWanted(aggregation=Aggregation.HOURLY)).rows == []
    shown = desk.read(operations.show, OneDataset(dataset=unit_id))
    assert [(one.offset, one.changed) for one in shown.loads] == [("T+1d", None), ("T+3d", True), ("T+5d", False)]


def test_what_becomes_of_accounts_is_said_before_it_happens(desk):
    desk.born(dataset(day=YESTERDAY))
    standings = desk.read(operations.accounts).rows
    assert {s.account: s.state for s in standings} == {"acme": "active", "globex": "new"}
    assert all("hourly is off: reports.stream is not set" in s.says for s in standings)
    idle = msgspec.structs.replace(ACCOUNTS["globex"], paused=True)
    desk.settings = ReportSettings(accounts={"globex": idle}, hourly_offsets=())
    gone, paused = desk.read(operations.accounts).rows
    assert (gone.account, gone.state, gone.datasets) == ("acme", "gone", 1)
    assert "stay readable" in gone.says
    assert (paused.account, paused.state, paused.datasets) == ("globex", "paused", 0)

"""Rules, runs and their targets as they stood at moments that are over.

What was answered while a story went on is compared with what is answered afterwards of the same moments: a field is
what it was, or empty where nobody knows it any more, and never another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from penstock.lifecycles.rules import readings
from penstock.lifecycles.rules.run.machine import R, Run
from penstock.lifecycles.rules.tables import reconciliation_mismatch, reconciliation_report
from penstock.model.clock import instant_text
from penstock.model.errors import InDoubt, PenstockError, Rejected, Transient, UnknownUnit, UsageError
from penstock.model.outcome import Write
from penstock.operations import dead
from penstock.operations.fields import fields_of
from tests.support.price_shop import After, PriceShop, euros
from tests.support.rules import Desk, desk

pytestmark = pytest.mark.by_day
SKUS = ("SKU-p0000-v0", "SKU-p0008-v0", "SKU-p0001-v0", "SKU-p0005-v0")
FORGOTTEN = {
    "attempts",
    "changed",
    "in_doubt",
    "in_doubt_since",
    "live",
    "next",
    "parked",
    "rules.target.retries",
    "waits",
}
"""The fields that may be empty of a moment where they were not."""


@dataclass
class Records:
    """What was answered at which moment."""

    at: Desk
    told: list[tuple[datetime, str, Mapping[str, Any], Any]] = field(default_factory=list)

    def note(self) -> datetime:
        """Ask everything. What happens in the same instant belongs to it, so it has one of its own."""
        self.at.bench.time.advance(0.5)
        moment = self.at.bench.time.now()
        for name, asked in self._questions():
            self.told.append((moment, name, asked, self._answer(name, asked)))
        self.at.bench.time.advance(0.5)
        return moment

    def compare(self) -> set[str]:
        """Every answer with that of the same moment afterwards. The fields that were forgotten."""
        forgotten: set[str] = set()
        for moment, name, asked, then in self.told:
            found = self._answer(name, {**asked, "at": moment})
            where = f"{name} {dict(asked)} at {moment:%H:%M:%S.%f}"
            forgotten |= set(_different(then, found, where))
        return forgotten

    def _questions(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name in ("list", "locked", "runs", "reports", "dead", "drain", "metrics", "alerts"):
            yield name, {}
        yield "runs", {"status": R.APPLYING}
        for run in self.at.bench.runs():
            yield "show", {"run": str(run.id)}
            yield "targets", {"run": str(run.id)}
            yield "targets", {"run": str(run.id), "failed": True}
            yield "targets", {"run": str(run.id), "by_change": True, "limit": 3}
        for row in self.at.read("reports").rows:
            yield "report", {"report": row.report_id}
        for sku in SKUS:
            yield "history", {"sku": sku}

    def _answer(self, name: str, asked: Mapping[str, Any]) -> Any:
        try:
            return msgspec.to_builtins(self.at.read(name, **asked))
        except PenstockError as error:
            return type(error).__name__


def _different(then: Any, found: Any, where: str, name: str = "") -> Iterator[str]:
    """The fields that are empty now and were not; anything else that differs fails."""
    if isinstance(then, dict) and isinstance(found, dict):
        assert then.keys() == found.keys(), where
        for one in then.keys() - {"note"}:
            own = str(then.get("metric", one)) if one == "value" else one
            yield from _different(then[one], found[one], f"{where} {one}", own)
    elif isinstance(then, list) and isinstance(found, list):
        assert len(then) == len(found), where
        for number, pair in enumerate(zip(then, found, strict=True)):
            yield from _different(*pair, f"{where} {number}", name)
    elif found is None and then is not None:
        yield name
    else:
        assert found == then, where


def story(at: Desk, records: Records) -> None:
    """A run that is approved, paused, fails in part, is tried again, compared, mended and rolled back; and others."""
    undone(at, records, applied(at, records))
    at.bench.hours(24)


def applied(at: Desk, records: Records) -> Run:
    """A run that in the end has applied all but one of its targets."""
    bench, shop = at.bench, at.bench.shop
    trouble: dict[str, Any] = {}

    def stir(kind: str, ids: Sequence[str]) -> Any:
        return next((trouble[one] for one in ids if kind == "write" and one in trouble), None)

    shop.trouble = stir
    records.note()
    at.do("lock", skus=("SKU-p0007-v0",), account="shop", reason="a gift")
    at.configure(other={"selector": {"skus": ["SKU-p0000-v0"]}, "transform": {"percent": "-1"}, "priority": 9})
    at.do("import")
    records.note()
    run = at.preview("cut")
    records.note()
    at.do("approve", run=str(run.id), who="bob")
    records.note()
    trouble |= {
        "p0001-v0": Rejected("too low"),
        "p0002-v0": Transient("away"),
        "p0003-v0": After(InDoubt("closed")),
        "p0005-v0": Rejected("no, nor ever"),
    }
    shop.edit("p0004-v0", euros(77_700))
    bench.slowly()
    at.do("queue", run=str(run.id))
    records.note()
    for seconds in (0.2, 1, 2):
        bench.work(seconds)
        records.note()
    at.do("pause", run=str(run.id), reason="lunch")
    records.note()
    bench.work(3)
    records.note()
    at.do("unlock", skus=("SKU-p0007-v0",), account="shop")
    at.do("resume", run=str(run.id))
    for seconds in (2, 4, 60):
        bench.work(seconds)
        records.note()
    assert at.run(str(run.id)).status is R.PARTIAL
    at.do(dead.dismiss, units=(f"rule_target:{run.id}/p0005-v0",), reason="we know")
    at.configure(other={"selector": {"skus": ["SKU-p0000-v0"]}, "transform": {"percent": "-2"}, "priority": 9})
    at.do("import")
    at.do("lock", skus=("SKU-p0007-v0",), account="shop", reason="again")
    records.note()
    trouble.clear()
    at.do("retry", run=str(run.id), target=("p0001-v0", "p0002-v0"))
    records.note()
    for seconds in (1, 30):
        at.take_up(run, seconds=seconds)
        records.note()
    return run


def undone(at: Desk, records: Records, run: Run) -> None:
    """It is compared, mended, and rolled back in parts, while another one is cancelled."""
    bench, shop = at.bench, at.bench.shop
    shop.prices["p0008-v0"] = euros(123)
    bench.hours(1.5)
    records.note()
    at.do("reconcile", run=str(run.id))
    bench.work(5)
    at.do("reconcile", run=str(run.id), repair=True)
    records.note()
    bench.work(30)
    records.note()
    second = at.preview("other", start_at=bench.time.now().replace(year=2027))
    at.do("queue", run=str(second.id))
    bench.work(2)
    records.note()
    at.do("cancel", run=str(second.id), reason="no sale")
    records.note()
    bench.work(5)
    records.note()
    at.do("rollback", run=str(run.id), target=("p0003-v0",), reason="this one")
    bench.work(0.5)
    records.note()
    bench.work(20)
    records.note()
    at.configure()
    at.do("import")
    at.do("rollback", run=str(run.id), leave=("p0006-v0",))
    for seconds in (1, 2, 60):
        bench.work(seconds)
        records.note()
    assert at.run(str(run.id)).status is R.ROLLED_BACK


def test_what_was_answered_then_is_answered_afterwards_or_is_forgotten(ledger_url):
    with desk(ledger_url, PriceShop(9, 1), approve_above=3) as at:
        records = Records(at)
        story(at, records)
        assert len({moment for moment, *_ in records.told}) > 20
        assert records.compare() <= FORGOTTEN


def test_every_reading_is_asked_of_the_past_by_the_same_name():
    assert [one.name for one in readings.READINGS if "at" not in {f.name for f in fields_of(one.parameters)}] == []


def test_a_run_is_shown_as_far_as_it_had_come(ledger_url):
    with desk(ledger_url, PriceShop(6, 1)) as at:
        at.bench.shop.trouble = lambda kind, ids: Rejected("no") if kind == "write" and "p0001-v0" in ids else None
        before = at.bench.time.now()
        at.bench.time.advance(1)
        at.bench.slowly()
        run = at.queued()
        queued = at.bench.time.now()
        at.bench.time.advance(1)
        at.bench.work(3.5)
        under_way = at.bench.time.now()
        at.bench.work(60)
        ended = at.bench.time.now()
        named = {"run": str(run.id)}
        absent = (
            f"there was no run '{run.id}' at {instant_text(before)}; 'penstock rules runs --at {instant_text(before)}'"
        )
        for name in ("show", "targets", "reports", "dead", "drain"):
            with pytest.raises(UnknownUnit, match=absent):
                at.read(name, **named, at=before)
        with pytest.raises(UnknownUnit, match=r"there was no report '0' at .*; 'penstock rules reports --at"):
            at.read("report", report="0", at=before)
        with pytest.raises(UsageError, match="the past does not go on"):
            at.read("show", **named, at=queued, watch=True)
        shown = [at.read("show", **named, at=moment) for moment in (queued, under_way, ended)]
        assert [(one.status, one.targets, one.applied, one.failed, one.next) for one in shown] == [
            (R.QUEUED, 6, 0, 0, None),
            (R.APPLYING, 6, 3, 1, None),
            (R.PARTIAL, 6, 5, 1, None),
        ]
        assert shown[1].progress.says == "3 of 6 set, 1 failed, 0.9 a second"
        assert shown[1].progress.ends_at - under_way == timedelta(seconds=2 / shown[1].progress.rate)
        assert (shown[1].progress.finished_at, shown[1].waits, shown[1].error) == (None, None, None)
        assert (shown[2].progress.ends_at, shown[2].progress.rate) == (at.run(str(run.id)).finished_at, None)
        pages = [at.read("targets", **named, at=moment) for moment in (queued, under_way, ended)]
        assert [page.counts for page in pages] == [
            {"PREVIEW": 6},
            {"APPLIED": 3, "FAILED": 1, "QUEUED": 2},
            {"APPLIED": 5, "FAILED": 1},
        ]
        (failed,) = at.read("targets", **named, at=under_way, failed=True).rows
        assert (failed.variant, failed.cause, failed.why, failed.after) == (
            "p0001-v0",
            "refused",
            "Rejected: no",
            "9.01 EUR",
        )
        assert at.read("targets", **named, at=queued, failed=True).note.startswith("run ")
        assert (at.read("runs", at=before).rows, at.read("runs", at=before).note) == ([], "there was no such run then")


def test_versions_and_locks_are_those_of_then(ledger_url):
    with desk(ledger_url) as at:
        moments = []

        def later() -> None:
            moments.append(at.bench.time.now())
            at.bench.time.advance(60)

        def meant(percent: str) -> None:
            at.configure(one={"selector": {"everything": True}, "transform": {"percent": percent}})
            at.do("import")
            later()

        later()
        meant("-1")
        at.do("lock", skus=("SKU-p0000-v0",), account="shop", reason="a gift")
        meant("-2")
        at.do("unlock", skus=("SKU-p0000-v0",), account="shop")
        at.configure()
        at.do("import")
        later()
        at.do("lock", skus=("SKU-p0000-v0",), account="shop", reason="again")
        found = [
            [(row.version, row.does, row.changed) for row in at.read("list", at=moment).rows if row.rule == "one"]
            for moment in moments
        ]
        assert found == [[], [(1, "-1 %: everything", None)], [(2, "-2 %: everything", None)], []]
        assert [row.rule for row in at.read("list").rows] == ["cut"]
        locked = [[(row.sku, row.reason) for row in at.read("locked", at=moment).rows] for moment in moments]
        assert locked == [[], [], [("SKU-p0000-v0", "a gift")], []]
        # Before every lock was kept: what is locked since then is told as long as it stays so.
        at.bench.ledger.database.write(lambda cursor: cursor.run("DELETE FROM locked_sku_log"))
        at.bench.ledger.database.write(lambda cursor: cursor.run("UPDATE rule SET ended_at = NULL"))
        assert at.read("locked", at=moments[2]).rows == []
        assert [row.reason for row in at.read("locked", at=at.bench.time.now()).rows] == ["again"]
        assert [row.rule for row in at.read("list", at=moments[1]).rows] == ["cut"]


def test_a_comparison_that_was_going_on_has_what_it_had_found(ledger_url):
    with desk(ledger_url) as at:
        run = at.applied(seconds=30)
        began, one = at.bench.time.now(), UUID(int=5)
        row = {"id": one, "rule_run_id": run.id, "occasion": "immediate", "started_at": began}
        done = {"finished_at": began + timedelta(minutes=9), "total_checked": 4, "mismatches": 2, "superseded": 1}
        differs = {"report_id": one, "rule_run_id": run.id, "sku": "S", "expected": 900, "currency": "EUR"}
        rows = [
            differs | {"target_id": "a", "actual": 950, "difference": 50, "at": began + timedelta(minutes=1)},
            differs | {"target_id": "b", "actual": None, "difference": None, "at": began + timedelta(minutes=6)},
        ]
        report = Write(reconciliation_report, [row | done | {"missing": 1}])
        at.bench.ledger.write([report, Write(reconciliation_mismatch, rows)])
        at.bench.time.advance(600)

        def seen(minutes: int) -> tuple[Any, ...]:
            (row,) = at.read("reports", at=began + timedelta(minutes=minutes)).rows
            return row.total_checked, row.mismatches, row.superseded, row.missing, row.finished_at

        assert (seen(5), seen(8), seen(9)) == (
            (None, 1, None, 0, None),
            (None, 2, None, 1, None),
            (4, 2, 1, 1, done["finished_at"]),
        )
        found = at.read("report", report=str(one), at=began + timedelta(minutes=5))
        assert ([row.target_id for row in found.details], found.left_out) == (["a"], 0)
        shown = at.read("show", run=str(run.id), at=began + timedelta(minutes=8))
        assert (shown.progress.reports, shown.progress.mismatches) == (0, None)
        with pytest.raises(UnknownUnit, match="no report"):
            at.read("report", report=str(one), at=began - timedelta(minutes=1))


def test_a_sku_has_the_prices_that_were_set_by_then(ledger_url):
    with desk(ledger_url) as at:
        before = at.bench.time.now()
        at.bench.time.advance(1)
        run = at.applied(seconds=30)
        between = at.bench.time.now()
        at.do("rollback", run=str(run.id))
        at.bench.work(30)
        assert len(at.read("history", sku="SKU-p0000-v0").rows) == 2
        (row,) = at.read("history", sku="SKU-p0000-v0", at=between).rows
        assert (row.after, row.rolled_back) == ("9.00 EUR", False)
        early = at.read("history", sku="SKU-p0000-v0", at=before)
        assert (early.rows, early.note) == ([], "no run has ever set the price of SKU-p0000-v0")
        with pytest.raises(UnknownUnit, match="no catalogue has the SKU 'NO-SUCH'"):
            at.read("history", sku="NO-SUCH", at=between)
        alerts = at.read("alerts", at=between).rows
        assert [row.firing for row in alerts] == [False] * 5
        values = {row.metric: row.value for row in at.read("metrics", at=between).rows}
        assert (values["rules.apply.count"], values["rules.dlq.size"], values["rules.target.retries"]) == (4, 0, None)

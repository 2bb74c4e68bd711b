"""Comparing what a run has applied with the live prices: a report, and an event for each price that differs.

Only the newest applied target of a variant is compared: what a later run has set again is counted as superseded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID, uuid5

from penstock.ledger.schema.columns import document
from penstock.lifecycles.rules.money import Price
from penstock.lifecycles.rules.run.decide import reconciliations_by
from penstock.lifecycles.rules.run.machine import Run
from penstock.lifecycles.rules.settings import RulesSettings
from penstock.lifecycles.rules.shop import Configured
from penstock.lifecycles.rules.tables import reconciliation_mismatch, reconciliation_report
from penstock.model.errors import MustWait, Transient
from penstock.model.outcome import Event, Outcome, Write
from penstock.model.unit import replace
from penstock.worker.flow import Io

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.ledger.store.database import Cursor

MISMATCH = "automation.reconciliation.mismatch"
_AT_ONCE = 1_000
_BULK_COST = 20
"""What a bulk read costs, about, with some looks whether it is there."""
_AWAY = timedelta(hours=1)
"""How long a comparison waits before it asks again whether its account is there."""
_OCCASIONS = ("immediate", "delayed")


class Applied(NamedTuple):
    """An applied target: its variant, its SKU, what it set, and whether a later run has set it again."""

    id: str
    sku: str
    price: Price
    superseded: bool


class Counts(NamedTuple):
    """What a comparison has found so far."""

    checked: int
    mismatches: int
    superseded: int
    missing: int
    started_at: datetime


class Reconciler:
    """Compares runs, some thousand targets in a step."""

    def __init__(self, settings: RulesSettings, accounts: Mapping[str, Configured]) -> None:
        self._settings = settings
        self._accounts = accounts
        #: All live prices of the comparison that is going on, where they came by one bulk read.
        self._live: tuple[UUID, Mapping[str, Price]] | None = None

    async def step(self, run: Run, io: Io) -> Outcome[Run]:
        """Compare the next targets; after the last, close the report."""
        own = self._accounts.get(run.account)
        if own is None:
            raise MustWait(f"the account {run.account!r} is paused, or not in the configuration", io.now() + _AWAY)
        begins = run.reconcile_position is None
        report_id = uuid5(run.id, f"report:{run.version}") if begins or run.report_id is None else run.report_id
        before = await io.ledger(lambda ledger: counts_of(ledger, report_id, io.now()))
        after = run.reconcile_position or ""
        found = await io.ledger(lambda ledger: ledger.read(lambda cursor: applied_after(ledger, cursor, run, after)))
        compared = [one for one in found if not one.superseded]
        live = await self._prices(own, run, report_id, compared, io)
        if others := {price.currency for price in live.values()} - {run.currency}:
            raise Transient(f"the shop's prices are in {others.pop()} now, and the run's are in {run.currency}")
        rows = [row for one in compared if (row := _mismatch(run, report_id, one, live, io.now())) is not None]
        counts = Counts(
            before.checked + len(compared),
            before.mismatches + len(rows),
            before.superseded + len(found) - len(compared),
            before.missing + sum(row["actual"] is None for row in rows),
            before.started_at,
        )
        position = found[-1].id if len(found) == _AT_ONCE else None
        return self._outcome(
            replace(run, report_id=report_id, reconcile_position=position, attempts=0), run, counts, rows, io.now()
        )

    def _outcome(
        self, after: Run, run: Run, counts: Counts, rows: Sequence[Mapping[str, Any]], now: datetime
    ) -> Outcome[Run]:
        position, report_id = after.reconcile_position, after.report_id
        assert report_id is not None  # noqa: S101 - set by the caller
        writes = [Write(reconciliation_report, [_report(run, report_id, counts, None if position else now)])]
        if rows:
            writes.append(Write(reconciliation_mismatch, rows))
        if position is None:
            self._live = None
            done = reconciliations_by(now, run, self._settings)
            after = replace(after, reconciled=done, reconcile_wanted=False, due_at=now)
        said = f"{counts.checked:,} prices compared, {counts.mismatches:,} differ"
        events = [_event(run, row) for row in rows]
        if position is None and counts.mismatches:
            told = {"run": f"rule_run:{run.id}", "reason": said}
            events.append(Event(f"rules.mismatch:{report_id}", "rules.mismatch", told, "warning", tenant=run.tenant_id))
        return Outcome(run, after, said, writes=writes, events=events, keep_claim=True)

    async def _prices(
        self, own: Configured, run: Run, report_id: UUID, compared: Sequence[Applied], io: Io
    ) -> Mapping[str, Price]:
        if run.applied_count > self._settings.bulk_read_above and (self._live is not None or own.shop.stream()):
            if self._live is None or self._live[0] != report_id:
                self._live = (report_id, await self._everything(own, io))
            return self._live[1]
        found: dict[str, Price] = {}
        for start in range(0, len(compared), own.reads_at_once):
            part = compared[start : start + own.reads_at_once]
            async with io.gate(own.gate, own.shop.costs(reads=len(part), writes=0)):
                found |= await own.shop.read([one.id for one in part])
        return found

    async def _everything(self, own: Configured, io: Io) -> Mapping[str, Price]:
        stream = own.shop.stream()
        assert stream is not None  # noqa: S101 - asked before
        async with io.gate(own.gate, own.shop.costs(reads=_BULK_COST, writes=0)):
            return {variant: price async for variant, price in stream}


def applied_after(ledger: Ledger, cursor: Cursor, run: Run, after: str) -> list[Applied]:
    """Applied targets of a run in the order of their variants."""
    mine = f"t.rule_run_id = {ledger.database.sql.identifier('run')}"
    later = (
        "EXISTS (SELECT 1 FROM rule_target o WHERE o.account = t.account AND o.id = t.id AND o.status = 'APPLIED'"
        " AND o.applied_at > t.applied_at)"
    )
    rows = cursor.rows(
        f"SELECT t.id, t.sku, t.after_json, {later} FROM rule_target t WHERE {mine} AND t.status = 'APPLIED'"
        " AND t.id > :after ORDER BY t.id LIMIT :n",
        run=str(run.id),
        after=after,
        n=_AT_ONCE,
    )
    return [
        Applied(
            str(one), str(sku), Price.from_json(document(kept) if isinstance(kept, str) else kept), bool(superseded)
        )
        for one, sku, kept, superseded in rows
    ]


def counts_of(ledger: Ledger, report_id: UUID, now: datetime) -> Counts:
    """What a report says so far; nothing, where it has not begun."""
    from penstock.model.clock import instant

    mine = f"id = {ledger.database.sql.identifier('report')}"
    sql = f"SELECT total_checked, mismatches, superseded, missing, started_at FROM reconciliation_report WHERE {mine}"
    rows = ledger.read(lambda cursor: cursor.rows(sql, report=str(report_id)))
    if not rows:
        return Counts(0, 0, 0, 0, now)
    checked, mismatches, superseded, missing, started = rows[0]
    return Counts(checked, mismatches, superseded, missing, instant(started) or now)


def _report(run: Run, report_id: UUID, counts: Counts, finished_at: datetime | None) -> dict[str, Any]:
    occasion = _OCCASIONS[run.reconciled] if run.reconciled < len(_OCCASIONS) else "periodic"
    return {
        "id": report_id,
        "rule_run_id": run.id,
        "tenant_id": run.tenant_id,
        "occasion": "by hand" if run.reconcile_wanted else occasion,
        "started_at": counts.started_at,
        "finished_at": finished_at,
        "total_checked": counts.checked,
        "mismatches": counts.mismatches,
        "superseded": counts.superseded,
        "missing": counts.missing,
    }


def _mismatch(
    run: Run, report_id: UUID, one: Applied, live: Mapping[str, Price], now: datetime
) -> dict[str, Any] | None:
    actual = live.get(one.id)
    if actual == one.price:
        return None
    return {
        "report_id": report_id,
        "target_id": one.id,
        "rule_run_id": run.id,
        "sku": one.sku,
        "expected": one.price.amount,
        "actual": None if actual is None else actual.amount,
        "difference": None if actual is None else actual.minus(one.price),
        "expected_compare_at": one.price.compare_at,
        "actual_compare_at": None if actual is None else actual.compare_at,
        "currency": one.price.currency,
        "at": now,
    }


def _event(run: Run, row: Mapping[str, Any]) -> Event:
    payload = {
        "runId": str(run.id),
        "targetId": row["target_id"],
        "sku": row["sku"],
        "expected": row["expected"],
        "actual": row["actual"],
        "difference": row["difference"],
    }
    return Event(f"{row['report_id']}:{row['target_id']}:mismatch", MISMATCH, payload, tenant=run.tenant_id)

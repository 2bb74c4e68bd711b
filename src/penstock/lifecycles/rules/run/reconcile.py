"""Comparing what a run has applied with the live prices: a report, and an event for each price that differs.

Only the newest applied target of a variant is compared: what a later run has set again is counted as superseded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID, uuid5

import msgspec

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

MISMATCH = "automation.reconciliation.mismatch"
_AT_ONCE = 1_000
_BULK_COST = 20
"""What a bulk read costs, about, with some looks whether it is there."""
_AWAY = timedelta(hours=1)
"""How long a comparison waits before it asks again whether its account is there."""
_ANOTHER = timedelta(seconds=10)
"""How long a comparison waits before it asks again whether the one before it has ended."""
_ABANDONED = timedelta(minutes=30)
"""A comparison that did nothing for so long was interrupted: its prices are let go."""
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


@dataclass(slots=True)
class _Bulk:
    """All live prices of one comparison, once they are there."""

    report_id: UUID
    used_at: datetime
    prices: Mapping[str, Price] | None


class Reconciler:
    """Compares runs, some thousand targets in a step."""

    def __init__(self, settings: RulesSettings, accounts: Mapping[str, Configured]) -> None:
        self._settings = settings
        self._accounts = accounts
        #: The comparison that has all live prices by one bulk read. Others wait for it: memory holds one catalogue.
        self._bulk: _Bulk | None = None

    async def step(self, run: Run, io: Io) -> Outcome[Run]:
        """Compare the next targets; after the last, close the report."""
        own = self._accounts.get(run.account)
        if own is None:
            raise MustWait(f"the account {run.account!r} is paused, or not in the configuration", io.now() + _AWAY)
        begins = run.reconcile_position is None
        report_id = uuid5(run.id, f"report:{run.version}") if begins or run.report_id is None else run.report_id
        before = await io.ledger(lambda ledger: counts_of(ledger, report_id, io.now()))
        # Before the ledger is asked: what a run has set since these were read is superseded, and not a difference.
        everything = await self._everything(own, run, report_id, io)
        after = run.reconcile_position or ""
        found = await io.ledger(lambda ledger: applied_after(ledger, run, after))
        compared = [one for one in found if not one.superseded]
        live = everything if everything is not None else await _live_prices(own, compared, io)
        if others := {price.currency for price in live.values()} - {run.currency}:
            raise Transient(f"the shop's prices are in {others.pop()} now, and the run's are in {run.currency}")
        if differing := [one.id for one in compared if live.get(one.id) != one.price]:
            moved = await io.ledger(lambda ledger: moved_since(ledger, run, differing))
            compared = [one for one in compared if one.id not in moved]
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
            self._bulk = None if self._bulk is not None and self._bulk.report_id == report_id else self._bulk
            done = reconciliations_by(now, run, self._settings)
            after = replace(after, reconciled=done, reconcile_wanted=False, due_at=now)
        said = f"{counts.checked:,} prices compared, {counts.mismatches:,} differ"
        events = [_event(run, row) for row in rows]
        if position is None and counts.mismatches:
            told = {"run": f"rule_run:{run.id}", "reason": said}
            events.append(Event(f"rules.mismatch:{report_id}", "rules.mismatch", told, "warning", tenant=run.tenant_id))
        return Outcome(run, after, said, writes=writes, events=events, keep_claim=True)

    async def _everything(self, own: Configured, run: Run, report_id: UUID, io: Io) -> Mapping[str, Price] | None:
        """All live prices by one bulk read; None where there are too few targets for it, or the shop has none."""
        stream = own.shop.stream() if run.applied_count > self._settings.bulk_read_above else None
        if stream is None:
            return None
        going, now = self._bulk, io.now()
        if going is None or going.report_id != report_id:
            if going is not None and now < going.used_at + _ABANDONED:
                raise MustWait("another comparison holds all live prices", now + _ANOTHER)
            self._bulk = going = _Bulk(report_id, now, None)
        if going.prices is None:
            try:
                async with io.gate(own.gate, own.shop.costs(reads=_BULK_COST, writes=0)):
                    going.prices = {variant: price async for variant, price in stream}
            except BaseException:
                self._bulk = None
                raise
        going.used_at = io.now()
        return going.prices


async def _live_prices(own: Configured, compared: Sequence[Applied], io: Io) -> Mapping[str, Price]:
    found: dict[str, Price] = {}
    for start in range(0, len(compared), own.reads_at_once):
        part = compared[start : start + own.reads_at_once]
        async with io.gate(own.gate, own.shop.costs(reads=len(part), writes=0)):
            found |= await own.shop.read([one.id for one in part])
    return found


_LATER = (
    "EXISTS (SELECT 1 FROM rule_target o WHERE o.account = t.account AND o.id = t.id AND"
    " (o.status = 'APPLYING' OR (o.status = 'APPLIED' AND o.applied_at > t.applied_at)))"
)
"""Whether another run has set the price of `t` since, or is setting it now."""


def applied_after(ledger: Ledger, run: Run, after: str) -> list[Applied]:
    """Applied targets of a run in the order of their variants."""
    sql = (
        f"SELECT t.id, t.sku, t.after_json, {_LATER} FROM rule_target t"
        f" WHERE t.rule_run_id = {ledger.database.sql.identifier('run')} AND t.status = 'APPLIED'"
        " AND t.id > :after ORDER BY t.id LIMIT :n"
    )
    rows = ledger.read(lambda cursor: cursor.rows(sql, run=str(run.id), after=after, n=_AT_ONCE))
    return [
        Applied(
            str(one), str(sku), Price.from_json(document(kept) if isinstance(kept, str) else kept), bool(superseded)
        )
        for one, sku, kept, superseded in rows
    ]


def moved_since(ledger: Ledger, run: Run, variants: Sequence[str]) -> frozenset[str]:
    """Those of the variants that were rolled back, or set by another run, while live prices were read."""
    sql = (
        f"SELECT t.id FROM rule_target t WHERE t.rule_run_id = {ledger.database.sql.identifier('run')}"
        f" AND t.id IN ({ledger.database.sql.listed('variants')}) AND (t.status <> 'APPLIED' OR {_LATER})"
    )
    given = {"run": str(run.id), "variants": msgspec.json.encode(list(variants)).decode()}
    return frozenset(str(row[0]) for row in ledger.read(lambda cursor: cursor.rows(sql, **given)))


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

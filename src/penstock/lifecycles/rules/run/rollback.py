"""Undoing a run: a run of its own, whose targets put back what the first one changed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID, uuid5

from penstock.lifecycles.rules.metrics import UNDISMISSED
from penstock.lifecycles.rules.run.machine import APPLIED, Kind, R, Run, asked_by, rule_run
from penstock.lifecycles.rules.target.machine import rule_target
from penstock.model.machine import Actor
from penstock.model.outcome import MAX_ROWS, Move, Write
from penstock.model.unit import replace

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.operations.reader import Reader

LEFT = "status = 'APPLIED' AND set_aside_by IS NULL"
"""The targets of a run that are still to be rolled back."""
_UNENDED = f"{LEFT} OR status IN ('QUEUED', 'APPLYING')"
"""Those that keep it from being rolled back as a whole: somebody may have had some tried again meanwhile."""


def rollback_of(
    run: Run,
    now: datetime,
    *,
    actor: str,
    source: str,
    reason: str,
    wanted: Sequence[str] | None = None,
    run_id: UUID | None = None,
) -> Run:
    """The run that rolls another one back, as it is born. Its id is given, or follows from the other's version."""
    return Run(
        id=run_id or uuid5(run.id, f"rollback:{run.version}"),
        tenant_id=run.tenant_id,
        project_id=run.project_id,
        account=run.account,
        currency=run.currency,
        kind=Kind.ROLLBACK,
        rule_name=run.rule_name,
        rule_version=run.rule_version,
        of_run_id=run.id,
        wanted=None if wanted is None else list(wanted),
        metadata={
            "actor": actor,
            "source": source,
            "reason": reason,
            "correlationId": run.metadata.get("correlationId"),
        },
        created_at=now,
        queue_when_ready=True,
        due_at=now,
    )


def left_of(reader: Ledger | Reader, run_id: UUID, which: str = LEFT) -> int:
    """How many targets of a run there are of which that holds: by itself, those that are still to be rolled back."""
    mine = f"rule_run_id = {reader.database.sql.identifier('run')}"
    sql = f"SELECT count(*) FROM rule_target WHERE {mine} AND ({which})"
    return int(reader.read(lambda cursor: cursor.rows(sql, run=str(run_id)))[0][0])


def rolled_back(ledger: Ledger, rollback: Run, now: datetime) -> list[Move]:
    """The end of the run that was rolled back, if nothing that it applied is left, nor to be tried again.

    Its dead letters are dismissed with it: what has failed need not be undone, and nobody tries it again.
    """
    found: list[Run] = ledger.get_many(rule_run, [str(rollback.of_run_id)])
    if not found or found[0].status not in APPLIED or left_of(ledger, found[0].id, _UNENDED):
        return []
    run = found[0]
    dismiss_failed(ledger, run, asked_by(rollback), now)
    after = replace(run, status=R.ROLLED_BACK, due_at=None, reconcile_position=None, reconcile_wanted=False)
    return [Move(run, after, f"rolled back by run {rollback.id}", Actor.API, asked_by(rollback))]


def dismiss_failed(ledger: Ledger, run: Run, who: str, now: datetime) -> None:
    """Dismiss the dead letters of a run that is rolled back. Those that somebody has dismissed stay that person's."""
    from penstock.operations.dismissal import dismissal

    mine = f"t.rule_run_id = {ledger.database.sql.identifier('run')} AND {UNDISMISSED}"
    sql = f"SELECT t.unit_id, t.version FROM rule_target t WHERE {mine} ORDER BY t.unit_id"
    found = ledger.read(lambda cursor: cursor.rows(sql, run=str(run.id)))
    alike = {
        "machine": rule_target.name,
        "changed_by": who,
        "change_reason": f"run {run.id} is rolled back",
        "changed_at": now,
    }
    rows = [{**alike, "unit_id": str(unit_id), "version": version} for unit_id, version in found]
    for start in range(0, len(rows), MAX_ROWS):
        ledger.write([Write(dismissal, rows[start : start + MAX_ROWS])])

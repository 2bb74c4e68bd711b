"""What is known of the past beside the history of runs and targets: when columns got their values, and other tables.

What a run counts is told by the history of its targets, unless its state says it, or it has stayed as it is now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.ledger.past import since
from penstock.lifecycles.rules.run.machine import rule_run
from penstock.lifecycles.rules.target.machine import Cause, T, rule_target

_MOST_TOLD: Final = 4_000
"""A longer reason is cut in the history."""


def _once(moment: str, *columns: str) -> dict[str, str]:
    """Columns of a run that get their values at one moment, and keep them."""
    return {name: f"CASE WHEN m.{moment} <= {{at}} THEN m.{name} END" for name in (moment, *columns)}


def _counted(status: T, possible: str) -> str:
    """How many targets of the run were in that state: among those of which `possible` is true as they are now."""
    then = (
        f"SELECT h.to_status FROM {{schema}}.transition_log h WHERE h.machine = '{rule_target.name}'"
        " AND h.unit_id = c.unit_id AND h.at <= {at} ORDER BY h.seq DESC LIMIT 1"
    )
    mine = f"FROM {{schema}}.{rule_target.table} c WHERE c.rule_run_id = m.id AND ({possible})"
    return f"(SELECT count(*) {mine} AND ({then}) = '{status}')"


_APPLIED = _counted(T.APPLIED, "c.applied_at IS NOT NULL")
_FAILED = _counted(T.FAILED, "c.status = 'FAILED' OR c.retry_round > 0")
_UNDONE = _counted(T.ROLLED_BACK, "c.status = 'ROLLED_BACK'")
_BEFORE = "l.to_status IN ('PREVIEW', 'QUEUED')"
_AS_NOW = (
    "l.to_status IN ('PARTIAL', 'FAILED', 'ROLLED_BACK') AND m.retry_round = {retry_round}"
    " AND m.applied_count + m.failed_count + m.rolled_back_count = m.target_count"
)
"""It had ended, and nothing was tried again since: what was applied may have been rolled back, and nothing else."""
_ROLLBACK = (
    f"EXISTS (SELECT 1 FROM {{schema}}.{rule_run.table} b WHERE b.of_run_id = m.id AND b.kind = 'rollback'"
    " AND b.created_at <= {at})"
)
_ROLLED_BACK = (
    f"CASE WHEN m.rolled_back_count = 0 OR {_BEFORE} OR NOT {_ROLLBACK} THEN 0"
    " WHEN l.to_status = 'ROLLED_BACK' THEN m.rolled_back_count"
    f" ELSE {_UNDONE} END"
)
_RUN = {
    **_once("laid_at"),
    **_once("previewed_at", "preview_digest", "summary"),
    "target_count": "CASE WHEN m.previewed_at <= {at} THEN m.target_count ELSE 0 END",
    "excluded_count": "CASE WHEN m.previewed_at <= {at} THEN m.excluded_count ELSE 0 END",
    "needs_approval": "m.needs_approval AND m.previewed_at <= {at}",
    **_once("approved_at", "approved_by"),
    "queued_at": "CASE WHEN l.to_status <> 'PREVIEW' THEN m.queued_at END",
    "started_at": f"CASE WHEN NOT {_BEFORE} THEN m.started_at END",
    "applied_count": (
        f"CASE WHEN {_BEFORE} THEN 0 WHEN l.to_status = 'APPLIED' THEN m.target_count - {_ROLLED_BACK}"
        f" WHEN {_AS_NOW} THEN m.applied_count + m.rolled_back_count - {_ROLLED_BACK}"
        f" ELSE {_APPLIED} END"
    ),
    "failed_count": (
        f"CASE WHEN {_BEFORE} OR l.to_status = 'APPLIED' THEN 0 WHEN {_AS_NOW} THEN m.failed_count ELSE {_FAILED} END"
    ),
    "rolled_back_count": _ROLLED_BACK,
}


def _told(values: Mapping[str, str]) -> str:
    """What the history says of a failure, which is `cause: error`; of one that is there still, the unit says it."""
    cases = " ".join(f"WHEN substr(l.reason, 1, {len(begins)}) = '{begins}' THEN {v}" for begins, v in values.items())
    return f"CASE WHEN l.from_status = 'APPLYING' AND length(l.reason) <= {_MOST_TOLD} THEN CASE {cases} END END"


def _failed(name: str, values: Mapping[str, str]) -> str:
    known = f"CASE WHEN m.changed_at <= {{at}} THEN m.{name} ELSE {_told(values)} END"
    return f"CASE WHEN l.to_status = 'FAILED' THEN {known} END"


_RETRIED_SINCE = (
    f"(SELECT count(*) FROM {{schema}}.transition_log h WHERE h.machine = '{rule_target.name}'"
    " AND h.unit_id = m.unit_id AND h.seq > l.seq AND h.trigger = 'retry')"
)
_TARGET = {
    "applied_at": "CASE WHEN l.to_status IN ('APPLIED', 'ROLLED_BACK') THEN m.applied_at END",
    "cause": _failed("cause", {f"{cause}: ": f"'{cause}'" for cause in Cause}),
    "error": _failed("error", {f"{cause}: ": f"substr(l.reason, {len(cause) + 3})" for cause in Cause}),
    "retry_round": f"CASE WHEN m.retry_round = 0 THEN 0 ELSE m.retry_round - {_RETRIED_SINCE} END",
}

_DIFFER = "SELECT count(*) FROM {schema}.reconciliation_mismatch x WHERE x.report_id = r.id AND x.at <= {at}"
_COMPARED = {
    "finished_at": "NULL",
    "total_checked": "NULL",
    "superseded": "NULL",
    "mismatches": f"({_DIFFER})",
    "missing": f"({_DIFFER} AND x.actual IS NULL)",
}
"""What a comparison had found that was still going on: what differs is told price by price."""
_REPORT = ", ".join(
    ["SELECT r.id, r.rule_run_id, r.tenant_id, r.occasion, r.started_at"]
    + [f"CASE WHEN r.finished_at <= {{at}} THEN r.{name} ELSE {sql} END AS {name}" for name, sql in _COMPARED.items()]
)

PAST: Mapping[str, str] = {
    **{f"{rule_run.table}.{name}": sql for name, sql in _RUN.items()},
    **{f"{rule_target.table}.{name}": sql for name, sql in _TARGET.items()},
    # A version that ended before that was kept has no moment: nobody knows when it was in force.
    "rule": (
        "SELECT tenant_id, name, version, project_id, account, currency, priority, active, description, definition,"
        " digest, source, (current OR ended_at IS NOT NULL) AND (ended_at IS NULL OR ended_at > {at}) AS current,"
        " created_at, created_by, ended_at FROM {table} WHERE created_at <= {at}"
    ),
    # What was locked before each lock and unlock was kept is told as long as nobody has changed it.
    "locked_sku": (
        "SELECT g.account, g.sku, g.locked, g.changed_by, g.reason, g.changed_at FROM {schema}.locked_sku_log g"
        " WHERE g.changed_at = (SELECT max(h.changed_at) FROM {schema}.locked_sku_log h"
        " WHERE h.account = g.account AND h.sku = g.sku AND h.changed_at <= {at})"
        " UNION ALL SELECT k.account, k.sku, k.locked, k.changed_by, k.reason, k.changed_at FROM {table} k"
        " WHERE k.changed_at <= {at} AND NOT EXISTS (SELECT 1 FROM {schema}.locked_sku_log h"
        " WHERE h.account = k.account AND h.sku = k.sku AND h.changed_at <= {at})"
    ),
    "reconciliation_report": f"{_REPORT} FROM {{table}} r WHERE r.started_at <= {{at}}",
    "reconciliation_mismatch": since("at"),
}

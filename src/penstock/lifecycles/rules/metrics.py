"""What is measured of rules, and when somebody should know: six metrics and five alert policies, from the ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from penstock.model.clock import instant_text
from penstock.observe.catalogue import Metric, Sample, distribution

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.ledger.store.database import Cursor, Database
    from penstock.operations.reader import Reader

Severity = Literal["warning", "critical"]
JUDGED_FROM = 20
"""A success rate of fewer targets says nothing."""
_WARNING_RATE, _CRITICAL_RATE = 0.97, 0.90
_WARNING_DEAD, _CRITICAL_DEAD = 50, 100
_THROTTLES, _BURST = 3, timedelta(minutes=5)


METRICS = (
    Metric("rules.apply.count", "counter", "Targets that were applied."),
    Metric("rules.apply.duration_ms", "histogram", "How long ended runs took."),
    Metric("rules.apply.success_rate", "gauge", "The share of targets that succeeded, of the last ended run."),
    Metric("rules.dlq.size", "gauge", "Targets that have failed and that nobody dismissed."),
    Metric("rules.target.retries", "counter", "Calls that were made again, by workers and by hand."),
    Metric("rules.429.count", "counter", "How often a gate of a price list was closed for calling too fast."),
)


@dataclass(frozen=True, slots=True)
class Values:
    """What the ledger says at one moment. `rate` is None before enough targets have ended, `retries` of the past."""

    applied: int
    durations: tuple[int, ...]
    rate: float | None
    dead: int
    retries: int | None
    throttles: int
    throttles_lately: int


@dataclass(frozen=True, slots=True)
class Policy:
    """When somebody should know."""

    name: str
    condition: str
    severity: Severity
    action: str
    fires: Callable[[Values], bool]


POLICIES = (
    Policy(
        "Low Success Rate",
        "success_rate < 97%",
        "warning",
        "Slack #engineering",
        # The critical one replaces it.
        lambda v: v.rate is not None and _CRITICAL_RATE <= v.rate < _WARNING_RATE,
    ),
    Policy(
        "Critical Success Rate",
        "success_rate < 90%",
        "critical",
        "PagerDuty",
        lambda v: v.rate is not None and v.rate < _CRITICAL_RATE,
    ),
    Policy(
        "DLQ Backlog", "dlq.size > 50", "warning", "Investigate", lambda v: _WARNING_DEAD < v.dead <= _CRITICAL_DEAD
    ),
    Policy("DLQ Critical", "dlq.size > 100", "critical", "PagerDuty", lambda v: v.dead > _CRITICAL_DEAD),
    Policy("429 Burst", "429.count > 3 in 5 min", "warning", "Slow down", lambda v: v.throttles_lately > _THROTTLES),
)


def success_rate(applied: int, failed: int) -> float | None:
    """The share of ended targets that succeeded; None of too few."""
    ended = applied + failed
    return applied / ended if ended >= JUDGED_FROM else None


def success_alert(applied: int, failed: int) -> tuple[Severity, str] | None:
    """How bad a run's success rate is, and a sentence; None where it is good enough."""
    rate = success_rate(applied, failed)
    if rate is None or rate >= _WARNING_RATE:
        return None
    severity: Severity = "critical" if rate < _CRITICAL_RATE else "warning"
    return severity, f"{rate:.1%} of {applied + failed:,} targets succeeded"


UNDISMISSED = (
    "t.status IN ('FAILED') AND NOT EXISTS (SELECT 1 FROM dismissal d WHERE d.machine = 'rule_target'"
    " AND d.unit_id = t.unit_id AND d.version = t.version)"
)
"""The condition on `t` of a dead letter that nobody dismissed."""


def dead_sql(schema: str | None = None) -> str:
    """The same, and that its run was not rolled back. `schema`: where the tables of now are, if the past is asked.

    They say which targets may have been dead letters, so that not all are looked up in the history: those that are, and
    those that were tried again.
    """
    rolled_back = "SELECT 1 FROM rule_run r WHERE r.id = t.rule_run_id AND r.status = 'ROLLED_BACK'"
    dead = f"{UNDISMISSED} AND NOT EXISTS ({rolled_back})"
    if schema is None:
        return dead
    again = "r.retry_round > 0 OR r.applied_count + r.failed_count + r.rolled_back_count < r.target_count"
    return (
        f"{dead} AND t.unit_id IN (SELECT c.unit_id FROM {schema}.rule_target c WHERE c.status IN ('FAILED')"
        f" UNION ALL SELECT c.unit_id FROM {schema}.rule_run r JOIN {schema}.rule_target c ON c.rule_run_id = r.id"
        f" WHERE c.retry_round > 0 AND ({again}))"
    )


def values_of(reader: Reader | Ledger, now: datetime, *, past: bool = False) -> Values:
    """The metrics as the ledger has them, whoever applied the targets."""
    return reader.read(lambda cursor: _values(reader.database, cursor, now, past=past))


def _values(database: Database, cursor: Cursor, now: datetime, *, past: bool = False) -> Values:
    def one(sql: str, **given: str) -> int:
        return int(cursor.rows(sql, **given)[0][0] or 0)

    runs = cursor.rows(
        "SELECT started_at, finished_at, applied_count + rolled_back_count, failed_count FROM rule_run"
        " WHERE finished_at IS NOT NULL AND started_at IS NOT NULL ORDER BY finished_at DESC LIMIT 1000"
    )
    told = "event_type = 'gate.throttled' AND event_key LIKE 'gate.throttled:prices/%'"
    throttles = f"SELECT count(*) FROM event_log WHERE {told}"
    since = f" AND created_at >= {database.sql.instant('since')}"
    return Values(
        applied=one("SELECT sum(applied_count + rolled_back_count) FROM rule_run"),
        durations=tuple(_milliseconds(start, end) for start, end, _, _ in runs),
        rate=success_rate(runs[0][2], runs[0][3]) if runs else None,
        dead=one(f"SELECT count(*) FROM rule_target t WHERE {dead_sql(database.sql.schema(cursor) if past else None)}"),
        retries=None
        if past
        else one("SELECT sum(attempts + retry_round) FROM rule_target WHERE attempts + retry_round > 0"),
        throttles=one(throttles),
        throttles_lately=one(throttles + since, since=instant_text(now - _BURST)),
    )


_BOUNDS = (1_000.0, 5_000.0, 15_000.0, 60_000.0, 300_000.0, 900_000.0, 3_600_000.0, 14_400_000.0)


def measure(database: Database, now: datetime) -> list[Sample]:
    """The metrics as samples. The durations are those of the last thousand runs that ended."""
    values = database.read(lambda cursor: _values(database, cursor, now))
    found = [
        Sample("rules.apply.count", values.applied),
        Sample("rules.apply.duration_ms", distribution(values.durations, _BOUNDS)),
        Sample("rules.dlq.size", values.dead),
        Sample("rules.target.retries", values.retries or 0),
        Sample("rules.429.count", values.throttles),
    ]
    return found if values.rate is None else [*found, Sample("rules.apply.success_rate", values.rate)]


def _milliseconds(start: object, end: object) -> int:
    from penstock.model.clock import instant

    begun, ended = instant(start), instant(end)
    return int((ended - begun).total_seconds() * 1000) if begun and ended else 0

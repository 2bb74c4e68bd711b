"""When somebody should know of price rules."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from penstock.lifecycles.rules.metrics import JUDGED_FROM, dead_sql
from penstock.operations.alerts.policy import Found, Policy, Watched

_DAY = timedelta(days=1)

POLICIES = (
    Policy(
        name="rule_success_rate",
        says="Too few targets of the last run succeeded.",
        kind="rule_success_rate",
        warning=0.03,
        critical=0.10,
        events=("rules.success_rate",),
    ),
    Policy(
        name="rule_dead_letters",
        says="Many prices could not be changed.",
        kind="rule_dead_letters",
        warning=51,
        critical=101,
    ),
    Policy(
        name="rule_run_stopped",
        says="A run stopped by itself: too many of its targets failed.",
        severity="critical",
        window=_DAY,
        events=("rules.stopped",),
    ),
    Policy(name="price_mismatch", says="Live prices differ from those that were set.", events=("rules.mismatch",)),
    Policy(
        name="prices_not_compared",
        says="The prices of a run cannot be compared with the live ones.",
        events=("rules.not_compared",),
    ),
)


def last_run(watched: Watched, policy: Policy) -> Iterator[Found]:
    """The last run that ended had too many failures. Nothing is said of fewer than twenty targets."""
    sql = (
        "SELECT id, applied_count + rolled_back_count, failed_count FROM rule_run WHERE finished_at IS NOT NULL"
        " ORDER BY finished_at DESC LIMIT 1"
    )
    for run, applied, failed in watched.ledger.read(lambda cursor: cursor.rows(sql)):
        ended = applied + failed
        # Just over the threshold: exactly 97 % is good enough.
        severity = policy.severity_of(failed / ended - 1e-9) if ended >= JUDGED_FROM else None
        if severity is not None:
            says = f"{applied / ended:.1%} of {ended:,} targets succeeded; 'penstock rules show {run}'"
            yield Found(f"rule_run:{run}", severity, says, {"applied": applied, "failed": failed}, f"rule_run:{run}")


def dead_targets(watched: Watched, policy: Policy) -> Iterator[Found]:
    """Targets that have failed, were not dismissed, and whose run was not rolled back."""
    sql = f"SELECT count(*), min(t.unit_id) FROM rule_target t WHERE {dead_sql()}"
    ((count, example),) = watched.ledger.read(lambda cursor: cursor.rows(sql))
    severity = policy.severity_of(int(count))
    if severity is not None:
        says = f"{count:,} prices could not be changed; 'penstock dead list --machine rule_target'"
        yield Found("rule_target", severity, says, {"count": int(count)}, f"rule_target:{example}")


CONDITIONS = {"rule_success_rate": last_run, "rule_dead_letters": dead_targets}

"""Undoing what runs have set, and setting again what others have changed since: rollbacks, comparisons, repairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID, uuid5

from penstock.lifecycles.rules.queries import find_run, runs_of, short, target_ids, targets_of
from penstock.lifecycles.rules.run.machine import APPLIED, OPEN, Kind, R, Run
from penstock.lifecycles.rules.settings import RulesSettings
from penstock.lifecycles.rules.wishes import TargetsOfRun, WhichRun
from penstock.model.errors import UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Birth, Move
from penstock.model.spoken import counted
from penstock.model.unit import replace
from penstock.operations.declare import Ask, operation
from penstock.operations.fields import option
from penstock.operations.plan import Together

if TYPE_CHECKING:
    from penstock.lifecycles.rules.target.machine import Target

_MOST_NAMED = 1_000


class RollbackParameters(TargetsOfRun, frozen=True):
    """Which targets of a run, and which are left as they are."""

    leave: Annotated[
        tuple[str, ...],
        option(
            "Leave this target as it is for good, by its variant or its SKU: the run counts as rolled back without it."
        ),
    ] = ()


class ReconcileParameters(WhichRun, frozen=True):
    """Which run, and whether what differs is set again."""

    repair: Annotated[bool, option("Set again what the newest report found to differ, by a run of its own.")] = False


@operation("rollback", "Put back the prices of a run, where they are still its own.")
def rollback(ask: Ask[RulesSettings], wanted: RollbackParameters) -> Together:
    """A run of its own does it. A price that somebody else has set meanwhile is left alone and listed as a conflict."""
    from penstock.lifecycles.rules.run.rollback import rollback_of

    run = find_run(ask.reader, wanted.run)
    left = _refuse_rollback(ask, run)
    back, aside = _named(ask, run, wanted.target), _named(ask, run, wanted.leave)
    if both := sorted({one.sku for one in back} & {one.sku for one in aside}):
        raise UsageError(f"{both[0]} cannot both be rolled back and be left as it is")
    moves = [_set_aside(ask, target) for target in aside]
    # What is set aside is left out by itself. Where nothing else is left, the run that is born only ends the other.
    variants = [target.id for target in back] if back else None
    said = {"actor": ask.who, "source": "operator", "reason": ask.reason}
    born = rollback_of(run, ask.now, **said, wanted=variants, run_id=UUID(ask.request))
    # Of two people who roll it back at once, one misses it.
    moves.append(Move(run, replace(run), ask.reason, Actor.OPERATOR))
    count = len(back) or left - len(aside)
    says = f"put back {counted(count, 'price')} that run {short(run)} has set"
    if not count:
        says = f"leave {len(aside):,} prices of run {short(run)} as they are, and count it as rolled back"
        # Nothing is left where the last targets of a run failed again after all others were rolled back.
        says = says if aside else f"count run {short(run)} as rolled back: nothing that it has set is left"
    elif aside:
        says += f", and leave {len(aside):,} as they are"
    return Together(says, moves=moves, births=[Birth(born, ask.reason, actor=Actor.OPERATOR)])


@operation("reconcile", "Compare the prices that a run has set with the live ones now.", wants_reason=False)
def reconcile(ask: Ask[RulesSettings], wanted: ReconcileParameters) -> Together:
    """A worker does it, and 'rules reports' shows what it found."""
    run = find_run(ask.reader, wanted.run)
    if run.status not in APPLIED:
        what = "was rolled back" if run.status is R.ROLLED_BACK else f"is {run.status}"
        raise UsageError(f"run {short(run)} {what}; only prices that are applied are compared")
    if wanted.repair:
        return _repair(ask, run)
    if run.reconcile_wanted or run.reconcile_position is not None:
        raise UsageError(f"run {short(run)} is being compared already; 'penstock rules reports {short(run)}' shows it")
    after = replace(run, reconcile_wanted=True, due_at=ask.now)
    says = f"compare {run.applied_count:,} prices of run {short(run)} with the live ones"
    return Together(says, moves=[Move(run, after, ask.reason or "compared by hand", Actor.OPERATOR)])


OPERATIONS = [rollback, reconcile]


def _refuse_rollback(ask: Ask[RulesSettings], run: Run) -> int:
    """How many targets are left to be rolled back. Raises UsageError for a run that cannot be, or is being."""
    from penstock.lifecycles.rules.run.rollback import left_of

    if run.kind is Kind.ROLLBACK:
        msg = f"run {short(run)} is itself a rollback; 'penstock rules preview {run.rule_name}' applies the rule anew"
        raise UsageError(msg)
    made = runs_of(ask.reader, run, Kind.ROLLBACK)
    if run.status is R.ROLLED_BACK:
        by = f" by run {short(made[0])}" if made else ""
        raise UsageError(f"run {short(run)} was rolled back already{by}")
    if run.status not in APPLIED:
        hint = f"; 'penstock rules cancel {short(run)}' ends it" if run.status in OPEN else ""
        raise UsageError(f"run {short(run)} is {run.status}; only one that has applied prices is rolled back{hint}")
    refuse_while_rolled_back(ask, run)
    return left_of(ask.reader, run.id)


def refuse_while_rolled_back(ask: Ask[RulesSettings], run: Run) -> None:
    """Raises UsageError for a run that another one is putting back."""
    for one in runs_of(ask.reader, run, Kind.ROLLBACK):
        if one.status is R.PREVIEW or one.status in OPEN:
            raise UsageError(f"run {short(run)} is being rolled back by run {short(one)}")


def _named(ask: Ask[RulesSettings], run: Run, names: tuple[str, ...]) -> list[Target]:
    """The targets of those names that are still to be rolled back. Raises UsageError where one is not."""
    from penstock.lifecycles.rules.run.rollback import LEFT

    if len(names) > _MOST_NAMED:
        raise UsageError(f"these are {len(names):,} targets; name at most {_MOST_NAMED:,} at a time")
    return list(targets_of(ask.reader, target_ids(ask.reader, run, LEFT, names))) if names else []


def _set_aside(ask: Ask[RulesSettings], target: Target) -> Move:
    after = replace(target, set_aside_by=ask.who, set_aside_reason=ask.reason)
    return Move(target, after, ask.reason, Actor.OPERATOR)


def _repair(ask: Ask[RulesSettings], run: Run) -> Together:
    report, differing = _newest_report(ask, run)
    made = uuid5(run.id, f"repair:{report}")
    if any(one.id == made for one in runs_of(ask.reader, run, Kind.REPAIR)):
        raise UsageError(
            f"the report {report} was repaired already, by run {str(made)[:8]}; compare the run again first"
        )
    metadata: dict[str, Any] = {
        "actor": ask.who,
        "source": "operator",
        "reason": ask.reason or "repaired by hand",
        "correlationId": run.metadata.get("correlationId"),
        "report": str(report),
    }
    born = Run(
        id=made,
        tenant_id=run.tenant_id,
        project_id=run.project_id,
        account=run.account,
        currency=run.currency,
        kind=Kind.REPAIR,
        rule_name=run.rule_name,
        rule_version=run.rule_version,
        of_run_id=run.id,
        metadata=metadata,
        created_at=ask.now,
        queue_when_ready=True,
        due_at=ask.now,
    )
    return Together(
        f"set {differing:,} prices of run {short(run)} again",
        births=[Birth(born, ask.reason or "repaired by hand", actor=Actor.OPERATOR)],
        warnings=["What somebody else has set meanwhile is overwritten, as far as the report saw it."],
    )


def _newest_report(ask: Ask[RulesSettings], run: Run) -> tuple[UUID, int]:
    """The newest complete report of a run, and how many prices it found to differ. Raises UsageError."""
    sql = ask.reader.database.sql
    newest = (
        f"SELECT id FROM reconciliation_report WHERE rule_run_id = {sql.identifier('run')} AND finished_at IS NOT NULL"
        " ORDER BY started_at DESC, id LIMIT 1"
    )
    rows = ask.reader.read(lambda cursor: cursor.rows(newest, run=str(run.id)))
    if not rows:
        raise UsageError(f"run {short(run)} was never compared; 'penstock rules reconcile {short(run)}' does it")
    report = UUID(str(rows[0][0]))
    count = (
        f"SELECT count(*) FROM reconciliation_mismatch WHERE report_id = {sql.identifier('report')}"
        " AND actual IS NOT NULL"
    )
    differing = int(ask.reader.read(lambda cursor: cursor.rows(count, report=str(report)))[0][0])
    if not differing:
        raise UsageError(f"the newest report of run {short(run)} found no price that could be set again")
    return report, differing

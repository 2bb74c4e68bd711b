"""What people do to runs: preview, approve, queue, pause, resume, cancel, retry, roll back, compare.

Nobody moves targets from here but to mark them: a person says their wish to the run, and its next step does the rest.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

from penstock.app.person import bare
from penstock.lifecycles.rules import undo, upkeep
from penstock.lifecycles.rules.queries import (
    find_run,
    require_account,
    short,
    target_ids,
    targets_of,
    unknown_rule,
)
from penstock.lifecycles.rules.run.machine import OPEN, Mode, R, Run, rule_run
from penstock.lifecycles.rules.settings import RulesSettings, schedule_of
from penstock.lifecycles.rules.target.machine import Cause, T, rule_target
from penstock.lifecycles.rules.wishes import TargetsOfRun, WhichRun
from penstock.model.errors import UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Birth, Move
from penstock.model.spoken import counted
from penstock.model.unit import Ref, replace
from penstock.operations.change import edge_to, pull
from penstock.operations.declare import Ask, operation
from penstock.operations.fields import Parameters, argument, option
from penstock.operations.plan import Each, Follow, Moves, Together

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.lifecycles.rules.registry import Kept
    from penstock.lifecycles.rules.versions import Changes


class PreviewParameters(Parameters, frozen=True):
    """Which rule, and when its prices hold."""

    rule: Annotated[str, argument("The rule.", example="autumn")]
    start_at: Annotated[datetime | None, option("Set no price before then.", example="2026-11-27T00:00:00Z")] = None
    end_at: Annotated[
        datetime | None, option("Roll it back then, as at the end of a sale.", example="2026-12-01T00:00:00Z")
    ] = None
    queue: Annotated[bool, option("Queue it as soon as the preview is there, if nothing speaks against it.")] = False
    correlation_id: Annotated[str | None, option("An id of your own, which its events carry; else the run's.")] = None


class DigestOfRun(WhichRun, frozen=True):
    """A run, as it was previewed."""

    preview_digest: Annotated[
        str | None, option("Only if the preview has this digest, or begins with it, as 'rules show' shows it.")
    ] = None


class RetryParameters(TargetsOfRun, frozen=True):
    """Which failed targets of a run."""

    cause: Annotated[Cause | None, option("Only those that failed for this.")] = None


@operation("preview", "Work out and show what a rule would change. Nothing is sent.", wants_reason=False)
def preview(ask: Ask[RulesSettings], wanted: PreviewParameters) -> Together:
    """Rules of the configuration that have changed come into force on the way. 'rules queue' applies what was shown."""
    kept, changes = _rule(ask, wanted.rule)
    _refuse_moments(ask, wanted)
    _require_catalogue(ask, kept.rule.account)
    run_id = UUID(ask.request)
    run = Run(
        id=run_id,
        tenant_id=ask.settings.tenant_id,
        project_id=ask.settings.project_id,
        account=kept.rule.account,
        currency=kept.rule.currency,
        rule_name=kept.rule.name,
        rule_version=kept.version,
        metadata={"actor": ask.who, "correlationId": wanted.correlation_id or ask.request, "source": "operator"},
        created_at=ask.now,
        start_at=wanted.start_at,
        end_at=wanted.end_at,
        queue_when_ready=wanted.queue,
        due_at=ask.now,
    )
    says = f"preview {kept.rule.name} (version {kept.version}) for {kept.rule.account}"
    return Together(
        f"{says} and queue it" if wanted.queue else says,
        births=[Birth(run, ask.reason or "previewed", actor=Actor.OPERATOR)],
        first=changes.first,
        writes=changes.writes,
        harmless=not wanted.queue,
        follow=Follow(Ref(rule_run.name, str(run_id)), _is_previewed, lambda own: _shown(own, run_id), _laid_down),
    )


@operation("approve", "Approve a run that is too large for one person alone.", wants_reason=False)
def approve(ask: Ask[RulesSettings], wanted: DigestOfRun) -> Together:
    """Whoever asked for the run cannot approve it. What is approved is the preview as it stands."""
    run = find_run(ask.reader, wanted.run)
    _require_preview(run, "approved")
    _require_digest(run, wanted.preview_digest)
    if not run.needs_approval:
        raise UsageError(f"run {short(run)} needs no approval; 'penstock rules queue {short(run)}' applies it")
    if run.approved_by is not None:
        raise UsageError(f"run {short(run)} was approved by {run.approved_by} already")
    if bare(str(run.metadata.get("actor"))) == bare(ask.who):
        raise UsageError(f"run {short(run)} was asked for by {bare(ask.who)}; another person must approve it")
    _refuse_limits(run)
    after = replace(run, approved_by=ask.who, approved_at=ask.now)
    says = f"approve run {short(run)}: {run.target_count:,} prices of {run.account}"
    return Together(says, moves=[Move(run, after, ask.reason or "approved", Actor.OPERATOR)])


@operation("queue", "Apply a previewed run: its prices are set as they were shown.", wants_reason=False)
def queue(ask: Ask[RulesSettings], wanted: DigestOfRun) -> Together:
    """Refused where the catalogue has moved since the preview, a limit is broken, or an approval is missing."""
    run = find_run(ask.reader, wanted.run)
    _require_preview(run, "queued")
    _require_digest(run, wanted.preview_digest)
    _refuse_limits(run)
    if not run.target_count:
        raise UsageError(f"run {short(run)} would change nothing")
    if run.needs_approval and run.approved_by is None:
        msg = (
            f"run {short(run)} has {run.target_count:,} targets: another person than {run.metadata.get('actor')} must"
            f" approve it, with 'penstock rules approve {short(run)}'"
        )
        raise UsageError(msg)
    _refuse_ended(ask, run)
    _refuse_stale(ask, run)
    after = replace(run, status=R.QUEUED, queued_at=ask.now, due_at=ask.now)
    says = f"set {run.target_count:,} prices of {run.account} by {run.rule_name}"
    if run.start_at is not None and run.start_at > ask.now:
        says += f", from {run.start_at:%Y-%m-%d %H:%M} UTC on"
    return Together(says, moves=[Move(run, after, ask.reason or "queued", Actor.API)])


@operation("pause", "Hold a run: what was not sent yet rests until it is resumed.")
def pause(ask: Ask[RulesSettings], wanted: WhichRun) -> Together:
    run = _open(ask, wanted, "paused")
    if run.mode is not Mode.RUNNING:
        raise UsageError(f"run {short(run)} is {run.mode} already, by {run.mode_by}: {run.mode_reason}")
    return _wish(ask, run, f"pause run {short(run)}", mode=Mode.PAUSED, mode_by=ask.who, mode_reason=ask.reason)


@operation("resume", "Let a paused run go on.", wants_reason=False)
def resume(ask: Ask[RulesSettings], wanted: WhichRun) -> Together:
    run = _open(ask, wanted, "resumed")
    if run.mode is not Mode.PAUSED:
        raise UsageError(f"run {short(run)} is {run.mode}, not paused")
    return _wish(ask, run, f"resume run {short(run)}", mode=Mode.RUNNING, mode_by=None, mode_reason=None)


@operation("cancel", "End a run: what was not sent yet is given up.")
def cancel(ask: Ask[RulesSettings], wanted: WhichRun) -> Together:
    """What it has set stays set; 'rules rollback' undoes it. Calls that are under way are settled first."""
    run = _open(ask, wanted, "cancelled")
    if run.mode is Mode.HALTING:
        raise UsageError(f"run {short(run)} is being ended already: {run.mode_reason}")
    left = run.target_count - run.applied_count - run.failed_count - run.rolled_back_count
    says = f"cancel run {short(run)}: {left:,} of {run.target_count:,} prices are not set"
    return _wish(
        ask, run, says, mode=Mode.HALTING, mode_by=ask.who, mode_reason=f"cancelled by {ask.who}: {ask.reason}"
    )


@operation("retry", "Try failed targets of a run again: all, some, or those of a cause.", wants_reason=False)
def retry(ask: Ask[RulesSettings], wanted: RetryParameters) -> Each:
    """The run takes them up by itself. Those that were dismissed stay as they are."""
    run = find_run(ask.reader, wanted.run)
    if run.status not in (R.PARTIAL, R.FAILED):
        raise UsageError(f"run {short(run)} is {run.status}; {_why_no_retry(run)}")
    undo.refuse_while_rolled_back(ask, run)
    _refuse_ended(ask, run)
    condition, given = "status = 'FAILED'", {}
    if wanted.cause is not None:
        condition, given = f"{condition} AND cause = :cause", {"cause": str(wanted.cause)}
    ids = target_ids(ask.reader, run, condition, wanted.target, **given)
    dismissed = _dismissed(ask, run)
    edge = edge_to(rule_target, T.FAILED, T.QUEUED)
    assert edge is not None  # noqa: S101 - the machine has it
    moves = Moves(rule_target)
    for target in targets_of(ask.reader, ids):
        if (target.unit_id, target.version) in dismissed:
            moves.skip(target.unit_id, "it was dismissed")
        else:
            pull(moves, edge, target, ask.now)
    if not len(moves):
        why = "all of them were dismissed" if ids else f"no target failed for {wanted.cause}"
        raise UsageError(f"run {short(run)} has nothing to retry: {why}")
    return moves.plan(f"try {counted(len(moves), 'target')} of run {short(run)} again")


OPERATIONS: list[Any] = [
    *upkeep.OPERATIONS,
    *(preview, approve, queue, pause, resume, cancel, retry),
    *undo.OPERATIONS,
]


def _rule(ask: Ask[RulesSettings], name: str) -> tuple[Kept, Changes]:
    """The rule that a preview is for, and what brings the ledger up to the configuration. Raises UsageError."""
    from penstock.lifecycles.rules.versions import configured_changes

    changes = configured_changes(ask)
    if name in changes.retired:
        raise UsageError(f"the rule {name!r} is no longer in the configuration")
    if name not in changes.kept:
        raise unknown_rule(name, changes.kept)
    kept = changes.kept[name]
    if not kept.rule.active:
        raise UsageError(f"the rule {name!r} is not active; give it active = true")
    require_account(ask.settings, kept.rule.account)
    return kept, changes


def _refuse_moments(ask: Ask[RulesSettings], wanted: PreviewParameters) -> None:
    start, end = wanted.start_at, wanted.end_at
    for moment in (start, end):
        if moment is not None and moment.tzinfo is None:
            raise UsageError(f"{moment.isoformat()} has no time zone; write {moment.isoformat()}Z for UTC")
    if end is not None and end <= (start or ask.now):
        before = "before its start" if start is not None else "in the past"
        raise UsageError(f"the end {end.isoformat()} is {before}; a sale ends after it begins")


def _require_catalogue(ask: Ask[RulesSettings], account: str) -> None:
    from penstock.lifecycles.rules.catalogue import standing_of

    if ask.settings.accounts[account].paused:
        raise UsageError(f"the account {account} is paused; rules.accounts.{account}.paused = false lets it go on")
    if standing_of(ask.reader, account) is None:
        msg = (
            f"the catalogue of {account} was never read whole;"
            f" 'penstock schedules run {schedule_of(account)}' has a worker read it"
        )
        raise UsageError(msg)


def _is_previewed(run: Run) -> bool:
    return run.previewed_at is not None and not run.queue_when_ready


def _shown(ask: Ask[RulesSettings], run_id: UUID) -> Any:
    from penstock.lifecycles.rules.showing import ShowParameters, show

    return show(ask, ShowParameters(run=str(run_id)))


def _laid_down(ledger: Ledger, run: Run) -> tuple[int, int | None]:
    mine = f"rule_run_id = {ledger.database.sql.identifier('run')}"
    sql = f"SELECT count(*) FROM rule_target WHERE {mine}"
    return int(ledger.read(lambda cursor: cursor.rows(sql, run=str(run.id)))[0][0]), None


def _require_preview(run: Run, done: str) -> None:
    """Raises UsageError for a run that is not a complete preview."""
    if run.status is not R.PREVIEW:
        raise UsageError(f"run {short(run)} is {run.status}; only a preview is {done}")
    if run.previewed_at is None:
        raise UsageError(
            f"the preview of run {short(run)} is not complete; 'penstock rules show {short(run)}' shows it"
        )


def _require_digest(run: Run, seen: str | None) -> None:
    digest = run.preview_digest or ""
    if seen is not None and not (seen and digest.startswith(seen.lower())):
        raise UsageError(f"the preview of run {short(run)} has the digest {digest}, not {seen}; look at it again")


def _refuse_limits(run: Run) -> None:
    refused = run.summary.get("refused") or []
    if refused:
        raise UsageError(f"run {short(run)} cannot be queued: {'; '.join(refused)}")


def _refuse_ended(ask: Ask[RulesSettings], run: Run) -> None:
    if run.end_at is not None and run.end_at <= ask.now:
        raise UsageError(f"run {short(run)} was to end at {run.end_at.isoformat()}, which has passed; preview it again")


def _refuse_stale(ask: Ask[RulesSettings], run: Run) -> None:
    """Raises UsageError where a preview of now would show something else."""
    from penstock.lifecycles.rules.queries import current_rules
    from penstock.lifecycles.rules.run.preview import differing

    kept = current_rules(ask.reader, ask.settings).get(run.rule_name)
    again = f"'penstock rules preview {run.rule_name}' shows what it would be now"
    if kept is None:
        raise UsageError(f"the rule {run.rule_name!r} is no longer in force")
    if kept.version != run.rule_version:
        was = f"run {short(run)} was previewed with version {run.rule_version}"
        raise UsageError(f"the rule {run.rule_name!r} has changed: {was}, and {kept.version} is in force; {again}")
    if moved := differing(ask.reader, ask.settings, run):
        verb = "targets differ" if moved != 1 else "target differs"
        raise UsageError(f"the catalogue has moved since run {short(run)} was previewed: {moved:,} {verb}; {again}")


def _open(ask: Ask[RulesSettings], wanted: WhichRun, done: str) -> Run:
    """A run that is queued or under way. Raises UsageError for any other."""
    run = find_run(ask.reader, wanted.run)
    if run.status is R.PREVIEW:
        raise UsageError(f"run {short(run)} is a preview, which sends nothing; it need not be {done}")
    if run.status not in OPEN:
        raise UsageError(f"run {short(run)} has ended as {run.status}; it cannot be {done}")
    return run


def _wish(ask: Ask[RulesSettings], run: Run, says: str, **changes: Any) -> Together:
    """What the run's next step does."""
    after = replace(run, due_at=ask.now, **changes)
    return Together(says, moves=[Move(run, after, ask.reason or says, Actor.OPERATOR)])


def _why_no_retry(run: Run) -> str:
    if run.status is R.APPLIED:
        return "every target is applied, so there is nothing to retry"
    if run.status is R.ROLLED_BACK:
        return f"preview {run.rule_name} again to apply it anew"
    if run.status is R.APPLYING:
        return "its targets can be retried when it has ended"
    return "only a run that has ended with failures is retried"


def _dismissed(ask: Ask[RulesSettings], run: Run) -> set[tuple[str, int]]:
    sql = "SELECT unit_id, version FROM dismissal WHERE machine = :machine AND unit_id LIKE :mine"
    rows = ask.reader.read(lambda cursor: cursor.rows(sql, machine=rule_target.name, mine=f"{run.id}/%"))
    return {(str(unit_id), int(version)) for unit_id, version in rows}

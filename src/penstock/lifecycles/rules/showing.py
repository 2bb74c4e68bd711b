"""One run as people see it: what it changes, what stands in its way, how far it has come, and what to do next."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated, Any

from penstock.lifecycles.rules.describe import change
from penstock.lifecycles.rules.money import text
from penstock.lifecycles.rules.outcomes import MEANINGS, Reason
from penstock.lifecycles.rules.queries import find_run, find_run_then, runs_of, short
from penstock.lifecycles.rules.run.decide import Seen, decide
from penstock.lifecycles.rules.run.machine import OPEN, Kind, Mode, R, Run
from penstock.lifecycles.rules.settings import RulesSettings
from penstock.lifecycles.rules.wishes import WhichRun
from penstock.model.clock import instant_text
from penstock.model.outcome import Wait
from penstock.operations.declare import Ask, reading
from penstock.operations.fields import Row, column, option
from penstock.operations.past import At, refuse_to_watch

_WATCH_SECONDS = 1.0
_LATELY = timedelta(minutes=1)
_DIGEST = 12


class ShowParameters(WhichRun, frozen=True):
    """Which run, and for how long."""

    watch: Annotated[bool, option("Stay, and show the progress until the run ends.", terminal=True)] = False
    at: At = None


class RunRow(Row, frozen=True):
    """A run, in a list."""

    run: Annotated[str, column("The beginning of its id, which is enough to name it.", show="reference", leads="show")]
    rule: Annotated[str, column("The rule.")]
    kind: Annotated[Kind, column("Whether it applies a rule, rolls a run back, or repairs one.")]
    account: Annotated[str, column("Whose prices it sets.")]
    status: Annotated[R, column("Where it stands.", show="state")]
    targets: Annotated[int, column("Prices that it sets.")]
    applied: Annotated[int, column("Of these, those that are set; those rolled back since count too.")]
    failed: Annotated[int, column("Of these, those that have failed.")]
    created_at: Annotated[datetime, column("When it was asked for.", heading="asked")]
    by: Annotated[str | None, column("Who asked for it.")]
    error: Annotated[str | None, column("What went wrong, or why it is held.", show="text")]
    run_id: Annotated[str, column("Its id.", show="detail")]


class ChangeRow(Row, frozen=True):
    """One of the largest changes."""

    sku: Annotated[str, column("The SKU.", show="reference")]
    before: Annotated[str, column("What it costs.")]
    after: Annotated[str, column("What it would cost.")]
    change: Annotated[str, column("The difference in percent.")]


class ExcludedRow(Row, frozen=True):
    """Why items are left out."""

    reason: Annotated[str, column("The code.", show="reference")]
    count: Annotated[int, column("How many items.")]
    says: Annotated[str, column("What it means.", show="text")]


class PreviewDetail(Row, frozen=True):
    """What a run changes, and what stands in its way."""

    before: Annotated[str | None, column("The sum of the prices before.")]
    after: Annotated[str | None, column("The sum of the prices after.")]
    rises: Annotated[int, column("Prices that rise.")]
    falls: Annotated[int, column("Prices that fall.")]
    mean_change: Annotated[str | None, column("The mean of all changes.")]
    excluded: Annotated[int, column("Items that the rule means and leaves out.")]
    refused: Annotated[list[str], column("Why it cannot be queued: limits, with the number that broke each.")]
    needs_approval: Annotated[bool, column("Whether another person must approve it.")]
    approved_by: Annotated[str | None, column("Who approved it.")]
    start_at: Annotated[datetime | None, column("It sets no price before then.")]
    end_at: Annotated[datetime | None, column("It is rolled back then.")]
    digest: Annotated[str | None, column("What queueing is bound to.", show="reference", gives="preview_digest")]
    largest_rises: Annotated[list[ChangeRow], column("The largest rises.")]
    largest_falls: Annotated[list[ChangeRow], column("The largest falls.")]
    left_out: Annotated[list[ExcludedRow], column("What was left out, and why.")]


class ProgressDetail(Row, frozen=True):
    """How far a run has come that was queued."""

    says: Annotated[str, column("How far it has come, and how fast.", heading="progress")]
    rate: Annotated[float | None, column("Prices set per second, over the last minute.")]
    ends_at: Annotated[datetime | None, column("When it ended, or will end at this pace.")]
    in_doubt: Annotated[
        int | None,
        column(
            "Targets whose call may have left; a look at the live price settles them. Of the past, empty while the run"
            " was under way."
        ),
    ]
    parked: Annotated[
        int | None, column("Targets that wait for a person. Of the past, empty while the run was under way.")
    ]
    rolled_back: Annotated[int, column("Prices that were put back.")]
    rolled_back_by: Annotated[str | None, column("The run that rolls it back.", show="reference")]
    retry_round: Annotated[int | None, column("How often failed targets were tried again by hand.")]
    mode: Annotated[Mode | None, column("Whether it runs, is paused, or is being ended.")]
    queued_at: Annotated[datetime | None, column("When it was queued.")]
    started_at: Annotated[datetime | None, column("When it began to set prices.")]
    finished_at: Annotated[datetime | None, column("When it ended.")]
    reports: Annotated[int, column("How often it was compared with the live prices.")]
    mismatches: Annotated[int | None, column("Prices that differed in the newest comparison.")]


class RunDetail(RunRow, frozen=True):
    """A run: what it changes, how far it has come, and what to do next."""

    version: Annotated[int, column("The version of the rule.")]
    of_run: Annotated[str | None, column("The run that it rolls back or repairs.", show="reference")]
    correlation_id: Annotated[str | None, column("What its events carry.")]
    waits: Annotated[str | None, column("What it waits for; of the past, before it began.")]
    next: Annotated[str | None, column("What to type next; of the past, nothing.")]
    preview: Annotated[PreviewDetail | None, column("What it changes; none: that is being worked out.")]
    progress: Annotated[ProgressDetail | None, column("How far it has come; none: it was not queued.")]


@reading("show", "One run: what it changes, how far it has come, what to do.")
def show(ask: Ask[RulesSettings], wanted: ShowParameters) -> RunDetail:
    refuse_to_watch(wanted.at, watch=wanted.watch)
    run, ask = find_run_then(ask, wanted.run, wanted.at), ask.then(wanted.at)
    now = ask.now
    nobody = threading.Event()
    while wanted.watch and (run.status in OPEN or (run.status is R.PREVIEW and run.previewed_at is None)):
        if run.parked_at is not None:
            break
        ask.progress(run.applied_count + run.failed_count, run.target_count or None)
        nobody.wait(_WATCH_SECONDS)
        run, now = find_run(ask.reader, str(run.id)), ask.program.clock.now()
    return _detail(ask, run, now, past=wanted.at is not None)


def run_fields(run: Run) -> dict[str, Any]:
    """The fields of `RunRow`."""
    held = run.mode not in (None, Mode.RUNNING) and run.status in OPEN
    return {
        "run": short(run),
        "rule": run.rule_name,
        "kind": run.kind,
        "account": run.account,
        "status": run.status,
        "targets": run.target_count,
        "applied": run.applied_count + run.rolled_back_count,
        "failed": run.failed_count,
        "created_at": run.created_at,
        "by": run.metadata.get("actor"),
        "error": run.parked_reason or (f"{run.mode}: {run.mode_reason}" if held else run.error),
        "run_id": str(run.id),
    }


def _detail(ask: Ask[RulesSettings], run: Run, now: datetime, *, past: bool) -> RunDetail:
    from penstock.lifecycles.rules.run.ledger import ahead_of, seen_of

    # Of the past nobody knows which targets rested, or were in doubt. Before it begins, a run does not ask.
    seen = Seen(ahead=ahead_of(ask.reader, run)) if past else seen_of(ask.reader, run)
    tells = run.mode is not None and (not past or run.status in (R.PREVIEW, R.QUEUED))
    decision = decide(run, now, ask.settings, seen) if tells else None
    return RunDetail(
        **run_fields(run),
        version=run.rule_version,
        of_run=None if run.of_run_id is None else str(run.of_run_id),
        correlation_id=run.metadata.get("correlationId"),
        waits=decision.reason if isinstance(decision, Wait) and run.status is not R.ROLLED_BACK else None,
        next=None if past else next_of(run),
        preview=_preview(run) if run.previewed_at is not None else None,
        progress=_progress(ask, run, None if past and run.status is R.APPLYING else seen, now)
        if run.status is not R.PREVIEW
        else None,
    )


def _preview(run: Run) -> PreviewDetail:
    known = run.summary
    mean = known.get("mean_percent")
    excluded = known.get("excluded", {})

    def changes(name: str) -> Iterator[ChangeRow]:
        for one in known.get(name, ()):
            before, after = one["before"], one["after"]
            shown = (text(before, run.currency), text(after, run.currency))
            yield ChangeRow(sku=one["sku"], before=shown[0], after=shown[1], change=change(before, after))

    return PreviewDetail(
        before=_total(run, "before"),
        after=_total(run, "after"),
        rises=known.get("rises", 0),
        falls=known.get("falls", 0),
        mean_change=None if mean is None else f"{mean} %",
        excluded=run.excluded_count,
        refused=list(known.get("refused", ())),
        needs_approval=run.needs_approval,
        approved_by=run.approved_by,
        start_at=run.start_at,
        end_at=run.end_at,
        digest=run.preview_digest,
        largest_rises=list(changes("largest_rises")),
        largest_falls=list(changes("largest_falls")),
        left_out=[ExcludedRow(reason=r, count=n, says=MEANINGS[Reason(r)]) for r, n in excluded.items()],
    )


def _total(run: Run, name: str) -> str | None:
    known = run.summary
    return f"{text(known[name], run.currency)} {run.currency}" if name in known else None


def _progress(ask: Ask[RulesSettings], run: Run, seen: Seen | None, now: datetime) -> ProgressDetail:
    rate = _rate(ask, run, now)
    done = run.applied_count + run.rolled_back_count
    left = run.target_count - done - run.failed_count
    said = f"{done:,} of {run.target_count:,} set, {run.failed_count:,} failed"
    count, mismatches = _reports(ask, run)
    rollbacks = runs_of(ask.reader, run, Kind.ROLLBACK)
    return ProgressDetail(
        says=said if rate is None else f"{said}, {rate:,.1f} a second",
        rate=rate,
        ends_at=run.finished_at or (now + timedelta(seconds=left / rate) if rate else None),
        in_doubt=None if seen is None else seen.in_doubt,
        parked=None if seen is None else seen.parked,
        rolled_back=run.rolled_back_count,
        rolled_back_by=str(rollbacks[0].id) if rollbacks else None,
        retry_round=run.retry_round,
        mode=run.mode,
        queued_at=run.queued_at,
        started_at=run.started_at,
        finished_at=run.finished_at,
        reports=count,
        mismatches=mismatches,
    )


def _rate(ask: Ask[RulesSettings], run: Run, now: datetime) -> float | None:
    """Prices set per second, over the last minute of a run that is under way."""
    if run.status is not R.APPLYING or run.started_at is None:
        return None
    since = max(run.started_at, now - _LATELY)
    sql = ask.reader.database.sql
    count = (
        f"SELECT count(*) FROM rule_target WHERE rule_run_id = {sql.identifier('run')}"
        f" AND applied_at >= {sql.instant('since')}"
    )
    given = {"run": str(run.id), "since": instant_text(since)}
    applied = int(ask.reader.read(lambda cursor: cursor.rows(count, **given))[0][0])
    seconds = (now - since).total_seconds()
    return applied / seconds if applied and seconds > 0 else None


def _reports(ask: Ask[RulesSettings], run: Run) -> tuple[int, int | None]:
    """How many comparisons were made, and what the newest found to differ."""
    mine = f"rule_run_id = {ask.reader.database.sql.identifier('run')} AND finished_at IS NOT NULL"
    sql = f"SELECT mismatches FROM reconciliation_report WHERE {mine} ORDER BY started_at DESC, id"
    rows = ask.reader.read(lambda cursor: cursor.rows(sql, run=str(run.id)))
    return len(rows), int(rows[0][0]) if rows else None


def next_of(run: Run) -> str | None:
    """What a person would type next."""
    name = short(run)
    if run.parked_at is not None:
        return f"penstock units unpark rule_run:{run.id} --reason TEXT"
    if run.status is R.PREVIEW:
        if run.previewed_at is None:
            return f"penstock rules show {name} --watch"
        if run.summary.get("refused"):
            return f"penstock rules preview {run.rule_name}, once the rule or its limits are changed"
        if run.needs_approval and run.approved_by is None:
            return f"penstock rules approve {name}, by another person than {run.metadata.get('actor')}"
        return f"penstock rules queue {name} --preview-digest {(run.preview_digest or '')[:_DIGEST]}"
    if run.status in OPEN:
        if run.mode is Mode.PAUSED:
            return f"penstock rules resume {name}"
        return f"penstock rules show {name} --watch"
    if run.status in (R.PARTIAL, R.FAILED):
        return f"penstock rules targets {name} --failed, then penstock rules retry {name}"
    return f"penstock rules rollback {name} --reason TEXT" if run.status is R.APPLIED else None

"""Runs that wait for a person: to be approved, to be queued, or to be resumed."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.lifecycles.rules.queries import short
from penstock.lifecycles.rules.run.machine import OPEN, Mode, R, Run, rule_run
from penstock.lifecycles.rules.settings import RulesSettings
from penstock.operations.declare import Ask
from penstock.operations.needs import ITSELF, YOU, Need, Step

_MOST = 20
_DIGEST = 12


def needs(ask: Ask[RulesSettings]) -> Sequence[Need]:
    """The oldest first. A preview that breaks a limit, or would change nothing, waits for nobody."""
    states = ", ".join(f"'{state}'" for state in (R.PREVIEW, *sorted(OPEN)))
    sql = (
        f"SELECT unit_id FROM rule_run WHERE status IN ({states}) AND parked_at IS NULL"
        " AND (status <> 'PREVIEW' OR previewed_at IS NOT NULL) AND (status = 'PREVIEW' OR mode <> 'running')"
        " ORDER BY created_at LIMIT :most"
    )
    ids = [str(row[0]) for row in ask.reader.read(lambda cursor: cursor.rows(sql, most=_MOST))]
    runs: list[Run] = ask.reader.get_many(rule_run, ids) if ids else []
    return [_need(run) for run in sorted(runs, key=lambda one: ids.index(one.unit_id)) if _waits(run)]


def _waits(run: Run) -> bool:
    if run.status is R.PREVIEW:
        return bool(run.target_count) and not run.summary.get("refused")
    return run.mode is Mode.PAUSED


def _need(run: Run) -> Need:
    name, asked = short(run), run.metadata.get("actor")
    prices = f"{run.target_count:,} prices of {run.account} by {run.rule_name}"
    given = {"run": name} | ({"preview_digest": run.preview_digest} if run.preview_digest else {})
    look = Step(name="rules show", given={"run": name})
    if run.status is not R.PREVIEW:
        return Need(
            who=ITSELF,
            what=f"run {name} of {run.rule_name} is paused until somebody resumes it",
            why=run.mode_reason or "",
            command=f"penstock rules resume {name}",
            look=look,
            act=[Step(name="rules resume", given={"run": name})],
        )
    approve = run.needs_approval and run.approved_by is None
    verb = "approve" if approve else "queue"
    said = f"{asked} asks for it; another person must approve it" if approve else f"{asked} has it previewed"
    bound = "" if approve else f" --preview-digest {(run.preview_digest or '')[:_DIGEST]}"
    return Need(
        who=YOU,
        what=f"{prices} wait to be {'approved' if approve else 'queued'}",
        since=run.previewed_at,
        why=said,
        command=f"penstock rules {verb} {name}{bound}",
        units=[f"rule_run:{run.id}"],
        look=look,
        act=[Step(name=f"rules {verb}", given=given)],
    )

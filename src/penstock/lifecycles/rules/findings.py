"""What people find out afterwards: comparisons with the live prices, dead letters, prices of a SKU, and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import msgspec

from penstock.ledger.schema.columns import document
from penstock.lifecycles.rules.describe import money
from penstock.lifecycles.rules.metrics import METRICS, POLICIES, Values, dead_sql, values_of
from penstock.lifecycles.rules.money import Price
from penstock.lifecycles.rules.queries import SHORT, catalogue_lacks, find_run_then, require_account, require_rules
from penstock.lifecycles.rules.run.machine import Kind, rule_run
from penstock.lifecycles.rules.settings import RulesSettings
from penstock.lifecycles.rules.target.machine import Cause, rule_target
from penstock.model.clock import instant
from penstock.model.errors import UnknownUnit, UsageError
from penstock.operations.declare import Ask, Page, reading
from penstock.operations.fields import Parameters, Row, argument, column, option
from penstock.operations.named import excused, not_there
from penstock.operations.past import At, Then, lacking, said

if TYPE_CHECKING:
    from penstock.operations.reader import Reader

_ADVICE = {
    Cause.RETRIES: "the provider failed or did not answer; look at its gate, then retry",
    Cause.REFUSED: "the provider refuses the price or the variant; change the rule and preview it again",
    Cause.DELETED: "the variant is gone; dismiss it",
    Cause.CONFLICT: "somebody else has set the price; look at it, then preview the rule again or dismiss it",
    Cause.HALTED: "its run was stopped before it was sent; retry when the reason for that is gone",
}


class ReportsFilter(Parameters, frozen=True):
    """Whose comparisons."""

    run: Annotated[str | None, argument("Only of this run: its id, or the beginning of it.", example="3f2a91c0")] = None
    limit: Annotated[int, option("How many at most.", ge=1, le=100_000)] = 20
    at: At = None


class ReportParameters(Parameters, frozen=True):
    """Which comparison."""

    report: Annotated[str, argument("The report's id, or the beginning of it.", example="9c01d2aa")]
    limit: Annotated[int, option("How many details at most.", ge=1, le=10_000_000)] = 1_000
    at: At = None


class HistoryParameters(Parameters, frozen=True):
    """Which SKU."""

    sku: Annotated[str, argument("The SKU.", example="RING-1")]
    account: Annotated[str | None, option("Only of this account.")] = None
    limit: Annotated[int, option("How many at most.", ge=1, le=1_000_000)] = 1_000
    at: At = None


class DeadFilter(Parameters, frozen=True):
    """Whose dead letters."""

    run: Annotated[str | None, option("Only of this run.", example="3f2a91c0")] = None
    at: At = None


class ReportRow(Row, frozen=True):
    """A comparison of a run with the live prices."""

    report: Annotated[str, column("The beginning of its id, which is enough to name it.", show="reference")]
    run: Annotated[str, column("The run.", show="reference")]
    occasion: Annotated[str, column("Why it was made: immediate, delayed, periodic or by hand.")]
    total_checked: Annotated[
        int | None, column("Prices that were compared; empty if it was going on then.", heading="checked")
    ] = msgspec.field(name="totalChecked")
    mismatches: Annotated[int, column("Prices that differ.", heading="differ")]
    superseded: Annotated[int | None, column("Prices that a later run has set again; empty if it was going on then.")]
    missing: Annotated[int, column("Of those that differ, variants that are gone.")]
    started_at: Annotated[datetime | None, column("When it began.", heading="began")]
    finished_at: Annotated[datetime | None, column("When it was complete.", show="detail")]
    report_id: Annotated[str, column("Its id.", show="detail")]
    run_id: Annotated[str, column("The run's id.", show="detail")]


class MismatchRow(Row, frozen=True):
    """A price that is not what a run has set."""

    target_id: Annotated[str, column("The variant.", show="detail")] = msgspec.field(name="targetId")
    sku: Annotated[str, column("The SKU.", show="reference")]
    wanted: Annotated[str, column("What the run has set.")]
    live: Annotated[str | None, column("What it costs; none: the variant is gone.")]
    expected: Annotated[int, column("What the run has set, in minor units.", show="detail")]
    actual: Annotated[int | None, column("What it costs, in minor units.", show="detail")]
    difference: Annotated[int | None, column("How much more that is, in minor units.", show="detail")]


class ReportDetail(ReportRow, frozen=True):
    """A comparison, with every price that differs."""

    left_out: Annotated[int, column("Details that are not shown here; --limit shows more.")]
    details: Annotated[list[MismatchRow], column("The prices that differ.")]


class HistoryRow(Row, frozen=True):
    """A price that was set."""

    at: Annotated[datetime | None, column("When it was set.")]
    account: Annotated[str, column("Whose catalogue.")]
    before: Annotated[str | None, column("The price before.", heading="from")]
    after: Annotated[str | None, column("The price that was set.", heading="to")]
    rule: Annotated[str, column("The rule.")]
    version: Annotated[int, column("Its version.", show="detail")]
    kind: Annotated[Kind, column("Whether a rule was applied, rolled back or repaired.")]
    run: Annotated[str, column("The run.", show="reference")]
    by: Annotated[str | None, column("Who asked for it.")]
    rolled_back: Annotated[bool, column("Whether it was put back since.", heading="put back")]
    variant: Annotated[str, column("The variant.", show="detail")]
    run_id: Annotated[str, column("The run's id.", show="detail")]


class CauseRow(Row, frozen=True):
    """Dead letters of one cause."""

    cause: Annotated[Cause, column("Why they failed.", show="reference")]
    count: Annotated[int, column("How many.")]
    example: Annotated[str, column("One of them.", show="reference")]
    error: Annotated[str | None, column("What it says.", show="text")]
    advice: Annotated[str, column("What to do.", show="text", heading="what to do")]


class DeadRow(Row, frozen=True):
    """A dead letter."""

    run: Annotated[str, column("The run.", show="reference")]
    rule: Annotated[str, column("The rule.")]
    sku: Annotated[str, column("The SKU.", show="reference")]
    cause: Annotated[Cause, column("Why it failed.")]
    before: Annotated[str | None, column("The price before.")]
    after: Annotated[str | None, column("The price that was to be set.")]
    live: Annotated[
        str | None, column("The price that was found instead; of the past, if it was not tried again since.")
    ]
    failed_at: Annotated[datetime | None, column("When it failed.", heading="failed")]
    error: Annotated[str | None, column("What went wrong.", show="text")]
    advice: Annotated[str, column("What to do.", show="detail")]
    account: Annotated[str, column("Whose catalogue.", show="detail")]
    unit: Annotated[str, column("The target, for 'penstock dead'.", show="detail")]


class MetricRow(Row, frozen=True):
    """A metric, and its value."""

    metric: Annotated[str, column("Its name.", show="reference")]
    kind: Annotated[str, column("counter, gauge or histogram.")]
    value: Annotated[float | None, column("Its value; of a histogram the median.")]
    says: Annotated[str, column("What it counts.", show="text")]
    count: Annotated[int | None, column("How many values a histogram has.", show="detail")]
    highest: Annotated[float | None, column("The highest of them.", show="detail")]


class AlertRow(Row, frozen=True):
    """An alert policy, and whether it fires."""

    alert: Annotated[str, column("Its name.")]
    condition: Annotated[str, column("When it fires.")]
    severity: Annotated[str, column("warning or critical.", show="severity")]
    firing: Annotated[bool, column("Whether it fires.")]
    action: Annotated[str, column("Who is told, or what is done.")]


@reading("reports", "Comparisons of runs with the live prices, the newest first.")
def reports(ask: Ask[RulesSettings], wanted: ReportsFilter) -> Page[ReportRow]:
    require_rules(ask.reader)
    run = None if wanted.run is None else find_run_then(ask, wanted.run, wanted.at)
    ask = ask.then(wanted.at)
    where = "1 = 1" if run is None else f"rule_run_id = {ask.reader.database.sql.identifier('run')}"
    given = {} if run is None else {"run": str(run.id)}
    rows = _reports(ask.reader, f"{where} ORDER BY started_at DESC, id LIMIT {wanted.limit}", given)
    hint = "; a run is compared a minute after it has ended" if wanted.at is None else ""
    note = None if rows else f"nothing was compared yet{hint}"
    return Page(rows=[ReportRow(**row) for row in rows], note=note)


@reading("report", "One comparison, with every price that differs.")
def report(ask: Ask[RulesSettings], wanted: ReportParameters) -> ReportDetail:
    require_rules(ask.reader)
    lacks, ask = lacking(ask, [rule_run], wanted.at), ask.then(wanted.at)
    given = {"size": len(wanted.report), "wanted": wanted.report.lower()}
    condition = "substr(CAST(id AS text), 1, :size) = :wanted LIMIT 2"
    rows = _reports(ask.reader, condition, given) if wanted.report else []
    if len(rows) > 1:
        raise UsageError(f"more than one report begins with {wanted.report!r}; give more of its id")
    if not rows and wanted.at is not None:
        with excused(lacks):
            raise not_there(f"report {wanted.report!r}", wanted.at, "rules reports")
    if not rows:
        raise UnknownUnit(f"no report {wanted.report!r} in the ledger; 'penstock rules reports' lists them")
    mine = f"report_id = {ask.reader.database.sql.identifier('report')}"
    columns = "target_id, sku, expected, actual, difference, expected_compare_at, actual_compare_at, currency"
    sql = f"SELECT {columns} FROM reconciliation_mismatch WHERE {mine} ORDER BY target_id LIMIT :n"
    found = ask.reader.read(lambda cursor: cursor.rows(sql, report=rows[0]["report_id"], n=wanted.limit))
    details = [_mismatch(row) for row in found]
    return ReportDetail(**rows[0], left_out=rows[0]["mismatches"] - len(details), details=details)


@reading("history", "Every price that was ever set for a SKU, the newest first.")
def history(ask: Ask[RulesSettings], wanted: HistoryParameters) -> Page[HistoryRow]:
    require_rules(ask.reader)
    if wanted.account is not None:
        require_account(ask.settings, wanted.account)
    now, lacks, ask = ask.reader, lacking(ask, [rule_target], wanted.at), ask.then(wanted.at)
    own = "" if wanted.account is None else " AND t.account = :account"
    given: dict[str, Any] = {"sku": wanted.sku, "n": wanted.limit}
    given |= {} if wanted.account is None else {"account": wanted.account}
    sql = (
        "SELECT t.applied_at, t.account, t.before_json, t.after_json, r.rule_name, r.rule_version, r.kind, r.unit_id,"
        " r.metadata, t.status, t.id FROM rule_target t JOIN rule_run r ON r.id = t.rule_run_id"
        f" WHERE t.sku = :sku{own} AND t.status IN ('APPLIED', 'ROLLED_BACK')"
        " ORDER BY t.applied_at DESC, t.unit_id LIMIT :n"
    )
    rows = [_set_price(row) for row in ask.reader.read(lambda cursor: cursor.rows(sql, **given))]
    accounts = [wanted.account] if wanted.account is not None else list(ask.settings.accounts)
    # What a catalogue had then is not known; a SKU that is known now is no mistake.
    if (
        not rows
        and all(catalogue_lacks(now, account, [wanted.sku]) for account in accounts)
        and not _is_known(now, wanted)
    ):
        raise UnknownUnit(f"no catalogue has the SKU {wanted.sku!r}, and no run has ever set its price")
    return Page(rows=rows, note=said(lacks, None if rows else f"no run has ever set the price of {wanted.sku}"))


@reading("dead", "Failed targets by cause, and what to do about each.")
def dead(ask: Ask[RulesSettings], wanted: DeadFilter) -> Page[CauseRow]:
    """Those that were dismissed, and those of runs that were rolled back, are left out."""
    where, given = _dead(ask, wanted)
    lacks, ask = lacking(ask, [rule_target], wanted.at), ask.then(wanted.at)
    sql = (
        f"SELECT t.cause, count(*), min(t.unit_id), min(t.error) FROM rule_target t WHERE {where}"
        " GROUP BY t.cause ORDER BY 2 DESC, 1"
    )
    rows = [
        CauseRow(
            cause=Cause(cause),
            count=int(count),
            example=f"rule_target:{example}",
            error=error,
            advice=_ADVICE[Cause(cause)],
        )
        for cause, count, example, error in ask.reader.read(lambda cursor: cursor.rows(sql, **given))
    ]
    how = (_how(rows, wanted) if wanted.at is None else None) if rows else "no dead letters"
    return Page(rows=rows, note=said(lacks, how))


@reading("drain", "A report of all failed targets, as a table, CSV or JSON.")
def drain(ask: Ask[RulesSettings], wanted: DeadFilter) -> Page[DeadRow]:
    """Nothing is taken away: 'rules retry' and 'dead dismiss' do that."""
    where, given = _dead(ask, wanted)
    lacks, ask = lacking(ask, [rule_target], wanted.at), ask.then(wanted.at)
    sql = (
        "SELECT r.unit_id, r.rule_name, t.sku, t.cause, t.before_json, t.after_json, t.live_json, t.changed_at,"
        " t.error, t.account, t.unit_id FROM rule_target t JOIN rule_run r ON r.id = t.rule_run_id"
        f" WHERE {where} ORDER BY t.unit_id"
    )
    found = ask.reader.database.read(lambda cursor: [_letter(row) for row in cursor.gather(sql, **given)], patient=True)
    counts: dict[str, int] = {}
    for row in found:
        counts[str(row.cause)] = counts.get(str(row.cause), 0) + 1
    return Page(rows=found, counts=counts or None, note=said(lacks, None if found else "no dead letters"))


@reading("metrics", "What is measured of rules, with its values.")
def metrics(ask: Ask[RulesSettings], wanted: Then) -> Page[MetricRow]:
    require_rules(ask.reader)
    lacks, ask = lacking(ask, [rule_run, rule_target], wanted.at), ask.then(wanted.at)
    values = values_of(ask.reader, ask.now, past=wanted.at is not None)
    return Page(rows=[_metric(name, kind, says, values) for name, kind, says, _ in METRICS], note=lacks)


@reading("alerts", "The alert policies of rules, and which of them fire.")
def alerts(ask: Ask[RulesSettings], wanted: Then) -> Page[AlertRow]:
    """Of the past: what today's policies say of how things stood then."""
    require_rules(ask.reader)
    lacks, ask = lacking(ask, [rule_run, rule_target], wanted.at), ask.then(wanted.at)
    values = values_of(ask.reader, ask.now, past=wanted.at is not None)
    rows = [
        AlertRow(
            alert=one.name,
            condition=one.condition,
            severity=one.severity,
            firing=one.fires(values),
            action=one.action,
        )
        for one in POLICIES
    ]
    return Page(rows=rows, note=lacks)


READINGS: list[Any] = [reports, report, history, dead, drain, metrics, alerts]


def _reports(reader: Reader, condition: str, given: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields of `ReportRow`."""
    columns = "id, rule_run_id, occasion, total_checked, mismatches, superseded, missing, started_at, finished_at"
    sql = f"SELECT {columns} FROM reconciliation_report WHERE {condition}"
    return [
        {
            "report": str(UUID(str(one)))[:SHORT],
            "run": str(UUID(str(run)))[:SHORT],
            "occasion": occasion,
            "total_checked": checked,
            "mismatches": mismatches,
            "superseded": superseded,
            "missing": missing,
            "started_at": instant(started),
            "finished_at": instant(finished),
            "report_id": str(UUID(str(one))),
            "run_id": str(UUID(str(run))),
        }
        for one, run, occasion, checked, mismatches, superseded, missing, started, finished in reader.read(
            lambda cursor: cursor.rows(sql, **given)
        )
    ]


def _mismatch(row: Sequence[Any]) -> MismatchRow:
    target, sku, expected, actual, difference, compare_at, live_compare_at, currency = row
    return MismatchRow(
        target_id=target,
        sku=sku,
        wanted=str(money(Price(expected, compare_at, currency))),
        live=None if actual is None else money(Price(actual, live_compare_at, currency)),
        expected=expected,
        actual=actual,
        difference=difference,
    )


def _is_known(reader: Reader, wanted: HistoryParameters) -> bool:
    """Whether a run has ever looked at that SKU."""
    sql = "SELECT 1 FROM rule_target WHERE sku = :sku LIMIT 1"
    return bool(reader.read(lambda cursor: cursor.rows(sql, sku=wanted.sku)))


def _set_price(row: Sequence[Any]) -> HistoryRow:
    at, account, before, after, rule, version, kind, run, metadata, status, variant = row
    return HistoryRow(
        at=instant(at),
        account=account,
        before=_money(before),
        after=_money(after),
        rule=rule,
        version=version,
        kind=Kind(kind),
        run=str(run)[:SHORT],
        by=_plain(metadata).get("actor"),
        rolled_back=status == "ROLLED_BACK",
        variant=variant,
        run_id=str(run),
    )


def _letter(row: Sequence[Any]) -> DeadRow:
    run, rule, sku, cause, before, after, live, failed_at, error, account, unit_id = row
    return DeadRow(
        run=str(run)[:SHORT],
        rule=rule,
        sku=sku,
        cause=Cause(cause),
        before=_money(before),
        after=_money(after),
        live=_money(live),
        failed_at=instant(failed_at),
        error=error,
        advice=_ADVICE[Cause(cause)],
        account=account,
        unit=f"rule_target:{unit_id}",
    )


def _plain(kept: Any) -> dict[str, Any]:
    return dict(document(kept) if isinstance(kept, str) else kept)


def _money(kept: Any) -> str | None:
    return None if kept is None else money(Price.from_json(_plain(kept)))


def _dead(ask: Ask[RulesSettings], wanted: DeadFilter) -> tuple[str, dict[str, str]]:
    """The condition of what is asked for. `ask` is the question before `then`."""
    require_rules(ask.reader)
    sql = ask.reader.database.sql
    dead = dead_sql(None if wanted.at is None else ask.reader.read(sql.schema))
    if wanted.run is None:
        return dead, {}
    run = find_run_then(ask, wanted.run, wanted.at)
    return f"{dead} AND t.rule_run_id = {sql.identifier('run')}", {"run": str(run.id)}


def _how(rows: Sequence[CauseRow], wanted: DeadFilter) -> str:
    run = wanted.run or rows[0].example.partition(":")[2][:SHORT]
    return (
        f"'penstock rules retry {run} --cause {rows[0].cause}' tries those of a run again, 'penstock dead dismiss'"
        " stops listing them, 'penstock rules drain --csv' lists every one"
    )


def _metric(name: str, kind: str, says: str, values: Values) -> MetricRow:
    durations = sorted(values.durations)
    found: dict[str, float | None] = {
        "rules.apply.count": values.applied,
        "rules.apply.duration_ms": durations[len(durations) // 2] if durations else None,
        "rules.apply.success_rate": values.rate,
        "rules.dlq.size": values.dead,
        "rules.target.retries": values.retries,
        "rules.429.count": values.throttles,
    }
    spread = kind == "histogram"
    return MetricRow(
        metric=name,
        kind=kind,
        value=found[name],
        says=says,
        count=len(durations) if spread else None,
        highest=durations[-1] if spread and durations else None,
    )

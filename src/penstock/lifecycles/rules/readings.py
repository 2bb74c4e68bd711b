"""What people see of rules, locked SKUs, runs and their targets."""

from __future__ import annotations

import heapq
import json
from datetime import datetime
from typing import Annotated, Any

from penstock.lifecycles.rules import findings
from penstock.lifecycles.rules.definition import Rule
from penstock.lifecycles.rules.describe import change, described, money
from penstock.lifecycles.rules.money import Price
from penstock.lifecycles.rules.queries import (
    SHORT,
    current_rules,
    find_run_then,
    require_account,
    require_rules,
    short,
    unknown_rule,
)
from penstock.lifecycles.rules.registry import CONFIGURATION, Kept, configured_rules
from penstock.lifecycles.rules.run.machine import R, Run, rule_run
from penstock.lifecycles.rules.settings import RulesSettings
from penstock.lifecycles.rules.showing import RunRow, run_fields, show
from penstock.lifecycles.rules.target.machine import Cause, T, Target, rule_target
from penstock.lifecycles.rules.wishes import WhichRun
from penstock.model.clock import instant
from penstock.model.errors import UsageError
from penstock.operations.declare import Ask, Page, reading
from penstock.operations.fields import Parameters, Row, column, option
from penstock.operations.past import At, Then, lacking, said

_NONE_THEN = "there was no {} then"


class LockedFilter(Parameters, frozen=True):
    """Which locked SKUs."""

    account: Annotated[str | None, option("Only of this account.")] = None
    at: At = None


class RunsFilter(Parameters, frozen=True):
    """Which runs."""

    rule: Annotated[str | None, option("Only of this rule.")] = None
    account: Annotated[str | None, option("Only of this account.")] = None
    status: Annotated[R | None, option("Only those in this state.")] = None
    limit: Annotated[int, option("How many at most.", ge=1, le=100_000)] = 20
    at: At = None


class TargetsFilter(WhichRun, frozen=True):
    """Which targets of a run."""

    status: Annotated[T | None, option("Only those in this state.")] = None
    excluded: Annotated[bool, option("Only those that are left out, with the reason.")] = False
    failed: Annotated[bool, option("Only those that have failed.")] = False
    by_change: Annotated[bool, option("The largest changes first, rises and falls alike.")] = False
    limit: Annotated[int, option("How many at most.", ge=1, le=10_000_000)] = 100
    after: Annotated[str | None, option("Go on after an earlier page, by the cursor that it ended with.")] = None
    at: At = None


class RuleRow(Row, frozen=True):
    """A rule."""

    rule: Annotated[str, column("Its name.", show="reference", leads="runs")]
    account: Annotated[str, column("Whose prices it changes.")]
    does: Annotated[str, column("What it does, and to what.", show="text")]
    priority: Annotated[int, column("Where rules mean the same item, the lowest wins.")]
    active: Annotated[bool, column("Whether it can be previewed, and comes before others.")]
    version: Annotated[int | None, column("The version in force; none: it was never imported or previewed.")]
    last_run: Annotated[
        str | None, column("Its last run.", show="reference", heading="last run", leads="show", gives="run")
    ]
    last_status: Annotated[R | None, column("How that stands.", show="state", heading="which is")]
    changed: Annotated[
        bool | None,
        column("Whether the configuration has another than the one in force; empty of the past.", show="detail"),
    ]
    currency: Annotated[str, column("The currency of its amounts.", show="detail")]
    source: Annotated[str, column("Where it comes from.", show="detail")]
    description: Annotated[str | None, column("What it is for.", show="detail")]


class LockedRow(Row, frozen=True):
    """A SKU that no rule touches."""

    account: Annotated[str, column("Whose it is.")]
    sku: Annotated[str, column("The SKU.", show="reference")]
    locked_by: Annotated[str, column("Who locked it, or the configuration.", heading="by")]
    locked_at: Annotated[datetime | None, column("When.", heading="since")]
    reason: Annotated[str | None, column("Why.", show="text")]


class TargetRow(Row, frozen=True):
    """One variant of a run."""

    sku: Annotated[str, column("The SKU.", show="reference")]
    status: Annotated[T, column("Where it stands.", show="state")]
    before: Annotated[str | None, column("The price before, and the compare-at price.")]
    after: Annotated[str | None, column("The price after, and the compare-at price.")]
    change: Annotated[str | None, column("The difference in percent.")]
    why: Annotated[str | None, column("Why it was left out or has failed.", show="text")]
    variant: Annotated[str, column("The variant.", show="detail")]
    product: Annotated[str, column("Its product.", show="detail")]
    currency: Annotated[str, column("The currency.", show="detail")]
    before_amount: Annotated[int, column("The price before, in minor units.", show="detail")]
    before_compare_at: Annotated[int | None, column("The compare-at price before, in minor units.", show="detail")]
    after_amount: Annotated[int | None, column("The price after, in minor units.", show="detail")]
    after_compare_at: Annotated[int | None, column("The compare-at price after, in minor units.", show="detail")]
    excluded: Annotated[str | None, column("The code of the reason for which it was left out.", show="detail")]
    cause: Annotated[Cause | None, column("Why it has failed.", show="detail")]
    attempts: Annotated[int | None, column("Retries made; empty of the past.", show="detail")]
    retry_round: Annotated[int, column("How often it was tried again by hand.", show="detail")]
    applied_at: Annotated[datetime | None, column("When the price was set.", show="detail")]
    in_doubt_since: Annotated[
        datetime | None,
        column(
            "Since when nobody knows whether its call arrived; of the past, if it was not touched since.", show="detail"
        ),
    ]
    set_aside_by: Annotated[str | None, column("Who left it as it is when its run was rolled back.", show="detail")]


@reading("list", "Rules: what they do, in which version, and their last run.")
def rules(ask: Ask[RulesSettings], wanted: Then) -> Page[RuleRow]:
    """Of the past it has the versions that were in force then. What the configuration had beside them is not known."""
    lacks, ask = lacking(ask, [rule_run], wanted.at), ask.then(wanted.at)
    kept = current_rules(ask.reader, ask.settings)
    configured = configured_rules(ask.settings) if wanted.at is None else {}
    rows = []
    for name in sorted({*kept, *configured}):
        own = kept.get(name)
        rule = configured[name] if name in configured else kept[name].rule
        if wanted.at is None and name not in configured and own is not None and own.source == CONFIGURATION:
            continue
        last, last_status = _last_run(ask, name)
        rows.append(
            RuleRow(
                rule=name,
                account=rule.account,
                does=described(rule),
                priority=rule.priority,
                active=rule.active,
                version=None if own is None else own.version,
                last_run=last,
                last_status=last_status,
                changed=_has_changed(own, rule) if wanted.at is None else None,
                currency=rule.currency,
                source=CONFIGURATION if name in configured or own is None else own.source,
                description=rule.description,
            )
        )
    none = "no rules yet; add [rules.rules.NAME] or 'penstock rules import FILE'"
    return Page(rows=rows, note=said(lacks, None if rows else none if wanted.at is None else _NONE_THEN.format("rule")))


@reading("locked", "SKUs that no rule touches.")
def locked(ask: Ask[RulesSettings], wanted: LockedFilter) -> Page[LockedRow]:
    """Of the past it has those that people had locked: what the configuration locked then is not known."""
    require_rules(ask.reader)
    ask = ask.then(wanted.at)
    if wanted.account is not None:
        require_account(ask.settings, wanted.account)
    rows = [
        LockedRow(account=name, sku=sku, locked_by=CONFIGURATION, locked_at=None, reason=None)
        for name, own in ask.settings.accounts.items()
        for sku in own.locked
        if wanted.at is None
    ]
    sql = "SELECT account, sku, changed_by, changed_at, reason FROM locked_sku WHERE locked"
    rows += [
        LockedRow(account=account, sku=sku, locked_by=by, locked_at=instant(at), reason=why)
        for account, sku, by, at, why in ask.reader.read(lambda cursor: cursor.rows(sql))
    ]
    rows = [row for row in rows if wanted.account in (None, row.account)]
    rows.sort(key=lambda row: (row.account, row.sku))
    return Page(rows=rows, note=None if rows else "no SKU is locked")


@reading("runs", "The latest runs, the newest first.")
def runs(ask: Ask[RulesSettings], wanted: RunsFilter) -> Page[RunRow]:
    require_rules(ask.reader)
    lacks, ask = lacking(ask, [rule_run], wanted.at), ask.then(wanted.at)
    if wanted.rule is not None:
        _require_rule(ask, wanted.rule)
    names = {"rule": "rule_name", "account": "account", "status": "status"}
    given = {name: str(value) for name in names if (value := getattr(wanted, name)) is not None}
    where = " AND ".join(f"{names[name]} = :{name}" for name in given) or "1 = 1"
    sql = f"SELECT unit_id FROM rule_run WHERE {where} ORDER BY created_at DESC, unit_id LIMIT :n"
    ids = [str(row[0]) for row in ask.reader.read(lambda cursor: cursor.rows(sql, n=wanted.limit, **given))]
    found: list[Run] = ask.reader.get_many(rule_run, ids) if ids else []
    listed = sorted(found, key=lambda run: ids.index(run.unit_id))
    none = (
        "no such runs; 'penstock rules preview RULE' makes one" if wanted.at is None else _NONE_THEN.format("such run")
    )
    return Page(rows=[RunRow(**run_fields(run)) for run in listed], note=said(lacks, None if listed else none))


@reading("targets", "The prices of a run, before and after.")
def targets(ask: Ask[RulesSettings], wanted: TargetsFilter) -> Page[TargetRow]:
    run, lacks = find_run_then(ask, wanted.run, wanted.at), lacking(ask, [rule_target], wanted.at)
    ask = ask.then(wanted.at)
    parts = [f"rule_run_id = {ask.reader.database.sql.identifier('run')}"]
    given: dict[str, Any] = {"run": str(run.id)}
    if wanted.excluded:
        parts.append("NOT included")
    if wanted.failed or wanted.status is not None:
        parts.append("status = :status")
        given["status"] = str(T.FAILED if wanted.failed else wanted.status)
    where = " AND ".join(parts)
    if wanted.by_change and wanted.after is not None:
        raise UsageError("a list by change has no further pages; ask for more at once, by its limit")
    follows = "" if wanted.after is None else " AND id > :after"
    page = given | ({} if wanted.after is None else {"after": wanted.after}) | {"n": wanted.limit + 1}
    sql = f"SELECT unit_id FROM rule_target WHERE {where}{follows} ORDER BY id LIMIT :n"
    if wanted.by_change:
        ids = _largest(ask, where, given, wanted.limit + 1)
    else:
        ids = [str(row[0]) for row in ask.reader.read(lambda cursor: cursor.rows(sql, **page))]
    more = len(ids) > wanted.limit and not wanted.by_change
    found: list[Target] = ask.reader.get_many(rule_target, ids[: wanted.limit]) if ids else []
    rows = [_target(one) for one in sorted(found, key=lambda one: ids.index(one.unit_id))]
    counted = f"SELECT status, count(*) FROM rule_target WHERE {where} GROUP BY status ORDER BY status"
    counts = {str(s): int(n) for s, n in ask.reader.read(lambda cursor: cursor.rows(counted, **given))}
    note = said(lacks, None if rows else f"run {short(run)} has no such targets")
    return Page(rows=rows, counts=counts or None, next=rows[-1].variant if more else None, note=note)


def _largest(ask: Ask[RulesSettings], where: str, given: dict[str, Any], most: int) -> list[str]:
    """The targets whose price changes the most, in relation to what it was. All of them are looked at."""
    sql = f"SELECT unit_id, before_json, after_json FROM rule_target WHERE {where} AND after_json IS NOT NULL"

    def size(row: Any) -> float:
        before, after = (
            json.loads(one)["unit_amount"] if isinstance(one, str) else one["unit_amount"] for one in (row[1], row[2])
        )
        return abs(after - before) / before if before else float("inf")

    return ask.reader.database.read(
        lambda cursor: [str(row[0]) for row in heapq.nlargest(most, cursor.gather(sql, **given), key=size)],
        patient=True,
    )


READINGS: list[Any] = [rules, locked, runs, show, targets, *findings.READINGS]


def _require_rule(ask: Ask[RulesSettings], name: str) -> None:
    """Refuse a rule that never was. Raises UnknownUnit."""
    sql = "SELECT DISTINCT name FROM rule WHERE tenant_id = :tenant"
    rows = ask.reader.read(lambda cursor: cursor.rows(sql, tenant=ask.settings.tenant_id))
    known = {*(str(row[0]) for row in rows), *ask.settings.rules}
    if name not in known:
        raise unknown_rule(name, known)


def _has_changed(own: Kept | None, rule: Rule) -> bool:
    return own is None or (not own.listed and own.digest != rule.digest)


def _last_run(ask: Ask[RulesSettings], rule: str) -> tuple[str, R] | tuple[None, None]:
    sql = (
        "SELECT unit_id, status FROM rule_run WHERE rule_name = :rule AND tenant_id = :tenant AND kind = 'apply'"
        " ORDER BY created_at DESC, unit_id LIMIT 1"
    )
    rows = ask.reader.read(lambda cursor: cursor.rows(sql, rule=rule, tenant=ask.settings.tenant_id))
    return (str(rows[0][0])[:SHORT], R(rows[0][1])) if rows else (None, None)


def _target(one: Target) -> TargetRow:
    before = Price.from_json(one.before_json)
    after = None if one.after_json is None else Price.from_json(one.after_json)
    return TargetRow(
        sku=one.sku,
        status=one.status,
        before=money(before),
        after=money(after),
        change=None if after is None or not before.amount else change(before.amount, after.amount),
        why=one.excluded_reason or one.error or one.parked_reason,
        variant=one.id,
        product=one.product_id,
        currency=before.currency,
        before_amount=before.amount,
        before_compare_at=before.compare_at,
        after_amount=None if after is None else after.amount,
        after_compare_at=None if after is None else after.compare_at,
        excluded=one.excluded_code,
        cause=one.cause,
        attempts=one.attempts,
        retry_round=one.retry_round,
        applied_at=one.applied_at,
        in_doubt_since=one.in_doubt_since,
        set_aside_by=one.set_aside_by,
    )

"""Alerts as people see them, and what they may do with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from penstock.ledger.delivery import D, Delivery, gate_of
from penstock.ledger.delivery import machine as deliveries
from penstock.model.errors import UnknownUnit, UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Birth, Event, Move
from penstock.model.spoken import counted
from penstock.model.unit import Ref, replace, unit_id_of
from penstock.operations.alerts.defaults import TEST
from penstock.operations.alerts.machine import A, Alert, audible, machine, silenced
from penstock.operations.alerts.policy import Policy, policies_of
from penstock.operations.alerts.runbook import entry
from penstock.operations.alerts.sinks import EVERYONE, sinks_of
from penstock.operations.declare import Ask, Page, operation, reading
from penstock.operations.fields import Parameters, Row, argument, column, option
from penstock.operations.named import excused, not_there
from penstock.operations.past import At, lacking, said
from penstock.operations.plan import Follow, Together
from penstock.settings.kernel import KernelSettings
from penstock.settings.scalars import span_text

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger

_MOST = 1_000
_TRIED = timedelta(seconds=30)
_EVERY = "alerts list --resolved"
"""The command that lists those that are over, too."""


class AlertFilter(Parameters, frozen=True):
    policy: Annotated[str | None, option("Only alerts of this policy.", example="dead_letters")] = None
    severity: Annotated[Literal["info", "warning", "critical"] | None, option("Only alerts of this severity.")] = None


class AlertList(AlertFilter, frozen=True):
    resolved: Annotated[bool, option("Also alerts that are over.")] = False
    limit: Annotated[int, option("How many at most.", ge=1, le=10_000)] = 100
    after: Annotated[str | None, option("Continue after an earlier page: the cursor that it ended with.")] = None
    at: At = None


class AlertNamed(Parameters, frozen=True):
    alert: Annotated[str, argument("The alert, as policy/subject.", example="dead_letters/invoice")]


class AlertThen(AlertNamed, frozen=True):
    at: At = None


class AlertsChosen(AlertFilter, frozen=True):
    alerts: Annotated[
        tuple[str, ...], argument("Alerts, as policy/subject; or none, with filters.", example="dead_letters/invoice")
    ] = ()


class AlertSilence(AlertsChosen, frozen=True):
    span: Annotated[timedelta, option("For how long nobody is told.", example="2h")] = msgspec.field(
        default=timedelta(hours=1), name="for"
    )


class AlertTest(Parameters, frozen=True):
    sink: Annotated[str | None, argument("Only this sink.", example="alert.slack.engineering")] = None


class AlertRow(Row, frozen=True):
    alert: Annotated[str, column("The alert.", show="reference", leads="alerts show")]
    status: Annotated[str, column("firing, acknowledged, silenced or resolved.", show="state")]
    severity: Annotated[str | None, column("info, warning or critical.", show="severity")]
    since: Annotated[datetime | None, column("Since when it has been true.")]
    says: Annotated[str | None, column("What is the matter.", show="text")]
    until: Annotated[datetime | None, column("Until when it is silenced.")]
    by: Annotated[str | None, column("Who has taken it on, silenced or resolved it.")]
    times: Annotated[int | None, column("How often it has fired.", show="detail")]
    policy: Annotated[str, column("The policy.", show="detail")]
    subject: Annotated[str, column("What it is about.", show="detail")]
    unit: Annotated[str | None, column("A unit to look at.", show="detail")]
    changed_at: Annotated[datetime | None, column("When it last changed.", show="detail")]
    reason: Annotated[str | None, column("Why it last changed.", show="detail")]


class AlertShown(AlertRow, frozen=True):
    means: Annotated[str | None, column("What the policy means.")]
    runbook: Annotated[str | None, column("What to do: what the runbook says, or where yours is.", show="text")]
    facts: Annotated[dict[str, Any], column("What is known.")]


class PolicyRow(Row, frozen=True):
    policy: Annotated[str, column("The policy.", show="reference")]
    kind: Annotated[str, column("What it asks of the ledger; event: nothing.")]
    severity: Annotated[str, column("How bad it is, or from which value on.")]
    match: Annotated[str, column("What it is for.")]
    events: Annotated[str, column("Events that fire it.", show="text")]
    says: Annotated[str, column("What it means.", show="text")]


class SinkTried(Row, frozen=True):
    sink: Annotated[str, column("The sink.", show="reference")]
    status: Annotated[str, column("delivered, pending or dead.", show="state")]
    attempts: Annotated[int, column("How often it was tried again.")]
    until: Annotated[datetime | None, column("Until when it waits, where that is known.")]
    reason: Annotated[str | None, column("What came of it, or what holds it back.", show="text")]


class SinksTried(Page[SinkTried], frozen=True, kw_only=True):
    """What came of a test. `failed`: not every sink has taken it."""

    failed: bool


@reading("alerts list", "Alerts that are not over, the worst first.")
def list_alerts(ask: Ask[KernelSettings], wanted: AlertList) -> Page[AlertRow]:
    """Of the past, a silenced alert shows only what is still known."""
    every = _stood(ask, wanted.at)
    none = "no alerts: all is well, as far as anybody knows" if wanted.at is None else "no alerts then"
    found = [one for one in every if _fits(one, wanted) and (wanted.resolved or one.status is not A.RESOLVED)]
    found.sort(key=_order)
    names = [one.unit_id for one in found]
    if wanted.after is not None:
        if wanted.after not in names:
            raise UsageError(f"{wanted.after!r} is not a cursor; take it from the page before")
        found = found[names.index(wanted.after) + 1 :]
    page = found[: wanted.limit]
    more = len(found) > wanted.limit
    return Page(
        rows=[_row(AlertRow, one) for one in page],
        next=page[-1].unit_id if more else None,
        counts={str(state): sum(one.status is state for one in every) for state in A},
        note=said(lacking(ask, [machine], wanted.at), None if found else none),
    )


@reading("alerts show", "One alert: what it means, what is known, what to do.")
def show_alert(ask: Ask[KernelSettings], wanted: AlertThen) -> AlertShown:
    one = _named(ask, wanted.alert, wanted.at)
    policy = policies_of(ask.program).get(one.policy)
    where = ask.settings.alerts.runbook
    shown: AlertShown = _row(
        AlertShown,
        one,
        means=None if policy is None else policy.says,
        runbook=entry(one.policy) if where is None else f"{where}#{one.policy}",
        facts=one.facts or {},
    )
    return shown


@reading("alerts policies", "When somebody is told: the policies in force.", no_past="it shows what is configured")
def list_policies(ask: Ask[KernelSettings]) -> Page[PolicyRow]:
    rows = [
        PolicyRow(
            policy=one.name,
            kind=one.kind,
            severity=_thresholds(one),
            match=" ".join(one.match),
            events=", ".join(one.events),
            says=one.says,
        )
        for one in policies_of(ask.program).values()
    ]
    return Page(rows=sorted(rows, key=lambda row: row.policy))


@operation("alerts ack", "Take alerts on: who was told hears that somebody is at it.")
def acknowledge(ask: Ask[KernelSettings], wanted: AlertsChosen) -> Together:
    return _moved(ask, wanted, (A.FIRING,), "acknowledge", lambda one: replace(one, status=A.ACKNOWLEDGED))


@operation("alerts silence", "Tell nobody of alerts for a time.")
def silence(ask: Ask[KernelSettings], wanted: AlertSilence) -> Together:
    """They are told anew when the time is over and they still fire. That they are over is told."""
    if wanted.span < timedelta(seconds=1):
        raise UsageError("a silence lasts a second at least")
    verb = f"silence for {span_text(wanted.span)}"
    return _moved(ask, wanted, (A.FIRING, A.ACKNOWLEDGED), verb, lambda one: silenced(one, ask.now, wanted.span))


@operation("alerts unsilence", "End a silence: who wants it is told anew.")
def unsilence(ask: Ask[KernelSettings], wanted: AlertsChosen) -> Together:
    return _moved(ask, wanted, (A.SILENCED,), "unsilence", lambda one: audible(one, ask.now))


@operation("alerts resolve", "Resolve alerts by hand.")
def resolve(ask: Ask[KernelSettings], wanted: AlertsChosen) -> Together:
    """One whose condition is still true fires again only when that was over in between, or has become worse."""
    live = (A.FIRING, A.ACKNOWLEDGED, A.SILENCED)
    return _moved(
        ask,
        wanted,
        live,
        "resolve",
        lambda one: replace(one, status=A.RESOLVED, silenced_at=None, silence_seconds=0),
    )


@operation("alerts test", "Send a test through every sink, or one, and say what came of it.", wants_reason=False)
def test(ask: Ask[KernelSettings], wanted: AlertTest) -> Together:
    """An alert of the policy 'test' fires, and is resolved by itself a few minutes later."""
    from penstock.ledger import outbox
    from penstock.operations.alerts import book

    names = [one.name for one in sinks_of(ask.settings.alerts)]
    chosen = [name for name in names if wanted.sink in (None, name)]
    if not names:
        raise UsageError("no sink is configured; say log = true in [alerts], or add one, such as [alerts.slack.NAME]")
    if not chosen:
        raise UsageError(f"no sink is called {wanted.sink!r}; there is {', '.join(names)}")
    known = outbox.subscribers(ask.reader.database)
    missing = [name for name in chosen if name not in known]
    if missing:
        raise UsageError(f"no worker has run with the sink {missing[0]} yet; start 'penstock up' first")
    subject = wanted.sink or EVERYONE
    before = next(iter(ask.reader.get_many(machine, [book.id_of(TEST, subject)])), None)
    fresh = Alert(policy=TEST, subject=subject, severity="info", says="This is a test.", since=ask.now)
    if before is not None:
        fresh = replace(before, status=A.FIRING, since=ask.now, times=before.times + 1, told="", by_whom=None)
    reason = ask.reason or "a test"
    fired, events = book.tell(replace(fresh, by_whom=ask.who), by=ask.who, reason=ask.reason or None)
    made: dict[str, Any] = {"births": [Birth(fired, reason, actor=Actor.OPERATOR)]}
    if before is not None:
        made = {"moves": [Move(before, fired, reason, actor=Actor.OPERATOR)]}
    return Together(
        f"send a test through {', '.join(chosen)}",
        events=events,
        harmless=True,
        follow=_tried(ask, Ref(machine.name, unit_id_of(fired)), [_delivery(name, events[0]) for name in chosen]),
        **made,
    )


READINGS = [list_alerts, show_alert, list_policies]
OPERATIONS = [acknowledge, silence, unsilence, resolve, test]


def _delivery(subscriber: str, event: Event) -> str:
    return unit_id_of(Delivery(subscriber=subscriber, tenant_id=event.tenant, event_key=event.key))


def _tried(ask: Ask[Any], alert: Ref, ids: list[str]) -> Follow:
    """Until every sink was tried once or is held back for longer, or half a minute has passed."""
    clock, gates = ask.program.clock, [gate_of(unit_id.partition("/")[0]) for unit_id in ids]
    end, late = clock.elapsed() + _TRIED.total_seconds(), ask.now + _TRIED

    def tried(reader: Any) -> list[Delivery]:
        return [one for one in reader.get_many(deliveries, ids) if one.status is not D.PENDING or one.attempts]

    def until(_: Any) -> bool:
        if clock.elapsed() > end:
            return True
        left = {*ids} - {one.unit_id for one in tried(ask.reader)}
        shut = {gate for gate, (_, opens) in _shut(ask.reader, gates).items() if opens is None or opens > late}
        return all(gate in shut for unit_id, gate in zip(ids, gates, strict=True) if unit_id in left)

    def how_far(ledger: Ledger, _: Any) -> tuple[int, int | None]:
        return len(tried(ledger)), len(ids)

    def show(after: Ask[Any]) -> SinksTried:
        shut, found = _shut(after.reader, gates), after.reader.get_many(deliveries, ids)
        rows = [_came_of(one, shut.get(one.gate_id)) for one in found]
        failed = any(one.status is not D.DELIVERED for one in found)
        return SinksTried(rows=rows, failed=failed, note="not every sink has taken it" if failed else None)

    return Follow(alert, until, show, how_far, worked=deliveries.name)


def _shut(reader: Any, gates: list[str]) -> dict[str, tuple[str, datetime | None]]:
    """Those of the gates that let nothing through now: what is said of each, and until when, where that is known."""
    from penstock.ledger.gates.status import gate_statuses

    found = reader.read(lambda cursor: gate_statuses(reader.database, cursor, only=gates))
    return {
        one.gate_id: (f"the gate {one.gate_id} is {one.state}: {one.reason}", one.until)
        for one in found
        if one.state in {"closed", "paused", "stopped"}
    }


def _came_of(one: Delivery, shut: tuple[str, datetime | None] | None) -> SinkTried:
    reason, until = one.change_reason, None
    if one.status is D.PENDING and shut is not None:
        reason, until = shut
    elif one.status is D.PENDING and one.attempts:
        until = one.due_at
    elif one.status is D.PENDING:
        reason = "no worker has come to it yet"
    return SinkTried(sink=one.subscriber, status=str(one.status), attempts=one.attempts, until=until, reason=reason)


def _moved(
    ask: Ask[Any], wanted: AlertsChosen, sources: tuple[A, ...], verb: str, change: Callable[[Alert], Alert]
) -> Together:
    """Alerts changed by hand, each with the event that tells of it. Raises UsageError where none can be."""
    from penstock.operations.alerts import book

    named = [_named(ask, name) for name in dict.fromkeys(wanted.alerts)]
    if wanted.alerts and (wanted.policy or wanted.severity):
        raise UsageError("name alerts or filter them, not both")
    if not wanted.alerts and wanted.policy is None and wanted.severity is None:
        raise UsageError("which alerts? name them as policy/subject, or a policy or a severity")
    unfit = [one for one in named if one.status not in sources]
    if unfit:
        states = " or ".join(map(str, sources))
        raise UsageError(f"{unfit[0].unit_id} is {unfit[0].status}; only one that is {states} can be meant")
    chosen = named or [one for one in _all(ask) if _fits(one, wanted) and one.status in sources]
    if not chosen:
        raise UsageError(f"there is no alert to {verb.partition(' ')[0]}")
    if len(chosen) > _MOST:
        raise UsageError(f"these are {len(chosen):,} alerts; take {_MOST:,} at most, chosen by a filter")
    moves, events = [], []
    for one in chosen:
        after, told = book.tell(replace(change(one), by_whom=ask.who), by=ask.who, reason=ask.reason)
        moves.append(Move(one, after, ask.reason, actor=Actor.OPERATOR))
        events += told
    many = counted(len(chosen), "alert")
    first, _, rest = verb.partition(" ")
    return Together(f"{first} {many}{f' {rest}' if rest else ''}", moves=moves, events=events)


def _all(ask: Ask[Any]) -> list[Alert]:
    if not ask.reader.keeps(machine):
        return []
    sql = f"SELECT unit_id FROM {machine.table} ORDER BY unit_id"
    return ask.reader.get_many(machine, [str(row[0]) for row in ask.reader.read(lambda cursor: cursor.rows(sql))])


def _stood(ask: Ask[Any], at: datetime | None) -> list[Alert]:
    """All alerts, now or at a moment."""
    from penstock.operations.alerts.then import alerts_then

    return _all(ask) if at is None else alerts_then(ask, at)


def _named(ask: Ask[Any], name: str, at: datetime | None = None) -> Alert:
    """The alert of that name, with or without the machine's. Raises UnknownUnit."""
    unit_id = name.removeprefix(f"{machine.name}:")
    policy, _, subject = unit_id.partition("/")
    ids = dict.fromkeys([unit_id, f"{policy}/{subject.replace('%', '%25').replace('/', '%2F')}"])
    found: Iterable[Alert] = ()
    if at is not None:
        found = [one for one in _stood(ask, at) if one.unit_id in ids]
    elif ask.reader.keeps(machine):
        found = ask.reader.get_many(machine, list(ids))
    for one in found:
        return one
    if at is not None:
        with excused(lacking(ask, [machine], at)):
            raise not_there(f"alert {name!r}", at, _EVERY)
    raise UnknownUnit(f"no alert is called {name!r}; 'penstock {_EVERY}' shows those that there are")


def _fits(one: Alert, wanted: AlertFilter) -> bool:
    return wanted.policy in (None, one.policy) and wanted.severity in (None, one.severity)


def _order(one: Alert) -> tuple[int, int, str]:
    states, severities = list(A), ("critical", "warning", "info")
    worst = severities.index(one.severity) if one.severity in severities else len(severities)
    return states.index(one.status), worst, one.unit_id


def _row(kind: Any, one: Alert, **more: Any) -> Any:
    return kind(
        alert=one.unit_id,
        status=str(one.status),
        severity=one.severity,
        since=one.since,
        says=one.says,
        until=one.silenced_until if one.status is A.SILENCED else None,
        by=one.by_whom,
        times=one.times,
        policy=one.policy,
        subject=one.subject,
        unit=one.example,
        changed_at=one.changed_at,
        reason=one.change_reason,
        **more,
    )


def _thresholds(policy: Policy) -> str:
    parts = [
        f"{name} from {f'{value:.0%}' if 0 < value < 1 else f'{value:g}'}"
        for name in ("warning", "critical")
        if (value := getattr(policy, name)) is not None
    ]
    return ", ".join(parts) or policy.severity

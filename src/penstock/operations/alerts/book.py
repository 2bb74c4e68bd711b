"""Firing and resolving alerts, and the one event that tells of each change.

An event `alert.firing`, `alert.acknowledged` or `alert.resolved` is written with the change itself, so that it is told
once, whoever makes the change and however many workers there are. A change that somebody makes without it (by `units
move`, or by SQL) is told by the next look of the watch: `told` says what was told last.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.ledger.schema.columns import readable
from penstock.model.clock import instant_text
from penstock.model.errors import LedgerRefused
from penstock.model.machine import Actor
from penstock.model.outcome import Birth, Event, Move
from penstock.model.unit import Ref, replace, unit_id_of
from penstock.operations.alerts.machine import A, Alert, audible, machine
from penstock.operations.alerts.policy import Found, worse

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger

FIRING, ACKNOWLEDGED, RESOLVED = "alert.firing", "alert.acknowledged", "alert.resolved"
KINDS = (FIRING, ACKNOWLEDGED, RESOLVED)
_KINDS = {A.FIRING: FIRING, A.ACKNOWLEDGED: ACKNOWLEDGED, A.RESOLVED: RESOLVED}
_TRIES = 5
_LONGEST = 2_000


def find(ledger: Ledger, policy: str, subject: str) -> Alert | None:
    """The alert of a policy and a subject; None where it never fired."""
    units = ledger.get_many(machine, [id_of(policy, subject)])
    found: Alert | None = units[0] if units else None
    return found


def id_of(policy: str, subject: str) -> str:
    """The id of the alert of a policy and a subject."""
    return f"{_part(policy)}/{_part(subject)}"


def _part(text: str) -> str:
    return text.replace("%", "%25").replace("/", "%2F")


def fire(ledger: Ledger, policy: str, found: Found, now: datetime, who: str) -> bool:
    """Fire the alert, or make it worse; whether anything changed. Twice is once."""
    for _ in range(_TRIES):
        before = find(ledger, policy, found.subject)
        after = _fired(before, policy, found, now)
        if after is None:
            return False
        told, events = tell(after)
        change: Birth | Move
        if before is None:
            change = Birth(told, told.says, actor=Actor.WORKER, who=who)
        else:
            change = Move(before, told, told.says, actor=Actor.WORKER, who=who)
        if _written(ledger, change, events, who):
            return True
    return False


def _fired(before: Alert | None, policy: str, found: Found, now: datetime) -> Alert | None:
    """The alert as it is when it fires; None where it fires already, and no worse than that."""
    said: dict[str, Any] = {
        "severity": found.severity,
        "says": readable(found.says)[:_LONGEST],
        "facts": dict(found.facts) or None,
        "example": found.example,
    }
    if before is None:
        return Alert(policy=policy, subject=found.subject, since=now, **said)
    if before.status is A.RESOLVED:
        until = before.silenced_until
        quiet = until is not None and until > now
        again = replace(before, since=now, times=before.times + 1, told="", by_whom=None, **said)
        return replace(again, status=A.SILENCED) if quiet else audible(again, now)
    if not worse(found.severity, before.severity):
        return None
    status = A.SILENCED if before.status is A.SILENCED else A.FIRING
    return replace(before, status=status, **said)


def resolve(ledger: Ledger, policy: str, subject: str, reason: str, who: str) -> bool:
    """The alert is over; whether it was not already."""
    for _ in range(_TRIES):
        before = find(ledger, policy, subject)
        if before is None or before.status is A.RESOLVED:
            return False
        told, events = tell(replace(before, status=A.RESOLVED), reason=reason)
        if _written(ledger, Move(before, told, reason, actor=Actor.WORKER, who=who), events, who):
            return True
    return False


def catch_up(ledger: Ledger, now: datetime, who: str) -> int:
    """End the silences that are over, and tell of changes that were made without telling; how many alerts."""
    columns = "status, severity, told, silenced_at, silence_seconds"
    sql = f"SELECT unit_id, {columns} FROM {machine.table} ORDER BY unit_id"
    rows = ledger.read(lambda cursor: cursor.rows(sql))
    wanted = [str(row[0]) for row in rows if row[1] == A.SILENCED or row[3] != f"{row[1]}/{row[2]}"]
    changed = 0
    for before in ledger.get_many(machine, wanted):
        after, reason = before, "told late"
        if before.status is A.SILENCED:
            until = before.silenced_until
            if until is not None and until > now:
                continue
            after, reason = audible(before, now), "its silence is over"
        told, events = tell(after, reason=before.change_reason or reason)
        if told == before:
            continue
        changed += _written(ledger, Move(before, told, reason, actor=Actor.WORKER, who=who), events, who)
    return changed


def _written(ledger: Ledger, change: Birth | Move, events: list[Event], who: str) -> bool:
    """Whether it was written; not where somebody has changed the alert since it was read."""
    try:
        ledger.together([change], who=who, events=events)
    except LedgerRefused:
        return False
    return True


def tell(alert: Alert, *, by: str | None = None, reason: str | None = None) -> tuple[Alert, list[Event]]:
    """The alert as it is once its state was told, and the event that tells it; none where there is nothing to tell."""
    state = f"{alert.status}/{alert.severity}"
    if alert.status is A.SILENCED or alert.told == state:
        return alert, []
    heard = alert.told.partition("/")[0]
    worth = {A.FIRING: True, A.ACKNOWLEDGED: heard == A.FIRING, A.RESOLVED: heard in {A.FIRING, A.ACKNOWLEDGED}}
    told = replace(alert, told=state)
    if not worth[alert.status]:
        return told, []
    kind = _KINDS[alert.status]
    key = f"{kind}:{unit_id_of(alert)}:{alert.version}:{alert.times}:{alert.severity}"
    return told, [Event(key, kind, payload_of(alert, by=by, reason=reason))]


def payload_of(alert: Alert, *, by: str | None = None, reason: str | None = None) -> Mapping[str, Any]:
    """What an event says of an alert."""
    return {
        "alert": str(Ref(machine.name, unit_id_of(alert))),
        "policy": alert.policy,
        "subject": alert.subject,
        "severity": alert.severity,
        "status": str(alert.status),
        "says": alert.says,
        "facts": alert.facts or {},
        "unit": alert.example,
        "since": instant_text(alert.since),
        "times": alert.times,
        "by": by,
        "reason": reason,
    }

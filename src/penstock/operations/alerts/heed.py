"""Events that fire and resolve alerts, as they are committed: a subscriber of the outbox."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.model.clock import instant_text
from penstock.operations.alerts import book
from penstock.operations.alerts.policy import EVENT, Found, Policy, fired_by, policies_of

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.ledger.outbox import EventRow
    from penstock.worker.flow import Io
    from penstock.worker.outbox import Subscriber

NAME = "alerts"
OTHERS = "alerts.others"
OTHER = "critical_event"
"""The policy of critical events that no policy names."""
_FACTS = 20


def subscribers_of(program: Any) -> list[Subscriber]:
    """Who listens to events: one to those that policies name, one to critical events that none does."""
    from penstock.worker.outbox import Subscriber

    policies = policies_of(program)
    named = sorted({kind for one in policies.values() for kind in (*one.events, *one.resolved_by)})
    found = []
    if named:
        found.append(Subscriber(NAME, named, with_io=_Heed(policies)))
    if OTHER in policies:
        told = {*named, *_CONDITIONS, *book.KINDS}
        others = _Others(policies[OTHER])
        found.append(
            Subscriber(
                OTHERS,
                ["*"],
                severities=["critical"],
                with_io=others,
                wants=lambda event: event.event_type not in told,
            )
        )
    return found


#: Critical events whose condition is asked of the ledger anyway.
_CONDITIONS = ("schedule.failed",)


class _Heed:
    """Takes events that policies name."""

    def __init__(self, policies: Mapping[str, Policy]) -> None:
        self._policies = policies

    async def __call__(self, event: EventRow, io: Io) -> None:
        now = io.now()
        for policy in fired_by(self._policies.values(), event.event_type):
            await io.ledger(functools.partial(_fire, policy=policy, event=event, now=now))
        for policy in self._policies.values():
            if event.event_type in policy.resolved_by:
                await io.ledger(functools.partial(_over, policy=policy, event=event))


class _Others:
    """Takes critical events that no policy names."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def __call__(self, event: EventRow, io: Io) -> None:
        now = io.now()
        await io.ledger(functools.partial(_fire, policy=self._policy, event=event, now=now))


def _fire(ledger: Ledger, policy: Policy, event: EventRow, now: datetime) -> None:
    from penstock.operations.alerts.watch import remember

    # What is said with no severity is for others: a run that was priced again and left nothing unpriced, for one.
    subject = policy.subject_of(event)
    if event.severity is None or event.severity == "info" or not policy.wants(subject):
        return
    facts = event.payload if isinstance(event.payload, Mapping) else {"says": event.payload}
    said = str(facts.get("reason") or policy.says)
    where = f"{event.machine}:{event.unit_id}" if event.machine and event.unit_id else None
    unit = str(facts["unit"]) if facts.get("unit") else where
    named = dict(list(facts.items())[:_FACTS]) | {"event": event.event_type, "at": instant_text(event.created_at)}
    severity = "critical" if event.severity == "critical" else policy.severity
    remember(ledger, policy.name, subject, now)
    book.fire(ledger, policy.name, Found(subject, severity, said, named, unit), now, f"event-{event.event_type}")


def _over(ledger: Ledger, policy: Policy, event: EventRow) -> None:
    from penstock.operations.alerts.watch import forget

    subject = policy.subject_of(event)
    found = book.find(ledger, policy.name, subject)
    # An older event that was delivered late resolves nothing that has fired since.
    if found is None or found.since > event.created_at:
        return
    if policy.kind == EVENT:
        forget(ledger, policy.name, subject)
    book.resolve(ledger, policy.name, subject, f"{event.event_type} of {subject}", f"event-{event.event_type}")

"""Delivery of events to subscribers in the process: at least once, with retries and dead letters, in no promised order.

A delivery is a unit like any other: any number of workers share the work, a lease guards each step, and what a crash
interrupts is delivered again. So a subscriber may see an event twice, and knows it by its key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from penstock.ledger.delivery import D, Delivery, gate_of, machine
from penstock.ledger.ledger import Ledger
from penstock.ledger.outbox import EventRow, check_wish, read_event, subscribe, subscribed, unsubscribe
from penstock.model.errors import StepError, Transient, UsageError
from penstock.model.outcome import Act, Decision, Event, Outcome, Wait
from penstock.model.unit import replace
from penstock.worker.failure import traceback_of
from penstock.worker.flow import Flow, Gate, Io

log = structlog.get_logger()
_UNKNOWN_WAIT = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Subscriber:
    """Who wants which events. Raises UsageError when the wish cannot be stored.

    `kinds` are event types, `*` for all of them; `severities`, where any is named, are all that is wanted. `deliver`
    returns when the event is taken. It raises Transient, Throttled, Rejected or Fatal as a connector would; anything
    else counts as Transient. A subscriber that needs the ledger gives `with_io` instead of it. What neither kind nor
    severity tells, `wants` does: an event that it does not want is not delivered, and the ledger says so.
    """

    name: str
    kinds: Collection[str]
    deliver: Callable[[EventRow], Awaitable[None]] | None = None
    severities: Collection[str] = ()
    with_io: Callable[[EventRow, Io], Awaitable[None]] | None = None
    wants: Callable[[EventRow], bool] = lambda event: True  # noqa: ARG005 - one shape

    def __post_init__(self) -> None:
        check_wish(self.name, self.kinds, self.severities)
        if (self.deliver is None) == (self.with_io is None):
            msg = f"subscriber {self.name!r} takes events by deliver or by with_io; give it one of them"
            raise UsageError(msg)

    async def take(self, event: EventRow, io: Io) -> None:
        """Hand the event over."""
        if self.with_io is not None:
            await self.with_io(event, io)
        elif self.deliver is not None:
            await self.deliver(event)


def decide(delivery: Delivery, now: datetime, settings: frozenset[str], seen: None) -> Decision:  # noqa: ARG001 - one shape
    """Deliver what is pending; put off what is for a subscriber of another program."""
    if delivery.status is not D.PENDING:
        return Wait(None, f"the delivery is {delivery.status}")
    if delivery.subscriber not in settings:
        return Act("put_off", f"this program has no subscriber {delivery.subscriber!r}", counts_attempt=False)
    return Act("deliver", f"an event for {delivery.subscriber}")


class Deliveries(Flow[Delivery, frozenset[str], None]):
    """Hands pending events to the subscribers of this program."""

    machine = machine
    decide = staticmethod(decide)
    deadline = timedelta(minutes=1)

    def __init__(self, subscribers: Sequence[Subscriber]) -> None:
        self._subscribers = {s.name: s for s in subscribers}
        if len(self._subscribers) != len(subscribers):
            msg = "two subscribers have the same name; each needs one of its own"
            raise UsageError(msg)
        super().__init__(frozenset(self._subscribers))

    def gate(self, unit: Delivery) -> Gate:
        return Gate(gate_of(unit.subscriber))

    async def act(self, what: str, unit: Delivery, seen: None, io: Io) -> Outcome[Delivery]:  # noqa: ARG002
        if what == "put_off":
            return _put_off(unit, io.now())
        event = await io.ledger(lambda ledger: read_event(ledger.database, unit.tenant_id, unit.event_key))
        if event is None:
            return Outcome(unit, replace(unit, status=D.DEAD, due_at=None), "the event is no longer in the log")
        io.check()  # a subscriber has a client of its own
        subscriber = self._subscribers[unit.subscriber]
        try:
            if not subscriber.wants(event):
                return Outcome(unit, replace(unit, status=D.UNWANTED), "not wanted")
            await subscriber.take(event, io)
        except StepError:
            raise
        except Exception as error:
            delivery = f"delivery:{unit.unit_id}"
            log.error("subscriber.broken", unit=delivery, error=repr(error), exception=traceback_of(error))  # noqa: TRY400 - as a text, redacted
            raise Transient(f"{type(error).__name__}: {error}") from error
        return Outcome(unit, replace(unit, status=D.DELIVERED), "taken")


def _put_off(unit: Delivery, now: datetime) -> Outcome[Delivery]:
    reason = f"no worker that took it up has the subscriber {unit.subscriber!r}"
    alert = Event(
        f"subscriber.unknown:{unit.subscriber}:{now:%Y-%m-%d}",
        "subscriber.unknown",
        {"subscriber": unit.subscriber, "reason": reason},
        "warning",
    )
    return Outcome(unit, replace(unit, due_at=now + _UNKNOWN_WAIT), reason, events=[alert])


def keep_subscriptions(ledger: Ledger, subscribers: Sequence[Subscriber], ours: str | None = None) -> int:
    """Make the ledger's subscriptions what these subscribers want. Returns how many changed.

    Others are left alone, except those whose names begin with `ours`: they end. What is pending for them stays. Any
    number of processes may do this at once.
    """
    names = {s.name for s in subscribers}
    gone = [one for one in subscribed(ledger.database) if ours and one.startswith(ours) and one not in names]
    changed = sum(subscribe(ledger.database, s.name, s.kinds, s.severities) for s in subscribers)
    return changed + sum(unsubscribe(ledger.database, one) for one in gone)

"""A change of an alert as sinks tell it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import Struct

from penstock.model.inert import inert
from penstock.settings.redaction import redact

if TYPE_CHECKING:
    from penstock.ledger.outbox import EventRow

Change = Literal["firing", "acknowledged", "resolved"]
_LONGEST = 1_000
_FACT = 200


class Notice(Struct, frozen=True, kw_only=True):
    """What happened to which alert. `id` names the change for ever, `thread` all changes of one alert."""

    id: str
    thread: str
    at: datetime
    change: Change
    source: str
    alert: str
    policy: str
    subject: str
    severity: str
    says: str
    since: str
    by: str | None = None
    reason: str | None = None
    unit: str | None = None
    runbook: str | None = None
    facts: Mapping[str, Any] = {}

    @property
    def title(self) -> str:
        """One line."""
        marks = {"firing": self.severity.upper(), "acknowledged": "acknowledged", "resolved": "resolved"}
        return f"[{self.source}] {marks[self.change]}: {self.policy} {self.subject}"

    @property
    def lines(self) -> list[str]:
        """What to read, line by line."""
        by = f"{self.change} by {self.by}" if self.by else None
        told = (
            f"{by}: {self.reason}" if by and self.reason else by or (self.reason if self.change != "firing" else None)
        )
        found = [self.says, told, f"since {self.since}", f"unit {self.unit}" if self.unit else None]
        found += [f"penstock alerts show {self.alert.partition(':')[2]}", self.runbook]
        return [line for line in found if line]


class Sink(Protocol):
    """Where notices go. `tell` returns when one is taken; it raises as a connector does."""

    async def tell(self, notice: Notice) -> None: ...


def notice_of(event: EventRow, *, source: str, runbook: str | None) -> Notice:
    """The notice that an event of an alert makes: bounded, inert and without secrets."""
    said = event.payload

    def text(name: str, longest: int = _LONGEST) -> str:
        return inert(redact(str(said.get(name) or "")))[:longest]

    change: Any = event.event_type.rpartition(".")[2]
    facts = said.get("facts") or {}
    return Notice(
        id=hashlib.sha256(f"{event.tenant_id}\n{event.event_key}".encode()).hexdigest()[:32],
        thread=hashlib.sha256(f"{source}\n{said['alert']}".encode()).hexdigest()[:32],
        at=event.created_at,
        change=change,
        source=source,
        alert=text("alert"),
        policy=text("policy"),
        subject=text("subject"),
        severity=text("severity"),
        says=text("says"),
        since=text("since"),
        by=text("by") or None,
        reason=text("reason") or None,
        unit=text("unit") or None,
        runbook=None if runbook is None else f"{runbook}#{text('policy')}",
        facts={inert(str(name))[:_FACT]: inert(redact(str(value)))[:_FACT] for name, value in facts.items()},
    )

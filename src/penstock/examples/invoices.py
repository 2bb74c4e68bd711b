"""A whole lifecycle in one file: send invoices to an accounting API, none twice as far as looking can tell.

Claiming an invoice moves it to SENDING before the call leaves. If the worker dies or the answer is lost, the next
step looks first: an invoice that arrived is recorded, not sent again. What the API refuses becomes a dead letter.
"""

from __future__ import annotations

import os
from datetime import datetime

from penstock.app.app import App
from penstock.connectors.http.client import Http
from penstock.model.clock import SystemClock
from penstock.model.machine import Actor, Edge, Machine, OnError
from penstock.model.outcome import Act, Decision, Look, Outcome, Wait
from penstock.model.retry import RetryPolicy
from penstock.model.state import State, done, fault, rest, work
from penstock.model.unit import Unit, replace
from penstock.worker.flow import Flow, Gate, Io


class S(State):
    QUEUED = rest("QUEUED", "waits to be sent")
    SENDING = work("SENDING", "claimed: the call may have left")
    SENT = done("SENT", "the API accepted it")
    FAILED = fault("FAILED", "a dead letter: the API refused it")


class Invoice(Unit):
    key = ("tenant", "number")
    status: S = S.QUEUED
    tenant: str
    number: str
    amount_minor: int
    remote_id: str | None = None


machine = Machine(
    "invoice",
    Invoice,
    births={S.QUEUED: {Actor.API, Actor.OPERATOR}},
    edges=[
        Edge(S.QUEUED, S.SENDING, "claim", {Actor.WORKER}, on_claim=True),
        Edge(S.SENDING, S.SENT, "accepted", {Actor.WORKER}),
        Edge(S.SENDING, S.QUEUED, "retry", {Actor.WORKER}),
        Edge(S.SENDING, S.FAILED, "give_up", {Actor.WORKER}),
        Edge(S.FAILED, S.QUEUED, "retry_by_hand", {Actor.OPERATOR}),
    ],
    terminal={S.SENT},
    on_error=OnError(retry=S.QUEUED, dead=S.FAILED, policy=RetryPolicy(max_retries=3)),
    checks={"sent_has_id": "status <> 'SENT' OR remote_id IS NOT NULL"},
)


def decide(invoice: Invoice, now: datetime, settings: None, seen: str | None) -> Decision:  # noqa: ARG001 - one shape
    if invoice.status is not S.SENDING:
        return Wait(None, "nothing to do")
    if invoice.attempts + invoice.doubts > 0 and seen is None:
        return Look("an earlier call may have arrived")
    if seen:
        return Act("record", f"already there as {seen}", counts_attempt=False)
    return Act("send", "not there yet")


class Invoices(Flow[Invoice, None, str]):
    machine = machine
    decide = staticmethod(decide)

    def __init__(self, http: Http) -> None:
        super().__init__(None)
        self._http = http

    def gate(self, unit: Invoice) -> Gate:
        return Gate(f"accounting/{unit.tenant}")

    async def look(self, unit: Invoice, io: Io) -> str:  # noqa: ARG002 - the API is all it looks at
        found = await self._http.send("GET", f"/invoices/{unit.tenant}/{unit.number}", missing_ok=True)
        return str(found.json()["id"]) if found is not None else ""

    async def act(self, what: str, unit: Invoice, seen: str | None, io: Io) -> Outcome[Invoice]:  # noqa: ARG002
        if what == "record":
            return Outcome(unit, replace(unit, status=S.SENT, remote_id=seen), "accepted earlier")
        body = {"tenant": unit.tenant, "number": unit.number, "amount_minor": unit.amount_minor}
        answer = await self._http.send("POST", "/invoices", json=body)
        assert answer is not None  # noqa: S101 - only a look may find nothing
        return Outcome(unit, replace(unit, status=S.SENT, remote_id=answer.json()["id"]), "accepted")

    async def stop(self) -> None:
        await self._http.close()


def flows() -> list[Invoices]:
    return [Invoices(Http(os.environ.get("INVOICE_API", "http://127.0.0.1:8099"), SystemClock()))]


app = App(machines=[machine], flows=flows)

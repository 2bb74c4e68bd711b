"""A whole lifecycle in one file: send invoices to an accounting API, none twice as far as looking can tell.

Claiming an invoice moves it to SENDING before the call leaves. If the worker dies or the answer is lost, the next
step looks first: an invoice that arrived is recorded, not sent again. What the API refuses becomes a dead letter.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from penstock import (
    NOW,
    Act,
    Actor,
    Ask,
    Decider,
    Decision,
    Edge,
    Flow,
    Gate,
    Http,
    Io,
    Lifecycle,
    Look,
    Machine,
    Moves,
    OnError,
    Outcome,
    Page,
    Parameters,
    Plan,
    Ports,
    Ref,
    RetryPolicy,
    Row,
    Settings,
    State,
    Then,
    Unit,
    Url,
    UsageError,
    Wait,
    argument,
    column,
    done,
    fault,
    operation,
    option,
    reading,
    replace,
    rest,
    says,
    work,
)


class InvoiceSettings(Settings):
    api_url: Annotated[Url, says("Where the accounting API is.")] = Url("http://127.0.0.1:8099")


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


def retried(invoice: Invoice, now: datetime) -> Invoice:
    """As new, and due."""
    return replace(invoice, attempts=0, due_at=now)


machine = Machine(
    "invoice",
    Invoice,
    births={S.QUEUED: {Actor.API, Actor.OPERATOR}},
    edges=[
        Edge(S.QUEUED, S.SENDING, "claimed", {Actor.WORKER}, on_claim=True),
        Edge(S.SENDING, S.SENT, "accepted", {Actor.WORKER}),
        Edge(S.SENDING, S.QUEUED, "put_back", {Actor.WORKER}),
        Edge(S.SENDING, S.FAILED, "gave_up", {Actor.WORKER}),
        Edge(S.FAILED, S.QUEUED, "retry", {Actor.OPERATOR}, by_hand=retried),
    ],
    terminal={S.SENT},
    on_error=OnError(retry=S.QUEUED, dead=S.FAILED, policy=RetryPolicy(max_retries=3)),
    checks={"sent_has_id": "status <> 'SENT' OR remote_id IS NOT NULL"},
    tracked=("amount_minor",),
)


def decide(invoice: Invoice, now: datetime, settings: InvoiceSettings, seen: str | None) -> Decision:  # noqa: ARG001 - one shape
    if invoice.status is not S.SENDING:
        return Wait(None, "nothing to do")
    if invoice.attempts + invoice.doubts > 0 and seen is None:
        return Look("an earlier call may have arrived")
    if seen:
        return Act("record", f"already there as {seen}", counts_attempt=False)
    return Act("send", "not there yet")


class Invoices(Flow[Invoice, InvoiceSettings, str]):
    machine = machine
    decide = staticmethod(decide)

    def __init__(self, settings: InvoiceSettings, http: Http) -> None:
        super().__init__(settings)
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


def build(settings: InvoiceSettings, ports: Ports) -> list[Invoices]:
    return [Invoices(settings, Http(settings.api_url, ports.clock))]


class Share(Row, frozen=True):
    tenant: Annotated[str, column("Whose invoices they are.", show="reference")]
    status: Annotated[S, column("How far they are.", show="state")]
    invoices: Annotated[int, column("How many there are.")]
    amount_minor: Annotated[int, column("Their sum, in cents.", heading="cents")]


@reading("tenants", "How many invoices each tenant has in which state, and their sum.")
def tenants(ask: Ask[InvoiceSettings], wanted: Then) -> Page[Share]:
    sql = "SELECT tenant, status, count(*), sum(amount_minor) FROM invoice GROUP BY tenant, status ORDER BY 1, 2"
    rows = ask.then(wanted.at).reader.read(lambda cursor: cursor.rows(sql))
    return Page(rows=[Share(tenant=t, status=S(s), invoices=int(n), amount_minor=int(a)) for t, s, n, a in rows])


class Correction(Parameters, frozen=True):
    invoice: Annotated[Ref, argument("The invoice.", example="invoice:acme/17")]
    amount_minor: Annotated[int, option("What it should be, in cents.", ge=0)]


@operation("correct", "Give a refused invoice another amount, and send it again.")
def correct(ask: Ask[InvoiceSettings], wanted: Correction) -> Plan:
    invoice = ask.reader.get(wanted.invoice)
    if invoice.status is not S.FAILED:
        raise UsageError(f"{wanted.invoice} is {invoice.status}; only a failed invoice is corrected")
    moves = Moves(machine)
    moves.add(invoice, S.QUEUED, amount_minor=wanted.amount_minor, attempts=0, due_at=NOW)
    return moves.plan(f"send {wanted.invoice} again with {wanted.amount_minor:,} cents")


lifecycle = Lifecycle(
    "invoices",
    "Invoices, sent to an accounting API.",
    settings=InvoiceSettings,
    machines=[machine],
    build=build,
    decides=lambda: {machine.name: Decider(decide)},
    readings=[tenants],
    operations=[correct],
)

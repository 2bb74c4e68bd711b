"""The part of the invoices: sixty of them, sent to an API that throttles, breaks and loses answers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from penstock.examples import invoices
from penstock.examples.demonstration.part import Check, Table, Told, World
from penstock.examples.invoice_server import InvoiceServer
from penstock.model.clock import Clock, Rng, instant
from penstock.model.machine import Actor
from penstock.simulators.server import in_thread

TENANTS, EACH, REFUSED = ("acme", "globex", "initech"), 20, 13


class InvoicesPart:
    """Sends sixty invoices of three tenants on the first day."""

    leaves = ()

    def __init__(self, rng: Rng) -> None:
        self._server = InvoiceServer(rng)

    @contextlib.contextmanager
    def serving(self, folder: Path, start: datetime, clock: Clock) -> Iterator[str]:  # noqa: ARG002 - one shape
        with in_thread(self._server) as address:
            yield f'[invoices]\napi_url = "{address}"\n'

    def now_by(self, clock: Clock) -> None:
        """It knows no time."""

    async def happen(self, world: World) -> None:
        now = world.ledger.clock.now()
        born = [
            invoices.Invoice(
                tenant=tenant,
                number=f"{number:03}",
                amount_minor=-1 if number == REFUSED else 1_000 + number,
                due_at=now,
                gate_id=f"accounting/{tenant}",
            )
            for tenant in TENANTS
            for number in range(EACH)
        ]
        world.ledger.birth(born, actor=Actor.API, who="demo")

    def told(self, world: World, since: datetime, until: datetime) -> Iterator[Told]:
        ended = world.rows(
            "SELECT to_status, count(*), max(at) FROM transition_log WHERE machine = 'invoice'"
            " AND to_status IN ('SENT', 'FAILED') AND at >= {since} AND at < {until} GROUP BY to_status",
            since=since,
            until=until,
        )
        words = {"SENT": "invoices sent", "FAILED": "invoices refused: they are dead letters now"}
        for status, count, at in ended:
            yield Told(instant(at), f"{count} {words[status]}")

    def checks(self, world: World) -> Iterator[Check]:
        ((sent,),) = world.rows("SELECT count(*) FROM invoice WHERE status = 'SENT'")
        ((open_,),) = world.rows("SELECT count(*) FROM invoice WHERE status NOT IN ('SENT', 'FAILED')")
        once = sent > 0 and open_ == self._server.duplicates == 0
        seen = f"{sent} sent by {self._server.calls} calls, none of them twice" if once else None
        yield Check("every invoice arrived once or was refused", seen)

    def tables(self, world: World) -> Iterator[Table]:  # noqa: ARG002 - one shape
        yield from ()

    def next(self, world: World) -> Iterator[str]:  # noqa: ARG002 - one shape
        yield f"penstock history invoice:{TENANTS[0]}/{REFUSED:03}"

"""The lease is looked at right before a call leaves, wherever in a step it is made."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from penstock.connectors.http.client import Http
from penstock.connectors.http.in_process import InProcess
from penstock.connectors.tokens import Tokens
from penstock.ledger import delivery
from penstock.ledger.commit import insert_events
from penstock.ledger.ledger import Ledger
from penstock.ledger.outbox import EventRow
from penstock.model import tenure
from penstock.model.clock import Rng, VirtualClock
from penstock.model.errors import InDoubt
from penstock.model.unit import Ref
from penstock.worker.executor import InlineExecutor
from penstock.worker.flow import Io
from penstock.worker.outbox import Deliveries, Subscriber, keep_subscriptions
from tests.support import sockets
from tests.support.machines import INVOICE, InvoiceState, invoice
from tests.support.probe import Probe, sent, wired, work_on

RARELY = 10_000
"""Seconds: the worker does not look at its lease by itself."""


async def once(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


class Sends(Probe):
    """Waits until the lease is over, because the ledger is away, and then tries to call in some way."""

    def __init__(self, world: Any, wire: Any, call: Any) -> None:
        super().__init__(self._wait_and_call)
        self._world, self._wire, self._call = world, wire, call
        self.tried = self.made = 0

    async def _wait_and_call(self, unit: Any, io: Io) -> Any:
        if not self.tried:
            self._wire.away = True
            await asyncio.sleep(31)
        self.tried += 1
        try:
            await self._call(io)
        finally:
            self._wire.away = False
        self.made += 1
        return sent(unit)


async def by_another_client(io: Io) -> None:
    io.check()


async def by_http(io: Io) -> None:
    await Http("http://there", VirtualClock(), transport=InProcess(once)).send("POST", "/")


async def in_a_task(io: Io) -> None:
    await asyncio.gather(asyncio.sleep(1), by_http(io))


async def in_spite_of_its_end(io: Io) -> None:
    try:
        await by_http(io)
    except asyncio.CancelledError:
        await by_http(io)


@pytest.mark.parametrize("call", [by_another_client, by_http, in_a_task, in_spite_of_its_end])
def test_past_the_lease_a_call_does_not_leave_and_the_step_is_taken_again(world, call):
    (ref,) = world.born(invoice("17", gate_id="none"))
    ledger, wire = wired(world, [INVOICE])
    flow = Sends(world, wire, call)
    work_on(ledger, world, [flow], 120, watch_seconds=RARELY)
    assert (flow.tried, flow.made) == (2, 1), "held back past the lease, made when it was renewed"
    assert world.unit(ref).status == InvoiceState.SENT


def test_while_the_lease_holds_nothing_is_held_back(world):
    (ref,) = world.born(invoice("17", gate_id="none"))

    async def act(unit: Any, io: Io) -> Any:
        await asyncio.sleep(100)
        await in_a_task(io)
        return sent(unit)

    work_on(world.ledger, world, [Probe(act)], 120)
    assert world.unit(ref).status == InvoiceState.SENT
    tenure.check()  # outside of steps there is nothing to hold back


@pytest.mark.parametrize("body", [b"", b"a body"], ids=["bare", "with a body"])
@pytest.mark.parametrize("looks", [1, 2])
def test_over_sockets_the_last_look_is_where_the_bytes_leave(body, looks):
    """The lease ends at the n-th look: with a connection in hand, or when a task is about to write the body."""
    heard, looked = [], 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append((await reader.read(4)).decode())
        writer.write(sockets.OK)

    def check() -> None:
        nonlocal looked
        looked += 1
        if looked >= looks:
            raise asyncio.CancelledError

    async def main() -> None:
        async with sockets.server(serve) as (address, _), sockets.http(address) as http:
            tenure.HOLDER.set(check)
            # What waits for the answer while another task writes is ended by the worker; here the connection ends it.
            with contextlib.suppress(asyncio.CancelledError, InDoubt):
                await http.send("POST", "/", content=body)

    asyncio.run(main())
    # Without a body nothing can happen between the first look and the bytes.
    assert heard == ([""] if body or looks == 1 else ["POST"])
    assert looked == (looks if body else 1)


def test_a_login_that_serves_other_steps_too_is_not_held_back_with_the_first():
    def refuse() -> None:
        raise asyncio.CancelledError

    async def login() -> tuple[str, float]:
        tenure.check()
        return "a-token-for-the-test", 60.0

    async def main() -> str:
        tenure.HOLDER.set(refuse)
        return await Tokens(login, VirtualClock()).token()

    assert asyncio.run(main()) == "a-token-for-the-test"


def test_a_delivery_is_not_made_past_the_lease(ledger_url):
    taken: list[str] = []

    async def take(event: EventRow) -> None:
        taken.append(event.event_key)

    def refuse() -> None:
        raise asyncio.CancelledError

    clock, subscribers = VirtualClock(), [Subscriber("audit", ["*"], take)]
    with Ledger.open(ledger_url, [delivery.machine], clock=clock, create=True) as ledger:
        keep_subscriptions(ledger, subscribers)
        rows = [["default", "1", "order.paid", "info", "{}", None, None]]
        ledger.database.write(lambda c: insert_events(ledger.database, c, rows))
        unit: Any = ledger.get(Ref("delivery", "audit/default/1"))
        io = Io(ledger, InlineExecutor(), clock.now, Rng(1), None)  # type: ignore[arg-type]

        async def main(*, held: bool) -> None:
            tenure.HOLDER.set(None if held else refuse)
            await Deliveries(subscribers).act("deliver", unit, None, io)

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(main(held=False))
        assert taken == []
        asyncio.run(main(held=True))
        assert taken == ["1"]

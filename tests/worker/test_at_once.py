"""A flow that takes few units at once leaves the others to other workers, and takes the next when one is done."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from penstock.model.outcome import Act, Outcome
from penstock.model.unit import replace
from penstock.worker.executor import InlineExecutor
from penstock.worker.flow import Flow, Io
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.machines import INVOICE, InvoiceState, invoice

PATIENT = 60.0


class Slow(Flow[Any, None, None]):
    """Holds every unit until it is let go."""

    machine = INVOICE
    at_once = 2

    def __init__(self) -> None:
        super().__init__(None)
        self.waiting: list[asyncio.Event] = []

    @staticmethod
    def decide(unit: Any, now: Any, settings: Any, seen: Any) -> Any:
        return Act("send", "due")

    async def act(self, what: str, unit: Any, seen: Any, io: Io) -> Any:
        mine = asyncio.Event()
        self.waiting.append(mine)
        await mine.wait()
        after = replace(unit, status=InvoiceState.SENT, remote_id="r", due_at=None)
        return Outcome(unit, after, "sent")


async def _until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110 - the ledger tells nobody
        await asyncio.sleep(0.005)


def _more(waiting: list[asyncio.Event], count: int) -> bool:
    return len(waiting) >= count


def test_a_flow_holds_no_more_than_it_takes_at_once(world):
    world.born(*[invoice(str(n)) for n in range(5)])
    flow = Slow()

    def claimed() -> int:
        return int(world.one("SELECT count(*) FROM invoice WHERE claimed_by IS NOT NULL"))

    async def main() -> None:
        worker = Worker(world.ledger, [flow], WorkerSettings(place_seconds=None), executor=InlineExecutor())
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(PATIENT):
            for done in range(5):
                await _until(functools.partial(_more, flow.waiting, min(done + 2, 5)))
                for _ in range(5):
                    await asyncio.sleep(0.005)
                    assert claimed() == min(2, 5 - done)
                flow.waiting[done].set()
            await _until(lambda: not claimed())
        worker.stop()
        await running

    asyncio.run(main())
    assert world.one("SELECT count(*) FROM invoice WHERE status = 'SENT'") == 5

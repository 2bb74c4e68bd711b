"""Waiting for a unit: its machine is worked on in this process until the unit has come far enough."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.model.unit import GuardedUnit, Ref
from penstock.worker.worker import Worker, WorkerSettings

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.worker.flow import AnyFlow

_LOOK_SECONDS = 0.2
# A command serves one machine and goes away again: what it does not know is not unknown.
ALONE = WorkerSettings(unknown_seconds=math.inf)


def follow(
    ledger: Ledger,
    flows: Sequence[AnyFlow],
    ref: Ref,
    until: Callable[[Any], bool],
    *,
    worked: str | None = None,
    config_version: str | None = None,
) -> GuardedUnit:
    """Work on the unit's machine, or that of another name, until that is true of the unit, or it is parked.

    Returns the unit as it is then. `until` is asked several times a second. Of the flows that of the machine is run,
    and all are stopped. Other workers may help, and go on after Ctrl-C.
    """
    return asyncio.run(_follow(ledger, flows, ref, until, worked=worked or ref.machine, config_version=config_version))


async def _follow(
    ledger: Ledger,
    flows: Sequence[AnyFlow],
    ref: Ref,
    until: Callable[[Any], bool],
    *,
    worked: str,
    config_version: str | None,
) -> GuardedUnit:
    worker = Worker(ledger, [f for f in flows if f.machine.name == worked], ALONE, config_version=config_version)
    working = asyncio.create_task(worker.run())
    try:
        while True:
            unit, enough = await asyncio.to_thread(_look, ledger, ref, until)  # noqa: TID251 - beside the worker, which has its own threads
            if enough or working.done():
                return unit
            await asyncio.wait([working], timeout=_LOOK_SECONDS)
    finally:
        worker.stop()
        await working
        for flow in flows:
            if flow.machine.name != worked:
                await flow.stop()


def _look(ledger: Ledger, ref: Ref, until: Callable[[Any], bool]) -> tuple[GuardedUnit, bool]:
    unit = ledger.get(ref)
    return unit, until(unit) or getattr(unit, "parked_at", None) is not None

"""Virtual time: an event loop whose clock moves only when nothing else can happen.

Real code runs unchanged: sleeps and timeouts end at once, in their order, on a `VirtualClock`. Blocking work must go
through an `InlineExecutor`, so that no time passes during it. Where the program speaks to somebody over a real socket,
`busy` says that an answer may be under way: then virtual time goes no faster than real time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock.model.clock import VirtualClock
from penstock.model.errors import PenstockError

T = TypeVar("T")
_PATIENCE = 60.0


class SimulationStalled(PenstockError):
    """Nothing is scheduled and nothing can happen any more; the simulated program waits for ever."""


class _Selector(selectors.DefaultSelector):
    def __init__(self, clock: VirtualClock, busy: Callable[[], bool]) -> None:
        super().__init__()
        self._clock = clock
        self._busy = busy

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout != 0:
            if self._busy():
                return self._patiently(timeout)
            if timeout is None:
                msg = "the simulation waits for something that can never happen"
                raise SimulationStalled(msg)
            self._clock.advance(timeout)
        return ready

    def _patiently(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for an answer in real time. A pause that a step makes is over after as long in virtual time."""
        ready = super().select(_PATIENCE if timeout is None else min(timeout, _PATIENCE))
        if not ready:
            if timeout is None or timeout >= _PATIENCE:
                msg = f"the simulation waits for an answer that has not come for {_PATIENCE:g} s"
                raise SimulationStalled(msg)
            self._clock.advance(timeout)
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on virtual time."""

    def __init__(self, clock: VirtualClock, busy: Callable[[], bool] = lambda: False) -> None:
        super().__init__(_Selector(clock, busy))
        self._virtual = clock
        # asyncio calls a timer due when it is less than this away. The default of a nanosecond is lost in
        # float rounding after 194 days, and the loop would spin for ever.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._virtual.elapsed()


def simulate(
    clock: VirtualClock, main: Callable[[], Coroutine[Any, Any, T]], *, busy: Callable[[], bool] = lambda: False
) -> T:
    """Run `main()` to its end on virtual time, which goes no faster than real time while `busy()`."""
    loop = SimulatedLoop(clock, busy)
    try:
        return loop.run_until_complete(main())
    finally:
        try:
            pending = asyncio.all_tasks(loop)
            for task in pending:
                task.cancel()
            if pending:
                loop.run_until_complete(asyncio.wait(pending))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

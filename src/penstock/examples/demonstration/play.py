"""Runs the demonstration: the other sides on sockets, a real worker on a real ledger, and a clock that leaps.

Time leaps from one due moment to the next, and goes no faster than real time while a step is under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from penstock.app.discover import load
from penstock.app.program import Program
from penstock.examples.demonstration.harvest import HarvestPart
from penstock.examples.demonstration.invoices import InvoicesPart
from penstock.examples.demonstration.part import Check, Part, Table, World
from penstock.examples.demonstration.partitions import PartitionsPart
from penstock.examples.demonstration.queries import QueriesPart
from penstock.examples.demonstration.reports import ReportsPart
from penstock.examples.demonstration.rules import RulesPart
from penstock.ledger.ledger import Ledger
from penstock.model.clock import Clock, Rng, SystemClock, VirtualClock
from penstock.model.errors import PenstockError
from penstock.model.simulation import simulate
from penstock.settings.file import FILE
from penstock.worker.executor import InlineExecutor
from penstock.worker.outbox import keep_subscriptions
from penstock.worker.schedule import keep_schedules
from penstock.worker.worker import Worker, WorkerSettings

MARK = "# Written by 'penstock demo'."
OWN = ("penstock.examples.invoices:lifecycle", "penstock.examples.demonstration.sample:lifecycle")
"""What it runs beside the lifecycles that Penstock ships."""
DAYS = 62
"""Sixty, and two more: the last refresh of the first day's datasets falls within them in every time zone."""

_DAY = timedelta(days=1)
_ALONE = WorkerSettings(
    lease_ms=2 * DAYS * 86_400_000,
    renew_seconds=DAYS * 86_400.0,
    watch_seconds=86_400.0,
    idle_seconds=None,
    unknown_seconds=1e9,
    place_seconds=None,
)


class NotShown(PenstockError):
    """The demonstration came to its end without showing what it is for."""


class DeskClock:
    """The time of the days while they pass, and then the machine's; how long something takes is real all along."""

    def __init__(self, days: Clock) -> None:
        self._days = days
        self._machine = SystemClock()

    def hand_over(self, clock: Clock) -> None:
        """From now on it is this clock's time."""
        self._days = clock

    def now(self) -> datetime:
        return self._days.now()

    def elapsed(self) -> float:
        return self._machine.elapsed()

    def uptime(self) -> int:
        return self._days.uptime()

    def boot_id(self) -> str:
        return self._days.boot_id()


_WATCH = """[alerts]
log = false  # what fires is told among the other things
# In place of every minute and every six hours: days pass in seconds.
[schedules.watch-alerts]
job = "watch-alerts"
every = "6h"
[schedules.watch-doctor]
job = "watch-doctor"
every = "30d"
# It looks a day ahead by a forecast of every flow.
[alerts.policies.quota]
every = "1d"
"""


@dataclass
class Demonstration:
    """One run in a folder. `say` is given each line as it happens."""

    folder: Path
    say: Callable[[str], None]
    end: datetime = field(default_factory=lambda: SystemClock().now())
    days: int = DAYS

    def __post_init__(self) -> None:
        midnight = self.end.replace(hour=0, minute=0, second=0, microsecond=0)
        self.start = midnight - self.days * _DAY
        self.clock = VirtualClock(self.start)
        self.desk_clock = DeskClock(self.clock)
        self.parts: list[Part] = [
            InvoicesPart(Rng()),
            ReportsPart(self.clock),
            PartitionsPart(self.clock),
            HarvestPart(self.clock),
            RulesPart(self.clock),
            QueriesPart(self.clock),
        ]
        self.interrupted = False
        self._stop: Callable[[], None] = lambda: None

    @property
    def file(self) -> Path:
        """The configuration that is left behind."""
        return self.folder / FILE

    @property
    def leaves(self) -> list[str]:
        """What it writes into the folder, by name; without a ledger."""
        return [FILE, "raw", "secrets", *(name for part in self.parts for name in part.leaves)]

    @contextlib.contextmanager
    def serving(self, written: str, url: str | None = None) -> Iterator[Program]:
        """Serve every other side and write the configuration.

        `written` is the ledger's address as the file has it; `url`, where it is given, is the one that is used.
        """
        with contextlib.ExitStack() as stack:
            (self.folder / "secrets").mkdir(exist_ok=True)
            shares = [stack.enter_context(part.serving(self.folder, self.start, self.clock)) for part in self.parts]
            head = (
                f"{MARK} Its addresses are of servers that live as long as it runs.\nlifecycles = {json.dumps(OWN)}\n"
            )
            # Sixty days pass in seconds: a job of every minute would be most of what happens.
            flow = '[schedules.roll-up-flow]\njob = "roll-up-flow"\nevery = "12h"\n'
            self.file.write_text("\n".join([head, f'[ledger]\nurl = "{written}"\n', flow, _WATCH, *shares]))
            yield load(self.file, {"ledger.url": url}, environment={}, clock=self.clock)

    def go_on(self, clock: Clock) -> None:
        """The sixty days are over: from now on the other sides live by this clock."""
        self.desk_clock.hand_over(clock)
        for part in self.parts:
            part.now_by(clock)

    def run(self, ledger: Ledger, program: Program) -> World:
        """Let the days pass. With `interrupted` set afterwards they have not all passed, and nothing is left undone."""
        worker: Worker | None = None

        async def main() -> World:
            nonlocal worker
            version = program.configuration.version
            worker = Worker(ledger, program.flows(), _ALONE, executor=InlineExecutor(), config_version=version)
            world = World(ledger, program, self.start)
            keep_subscriptions(ledger, program.subscribers())
            keep_schedules(ledger, program.schedules(), who="demo")
            await self._live(world, worker)
            return world

        return simulate(self.clock, main, busy=lambda: worker is not None and worker.busy)

    async def _live(self, world: World, worker: Worker) -> None:
        working = asyncio.create_task(worker.run())
        outside = [asyncio.create_task(part.happen(world)) for part in self.parts]
        days = asyncio.create_task(self._pass(world))
        self._stop = lambda: _cancel(days)
        with _on_signals(self._interrupt):
            try:
                await asyncio.wait([days, working], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (days, *outside):
                    task.cancel()
                worker.stop()
                await working
                await asyncio.gather(days, return_exceptions=True)
                happened = await asyncio.gather(*outside, return_exceptions=True)
        for error in (found for found in (*happened, *_error_of(days)) if isinstance(found, Exception)):
            raise error

    def _interrupt(self) -> None:
        self.interrupted = True
        self._stop()

    async def _pass(self, world: World) -> None:
        """Day after day, tell what has happened: asked when the day is over, so that nothing more can happen in it."""
        moments = [*(self.start + n * _DAY for n in range(self.days + 1)), self.end]
        for since, until in itertools.pairwise(moments):
            await world.until(until)
            told = [told for part in self.parts for told in part.told(world, since, until)]
            for one in sorted(told, key=lambda found: found.at):
                self.say(f"{one.at:%Y-%m-%d %H:%M}  {one.text}")

    def checks(self, world: World) -> list[Check]:
        """Everything that the demonstration is to show."""
        return [check for part in self.parts for check in part.checks(world)]

    def tables(self, world: World) -> list[Table]:
        """The summary, as the ledger has it."""
        return [table for part in self.parts for table in part.tables(world)]

    def next(self, world: World) -> list[str]:
        """What to type next, in the folder."""
        return ["penstock status", *(line for part in self.parts for line in part.next(world)), "penstock doctor"]


def require(checks: Sequence[Check]) -> None:
    """Raises NotShown with each that was not seen, one on a line."""
    missing = [check.what for check in checks if check.seen is None]
    if missing:
        raise NotShown("\n".join(f"the demonstration did not show: {what}" for what in missing))


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def _error_of(task: asyncio.Task[None]) -> list[BaseException | None]:
    return [] if task.cancelled() else [task.exception()]


@contextlib.contextmanager
def _on_signals(handler: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)

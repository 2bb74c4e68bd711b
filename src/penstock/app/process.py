"""A process that works: it opens the ledger, keeps the schedules, runs a worker, and reads its configuration again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import re
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog

from penstock.app.program import Program
from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import open_database, table_names
from penstock.ledger.store.presence import Presence
from penstock.model.clock import SystemClock
from penstock.model.errors import LedgerUnavailable, UsageError
from penstock.observe.logs import configure_logs
from penstock.operations.alerts.sinks import SINKS
from penstock.settings.kernel import KernelSettings
from penstock.worker.executor import ThreadExecutor, unless
from penstock.worker.flow import AnyFlow
from penstock.worker.outbox import keep_subscriptions
from penstock.worker.patience import announce
from penstock.worker.schedule import keep_schedules
from penstock.worker.schedule_unit import Schedule
from penstock.worker.worker import Worker, WorkerSettings

T = TypeVar("T")
log = structlog.get_logger()
_OPEN_SECONDS = 1.0
# A server that answers like this will answer like this tomorrow. Anything else may only be starting.
_HOPELESS = re.compile(r"(database|role) .* does not exist|authentication failed|no password supplied")


@contextlib.contextmanager
def on_signals(handlers: dict[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    """Call a function on the event loop for each signal, in place of what the signal would do."""
    loop = asyncio.get_running_loop()
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


@dataclass(frozen=True, slots=True)
class InForce:
    """One configuration made ready to run: the program, its flows, how much at once; `schedules` None: not ours."""

    program: Program
    flows: list[AnyFlow]
    settings: WorkerSettings
    schedules: list[Schedule] | None = None

    @property
    def kernel(self) -> KernelSettings:
        """The settings of the kernel."""
        return self.program.configuration.kernel


class Process:
    """Works on a ledger until it is told to stop. A database that is away is waited for, from the start.

    SIGHUP asks `again` for another configuration. What it refuses changes nothing; what it gives is put into force by a
    worker under a fresh id, so that the history tells under which configuration each step was made. `create` makes a
    ledger where there is nothing at all. `beside` is entered while it works on its ledger: for what runs on threads of
    its own.
    """

    def __init__(
        self,
        first: InForce,
        *,
        again: Callable[[], InForce] | None = None,
        create: bool = False,
        beside: Callable[[Process], AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self._now = first
        self._beside = beside
        self._url = first.program.configuration.ledger_url()
        self._again = again
        self._create = create
        self._following: InForce | None = None
        self._worker: Worker | None = None
        self._stop = asyncio.Event()
        self._presence = Presence()

    @property
    def program(self) -> Program:
        """The program in force."""
        return self._now.program

    async def run(self, early: Collection[int] = ()) -> None:
        """Work until SIGTERM or Ctrl-C. `early`: SIGHUP came already, and was noted there."""
        handlers = {signal.SIGTERM: self.stop, signal.SIGINT: self.stop}
        if self._again is not None:
            handlers[signal.SIGHUP] = self._hang_up
        # One handler from the first moment to the last: a signal that came between two would be lost.
        with on_signals(handlers):
            if early and self._again is not None:
                self._hang_up()
            await self.work()

    async def work(self) -> None:
        """Work until `stop` is called, without a look at signals."""
        announce(self._presence)
        ledger = await self._patiently(self._open)
        if ledger is None:
            return
        with ledger, self._beside(self):
            while not self._stop.is_set():
                await self._work(ledger)

    async def _work(self, ledger: Ledger) -> None:
        """One worker, under one configuration."""
        if self._following is not None:
            self._now, self._following = self._following, None
            configure_logs(self._now.kernel.log.level, self._now.kernel.log.format)
        now, program = self._now, self._now.program
        version = program.configuration.version
        log.info("config.loaded", version=version, path=program.configuration.path_text)
        for line in program.warnings():
            log.warning("config.warning", says=line)
        if now.schedules is not None:
            keep = functools.partial(keep_schedules, ledger, now.schedules, f"config-{version}")
            kept = await self._patiently(keep)
            if kept is None:
                return
            log.info("schedules.kept", born=kept["born"], changed=kept["changed"], retired=kept["retired"])
        if subscribers := program.subscribers():
            await self._patiently(functools.partial(keep_subscriptions, ledger, subscribers, SINKS))
        ledger.gates.providers = program.limits()
        self._worker = Worker(ledger, now.flows, now.settings, config_version=version, watchdog=True)
        if not self._stop.is_set() and self._following is None:
            await self._worker.run()

    def counts(self) -> dict[str, dict[str, int]]:
        """What its worker has counted for each flow, for the metrics; under no flow, what is nobody's.

        A worker under another configuration begins anew.
        """
        if self._worker is None:
            return {}
        counts = self._worker.counts
        return {
            "": dataclasses.asdict(counts),
            **{name: dataclasses.asdict(own) for name, own in list(counts.flows.items())},
        }

    def stop(self) -> None:
        """Finish or give back what is held, and end."""
        self._stop.set()
        if self._worker is not None:
            self._worker.stop()

    def _hang_up(self) -> None:
        assert self._again is not None  # noqa: S101 - handled only then
        try:
            self._following = self._again()
        except UsageError as error:
            log.error("config.refused", error=str(error), version=self._now.program.configuration.version)  # noqa: TRY400 - one line is enough
            return
        if self._worker is not None:
            self._worker.stop()

    async def _patiently(self, work: Callable[[], T]) -> T | None:
        """The result of ledger work, once the database answers; None when told to stop meanwhile."""
        executor = ThreadExecutor(1)
        try:
            while not self._stop.is_set():
                try:
                    result = await unless(self._stop, executor.run(work))
                except LedgerUnavailable as error:
                    self._presence.failed("write", error)
                else:
                    self._presence.worked("write")
                    return result
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), _OPEN_SECONDS)
            return None
        finally:
            executor.close()

    def _open(self) -> Ledger:
        try:
            ledger = self._found_or_made()
        except LedgerUnavailable as error:
            refuse_hopeless(error)
            raise
        # Until here a failure may be hopeless, and is then told once, as an error.
        ledger.database.presence = self._presence
        return ledger

    def _found_or_made(self) -> Ledger:
        app, connections = self._now.program.app, self._now.kernel.ledger.connections
        if self._create and _nothing_there(self._url):
            return Ledger.open(
                self._url,
                app.machines,
                create=True,
                data_tables=self._now.program.tables,
                migrations=app.migrations,
                views=app.data.views,
                connections=connections,
            )
        ledger = Ledger.open(self._url, app.machines, migrations=app.migrations, connections=connections)
        _require_tables(ledger, self._now.program)
        return ledger


def refuse_hopeless(error: LedgerUnavailable) -> None:
    """Raise UsageError for a ledger that is not merely away."""
    if _HOPELESS.search(str(error)):
        raise UsageError(f"{error}; correct the ledger's address") from error


def _require_tables(ledger: Ledger, program: Program) -> None:
    """A table that the configuration declares is made by an upgrade, as those of a new lifecycle are."""
    wanted = [table.name for _, table in program.declared_tables]
    there = ledger.read(lambda cursor: table_names(ledger.database, cursor)) if wanted else ()
    missing = [name for name in wanted if name not in there]
    if missing:
        ledger.close()
        raise UsageError(f"the ledger has no table {', '.join(missing)}; make it with 'penstock db upgrade'")


def _nothing_there(url: str) -> bool:
    """Whether there is no table yet; also while another process is making them, for whom making them again waits."""
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        return True
    database = open_database(url, SystemClock())
    try:
        return not database.read(lambda cursor: table_names(database, cursor))
    finally:
        database.close()

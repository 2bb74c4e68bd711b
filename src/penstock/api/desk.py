"""What the web serves: a program, its ledger, and the threads that ask it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.api.shared import FRESH_SECONDS, Shared
from penstock.ledger.store.database import table_names
from penstock.ledger.store.hurried import Hurried
from penstock.model.clock import Clock, Rng
from penstock.model.errors import LedgerMismatch, UsageError
from penstock.operations.reader import Reader
from penstock.worker.executor import ThreadExecutor

if TYPE_CHECKING:
    from penstock.app.lifecycle import AnyLifecycle
    from penstock.app.metrics import Metrics
    from penstock.app.program import Program
    from penstock.ledger.ledger import Ledger
    from penstock.operations.declare import Ask
    from penstock.settings.kernel import WebSettings

T = TypeVar("T")
_TABLES = ("token", "web_session", "api_request")
_READERS = 8
_ACTORS = 4
_DOORKEEPERS = 2
_PLAN_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Bound:
    """Where it is served."""

    host: str
    port: int

    @classmethod
    def parse(cls, address: str) -> Bound:
        """`127.0.0.1:8642` or `[::1]:8642`, as the settings have it."""
        host, _, port = address.rpartition(":")
        return cls(host.strip("[]"), int(port))

    @property
    def loopback(self) -> bool:
        """Whether nobody but this machine reaches it."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether that is this machine alone: `localhost`, or an address of loopback."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(eq=False)
class Desk:
    """A program over its ledger, for many who ask at once.

    `programs` gives the program in force: one that is read again takes effect with the next request. `opens` opens the
    ledger when it is first needed; while it cannot be opened, every answer says so and the next request tries again.
    """

    programs: Callable[[], Program]
    opens: Callable[[], Ledger]
    bound: Bound = Bound("127.0.0.1", 8642)
    #: What the worker of this process has counted, where it has one.
    counts: Callable[[], Mapping[str, Mapping[str, int]]] | None = None
    rng: Rng = field(default_factory=Rng)
    #: How many seconds an answer serves others who ask the same; 0: each is answered alone.
    fresh: float = FRESH_SECONDS

    def __post_init__(self) -> None:
        self._ledger: Ledger | None = None
        self._metrics: tuple[Program, Metrics] | None = None
        self._opening = threading.Lock()
        self.shared = Shared(lambda: self.clock, self.fresh)
        # Who acts may plan for long; who reads does not wait behind them.
        self._readers = ThreadExecutor(_READERS)
        self._actors = ThreadExecutor(_ACTORS)
        # Who somebody is, and whether the ledger answers at all, is told however many long readings are under way.
        self._doorkeepers = ThreadExecutor(_DOORKEEPERS)

    @property
    def program(self) -> Program:
        """The program in force."""
        return self.programs()

    @property
    def settings(self) -> WebSettings:
        """The settings in force."""
        return self.program.configuration.kernel.web

    @property
    def root_path(self) -> str:
        """The path below which it is served; empty: none."""
        return self.settings.root_path or ""

    @property
    def clock(self) -> Clock:
        return self.program.clock

    def ledger(self) -> Ledger:
        """The ledger, opened once. Raises what opening it raises. It blocks: call it on a thread."""
        with self._opening:
            if self._ledger is None:
                self._ledger = self._opened()
            return self._ledger

    def _opened(self) -> Ledger:
        try:
            ledger = self.opens()
        except UsageError as error:  # nothing that was asked is wrong
            raise LedgerMismatch(str(error)) from error
        there = ledger.read(lambda cursor: table_names(ledger.database, cursor))
        missing = [name for name in _TABLES if name not in there]
        if missing:
            ledger.close()
            raise LedgerMismatch(f"the ledger has no table {', '.join(missing)}; make it with 'penstock db upgrade'")
        return ledger

    def metrics(self) -> tuple[bytes, str]:
        """The answer to Prometheus, and its content type. It blocks: call it on a thread."""
        from penstock.app.metrics import Metrics

        program, database = self.program, self.ledger().database
        if self._metrics is None or self._metrics[0] is not program:
            self._metrics = program, Metrics(program, database, self.counts)
        return self._metrics[1].text()

    def ask(self, lifecycle: AnyLifecycle, *, who: str, reason: str | None = None) -> Ask[Any]:
        """What a reading is asked with; with a reason, what an operation is planned with, which may take longer."""
        program = self.program
        seconds = self.settings.read_limit.total_seconds() if reason is None else _PLAN_SECONDS
        database: Any = Hurried(self.ledger().database, program.clock, seconds)
        reader = Reader(database, program.app.machines, program.app.past)
        return program.ask(
            lifecycle,
            reader,
            program.clock.now(),
            who=who,
            reason=reason or "",
            progress=lambda done, total: database.left() and None,  # noqa: ARG005 - it only looks at the time
            request=str(self.rng.uuid()),
        )

    async def read(self, work: Callable[..., T], *args: Any) -> T:
        """Run blocking work that only reads."""
        return await self._readers.run(work, *args)

    async def glance(self, work: Callable[..., T], *args: Any) -> T:
        """Run blocking work that reads a row or two."""
        return await self._doorkeepers.run(work, *args)

    async def act(self, work: Callable[..., T], *args: Any) -> T:
        """Run blocking work that may write, or takes long."""
        try:
            return await self._actors.run(work, *args)
        finally:
            self.shared.changed()

    def close(self) -> None:
        """Take no more work, and close the ledger."""
        self._readers.close()
        self._actors.close()
        self._doorkeepers.close()
        with self._opening:
            if self._ledger is not None:
                self._ledger.close()
                self._ledger = None

"""Commands that run: the worker and the demonstration."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import structlog
import uvicorn
from starlette.types import ASGIApp

from penstock.cli import show
from penstock.clock import Rng, SystemClock
from penstock.connectors.http import Http
from penstock.errors import LedgerUnavailable
from penstock.examples import invoices
from penstock.examples.invoice_server import InvoiceServer
from penstock.ledger import inspect
from penstock.ledger.ledger import Ledger
from penstock.machine import Actor
from penstock.runtime.app import App, load_app
from penstock.runtime.executor import ThreadExecutor
from penstock.runtime.worker import Worker, WorkerSettings

log = structlog.get_logger()
_OPEN_SECONDS = 1.0
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logs(default: str = "info") -> None:
    """Structured logs on standard error: JSON lines, or readable ones on a terminal."""
    level = _LEVELS.get(os.environ.get("PENSTOCK_LOG", default).lower(), logging.INFO)
    tty = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer() if tty else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def tune_interpreter() -> None:
    """Settings of the interpreter that suit a worker."""
    # The ledger's thread has the interpreter soon after it asks: it waits for a lock, then for the disk.
    sys.setswitchinterval(0.0005)
    # Thousands of units are held at a time and freed by their counts; looking for cycles among them finds none.
    gc.set_threshold(50_000, 20, 50)


@contextlib.contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call `stop`, which asks for an orderly end."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def run_worker(url: str, app_path: str, concurrency: int) -> None:
    """Run one worker process until it is told to stop."""
    configure_logs()
    tune_interpreter()
    settings = WorkerSettings(concurrency=concurrency, slots=concurrency * 2 + 2_000)
    asyncio.run(serve(url, load_app(app_path), settings))
    # A thread may still wait for somebody's lock on the ledger. Everything is given back; nobody waits for it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


async def serve(url: str, app: App, settings: WorkerSettings) -> None:
    """Work on a ledger until SIGTERM or Ctrl-C. A database that is away is waited for, from the start."""
    stop = asyncio.Event()
    worker: Worker | None = None

    def ask() -> None:
        stop.set()
        if worker is not None:
            worker.stop()

    # One handler from the first moment to the last: a signal that came between two would be lost.
    with stopping_on_signals(ask):
        ledger = await _open(url, app, stop)
        if ledger is None:
            return
        with ledger:
            worker = Worker(ledger, app.flows(), settings)
            if stop.is_set():
                return
            await worker.run()


async def _open(url: str, app: App, stop: asyncio.Event) -> Ledger | None:
    """The ledger, once it answers; None when told to stop meanwhile."""
    executor = ThreadExecutor(1)
    try:
        while not stop.is_set():
            try:
                return await executor.run(Ledger.open, url, app.machines)
            except LedgerUnavailable as error:
                log.warning("ledger.away", error=str(error))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _OPEN_SECONDS)
        return None
    finally:
        executor.close()


class _QuietServer(uvicorn.Server):
    """A server inside somebody else's program: signals are not its business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(application: ASGIApp) -> AsyncIterator[str]:
    """Serve an ASGI application on a free loopback port; gives its address."""
    config = uvicorn.Config(application, host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server = _QuietServer(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - the server sets a plain flag
        await asyncio.sleep(0.01)
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        await task


def run_demo(directory: Path, url: str | None, *, once: bool) -> None:
    """Sixty invoices of three tenants, a server that misbehaves, one worker."""
    configure_logs("error")
    directory.mkdir(parents=True, exist_ok=True)
    address = url or f"sqlite:///{directory / 'penstock.db'}"
    asyncio.run(_demo(address, once=once))


async def _demo(url: str, *, once: bool) -> None:
    clock, rng = SystemClock(), Rng()
    server = InvoiceServer(rng.child())
    with Ledger.open(url, [invoices.machine], clock=clock, rng=rng, create=True) as ledger:
        batch = f"{clock.now():%Y%m%d-%H%M%S}"
        born = ledger.birth(
            [
                invoices.Invoice(
                    tenant=tenant,
                    number=f"{batch}-{number:02}",
                    amount_minor=-1 if number == 13 else 1_000 + number,  # noqa: PLR2004 - one that the API refuses
                    due_at=clock.now(),
                    gate_id=f"accounting/{tenant}",
                )
                for tenant in ("acme", "globex", "initech")
                for number in range(20)
            ],
            actor=Actor.API,
            who="demo",
        )
        show.console.print(f"{born} invoices queued in {ledger.database.url}; the API breaks nearly every third call")
        async with serving(server) as address:
            worker = Worker(ledger, [invoices.Invoices(Http(address, clock))])
            running = asyncio.create_task(worker.run())
            with stopping_on_signals(worker.stop):
                await _watch(ledger, worker, running, once=once)
                await running
        counts = worker.counts
        show.console.print(
            f"{server.calls} calls made, {counts.failed} steps failed on the way,"
            f" {len(server.stored)} invoices arrived, {server.duplicates} of them twice"
        )
        show.status(inspect.status(ledger.database))
        show.console.print(
            f"\nnext: penstock history invoice:acme/{batch}-13 --ledger {ledger.database.url}", soft_wrap=True
        )


async def _watch(ledger: Ledger, worker: Worker, running: asyncio.Task[None], *, once: bool) -> None:
    def unfinished() -> int:
        sql = "SELECT count(*) FROM invoice WHERE status IN ('QUEUED', 'SENDING') AND parked_at IS NULL"
        return int(ledger.read(lambda c: c.rows(sql))[0][0])

    while not running.done():
        left = unfinished()
        if once and not left:
            worker.stop()
            return
        await asyncio.sleep(0.2)

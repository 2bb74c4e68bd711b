"""Commands that run: the worker, everything at once, and the demonstration."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from pathlib import Path
from typing import Any

import structlog

from penstock.cli import show
from penstock.cli.options import Setup, settle
from penstock.cli.process import Plan, Process, on_signals
from penstock.clock import Rng, SystemClock
from penstock.config import DEFAULT_APP, Config
from penstock.connectors.http import Http
from penstock.errors import UsageError
from penstock.examples import invoices
from penstock.examples.invoice_server import InvoiceServer
from penstock.ledger import inspect
from penstock.ledger.ledger import Ledger
from penstock.logs import configure_logs as configure_logs  # noqa: PLC0414 - for programs that run a worker themselves
from penstock.machine import Actor
from penstock.runtime.app import App, load_app
from penstock.runtime.schedule import wanted_by
from penstock.runtime.worker import Worker, WorkerSettings
from penstock.simulators.server import serving

log = structlog.get_logger()
#: What a running process cannot change: its program is loaded, and its ledger is open.
_FIXED = ("app", "ledger.url", "ledger.password")


def tune_interpreter() -> None:
    """Settings of the interpreter that suit a worker."""
    # The ledger's thread has the interpreter soon after it asks: it waits for a lock, then for the disk.
    sys.setswitchinterval(0.0005)
    # Thousands of units are held at a time and freed by their counts; looking for cycles among them finds none.
    gc.set_threshold(50_000, 20, 50)


def plan(setup: Setup, *, scheduler: bool) -> Plan:
    """Raises UsageError for flows that cannot be made of the configuration; nothing is opened yet."""
    config = setup.config
    concurrency = config["worker.concurrency"]
    return Plan(
        setup.app.make_flows(config),
        WorkerSettings(
            concurrency=concurrency, slots=concurrency * 2 + 2_000, stop_seconds=config["worker.stop_seconds"]
        ),
        config.version,
        str(config.path or "no file"),
        wanted_by(config, setup.app.schedules) if scheduler else None,
        (config["log.level"], config["log.format"]),
        config.providers(),
    )


def run_worker(file: Path | None, given: dict[str, Any], *, scheduler: bool) -> None:
    """Run one process until it is told to stop; with the scheduler, it also keeps the ledger's schedules."""

    def read() -> Setup:
        return settle(file, given, program=True, required=scheduler, secrets=True)

    def again() -> Plan:
        fresh = read()
        _refuse_fixed(setup.config, fresh.config)
        return plan(fresh, scheduler=scheduler)

    setup = read()
    config = setup.config
    configure_logs(config["log.level"], config["log.format"])
    first = plan(setup, scheduler=scheduler)
    tune_interpreter()

    async def work() -> None:
        await Process(setup.url, setup.app, first, again=again, create=scheduler).run()

    asyncio.run(work())
    # A thread may still wait for somebody's lock on the ledger. Everything is given back; nobody waits for it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _refuse_fixed(old: Config, new: Config) -> None:
    changed = [key for key in _FIXED if old[key] != new[key]]
    if changed:
        msg = f"{new.path or 'the configuration'}: {', '.join(changed)} changed; that takes a restart"
        raise UsageError(msg)


async def serve(url: str, app: App, settings: WorkerSettings) -> None:
    """Work on a ledger until SIGTERM or Ctrl-C, without a configuration."""
    await Process(url, app, Plan(list(app.flows()), settings)).run()


def run_demo(directory: Path, url: str | None, *, once: bool) -> None:
    """Sixty invoices of three tenants, a server that misbehaves, one worker."""
    configure_logs(os.environ.get("PENSTOCK_LOG", "error"))
    if url is None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            msg = f"{directory} cannot be made: {error.strerror}; name another folder with --dir"
            raise UsageError(msg) from error
    address = url or f"sqlite:///{directory / 'penstock.db'}"
    asyncio.run(_demo(address, once=once))


async def _demo(url: str, *, once: bool) -> None:
    clock, rng = SystemClock(), Rng()
    server = InvoiceServer(rng.child())
    with Ledger.open(url, load_app(DEFAULT_APP).machines, clock=clock, rng=rng, create=True) as ledger:
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
            with on_signals({signal.SIGTERM: worker.stop, signal.SIGINT: worker.stop}):
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

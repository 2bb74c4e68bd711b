"""Commands that run: the worker, and everything at once."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import sys
from pathlib import Path
from typing import Any

import structlog

from penstock.app.app import App
from penstock.cli.options import Setup, settle
from penstock.cli.process import Plan, Process
from penstock.model.cadence import parse_span
from penstock.model.errors import UsageError
from penstock.observe.logs import configure_logs as configure_logs  # noqa: PLC0414 - for programs that run a worker themselves
from penstock.settings.config import Config
from penstock.settings.declarations import SHIPPED
from penstock.worker.schedule import wanted_by
from penstock.worker.worker import WorkerSettings

log = structlog.get_logger()
#: What a running process cannot change: its program is loaded, and its ledger is open.
_FIXED = ("app", "ledger.url", "ledger.password", "ledger.connections")
_M_ARENA_MAX = -8


def tune_interpreter() -> None:
    """Settings of the interpreter, and of the memory under it, that suit a worker."""
    # A thread that comes back from the ledger has the interpreter soon: on SQLite it holds everybody's lock meanwhile.
    sys.setswitchinterval(0.0001)
    # Thousands of units are held at a time and freed by their counts; looking for cycles among them finds none.
    gc.set_threshold(50_000, 20, 50)
    # glibc gives each thread a heap of its own, and what one thread has freed in it no other can use.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def plan(setup: Setup, *, scheduler: bool) -> Plan:
    """Raises UsageError for flows that cannot be made of the configuration; nothing is opened yet."""
    config = setup.config
    concurrency = config["worker.concurrency"]
    lease, renew = parse_span(config["worker.lease"]), parse_span(config["worker.renew"])
    if renew * 2 > lease:
        msg = f"worker.renew = {config['worker.renew']} is more than half of worker.lease = {config['worker.lease']}"
        raise UsageError(f"{config.path or 'the configuration'}: {msg}; a renewal that fails must have a second try")
    return Plan(
        setup.app.make_flows(config),
        WorkerSettings(
            concurrency=concurrency,
            slots=concurrency * 2 + 2_000,
            stop_seconds=config["worker.stop_seconds"],
            lease_ms=int(lease.total_seconds() * 1_000),
            renew_seconds=renew.total_seconds(),
        ),
        config.version,
        str(config.path or "no file"),
        wanted_by(config, setup.app.usual_schedules(config)) if scheduler else None,
        (config["log.level"], config["log.format"]),
        setup.app.providers(config),
        tuple(setup.app.warn(config)),
        config["ledger.connections"],
    )


def run_worker(file: Path | None, given: dict[str, Any], *, scheduler: bool) -> None:
    """Run one process until it is told to stop; with the scheduler, it also keeps the ledger's schedules."""

    def read() -> Setup:
        setup = settle(file, given, program=True, required=scheduler, secrets=True)
        _require_program(setup.config)
        return setup

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


def _require_program(config: Config) -> None:
    """Without a program there is nothing to do, and nothing is made in the ledger."""
    if config["app"] is None:
        msg = (
            f"{config.path or 'the configuration'} names no program; set app to your own (module:attribute)"
            f" or to one of {', '.join(SHIPPED)}"
        )
        raise UsageError(msg)


def _refuse_fixed(old: Config, new: Config) -> None:
    changed = [key for key in _FIXED if old[key] != new[key]]
    if changed:
        msg = f"{new.path or 'the configuration'}: {', '.join(changed)} changed; that takes a restart"
        raise UsageError(msg)


async def serve(url: str, app: App, settings: WorkerSettings) -> None:
    """Work on a ledger until SIGTERM or Ctrl-C, without a configuration."""
    await Process(url, app, Plan(list(app.flows()), settings)).run()

"""Running a program: as a command does it, and inside somebody's own asyncio program."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from penstock.app.app import App
from penstock.app.discover import load
from penstock.app.otlp import sending
from penstock.app.process import InForce, Process
from penstock.app.program import Program
from penstock.app.shipped import SHIPPED
from penstock.model.clock import Clock
from penstock.model.errors import UsageError
from penstock.observe.logs import configure_logs
from penstock.settings import file
from penstock.settings.file import Configuration
from penstock.worker.worker import WorkerSettings

_M_ARENA_MAX = -8


async def run(
    app: App,
    settings: Mapping[str, Any] | None = None,
    *,
    config: Path | None = None,
    scheduler: bool = True,
    create: bool = True,
    clock: Clock | None = None,
) -> None:
    """Run a program inside the event loop of another until the task is cancelled: `await penstock.run(App(mine))`.

    `settings` are those of `penstock.toml`, as a file would give them (`{"ledger": {"url": "sqlite:///my.db"}}`);
    `config` names a file instead. With `scheduler` it keeps the ledger's schedules too, with `create` it makes the
    ledger where there is none. Raises ConfigError with everything that is wrong. Signals and the log stay the caller's.
    """
    process = Process(
        in_force(configured(app, settings, config=config, clock=clock), scheduler=scheduler), create=create
    )
    work = asyncio.ensure_future(process.work())
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        process.stop()
        await work
        raise


def configured(
    app: App, settings: Mapping[str, Any] | None = None, *, config: Path | None = None, clock: Clock | None = None
) -> Program:
    """The program of an App under settings that are given here or by a file. Raises ConfigError."""
    raw = file.read(config) if settings is None else settings
    names = list(app.kinds())
    found = file.load(config, app.kinds(), environment=os.environ, raw=raw, on=names, jobs=lambda: _jobs(app))
    return Program(app, found, clock)


def _jobs(app: App) -> list[str]:
    return [job.name for one in app.lifecycles for job in one.jobs]


def in_force(program: Program, *, scheduler: bool) -> InForce:
    """A program made ready to run. Raises UsageError for flows that cannot be made of the configuration."""
    worker = program.configuration.kernel.worker
    settings = WorkerSettings(
        concurrency=worker.concurrency,
        slots=worker.concurrency * 2 + 2_000,
        stop_seconds=worker.stop_seconds,
        lease_ms=int(worker.lease.total_seconds() * 1_000),
        renew_seconds=worker.renew.total_seconds(),
    )
    return InForce(program, program.flows(), settings, program.schedules() if scheduler else None)


def run_worker(
    path: Path | None,
    given: Mapping[str, Any],
    *,
    scheduler: bool,
    beside: Callable[[Process], AbstractContextManager[Any]] = contextlib.nullcontext,
    early: Collection[int] = (),
) -> None:
    """Run one process until it is told to stop. With the scheduler, it also keeps the ledger's schedules.

    `beside` is entered while the process works on its ledger: for what runs on threads of its own. `early` are signals
    that came before anybody could heed them: another configuration is asked for.
    """

    def read() -> Program:
        program = load(path, given, required=scheduler)
        program.configuration.check_secrets()
        _require_lifecycle(program)
        return program

    def again() -> InForce:
        fresh = read()
        _refuse_fixed(first, fresh)
        return in_force(fresh, scheduler=scheduler)

    first = read()
    log = first.configuration.kernel.log
    configure_logs(log.level, log.format)
    ready = in_force(first, scheduler=scheduler)
    tune_interpreter()

    @contextlib.contextmanager
    def beside_it(process: Process) -> Iterator[None]:
        with sending(process), beside(process):
            yield

    if first.configuration.kernel.otlp.url is not None:
        from penstock.observe.otlp import require

        require()

    async def work() -> None:
        await Process(ready, again=again, create=scheduler, beside=beside_it).run(early)

    asyncio.run(work())
    # A thread may still wait for somebody's lock on the ledger. Everything is given back; nobody waits for it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def tune_interpreter() -> None:
    """Settings of the interpreter, and of the memory under it, that suit a worker."""
    # A thread that comes back from the ledger has the interpreter soon: on SQLite it holds everybody's lock meanwhile.
    sys.setswitchinterval(0.0001)
    # Thousands of units are held at a time and freed by their counts; looking for cycles among them finds none.
    gc.set_threshold(50_000, 20, 50)
    # glibc gives each thread a heap of its own, and what one thread has freed in it no other can use.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _require_lifecycle(program: Program) -> None:
    """Without a lifecycle there is nothing to do, and nothing is made in the ledger."""
    if not program.app.own:
        could = ", ".join(f"[{name}]" for name in SHIPPED)
        msg = (
            f"{program.configuration.path_text} switches no lifecycle on; add one of {could}, or name your own in"
            ' lifecycles = ["module:attribute"]'
        )
        raise UsageError(msg)


def _refuse_fixed(old: Program, new: Program) -> None:
    """What a running process cannot change: its lifecycles are loaded, and its ledger is open."""
    changed = [
        *(["ledger"] if _ledger(old.configuration) != _ledger(new.configuration) else ()),
        *(["the lifecycles that run"] if _names(old) != _names(new) else ()),
        *(["the tables that it declares"] if _declared(old) != _declared(new) else ()),
    ]
    if changed:
        raise UsageError(f"{new.configuration.path_text}: {' and '.join(changed)} changed; restart to apply it")


def _ledger(configuration: Configuration) -> object:
    return configuration.kernel.ledger


def _declared(program: Program) -> list[str]:
    tables = (table for _, table in program.declared_tables)
    return sorted(f"{table.name} {[(column.name, str(column.type)) for column in table.columns]}" for table in tables)


def _names(program: Program) -> list[str]:
    return [lifecycle.name for lifecycle in program.app.own]

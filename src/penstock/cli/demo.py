"""`penstock demo`: its folder, what it prints, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from penstock.app.process import Process
from penstock.app.program import Program
from penstock.app.running import in_force
from penstock.cli.setup import reading
from penstock.cli.terminal import echo
from penstock.cli.web import watching
from penstock.examples.demonstration.part import Table, World
from penstock.examples.demonstration.play import MARK, Demonstration, require
from penstock.ledger import history
from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import open_database, table_names
from penstock.ledger.store.postgres.address import Address
from penstock.model.clock import SystemClock
from penstock.model.errors import UsageError
from penstock.observe.logs import configure_logs
from penstock.settings.file import FILE

_DATABASE = "penstock.db"
_LEDGER = (_DATABASE, *(f"{_DATABASE}-{end}" for end in ("wal", "shm", "writer")))


def run_demo(directory: Path, url: str | None, *, once: bool, address: str | None = None) -> None:
    """Run the demonstration. Raises NotShown when it came to its end and something was not to be seen.

    Unless it runs once, the desk is served all along, and a worker goes on after the days. Interrupted on the way it
    stops in good order and raises KeyboardInterrupt.
    """
    configure_logs(os.environ.get("PENSTOCK_LOG", "error"))
    # It speaks to this machine alone, and no proxy leads there.
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[name]
    if url is not None:
        _refuse_used(url)
    with _alone_in(directory):
        _play(directory, url, once=once, address=address)


def _play(directory: Path, url: str | None, *, once: bool, address: str | None) -> None:
    demonstration = Demonstration(directory, _say)
    _prepare(directory, (*_LEDGER, *demonstration.leaves))
    written = f"sqlite:///{_DATABASE}" if url is None else _written(url)
    with demonstration.serving(written, url) as program, contextlib.ExitStack() as desk:
        app = program.app
        with Ledger.open(
            program.configuration.ledger_url(),
            app.machines,
            clock=demonstration.clock,
            create=True,
            data_tables=program.tables,
            views=app.data.views,
        ) as ledger:
            _say(f"{demonstration.start:%Y-%m-%d} to {demonstration.end:%Y-%m-%d} in {ledger.database.url}")
            if not once:
                shown = Program(app, program.configuration, demonstration.desk_clock)
                _say(f"watch it at {desk.enter_context(watching(shown, address))} (Ctrl-C ends it)")
            world = demonstration.run(ledger, program)
            if demonstration.interrupted:
                _say(f"interrupted on {demonstration.clock.now():%Y-%m-%d}; what was done until then is in the ledger")
                raise KeyboardInterrupt
            _sum_up(demonstration, world)
            _show_next(directory, demonstration.next(world), unwritten=_has_password(url))
        if not once:
            demonstration.go_on(SystemClock())
            _go_on(Program(app, program.configuration))


def _sum_up(demonstration: Demonstration, world: World) -> None:
    """What the ledger has. Raises NotShown where something is missing."""
    for table in (*demonstration.tables(world), _counts(world.ledger)):
        _show(table)
    checks = demonstration.checks(world)
    _show(Table("Seen", ("", ""), [(check.what, check.seen or "not seen") for check in checks]))
    require(checks)


@contextlib.contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """One demonstration to a folder: another would move the first one's ledger away while it is worked on."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        msg = f"{directory} cannot be made or used: {error.strerror}; name another folder with --dir"
        raise UsageError(msg) from error
    try:
        _lock(folder, directory)
        yield
    finally:
        os.close(folder)


def _lock(folder: int, directory: Path) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        msg = f"a demonstration is running in {directory}; stop it first, or name another folder with --dir"
        raise UsageError(msg) from None


def _go_on(program: Program) -> None:
    """Work by the machine's clock until Ctrl-C, with the other sides and the desk still there."""
    _say("\nthe APIs and the desk are still served, and a worker goes on in real time; Ctrl-C ends it")

    async def work() -> None:
        await Process(in_force(program, scheduler=True)).run()

    asyncio.run(work())


def _refuse_used(url: str) -> None:
    """A ledger that something is in is left alone, and so is a database that is none."""
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        return
    database = open_database(url, SystemClock())
    try:
        if not database.read(lambda cursor: table_names(database, cursor)):
            return
    finally:
        database.close()
    with reading(url) as found:
        if found.read(lambda cursor: cursor.rows("SELECT 1 FROM transition_log LIMIT 1")):
            msg = (
                f"{found.url} has units in it; the demonstration wants a ledger of its own, name another with --ledger"
            )
            raise UsageError(msg)


def _prepare(directory: Path, names: Sequence[str]) -> None:
    """Keep what an earlier demonstration left by these names, in a folder of its own. Raises UsageError for others'."""
    try:
        there = [directory / name for name in names if (directory / name).exists()]
        if not there:
            return
        if not _ours(directory / FILE):
            msg = f"{there[0]} is not the demonstration's; name another folder with --dir"
            raise UsageError(msg)
        if (directory / _DATABASE).exists():
            _refuse_worked_on(f"sqlite:///{directory / _DATABASE}")
        aside = next(place for n in range(1, 10_000) if not (place := directory / f"earlier-{n}").exists())
        aside.mkdir()
        for place in there:
            place.rename(aside / place.name)
    except OSError as error:
        msg = f"{directory} cannot be made or used: {error.strerror}; name another folder with --dir"
        raise UsageError(msg) from error
    _say(f"what an earlier demonstration left was moved to {aside}")


def _ours(file: Path) -> bool:
    return file.is_file() and file.read_text(errors="replace").startswith(MARK)


def _refuse_worked_on(url: str) -> None:
    with reading(url) as database:
        if any(worker.lease_seconds > 0 for worker in history.status(database).workers):
            msg = f"a worker is running on {url}; stop it first, or name another folder with --dir"
            raise UsageError(msg)


def _written(url: str) -> str:
    """The address of a ledger that is not in the folder, as the configuration has it; never with a password."""
    if url.startswith("sqlite:///"):
        return f"sqlite:///{Path(url.removeprefix('sqlite:///')).absolute()}"
    return Address.parse(url).bare


def _counts(ledger: Ledger) -> Table:
    found = history.status(ledger.database).machines
    states = [(m.name, ", ".join(f"{count:,} {state}" for state, count in m.states.items() if count)) for m in found]
    return Table("Units by machine and status", ("machine", "units"), states)


def _show(table: Table) -> None:
    """Aligned columns that are never broken: what stands in them is there to be copied."""
    _say(f"\n{table.title}")
    rows = [row for row in (tuple(h.lstrip(">") for h in table.headings), *table.rows) if any(row)]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, table.headings, strict=True)
        _say("  " + "  ".join(c.rjust(w) if h.startswith(">") else c.ljust(w) for c, w, h in cells).rstrip())


def _has_password(url: str | None) -> bool:
    return url is not None and urlsplit(url).password is not None


def _show_next(directory: Path, commands: Sequence[str], *, unwritten: bool) -> None:
    _say(f"\nnext: cd {directory}, and there")
    if unwritten:
        _say("  (set PENSTOCK_LEDGER to the ledger's address first: its password is not written down)")
    for command in commands:
        _say(f"  {command}")


def _say(line: str) -> None:
    echo(line)

"""`penstock db`: make, check, back up, prune and open the ledger's database."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import terminal
from penstock.cli.kinds import instant_kind, span_kind
from penstock.cli.lazy import Entry, LazyGroup
from penstock.cli.options import config_option, flag, ledger_option
from penstock.cli.terminal import echo
from penstock.model.inert import inert
from penstock.model.spoken import counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from penstock.ledger.care.finding import Finding
    from penstock.ledger.care.prune import Count, Pruner

_CHECKS = "schema, tables, definitions, triggers, views"
_NOBODY = "there is no terminal to ask on; count with --dry-run, then give --yes"


class _Database(LazyGroup):
    """The commands of `penstock db`."""

    def entries(self, ctx: click.Context) -> dict[str, Entry]:  # noqa: ARG002 - Click's own shape
        """All of them."""
        return {name: entry for name, (entry, _) in COMMANDS.items()}

    def load(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002 - Click's own shape
        return COMMANDS[name][1] if name in COMMANDS else None


def _command(
    section: str, says: str, *options: click.Parameter
) -> Callable[[Callable[..., int | None]], click.Command]:
    def made(function: Callable[..., int | None]) -> click.Command:
        name = function.__name__
        params = [*options, config_option(), ledger_option()]
        command = click.Command(name, params=params, callback=function, help=function.__doc__)
        COMMANDS[name] = Entry(section, says), command
        return command

    return made


COMMANDS: dict[str, tuple[Entry, click.Command]] = {}


_INSTANT, _SPAN = instant_kind(), span_kind()


@_command(
    "Act",
    "Create the ledger, or upgrade it to this program.",
    click.Option(
        ["--take-back"], is_flag=True, help="Go back to this program's definitions where a newer one replaced them."
    ),
)
def upgrade(*, take_back: bool, _config: Path | None, _ledger: str | None) -> None:
    """Create the ledger, or upgrade its tables, definitions and triggers to this program.

    Everything happens in one transaction: interrupted, it has changed nothing, and running it again is all there is to
    do. Afterwards it counts into the flow by the hour what no worker has counted yet.
    Run it with the new program before the new program's workers start; workers of the old one may go on meanwhile.
    """
    from penstock.cli.setup import load_program
    from penstock.ledger.roll_up import roll_up
    from penstock.ledger.schema.install import install
    from penstock.ledger.store.database import open_database

    program = load_program(_config, _ledger)
    app = program.app
    database = open_database(program.configuration.ledger_url(), program.clock)
    try:
        install(
            database,
            app.machines,
            program.tables,
            migrations=app.migrations,
            views=app.data.views,
            take_back=take_back,
            progress=lambda what: echo(f"revision {what}") if what[:1].isdigit() else None,
        )
        roll_up(database)
        echo(f"{database.url} is ready: {', '.join(sorted(m.name for m in app.machines))}")
    finally:
        database.close()


@_command("Look", "Compare the ledger's schema with this program's.", flag("json", "Print exact JSON."))
def check(*, _json: bool, _config: Path | None, _ledger: str | None) -> int:
    """Say whether schema, tables, definitions, triggers and views are those of this program.

    It changes nothing. Exit code 1 when anything differs, with what differs and what to do. `penstock doctor` looks at
    the rows.
    """
    from penstock.cli.setup import load_program
    from penstock.ledger.schema.check import check as compare
    from penstock.ledger.store.database import open_database

    program = load_program(_config, _ledger)
    database = open_database(program.configuration.ledger_url(), program.clock)
    try:
        found = compare(database, program.wanted())
    finally:
        database.close()
    if _json:
        _print_json(found)
    else:
        echo(f"{found.url}: schema {found.ledger}, this program knows {found.program}")
        _show_findings(found.findings)
    return int(bool(found.findings))


def _show_findings(found: Sequence[Finding]) -> None:
    if not found:
        echo(f"all is well: {_CHECKS}")
        return
    screen = terminal.Screen.of_output()
    for one in sorted(found, key=lambda finding: finding.severity):
        mark = screen.styled(one.severity, one.severity)
        terminal.write([f"{mark}: {inert(f'{one.subject}: {one.message}')}"])
    errors = sum(one.severity == "error" for one in found)
    echo(f"{counted(errors, 'error')}, {counted(len(found) - errors, 'warning')}")


@_command(
    "Act",
    "Copy the ledger while workers work.",
    click.Argument(
        ["place"],
        type=click.Path(path_type=Path),
        metavar="FILE|DIR",
        help="A new file, or a folder to put one in.",
    ),
    click.Option(["--force"], is_flag=True, help="Replace a file that is there."),
    flag("json", "Print exact JSON."),
)
def backup(*, place: Path, force: bool, _json: bool, _config: Path | None, _ledger: str | None) -> None:
    """Copy the ledger while workers work: one consistent moment of it, checked, in one file.

    SQLite: a database file; to restore it, stop every worker and put it in the ledger's place, without the old `-wal`
    and `-shm` beside it. PostgreSQL: a dump in pg_dump's custom format; restore it into an empty database with
    pg_restore. What was done after the backup is not in it: `penstock db doubt` comes before the first worker.
    """
    from penstock.cli.setup import load_configuration, reading
    from penstock.ledger.care.backup import backup as copy
    from penstock.model.clock import Rng, SystemClock

    url = load_configuration(_config, _ledger).ledger_url()
    # As Ctrl-C: what was begun is removed on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with reading(url):
        pass
    clock = SystemClock()
    with terminal.progress("copying", clock, quiet=_json) as progress:
        made = copy(url, place, clock=clock, rng=Rng(), force=force, progress=progress)
    if _json:
        _print_json(made)
    else:
        echo(f"{made.path}: {made.size:,} bytes, checked")


@_command(
    "Act",
    "After a restore: units look before they act again.",
    click.Option(["--since"], type=_INSTANT, help="Only units stepped after this instant, instead of all."),
    flag("dry-run", "Count the units, and stop."),
    flag("yes", "Do not ask."),
    flag("json", "Print exact JSON."),
)
def doubt(
    *, since: datetime | None, _dry_run: bool, _yes: bool, _json: bool, _config: Path | None, _ledger: str | None
) -> None:
    """After a restore or a failover that lost commits: units look before they act again.

    Every unit that has not ended is put in doubt; with --since only those that may have been stepped after it. Each
    then asks the other side what is there before it sends anything. Workers refuse a ledger that was restored from a
    backup until this has been done. Units that a worker holds are taken from it.
    """
    from penstock.cli.setup import load_configuration, reading, user
    from penstock.ledger.care.doubt import Doubter
    from penstock.model.clock import SystemClock

    configuration = load_configuration(_config, _ledger)
    _require_somebody(dry_run=_dry_run, yes=_yes, json=_json)
    with reading(configuration.ledger_url()) as database:
        doubter = Doubter(database, since=since)
        counts = doubter.counts()
        total = sum(count.units for count in counts)
        if not _json:
            for count in counts:
                echo(f"{count.machine}: {count.units:,}")
        done = 0
        if not _dry_run:
            if not _yes:
                terminal.agree(f"put {counted(total, 'unit')} in doubt?")
            with terminal.progress("doubting", SystemClock(), quiet=_json) as progress:
                done = doubter.doubt(f"operator:{user()}", lambda count: progress(count, total))
            if not _json:
                echo(f"{counted(done, 'unit')} in doubt; workers may start")
    if _json:
        _print_json({"counts": counts, "doubted": done})


@_command(
    "Act",
    "Remove what is old.",
    click.Option(["--machine"], metavar="NAME", help="Only units and history of this machine."),
    click.Option(
        ["--older-than"], type=_SPAN, help="One age for everything, such as 90d, instead of the configured ages."
    ),
    click.Option(["--keep-units"], is_flag=True, help="Keep units that have ended."),
    flag("dry-run", "Count what would go, and stop."),
    flag("yes", "Do not ask."),
    flag("json", "Print exact JSON."),
)
def prune(
    *,
    machine: str | None,
    older_than: timedelta | None,
    keep_units: bool,
    _dry_run: bool,
    _yes: bool,
    _json: bool,
    _config: Path | None,
    _ledger: str | None,
) -> None:
    """Remove what is old: history, units that have ended, delivered events, workers that nothing refers to.

    The history of a unit shrinks to one row, from which every later moment is still answered: a baseline, or the grave
    of a unit that goes. Nothing of an unfinished run goes. Counts are shown first. Stopped on the way, it has done a
    part; the next run does the rest.
    """
    from penstock.cli.setup import load_configuration, reading, user
    from penstock.ledger.care.prune import Ages, Pruner
    from penstock.model.clock import Rng, SystemClock

    configuration = load_configuration(_config, _ledger)
    ages = Ages(configuration.kernel.prune, older_than, units=not keep_units)
    _require_somebody(dry_run=_dry_run, yes=_yes, json=_json)
    with reading(configuration.ledger_url()) as database:
        pruner = Pruner(database, ages, machine=machine, who=f"operator:{user()}", rng=Rng())
        counts = pruner.counts()
        total = sum(count.rows for count in counts)
        if not _json:
            _show_prunable([count for count in counts if count.rows])
        pruned: dict[str, int] = {}
        if total and not _dry_run:
            if not _yes:
                terminal.agree(f"prune {counted(total, 'row')}?")
            with terminal.progress("pruning", SystemClock(), quiet=_json) as progress:
                pruned = _pruned(pruner, total, progress)
            if not _json:
                echo(f"{counted(sum(pruned.values()), 'row')} pruned")
    if _json:
        _print_json({"counts": counts, "pruned": pruned})


def _show_prunable(found: Sequence[Count]) -> None:
    if not found:
        echo("nothing is old enough to be pruned")
        return
    from penstock.model.clock import instant_text

    for count in found:
        whose = f" of {count.machine}" if count.machine else ""
        echo(f"{count.what}{whose}: {counted(count.rows, 'row')} of {count.table}, before {instant_text(count.before)}")


def _pruned(pruner: Pruner, total: int, progress: terminal.Progress) -> dict[str, int]:
    done = 0

    def went(_: str, rows: int) -> None:
        nonlocal done
        done += rows
        progress(done, total)

    gone: dict[str, int] = pruner.prune(went)
    return gone


@_command("Act", "Open a SQL prompt.")
def shell(*, _config: Path | None, _ledger: str | None) -> int:
    """Open the database: a SQL prompt on SQLite, psql on PostgreSQL.

    Statements may also come from a pipe. The guards hold here too: what is not an edge is refused, and the history says
    `sql`. From a pipe, the first error ends it with exit code 1.
    """
    from penstock.cli.setup import load_configuration, reading
    from penstock.cli.shell import open_psql, sqlite_shell

    url = load_configuration(_config, _ledger).ledger_url()
    with reading(url):
        pass
    if not url.startswith("sqlite:///"):
        open_psql(url)
    return int(not sqlite_shell(Path(url.removeprefix("sqlite:///")), sys.stdin, sys.stdout))


def _require_somebody(*, dry_run: bool, yes: bool, json: bool) -> None:
    """Raises UsageError where it must be asked and nobody can answer."""
    from penstock.model.errors import UsageError

    if not dry_run and not yes and (json or not terminal.can_ask()):
        raise UsageError(_NOBODY)


def _print_json(value: Any) -> None:
    from penstock.operations.answers import json_text

    echo(json_text(value))


command = _Database(name="db", help="The ledger's database: make it, check it, back it up, prune it, open it.")

"""`penstock db`: make, check, back up, prune and open the ledger's database."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import AppOption, ConfigOption, JsonOption, LedgerOption, echo, settle, user

if TYPE_CHECKING:
    from penstock.cli.options import Setup
    from penstock.ledger.schema.install import Wanted

db = typer.Typer(help="The ledger's database: make it, check it, back it up, prune it, open it.", no_args_is_help=True)


def _wanted(setup: Setup) -> Wanted:
    from penstock.ledger.schema.install import Wanted

    app = setup.app
    return Wanted(tuple(app.machines), tuple(app.data_tables), app.migrations, views=app.views)


@db.command()
def upgrade(
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    app: AppOption = None,
    take_back: Annotated[
        bool, typer.Option("--take-back", help="Go back to this program's definitions where a newer one replaced them.")
    ] = False,
) -> None:
    """Create the ledger, or bring its tables, definitions and triggers up to this program.

    Everything happens in one transaction: interrupted, it has changed nothing, and running it again is all there is to
    do. Run it with the new program before the new program's workers start; workers of the old one may go on meanwhile.
    """
    from penstock.ledger.schema.install import install
    from penstock.ledger.store.database import open_database
    from penstock.model.clock import SystemClock

    setup = settle(config, {"ledger.url": ledger, "app": app}, program=True)
    found = setup.app
    database = open_database(setup.url, SystemClock())
    try:
        install(
            database,
            found.machines,
            found.data_tables,
            migrations=found.migrations,
            views=found.views,
            take_back=take_back,
            progress=lambda what: echo(f"revision {what}") if what[:1].isdigit() else None,
        )
        echo(f"{database.url} is ready: {', '.join(sorted(m.name for m in found.machines))}")
    finally:
        database.close()


@db.command()
def check(
    config: ConfigOption = None, ledger: LedgerOption = None, app: AppOption = None, json: JsonOption = False
) -> None:
    """Say whether schema, tables, definitions, triggers and views are those of this program; change nothing.

    Exit code 1 when anything differs, with what differs and what to do. `penstock doctor` looks at the rows.
    """
    from penstock.cli import show
    from penstock.ledger.schema.check import check as compare
    from penstock.ledger.store.database import open_database
    from penstock.model.clock import SystemClock

    setup = settle(config, {"ledger.url": ledger, "app": app}, program=True)
    database = open_database(setup.url, SystemClock())
    try:
        found = compare(database, _wanted(setup))
    finally:
        database.close()
    if json:
        show.print_json(found)
    else:
        echo(f"{found.url}: schema {found.ledger}, this program knows {found.program}")
        show.findings(found.findings, ["schema", "tables", "definitions", "triggers", "views"])
    if found.findings:
        raise typer.Exit(1)


@db.command()
def backup(
    place: Annotated[Path, typer.Argument(metavar="FILE|DIR", help="A new file, or a folder to put one in.")],
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    json: JsonOption = False,
) -> None:
    """Copy the ledger while workers work: one consistent moment of it, checked, in one file.

    SQLite: a database file; to restore it, stop every worker and put it in the ledger's place, without the old `-wal`
    and `-shm` beside it. PostgreSQL: a dump in pg_dump's custom format; restore it into an empty database with
    pg_restore. What was done after the backup is not in it: `penstock db doubt` comes before the first worker.
    """
    from penstock.cli import show
    from penstock.ledger.care.backup import backup as copy
    from penstock.model.clock import Rng, SystemClock

    url = settle(config, {"ledger.url": ledger}).url
    # As Ctrl-C: what was begun is removed on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with show.reading(url):
        pass
    with show.amount("copying", quiet=json) as progress:
        made = copy(url, place, clock=SystemClock(), rng=Rng(), force=force, progress=progress)
    if json:
        show.print_json(made)
    else:
        echo(f"{made.path}: {made.size:,} bytes, checked")


@db.command()
def doubt(  # noqa: PLR0917 - Typer gives them by name
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="INSTANT", help="Up to then nothing is missing in the ledger; else all."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the units, and stop.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """After a restore or a failover that lost commits: units look before they act again.

    Every unit that has not ended is put in doubt; with --since only those that may have been stepped after it. Each
    then asks the other side what is there before it sends anything. Workers refuse a ledger that was restored from a
    backup until this has been done. Units that a worker holds are taken from it.
    """
    from penstock.cli import show
    from penstock.ledger.care.doubt import Doubter
    from penstock.model.clock import parse_instant
    from penstock.model.errors import UsageError

    setup = settle(config, {"ledger.url": ledger})
    moment = parse_instant(since) if since else None
    if not dry_run and not yes and (json or not sys.stdin.isatty()):
        msg = "nobody can be asked here; count with --dry-run, then do it with --yes"
        raise UsageError(msg)
    with show.reading(setup.url) as database:
        doubter = Doubter(database, since=moment)
        counts = doubter.counts()
        total = sum(count.units for count in counts)
        if not json:
            for count in counts:
                echo(f"{count.machine}: {count.units:,}")
        done = 0
        if not dry_run and (yes or typer.confirm(f"put {total:,} units in doubt?")):
            with show.amount("doubting", quiet=json) as progress:
                done = doubter.doubt(f"operator:{user()}", lambda count: progress(count, total))
            if not json:
                echo(f"{done:,} units in doubt; workers may start")
    if json:
        show.print_json({"counts": counts, "doubted": done})


@db.command()
def prune(  # noqa: PLR0917 - Typer gives them by name
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    machine: Annotated[str | None, typer.Option("--machine", help="Only units and history of this machine.")] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="SPAN", help="One age for everything, as 90d; else the configured ages."),
    ] = None,
    keep_units: Annotated[bool, typer.Option("--keep-units", help="Leave units that have ended alone.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would go, and stop.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove what is old: history, units that have ended, delivered events, workers that nothing names.

    The history of a unit shrinks to a baseline row, from which every later moment is still answered. Nothing of an
    unfinished run goes. Counts are shown first. Stopped on the way, it has done a part; the next run does the rest.
    """
    from penstock.cli import show
    from penstock.ledger.care.prune import Ages, Pruner
    from penstock.model.cadence import parse_span
    from penstock.model.clock import Rng
    from penstock.model.errors import UsageError

    setup = settle(config, {"ledger.url": ledger})
    ages = Ages(setup.config.prune(), parse_span(older_than) if older_than else None, units=not keep_units)
    if not dry_run and not yes and (json or not sys.stdin.isatty()):
        msg = "nobody can be asked here; count with --dry-run, then prune with --yes"
        raise UsageError(msg)
    with show.reading(setup.url) as database:
        pruner = Pruner(database, ages, machine=machine, who=f"operator:{user()}", rng=Rng())
        counts = pruner.counts()
        total = sum(count.rows for count in counts)
        if not json:
            show.prunable([count for count in counts if count.rows])
        pruned: dict[str, int] = {}
        if total and not dry_run and (yes or typer.confirm(f"prune {total:,} rows?")):
            with show.amount("pruning", quiet=json) as progress:
                pruned = _pruned(pruner, total, progress)
            if not json:
                echo(f"{sum(pruned.values()):,} rows pruned")
    if json:
        show.print_json({"counts": counts, "pruned": pruned})


def _pruned(pruner: Any, total: int, progress: Any) -> dict[str, int]:
    done = 0

    def went(_: str, rows: int) -> None:
        nonlocal done
        done += rows
        progress(done, total)

    gone: dict[str, int] = pruner.prune(went)
    return gone


@db.command()
def shell(config: ConfigOption = None, ledger: LedgerOption = None) -> None:
    """Open the database: a SQL prompt on SQLite, psql on PostgreSQL. Statements may also come from a pipe.

    The guards hold here too: what is not an edge is refused, and the history says `sql`. From a pipe, the first error
    ends it with exit code 1.
    """
    from penstock.cli import show
    from penstock.cli.shell import open_psql, sqlite_shell

    url = settle(config, {"ledger.url": ledger}).url
    with show.reading(url):
        pass
    if not url.startswith("sqlite:///"):
        open_psql(url)
    if not sqlite_shell(Path(url.removeprefix("sqlite:///")), sys.stdin, sys.stdout):
        raise typer.Exit(1)

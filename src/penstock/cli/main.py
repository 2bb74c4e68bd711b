"""`penstock`: every command, what it takes and what it prints.

Exit codes: 0 all is well, 1 the command found something wrong (doctor) or failed on the way, 2 what was asked cannot be
done as it was asked, 130 interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.errors import LedgerError, PenstockError, UsageError

DEFAULT_APP = "penstock.examples.invoices:app"

cli = typer.Typer(
    name="penstock",
    help="A durable control plane for exchanging data with other people's APIs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
db = typer.Typer(help="The ledger's database.", no_args_is_help=True)
cli.add_typer(db, name="db")

LedgerOption = Annotated[
    str,
    typer.Option(
        "--ledger", envvar="PENSTOCK_LEDGER", help="sqlite:///path/to/penstock.db or postgresql://user@host/name."
    ),
]
AppOption = Annotated[str, typer.Option("--app", envvar="PENSTOCK_APP", help="The program's App, as module:attribute.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print exact JSON instead of tables.")]
DEFAULT_LEDGER = "sqlite:///penstock.db"


@cli.command()
def machines(
    app: AppOption = DEFAULT_APP,
    json: JsonOption = False,
    format: Annotated[Literal["table", "mermaid"], typer.Option(help="How to show them.")] = "table",  # noqa: A002
) -> None:
    """List the state machines: their states, and who may move a unit where."""
    from penstock.cli import show
    from penstock.runtime.app import load_app

    found = load_app(app).machines
    if json:
        show.print_json([m.definition() for m in found])
    elif format == "mermaid":
        typer.echo("\n".join(m.mermaid() for m in found), nl=False)
    else:
        show.machines(found)


@cli.command()
def status(ledger: LedgerOption = DEFAULT_LEDGER, json: JsonOption = False) -> None:
    """Show how every machine's units stand, who works on them, closed gates and alerts."""
    from penstock.cli import show
    from penstock.ledger import inspect

    with show.reading(ledger) as database:
        found = inspect.status(database)
    if json:
        show.print_json(found)
    else:
        show.status(found)


@cli.command()
def history(
    unit: Annotated[str, typer.Argument(help="machine:key, for example invoice:acme/17.")],
    ledger: LedgerOption = DEFAULT_LEDGER,
    json: JsonOption = False,
) -> None:
    """Print every transition of one unit: from, to, who, why, when."""
    from penstock.cli import show
    from penstock.ledger import inspect
    from penstock.unit import Ref

    ref = Ref.parse(unit)
    with show.reading(ledger) as database:
        found = inspect.history(database, ref)
    if json:
        show.print_json(found)
    else:
        show.history(ref, found)


@cli.command()
def doctor(ledger: LedgerOption = DEFAULT_LEDGER, app: AppOption = DEFAULT_APP, json: JsonOption = False) -> None:
    """Check the ledger for what must never be. Exit code 1 and a list when something is wrong."""
    from penstock.cli import show
    from penstock.ledger.doctor import CHECKS, examine
    from penstock.runtime.app import load_app

    known = {m.name: m for m in load_app(app).machines}
    with show.reading(ledger) as database, show.progress(len(CHECKS), quiet=json) as step:
        findings = examine(database, known, step)
    if json:
        show.print_json({"checks": list(CHECKS), "findings": findings})
    else:
        show.findings(findings, list(CHECKS))
    if findings:
        raise typer.Exit(1)


@cli.command()
def worker(
    ledger: LedgerOption = DEFAULT_LEDGER,
    app: AppOption = DEFAULT_APP,
    concurrency: Annotated[int, typer.Option(min=1, help="How many steps run at once.")] = 1_000,
) -> None:
    """Work until stopped: claim due units, step them, commit. SIGTERM and Ctrl-C finish or give back what is held."""
    from penstock.cli.run import run_worker

    run_worker(ledger, app, concurrency)


@cli.command()
def demo(
    dir: Annotated[Path, typer.Option("--dir", help="Where the demonstration keeps its ledger.")] = Path("demo"),  # noqa: A002
    once: Annotated[bool, typer.Option("--once", help="Stop when everything is done.")] = False,
    ledger: Annotated[str | None, typer.Option("--ledger", help="Another ledger than DIR/penstock.db.")] = None,
) -> None:
    """Send invoices to an API that throttles, breaks and loses answers; show that each arrives exactly once."""
    from penstock.cli.run import run_demo

    run_demo(dir, ledger, once=once)


@db.command("upgrade")
def db_upgrade(ledger: LedgerOption = DEFAULT_LEDGER, app: AppOption = DEFAULT_APP) -> None:
    """Create the ledger's tables and triggers, or bring them up to this program."""
    from penstock.ledger.ledger import Ledger
    from penstock.runtime.app import load_app

    found = load_app(app)
    with Ledger.open(ledger, found.machines, create=True, data_tables=found.data_tables) as opened:
        typer.echo(f"{opened.database.url} is ready: {', '.join(sorted(opened.machines))}")


def main() -> None:
    """Run the command line; an error of ours is one line, never a traceback."""
    # As with `python -m`: a program that stands in the present folder can be named by --app.
    sys.path.insert(0, "")
    try:
        cli()
    except (UsageError, LedgerError) as error:
        typer.echo(f"penstock: {error}", err=True)
        sys.exit(2)
    except PenstockError as error:
        typer.echo(f"penstock: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo("penstock: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone: nothing more to say, and Python must not complain at exit.
        sys.stderr.close()
        sys.exit(0)

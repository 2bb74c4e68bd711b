"""`penstock`: every command, what it takes and what it prints.

Exit codes: 0 all is well, 1 the command found something wrong (doctor) or failed on the way, 2 what was asked cannot be
done as it was asked, 130 interrupted.

A command imports what it needs when it runs, and a group's module does the same, so that help is quick.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.cli import harvest_prices as _harvest_prices  # noqa: F401 - its commands join those of harvest
from penstock.cli.database import db
from penstock.cli.events import events
from penstock.cli.harvest import harvest
from penstock.cli.options import AppOption, ConfigOption, JsonOption, LedgerOption, echo, settle
from penstock.cli.partitions import partitions
from penstock.cli.providers import providers
from penstock.cli.raw import raw
from penstock.cli.reports import reports
from penstock.cli.schedules import schedules
from penstock.model.errors import LedgerError, LedgerUnavailable, PenstockError, UsageError
from penstock.settings.redaction import last_words, redact

cli = typer.Typer(
    name="penstock",
    help="A durable control plane for exchanging data with other people's APIs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, in half the time: Rich is loaded by what shows tables
)
cli.add_typer(db, name="db")
cli.add_typer(events, name="events")
cli.add_typer(harvest, name="harvest")
cli.add_typer(partitions, name="partitions")
cli.add_typer(providers, name="providers")
cli.add_typer(raw, name="raw")
cli.add_typer(reports, name="reports")
cli.add_typer(schedules, name="schedules")

ConcurrencyOption = Annotated[
    int | None, typer.Option("--concurrency", help="How many steps run at once; else PENSTOCK_CONCURRENCY, else 1000.")
]
LogLevelOption = Annotated[
    str | None, typer.Option("--log-level", help="debug, info, warning or error; else PENSTOCK_LOG, else info.")
]


@cli.command()
def init(
    dir: Annotated[Path, typer.Option("--dir", help="Where to write penstock.toml.")] = Path(),  # noqa: A002
    app: AppOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a commented penstock.toml that works as it is."""
    from penstock.cli.init import next_steps, write_sample

    for line in next_steps(write_sample(dir, app, force=force), app):
        echo(line)


@cli.command()
def up(
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    app: AppOption = None,
    concurrency: ConcurrencyOption = None,
    log_level: LogLevelOption = None,
) -> None:
    """Run everything in one process: keep the schedules of the configuration, and work until stopped."""
    from penstock.cli.run import run_worker

    run_worker(config, _wishes(ledger, app, concurrency, log_level), scheduler=True)


@cli.command()
def worker(
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    app: AppOption = None,
    concurrency: ConcurrencyOption = None,
    log_level: LogLevelOption = None,
) -> None:
    """Work until stopped: claim due units, step them, commit. SIGTERM and Ctrl-C finish or give back what is held."""
    from penstock.cli.run import run_worker

    run_worker(config, _wishes(ledger, app, concurrency, log_level), scheduler=False)


def _wishes(
    ledger: str | None, app: str | None, concurrency: int | None, log_level: str | None
) -> dict[str, str | int | None]:
    return {"ledger.url": ledger, "app": app, "worker.concurrency": concurrency, "log.level": log_level}


@cli.command()
def machines(
    config: ConfigOption = None,
    app: AppOption = None,
    json: JsonOption = False,
    format: Annotated[Literal["table", "mermaid"], typer.Option(help="How to show them.")] = "table",  # noqa: A002
) -> None:
    """List the state machines: their states, and who may move a unit where."""
    from penstock.cli import show

    found = settle(config, {"app": app}, program=True).app.machines
    if json:
        show.print_json([m.definition() for m in found])
    elif format == "mermaid":
        echo("\n".join(m.mermaid() for m in found), nl=False)
    else:
        show.machines(found)


@cli.command()
def status(config: ConfigOption = None, ledger: LedgerOption = None, json: JsonOption = False) -> None:
    """Show how every machine's units stand, who works on them, closed gates and alerts."""
    from penstock.cli import show
    from penstock.ledger import history

    with show.reading(settle(config, {"ledger.url": ledger}).url) as database:
        found = history.status(database)
    if json:
        show.print_json(found)
    else:
        show.status(found)


@cli.command()
def why(
    unit: Annotated[str, typer.Argument(help="machine:key, for example invoice:acme/17.")],
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Say what holds a unit back or moves it on: state, due, claim, gate, budget, family, decision; and until when."""
    from penstock.cli import show
    from penstock.ledger.ledger import Ledger
    from penstock.model.unit import Ref
    from penstock.operations.why import explain

    ref = Ref.parse(unit)
    setup = settle(config, {"ledger.url": ledger, "app": app}, program=True)
    with Ledger.open(setup.url, setup.app.machines, migrations=setup.app.migrations) as opened:
        flows = {flow.machine.name: flow for flow in setup.app.make_flows(setup.config)}
        found = explain(opened, flows, ref)
    if json:
        show.print_json(found)
    else:
        show.why(found)


@cli.command()
def history(
    unit: Annotated[str, typer.Argument(help="machine:key, for example invoice:acme/17.")],
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="INSTANT", help="How it stood then, for example 2026-11-15T19:31:00Z."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Print every transition of one unit: from, to, who, why, when. Or how it stood at one moment."""
    from penstock.cli import show
    from penstock.ledger import history
    from penstock.model.unit import Ref

    ref, moment = Ref.parse(unit), show.moment(as_of) if as_of else None
    with show.reading(settle(config, {"ledger.url": ledger}).url) as database:
        if moment is not None:
            then = history.as_of(database, ref, moment)
            show.print_json(then) if json else show.as_of(then)
            return
        found = history.history(database, ref)
    if json:
        show.print_json(found)
    else:
        show.history(ref, found)


@cli.command()
def doctor(
    config: ConfigOption = None, ledger: LedgerOption = None, app: AppOption = None, json: JsonOption = False
) -> None:
    """Check the ledger for what must never be, and for what soon will be. Exit code 1 when something is wrong."""
    from penstock.app.examination import NAMES, examine_program
    from penstock.cli import show
    from penstock.ledger.care.finding import Finding

    setup = settle(config, {"ledger.url": ledger, "app": app}, program=True)
    connections = setup.config["ledger.connections"]
    with show.reading(setup.url, connections) as database, show.progress(len(NAMES), quiet=json) as step:
        findings = examine_program(database, setup.app, setup.config, step)
    where = str(setup.config.path or "no file")
    findings += [Finding("configuration", where, line, "warning") for line in setup.app.warn(setup.config)]
    checks = [*NAMES, "configuration"]
    if json:
        show.print_json({"checks": checks, "findings": findings})
    else:
        show.findings(findings, checks)
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(1)


@cli.command()
def demo(
    dir: Annotated[Path, typer.Option("--dir", help="Where its ledger and its data are kept.")] = Path("demo"),  # noqa: A002
    once: Annotated[bool, typer.Option("--once", help="Stop when the days are over.")] = False,
    ledger: Annotated[str | None, typer.Option("--ledger", help="Another ledger than DIR/penstock.db.")] = None,
) -> None:
    """Run the lifecycles against simulated APIs over sixty days that pass in seconds, and show what happened."""
    from penstock.cli.demo import run_demo

    run_demo(dir, ledger, once=once)


@functools.cache
def command() -> Callable[[], None]:
    """All commands, ready to be called. Called as it is, `cli` would put its own hook for bugs in place of ours."""
    return typer.main.get_command(cli)


def main() -> None:
    """Run the command line; an error of ours is one line, never a traceback."""
    sys.excepthook = last_words
    try:
        command()()
    except (UsageError, LedgerError) as error:
        _say(error)
        sys.exit(2)
    except PenstockError as error:
        _say(error)
        sys.exit(1)
    except KeyboardInterrupt:
        echo("penstock: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone: nothing more to say, and Python must not complain at exit.
        sys.stderr.close()
        sys.exit(0)


def _say(error: PenstockError) -> None:
    """One line for each thing that is wrong."""
    advice = "; is it running, and is --ledger right?" if isinstance(error, LedgerUnavailable) else ""
    for line in redact(f"{error}{advice}").split("\n"):
        echo(f"penstock: {line}", err=True)

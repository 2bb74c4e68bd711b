"""`penstock`: every command, what it takes and what it prints.

Exit codes: 0 all is well, 1 the command found something wrong (doctor) or failed on the way, 2 what was asked cannot be
done as it was asked, 130 interrupted.

The root knows its commands by a table, and lifecycles by the sections of `penstock.toml`: help imports nothing else.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from penstock.app.shipped import SHIPPED, shipped
from penstock.cli.lazy import Entry, LazyGroup
from penstock.cli.terminal import Declined, echo
from penstock.model.errors import LedgerError, LedgerUnavailable, PenstockError, UsageError

ON = "Lifecycles switched on here"
OFF = "Lifecycles that can be switched on, by [NAME] in penstock.toml"

COMMANDS = {
    "init": Entry("Run", "Write a commented penstock.toml that works as it is.", "penstock.cli.init:command"),
    "new": Entry("Run", "Write a small lifecycle of your own, with tests.", "penstock.cli.new:command"),
    "up": Entry("Run", "Run everything in one process: schedules and work.", "penstock.cli.run:up"),
    "worker": Entry("Run", "Work until stopped; run as many as you like.", "penstock.cli.run:worker"),
    "web": Entry("Run", "Serve the desk and the API alone.", "penstock.cli.run:web"),
    "demo": Entry("Run", "Sixty days against simulated APIs, in seconds.", "penstock.cli.run:demo"),
    "simulator": Entry("Run", "Serve a simulated API by itself.", "penstock.cli.simulator:command"),
    "completion": Entry("Run", "Print the completion script of a shell.", "penstock.cli.completion:command"),
    "status": Entry("Look", "How everything stands: units, workers, gates, alerts."),
    "needs": Entry("Look", "What needs a person; then what waits by itself, and until when."),
    "find": Entry("Look", "Units, runs, gates and machines, by a piece of their name."),
    "stuck": Entry("Look", "Units that stay in a state for longer than it allows."),
    "workers": Entry("Look", "Workers that hold a lease."),
    "flow": Entry("Look", "Edges taken, time spent in states, and how units ended."),
    "activity": Entry("Look", "How much happened, hour by hour."),
    "forecast": Entry("Look", "What happens next, and what is asked of each gate."),
    "machines": Entry("Look", "State machines: their states, and who moves units where."),
    "why": Entry("Look", "What holds a unit back or moves it on, and until when."),
    "history": Entry("Look", "Every transition of one unit, or its state at a moment."),
    "events": Entry("Look", "Events, and whom they were delivered to."),
    "alerts": Entry("Act", "Alerts: acknowledge, silence, resolve, and try the sinks."),
    "units": Entry("Act", "Units of any machine: list, create, move, wake, park."),
    "dead": Entry("Act", "Dead letters, grouped by cause: retry or dismiss them."),
    "bulk": Entry("Act", "Bulk actions: watch or cancel them."),
    "gates": Entry("Act", "Gates to providers: budgets, pause and resume."),
    "schedules": Entry("Act", "Periodic jobs: run, pause and resume them."),
    "raw": Entry("Act", "Landed data: collect what nobody needs."),
    "token": Entry("Act", "Tokens for the API and the desk: give out, revoke."),
    "doctor": Entry("Look after the ledger", "Look for what is wrong, and for what soon will be."),
    "guards": Entry("Look after the ledger", "What is wrong with the triggers that guard the tables."),
    "db": Entry("Look after the ledger", "Make, check, back up, prune and open it.", "penstock.cli.database:command"),
}
"""The commands of the root. Those without a place are declared by the kernel's own lifecycle."""


class Root(LazyGroup):
    """Commands, the kernel's declarations, and the lifecycles."""

    def entries(self, ctx: click.Context) -> dict[str, Entry]:
        """What root help shows. It reads `penstock.toml` and imports none but the lifecycles that the file names."""
        raw = _sections(ctx)
        own = _own(raw)
        on = {name: Entry(ON, SHIPPED[name].says) for name in SHIPPED if name in raw}
        on |= {name: Entry(ON, "Brought by an installed package.") for name in raw if name not in {*SHIPPED, *own}}
        on |= {name: Entry(ON, says) for name, says in own.items()}
        off = {name: Entry(OFF, shipped.says) for name, shipped in SHIPPED.items() if name not in on}
        return {**COMMANDS, **on, **off}

    def entry(self, ctx: click.Context, name: str) -> Entry | None:
        """One that every program has is found without a look at the configuration."""
        if name in SHIPPED:
            return Entry(OFF, SHIPPED[name].says)
        return COMMANDS.get(name) or super().entry(ctx, name)

    def load(self, ctx: click.Context, name: str) -> click.Command | None:
        """A command of the kernel's declarations, or a lifecycle's group."""
        from penstock.cli import declared

        if name in SHIPPED:
            return declared.lifecycle_group(shipped(name))
        if name not in COMMANDS and name in self.entries(ctx):
            from penstock.cli.setup import load_program

            return declared.lifecycle_group(load_program(_config(ctx)).app.lifecycle(name))
        from penstock.app.kernel import lifecycle as kernel

        return declared.root_command(kernel, name, COMMANDS[name].says if name in COMMANDS else None)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A lifecycle may be switched on by the file that `--config` names further on."""
        for place, argument in enumerate(args):
            if argument.startswith("--config="):
                ctx.meta[_CONFIG] = argument.partition("=")[2]
            elif argument == "--config":
                ctx.meta[_CONFIG] = "".join(args[place + 1 : place + 2])
        return super().resolve_command(ctx, args)


_CONFIG = "penstock.config"
KERNEL = frozenset({"ledger", "worker", "log", "gates", "schedules", "prune", "raw", "web", "alerts", "otlp"})
"""Sections of the kernel's own, which switch nothing on."""


def _config(ctx: click.Context) -> Path | None:
    named = ctx.meta.get(_CONFIG)
    return Path(named) if named else None


def _sections(ctx: click.Context) -> dict[str, Any]:
    """The lifecycles that the configuration switches on. A file that cannot be read says so when it is needed."""
    import tomllib

    path = _config(ctx) or Path(os.environ.get("PENSTOCK_CONFIG") or "penstock.toml")
    try:
        with path.open("rb") as file:
            raw = tomllib.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    named = raw.get("lifecycles")
    found = {n: v for n, v in raw.items() if isinstance(v, dict) and n not in KERNEL and v.get("enabled") is not False}
    return {**found, **({"": named} if isinstance(named, list) else {})}


def _own(raw: dict[str, Any]) -> dict[str, str]:
    """The lifecycles that the file names by their modules, which are light; one that cannot be imported is left out."""
    places = raw.pop("", [])
    if not places:
        return {}
    from penstock.app.named import import_lifecycle, look_for_modules

    look_for_modules()
    found = {}
    for place in places:
        try:
            lifecycle = import_lifecycle(str(place))
        except UsageError:
            continue
        found[lifecycle.name] = lifecycle.says
    return found


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        echo(f"penstock {version('penstock')}")
        ctx.exit()


cli = Root(
    name="penstock",
    help="A durable control plane for exchanging data with other people's APIs.",
    epilog="'penstock COMMAND --help' explains one.",
    params=[
        click.Option(
            ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
        )
    ],
)


def main() -> None:
    """Run the command line; an error of ours is one line, never a traceback."""
    sys.excepthook = _last_words
    try:
        code = cli.main(prog_name="penstock", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as nothing:
        echo(nothing.ctx.get_help() if nothing.ctx else nothing.format_message())
        sys.exit(2)
    except click.ClickException as error:
        _say(_worded(error))
        sys.exit(2)
    except (UsageError, LedgerError) as error:
        _say(f"{error}{'; is it running, and is --ledger right?' if isinstance(error, LedgerUnavailable) else ''}")
        sys.exit(2)
    except PenstockError as error:
        _say(str(error))
        sys.exit(1)
    except Declined:
        echo("nothing was changed", err=True)
        sys.exit(1)
    except (KeyboardInterrupt, click.Abort):
        echo("penstock: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone: nothing more to say, and Python must not complain at exit.
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _last_words(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    from penstock.settings.redaction import last_words

    last_words(kind, error, trace)


def _say(error: str) -> None:
    """One line for each thing that is wrong."""
    from penstock.settings.redaction import redact

    for line in redact(error).split("\n"):
        echo(f"penstock: {line}", err=True)


def _worded(error: click.ClickException) -> str:
    """What Click found wrong, in our words."""
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else "penstock"
    if isinstance(error, click.MissingParameter) and error.param is not None:
        named, says = _named(error.param), getattr(error.param, "help", None) or ""
        return f"{path} needs {named}" + (f": {says[0].lower()}{says[1:].removesuffix('.')}" if says else "")
    if isinstance(error, click.BadParameter) and error.param is not None:
        return f"{_named(error.param, bare=True)} {error.message}"
    if isinstance(error, click.NoSuchOption):
        near = f"did you mean {error.possibilities[0]}?" if error.possibilities else f"'{path} --help' lists them"
        return f"{path} has no option {error.option_name}; {near}"
    if isinstance(error, click.BadOptionUsage):
        return f"{error.option_name} needs a value"
    message = error.format_message().replace("Got unexpected extra argument", "it takes no further argument")
    if isinstance(error, click.UsageError) and path not in message and "--" not in message:
        return f"{path}: {message.removesuffix('.')}; '{path} --help' says what it takes"
    return message.removesuffix(".")


def _named(param: click.Parameter, *, bare: bool = False) -> str:
    if isinstance(param, click.Argument):
        return param.make_metavar(click.Context(click.Command("penstock"))).strip("[]")
    metavar = "" if bare or getattr(param, "is_flag", False) else f" {getattr(param, 'metavar', None) or 'TEXT'}"
    return f"{max(param.opts, key=len)}{metavar}"

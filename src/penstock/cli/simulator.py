"""`penstock simulator NAME`: one of the shipped simulators by itself, on loopback, until Ctrl-C.

Standard output is TOML: the lines of a configuration that point at it, and comments for whoever reads along.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import click

from penstock.cli.lazy import SETTINGS, Entry, LazyGroup
from penstock.cli.terminal import echo
from penstock.model.errors import UsageError
from penstock.simulators.catalogue import SIMULATORS, Served, Simulator


class _Simulators(LazyGroup):
    """A command for every row of the catalogue."""

    def entries(self, ctx: click.Context) -> dict[str, Entry]:  # noqa: ARG002 - one shape
        return {name: Entry("Simulators", simulator.says) for name, simulator in SIMULATORS.items()}

    def load(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        found = SIMULATORS.get(name)
        return None if found is None else _command(found)


def _list(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:  # noqa: ARG001 - Click's shape
    if not wanted:
        return
    width = max(map(len, SIMULATORS))
    for simulator in SIMULATORS.values():
        echo(f"{simulator.name:{width}}  {simulator.says}")
    context.exit()


command = _Simulators(
    name="simulator",
    help="""Serve the other side of a lifecycle on this machine, with faults.

    Prints the lines of penstock.toml that point at it, and serves until Ctrl-C.""",
    options_metavar="[--list]",
    params=[
        click.Option(
            ["--list"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_list,
            help="List the faults, and exit.",
        )
    ],
)


def _command(simulator: Simulator) -> click.Command:
    port = click.Option(
        ["--port"], type=click.IntRange(0, 65_535), default=0, help="Port on loopback; 0: any free one."
    )
    options = [
        click.Option(
            [f"--{option.name.replace('_', '-')}"],
            type=type(option.default),
            default=option.default,
            show_default=True,
            help=option.says,
        )
        for option in simulator.options
    ]
    if simulator.faults:
        help_ = "What goes wrong at the next call, or at every Nth; may be repeated."
        options.append(click.Option(["--fault"], multiple=True, metavar="OPERATION=FAULT[:N]", help=help_))

    def serve(port: int, fault: Sequence[str] = (), **given: Any) -> None:
        _serve(simulator, port, fault, given)

    return click.Command(
        simulator.name,
        params=[port, *options],
        callback=serve,
        context_settings=SETTINGS,
        help="\n\n".join([simulator.says, *_faults(simulator)]),
        short_help=simulator.says,
    )


def _faults(simulator: Simulator) -> Iterator[str]:
    if simulator.faults:
        width = max(map(len, simulator.faults))
        yield "\b\nFaults:\n" + "\n".join(f"  {name:{width}}  {says}" for name, says in simulator.faults.items())


def _serve(simulator: Simulator, port: int, faults: Sequence[str], given: dict[str, Any]) -> None:
    from penstock.model.clock import SystemClock

    for option in simulator.options:
        if given[option.name] < 0:
            raise UsageError(f"--{option.name.replace('_', '-')} cannot be negative")
    served = simulator.make(SystemClock(), given, [simulator.trouble(text) for text in faults])
    asyncio.run(_until_ended(simulator, served, port))


async def _until_ended(simulator: Simulator, served: Served, port: int) -> None:
    from penstock.simulators.server import serving

    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    try:
        async with serving(served.application, port) as address:
            echo("\n".join(_told(simulator, served, address)))
            await ended.wait()
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise UsageError(f"port {port} cannot be used: {why}; choose another with --port") from error


def _told(simulator: Simulator, served: Served, address: str) -> Iterator[str]:
    yield f"# {simulator.name} is served at {address} until Ctrl-C. These lines of penstock.toml point at it:"
    yield ""
    yield from served.lines(address)
    if served.secrets:
        yield "\n# Set these where Penstock runs:"
        yield from (f"#   export {name}='{value}'" for name, value in served.secrets.items())

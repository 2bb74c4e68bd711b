"""Every command of the command line, by its whole name."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import click

from penstock.cli.main import cli


@functools.cache
def commands() -> dict[str, click.Command]:
    """`penstock db upgrade` and so on, those of the shipped lifecycles too."""
    with click.Context(cli, info_name="penstock") as ctx:
        return dict(_walk(cli, ctx, "penstock"))


def parse(words: Sequence[str], *, resilient: bool = False) -> None:
    """Read a call of `penstock` as the command line does, without running it. Raises click.UsageError where it is none.

    `resilient`: what its values name need not be on this machine.
    """
    command: click.Command = cli
    rest = list(words)
    context = click.Context(command, info_name="penstock")
    while isinstance(command, click.Group) and rest:
        below = command.get_command(context, rest[0])
        if below is None:
            msg = f"there is no command {' '.join(words)!r}"
            raise click.UsageError(msg)
        command, context = below, click.Context(below, info_name=rest.pop(0), parent=context)
    if isinstance(command, click.Group):
        msg = f"{' '.join(words)!r} is a group of commands"
        raise click.UsageError(msg)
    if left := command.make_context(context.info_name, rest, resilient_parsing=resilient).args:
        msg = f"{' '.join(left)!r} is too much"
        raise click.UsageError(msg)


def _walk(group: click.Group, ctx: click.Context, path: str) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(ctx):
        found = group.get_command(ctx, name)
        assert found is not None, f"{path} {name} is listed, and is not there"
        if isinstance(found, click.Group):
            yield from _walk(found, ctx, f"{path} {name}")
        else:
            yield f"{path} {name}", found

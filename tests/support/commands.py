"""Every command of the command line, by its whole name."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import click

from penstock.cli.main import cli


@functools.cache
def commands() -> dict[str, click.Command]:
    """`penstock db upgrade` and so on, those of the shipped lifecycles too."""
    with click.Context(cli, info_name="penstock") as ctx:
        return dict(_walk(cli, ctx, "penstock"))


def _walk(group: click.Group, ctx: click.Context, path: str) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(ctx):
        found = group.get_command(ctx, name)
        assert found is not None, f"{path} {name} is listed, and is not there"
        if isinstance(found, click.Group):
            yield from _walk(found, ctx, f"{path} {name}")
        else:
            yield f"{path} {name}", found

"""A type of value on the command line, and what is said of one that is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from penstock.model.near import near


class Kind(click.ParamType[Any]):
    """One type of value. `must` follows "must be"."""

    def __init__(self, metavar: str, must: str, read: Callable[[str], Any], choices: Sequence[str] = ()) -> None:
        self.name = metavar
        self.must = must
        self.choices = choices
        self.read = read

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:  # noqa: ARG002 - Click's own shape
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value. Raises click.BadParameter with what it must be."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except ValueError:
            close = near(value, self.choices)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise click.BadParameter(f"must be {self.must}{hint}", ctx, param) from None

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """The choices that begin so; units, where one is wanted."""
        if self.name == "UNIT":
            from penstock.cli.completion import units

            return [CompletionItem(found) for found in units(ctx, incomplete)]
        return [CompletionItem(choice) for choice in self.choices if choice.startswith(incomplete)]

"""A type of value on the command line, and what is said of one that is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from penstock.model.near import near

if TYPE_CHECKING:
    from datetime import datetime, timedelta


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


def instant_kind(example: str | None = None) -> Kind:
    """A moment with its offset from UTC."""
    return Kind("INSTANT", f"an instant, for example {example or '2026-11-15T19:31:00Z'}", _instant)


def span_kind(example: str | None = None) -> Kind:
    """A length of time."""
    other = "90d" if example == "6h" else "6h"
    return Kind("SPAN", f"a span, for example {example or '90d'} or {other}", _span)


def _instant(text: str) -> datetime:
    from penstock.model.clock import parse_instant

    return parse_instant(text)


def _span(text: str) -> timedelta:
    from penstock.model.cadence import parse_span
    from penstock.model.errors import UsageError

    try:
        return parse_span(text)
    except UsageError as error:
        raise ValueError from error

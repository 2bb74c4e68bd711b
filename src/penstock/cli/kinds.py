"""A type of value on the command line, and what is said of one that is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from penstock.model.forms import Form, instant_form, span_form


class Kind(click.ParamType[Any]):
    """One type of value. `must` follows "must be"."""

    def __init__(self, metavar: str, must: str, read: Callable[[str], Any], choices: Sequence[str] = ()) -> None:
        self.name = metavar
        self.choices = choices
        self.form = Form(metavar, must, read, choices)

    @classmethod
    def of(cls, form: Form) -> Kind:
        """The type of what is written in that form."""
        return cls(form.name, form.must, form.read, form.choices)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:  # noqa: ARG002 - Click's own shape
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value. Raises click.BadParameter with what it must be."""
        if not isinstance(value, str):
            return value
        try:
            return self.form.read(value)
        except ValueError:
            raise click.BadParameter(self.form.refusal(value), ctx, param) from None

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """The choices that begin so; units, where one is wanted."""
        if self.name == "UNIT":
            from penstock.cli.completion import units

            return [CompletionItem(found) for found in units(ctx, incomplete)]
        return [CompletionItem(choice) for choice in self.choices if choice.startswith(incomplete)]


def instant_kind() -> Kind:
    """A moment with its offset from UTC."""
    return Kind.of(instant_form())


def span_kind() -> Kind:
    """A length of time."""
    return Kind.of(span_form())

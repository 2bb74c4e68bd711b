"""Groups that know their commands by name and sentence, and import one only when it is called."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from penstock.model.near import near

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_SECTIONS = ("Run", "Look", "Act", "Look after the ledger")


class Entry(NamedTuple):
    """A command in a group's help: where it stands, its sentence, and where it is (`module:attribute`)."""

    section: str
    says: str
    place: str = ""


class LazyGroup(click.Group):
    """A group of entries. One that has no place is made by `load`."""

    def __init__(self, **wishes: Any) -> None:
        wishes.setdefault("no_args_is_help", True)
        wishes.setdefault("context_settings", SETTINGS)
        wishes.setdefault("subcommand_metavar", "COMMAND …")
        wishes.setdefault("options_metavar", "")
        super().__init__(**wishes)

    def entries(self, ctx: click.Context) -> dict[str, Entry]:
        """All commands, by name."""
        raise NotImplementedError

    def entry(self, ctx: click.Context, name: str) -> Entry | None:
        """The one of that name."""
        return self.entries(ctx).get(name)

    def load(self, ctx: click.Context, name: str) -> click.Command | None:
        """Make a command that has no place."""
        raise NotImplementedError

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries(ctx))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.entry(ctx, cmd_name)
        if entry is None or not entry.place:
            return self.load(ctx, cmd_name)
        module, _, attribute = entry.place.partition(":")
        found: click.Command = getattr(importlib.import_module(module), attribute)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As Click does it, with a hint for a name that is not there."""
        name = args[0]
        found = self.get_command(ctx, name)
        if found is None and not ctx.resilient_parsing and not name.startswith("-"):
            close = near(name, self.list_commands(ctx), 2)
            hint = f"did you mean {' or '.join(close)}?" if close else f"'{ctx.command_path} --help' lists them"
            raise click.UsageError(f"{ctx.command_path} has no command {name!r}; {hint}", ctx)
        if found is None:
            return super().resolve_command(ctx, args)
        return name, found, args[1:]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names and sentences, without a look at the commands."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(n, help=e.says) for n, e in self.entries(ctx).items() if n.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A section for each kind; a sentence that does not fit its line is cut."""
        entries = self.entries(ctx)
        widest = max((len(name) for name in entries), default=0)
        room = formatter.width - widest - 4
        sections = list(dict.fromkeys([*_SECTIONS, *(entry.section for entry in entries.values())]))
        for section in sections:
            rows = [
                (name.ljust(widest), _cut(entry.says, room))
                for name, entry in entries.items()
                if entry.section == section
            ]
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows, col_max=widest)


def _cut(text: str, room: int) -> str:
    text = text.removesuffix(".")
    if len(text) <= room:
        return text
    return text[: room - 1].rsplit(" ", 1)[0].rstrip(" ,;:") + "…"

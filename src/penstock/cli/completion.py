"""`penstock completion`: the script that teaches a shell our commands, and what it is told of units."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.shell_completion import get_completion_class

from penstock.cli.kinds import Kind
from penstock.cli.terminal import echo

if TYPE_CHECKING:
    from penstock.ledger.store.database import Cursor

_SHELLS = ("bash", "zsh", "fish")
_MOST = 50
# After this mark Click leaves a paragraph as it is.
_HELP = """Print the completion script of a shell.

\b
bash: eval "$(penstock completion bash)"          in ~/.bashrc
zsh:  eval "$(penstock completion zsh)"           in ~/.zshrc
fish: penstock completion fish | source           in ~/.config/fish/config.fish
"""


def _shell(text: str) -> str:
    if text not in _SHELLS:
        raise ValueError
    return text


@click.command(help=_HELP)
@click.argument(
    "shell",
    type=Kind("bash|zsh|fish", "one of bash, zsh, fish", _shell, _SHELLS),
    metavar="SHELL",
    help="bash, zsh or fish.",
)
def command(shell: str) -> None:
    """Print the completion script."""
    from penstock.cli.main import cli

    found = get_completion_class(shell)
    assert found is not None  # noqa: S101 - Click has all three
    echo(found(cli, {}, "penstock", "_PENSTOCK_COMPLETE").source())
    if shell == "bash":
        # A unit's reference is one word.
        echo("COMP_WORDBREAKS=${COMP_WORDBREAKS//:}")


def units(ctx: click.Context, incomplete: str) -> list[str]:
    """References that begin so: machines first, then their units. Whatever is wrong, nothing is offered."""
    from penstock.cli.setup import load_program, reading

    try:
        program = load_program(ctx.params.get("_config"), ctx.params.get("_ledger"))
        machines = {machine.name: machine for machine in program.app.machines}
        name, colon, begun = incomplete.partition(":")
        if not colon:
            return [f"{one}:" for one in machines if one.startswith(name)]
        if name not in machines:
            return []
        table = machines[name].table

        def find(cursor: Cursor) -> list[str]:
            sql = f"SELECT unit_id FROM {table} WHERE unit_id >= :begun ORDER BY unit_id LIMIT {_MOST}"
            return [str(row[0]) for row in cursor.rows(sql, begun=begun)]

        with reading(program.configuration.ledger_url()) as database:
            found = database.read(find)
        return [f"{name}:{unit_id}" for unit_id in found if unit_id.startswith(begun)]
    except Exception:  # noqa: BLE001 - a shell that completes has nowhere to show an error
        return []

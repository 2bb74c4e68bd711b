"""The parts of the documentation that are made of declarations: `python -m tests.support.pages` writes them anew."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from penstock.app.app import App
from penstock.app.shipped import SHIPPED, shipped
from penstock.cli.declared import DeclaredCommand, row_of
from penstock.examples import invoices
from penstock.operations.alerts import runbook
from penstock.operations.declare import Lines, Operation, Reading
from penstock.operations.fields import fields_of
from penstock.settings.sample import reference
from tests.support.commands import commands

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = re.compile(r"<!-- generated: ([\w ]+) -->\n(.*?)<!-- end -->\n", re.DOTALL)
OF_EVERY_COMMAND = ("_config", "_ledger")
OF_EVERY_ACT = ("_reason", "_dry_run", "_yes", "_digest", "_by", "_json")
OF_EVERY_ANSWER = ("_json", "_csv")


def generated(what: str) -> str:
    """The text of a generated part: `commands`, `settings`, `runbook`, or the diagram of a machine."""
    if what == "commands":
        return "\n".join(line for name, command in commands().items() for line in _command(name, command))
    if what == "settings":
        return reference({name: shipped(name).settings for name in SHIPPED})
    if what == "runbook":
        return runbook.FILE.read_text()
    machines = {m.name: m for m in App(*map(shipped, SHIPPED), invoices.lifecycle).machines}
    return f"```mermaid\n{machines[what].mermaid()}```\n"


def _command(name: str, command: click.Command) -> Iterator[str]:
    yield from (f"### {name}", "", *_paragraphs(command.help or ""))
    declared = command.declared if isinstance(command, DeclaredCommand) else None
    common = {*OF_EVERY_COMMAND}
    if declared is not None:
        common |= {*(OF_EVERY_ACT if isinstance(declared, Operation) else OF_EVERY_ANSWER)}
    context = click.Context(command, info_name=name)
    rows = [(p.make_metavar(context), p.help or "") for p in command.params if isinstance(p, click.Argument)]
    options = [p for p in command.params if isinstance(p, click.Option) and p.name not in common]
    rows += [(", ".join([*p.opts, *p.secondary_opts]), p.help or "") for p in options]
    yield from _table("argument or option", rows)
    if isinstance(declared, Operation) and not declared.wants_reason:
        yield from ("It can be done without a `--reason`.", "")
    elif isinstance(declared, Reading):
        yield from _answer(declared, [p.opts[0] for p in command.params if p.name in OF_EVERY_ANSWER])


def _answer(declared: Reading[Any], ways: list[str]) -> Iterator[str]:
    row = row_of(declared)
    kind = row or declared.answer
    told = " and ".join(f"`{way}`" for way in ways)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield from (
            f"{told} {'give' if len(ways) > 1 else 'gives'} {'for each row' if row else 'one object with'}:",
            "",
        )
        yield from _table("field", [(one.name, one.says) for one in fields_of(kind)])
    elif declared.answer is not Lines:
        yield from (f"It takes {told} too.", "")


def _table(heading: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    if rows:
        yield from (f"| {heading} | meaning |", "|---|---|")
        yield from (f"| `{_cell(what)}` | {_cell(says)} |" for what, says in rows)
        yield ""


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        # Click leaves a paragraph that begins with this mark as it is.
        if paragraph.startswith("\b"):
            yield from ("```text", *paragraph.splitlines()[1:], "```", "")
        else:
            yield from (" ".join(paragraph.split()), "")


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def rewritten(text: str, make: Callable[[str], str] = generated) -> str:
    """A page with its generated parts as they are to be."""
    return GENERATED.sub(lambda found: f"<!-- generated: {found[1]} -->\n{make(found[1])}<!-- end -->\n", text)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(rewritten(path.read_text()))

"""Commands made of declarations: a reading or an operation gives its options, its help and what it prints.

`penstock reports datasets --status failed` asks the reading `datasets` of the lifecycle `reports`; those of the kernel
stand at the root. Words of a name that several share are a group.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

import click

from penstock.cli.kinds import Kind
from penstock.cli.lazy import Entry, LazyGroup
from penstock.cli.options import config_option, flag, ledger_option
from penstock.model.clock import SystemClock
from penstock.model.errors import UsageError
from penstock.operations.conversion import form_of
from penstock.operations.declare import Declaration, Lines, Operation, Page, Reading
from penstock.operations.fields import FieldInfo, fields_of
from penstock.operations.words import word

if TYPE_CHECKING:
    from penstock.app.lifecycle import AnyLifecycle


_WIDEST = 20
_COLUMN = 28


@dataclass(frozen=True, slots=True)
class Wishes:
    """The options that every command of a kind has."""

    config: Path | None = None
    ledger: str | None = None
    json: bool = False
    csv: bool = False
    reason: str = ""
    dry_run: bool = False
    yes: bool = False
    digest: str | None = None
    by: str | None = None


@dataclass(slots=True)
class _Node:
    """A word of a command's name: a command, or the group of those that follow it."""

    declared: Declaration | None = None
    below: dict[str, _Node] = field(default_factory=dict)


class DeclaredGroup(LazyGroup):
    """A group whose commands are made of declarations when they are called."""

    def __init__(self, lifecycle: AnyLifecycle, node: _Node, **wishes: Any) -> None:
        super().__init__(**wishes)
        self._lifecycle = lifecycle
        self._node = node

    def entries(self, ctx: click.Context) -> dict[str, Entry]:  # noqa: ARG002 - Click's own shape
        """What stands in its help, without a look at parameters."""
        return {
            name: Entry(_section(node), node.declared.says if node.declared else _names(node))
            for name, node in self._node.below.items()
        }

    def load(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002 - Click's own shape
        node = self._node.below.get(name)
        return None if node is None else _made(self._lifecycle, name, node)


def lifecycle_group(lifecycle: AnyLifecycle) -> DeclaredGroup:
    """All commands of a lifecycle. Raises UsageError where a command is a group too."""
    return DeclaredGroup(lifecycle, _tree(lifecycle), name=lifecycle.name, help=lifecycle.says)


def root_command(kernel: AnyLifecycle, name: str, says: str | None = None) -> click.Command | None:
    """The command or group of the kernel's lifecycle that stands at the root."""
    node = _tree(kernel).below.get(name)
    return None if node is None else _made(kernel, name, node, says)


def _made(lifecycle: AnyLifecycle, name: str, node: _Node, says: str | None = None) -> click.Command:
    if node.declared is not None:
        return command(lifecycle, node.declared, name)
    return DeclaredGroup(lifecycle, node, name=name, help=says or _names(node))


def _tree(lifecycle: AnyLifecycle) -> _Node:
    root = _Node()
    every: list[Declaration] = [*lifecycle.readings, *lifecycle.operations]
    for declared in every:
        node = root
        for part in declared.path:
            node = node.below.setdefault(part, _Node())
            if node.declared is not None:
                _refuse(lifecycle, node.declared, declared)
        if node.below:
            _refuse(lifecycle, declared, next(iter(_all(node))))
        node.declared = declared
    return root


def _refuse(lifecycle: AnyLifecycle, one: Declaration, other: Declaration) -> None:
    msg = f"{lifecycle.name}: {one.name!r} and {other.name!r} cannot both be commands; rename one of them"
    raise UsageError(msg)


def _all(node: _Node) -> Iterable[Declaration]:
    for below in node.below.values():
        if below.declared is not None:
            yield below.declared
        yield from _all(below)


def _names(node: _Node) -> str:
    return f"Commands: {', '.join(node.below)}."


def _section(node: _Node) -> str:
    kinds = {type(node.declared)} if node.declared is not None else {type(one) for one in _all(node)}
    return "Look" if kinds == {Reading} else "Act"


# -- one command


def command(lifecycle: AnyLifecycle, declared: Declaration, name: str) -> click.Command:
    """The command of one declaration."""
    fields = list(fields_of(declared.parameters))
    own = [_parameter(one) for one in fields if not one.extra("stdin")]
    common = list(_common(declared))
    _refuse_taken(declared, own, common)
    return DeclaredCommand(lifecycle, declared, fields, name=name, help=declared.help, params=[*own, *common])


class DeclaredCommand(click.Command):
    """Asks a reading, or plans an operation and carries it out."""

    def __init__(self, lifecycle: AnyLifecycle, declared: Declaration, fields: list[FieldInfo], **wishes: Any) -> None:
        super().__init__(**wishes)
        self.lifecycle = lifecycle
        self.declared = declared
        self._fields = fields

    def invoke(self, ctx: click.Context) -> Any:
        """Returns the exit code."""
        given = dict(ctx.params)
        wishes = Wishes(**{name[1:]: given.pop(name) for name in list(given) if name.startswith("_")})
        if isinstance(self.declared, Operation):
            _require_reason(self.declared, wishes, ctx)
        parameters = self._parameters(given, ctx)
        if isinstance(self.declared, Reading):
            from penstock.cli.asking import ask

            return ask(self.lifecycle, self.declared, parameters, wishes)
        from penstock.cli.acting import act

        return act(self.lifecycle, self.declared, parameters, wishes)

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """They stand above the options, aligned with them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Its own options, and those that every command has."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Options of every command": []}
        for one in self.get_params(ctx):
            record = one.get_help_record(ctx)
            if record is not None and not isinstance(one, click.Argument):
                common = (one.name or "_").startswith("_") or one.name == "help"
                sections["Options of every command" if common else "Options"].append(record)
        widest = max((len(name) for rows in sections.values() for name, _ in rows if len(name) <= _COLUMN), default=0)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl([(name.ljust(widest), says) for name, says in rows], col_max=_COLUMN)

    def _parameters(self, given: Mapping[str, Any], ctx: click.Context) -> Any:
        values = {}
        for one in self._fields:
            if one.extra("stdin"):
                # Never where something was said by options: what started us may have left its own input to us.
                options = [other for other in self._fields if not other.extra("argument") and not other.extra("stdin")]
                if not any(given[other.attribute] for other in options):
                    values[one.attribute] = _lines(ctx)
                continue
            value = given[one.attribute]
            if value is None or (one.many is not None and not value and not one.required):
                continue
            values[one.attribute] = list(value) if one.many is not None else value
        try:
            return self.declared.parameters(**values)
        except ValueError as error:
            raise click.UsageError(str(error), ctx) from error


def _lines(ctx: click.Context) -> list[dict[str, Any]]:
    """The JSON objects of standard input, one a line; none where a person would have to type them."""
    import json

    found: list[dict[str, Any]] = []
    if sys.stdin.isatty():
        return found
    for number, line in enumerate(sys.stdin.buffer, start=1):  # read as UTF-8, whatever the terminal speaks
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise click.UsageError(f"line {number} of standard input is not a JSON object", ctx)
        found.append(value)
    return found


def _parameter(one: FieldInfo) -> click.Parameter:
    kind = Kind.of(form_of(one))
    many = one.many is not None
    if one.extra("argument"):
        metavar = _metavar(one.name)
        return click.Argument(
            [one.attribute],
            type=kind,
            required=one.required,
            nargs=-1 if many else 1,
            metavar=f"{metavar if one.required else f'[{metavar}]'}{'...' if many else ''}",
            help=f"{one.says} One of {', '.join(kind.choices)}." if kind.choices else one.says,
        )
    names = [one.attribute, f"--{_dashed(one.name)}"]
    if one.extra("short"):
        names.append(f"-{one.extra('short')}")
    if one.choices == (bool,):
        if one.default or type(None) in get_args(one.kind):
            names[1] = f"--{_dashed(one.name)}/--no-{_dashed(one.name)}"
        says = f"{one.says}  [default: {_dashed(one.name)}]" if one.default else one.says
        return click.Option(names, is_flag=True, default=None, help=says)
    return click.Option(
        names,
        type=kind,
        required=one.required,
        multiple=many,
        help=_help(one, kind, many=many),
        metavar=kind.name if len(kind.name) <= _WIDEST else _metavar(one.name),
    )


def _metavar(name: str) -> str:
    return name.upper().replace("_", "-")


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _help(one: FieldInfo, kind: Kind, *, many: bool) -> str:
    """What it says, how it is given, and what it is where it is not given."""
    said = [one.says]
    if len(kind.name) > _WIDEST:
        said.append(f"One of {', '.join(kind.choices)}.")
    if many:
        said.append("May be repeated.")
    if not one.required and one.default not in (None, "", [], (), False):
        default = ", ".join(map(str, one.default)) if many else _written(one.default)
        said.append(f" [default: {default}]")
    return " ".join(said)


def _written(value: Any) -> str:
    return word(value, SystemClock().now(), exact=True)


def _common(declared: Declaration) -> Iterable[click.Option]:
    if isinstance(declared, Operation):
        yield click.Option(
            ["_reason", "--reason"], metavar="TEXT", default="", help="Why, for the history.", show_default=False
        )
        yield flag("dry-run", "Show what it would do, and change nothing.")
        yield flag("yes", "Do not ask.")
        yield click.Option(
            ["_digest", "--digest"], metavar="DIGEST", help="Make only the change that was shown with this digest."
        )
        yield click.Option(
            ["_by", "--by"], metavar="NAME", help="Who does it, for the history; by default your login name."
        )
    if not isinstance(declared, Reading) or declared.answer is not Lines:
        yield flag("json", "Print exact JSON.")
    if isinstance(declared, Reading) and row_of(declared) is not None:
        yield flag("csv", "Print CSV.")
    yield config_option()
    yield ledger_option()


def row_of(declared: Reading[Any]) -> Any:
    """The type of a page's rows; None for any other answer."""
    return get_args(declared.answer)[0] if get_origin(declared.answer) is Page else None


def _refuse_taken(declared: Declaration, own: Iterable[click.Parameter], common: Iterable[click.Parameter]) -> None:
    taken = {name for one in common for name in one.opts}
    for one in own:
        for name in (*one.opts, *one.secondary_opts):
            if name in taken and isinstance(one, click.Option):
                msg = f"{declared.name}: {name} is an option of every command; give the parameter another name"
                raise UsageError(msg)


def _require_reason(declared: Operation[Any], wishes: Wishes, ctx: click.Context) -> None:
    if declared.wants_reason and not wishes.reason.strip() and not wishes.dry_run:
        if ctx.get_parameter_source("_reason") is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError("--reason is empty; the history keeps why something was done by hand", ctx)
        raise click.UsageError(f"{ctx.command_path} needs --reason TEXT: why, for the history", ctx)

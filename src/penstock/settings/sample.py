"""What is made of declared settings alone: the commented `penstock.toml`, and the tables of the docs.

In the sample a line that begins with `#` and no space is a setting that is commented out: its default, or an example
where it has none. So the file works as it is, and changes nothing but which lifecycles are on.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from typing import Any

from msgspec.structs import replace

from penstock.settings.file import ENABLED, KernelSettings
from penstock.settings.reader import wanted
from penstock.settings.secret import WANTED as WANTED_SECRET
from penstock.settings.shapes import REQUIRED, Field, Items, Section, Shape, Table, fields_of, write
from penstock.settings.typed import Settings

_WIDTH = 98
_OPENING = (
    "Penstock's configuration. A line that begins with # and no space is commented out:"
    " it shows a default, or an example where there is none."
)
_ENABLED = "The section switches its lifecycle on; false switches it off again."
Path = tuple[str, ...]


def toml(value: Any) -> str:
    """A value as TOML has it, on one line."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(name)} = {toml(item)}" for name, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, float):
        return repr(value)
    # JSON leaves alone the one control character that TOML does not.
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")


def sample(
    kernel: type[Settings] = KernelSettings,
    kinds: Mapping[str, type[Settings]] | None = None,
    *,
    on: Collection[str] = (),
    about: Mapping[str, str] | None = None,
) -> str:
    """The commented file: every setting with its sentence, at its default. The lifecycles in `on` are switched on.

    `about` has a sentence for each lifecycle.
    """
    lines = [*_comment(_OPENING), *_section(kernel, (), active=True)]
    for name, kind in (kinds or {}).items():
        lines += ["", *_comment((about or {}).get(name, ""))]
        lines += [f"{'' if name in on else '#'}[{_key(name)}]", *_comment(_ENABLED), f"#{ENABLED} = true"]
        lines += _section(kind, (name,), active=name in on)
    return "\n".join([*lines, ""])


def reference(kinds: Mapping[str, type[Settings]], kernel: type[Settings] = KernelSettings) -> str:
    """The tables of the docs, one for the kernel and one for each lifecycle; a `*` stands for a name of your own."""
    parts = ["### The kernel", "", *_table(kernel, ())]
    for name, kind in kinds.items():
        own = f"| `{name}.{ENABLED}` | true or false | `true` |  | {_ENABLED} |"
        head, line, *rows = _table(kind, (name,))
        parts += ["", f"### [{name}]", "", head, line, own, *rows]
    return "\n".join([*parts, ""])


def _section(kind: type[Settings], at: Path, *, active: bool, defaults: Any = None) -> Iterator[str]:
    """The settings of a section, then the sections below it; those of a section that is off are comments too."""
    fields = _fields(kind, defaults)
    for field in fields:
        if _is_line(field, at):
            yield from (["", *_told(field)] if not at else _told(field))
            yield f"#{_key(field.key)} = {toml(_shown(field, at))}"
    for field in fields:
        path = (*at, field.key)
        if isinstance(field.shape, Section):
            runs = active and field.default is not None
            yield from ("", *_told(field), f"{'' if runs else '#'}[{_dotted(path)}]")
            yield from _section(field.shape.kind, path, active=runs, defaults=field.default)
        elif isinstance(field.shape, Table) and not _is_line(field, at):
            yield from _named(field, field.shape, path)


def _named(field: Field, shape: Table, at: Path) -> Iterator[str]:
    """Examples of what has a name of its own."""
    examples = write(shape, field.default) if field.default else field.says.examples
    yield from ("", *_told(field))
    if not isinstance(shape.item, Section):
        yield f"#[{_dotted(at)}]"
        shown = examples if isinstance(examples, Mapping) else {"name": _example(shape.item, at)}
        yield from (f"#{_key(name)} = {toml(value)}" for name, value in shown.items())
        return
    if isinstance(examples, Mapping):
        for place, (name, given) in enumerate(examples.items()):
            yield from ([""] if place else [])
            yield from _given(shape.item.kind, (*at, name), given)
        return
    for place, name in enumerate(examples or ["example"]):
        yield from ([""] if place else [])
        yield f"#[{_dotted((*at, name))}]"
        yield from _section(shape.item.kind, (*at, name), active=False)


def _given(kind: type[Settings], at: Path, given: Mapping[str, Any]) -> Iterator[str]:
    """A sub-section that is an example, with what it says and no more."""
    yield f"#[{_dotted(at)}]"
    below = []
    for field in fields_of(kind):
        if field.key not in given:
            continue
        inner = field.shape.item if isinstance(field.shape, Table) else field.shape
        if not isinstance(inner, Section):
            yield from (*_comment(field.says.text), f"#{_key(field.key)} = {toml(given[field.key])}")
        elif inner is field.shape:
            below.append((inner.kind, (*at, field.key), given[field.key]))
        else:
            below += [(inner.kind, (*at, field.key, name), own) for name, own in given[field.key].items()]
    for own in below:
        yield from ("", *_given(*own))


def _is_line(field: Field, at: Path) -> bool:
    """Whether a setting is one line; tables of the file itself and sub-sections have a heading instead."""
    if isinstance(field.shape, Table):
        return bool(at) and not isinstance(field.shape.item, Section)
    return not isinstance(field.shape, Section)


def _shown(field: Field, at: Path) -> Any:
    """The default as a file has it, or an example of what could stand there."""
    empty = field.default is REQUIRED or (field.default is None and not field.says.never)
    if not empty and (field.default or not isinstance(field.default, tuple | list | dict)):
        return write(field.shape, field.default)
    examples = field.says.examples
    if isinstance(examples, Mapping):
        return examples
    if examples:
        return next(iter(examples))
    return _example(field.shape, (*at, field.key)) if empty else write(field.shape, field.default)


def _example(shape: Shape, at: Path) -> Any:
    if isinstance(shape, Items):
        return [_example(shape.item, at)]
    if isinstance(shape, Table):
        return {"name": _example(shape.item, at)}
    if isinstance(shape, Section):
        own = (field for field in fields_of(shape.kind) if field.default is REQUIRED)
        return {field.key: _shown(field, at) for field in own}
    if shape.wanted == WANTED_SECRET:
        return {"env": re.sub(r"\W+", "_", "_".join(at)).upper()}
    return shape.example


def _fields(kind: type[Settings], defaults: Any) -> Sequence[Field]:
    """The settings of a section with the defaults that the section above gives it, if it does."""
    if not isinstance(defaults, Settings):
        return fields_of(kind)
    return [replace(field, default=getattr(defaults, field.name)) for field in fields_of(kind)]


def _told(field: Field) -> list[str]:
    must = " It must be given." if field.default is REQUIRED and not isinstance(field.shape, Section) else ""
    return _comment(field.says.text + must)


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH)]


def _table(kind: type[Settings], at: Path) -> list[str]:
    rows = ["| setting | takes | default | also given by | meaning |", "|---|---|---|---|---|"]
    return rows + [
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in _rows(kind, at)
    ]


def _rows(kind: type[Settings], at: Path, defaults: Any = None) -> Iterator[tuple[str, str, str, str, str]]:
    for field in _fields(kind, defaults):
        path = (*at, field.key)
        inner = field.shape.item if isinstance(field.shape, Table) else field.shape
        if isinstance(inner, Section):
            below = path if inner is field.shape else (*path, "*")
            yield from _rows(inner.kind, below, field.default)
            continue
        # A table of the file itself is written out, name by name.
        named = isinstance(field.shape, Table) and not at
        key, takes = (f"{field.key}.*", wanted(inner)) if named else (".".join(path), wanted(field.shape))
        ways = ", ".join(f"`{way}`" for way in (field.says.option, field.says.variable) if way)
        yield f"`{key}`", takes, _default(field), ways, field.says.text


def _default(field: Field) -> str:
    if field.default is REQUIRED:
        return "must be given"
    if (field.default is None and not field.says.never) or field.default in ((), {}, []):
        return ""
    return f"`{toml(write(field.shape, field.default))}`"


def _dotted(path: Path) -> str:
    return ".".join(map(_key, path))


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml(name)

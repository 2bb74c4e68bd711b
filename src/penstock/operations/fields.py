"""What a field of a parameter or of a row says of itself: one help text, used by every surface.

Parameters and rows are msgspec structs. `argument` and `option` describe a parameter, `column` a value that is shown.
Each is put into `Annotated`, so that command-line options, query parameters, table columns and the OpenAPI schema come
from one place.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

Show = Literal["reference", "text", "detail", "state", "severity", "share"]
"""How a value is shown: a reference is never broken, a text is shortened, a detail is left out of tables; 0.97 as a
share is 97 %."""


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a reading or an operation is asked with. `x: … = msgspec.field(name="from")` gives a field another name."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a reading answers with: one row of a list, or the whole of one thing."""


class NoParameters(Parameters, frozen=True):
    """Nothing to ask with."""


def argument(
    says: str, *, ge: float | None = None, le: float | None = None, example: Any = None, terminal: bool = False
) -> msgspec.Meta:
    """A parameter that is given by its place on the command line; for `terminal` see `option`."""
    return _meta(says, {"argument": True} | _only(terminal), ge, le, example)


def option(
    says: str,
    *,
    ge: float | None = None,
    le: float | None = None,
    example: Any = None,
    short: str | None = None,
    terminal: bool = False,
) -> msgspec.Meta:
    """A parameter that is given by its name; `short` is one letter for the command line.

    `terminal`: only a command has it, because it names a file of the machine where it is typed, or makes it stay.
    """
    return _meta(says, {"argument": False, "short": short} | _only(terminal), ge, le, example)


def _only(terminal: bool) -> dict[str, Any]:
    return {"terminal": True} if terminal else {}


def standard_input(says: str) -> msgspec.Meta:
    """A list that the command line reads from standard input, one JSON document a line, where that is no terminal."""
    return _meta(says, {"argument": False, "stdin": True}, None, None, None)


def column(
    says: str,
    *,
    show: Show | None = None,
    heading: str | None = None,
    leads: str | None = None,
    gives: str | None = None,
) -> msgspec.Meta:
    """A value that is shown; `heading` is what stands above it in a table, else the field's name.

    `leads` is the reading of the same lifecycle that tells more of it; `gives` is the parameter that it is there, and
    of operations. By default that has the field's name.
    """
    return _meta(says, {"show": show, "heading": heading, "leads": leads, "gives": gives}, None, None, None)


def _meta(says: str, extra: dict[str, Any], ge: float | None, le: float | None, example: Any) -> msgspec.Meta:
    examples = None if example is None else [example]
    return msgspec.Meta(description=says, ge=ge, le=le, examples=examples, extra=extra)


@dataclass(frozen=True, slots=True)
class FieldInfo:
    """One field as the surfaces see it."""

    attribute: str
    #: Its name on every surface: the field's own, or the one that `msgspec.field(name=…)` gives it.
    name: str
    kind: Any
    required: bool
    default: Any
    meta: msgspec.Meta

    @property
    def says(self) -> str:
        return self.meta.description or ""

    def extra(self, key: str) -> Any:
        """What `argument`, `option` or `column` said of it under that name."""
        return (self.meta.extra or {}).get(key)

    @property
    def counts(self) -> bool:
        """Whether its values are numbers and shown as such: below one another, to the right."""
        kinds = self.choices
        return self.extra("show") in (None, "share") and bool(kinds) and all(kind in (int, float) for kind in kinds)

    @property
    def many(self) -> Any:
        """The type of its items where it is a list; None for a single value."""
        for one in self.choices:
            if get_origin(one) in (list, tuple):
                return get_args(one)[0]
        return None

    @property
    def choices(self) -> tuple[Any, ...]:
        """The types that it may have, but for None."""
        return tuple(one for one in _alternatives(self.kind) if one is not type(None))


@functools.lru_cache(maxsize=1_024)
def _declared(struct: type[msgspec.Struct]) -> list[tuple[msgspec.structs.FieldInfo, Any, msgspec.Meta | None]]:
    """The fields with their types and what was said of them; it takes a millisecond to find out."""
    hints = typing.get_type_hints(struct, include_extras=True)
    return [(field, *_unwrap(hints[field.name])) for field in msgspec.structs.fields(struct)]


def fields_of(struct: type[msgspec.Struct]) -> Iterator[FieldInfo]:
    """The fields of a struct, in order."""
    for field, kind, meta in _declared(struct):
        default = field.default if field.default is not msgspec.NODEFAULT else None
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        yield FieldInfo(field.name, field.encode_name, kind, field.required, default, meta or msgspec.Meta())


def _unwrap(kind: Any) -> tuple[Any, msgspec.Meta | None]:
    if get_origin(kind) is typing.Annotated:
        inner, *notes = get_args(kind)
        return inner, next((note for note in notes if isinstance(note, msgspec.Meta)), None)
    return kind, None


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)

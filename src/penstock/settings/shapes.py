"""What a class of settings looks like: its fields, and the shape of each: a value, a list, a table or a section."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from penstock.settings.scalars import Scalar, choice, scalar_of
from penstock.settings.secret import Secret
from penstock.settings.typed import Says, Settings

REQUIRED: Any = msgspec.NODEFAULT
"""The default of a setting that must be given."""


class Items(msgspec.Struct, frozen=True):
    """A list; `make` is what it becomes."""

    item: Shape
    make: Callable[[list[Any]], Any]
    filled: bool = False


class Table(msgspec.Struct, frozen=True):
    """A table whose names the file chooses: sub-sections, or values by name."""

    item: Shape
    filled: bool = False


class Section(msgspec.Struct, frozen=True):
    """A table with settings of its own."""

    kind: type[Settings]


Shape: TypeAlias = Scalar | Items | Table | Section


class Field(msgspec.Struct, frozen=True):
    """One setting: its attribute, its key in the file, what is said of it and its shape."""

    name: str
    key: str
    says: Says
    shape: Shape
    default: Any

    @property
    def private(self) -> bool:
        """Whether a wrong value may be a secret, and is not shown."""
        return self.says.private or holds_secret(self.shape)


@functools.cache
def fields_of(kind: type[Settings]) -> tuple[Field, ...]:
    """The settings of a class. Raises TypeError for a field that says nothing, or of a type that cannot be read."""
    # Not by `msgspec.structs.fields`: it looks for names in the class first, and `date: date` finds itself.
    hints = typing.get_type_hints(kind, localns={}, include_extras=True)
    required = len(kind.__struct_fields__) - len(kind.__struct_defaults__)
    defaults = (REQUIRED,) * required + kind.__struct_defaults__
    named = zip(kind.__struct_fields__, kind.__struct_encode_fields__, defaults, strict=True)
    return tuple(_field(f"{kind.__name__}.{name}", name, key, hints[name], default) for name, key, default in named)


def leaves(kind: type[Settings], at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Field]]:
    """Every setting with its key, below sections but not below names that the file chooses."""
    for field in fields_of(kind):
        if isinstance(field.shape, Section):
            yield from leaves(field.shape.kind, (*at, field.key))
        else:
            yield (*at, field.key), field


def holds_secret(shape: Shape) -> bool:
    """Whether a secret may stand in a value of that shape."""
    if isinstance(shape, Items | Table):
        return holds_secret(shape.item)
    if isinstance(shape, Section):
        return any(field.private for field in fields_of(shape.kind))
    return shape.private


def write(shape: Shape, value: Any) -> Any:
    """A value as a file has it. What was left out of a section stays out."""
    if isinstance(shape, Items):
        return [write(shape.item, item) for item in value]
    if isinstance(shape, Table):
        return {name: write(shape.item, item) for name, item in value.items()}
    if isinstance(shape, Section):
        return written(value)
    return shape.write(value)


def written(settings: Settings) -> dict[str, Any]:
    """A section as a file has it: every setting that is not None, or that says "never"."""
    values = ((field, getattr(settings, field.name)) for field in fields_of(type(settings)))
    return {field.key: write(field.shape, value) for field, value in values if value is not None or field.says.never}


def _field(place: str, name: str, key: str, hint: Any, default: Any) -> Field:
    annotation, said = _unwrapped(hint)
    if said is None:
        raise TypeError(f"{place} says nothing; write Annotated[…, says('What it means.')]")
    try:
        shape = _shape(_without_none(annotation), said)
    except TypeError as error:
        raise TypeError(f"{place}: {error}") from None
    # A table or a list is made anew for each struct; its factory is an object of msgspec's whose class has no name.
    made = default.factory() if not isinstance(default, Settings) and hasattr(default, "factory") else default
    return Field(name, key, said, shape, made)


def _shape(annotation: Any, said: Says) -> Shape:
    if said.reads is not None:
        return _custom(said)
    inner, own = _unwrapped(annotation)
    if own is not None:
        return _shape(_without_none(inner), own)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (list, tuple, frozenset) and arguments:
        if origin is tuple and arguments[1:] != (...,):
            raise TypeError(f"a tuple of settings is of one type, as in tuple[str, ...], and not {annotation}")
        return Items(_shape(arguments[0], replace(said, examples=None)), origin, said.filled)
    if origin in (dict, Mapping) and arguments:
        return Table(_shape(arguments[1], said), said.filled)
    if origin is Literal:
        return choice(arguments)
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return Section(annotation)
    found = scalar_of(annotation, said)
    if found is None:
        raise TypeError(f"settings of the type {annotation} cannot be read; give says(reads=…)")
    return found if said.anchor is None else replace(found, anchor=said.anchor)


def _custom(said: Says) -> Scalar:
    """A reader that a lifecycle brings along."""
    reads = said.reads
    assert reads is not None  # noqa: S101 - asked by the caller
    try:
        reads(None)
    except ValueError as error:
        wanted = str(error)
    else:
        raise TypeError("its reader takes None; it must raise ValueError with what is allowed")
    example = next(iter(said.examples), "…") if isinstance(said.examples, list | tuple) else "…"
    return Scalar(
        wanted, reads, said.writes or (lambda value: value), example, said.anchor or _anchored, private=said.private
    )


def _anchored(value: Any, folder: Any) -> Any:
    """References to secrets inside what another reader has made."""
    if isinstance(value, Secret):
        return value.below(folder)
    if isinstance(value, dict):
        return {name: _anchored(item, folder) for name, item in value.items()}
    return value


def _unwrapped(annotation: Any) -> tuple[Any, Says | None]:
    """A type without its notes, and what is said of it."""
    if typing.get_origin(annotation) is not Annotated:
        return annotation, None
    inner, *notes = typing.get_args(annotation)
    return inner, next((note for note in notes if isinstance(note, Says)), None)


def _without_none(annotation: Any) -> Any:
    """`T` of `T | None`."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation
    parts = [part for part in typing.get_args(annotation) if part is not types.NoneType]
    return functools.reduce(lambda left, right: left | right, parts)

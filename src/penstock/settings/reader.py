"""Reading a section of the configuration into its struct: all errors at once, each with its file, key and value."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from penstock.model.errors import UsageError
from penstock.model.inert import inert
from penstock.model.near import near
from penstock.settings.scalars import ANYTHING, Scalar
from penstock.settings.shapes import REQUIRED, Field, Items, Section, Shape, Table, fields_of, holds_secret
from penstock.settings.typed import Settings

T = TypeVar("T", bound=Settings)
Key = tuple[str | int, ...]
_LONGEST = 300
_LONGEST_NAME = 100
_LONGEST_KEY = 150
_LISTED = 12
_BROKEN: Any = object()
"""Stands for a value that has an error, which is already told."""
_NAME = f"a name of 1 to {_LONGEST_NAME} characters, without control characters and without spaces around it"


def read_section(
    kind: type[T],
    given: Any,
    *,
    at: tuple[str, ...],
    folder: Path | None,
    errors: list[str],
    path_text: str,
    over: Mapping[tuple[str, ...], tuple[str, Any]] | None = None,
    also: Collection[str] = (),
) -> T | None:
    """What a file says, as its struct; None where `errors` grew, by one line for each thing that is wrong.

    `at` is the key of the section. Paths in the file start at `folder`. `over` are values that come before the file's,
    by key, with the name of the option or the variable that gave them. `also` are keys that the caller takes himself.
    """
    found = _Walk(folder, errors, path_text, over or {}).section(kind, given, at, also=also)
    return None if found is _BROKEN else cast("T", found)


def shown_key(key: Key) -> str:
    """A key as a file has it, shortened and safe to show; places in lists count from 0."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if re.fullmatch(r"[\w-]+", part) else inert(json.dumps(part, ensure_ascii=False))
            text += f".{name}" if text else name
    return text if len(text) <= _LONGEST_KEY else f"{text[:_LONGEST_KEY]}…"


def shown(value: Any) -> str:
    """A value as a file has it, shortened, safe to show, and without what an address may give away."""
    text = inert(json.dumps(value, default=str, ensure_ascii=False))
    text = re.sub(r"(://[^:/@\"]*):[^/@\"]*@", r"\1:…@", text)
    text = re.sub(r"(://[^?\"]*\?)[^\"]*", r"\1…", text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def wanted(shape: Shape) -> str:
    """What a setting takes, as it follows "must be"."""
    if isinstance(shape, Items):
        return f"a list{' that is not empty' if shape.filled else ''}; each item is {wanted(shape.item)}"
    if isinstance(shape, Table):
        plain = isinstance(shape.item, Section) or shape.item == ANYTHING
        return "a table" if plain else f"a table; each value is {wanted(shape.item)}"
    return "a table" if isinstance(shape, Section) else shape.wanted


class _Walk:
    """One pass over a section; gathers errors."""

    def __init__(
        self, folder: Path | None, errors: list[str], path_text: str, over: Mapping[tuple[str, ...], tuple[str, Any]]
    ) -> None:
        self.folder = folder
        self.errors = errors
        self.path_text = path_text
        self.over = over

    def section(
        self, kind: type[Settings], given: Any, at: Key, defaults: Settings | None = None, also: Collection[str] = ()
    ) -> Any:
        if not isinstance(given, Mapping):
            heading = "" if any(isinstance(part, int) for part in at) else f", [{shown_key(at)}]"
            return self._wrong(at, given, f"a table{heading}", hidden=holds_secret(Section(kind)))
        fields = fields_of(kind)
        known = [field.key for field in fields]
        strangers = [name for name in given if name not in known and name not in also]
        for name in strangers:
            self._unknown(at, name, [*known, *also])
        values = {field.name: self._field(field, given, (*at, field.key), defaults) for field in fields}
        if strangers or any(value is _BROKEN for value in values.values()):
            return _BROKEN
        try:
            return kind(**values)
        except (ValueError, UsageError) as error:
            for line in str(error).splitlines():
                self._said_by(at, line, known)
            return _BROKEN

    def _said_by(self, at: Key, line: str, known: Collection[str]) -> None:
        """What a section says of one of its keys is told of that key, or of the option or variable that gave it."""
        of_key = re.match(r"(\w+)(\.\S+|(\.\S+)?:) ", line)
        key = of_key[1] if of_key is not None and of_key[1] in known else None
        overriding = None if key is None else self.over.get(cast("tuple[str, ...]", (*at, key)))
        if key is not None and overriding is not None:
            self.errors.append(f"{overriding[0]}{line.removeprefix(key)}")
        else:
            joint = ": " if key is None else "."
            self._say(f"{shown_key(at)}{joint}{line}" if at else line)

    def _field(self, field: Field, given: Mapping[str, Any], at: Key, defaults: Settings | None) -> Any:
        default = field.default if defaults is None else getattr(defaults, field.name)
        value = given.get(field.key)
        if isinstance(field.shape, Section):
            if value is None and default is None:
                return None
            # A section that is left out is read all the same: what it must have is missing by name.
            own = default if isinstance(default, Settings) else None
            return self.section(field.shape.kind, {} if value is None else value, at, own)
        found = default if value is None else self._value(field.shape, value, at, hidden=field.private)
        overriding = self.over.get(cast("tuple[str, ...]", at))
        if overriding is not None:
            taken = self._given(field, *overriding)
            return _BROKEN if found is _BROKEN else taken
        if found is REQUIRED:
            return self._say(f"{shown_key(at)} is missing; it must be {wanted(field.shape)}")
        return self._anchored(field.shape, found)

    def _given(self, field: Field, source: str, value: Any) -> Any:
        """What an option or a variable says; a path in it starts where the program was started."""
        shape = field.shape
        assert isinstance(shape, Scalar), field.name  # noqa: S101 - others have neither option nor variable
        try:
            return shape.read(shape.from_text(value) if isinstance(value, str) else value)
        except ValueError as error:
            hidden = "(not shown)" if field.private else shown(value)
            self.errors.append(f"{source} = {hidden} must be {str(error) or shape.wanted}")
            return _BROKEN

    def _value(self, shape: Shape, value: Any, at: Key, *, hidden: bool) -> Any:
        if isinstance(shape, Section):
            return self.section(shape.kind, value, at)
        if isinstance(shape, Items):
            return self._items(shape, value, at, hidden=hidden)
        if isinstance(shape, Table):
            return self._table(shape, value, at, hidden=hidden)
        try:
            found = shape.read(value)
            _refuse_password(found)
        except (ValueError, UsageError) as error:
            return self._wrong(at, value, str(error) or shape.wanted, hidden=hidden)
        return found

    def _items(self, shape: Items, value: Any, at: Key, *, hidden: bool) -> Any:
        if not isinstance(value, list) or (shape.filled and not value):
            return self._wrong(at, value, wanted(shape), hidden=hidden)
        found = [self._value(shape.item, item, (*at, place), hidden=hidden) for place, item in enumerate(value)]
        return _BROKEN if any(item is _BROKEN for item in found) else shape.make(found)

    def _table(self, shape: Table, value: Any, at: Key, *, hidden: bool) -> Any:
        if not isinstance(value, Mapping) or (shape.filled and not value):
            return self._wrong(at, value, wanted(shape), hidden=hidden)
        found = {}
        for name, item in value.items():
            if not _is_name(name):
                self._say(f"{shown_key((*at, name))}: {shown(name)} must be {_NAME}")
                found[name] = _BROKEN
            else:
                found[name] = self._value(shape.item, item, (*at, name), hidden=hidden)
        return _BROKEN if any(item is _BROKEN for item in found.values()) else found

    def _anchored(self, shape: Shape, value: Any) -> Any:
        if self.folder is None or value is None or value is _BROKEN or isinstance(shape, Section):
            return value
        if isinstance(shape, Items):
            return shape.make([self._anchored(shape.item, item) for item in value])
        if isinstance(shape, Table):
            return {name: self._anchored(shape.item, item) for name, item in value.items()}
        return value if shape.anchor is None else shape.anchor(value, self.folder)

    def _unknown(self, at: Key, name: str, known: Collection[str]) -> None:
        close = near(name, known)
        if close:
            hint = f"did you mean {shown_key((*at, close[0]))}?"
        else:
            place = f"[{shown_key(at)}]" if at else "the file"
            names = sorted(known)
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            hint = f"{place} takes {', '.join(names[:_LISTED])}{more}" if names else f"{place} has no settings"
        self._say(f"{shown_key((*at, name))} is not a setting; {hint}")

    def _wrong(self, at: Key, value: Any, allowed: str, *, hidden: bool) -> Any:
        return self._say(f"{shown_key(at)} = {'(not shown)' if hidden else shown(value)} must be {allowed}")

    def _say(self, error: str) -> Any:
        self.errors.append(f"{self.path_text}: {error}")
        return _BROKEN


def _is_name(name: str) -> bool:
    return 0 < len(name) <= _LONGEST_NAME and name == name.strip() and name == inert(name)


def _refuse_password(value: Any) -> None:
    if isinstance(value, str) and re.match(r"\w+://[^/@]*:[^/@]*@", value):
        raise ValueError("an address without a password; a password is a setting of its own, by reference")

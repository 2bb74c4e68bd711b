"""Where something is in a document: `a.b.0.c`, names and places in lists with dots between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Getter = Callable[[Any], Any]
"""What is at a path of a document; None where there is nothing."""
Gatherer = Callable[[Sequence[dict[str, Any]]], list[Any]]
"""The same of many objects."""

_FEW = 3


def getter(path: str | None) -> Getter:
    """The function that follows a path, made once for many documents. None is the path of the document itself.

    A part that is a whole number is a place in a list, counted from its end where it is negative, and a name in an
    object.
    """
    if path is None:
        return _itself
    parts = [(part, _place(part)) for part in path.split(".")]
    if len(parts) == 1 and parts[0][1] is None:
        return _named(parts[0][0])
    if len(parts) == 2 and parts[0][1] is parts[1][1] is None:  # noqa: PLR2004 - the usual ones, made quick
        return _named_twice(parts[0][0], parts[1][0])

    def follow(document: Any) -> Any:
        for name, place in parts:
            if type(document) is dict:
                document = document.get(name)
            elif place is not None and type(document) is list and -len(document) <= place < len(document):
                document = document[place]
            else:
                return None
        return document

    return follow


def gatherer(path: str) -> Gatherer:
    """The function that follows a path in many objects: a few names are followed without a call for each object."""
    names = names_of(path) or []
    if not 0 < len(names) <= _FEW:
        get = getter(path)
        return lambda objects: [*map(get, objects)]

    def gather(objects: Sequence[dict[str, Any]]) -> list[Any]:
        found: list[Any] = [each.get(names[0]) for each in objects]
        for name in names[1:]:
            if {*map(type, found)} == {dict}:
                found = [each.get(name) for each in found]
            else:
                found = [each.get(name) if type(each) is dict else None for each in found]
        return found

    return gather


def names_of(path: str) -> list[str] | None:
    """The names that a path is made of; None where a part of it may be a place in a list."""
    names = path.split(".")
    return None if any(_place(name) is not None for name in names) else names


def _itself(document: Any) -> Any:
    return document


def _named(name: str) -> Getter:
    def follow(document: Any) -> Any:
        return document.get(name) if type(document) is dict else None

    return follow


def _named_twice(first: str, second: str) -> Getter:
    def follow(document: Any) -> Any:
        inner = document.get(first) if type(document) is dict else None
        return inner.get(second) if type(inner) is dict else None

    return follow


def _place(part: str) -> int | None:
    digits = part.removeprefix("-")
    return int(part) if digits.isascii() and digits.isdecimal() and len(digits) < 10 else None  # noqa: PLR2004 - long enough

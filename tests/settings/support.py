"""One setting by itself, and the errors of a section."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.settings.reader import read_section
from penstock.settings.typed import Settings


def errors_of(kind: type[Settings], given: Any, *at: str) -> list[str]:
    errors: list[str] = []
    found = read_section(kind, given, at=at or ("x",), folder=None, errors=errors, path_text="p.toml")
    assert (found is None) == bool(errors)
    return errors


def read(kind: type[Settings], given: Any) -> Any:
    errors: list[str] = []
    found = read_section(kind, given, at=("x",), folder=Path("/there"), errors=errors, path_text="p.toml")
    assert errors == []
    return found


def one(kind: Any, given: Any) -> Any:
    """What a setting of that type makes of a value."""
    return read(holder(kind), {"setting": given}).setting


def wrong(kind: Any, given: Any) -> str:
    """The one error that it makes of it."""
    (error,) = errors_of(holder(kind), {"setting": given})
    return error


def holder(kind: Any) -> type[Settings]:
    """A class with the one field `setting`."""
    return made("Holder", {"setting": kind}, {})


def made(name: str, annotations: dict[str, Any], defaults: dict[str, Any]) -> type[Settings]:
    """A class of settings that is put together at run time."""
    metaclass: Any = type(Settings)
    found: type[Settings] = metaclass(
        name, (Settings,), {"__annotations__": annotations, "__module__": __name__, **defaults}
    )
    return found

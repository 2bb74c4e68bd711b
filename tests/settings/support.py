"""One setting by itself, and the errors of a section."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

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


def holder(kind: Any, default: Any = msgspec.NODEFAULT) -> type[Settings]:
    """A class with the one field `setting`."""
    given = {} if default is msgspec.NODEFAULT else {"setting": default}
    namespace = {"__annotations__": {"setting": kind}, "__module__": __name__, **given}
    made: type[Settings] = type(Settings)("Holder", (Settings,), namespace)
    return made

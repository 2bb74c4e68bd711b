"""The records of an answer as the text that came: cut out of it, instead of being written anew from what was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.connectors.rest_json.paths import names_of

Slicer = Callable[[bytes], list[str] | None]
"""The records of an answer, each as a line of JSON; None where they are no lines, or not to be kept as they are."""

# Lines must not break. An escaped character takes six times the place of a plain one, and may be NUL or half of one.
_UNFIT = (b"\n", b"\r", b"\\u")


def slicer(path: str | None) -> Slicer:
    """The function that cuts out the records at a path, made once for many answers."""
    names = [] if path is None else names_of(path)
    if names is None:
        return lambda _content: None
    decoder = msgspec.json.Decoder(_shape(names))

    def cut(content: bytes) -> list[str] | None:
        if any(one in content for one in _UNFIT):
            return None
        try:
            found = decoder.decode(content)
            for _ in names:
                found = found.inner
            return [str(one, "utf-8") for one in found]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    return cut


def _shape(names: list[str]) -> Any:
    shape: Any = list[msgspec.Raw]
    for name in reversed(names):
        shape = msgspec.defstruct("Part", [("inner", shape)], rename={"inner": name})
    return shape

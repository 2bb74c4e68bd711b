"""What a search of a folder may ask for. It imports nothing heavy: the configuration is checked by it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from penstock.connectors.feed_jsonl import EVERY_FILE
from penstock.connectors.searches import Parameters

_KNOWN = ("files", "q")


def check(parameters: Parameters) -> list[str]:
    """What is wrong with the parameters of a query, each in a sentence; no file is looked at for that."""
    return list(_faults(parameters))


def _faults(parameters: Parameters) -> Iterator[str]:
    for name, value in parameters.items():
        if name not in _KNOWN:
            yield f"{name!r} is not a parameter of a folder of offers; it has {' and '.join(_KNOWN)}"
        elif not isinstance(value, str) or not value.strip() or "\x00" in value:
            yield f"{name!r} must be a text"
        elif name == "files" and not _inside(value):
            yield f"'files' must be a pattern of files within the folder, such as {EVERY_FILE}, not {value!r:.100}"


def _inside(pattern: Any) -> bool:
    path = PurePosixPath(pattern)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "**" not in pattern

"""Offers in a folder of JSON-lines files, that somebody else writes: one offer on a line, files in the order of names.

A line has `id`, `updated_at` (or `published_at`) and any of `OFFER_COLUMNS`. Files may be of any size, and may grow or
go while they are read. A line that is still being written is left for the next time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from penstock.connectors.csv_catalog.client import Run
from penstock.connectors.feed_jsonl import EVERY_FILE
from penstock.connectors.feed_jsonl.files import Feed, Place
from penstock.connectors.searches import OFFER_COLUMNS, Batch, Parameters, Wanted
from penstock.model.errors import Rejected

__all__ = ["JsonLines", "check"]

_KNOWN = ("files", "q")


class JsonLines:
    """The offers of a folder. `run` runs what blocks off the event loop.

    `page` raises Transient while the folder is not there, and Fatal where it or a file may not be read.
    """

    columns: Sequence[str] = OFFER_COLUMNS
    newest_first = False
    by_place = False
    overlaps = False

    def __init__(self, folder: Path, run: Run, page_size: int = 1_000) -> None:
        self._feed = Feed(folder, page_size)
        self._run = run

    async def page(self, parameters: Parameters, wanted: Wanted) -> Batch:
        """The offers after the token. The last page has a token too: of where more may be written.

        A file that became shorter, or another one, since the token was made is read from its beginning; where it is
        gone, the next one follows.
        """
        if faults := check(parameters):
            raise Rejected("; ".join(faults))
        place = Place.read(wanted.token) if wanted.token is not None else None
        words = tuple(str(parameters.get("q", "")).casefold().split())
        pattern = str(parameters.get("files", EVERY_FILE))
        return await self._run(self._feed.page, pattern, words, place, wanted.since)

    async def close(self) -> None:
        """Nothing is open."""


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

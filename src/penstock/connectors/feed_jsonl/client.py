"""Offers in a folder of JSON-lines files, that somebody else writes: one offer on a line, files in the order of names.

A line has `id`, `updated_at` (or `published_at`) and any of `OFFER_COLUMNS`. Files may be of any size, and may grow or
go while they are read. A line that is still being written is left for the next time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.connectors.csv_catalog.client import Run
from penstock.connectors.feed_jsonl import EVERY_FILE
from penstock.connectors.feed_jsonl.files import Feed, Place
from penstock.connectors.feed_jsonl.parameters import check
from penstock.connectors.searches import OFFER_COLUMNS, Batch, Parameters, Wanted
from penstock.model.errors import Rejected


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
        #: Looks into the folder.
        self.calls = 0

    async def page(self, parameters: Parameters, wanted: Wanted) -> Batch:
        """The offers after the token. The last page has a token too: of where more may be written.

        A file that became shorter, or another one, since the token was made is read from its beginning; where it is
        gone, the next one follows.
        """
        if faults := check(parameters):
            raise Rejected("; ".join(faults))
        self.calls += 1
        place = Place.read(wanted.token) if wanted.token is not None else None
        words = tuple(str(parameters.get("q", "")).casefold().split())
        pattern = str(parameters.get("files", EVERY_FILE))
        return await self._run(self._feed.page, pattern, words, place, wanted.since)

    async def close(self) -> None:
        """Nothing is open."""

"""InfoJobs: the offers that a search finds, page by page, newest first.

An `InfoJobs` speaks for one application. Lists go back by spans (`sinceDate`) of a day, a week or fifteen days, counted
by the server's clock: which span is enough is judged by the `Date` of each answer, never by this machine's clock alone;
nor by that header alone, which something between may have written.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime, timedelta

from penstock.connectors.http.client import Http
from penstock.connectors.http.exchange import Transport
from penstock.connectors.infojobs.parameters import check
from penstock.connectors.infojobs.wire import (
    ANY,
    BUCKETS,
    ORDER,
    Listed,
    bucket,
    query_text,
    read,
    read_offer,
    server_time,
)
from penstock.connectors.paging import covering
from penstock.connectors.searches import OFFER_COLUMNS, PAGE_PATIENCE, Batch, Parameters, Wanted
from penstock.model.clock import Clock
from penstock.model.errors import Fatal, Rejected, Transient
from penstock.settings.secret import ConfigError, Secret

PATH = "/api/9/offer"

_MARGIN = timedelta(hours=2)
_WIDE_MARGIN = timedelta(days=1)
_WIDTH = [*BUCKETS, ANY]
_ANSWERED = frozenset(range(300, 600))
_TRIES = 6


class InfoJobs:
    """The offers that an application may see. `transport` replaces the network."""

    columns: Sequence[str] = OFFER_COLUMNS
    newest_first = True
    by_place = True
    overlaps = True

    def __init__(
        self,
        url: str,
        client_id: str,
        client_secret: Secret,
        clock: Clock,
        *,
        page_size: int = 50,
        transport: Transport | None = None,
    ) -> None:
        self._client_id = client_id
        self._client_secret = client_secret
        self._clock = clock
        self._http = Http(url, clock, headers={"Accept": "application/json"}, transport=transport)
        self._size = page_size
        self._rigid = False
        # The server's time, and our elapsed time when it was told: the wall clock here may jump.
        self._told: tuple[datetime, float] | None = None

    @property
    def calls(self) -> int:
        return self._http.calls

    async def page(self, parameters: Parameters, wanted: Wanted) -> Batch:
        """One page, newest first. Raises Rejected for parameters that are ours to set, Throttled, Transient or Fatal.

        It may take several calls: where the span asked for was too short by the server's clock, or pages have another
        size than was asked for.
        """
        if faults := check(parameters):
            raise Rejected("; ".join(faults))
        span = self._span(wanted.since)
        number, size = self._page_from(wanted.place)
        for _ in range(_TRIES):
            listed, enough = await self._ask(parameters, number + 1, size, span, wanted.since)
            if _WIDTH.index(enough) > _WIDTH.index(span):
                span = enough
            elif self._learn_size(listed, number, size):
                number, size = self._page_from(wanted.place)
            elif number >= (listed.pages or number + 1) and self._plain(wanted.place, listed, (number, size)):
                number, size = wanted.place // self._size, self._size
            else:
                return self._batch(listed, number, size, wanted.place)
        raise Transient(f"GET {PATH}: its pages change their size, or its clock jumps, with every answer")

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    def _page_from(self, place: int) -> tuple[int, int]:
        return (place // self._size, self._size) if self._rigid else covering(place, self._size)

    async def _ask(
        self, parameters: Parameters, page: int, size: int, span: str, since: datetime | None
    ) -> tuple[Listed, str]:
        """An answer, and the span that would have been enough for `since`, by the clock of the server."""
        ours = {"order": ORDER, "sinceDate": span, "page": str(page), "maxResults": str(size)}
        path = f"{PATH}?{query_text(parameters, ours)}"
        headers = {"Authorization": self._authorization()}
        response = await self._http.call("GET", path, headers=headers, answers=_ANSWERED, patience=PAGE_PATIENCE)
        moment = server_time(response.headers)
        self._told = None if moment is None else (moment, self._clock.elapsed())
        try:
            listed = read(f"GET {PATH}", response, self._http.retry_after(response))
        except Fatal as error:
            raise Fatal(f"{error}; check the client id and the secret of {self._client_id}") from error
        return listed, self._span(since, certain=True)

    def _span(self, since: datetime | None, *, certain: bool = False) -> str:
        """The shortest that goes back to `since` by the server's clock and by this machine's: either may be behind.

        Before the first answer this machine's clock is good enough for a guess; where no answer tells the time, with a
        wide margin.
        """
        if since is None:
            return ANY
        now = self._clock.now()
        if self._told is None:
            return bucket(now - since + (_WIDE_MARGIN if certain else _MARGIN))
        moment, then = self._told
        passed = timedelta(seconds=max(0.0, self._clock.elapsed() - then))
        return bucket(max(moment + passed, now) - since + _MARGIN)

    def _learn_size(self, listed: Listed, number: int, asked: int) -> bool:
        """Whether pages have another size than was asked for: smaller ones at most, or always the same."""
        told = listed.size
        if told is None or not _another_size(listed, number, asked):
            return False
        before = (self._rigid, self._size)
        self._rigid = self._rigid or told > asked
        self._size = told if self._rigid else min(told, self._size)
        return before != (self._rigid, self._size)

    def _plain(self, place: int, listed: Listed, asked: tuple[int, int]) -> bool:
        """Whether a page of full size is still given where one that overlaps lies beyond the last page."""
        plain = (place // self._size, self._size)
        return plain != asked and plain[0] < (listed.pages or 0)

    def _batch(self, listed: Listed, number: int, size: int, wanted: int) -> Batch:
        place, pages, found = number * size, listed.pages, len(listed.offers)
        if pages is not None and listed.page == pages <= number:
            place = (pages - 1) * size  # asked for a page beyond the last, it gave the last
        end = place + found
        more = listed.total is not None and listed.total > max(end, wanted)
        if not found:
            last = True
        elif pages is None:
            last = end <= wanted or (found < size and listed.total is not None and not more)
        else:
            # Where it is pages that are limited, larger ones may still reach farther than this one did.
            last = number + 1 >= pages and not (more and end > wanted and pages * self._size > end)
        if end <= wanted and not last:
            raise Transient(f"GET {PATH}: page {number + 1} of {pages} has {found} offers where {size} were asked for")
        records = [read_offer(record) for record in listed.offers]
        return Batch(records, place, None, last, last and more, listed.total)

    def _authorization(self) -> str:
        try:
            login = f"{self._client_id}:{self._client_secret.reveal()}"
        except ConfigError as error:
            raise Fatal(str(error)) from error
        return f"Basic {base64.b64encode(login.encode()).decode()}"


def _another_size(listed: Listed, number: int, asked: int) -> bool:
    """Whether the size that an answer tells is that of its pages. Some tell how many offers the last page has."""
    told, pages, found = listed.size, listed.pages, len(listed.offers)
    if told is None or told == asked or pages is None or pages <= 1:
        return False
    if listed.total is not None and (pages == -(-listed.total // asked)) != (pages == -(-listed.total // told)):
        return pages == -(-listed.total // told)
    return found > asked or (found == told < asked and number + 1 < pages)

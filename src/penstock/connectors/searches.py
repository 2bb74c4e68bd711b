"""What a client of recurring searches offers: pages of records, in the same words for every provider.

A search is a list. Most lists can be asked from any place on (`by_place`), the others only after the page before, by a
token. A list in order (`newest_first`) is read from the newest record down, as far as is wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from msgspec import Struct

from penstock.connectors.http.exchange import Patience

Parameters = Mapping[str, Any]
"""What is searched for, as the configuration says it."""
OFFER_COLUMNS = (
    *("title", "company", "company_ref", "city", "province", "country", "url", "category", "contract_type"),
    *("salary_min", "salary_max", "salary_period", "description", "published_at"),
)
"""What a job offer says: texts, but for `salary_min` and `salary_max` (numbers) and `published_at` (an instant)."""

PAGE_PATIENCE = Patience(total=60.0)
"""A page is small, and whoever waits for one holds the lock for which all other queries wait."""


class Wanted(Struct, frozen=True):
    """Which page: from `place` on, or after `token` (None: the first). `since`: older records are not needed.

    A client that can leave out older records does so only where it is certain that none from `since` on is left out,
    whatever this machine's clock says.
    """

    place: int = 0
    token: str | None = None
    since: datetime | None = None


class Item(Struct, frozen=True):
    """One record. `at` is the date by which the list is in order; `values` are those of the client's `columns`.

    Only `values` tell whether a record has changed: what changes with every look at it (applicants, views) is left out
    of them. `payload` is the whole record as a line of JSON. `erased`: nothing may be kept of it but that it is listed;
    no client says so, and its `values` are all None.
    """

    id: str
    at: datetime
    values: tuple[Any, ...]
    payload: str
    erased: bool = False


class Bad(Struct, frozen=True):
    """A record that cannot be used, and why. It is set aside, and stops nothing. `id` and `at` where they are known."""

    reason: str
    payload: str
    id: str | None = None
    at: datetime | None = None


class Batch(Struct, frozen=True):
    """A page, in the order of the list.

    `place` is that of its first record: at most what was wanted; it may lie a little before it, where that makes pages
    overlap. `after` is the token of what follows. `last`: nothing follows. `cut`: nothing follows, although there is
    more; the provider does not give it. `total` is how many the list has, where it says so.
    """

    records: Sequence[Item | Bad]
    place: int = 0
    after: str | None = None
    last: bool = False
    cut: bool = False
    total: int | None = None


class Client(Protocol):
    """One account of one provider. It retries nothing. Raises Throttled, Transient, Rejected or Fatal."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of its records: `OFFER_COLUMNS`, or those of a table of its own."""

    @property
    def newest_first(self) -> bool:
        """Whether the list is in the order of `Item.at`, newest first."""

    @property
    def by_place(self) -> bool:
        """Whether it can be asked from any place on; else it is walked by tokens."""

    @property
    def overlaps(self) -> bool:
        """Whether a page asked for from a place begins a little before it, so that it overlaps the one before.

        A record that was removed meanwhile, and moved the others up, is then noticed. Only with `by_place`.
        """

    @property
    def calls(self) -> int:
        """How many calls it has made so far, whatever came of them: for pages, and for tokens."""

    async def page(self, parameters: Parameters, wanted: Wanted) -> Batch:
        """One page. A record that cannot be read is `Bad`; Transient is for an answer that cannot be read at all."""

    async def close(self) -> None:
        """Close its connections."""

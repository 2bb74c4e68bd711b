"""Job offers: upserted by their id, linked where they are reposts or duplicates, closed when no query lists them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from penstock.connectors.searches import OFFER_COLUMNS, Item
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.queries.likeness import Candidate, company_key, likeness, links
from penstock.lifecycles.queries.machine import Query
from penstock.lifecycles.queries.runs import Unseen
from penstock.lifecycles.queries.store import ERASED, Digest, Taken, absent_from, content_hash, found_by, keyed, unique
from penstock.lifecycles.queries.tables import companies, offers, query_offers
from penstock.model.clock import instant
from penstock.model.outcome import Update, Where, Write

_TITLE, COMPANY, _CITY = (OFFER_COLUMNS.index(name) for name in ("title", "company", "city"))
_COLUMNS = (
    *("client", "offer_id"),
    *OFFER_COLUMNS,
    *("updated_at", "company_key", "likeness", "linked_client", "linked_offer_id", "link_kind", "content_hash"),
    *("payload", "first_seen_at", "last_seen_at", "closed_at", "erased_at"),
)
_LINK = _COLUMNS.index("linked_client")
_FIRST = ("first_seen_at", "linked_client", "linked_offer_id", "link_kind")
_LISTED = ("query_key", "offer_id", "client", "record_at", "seen_in", "gone_at")
_MOST_MARKED = 50_000
_COMPANY_COLUMNS = ("company_key", "name", "first_seen_at", "last_seen_at", "stale")


class _Known(NamedTuple):
    """What the ledger has of an offer, and of the query's listing of it."""

    content_hash: str | None = None
    updated_at: datetime | None = None
    closed: bool = False
    erased: bool = False
    company_key: str | None = None
    seen_in: int | None = None
    gone: bool = False
    record_at: datetime | None = None


_NEW = _Known()


@lru_cache(maxsize=65_536)  # a page has many offers of few companies
def company_id(name: str | None) -> str | None:
    """The key of a company: a digest of its normalised name, so that nothing is left of a name that is erased."""
    found = company_key(name) if name else None
    return None if found is None else hashlib.blake2b(found.encode(), digest_size=8).hexdigest()


class OfferStore:
    """The tables `offers`, `query_offers` and `companies`."""

    def __init__(self, repost_within: timedelta) -> None:
        self._within = repost_within
        #: The run that was last seen here, and companies of its pages. They are stale until it has read the last one.
        self._marked: tuple[UUID | None, set[str]] = (None, set())

    def digests(self, items: Sequence[Item]) -> Mapping[str, Digest]:
        found = {}
        for item in items:
            company = item.values[COMPANY]
            alike = likeness(company, item.values[_TITLE], item.values[_CITY])
            found[item.id] = Digest(content_hash(item.values), company_id(company), alike)
        return found

    def take(  # noqa: PLR0917 - as a store is asked
        self,
        ledger: Ledger,
        query: Query,
        number: int,
        items: Sequence[Item],
        unread: Sequence[str],
        now: datetime,
        digests: Mapping[str, Digest] | None = None,
    ) -> Taken:
        digests = self.digests(items) if digests is None else digests
        page = _Page(query, number, unique(items), now)
        page.look(ledger)
        for item in page.items:
            page.add(item, digests[item.id])
        page.link(ledger, self._within)
        return page.taken(unread, self._unmarked(query, page.stale))

    def _unmarked(self, query: Query, stale: Mapping[str, str | None]) -> Mapping[str, str | None]:
        """Those that no page of the run before has marked. A page whose commit fails ends its run."""
        run, marked = self._marked
        if run != query.run_id or query.run_id is None or len(marked) > _MOST_MARKED:
            self._marked = (query.run_id, set(stale))
            return stale
        found = {key: name for key, name in stale.items() if key not in marked}
        marked.update(found)
        return found

    def absent(
        self, ledger: Ledger, query: Query, unseen: Unseen, but: Collection[str], most: int
    ) -> tuple[list[str], int, int]:
        return absent_from(ledger, query_offers, "offer_id", query, unseen, but, most)

    def close(self, ledger: Ledger, query: Query, ids: Sequence[str], others: Sequence[str], now: datetime) -> Taken:
        """An offer is closed when no other query lists it either. One that is not read any more lists nothing."""
        source = keyed(ledger.database, "id", "client")
        sql = (
            f"SELECT o.offer_id, o.company_key FROM {source} JOIN {offers.name} o ON o.client = n_client AND"
            f" o.offer_id = n_id WHERE o.closed_at IS NULL AND NOT EXISTS (SELECT 1 FROM {query_offers.name} q WHERE"
            " q.offer_id = o.offer_id AND q.gone_at IS NULL"
            f" AND q.query_key IN ({ledger.database.sql.listed('others')}))"
        )
        listed = msgspec.json.encode(others).decode()
        closed = found_by(ledger, [[one, query.client] for one in ids], sql, others=listed)
        updates = [Update(_listing(query, ids), {"gone_at": now})]
        if closed:
            updates.append(Update(_offers(query, [str(row[0]) for row in closed]), {"closed_at": now}))
        stale = {str(row[1]): None for row in closed if row[1] is not None}
        return Taken(_stale(stale, now), updates, changed=len(closed), companies=bool(stale))


class _Page:
    """Records of one page on their way into the tables."""

    def __init__(self, query: Query, number: int, items: Sequence[Item], now: datetime) -> None:
        self.query, self.number, self.items, self.now = query, number, items, now
        self.known: dict[str, _Known] = {}
        self.rows: dict[str, list[Any]] = {}
        self.born: list[Candidate] = []
        #: Companies whose offers are others than before, with their names.
        self.stale: dict[str, str | None] = {}
        self.untouched: list[str] = []
        self.changed = 0

    def look(self, ledger: Ledger) -> None:
        """What the ledger has of these offers."""
        client, key = self.query.client, self.query.query_key
        sql = (
            "SELECT n_id, o.content_hash, o.updated_at, o.closed_at, o.erased_at, o.company_key, q.seen_in, q.gone_at,"
            f" q.record_at FROM {keyed(ledger.database, 'id', 'client', 'key')} LEFT JOIN {offers.name} o ON"
            f" o.client = n_client AND o.offer_id = n_id LEFT JOIN {query_offers.name} q ON q.query_key = n_key AND"
            " q.offer_id = n_id WHERE o.offer_id IS NOT NULL OR q.offer_id IS NOT NULL"
        )
        rows = found_by(ledger, [[item.id, client, key] for item in self.items], sql)
        for one, digest, updated, closed, gone_for_good, company, seen_in, gone, at in rows:
            flags = (closed is not None, gone_for_good is not None)
            self.known[one] = _Known(digest, instant(updated), *flags, company, seen_in, gone is not None, instant(at))

    def add(self, item: Item, made: Digest) -> None:
        """One offer: a row to be written, or nothing but that it was seen."""
        there = self.known.get(item.id, _NEW)
        if item.erased and not there.erased:
            self._blank(item, there)
            return
        digest, key, alike = made
        is_new = there.content_hash is None
        older = there.updated_at is not None and item.at < there.updated_at
        differs = not is_new and not older and digest != there.content_hash
        same = not (is_new or differs or there.closed) and item.at == there.updated_at
        if there.erased or same or (older and not there.closed):
            self.untouched.append(item.id)
            return
        values = item.values
        if is_new and alike is not None:
            self.born.append(Candidate(ref=(self.query.client, item.id), likeness=alike, at=item.at))
        self.changed += differs
        if is_new or differs or there.closed:
            if there.company_key is not None:
                self.stale.setdefault(there.company_key, None)
            if key is not None:
                self.stale[key] = values[COMPANY]
        self.rows[item.id] = [
            *(self.query.client, item.id),
            *values,
            *(item.at, key, alike, None, None, None, digest),
            *(item.payload, self.now, self.now, None, None),
        ]

    def _blank(self, item: Item, there: _Known) -> None:
        """An offer that was erased, or is of a company that was: a row that says no more than that it is listed."""
        if there.company_key is not None:
            self.stale.setdefault(there.company_key, None)
        self.rows[item.id] = [
            *(self.query.client, item.id),
            *item.values,
            *(item.at, there.company_key, None, None, None, None, ERASED),
            *(None, self.now, self.now, None, self.now),
        ]

    def link(self, ledger: Ledger, within: timedelta) -> None:
        """Link new offers to earlier ones that are alike."""
        if not self.born:
            return
        source = keyed(ledger.database, "likeness")
        sql = (
            "SELECT o.client, o.offer_id, o.likeness, o.updated_at, o.linked_client, o.linked_offer_id"
            f" FROM {source} JOIN {offers.name} o ON o.likeness = n_likeness"
            " ORDER BY o.first_seen_at, o.client, o.offer_id"
        )
        rows = found_by(ledger, [[one] for one in sorted({str(each.likeness) for each in self.born})], sql)
        known = [
            Candidate(
                ref=(client, offer_id),
                likeness=alike,
                at=instant(at),
                head=None if linked is None else (linked, linked_id),
            )
            for client, offer_id, alike, at, linked, linked_id in rows
        ]
        # Most are like none: these need no closer look.
        often = Counter(one.likeness for one in (*self.born, *known))
        alike = [one for one in self.born if often[one.likeness] > 1]
        for ref, found in links(alike, known, within).items():
            self.rows[ref[1]][_LINK : _LINK + 3] = [*found.head, found.kind]

    def taken(self, unread: Sequence[str], stale: Mapping[str, str | None]) -> Taken:
        """All of it, as rows. `stale`: companies that are to be marked as such."""
        writes, updates = list(_stale(stale, self.now)), []
        if self.rows:
            writes.append(Write(offers, list(self.rows.values()), first=_FIRST, columns=_COLUMNS))
        if self.untouched:
            updates.append(Update(_offers(self.query, self.untouched), {"last_seen_at": self.now}))
        listed: list[list[Any]] = []
        seen = list(unread)
        for item in self.items:
            there = self.known.get(item.id, _NEW)
            if there.seen_in is None or there.gone or item.at != there.record_at:
                listed.append([self.query.query_key, item.id, self.query.client, item.at, self.number, None])
            elif there.seen_in != self.number:
                seen.append(item.id)
        if listed:
            writes.append(Write(query_offers, listed, columns=_LISTED))
        if seen:
            updates.append(Update(_listing(self.query, seen), {"seen_in": self.number}))
        fresh = sum(1 for item in self.items if self.known.get(item.id, _NEW).seen_in != self.number)
        new = sum(1 for one in self.rows if self.known.get(one, _NEW).content_hash is None)
        return Taken(writes, updates, new, self.changed, fresh, bool(self.stale))


def _offers(query: Query, ids: Sequence[str]) -> Where:
    return Where(offers, {"client": query.client}, among=("offer_id", ids))


def _listing(query: Query, ids: Sequence[str]) -> Where:
    return Where(query_offers, {"query_key": query.query_key}, among=("offer_id", ids))


def _stale(names: Mapping[str, str | None], now: datetime) -> list[Write]:
    """Companies that are to be aggregated again; the name and the moment of the first time stay."""
    rows = [[key, name, now, now, True] for key, name in sorted(names.items())]
    return [Write(companies, rows, first=("name", "first_seen_at"), columns=_COMPANY_COLUMNS)] if rows else []

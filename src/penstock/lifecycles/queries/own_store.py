"""Records with a shape of their own: a table that the configuration declares, a row for each query that lists them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from penstock.connectors.searches import Item
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.queries.machine import Query
from penstock.lifecycles.queries.runs import Unseen
from penstock.lifecycles.queries.store import ERASED, Digest, Taken, absent_from, content_hash, found_by, keyed, unique
from penstock.model.clock import instant
from penstock.model.outcome import Update, Where, Write

_FIRST = ("first_seen_at",)


class OwnStore:
    """One table that `[queries.rest_json.*]` declares."""

    def __init__(self, table: sa.Table, fields: Sequence[str]) -> None:
        self.table = table
        self._columns = (
            *("query_key", "record_id", "record_at"),
            *fields,
            *("content_hash", "payload", "seen_in", "first_seen_at", "last_seen_at", "gone_at", "erased_at"),
        )

    def digests(self, items: Sequence[Item]) -> Mapping[str, Digest]:
        return {item.id: Digest(content_hash(item.values)) for item in items}

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
        items = unique(items)
        digests = self.digests(items) if digests is None else digests
        known = self._known(ledger, query, [item.id for item in items])
        rows: list[list[Any]] = []
        untouched: list[str] = []
        new = changed = fresh = 0
        for item in items:
            digest, at, seen_in, gone, erased = known.get(item.id, (None, None, None, False, False))
            fresh += seen_in != number
            if item.erased and not erased:
                blank = (ERASED, None, number, now, now, None, now)
                rows.append([query.query_key, item.id, item.at, *item.values, *blank])
                continue
            here = digests[item.id].content
            older = at is not None and item.at < at
            differs = digest is not None and not older and here != digest
            same = digest is not None and not differs and not gone and item.at == at
            if erased or same or (older and not gone):
                untouched.append(item.id)
                continue
            new, changed = new + (digest is None), changed + differs
            kept = (here, item.payload, number, now, now, None, None)
            rows.append([query.query_key, item.id, item.at, *item.values, *kept])
        writes = [Write(self.table, rows, first=_FIRST, columns=self._columns)] if rows else []
        seen = {"last_seen_at": now, "seen_in": number}
        untouched += unread
        updates = [Update(self._where(query, untouched), seen)] if untouched else []
        return Taken(writes, updates, new, changed, fresh)

    def absent(
        self, ledger: Ledger, query: Query, unseen: Unseen, but: Collection[str], most: int
    ) -> tuple[list[str], int, int]:
        return absent_from(ledger, self.table, "record_id", query, unseen, but, most)

    def close(
        self,
        ledger: Ledger,  # noqa: ARG002 - one shape
        query: Query,
        ids: Sequence[str],
        others: Sequence[str],  # noqa: ARG002 - a row is of one query alone
        now: datetime,
    ) -> Taken:
        return Taken(updates=[Update(self._where(query, ids), {"gone_at": now})], changed=len(ids))

    def _where(self, query: Query, ids: Sequence[str]) -> Where:
        return Where(self.table, {"query_key": query.query_key}, among=("record_id", ids))

    def _known(
        self, ledger: Ledger, query: Query, ids: Sequence[str]
    ) -> dict[str, tuple[str | None, datetime | None, int | None, bool, bool]]:
        source = keyed(ledger.database, "id", "key")
        sql = (
            f"SELECT record_id, content_hash, record_at, seen_in, gone_at, erased_at FROM {source}"
            f" JOIN {self.table.name} ON query_key = n_key AND record_id = n_id"
        )
        rows = found_by(ledger, [[one, query.query_key] for one in ids], sql)
        return {
            str(one): (digest, instant(at), seen_in, gone is not None, erased is not None)
            for one, digest, at, seen_in, gone, erased in rows
        }

"""Where a page's records go: what is new, what changed, and what is no longer listed."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from penstock.ledger.store import statements
from penstock.model.clock import instant_text
from penstock.model.outcome import Update, Write

if TYPE_CHECKING:
    import sqlalchemy as sa

    from penstock.connectors.searches import Item
    from penstock.ledger.ledger import Ledger
    from penstock.ledger.store.database import Cursor, Database
    from penstock.lifecycles.queries.machine import Query
    from penstock.lifecycles.queries.runs import Unseen

_encode = msgspec.json.Encoder(order="deterministic").encode
ERASED = "erased"
"""In place of the digest of what a record says, where that was erased."""


class Taken(msgspec.Struct, frozen=True):
    """What records come to: rows to write, and how many are new, have changed, or were not seen in the pass before."""

    writes: Sequence[Write] = ()
    updates: Sequence[Update] = ()
    new: int = 0
    changed: int = 0
    fresh: int = 0
    #: Whether companies have other offers than before.
    companies: bool = False


class Digest(NamedTuple):
    """What is made of what a record says: by it records, companies and offers are known again."""

    content: str
    company_key: str | None = None
    likeness: str | None = None


class Store(Protocol):
    """A place for records. Its functions read the ledger and write nothing."""

    def digests(self, items: Sequence[Item]) -> Mapping[str, Digest]:
        """Those of records, by their ids. Takes long, and does not ask the ledger: it can be done beforehand."""

    def take(  # noqa: PLR0917 - what was read, by whom and when
        self,
        ledger: Ledger,
        query: Query,
        number: int,
        items: Sequence[Item],
        unread: Sequence[str],
        now: datetime,
        digests: Mapping[str, Digest] | None = None,
    ) -> Taken:
        """Records that the reading of that number has found; of some no more is known than that they are listed."""

    def absent(
        self, ledger: Ledger, query: Query, unseen: Unseen, but: Collection[str], most: int
    ) -> tuple[list[str], int, int]:
        """Records that it did not see and should have, but for some: so many of their ids, and how many of how many."""

    def close(self, ledger: Ledger, query: Query, ids: Sequence[str], others: Sequence[str], now: datetime) -> Taken:
        """The rows that say that these are no longer listed; `changed` is how many are thereby closed.

        `others` are the keys of the other queries of its client in the configuration.
        """


def content_hash(values: tuple[Any, ...]) -> str:
    """The digest of what a record says."""
    return hashlib.blake2b(_encode(values), digest_size=16).hexdigest()


def unique(items: Sequence[Item]) -> list[Item]:
    """The last of each id."""
    return list({item.id: item for item in items}.values())


def keyed(database: Database, *columns: str) -> str:
    """The source of rows that are compared with a table's by a whole key, of texts: `n_<column>` each.

    Also what is the same in all rows: compared by itself, it looks to a planner as if it left few rows of the table.
    """
    return statements.batch(database, dict.fromkeys(columns, statements.TEXT))


def found_by(ledger: Ledger, keys: Sequence[Sequence[str]], sql: str, **given: Any) -> Sequence[Sequence[Any]]:
    """What a statement finds by these keys, which are the rows of its source (see `keyed`)."""
    batch = statements.batch_text(keys)

    def read(cursor: Cursor) -> Sequence[Sequence[Any]]:
        ledger.database.sql.by_index(cursor)
        return cursor.rows(sql, batch=batch, **given)

    return ledger.read(read)


def absent_from(  # noqa: PLR0917 - what a store is asked, and of which table
    ledger: Ledger,
    table: sa.Table,
    identity: str,
    query: Query,
    unseen: Unseen,
    but: Collection[str],
    most: int,
) -> tuple[list[str], int, int]:
    """What a reading did not see, of a table that says which one saw each record last."""
    found = f"FROM {table.name} WHERE query_key = :key AND record_at >= :until AND gone_at IS NULL"
    given = {"key": query.query_key, "until": instant_text(unseen.until), "number": unseen.number}
    listed = f"SELECT {identity} {found} AND seen_in < :number ORDER BY record_at, {identity} LIMIT :most"
    counts = f"SELECT count(*), coalesce(sum(CASE WHEN seen_in < :number THEN 1 ELSE 0 END), 0) {found}"

    def read(cursor: Cursor) -> tuple[list[str], int, int]:
        rows = cursor.rows(listed, **given, most=most + len(but))
        ids = [str(row[0]) for row in rows if row[0] not in but][:most]
        if not ids:
            return [], 0, 0
        live, missing = cursor.rows(counts, **given)[0]
        return ids, int(missing), int(live)

    return ledger.read(read)

"""The records that were priced by other rules than those in force, and what is kept of pricing them again.

A row of `harvest_reprice` is a repricing: who asked for it, how far it has come, what it came to. A feed has one under
way at most; it is counted in the transactions that price.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from penstock.ledger.commit import insert_events
from penstock.ledger.ledger import Ledger
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database, instant_sql
from penstock.lifecycles.harvest.consolidate import rules_in_force
from penstock.lifecycles.harvest.feed import Feed
from penstock.lifecycles.harvest.pricing import digest
from penstock.lifecycles.harvest.tables import diamonds, harvest_reprice
from penstock.model.clock import instant_text

EVENT = "harvest.repriced"
RUNNING, COMPLETED, SUPERSEDED = "running", "completed", "superseded"


@dataclass(frozen=True, slots=True)
class Priced:
    """The canonical records of a feed."""

    feed: str
    table: sa.Table = diamonds
    #: The column that tells them apart.
    identity: str = "supplier_stone_id"

    @classmethod
    def of(cls, feed: Feed) -> Priced:
        """Those of a feed."""
        return cls(feed.name, feed.canonical, feed.identity)


def count(cursor: Cursor, priced: Priced, *, unlike: str | None = None) -> int:
    """How many records there are; `unlike`: of those that were priced by rules of another digest."""
    sql = f"SELECT count(*) FROM {priced.table.name} WHERE feed = :feed"
    if unlike is None:
        return int(cursor.rows(sql, feed=priced.feed)[0][0])
    sides = [cursor.rows(f"{sql} AND pricing_digest {side} :digest", feed=priced.feed, digest=unlike) for side in "<>"]
    return sum(int(rows[0][0]) for rows in sides)


def under_way(cursor: Cursor, feed: str) -> Mapping[str, Any] | None:
    """The repricing of a feed that is under way."""
    names = [c.name for c in harvest_reprice.columns]
    sql = f"SELECT {', '.join(names)} FROM harvest_reprice WHERE feed = :feed AND status = '{RUNNING}'"
    found = cursor.rows(sql, feed=feed)
    return dict(zip(names, found[0], strict=True)) if found else None


def wished(ledger: Ledger, priced: Priced, who: str, reason: str) -> dict[str, Any]:
    """A row that asks for a repricing; the job goes on from it. Raises BadRule."""

    def work(cursor: Cursor) -> dict[str, Any]:
        wanted = digest(rules_in_force(cursor, priced.feed))
        return {**_row(cursor, priced, wanted, ledger.clock.now()), "requested_by": who, "reason": reason}

    return ledger.read(work)


def begin(database: Database, cursor: Cursor, priced: Priced, wanted: str, now: datetime) -> None:
    """A repricing is under way from its first record on. When the rules change again, another takes its place."""
    there = under_way(cursor, priced.feed)
    if there is not None and there["digest"] == wanted:
        return
    row = _row(cursor, priced, wanted, now)
    if there is not None:
        _close(database, cursor, priced.feed, SUPERSEDED, now)
        row |= {"requested_by": there["requested_by"], "reason": there["reason"]}
    # Ignored where somebody else began at the same moment.
    sql, given = statements.upsert(database, harvest_reprice, list(row), ("ignore", None, ()), [list(row.values())])
    cursor.run(sql, **given)


def _row(cursor: Cursor, priced: Priced, wanted: str, now: datetime) -> dict[str, Any]:
    return {
        "feed": priced.feed,
        "begun_at": instant_text(now),
        "digest": wanted,
        "status": RUNNING,
        "expected": count(cursor, priced, unlike=wanted),
        "requested_by": None,
        "reason": None,
    }


def tally(cursor: Cursor, feed: str, *, records: int, changed: int, unpriced: int) -> None:
    """Add what a transaction came to."""
    sql = "UPDATE harvest_reprice SET records = records + :n, changed = changed + :c, unpriced = unpriced + :u"
    counts = {"n": records, "c": changed, "u": unpriced}
    cursor.run(f"{sql} WHERE feed = :feed AND status = '{RUNNING}'", feed=feed, **counts)


def finish(database: Database, cursor: Cursor, priced: Priced, wanted: str, now: datetime) -> None:
    """Where nothing is left, say so, once. What somebody else holds at the moment is left for later."""
    there = under_way(cursor, priced.feed)
    if there is None or count(cursor, priced, unlike=wanted):
        return
    _close(database, cursor, priced.feed, COMPLETED, now)
    begun = there["begun_at"] if isinstance(there["begun_at"], str) else instant_text(there["begun_at"])
    told = ("feed", "digest", "records", "changed", "unpriced", "requested_by", "reason")
    payload = json.dumps({name: there[name] for name in told})
    severity = "warning" if there["unpriced"] else None
    insert_events(
        database, cursor, [["default", f"{EVENT}:{priced.feed}:{begun}", EVENT, severity, payload, None, None]]
    )


def _close(database: Database, cursor: Cursor, feed: str, status: str, now: datetime) -> None:
    sql = f"UPDATE harvest_reprice SET status = :status, finished_at = {instant_sql(database, 'now')}"
    cursor.run(f"{sql} WHERE feed = :feed AND status = '{RUNNING}'", feed=feed, status=status, now=instant_text(now))

"""Pricing again: canonical records follow the rules in force, whenever they were fetched.

Each record has the digest of the rules that priced it. What has another digest than the rules in force is priced again,
some thousands in a transaction, by the function that prices in consolidation. Whoever is killed leaves records that are
done and records that are as they were, and nothing has to remember how far it came. A record that changed since it was
read is left alone; if its price is old it is found again.

A row of `harvest_reprice` is a repricing: who asked for it, how far it has come, what it came to. A feed has one under
way at most; it is counted in the transactions that price.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from penstock.ledger.commit import insert_events
from penstock.ledger.ledger import Ledger
from penstock.ledger.schema.columns import plain, readable
from penstock.ledger.store import statements
from penstock.ledger.store.data import update_unchanged
from penstock.ledger.store.database import Cursor, Database
from penstock.lifecycles.harvest.feed import Feed
from penstock.lifecycles.harvest.prices import COMPARED, Records, change_of, columns, count_records, rules_in_force
from penstock.lifecycles.harvest.pricing import BadRule, Pricer, compile_rules, digest
from penstock.lifecycles.harvest.tables import diamonds, harvest_reprice
from penstock.model.clock import instant_text
from penstock.model.outcome import MAX_ROWS, Event
from penstock.worker.flow import Io
from penstock.worker.job import JobResult

EVENT = "harvest.repriced"
REFUSED = "harvest.reprice_refused"
RUNNING, COMPLETED, SUPERSEDED = "running", "completed", "superseded"
_BATCHES = 8
"""So many transactions are one run of the job; after each run the schedule says what it came to."""


@dataclass(frozen=True, slots=True)
class Priced:
    """The canonical records of a feed."""

    feed: str
    table: sa.Table = diamonds
    #: The column that tells them apart.
    identity: str = "supplier_stone_id"

    @property
    def records(self) -> Records:
        """They, by the names of the table and the column."""
        return Records(self.feed, self.table.name, self.identity)

    @classmethod
    def of(cls, feed: Feed) -> Priced:
        """Those of a feed."""
        return cls(feed.name, feed.canonical, feed.identity)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one transaction came to, and whether there may be more."""

    records: int
    changed: int
    unpriced: int
    more: bool


async def reprice(priced: Priced, io: Io) -> JobResult:
    """One run of the job: whatever was priced by other rules than those in force is priced again."""
    done: list[Batch] = []
    try:
        while len(done) < _BATCHES and (not done or done[-1].more):
            done.append(await io.ledger(lambda ledger: reprice_some(ledger, priced, io.now())))
    except BadRule as error:
        return _refused(priced.feed, error)
    records, changed = sum(b.records for b in done), sum(b.changed for b in done)
    says = f"{records:,} records priced again, {changed:,} prices changed"
    return JobResult(says if records else "nothing to price again", again=done[-1].more)


def _refused(feed: str, error: BadRule) -> JobResult:
    """A rule that cannot be applied is told once, however often the job finds it."""
    told = hashlib.sha256(str(error).encode()).hexdigest()[:16]
    payload = {"feed": feed, "reason": readable(str(error))}
    return JobResult(str(error), events=[Event(f"{REFUSED}:{feed}:{told}", REFUSED, payload, "critical")])


def reprice_some(ledger: Ledger, priced: Priced, now: datetime, at_once: int = MAX_ROWS) -> Batch:
    """Price up to so many records again, in one transaction with what is counted of them. Raises BadRule.

    Done twice it comes to the same: what is priced by the rules in force is not found again.
    """
    read = ledger.read(lambda cursor: _read(cursor, priced, at_once))
    if not read.rows and not read.begun:
        return Batch(0, 0, 0, more=False)
    updates = [_update(ledger.database, priced, read.digest, kind, now) for kind in _kinds(read)]

    def work(cursor: Cursor) -> Batch:
        database = ledger.database
        if read.rows:
            _begin(database, cursor, priced, read.digest, now)
        changed, same, unpriced = [cursor.run(sql, **given) if given else 0 for sql, given in updates]
        records = changed + same + unpriced
        _tally(cursor, priced.feed, records=records, changed=changed, unpriced=unpriced)
        # Where nothing could be written the records are somebody else's: the next tick looks again.
        more = len(read.rows) >= at_once and records > 0
        if not more:
            _finish(database, cursor, priced, read.digest, now)
        return Batch(records, changed, unpriced, more)

    return ledger.database.write(work)


@dataclass(frozen=True, slots=True)
class _Read:
    feed: str
    digest: str
    price: Pricer
    rows: Sequence[Sequence[Any]]
    begun: bool


def _read(cursor: Cursor, priced: Priced, at_once: int) -> _Read:
    """Rules and records of one moment: no record is found whose price is owed to newer rules than these."""
    rules = rules_in_force(cursor, priced.feed)
    wanted = digest(rules)
    sides = [
        f"SELECT * FROM (SELECT * FROM {priced.table.name} WHERE feed = :feed AND pricing_digest {side} :digest"
        f" LIMIT {at_once}) AS {name}"
        for side, name in (("<", "below"), (">", "above"))
    ]
    sql = f"SELECT {columns(priced.records)} FROM ({' UNION ALL '.join(sides)} LIMIT {at_once}) AS t"
    rows = cursor.gather(sql, feed=priced.feed, digest=wanted)
    begun = under_way(cursor, priced.feed) is not None
    return _Read(priced.feed, wanted, compile_rules(rules, priced.feed), rows, begun)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Records that one statement writes: with another price, or only with the rules that it is owed to."""

    anew: bool
    rows: list[list[Any]] = field(default_factory=list)


def _kinds(read: _Read) -> tuple[_Kind, _Kind, _Kind]:
    """Records whose price changes, those whose price stays, and those that no price can be made for."""
    changed, same, unpriced = _Kind(anew=True), _Kind(anew=False), _Kind(anew=False)
    for row in read.rows:
        change = change_of(row, read.price)
        kind = unpriced if change.why_not is not None else changed if change.before != change.after else same
        price = [str(change.after)] if kind.anew else []
        kind.rows.append([read.feed, *row[: len(COMPARED) + 1], *price, change.rule_after])
    return changed, same, unpriced


def _update(database: Database, priced: Priced, wanted: str, kind: _Kind, now: datetime) -> tuple[str, dict[str, Any]]:
    """The statement that writes those of the records that are still as they were read; without parameters for none."""
    if not kind.rows:
        return "", {}
    alike = {"pricing_digest": wanted}
    if kind.anew:
        alike["updated_at"] = instant_text(now)
    return update_unchanged(
        database,
        priced.table,
        # With the feed in every row, so that SQLite goes from them to the records and not the other way round.
        key=("feed", priced.identity),
        compared=COMPARED,
        changed=("price", "pricing_rule_id") if kind.anew else ("pricing_rule_id",),
        alike=alike,
        rows=kind.rows,
    )


def under_way(cursor: Cursor, feed: str) -> Mapping[str, Any] | None:
    """The repricing of a feed that is under way."""
    names = [c.name for c in harvest_reprice.columns]
    sql = f"SELECT {', '.join(names)} FROM harvest_reprice WHERE feed = :feed AND status = '{RUNNING}'"
    found = cursor.rows(sql, feed=feed)
    return dict(zip(names, found[0], strict=True)) if found else None


def wish(cursor: Cursor, priced: Priced, now: datetime, who: str, reason: str) -> dict[str, Any]:
    """A row of `harvest_reprice` that asks for a repricing; the job goes on from it. Raises BadRule."""
    wanted = digest(rules_in_force(cursor, priced.feed))
    return {**_row(cursor, priced, wanted, now), "requested_by": who, "reason": reason}


def _begin(database: Database, cursor: Cursor, priced: Priced, wanted: str, now: datetime) -> None:
    """A repricing is under way from its first record on. When the rules change again, another takes its place."""
    there = under_way(cursor, priced.feed)
    if there is not None and there["digest"] == wanted:
        return
    row = _row(cursor, priced, wanted, now)
    if there is None and not row["expected"]:
        return  # somebody else has priced what was read here
    if there is not None:
        _close(database, cursor, priced.feed, SUPERSEDED, now)
        row |= {"requested_by": there["requested_by"], "reason": there["reason"]}
    # Ignored where somebody else began at the same moment.
    values = [plain(value) for value in row.values()]
    sql, given = statements.upsert(database, harvest_reprice, list(row), ("ignore", None, ()), [values])
    cursor.run(sql, **given)


def _row(cursor: Cursor, priced: Priced, wanted: str, now: datetime) -> dict[str, Any]:
    return {
        "feed": priced.feed,
        "begun_at": now,
        "digest": wanted,
        "status": RUNNING,
        "expected": count_records(cursor, priced.records, unlike=wanted),
        "requested_by": None,
        "reason": None,
    }


def _tally(cursor: Cursor, feed: str, *, records: int, changed: int, unpriced: int) -> None:
    """Add what a transaction came to."""
    sql = "UPDATE harvest_reprice SET records = records + :n, changed = changed + :c, unpriced = unpriced + :u"
    counts = {"n": records, "c": changed, "u": unpriced}
    cursor.run(f"{sql} WHERE feed = :feed AND status = '{RUNNING}'", feed=feed, **counts)


def _finish(database: Database, cursor: Cursor, priced: Priced, wanted: str, now: datetime) -> None:
    """Where nothing is left, say so, once. What somebody else holds at the moment is left for later."""
    there = under_way(cursor, priced.feed)
    if there is None or count_records(cursor, priced.records, unlike=wanted):
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
    sql = f"UPDATE harvest_reprice SET status = :status, finished_at = {database.sql.instant('now')}"
    cursor.run(f"{sql} WHERE feed = :feed AND status = '{RUNNING}'", feed=feed, status=status, now=instant_text(now))

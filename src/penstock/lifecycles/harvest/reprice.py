"""Pricing again: canonical records follow the rules in force, whenever they were fetched.

Each record has the digest of the rules that priced it. What has another digest than the rules in force is priced again,
some thousands in a transaction, by the function that prices in consolidation. Whoever is killed leaves records that are
done and records that are as they were, and nothing has to remember how far it came. A record that changed since it was
read is left alone; if its price is old it is found again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from penstock.ledger.ledger import Ledger
from penstock.ledger.schema.columns import Exact, readable
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database, instant_sql
from penstock.lifecycles.harvest import repricing
from penstock.lifecycles.harvest.consolidate import rules_in_force
from penstock.lifecycles.harvest.feed import Unmappable
from penstock.lifecycles.harvest.pricing import WORDS, BadRule, Pricer, compile_rules, digest
from penstock.lifecycles.harvest.repricing import Priced
from penstock.model.clock import instant_text
from penstock.model.errors import UsageError
from penstock.model.outcome import MAX_ROWS, Event
from penstock.worker.flow import Io
from penstock.worker.schedule import Job, JobResult, Schedule

JOB = "reprice"
REFUSED = "harvest.reprice_refused"
SAMPLE = 10
_BATCHES = 8
"""So many transactions are one run of the job; after each run the schedule says what it came to."""
#: What a record's price is made of. While these are as they were read, a price that was made of them is right.
_COMPARED = (*WORDS, "carat", "supplier_price", "pricing_digest")
_READ = (*_COMPARED, "price", "pricing_rule_id")


@dataclass(frozen=True, slots=True)
class Change:
    """What a record costs and would cost, and by which rules. `why_not`: no price can be made; the old one stays."""

    record: str
    before: Decimal
    after: Decimal
    rule_before: int | None
    rule_after: int | None
    why_not: str | None = None


@dataclass(slots=True)
class Preview:
    """What pricing again would come to. `stale` are the records that were priced by other rules."""

    feed: str
    rules: int
    records: int
    stale: int = 0
    changed: int = 0
    unpriced: int = 0
    why_not: str | None = None
    sample: list[Change] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one transaction came to, and whether there may be more."""

    records: int
    changed: int
    unpriced: int
    more: bool


def schedule_name(feed: str) -> str:
    """The schedule that has a feed's records priced again."""
    return f"reprice-{feed}"


def reprice_job(feeds: Mapping[str, Priced]) -> Job:
    """The job `reprice`: whatever was priced by other rules than those in force is priced again."""

    async def job(schedule: Schedule, io: Io) -> JobResult:
        name = str((schedule.settings or {}).get("feed"))
        if name not in feeds:
            raise UsageError(f"no feed is called {name!r}; add [feeds.{name}] to the configuration")
        done: list[Batch] = []
        try:
            while len(done) < _BATCHES and (not done or done[-1].more):
                done.append(await io.ledger(lambda ledger: reprice_some(ledger, feeds[name], io.now())))
        except BadRule as error:
            return _refused(name, error)
        records, changed = sum(b.records for b in done), sum(b.changed for b in done)
        says = f"{records:,} records priced again, {changed:,} prices changed"
        return JobResult(says if records else "nothing to price again", again=done[-1].more)

    return job


def _refused(feed: str, error: BadRule) -> JobResult:
    """A rule that cannot be applied is told once, however often the job finds it."""
    told = hashlib.sha256(str(error).encode()).hexdigest()[:16]
    payload = {"feed": feed, "reason": readable(str(error))}
    return JobResult(str(error), events=[Event(f"{REFUSED}:{feed}:{told}", REFUSED, payload, "critical")])


def preview(ledger: Ledger, priced: Priced) -> Preview:
    """Price every record that was priced by other rules, and change nothing. Raises BadRule."""
    rules, there = ledger.read(lambda cursor: (rules_in_force(cursor, priced.feed), repricing.count(cursor, priced)))
    made, price, after = Preview(priced.feed, len(rules), there), compile_rules(rules, priced.feed), ""
    sql = (
        f"SELECT {_columns(priced)} FROM {priced.table.name} WHERE feed = :feed AND {priced.identity} > :after"
        f" AND pricing_digest <> :digest ORDER BY {priced.identity} LIMIT {MAX_ROWS}"
    )
    given = {"feed": priced.feed, "digest": digest(rules)}
    while rows := _rows(ledger, sql, after=after, **given):
        after = rows[-1][0]
        for change in (_change(row, price) for row in rows):
            made.stale += 1
            made.unpriced += change.why_not is not None
            made.why_not = made.why_not or change.why_not
            if change.before != change.after:
                made.changed += 1
                made.sample += [change] if len(made.sample) < SAMPLE else []
    return made


def _rows(ledger: Ledger, sql: str, **given: Any) -> Sequence[Sequence[Any]]:
    return ledger.read(lambda cursor: cursor.rows(sql, **given))


def reprice_some(ledger: Ledger, priced: Priced, now: datetime, at_once: int = MAX_ROWS) -> Batch:
    """Price up to so many records again, in one transaction with what is counted of them. Raises BadRule.

    Done twice it comes to the same: what is priced by the rules in force is not found again.
    """
    read = ledger.read(lambda cursor: _read(cursor, priced, at_once))
    if not read.rows and not read.under_way:
        return Batch(0, 0, 0, more=False)
    updates = [_update(ledger.database, priced, read.digest, kind, now) for kind in _kinds(read)]

    def work(cursor: Cursor) -> Batch:
        database = ledger.database
        if read.rows:
            repricing.begin(database, cursor, priced, read.digest, now)
        changed, same, unpriced = [cursor.run(sql, **given) if given else 0 for sql, given in updates]
        records = changed + same + unpriced
        repricing.tally(cursor, priced.feed, records=records, changed=changed, unpriced=unpriced)
        # Where nothing could be written the records are somebody else's: the next tick looks again.
        more = len(read.rows) >= at_once and records > 0
        if not more:
            repricing.finish(database, cursor, priced, read.digest, now)
        return Batch(records, changed, unpriced, more)

    return ledger.database.write(work)


@dataclass(frozen=True, slots=True)
class _Read:
    digest: str
    price: Pricer
    rows: Sequence[Sequence[Any]]
    under_way: bool


def _read(cursor: Cursor, priced: Priced, at_once: int) -> _Read:
    """Rules and records of one moment: no record is found whose price is owed to newer rules than these."""
    rules = rules_in_force(cursor, priced.feed)
    wanted = digest(rules)
    sides = [
        f"SELECT * FROM (SELECT * FROM {priced.table.name} WHERE feed = :feed AND pricing_digest {side} :digest"
        f" LIMIT {at_once}) AS {name}"
        for side, name in (("<", "below"), (">", "above"))
    ]
    sql = f"SELECT {_columns(priced)} FROM ({' UNION ALL '.join(sides)} LIMIT {at_once}) AS t"
    rows = cursor.gather(sql, feed=priced.feed, digest=wanted)
    under_way = repricing.under_way(cursor, priced.feed) is not None
    return _Read(wanted, compile_rules(rules, priced.feed), rows, under_way)


def _columns(priced: Priced) -> str:
    amounts = {c.name for c in priced.table.columns if isinstance(c.type, Exact)}
    return ", ".join(f"CAST({n} AS TEXT)" if n in amounts else n for n in (priced.identity, *_READ))


def _change(row: Sequence[Any], price: Pricer) -> Change:
    record, *read = row
    values = dict(zip(_READ, read, strict=True))
    before, rule = Decimal(values["price"]), values["pricing_rule_id"]
    values["supplier_price"] = Decimal(values["supplier_price"])
    values["carat"] = None if values["carat"] is None else Decimal(values["carat"])
    try:
        price(values)
    except Unmappable as error:
        return Change(str(record), before, before, rule, rule, f"{record}: {error}")
    return Change(str(record), before, values["price"], rule, values["pricing_rule_id"])


@dataclass(frozen=True, slots=True)
class _Kind:
    """Records that one statement writes: with another price, or only with the rules that it is owed to."""

    anew: bool
    rows: list[list[Any]] = field(default_factory=list)


def _kinds(read: _Read) -> tuple[_Kind, _Kind, _Kind]:
    """Records whose price changes, those whose price stays, and those that no price can be made for."""
    changed, same, unpriced = _Kind(anew=True), _Kind(anew=False), _Kind(anew=False)
    for row in read.rows:
        change = _change(row, read.price)
        kind = unpriced if change.why_not is not None else changed if change.before != change.after else same
        kind.rows.append([*row[: len(_COMPARED) + 1], str(change.after), change.rule_after])
    return changed, same, unpriced


def _update(database: Database, priced: Priced, wanted: str, kind: _Kind, now: datetime) -> tuple[str, dict[str, str]]:
    """The statement that writes those of the records that are still as they were read; without parameters for none."""
    if not kind.rows:
        return "", {}
    table, name, postgres = priced.table, priced.identity, database.dialect == "postgresql"
    # With the feed in every row, so that SQLite goes from them to the records and not the other way round.
    source = statements.batch(database, {n: table.c[n].type for n in ("feed", name, *_READ)})
    alike = "IS NOT DISTINCT FROM" if postgres else "IS"
    unchanged = " AND ".join(f"t.{n} {alike} n_{n}" for n in _COMPARED)
    which = f"t.feed = n_feed AND t.{name} = n_{name}"
    sets = "pricing_digest = :digest, pricing_rule_id = n_pricing_rule_id"
    given = {"digest": wanted, "batch": statements.batch_text([[priced.feed, *row] for row in kind.rows])}
    if kind.anew:
        sets += f", price = n_price, updated_at = {instant_sql(database, 'now')}"
        given["now"] = instant_text(now)
    sql = f"UPDATE {table.name} AS t SET {sets} FROM {source} WHERE {which} AND {unchanged}"
    if postgres:
        # Who never waits for a record never deadlocks with a consolidation, which takes them in another order. One that
        # is locked is being written, and is found again if its price is old.
        mine = (
            f"SELECT n_feed, n_{name}, n_price, n_pricing_rule_id FROM {source} JOIN {table.name} AS t ON {which}"
            f" WHERE {unchanged} FOR NO KEY UPDATE OF t SKIP LOCKED"
        )
        sql = f"WITH mine AS MATERIALIZED ({mine}) UPDATE {table.name} AS t SET {sets} FROM mine WHERE {which}"
    return sql, given

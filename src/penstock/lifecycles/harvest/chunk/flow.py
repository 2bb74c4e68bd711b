"""The flow of chunks: a range of a run's raw rows is mapped, priced, upserted and marked in one transaction.

Any number of workers share a run's chunks, and each holds a few: while the database writes one, the next is mapped. A
row that cannot be mapped is set aside with its reason and marked like the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any
from uuid import UUID

from penstock.ledger.ledger import Ledger
from penstock.ledger.rows import weight_of
from penstock.ledger.schema.columns import document, readable
from penstock.ledger.store.data import text_sql
from penstock.ledger.store.database import Cursor, Database
from penstock.lifecycles.harvest.chunk.decide import Seen, decide
from penstock.lifecycles.harvest.chunk.machine import C, Chunk, harvest_chunk
from penstock.lifecycles.harvest.feed import Feed, Unmappable
from penstock.lifecycles.harvest.pricing import Pricer, Rule, compile_rules
from penstock.lifecycles.harvest.run.machine import CONSOLIDATIONS
from penstock.lifecycles.harvest.settings import HarvestSettings
from penstock.lifecycles.harvest.tables import harvest_rejected
from penstock.model.clock import Rng, instant_text
from penstock.model.errors import Rejected, StepError
from penstock.model.outcome import MAX_BYTES, MAX_ROWS, Outcome, Update, Where, Write
from penstock.model.unit import replace
from penstock.worker.flow import Flow, Io

_MOST_BYTES = MAX_BYTES * 3 // 4
_LONGEST_REASON = 500
_PRICED = "supplier_price"


@dataclass(slots=True)
class Made:
    """What a range of raw rows came to, and where it ends: some rows may not have fitted."""

    columns: list[str]
    rows: list[Sequence[Any]]
    rejected: list[dict[str, Any]]
    last: int


class Chunks(Flow[Chunk, HarvestSettings, Seen]):
    """Consolidates the chunks of every configured feed."""

    machine = harvest_chunk
    decide = staticmethod(decide)

    def __init__(self, settings: HarvestSettings, feeds: Mapping[str, Feed]) -> None:
        super().__init__(settings)
        self.at_once = settings.chunks_at_once
        self._feeds = feeds
        self._pricer: tuple[tuple[str, str], Pricer] | None = None
        # One is read while another is mapped and a third is written: two of a kind would only be in each other's way,
        # and on SQLite every connection that reads has a cache of its own.
        self._reading, self._mapping = asyncio.Lock(), asyncio.Lock()

    async def look(self, unit: Chunk, io: Io) -> Seen:
        async with self._reading:
            return await io.ledger(lambda ledger: seen_of(ledger, unit.run_id))

    async def act(self, what: str, unit: Chunk, seen: Seen | None, io: Io) -> Outcome[Chunk]:
        now = io.now()
        if what == "give_up":
            why = f"its run is {seen.run if seen else 'gone'}"
            return Outcome(unit, replace(unit, status=C.FAILED, error=why, due_at=None), why)
        feed = self._feeds[unit.feed]
        price = await self._pricing(unit, seen, io)
        async with self._reading:
            found = await io.ledger(lambda ledger: read_range(ledger, feed, unit))
        async with self._mapping:
            made = await io.run(consolidate, feed, unit, found, price, now)
        return _outcome(feed, unit, made, now)

    def failed(self, unit: Chunk, error: StepError, now: datetime, rng: Rng) -> Outcome[Chunk] | None:  # noqa: ARG002
        """After its retries it says why; its run, which then fails, is what alerts."""
        if not isinstance(error, Rejected) and not CONSOLIDATIONS.exhausted(unit.attempts):
            return None
        why = readable(f"{type(error).__name__}: {error} (after {unit.attempts} retries)")
        return Outcome(unit, replace(unit, status=C.FAILED, error=why, due_at=None), why)

    async def _pricing(self, unit: Chunk, seen: Seen | None, io: Io) -> Pricer:
        """The run's rules, compiled; the same rules are compiled once."""
        key = (unit.feed, str(seen and seen.digest))
        if self._pricer is None or self._pricer[0] != key:
            rules = await io.ledger(lambda ledger: rules_of(ledger, unit.run_id))
            self._pricer = (key, compile_rules(rules, unit.feed))
        return self._pricer[1]


def of_run(database: Database) -> str:
    """A condition on `run_id`, with the parameter `:run_id`."""
    return f"run_id = {database.sql.identifier('run_id')}"


def seen_of(ledger: Ledger, run_id: UUID) -> Seen:
    """How the run stands."""
    mine = of_run(ledger.database)

    def work(cursor: Cursor) -> Seen:
        runs = cursor.rows(f"SELECT status FROM run_metadata WHERE {mine}", run_id=str(run_id))
        rules = cursor.rows(f"SELECT digest FROM harvest_pricing WHERE {mine}", run_id=str(run_id))
        return Seen(str(runs[0][0]) if runs else "gone", str(rules[0][0]) if rules else None)

    return ledger.read(work)


def rules_of(ledger: Ledger, run_id: UUID) -> list[Rule]:
    """The rules that the run is priced by."""
    sql = f"SELECT rules FROM harvest_pricing WHERE {of_run(ledger.database)}"
    ((kept,),) = ledger.read(lambda cursor: cursor.rows(sql, run_id=str(run_id)))
    return [Rule.read(rule) for rule in (document(kept) if isinstance(kept, str) else kept)]


def read_range(ledger: Ledger, feed: Feed, chunk: Chunk) -> list[Sequence[Any]]:
    """The rows of a chunk that are not consolidated, in order."""
    database = ledger.database
    # As text they go to and fro as they are. Where the source does not say how old a record is, it is as old as its
    # fetching.
    payload, updated = text_sql(database, "payload"), text_sql(database, "coalesce(source_updated_at, fetched_at)")
    sql = (
        f"SELECT {feed.identity}, position, {payload}, payload_hash, {updated} FROM {feed.raw.name}"
        f" WHERE {of_run(database)} AND position >= :first AND position < :last AND NOT consolidated"
        f" ORDER BY position LIMIT {MAX_ROWS + 1}"
    )
    given = {"run_id": str(chunk.run_id), "first": chunk.first, "last": chunk.last}
    # Gathered: on SQLite they come as one JSON text, which is much quicker than row by row, but in no promised order.
    found = ledger.read(lambda cursor: cursor.gather(sql, **given))
    return sorted(found, key=itemgetter(1))


def consolidate(feed: Feed, chunk: Chunk, found: Sequence[Sequence[Any]], price: Pricer, now: datetime) -> Made:
    """Map and price the rows. It computes for long: run it where blocking work runs."""
    last = chunk.last if len(found) <= MAX_ROWS else int(found[MAX_ROWS][1])
    made = _made(feed, chunk, [row for row in found if row[1] < last], price, now)
    while weight_of(made.rows) + _LONGEST_REASON * len(made.rejected) > _MOST_BYTES and len(found) > 1:
        found = found[: len(found) // 2]
        # The last of them may share its place with the next.
        last = min(last, int(found[-1][1]) + 1)
        made = _made(feed, chunk, found, price, now)
    made.last = last
    return made


def _made(feed: Feed, chunk: Chunk, found: Sequence[Sequence[Any]], price: Pricer, now: datetime) -> Made:
    run = str(chunk.run_id)
    alike = {"feed": chunk.feed, "first_seen_run_id": run, "last_seen_run_id": run, "updated_at": instant_text(now)}
    columns = [c.name for c in feed.canonical.columns if c.name not in alike]
    identity, to_canonical, same = feed.identity, feed.map, tuple(alike.values())
    priced = _PRICED in columns
    rows: list[Sequence[Any]] = []
    rejected: list[dict[str, Any]] = []
    aside = {"run_id": chunk.run_id, "feed": chunk.feed, "at": now, "resolved_at": None}
    for key, _, payload, payload_hash, updated in found:
        try:
            row = to_canonical(payload)
            if priced:
                price(row)
            if "\\u" in payload:
                _refuse_unstorable(row)
        except Unmappable as error:
            rejected.append({**aside, "identity": key, "reason": _reason(str(error))})
            continue
        except Exception as error:  # noqa: BLE001 - whatever a mapping makes of one record, the others go on
            rejected.append({**aside, "identity": key, "reason": _reason(f"{type(error).__name__}: {error}")})
            continue
        row[identity] = key
        row["source_updated_at"] = updated
        row["payload_hash"] = payload_hash
        rows.append((*map(row.get, columns), *same))
    return Made([*columns, *alike], rows, rejected, chunk.last)


def _reason(text: str) -> str:
    return readable(text)[:_LONGEST_REASON]


def _refuse_unstorable(row: Mapping[str, Any]) -> None:
    """No database keeps a NUL in a text."""
    for name, value in row.items():
        if isinstance(value, str) and "\0" in value:
            raise Unmappable(f"{name} holds a character that cannot be stored")


def _outcome(feed: Feed, unit: Chunk, made: Made, now: datetime) -> Outcome[Chunk]:
    """The rows, their marks and the chunk's own end, or as much of it as one outcome carries."""
    whole = made.last >= unit.last
    after = replace(unit, records=unit.records + len(made.rows), rejected=unit.rejected + len(made.rejected))
    if whole:
        after = replace(after, status=C.DONE, due_at=None, error=None)
    else:
        after = replace(after, first=made.last, due_at=now)
    first = ("first_seen_run_id",)
    writes = [Write(feed.canonical, made.rows, newer="source_updated_at", first=first, columns=made.columns)]
    if made.rejected:
        writes.append(Write(harvest_rejected, made.rejected))
    marked = Where(feed.raw, {"run_id": unit.run_id}, span=("position", unit.first, made.last))
    return Outcome(
        unit,
        after,
        f"{len(made.rows):,} rows consolidated, {len(made.rejected):,} set aside",
        writes=writes,
        updates=[Update(marked, {"consolidated": True})],
        parent_counts={"records_consolidated": len(made.rows), "records_rejected": len(made.rejected)},
        keep_claim=not whole,
    )

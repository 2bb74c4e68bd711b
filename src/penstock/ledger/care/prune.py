"""Pruning: old history becomes one row per unit, old units that have ended go, old events and workers too.

What stays: the newest row of every unit's history that is older than the age, as a baseline, so that every moment since
then is answered as before; everything of an unfinished run; and of a unit that is gone its grave, one row that says so
(see `shrink`). Graves stay for ever unless an age is given for them.

Each batch is a transaction of its own, under a permit that it opens and closes: an interrupted run has done a part, and
the next one does the rest.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from penstock.ledger.care import shrink
from penstock.ledger.care.prune_rules import Eligible, Finished
from penstock.ledger.history import require_ledger
from penstock.ledger.schema import definitions
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database
from penstock.model.clock import Rng, instant_text, parse_instant
from penstock.model.errors import UnknownMachine

HISTORY, EVENTS, GATES, WORKERS, UNITS = shrink.LOG, "event_log", "gate_log", "worker", "units"
GRAVES = "keep_graves"
DEFAULT_AGES: dict[str, timedelta | None] = {
    HISTORY: timedelta(days=90),
    EVENTS: timedelta(days=90),
    GATES: timedelta(days=90),
    WORKERS: timedelta(days=90),
    UNITS: timedelta(days=365),
    GRAVES: None,
}
_AT_ONCE = 500
_ROWS_AT_ONCE = 5_000
_RECLAIMED_AFTER = 50_000
Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Ages:
    """How old a thing must be to go. `kept` names a log, `units`, or a machine for its ended units; None: for ever.

    `older_than` is one age for all of them, but for graves, which go by an age of their own alone.
    """

    kept: Mapping[str, timedelta | None] = field(default_factory=dict)
    older_than: timedelta | None = None
    units: bool = True

    def of(self, name: str) -> timedelta | None:
        """The age of a log's rows, or of a machine's ended units."""
        if self.older_than is not None and name != GRAVES:
            return self.older_than
        default = UNITS if name not in DEFAULT_AGES else name
        if name in self.kept:
            return self.kept[name]
        return self.kept.get(default, DEFAULT_AGES[default])


@dataclass(frozen=True, slots=True)
class Count:
    """So many rows of a table go, and so old they are at least."""

    table: str
    machine: str | None
    what: str
    before: datetime
    rows: int


class _EnoughError(Exception):
    """As much went as was asked for."""


class Pruner:
    """One run of pruning: the moment it began, what is to go, and who asked."""

    def __init__(self, database: Database, ages: Ages, *, machine: str | None = None, who: str, rng: Rng) -> None:
        self._database = database
        self._ages = ages
        self._who = who
        self._rng = rng
        self._machine = machine
        self._at = database.sql.instant("before")
        self._now, self._known = database.read(self._begin)
        self._rules = Eligible(self._known, self._before, self._at)

    def _begin(self, cursor: Cursor) -> tuple[datetime, dict[str, dict[str, Any]]]:
        require_ledger(self._database, cursor)
        known = definitions.stored(cursor)
        if self._machine is not None and self._machine not in known:
            msg = f"no machine is called {self._machine!r}; this ledger has {', '.join(known) or 'none'}"
            raise UnknownMachine(msg)
        moment = cursor.rows(f"SELECT {self._database.now_sql}", **self._database.bind_now())[0][0]
        return parse_instant(moment) if isinstance(moment, str) else moment, known

    def knows(self, name: str) -> bool:
        """Whether the ledger has that machine."""
        return name in self._known

    def _before(self, name: str) -> datetime | None:
        """Everything of that name goes that is older than this moment."""
        age = self._ages.of(name)
        return None if age is None else self._now - age

    def _before_graves(self) -> datetime | None:
        """Graves that are older go. Inside the time for which history is kept, none: they answer for it."""
        graves, history = self._before(GRAVES), self._before(HISTORY)
        return None if graves is None or history is None else min(graves, history)

    def _machines(self) -> list[str]:
        """Parents first: a child goes when its parent has gone."""
        names = self._rules.parents_first()
        return names if self._machine is None else [self._machine]

    # What would go.

    def counts(self) -> list[Count]:
        """What would go now, table by table."""
        found: list[Count] = []
        for name in self._machines():
            found += self._counts_of(name)
        if self._machine is None:
            logs = (EVENTS, "events", self._events()), (GATES, "changes of gates", self._gates())
            for log, what, text in (*logs, (WORKERS, "workers", self._workers())):
                if before := self._before(log):
                    rows = self._count(f"SELECT count(*) FROM {text}", {"before": instant_text(before)})
                    found.append(Count(log, None, what, before, rows))
        return found

    def _counts_of(self, name: str) -> Iterator[Count]:
        """What would go of one machine."""
        table, history, folded = self._known[name]["table"], self._before(HISTORY), 0
        ended = self._rules.finished(name, then=True) if self._ages.units else None
        if ended is not None and (before := self._before(name)):
            rows = self._count(f"SELECT count(*) FROM {table} u WHERE {ended.text}", ended.parameters)
            yield Count(table, name, "ended units", before, rows)
            if history is not None:
                # The last row of such a unit goes with it, if it is old enough: the grave stands for it.
                aged = self._at.replace(":before", ":aged")
                last = f"SELECT l.at FROM {HISTORY} l WHERE l.machine = :machine AND l.unit_id = u.unit_id"
                old = f"({last} ORDER BY l.seq DESC LIMIT 1) < {aged}"
                sql = f"SELECT count(*) FROM {table} u WHERE {ended.text} AND {old}"
                given = {**ended.parameters, "machine": name, "aged": instant_text(history)}
                folded = self._count(sql, given)
        if history is not None:
            rows = self._count(self._history_count(name), {"machine": name, "before": instant_text(history)})
            yield Count(HISTORY, name, "rows of history", history, rows + folded)
        if before := self._before_graves():
            sql = f"SELECT count(*) FROM {HISTORY} l WHERE l.machine = :machine AND {shrink.graves(self._at)}"
            rows = self._count(sql, {"machine": name, "before": instant_text(before)})
            yield Count(HISTORY, name, "graves", before, rows)

    def _count(self, sql: str, parameters: Mapping[str, Any]) -> int:
        return int(self._patiently(lambda cursor: cursor.rows(sql, **parameters))[0][0])

    def _patiently(self, work: Callable[[Cursor], list[Any]]) -> list[Any]:
        return self._database.read(work, patient=True)

    def _cuts(self, name: str) -> str:
        """Units of a machine with the newest row of their history that is old; the rows before it can go."""
        busy = self._rules.busy(name)
        return (
            f"SELECT l.unit_id AS unit_id, max(l.seq) AS seq FROM {HISTORY} l"
            f" WHERE l.machine = :machine AND {shrink.old(self._at)}"
            + (
                f" AND NOT EXISTS (SELECT 1 FROM {self._known[name]['table']} u WHERE u.unit_id = l.unit_id AND {busy})"
                if busy
                else ""
            )
            + " {more} GROUP BY l.unit_id HAVING count(*) > 1"
        )

    def _history_count(self, name: str) -> str:
        return (
            f"SELECT count(*) FROM {HISTORY} l JOIN ({self._cuts(name).format(more='')}) c ON c.unit_id = l.unit_id"
            " WHERE l.machine = :machine AND l.seq < c.seq"
        )

    def _events(self) -> str:
        rest = self._rules.undelivered()
        return f"{EVENTS} e WHERE e.created_at < {self._at}" + (f" AND {rest}" if rest else "")

    def _gates(self) -> str:
        return f"{GATES} e WHERE e.at < {self._at}"

    def _workers(self) -> str:
        """Workers that retired long ago and are named nowhere any more."""
        actors = [f"SELECT actor FROM {HISTORY}"]
        actors += [f"SELECT changed_by FROM {d['table']}" for d in self._known.values()]
        claims = [
            f"SELECT claimed_by FROM {d['table']} WHERE claimed_by IS NOT NULL"
            for d in self._known.values()
            if d["shape"]["driven"]
        ]
        named = " UNION ".join(actors)
        return f"{WORKERS} w WHERE w.reaped_at < {self._at} AND 'worker:' || w.id NOT IN ({named})" + "".join(
            f" AND w.id NOT IN ({claim})" for claim in claims
        )

    # What goes.

    def prune(self, progress: Progress = lambda _what, _rows: None, *, most: float = math.inf) -> dict[str, int]:
        """Prune in batches, until nothing is left or so many rows went; returns how many of each table did."""
        gone, thinned = dict[str, int](), Counter[str]()

        def went(table: str, rows: int) -> None:
            if rows:
                gone[table] = gone.get(table, 0) + rows
                progress(table, rows)
            thinned[table] += rows
            # So that what is written next has room, graves among it.
            if thinned[table] >= _RECLAIMED_AFTER and self._database.reclaim(table, thinned[table]):
                thinned[table] = 0
            if sum(gone.values()) >= most:
                raise _EnoughError

        with contextlib.suppress(_EnoughError):
            for name in self._machines():
                if self._ages.units:
                    self._prune_units(name, went)
            for name in self._machines():
                self._prune_history(name, went)
                self._prune_graves(name, went)
            if self._machine is None:
                self._prune_log(EVENTS, ("tenant_id", "event_key"), self._events(), "created_at", went)
                self._prune_log(GATES, ("seq",), self._gates(), "at", went)
                self._prune_workers(went)
        return gone

    def prune_where(self, name: str, sql: Finished) -> int:
        """Units `u` that their lifecycle no longer wants go, whatever their state, and their history with them.

        Of each one row is left, which says that it is gone. Returns how many went.
        """
        driven, table = self._known[name]["shape"]["driven"], self._known[name]["table"]
        free = Finished(f"u.claimed_by IS NULL AND ({sql.text})", sql.parameters) if driven else sql

        def folded(cursor: Cursor, unit_ids: Sequence[str]) -> int:
            return shrink.fold(self._database, cursor, name, table, unit_ids)

        return sum(self._units_of(name, free, unit_ids, folded)[0] for unit_ids in self._batches(table, free))

    def _prune_units(self, name: str, went: Progress) -> None:
        sql, table = self._rules.finished(name, then=False), self._known[name]["table"]
        if sql is None:
            return
        before = self._before(HISTORY)

        def folded(cursor: Cursor, unit_ids: Sequence[str]) -> int:
            return 0 if before is None else shrink.fold(self._database, cursor, name, table, unit_ids, before=before)

        for unit_ids in self._batches(table, sql):
            rows, told = self._units_of(name, sql, unit_ids, folded)
            went(table, rows)
            went(HISTORY, told)

    def _batches(self, table: str, sql: Finished) -> Iterator[list[str]]:
        """Ids of the units that a condition holds for, as they are found."""
        found = (
            f"SELECT u.unit_id FROM {table} u WHERE u.unit_id > :after AND {sql.text}"
            f" ORDER BY u.unit_id LIMIT {_AT_ONCE}"
        )
        for rows in self._pages(found, sql.parameters):
            yield [row[0] for row in rows]

    def _pages(self, sql: str, parameters: Mapping[str, Any]) -> Iterator[list[Any]]:
        """What a query finds after `:after`, a page at a time; the first column is the unit's id."""
        after = ""
        while True:
            rows = self._patiently(lambda cursor, after=after: cursor.rows(sql, after=after, **parameters))  # type: ignore[misc]
            if not rows:
                return
            yield rows
            after = rows[-1][0]

    def _units_of(
        self, name: str, sql: Finished, unit_ids: Sequence[str], folded: Callable[[Cursor, Sequence[str]], int]
    ) -> tuple[int, int]:
        """Delete these units and fold what is told of them; how many units went, and how many rows of their history."""
        table = self._known[name]["table"]
        source = statements.batch(self._database, {"unit_id": statements.TEXT})
        text = statements.batch_text([[i] for i in unit_ids])
        # Asked again: somebody may have given the unit a new child, or taken it up, since it was found.
        delete = (
            f"DELETE FROM {table} WHERE unit_id IN (SELECT u.unit_id FROM {source} CROSS JOIN {table} u"
            f" WHERE u.unit_id = n_unit_id AND {sql.text})"
        )

        def work(cursor: Cursor) -> tuple[int, int]:
            with self._permit(cursor, name):
                rows = cursor.run(delete, batch=text, **sql.parameters)
                return rows, folded(cursor, unit_ids)

        return self._database.write(work)

    def _prune_history(self, name: str, went: Progress) -> None:
        before = self._before(HISTORY)
        if before is None:
            return
        sql = self._cuts(name).format(more="AND l.unit_id > :after") + f" ORDER BY unit_id LIMIT {_AT_ONCE}"
        for rows in self._pages(sql, {"machine": name, "before": instant_text(before)}):

            def work(cursor: Cursor, rows: list[Any] = rows) -> int:
                with self._permit(cursor, name) as permit:
                    return shrink.shrink(self._database, cursor, name, permit, rows)

            went(HISTORY, self._database.write(work))

    def _prune_graves(self, name: str, went: Progress) -> None:
        before = self._before_graves()
        if before is None:
            return
        sql = (
            f"SELECT l.unit_id, l.seq FROM {HISTORY} l WHERE l.machine = :machine AND l.unit_id > :after"
            f" AND {shrink.graves(self._at)} ORDER BY l.unit_id LIMIT {_AT_ONCE}"
        )
        for rows in self._pages(sql, {"machine": name, "before": instant_text(before)}):

            def work(cursor: Cursor, rows: list[Any] = rows) -> int:
                with self._permit(cursor, name):
                    return shrink.drop(self._database, cursor, name, rows, before)

            went(HISTORY, self._database.write(work))

    def _prune_log(self, log: str, key: Sequence[str], old: str, moment: str, went: Progress) -> None:
        """Rows `e` of a log that are `old` go, the oldest first."""
        before = self._before(log)
        if before is None:
            return
        rows, picks = _ROWS_AT_ONCE, ", ".join(f"e.{name}" for name in key)
        which = f"({', '.join(key)}) IN (SELECT {picks} FROM {old} ORDER BY e.{moment} LIMIT {_ROWS_AT_ONCE})"

        def work(cursor: Cursor) -> int:
            with self._permit(cursor, log):
                return cursor.run(f"DELETE FROM {log} WHERE {which}", before=instant_text(before))

        while rows == _ROWS_AT_ONCE and self._count(f"SELECT count(*) FROM {old}", {"before": instant_text(before)}):
            rows = self._database.write(work)
            went(log, rows)

    def _prune_workers(self, went: Progress) -> None:
        before = self._before(WORKERS)
        if before is None:
            return
        # Found without the lock of a writer: looking through the whole history takes its time.
        found = self._patiently(
            lambda cursor: cursor.rows(f"SELECT w.id FROM {self._workers()}", before=instant_text(before))
        )
        for start in range(0, len(found), _AT_ONCE):
            source = statements.batch(self._database, {"id": statements.TEXT})
            text = statements.batch_text([[row[0]] for row in found[start : start + _AT_ONCE]])
            sql = f"DELETE FROM {WORKERS} WHERE id IN (SELECT n_id FROM {source})"
            went(WORKERS, self._database.write(lambda cursor, s=sql, t=text: cursor.run(s, batch=t)))  # type: ignore[misc]

    @contextlib.contextmanager
    def _permit(self, cursor: Cursor, machine: str) -> Iterator[str]:
        """A permit that is open within the transaction, and closed before it ends."""
        name = self._rng.token()
        cursor.run(
            "INSERT INTO prune_permit (id, machine, actor, reason, at, open)"
            f" VALUES (:id, :machine, :actor, :reason, {self._database.now_sql}, {self._database.sql.transaction})",
            id=name,
            machine=machine,
            actor=self._who,
            reason="pruned: old enough",
            **self._database.bind_now(),
        )
        yield name
        cursor.run("UPDATE prune_permit SET open = NULL WHERE id = :id", id=name)

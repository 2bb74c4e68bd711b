"""Pruning: old history becomes one baseline row per unit, old units that have ended go, old events and workers too.

What stays: the newest row of every unit's history that is older than the age, as a baseline, so that every moment since
then is answered as before; everything of an unfinished run; and of a unit that is gone one row that says so.

Each batch is a transaction of its own, under a permit that it opens and closes: an interrupted run has done a part, and
the next one does the rest.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from penstock.ledger.care.prune_rules import Eligible, Finished
from penstock.ledger.history import BASELINE, require_ledger
from penstock.ledger.roll_up import take_out
from penstock.ledger.schema import definitions
from penstock.ledger.schema.columns import readable
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database
from penstock.model.clock import Rng, instant_text, parse_instant
from penstock.model.errors import UnknownMachine

HISTORY, EVENTS, GATES, WORKERS, UNITS = "transition_log", "event_log", "gate_log", "worker", "units"
DEFAULT_AGES: dict[str, timedelta] = {
    HISTORY: timedelta(days=90),
    EVENTS: timedelta(days=90),
    GATES: timedelta(days=90),
    WORKERS: timedelta(days=90),
    UNITS: timedelta(days=365),
}
_AT_ONCE = 500
_ROWS_AT_ONCE = 5_000
Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Ages:
    """How old a thing must be to go. `kept` names a log, `units`, or a machine for its ended units; None: for ever."""

    kept: Mapping[str, timedelta | None] = field(default_factory=dict)
    older_than: timedelta | None = None
    units: bool = True

    def of(self, name: str) -> timedelta | None:
        """The age of a log's rows, or of a machine's ended units."""
        if self.older_than is not None:
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

    def _machines(self) -> list[str]:
        """Parents first: a child goes when its parent has gone."""
        names = self._rules.parents_first()
        return names if self._machine is None else [self._machine]

    # What would go.

    def counts(self) -> list[Count]:
        """What would go now, table by table."""
        found: list[Count] = []
        for name in self._machines():
            table = self._known[name]["table"]
            if self._ages.units and (sql := self._rules.finished(name, then=True)) and (before := self._before(name)):
                rows = self._count(f"SELECT count(*) FROM {table} u WHERE {sql.text}", sql.parameters)
                found.append(Count(table, name, "ended units", before, rows))
            if before := self._before(HISTORY):
                rows = self._count(self._history_count(name), {"machine": name, "before": instant_text(before)})
                found.append(Count(HISTORY, name, "rows of history", before, rows))
        if self._machine is None:
            logs = (EVENTS, "events", self._events()), (GATES, "changes of gates", self._gates())
            for log, what, text in (*logs, (WORKERS, "workers", self._workers())):
                if before := self._before(log):
                    rows = self._count(f"SELECT count(*) FROM {text}", {"before": instant_text(before)})
                    found.append(Count(log, None, what, before, rows))
        return found

    def _count(self, sql: str, parameters: Mapping[str, Any]) -> int:
        return int(self._patiently(lambda cursor: cursor.rows(sql, **parameters))[0][0])

    def _patiently(self, work: Callable[[Cursor], list[Any]]) -> list[Any]:
        return self._database.read(work, patient=True)

    def _cuts(self, name: str) -> str:
        """Units of a machine with the newest row of their history that is old; the rows before it can go."""
        busy = self._rules.busy(name)
        return (
            f"SELECT l.unit_id AS unit_id, max(l.seq) AS seq FROM {HISTORY} l"
            f" WHERE l.machine = :machine AND l.at < {self._at}"
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
        gone: dict[str, int] = {}

        def went(table: str, rows: int) -> None:
            if rows:
                gone[table] = gone.get(table, 0) + rows
                progress(table, rows)
            if sum(gone.values()) >= most:
                raise _EnoughError

        with contextlib.suppress(_EnoughError):
            for name in self._machines():
                if self._ages.units:
                    self._prune_units(name, went)
            for name in self._machines():
                self._prune_history(name, went)
            if self._machine is None:
                self._prune_log(EVENTS, ("tenant_id", "event_key"), self._events(), "created_at", went)
                self._prune_log(GATES, ("seq",), self._gates(), "at", went)
                self._prune_workers(went)
        return gone

    def prune_where(self, name: str, sql: Finished) -> int:
        """Units `u` that their lifecycle no longer wants go, whatever their state, and their history with them.

        Of each one row is left, which says that it is gone. Returns how many went.
        """
        driven = self._known[name]["shape"]["driven"]
        free = Finished(f"u.claimed_by IS NULL AND ({sql.text})", sql.parameters) if driven else sql
        gone = 0

        def went(unit_ids: Sequence[str], rows: int) -> None:
            nonlocal gone
            gone += rows
            source = statements.batch(self._database, {"unit_id": statements.TEXT})
            text = statements.batch_text([[i] for i in unit_ids])
            dead = (
                f"SELECT l.unit_id, max(l.seq) FROM {source} CROSS JOIN {HISTORY} l WHERE l.machine = :machine"
                f" AND l.unit_id = n_unit_id AND NOT EXISTS (SELECT 1 FROM {self._known[name]['table']} u"
                " WHERE u.unit_id = l.unit_id) GROUP BY l.unit_id"
            )
            cuts = self._patiently(lambda cursor: cursor.rows(dead, batch=text, machine=name))
            self._database.write(self._history_of(name, cuts))

        self._each_batch(name, free, went)
        return gone

    def _prune_units(self, name: str, went: Progress) -> None:
        sql, table = self._rules.finished(name, then=False), self._known[name]["table"]
        if sql is not None:
            self._each_batch(name, sql, lambda _, rows: went(table, rows))

    def _each_batch(self, name: str, sql: Finished, went: Callable[[Sequence[str], int], None]) -> None:
        table, after = self._known[name]["table"], ""
        while True:
            rows = self._patiently(
                lambda cursor, after=after: cursor.rows(  # type: ignore[misc]
                    f"SELECT u.unit_id FROM {table} u WHERE u.unit_id > :after AND {sql.text}"
                    f" ORDER BY u.unit_id LIMIT {_AT_ONCE}",
                    after=after,
                    **sql.parameters,
                )
            )
            if not rows:
                return
            after = rows[-1][0]
            unit_ids = [row[0] for row in rows]
            went(unit_ids, self._database.write(self._units_of(name, table, sql, unit_ids)))

    def _units_of(self, name: str, table: str, sql: Finished, unit_ids: Sequence[str]) -> Callable[[Cursor], int]:
        source = statements.batch(self._database, {"unit_id": statements.TEXT})
        text = statements.batch_text([[i] for i in unit_ids])
        # Asked again: somebody may have given the unit a new child, or taken it up, since it was found.
        delete = (
            f"DELETE FROM {table} WHERE unit_id IN (SELECT u.unit_id FROM {source} CROSS JOIN {table} u"
            f" WHERE u.unit_id = n_unit_id AND {sql.text})"
        )

        def work(cursor: Cursor) -> int:
            with_permit = self._permit(cursor, name)
            rows = cursor.run(delete, batch=text, **sql.parameters)
            self._close(cursor, with_permit)
            return rows

        return work

    def _prune_history(self, name: str, went: Progress) -> None:
        before = self._before(HISTORY)
        if before is None:
            return
        sql = self._cuts(name).format(more="AND l.unit_id > :after") + f" ORDER BY unit_id LIMIT {_AT_ONCE}"
        after = ""
        while True:
            rows = self._patiently(
                lambda cursor, after=after: cursor.rows(  # type: ignore[misc]
                    sql, machine=name, before=instant_text(before), after=after
                )
            )
            if not rows:
                return
            after = rows[-1][0]
            went(HISTORY, self._database.write(self._history_of(name, rows)))

    def _history_of(self, name: str, cuts: Iterable[Sequence[Any]]) -> Callable[[Cursor], int]:
        types: dict[str, statements.SqlType] = {"unit_id": statements.TEXT, "seq": sa.BigInteger()}
        source = statements.batch(self._database, types)
        text = statements.batch_text([list(row) for row in cuts])
        # CROSS JOIN: from the batch to the history. SQLite would rather go through the history once for each row of it.
        find = (
            "SELECT l.unit_id, l.seq, l.from_status, l.to_status, l.actor, l.reason,"
            f" (SELECT count(*) FROM {HISTORY} o WHERE o.machine = :machine AND o.unit_id = l.unit_id"
            f" AND o.seq < l.seq) FROM {source} CROSS JOIN {HISTORY} l"
            " WHERE l.machine = :machine AND l.unit_id = n_unit_id AND l.seq = n_seq"
        )
        key = self._database.sql.history_key
        which = (
            f"({key.replace('l.', '')}) IN (SELECT {key} FROM {source} CROSS JOIN {HISTORY} l"
            " WHERE l.machine = :machine AND l.unit_id = n_unit_id AND l.seq < n_seq)"
        )

        def work(cursor: Cursor) -> int:
            permit = self._permit(cursor, name)
            rows = [row for row in cursor.rows(find, batch=text, machine=name) if row[-1]]
            gone = statements.batch_text([[row[0], row[1]] for row in rows])
            take_out(self._database, cursor, name, source, gone)
            deleted = cursor.run(f"DELETE FROM {HISTORY} WHERE {which}", batch=gone, machine=name)
            self._baselines(cursor, name, permit, rows)
            self._close(cursor, permit)
            return deleted

        return work

    def _baselines(self, cursor: Cursor, name: str, permit: str, rows: Sequence[Sequence[Any]]) -> None:
        """The newest of the old rows stays, and now stands for those before it."""
        types: dict[str, statements.SqlType] = {"unit_id": sa.Text(), "seq": sa.BigInteger(), "reason": sa.Text()}
        cursor.run(
            f"UPDATE {HISTORY} SET from_status = NULL, trigger = NULL, actor = :actor, reason = n_reason"
            f" FROM {statements.batch(self._database, types)}"
            f" WHERE {HISTORY}.machine = :machine AND {HISTORY}.unit_id = n_unit_id AND {HISTORY}.seq = n_seq",
            machine=name,
            actor=f"{BASELINE}{permit}",
            batch=statements.batch_text([[row[0], row[1], _told(row)] for row in rows]),
        )

    def _prune_log(self, log: str, key: Sequence[str], old: str, moment: str, went: Progress) -> None:
        """Rows `e` of a log that are `old` go, the oldest first."""
        before = self._before(log)
        if before is None:
            return
        rows, picks = _ROWS_AT_ONCE, ", ".join(f"e.{name}" for name in key)
        which = f"({', '.join(key)}) IN (SELECT {picks} FROM {old} ORDER BY e.{moment} LIMIT {_ROWS_AT_ONCE})"

        def work(cursor: Cursor) -> int:
            permit = self._permit(cursor, log)
            deleted = cursor.run(f"DELETE FROM {log} WHERE {which}", before=instant_text(before))
            self._close(cursor, permit)
            return deleted

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

    def _permit(self, cursor: Cursor, machine: str) -> str:
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
        return name

    def _close(self, cursor: Cursor, permit: str) -> None:
        cursor.run("UPDATE prune_permit SET open = NULL WHERE id = :id", id=permit)


def _told(row: Sequence[Any]) -> str:
    """What a baseline says of the row it stands for, and of those before it."""
    _, _, source, target, actor, reason, before = row
    ended = f"gone, last {source}; " if target is None and source is not None else ""
    return readable(
        f"baseline, {before} row{'s' if before != 1 else ''} before it pruned; {ended}{actor}: {reason or ''}"
    )

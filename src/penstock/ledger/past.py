"""The ledger as it stood at a moment, for whoever reads it now: the same statements over the tables of then.

Before a statement stands a common table expression for every table that it names and whose past is known, under the
table's own name. Of a unit it has the state, why, by whom and the tracked columns from the history, and what lasts from
the unit itself. Where nobody has touched the unit since, the rest is as it is now, and so are the moment, the reason
and the name of its last change; else the rest is NULL: nobody knows it any more. A unit that was pruned since is not
there. Views, and tables whose past is not known, show what is there now.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from penstock.ledger.store.database import Cursor, Database, Row
from penstock.model.clock import instant_text
from penstock.model.errors import UsageError
from penstock.model.machine import Machine

T = TypeVar("T")
_WORD = re.compile(r"\b[a-z_][a-z0-9_]*\b")
_WITH = re.compile(r"\s*WITH( RECURSIVE)?\s")
_PARAMETER = "past_moment"
_UNKNOWN = frozenset({"wakes", "claimed_by", "attempts", "crashes", "doubts", "suspicion"})
"""Columns that claims and wake-ups change without saying when."""
BASELINE = "prune:"
"""How the actor of a baseline begins: the row stands for those that were pruned, and the permit's id follows."""
ROWS = "FROM {schema}.transition_log h WHERE h.machine = l.machine AND h.unit_id = l.unit_id"
"""The rows `h` of a unit's history, for a column of a machine (see `Past`)."""
UNTOUCHED, DUE_KNOWN = "_untouched", "_due_known"
"""Columns that a machine's table of then has besides: 1 where nobody has touched the unit since, and where it is known
when it was due; else 0."""


def since(column: str) -> str:
    """How a table stood whose rows are written once and then stay: those whose moment had come."""
    return f"SELECT * FROM {{table}} WHERE {column} <= {{at}}"


KERNEL: Mapping[str, str] = {
    "transition_log": since("at"),
    "gate_log": since("at"),
    "event_log": since("created_at"),
}
"""The kernel's own tables that have a past."""


class Past:
    """A database to be read as of a moment; anything else of it is as it is now.

    `tables`: by the name of a table a SELECT of how it stood, where `{table}` stands for the table, `{at}` for the
    moment and `{schema}` for where all tables of now are. By `table.column` the value of a machine's column where
    somebody has touched the unit since (a counter's anyway); the rows `m` of the table and `l` of its history are at
    hand, and `{name}` is a tracked column: `"invoice.error": "CASE WHEN l.to_status = 'failed' THEN l.reason END"`.
    """

    def __init__(
        self, database: Database, machines: Iterable[Machine], tables: Mapping[str, str], moment: datetime
    ) -> None:
        self._database = database
        self._machines = {machine.table: machine for machine in machines}
        self._tables = {**KERNEL, **tables}
        self._moment = instant_text(moment)
        self._made: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def read(self, work: Callable[[Cursor], T], *, patient: bool = False, within: float | None = None) -> T:
        """Run `work` on a snapshot of now, in which the tables are those of then."""

        def then(cursor: Cursor) -> T:
            schema = self._database.sql.schema(cursor)
            past: Any = _PastCursor(cursor, lambda sql: self._of_then(sql, schema), self._moment)
            return work(past)

        return self._database.read(then, patient=patient, within=within)

    def write(self, *_: Any, **__: Any) -> Any:
        """Nothing is written into the past: raises UsageError."""
        raise UsageError("nothing can be done in the past")

    alter = lease = write

    def _of_then(self, sql: str, schema: str) -> str:
        """The statement over the tables of then."""
        if sql not in self._made:
            named = dict.fromkeys(_WORD.findall(sql))
            parts = [
                f"{name} AS NOT MATERIALIZED ({made})"
                for name in named
                if (made := self._stood(name, schema)) is not None
            ]
            self._made[sql] = _preceded(sql, parts) if parts else sql
        return self._made[sql]

    def _stood(self, name: str, schema: str) -> str | None:
        given = {"schema": schema, "table": f"{schema}.{name}", "at": self._database.sql.instant(_PARAMETER)}
        if machine := self._machines.get(name):
            children = [one for one in self._machines.values() if one.parent and one.parent.machine == machine.name]
            return _units_then(self._database, machine, children, self._tables, **given)
        return self._tables[name].format(**given) if name in self._tables else None


class _PastCursor:
    """Asks for the tables of then."""

    def __init__(self, cursor: Cursor, of_then: Callable[[str], str], moment: str) -> None:
        self._cursor = cursor
        self._of_then = of_then
        self._moment = moment

    def rows(self, sql: str, **parameters: Any) -> list[Row]:
        made = self._of_then(sql)
        if f":{_PARAMETER}" in made:
            parameters[_PARAMETER] = self._moment
        return self._cursor.rows(made, **parameters)

    gather = rows


def _units_then(
    database: Database,
    machine: Machine,
    children: Iterable[Machine],
    tables: Mapping[str, str],
    *,
    schema: str,
    table: str,
    at: str,
) -> str:
    """A SELECT of the machine's table as it stood: those units that are there still."""
    log = f"{schema}.transition_log"
    untouched = f"m.changed_at <= {at}"

    def as_now_or(name: str, then: str) -> str:
        return f"CASE WHEN {untouched} THEN m.{machine.column(name)} ELSE {then} END"

    tracked = {name: as_now_or(name, database.sql.told("l.data", table, name)) for name in machine.tracked}
    given = {name: tables.get(f"{machine.table}.{name}") for name in machine.columns}
    other = {n: sql.format(schema=schema, at=at, **tracked) for n, sql in given.items() if sql is not None}
    told = {
        "unit_id": "m.unit_id",
        "status": "l.to_status",
        "version": "l.version",
        "changed_by": as_now_or("changed_by", f"CASE WHEN l.actor NOT LIKE '{BASELINE}%' THEN l.actor END"),
        "change_reason": as_now_or("change_reason", "l.reason"),
        "changed_at": as_now_or("changed_at", "l.at"),
        **{name: f"m.{name}" for name in machine.lasting},
        **tracked,
        **dict.fromkeys(_UNKNOWN if machine.driven else (), "NULL"),
        # Counters change without a word.
        **{name: sql if name in machine.counters else as_now_or(name, sql) for name, sql in other.items()},
    }
    columns = {machine.column(name): told.get(name) or as_now_or(name, "NULL") for name in machine.columns}
    columns[UNTOUCHED] = f"CASE WHEN {untouched} THEN 1 ELSE 0 END"
    if machine.driven:
        # Whoever wakes a unit, or gives it back after a crash, need not say so by `changed_at`; it is then due later
        # than the moment, or as before.
        known = f"{untouched} AND (COALESCE(m.{machine.due} <= {at}, true) OR (m.wakes = 0 AND m.doubts = 0))"
        columns[machine.due] = f"CASE WHEN {known} THEN m.{machine.due} END"
        columns[DUE_KNOWN] = f"CASE WHEN {known} THEN 1 ELSE 0 END"
        # Nor need whoever parks it.
        for name in ("parked_at", "parked_reason"):
            columns[name] = f"CASE WHEN {untouched} AND m.parked_at <= {at} THEN m.{name} END"
    for name in (one for one in machine.counters if given[one] is None):
        columns[name] = f"CASE WHEN {untouched} AND {_uncounted(machine, children, schema, at)} THEN m.{name} END"
    own = f"machine = '{machine.name}' AND {{row}}.unit_id = m.unit_id"
    last = f"WHERE h.{own.format(row='h')} AND h.at <= {at} ORDER BY h.seq DESC LIMIT 1"
    source = database.sql.with_last(f"{table} m", log, last)
    chosen = ", ".join(f"{value} AS {name}" for name, value in columns.items())
    # One that was pruned and born anew since is another.
    died = f"SELECT 1 FROM {log} d WHERE d.{own.format(row='d')} AND d.seq > l.seq AND d.to_status IS NULL"
    return f"SELECT {chosen} FROM {source} WHERE l.to_status IS NOT NULL AND ({untouched} OR NOT EXISTS ({died}))"


def _uncounted(machine: Machine, children: Iterable[Machine], schema: str, at: str) -> str:
    """The condition under which no child has counted since: a tally does not say when it was made."""
    later = []
    for child in children:
        assert child.parent is not None  # noqa: S101 - children of parents
        same = [f"c.{mine} = m.{theirs}" for mine, theirs in zip(child.parent.by, machine.unit.key, strict=True)]
        where = " AND ".join([*same, f"c.changed_at > {at}"])
        later.append(f"NOT EXISTS (SELECT 1 FROM {schema}.{child.table} c WHERE {where})")
    return f"(m.tallies = 0 OR ({' AND '.join(later) or 'false'}))"


def _preceded(sql: str, parts: list[str]) -> str:
    """The statement with these expressions before its own."""
    own = _WITH.match(sql)
    if own is None:
        return f"WITH {', '.join(parts)} {sql}"
    return f"WITH{own.group(1) or ''} {', '.join(parts)}, {sql[own.end() :]}"

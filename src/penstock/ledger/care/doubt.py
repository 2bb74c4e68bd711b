"""A ledger that knows less than happened: restored from a backup, or promoted after commits were lost.

What its units did since is not in it. `Doubter` puts them in doubt, so that each looks before it acts again.

A ledger that was restored is recognised when a worker comes: a backup of SQLite carries a mark, and a dump of
PostgreSQL is restored into another database than the one whose workers it knew. Nobody works on it before somebody has
decided.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from penstock.ledger.commit import insert_events
from penstock.ledger.store.database import Cursor, Database
from penstock.ledger.suspicion import Table
from penstock.model.clock import Clock, instant_text
from penstock.model.errors import LedgerMismatch

AT_ONCE = 20_000
_HOME = "home"
_RESTORED = "restored"


@dataclass(frozen=True, slots=True)
class Doubtful:
    """How many units of a machine may have acted since."""

    machine: str
    units: int


class Doubter:
    """Finds the units that may have acted since an instant, and puts them in doubt.

    Those are the units that have not ended and, with `since`, could have been stepped after it: claimed, due by now,
    waiting for somebody to wake them, or changed after it.
    """

    def __init__(self, database: Database, *, since: datetime | None = None) -> None:
        self._database = database
        self._given = {} if since is None else {"since": instant_text(since)}
        self._since = since

    def counts(self) -> list[Doubtful]:
        """How many units of each machine are meant."""

        def work(cursor: Cursor) -> list[Doubtful]:
            found = []
            for table, ended in _driven(cursor):
                sql = f"SELECT count(*) FROM {table.name} WHERE {self._meant(table, ended)}"
                count = cursor.rows(sql, **self._given, **self._database.bind_now())[0][0]
                found.append(Doubtful(table.machine, int(count)))
            return found

        return self._database.read(work)

    def doubt(self, who: str, went: Callable[[int], None] = lambda _: None) -> int:
        """Put them in doubt, some thousands at a time, and let workers work; how many.

        A unit that a worker holds is taken from it. Stopped on the way, the next run begins anew: a second doubt of a
        unit changes nothing.
        """
        database = self._database
        total = 0
        for table, ended in database.read(_driven):
            last: str | None = ""
            while last is not None:
                count, last = database.write(functools.partial(self._some, table, ended, last))
                total += count
                went(total)
        since = None if self._since is None else instant_text(self._since)
        database.write(lambda cursor: self._settle(cursor, who, since, total))
        return total

    def _meant(self, table: Table, ended: list[str]) -> str:
        states = ", ".join(f"'{state}'" for state in ended)
        alive = f"status NOT IN ({states})" if ended else "true"
        if self._since is None:
            return alive
        acted = f"claimed_by IS NOT NULL OR {table.due} IS NULL OR {table.due} <= {self._database.now_sql}"
        return f"{alive} AND ({acted} OR changed_at >= {self._database.sql.instant('since')})"

    def _some(self, table: Table, ended: list[str], after: str, cursor: Cursor) -> tuple[int, str | None]:
        given = {**self._given, **self._database.bind_now()}
        which = f"unit_id > :after AND {self._meant(table, ended)} ORDER BY unit_id LIMIT {AT_ONCE}"
        ids = cursor.rows(f"SELECT unit_id FROM {table.name} WHERE {which}", after=after, **given)
        if not ids:
            return 0, None
        first, last = str(ids[0][0]), str(ids[-1][0])
        count = cursor.run(
            f"UPDATE {table.name} SET doubts = doubts + 1, claimed_by = NULL, version = version + 1"
            f" WHERE unit_id BETWEEN :first AND :last AND {self._meant(table, ended)}",
            first=first,
            last=last,
            **given,
        )
        return count, last

    def _settle(self, cursor: Cursor, who: str, since: str | None, units: int) -> None:
        database = self._database
        now = str(cursor.rows(f"SELECT CAST({database.now_sql} AS TEXT)", **database.bind_now())[0][0])
        payload = json.dumps({"since": since, "units": units, "by": who})
        event = ["default", f"ledger.doubted:{now}", "ledger.doubted", "info", payload, None, None]
        insert_events(database, cursor, [event])
        cursor.run("DELETE FROM penstock_meta WHERE name IN (:home, :restored)", home=_HOME, restored=_RESTORED)


def _driven(cursor: Cursor) -> list[tuple[Table, list[str]]]:
    """Every driven machine of the ledger, known here or not, and the states that nothing leaves."""
    rows = cursor.rows(
        "SELECT name, table_name, due_column, definition FROM machine_definition WHERE driven ORDER BY name"
    )
    found = []
    for name, table, due, definition in rows:
        facts = json.loads(definition) if isinstance(definition, str) else definition
        found.append((Table(str(name), str(table), str(due)), [str(state) for state in facts["terminal"]]))
    return found


def mark_backup(clock: Clock) -> tuple[str, tuple[str, str]]:
    """The statement that marks a copy of a SQLite ledger as a backup, and its values."""
    return "INSERT OR REPLACE INTO penstock_meta (name, value) VALUES (?, ?)", (_RESTORED, instant_text(clock.now()))


def restored(database: Database, cursor: Cursor) -> str | None:
    """What to do about a ledger that was restored and that nobody has put in doubt; None for any other."""
    known = _known(cursor)
    home = database.sql.home(cursor)
    if _RESTORED not in known and known.get(_HOME, home) == home:
        return None
    return (
        f"{database.url} was restored from a backup, and lacks what was done after that; run"
        " 'penstock db doubt', which makes units look before they act again, then start the workers"
    )


def refuse_restored(database: Database, cursor: Cursor) -> None:
    """Raise LedgerMismatch for such a ledger; the first worker of any other notes where the ledger is at home."""
    message = restored(database, cursor)
    if message is not None:
        raise LedgerMismatch(message)
    home = database.sql.home(cursor)
    if home is not None and _HOME not in _known(cursor):
        cursor.run("INSERT INTO penstock_meta (name, value) VALUES (:name, :home)", name=_HOME, home=home)


def _known(cursor: Cursor) -> dict[str, str]:
    sql = "SELECT name, value FROM penstock_meta WHERE name IN (:home, :restored)"
    return {str(name): str(value) for name, value in cursor.rows(sql, home=_HOME, restored=_RESTORED)}

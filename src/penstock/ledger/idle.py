"""When the ledger next has something to do for a worker."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database
from penstock.model.clock import instant
from penstock.model.machine import Machine


@dataclass(frozen=True, slots=True)
class Idle:
    """When the ledger may next have something to do, in seconds from now; None where nothing is in sight."""

    now: datetime
    due: float | None
    lease: float | None
    gate: float | None
    #: The first suspect, whatever its gate.
    suspect: float | None = None

    def seconds(self) -> float | None:
        """The earliest of them, at least zero. Suspects that are due already are claimed apart, in their own time."""
        known = [s for s in (self.due, self.lease, self.gate) if s is not None]
        if self.suspect is not None and self.suspect > 0:
            known.append(self.suspect)
        return max(0.0, min(known)) if known else None


class IdleQuery:
    """One cheap query that says when anything next needs the attention of a worker that serves these machines."""

    def __init__(self, database: Database, served: Collection[Machine], worker: str) -> None:
        self._database = database
        self._worker = worker
        self.sql = _idle_sql(database, served)

    def ask(self, cursor: Cursor) -> Idle:
        """Ask it."""
        rows = cursor.rows(self.sql, worker=self._worker, **self._database.bind_now())
        now, due, lease, gate, suspect = rows[0]
        moments = [instant(moment) for moment in (now, due, gate, suspect)]
        seconds = [None if m is None else (m - moments[0]).total_seconds() for m in moments[1:]]
        return Idle(moments[0], seconds[0], None if lease is None else float(lease), *seconds[1:])


def _idle_sql(database: Database, machines: Collection[Machine]) -> str:
    waiting = " OR ".join(statements.anything_behind(database, m) for m in machines) or "false"
    due = database.sql.earliest([statements.least_due_behind_open_gates(database, m) for m in machines])
    suspect = database.sql.earliest([statements.least_due_of_suspects(m) for m in machines])
    # A gate that nobody holds is closed for one reason or for both.
    opens = database.sql.latest("closed_until", "next_at")
    return (
        f"SELECT {database.now_sql}, {due},"
        f" (SELECT min({database.lease_left_sql}) FROM worker WHERE reaped_at IS NULL AND id <> :worker),"
        f" (SELECT min({opens}) FROM gate g WHERE held_by IS NULL AND NOT ({statements.is_open(database.now_sql)})"
        f" AND ({waiting})), {suspect}"
    )

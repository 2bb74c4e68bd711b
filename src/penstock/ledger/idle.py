"""When the ledger next has something to do for a worker."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database
from penstock.ledger.store.gate_walk import MOMENT, SHUT, head, one_moment, rest, walk
from penstock.ledger.store.gates_due import first_due
from penstock.model.clock import instant
from penstock.model.machine import Machine

# Of the gates that are shut, so many that open next.
_LOOKED_AT = 100


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
    now = one_moment(database)
    parts, due = [MOMENT.format(database.now_sql)], []
    for number, machine in enumerate(machines):
        parts.append(first_due(database, machine, name=f"m{number}", now=now))
        known = f"(SELECT due FROM m{number})"
        due.append(known)
        unknown = f"{known} IS NULL"
        for stands, shut in SHUT.items():
            name = f"m{number}_{stands}"
            # Once anything is due nobody asks for more.
            parts.append(walk(database, machine, stands, name=name, most="1", now=now, given=unknown))
            due.append(f"(SELECT min(head) FROM {name})")
            first = head(database, machine, "g.gate_id")
            due.append(f"(SELECT min({first}) {rest(database, name, stands)})")
            over = f"g.stands = '{shut}' AND g.shut_until <= {now}"
            due.append(f"(SELECT min({first}) FROM gate g WHERE {unknown} AND {over})")
    parts += [_next_to_open(shut, now) for shut in SHUT.values()]
    opens = database.sql.earliest([_opens(database, shut, machines) for shut in SHUT.values()])
    suspect = database.sql.earliest([statements.least_due_of_suspects(m) for m in machines])
    return (
        f"WITH RECURSIVE {', '.join(parts)} SELECT {now}, {database.sql.earliest(due)},"
        f" (SELECT min({database.lease_left_sql}) FROM worker WHERE reaped_at IS NULL AND id <> :worker),"
        f" {opens}, {suspect}"
    )


def _next_to_open(shut: str, now: str) -> str:
    return (
        f"{shut} AS MATERIALIZED (SELECT gate_id, shut_until FROM gate WHERE stands = '{shut}' AND shut_until > {now}"
        f" ORDER BY shut_until LIMIT {_LOOKED_AT})"
    )


def _opens(database: Database, shut: str, machines: Collection[Machine]) -> str:
    """When the first gate opens that somebody waits behind. Where many others open before, it is then asked again."""
    anybody = " OR ".join(
        f"{head(database, machine, 'g.gate_id', suspects=suspects)} IS NOT NULL"
        for machine in machines
        for suspects in (False, True)
    )
    first = f"(SELECT shut_until FROM {shut} g WHERE {anybody or 'false'} ORDER BY shut_until LIMIT 1)"
    return f"COALESCE({first}, (SELECT max(shut_until) FROM {shut} HAVING count(*) = {_LOOKED_AT}))"

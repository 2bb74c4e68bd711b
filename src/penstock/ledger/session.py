"""One worker incarnation's dealings with the ledger: lease, claims, commits, and what was lost on the way.

All methods block; the runtime calls them through its executor.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.ledger.care.doubt import refuse_restored
from penstock.ledger.care.finding import Finding
from penstock.ledger.care.surroundings import surroundings
from penstock.ledger.claim import Claimed, Claims, Levels
from penstock.ledger.commit import Committer, Result, insert_events
from penstock.ledger.crash import crash
from penstock.ledger.gates.gates import Gates
from penstock.ledger.parking import park
from penstock.ledger.prepare import PreparedOutcome
from penstock.ledger.reap import UNKNOWN_MACHINE, driven_tables, lock_parking, park_unknown, reap
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database, present
from penstock.ledger.suspicion import clear_survivor
from penstock.model.clock import Clock, instant, instant_text
from penstock.model.errors import CommitUnknown
from penstock.model.machine import Machine
from penstock.model.unit import Unit

LEASE_MS = 30_000
AT_ONCE = 1_000
_SEVERITIES = {"error": "critical", "warning": "warning"}


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the worker is; the id is fresh for every process and never reused."""

    id: str
    host: str
    pid: int
    #: See `processes.this_process`.
    process: str | None = None


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


class Session:
    """A registered worker. `lease_ms` is how long others wait before they take its units over."""

    def __init__(
        self,
        database: Database,
        machines: Mapping[str, Machine],
        clock: Clock,
        identity: Identity,
        *,
        gates: Gates | None = None,
        served: Collection[str] | None = None,
        lease_ms: int = LEASE_MS,
    ) -> None:
        self._database = database
        self._clock = clock
        self.identity = identity
        self.machines = dict(machines)
        self.served = {n: m for n, m in machines.items() if m.driven and (served is None or n in served)}
        self._lease_ms = lease_ms
        self.gates = gates or Gates(database, self.machines)
        self._committer = Committer(database, self.machines, self.gates.ensure)
        self._seq = 0
        self._durable: list[Result] = []  # of the batch being committed: what its first entries came to
        self._unknown: tuple[int, list[Result]] | None = None
        self._idle_sql = self._make_idle_sql()
        self._claims = Claims(database, self.served, clock, identity.id, self.gates)

    def register(self, config_version: str | None = None) -> datetime:
        """Write the worker's row; the lease runs from here. Returns the ledger's present instant.

        Raises LedgerMismatch for a ledger that was restored from a backup and not put in doubt.

        Calling it again, when the answer was lost, changes nothing.
        """
        database = self._database
        boot = ":boot_id" if database.dialect == "sqlite" else "NULL"

        def work(cursor: Cursor) -> datetime:
            lock_parking(database, cursor)
            refuse_restored(database, cursor)
            cursor.run(
                "INSERT INTO worker (id, host, pid, started_at, lease_until, boot_id, process, machines, config_version)"
                f" VALUES (:worker, :host, :pid, {database.now_sql}, {database.lease_value_sql(self._lease_ms)}, {boot},"
                " :process, :machines, :config_version) ON CONFLICT (id) DO NOTHING",
                worker=self.identity.id,
                host=self.identity.host,
                pid=self.identity.pid,
                process=self.identity.process,
                machines=json.dumps(sorted(self.served)),
                config_version=config_version,
                **database.bind_now(),
            )
            return present(database, cursor)

        return database.lease(work, self.identity.id, self._lease_ms)

    def unpark_known(self) -> int:
        """Take up units that were parked because nobody knew their machine, a thousand at a time; how many."""

        def work(cursor: Cursor) -> int:
            count = 0
            for machine in self.served.values():
                count += cursor.run(
                    f"UPDATE {machine.table} SET parked_at = NULL, parked_reason = NULL, version = version + 1"
                    f" WHERE unit_id IN (SELECT unit_id FROM {machine.table} WHERE parked_at IS NOT NULL"
                    f" AND parked_reason = :reason LIMIT {AT_ONCE})",
                    reason=UNKNOWN_MACHINE,
                )
            return count

        return self._database.write(work)

    def park(self, unit: Unit, reason: str) -> None:
        """Set one claimed unit aside by the least of statements, where an outcome cannot be written at all."""
        machine, database = self._machine_of(unit), self._database
        database.write(lambda cursor: park(database, cursor, machine, (unit.unit_id, unit.version), reason))

    def crash(self, unit: Unit, reason: str) -> None:
        """Give back a claimed unit whose step broke its worker: tried again soon, parked at the third in a row."""
        machine, database, me = self._machine_of(unit), self._database, self.identity.id
        database.write(lambda cursor: crash(database, cursor, machine, unit, worker=me, reason=reason))

    def _machine_of(self, unit: Unit) -> Machine:
        return next(m for m in self.machines.values() if m.unit is type(unit))

    def renew(self) -> datetime | None:
        """Extend the lease; the ledger's present instant.

        None: the lease was lost, and everything held with it; register anew under another id.
        """
        database = self._database
        sql = (
            f"UPDATE worker SET lease_until = {database.lease_value_sql(self._lease_ms)}"
            f" WHERE id = :worker AND reaped_at IS NULL RETURNING {database.now_sql}"
        )
        me, now = {"worker": self.identity.id}, database.bind_now()
        rows = database.lease(lambda c: c.rows(sql, **me, **now), self.identity.id, self._lease_ms)
        return instant(rows[0][0]) if rows else None

    def claims(self) -> tuple[dict[tuple[str, str], int], dict[str, str]]:
        """What the ledger says is this worker's: machine and unit, and the version of its claim.

        Beside it the processes of the other workers, as far as they can be recognised.
        """
        others = "SELECT id, process FROM worker WHERE reaped_at IS NULL AND id <> :worker AND process IS NOT NULL"

        def work(cursor: Cursor) -> tuple[dict[tuple[str, str], int], dict[str, str]]:
            mine = {
                (name, str(unit_id)): version
                for name, machine in self.served.items()
                for unit_id, version in cursor.rows(
                    f"SELECT unit_id, version FROM {machine.table} WHERE claimed_by = :worker", worker=self.identity.id
                )
            }
            return mine, {str(w): str(process) for w, process in cursor.rows(others, worker=self.identity.id)}

        return self._database.read(work)

    def retire(self) -> None:
        """Say goodbye: the row stays for the history, nobody waits for the lease, and nothing stays claimed."""
        database = self._database
        postgres = database.dialect == "postgresql"
        sql = f"UPDATE worker SET stopped_at = {database.now_sql}, reaped_at = {database.now_sql} WHERE id = :worker AND reaped_at IS NULL"

        def work(cursor: Cursor) -> None:
            # The lock waits out a claim still under way, whose units would otherwise belong to nobody.
            tail = " FOR UPDATE" if postgres else ""
            cursor.rows(f"SELECT id FROM worker WHERE id = :worker{tail}", worker=self.identity.id)
            for machine in self.served.values():
                cursor.run(
                    # What is still here was released by nobody: its step may have begun.
                    f"UPDATE {machine.table} SET claimed_by = NULL, version = version + 1, doubts = doubts + 1"
                    " WHERE claimed_by = :worker",
                    worker=self.identity.id,
                )
            cursor.run(sql, worker=self.identity.id, **database.bind_now())

        database.write(work)

    def claim(self, wants: Mapping[str, int]) -> list[Unit]:
        """The units of `take`, for whoever needs no pass."""
        return self.take(wants).units

    def take(self, wants: Mapping[str, int], starts: int | None = None, levels: Levels | None = None) -> Claimed:
        """Claim up to so many due units of each machine; see `Claims.take`."""
        return self._claims.take(wants, starts, levels)

    @property
    def metered(self) -> bool:
        """Whether any gate must be asked before a claim, as last seen."""
        return self._claims.metered

    def suspected(self) -> list[int]:
        """The levels of suspicion at which a unit waits to be claimed, the lowest first."""
        return self._database.read(self._claims.suspected)

    def recover(self, held: Collection[tuple[str, str]]) -> list[Unit]:
        """The units of `retake`, for whoever needs no pass."""
        return self.retake(held).units

    def retake(self, held: Collection[tuple[str, str]]) -> Claimed:
        """Units that this worker claimed without hearing of it: in the ledger they are ours, here they are not."""
        self._committed_seq()
        return self._claims.retake(held)

    def commit(self, entries: Sequence[PreparedOutcome]) -> list[Result]:
        """Commit a batch. After LedgerUnavailable, call again with the same batch: it is never written twice."""
        if self._unknown is not None:
            seq, results = self._unknown
            landed = self._committed_seq() >= seq
            self._unknown = None
            if landed:
                self._seq = seq
                self._durable += results
        self._commit(entries[len(self._durable) :])
        results, self._durable = self._durable, []
        return results

    def _commit(self, entries: Sequence[PreparedOutcome]) -> None:
        """Commit what is left of a batch, by halves where it is refused; what became durable is noted at once."""
        if not entries:
            return
        applied: list[Result] = []

        def finish(cursor: Cursor, results: list[Result]) -> None:
            applied[:] = results
            cursor.run(
                "UPDATE worker SET commit_seq = :seq WHERE id = :worker", seq=self._seq + 1, worker=self.identity.id
            )

        try:
            results = self._committer.attempt(entries, finish)
        except CommitUnknown:
            self._unknown = (self._seq + 1, list(applied))
            raise
        if results is not None:
            self._seq += 1
            self._durable += results
            return
        middle = len(entries) // 2
        self._commit(entries[:middle])
        self._commit(entries[middle:])

    def _committed_seq(self) -> int:
        """The last commit that landed. The row lock waits out a COMMIT that is still under way."""
        postgres = self._database.dialect == "postgresql"

        def work(cursor: Cursor) -> int:
            if postgres:
                # Longer than a dead transaction can live (10 s), so that the lock tells the end of it.
                cursor.run("SET LOCAL lock_timeout = 15000")
            tail = " FOR UPDATE" if postgres else ""
            rows = cursor.rows(f"SELECT commit_seq FROM worker WHERE id = :worker{tail}", worker=self.identity.id)
            return int(rows[0][0]) if rows else 0

        return self._database.write(work)

    def release(self, units: Sequence[tuple[Unit, bool]]) -> None:
        """Give units back. One whose step had begun is in doubt, so that the next worker looks before it acts."""
        by_machine: dict[str, list[list[Any]]] = {}
        names = {m.unit: n for n, m in self.machines.items()}
        for unit, begun in units:
            by_machine.setdefault(names[type(unit)], []).append([unit.unit_id, unit.version, int(begun)])
        self._release(by_machine)

    def release_forgotten(self, claims: Mapping[tuple[str, str], int]) -> None:
        """Give back claims that the ledger knows and this worker does not; what their steps came to is not known."""
        by_machine: dict[str, list[list[Any]]] = {}
        for (name, unit_id), version in claims.items():
            by_machine.setdefault(name, []).append([unit_id, version, 1])
        self._release(by_machine)

    def _release(self, by_machine: Mapping[str, list[list[Any]]]) -> None:
        def work(cursor: Cursor) -> None:
            for name, rows in by_machine.items():
                machine = self.machines[name]
                sql = statements.release(self._database, machine)
                text = statements.batch_text(rows)
                cursor.run(sql, batch=text, worker=self.identity.id)

        if by_machine:
            self._database.write(work)

    def reap(self, dead: Collection[str] = ()) -> int:
        """Free the units of workers whose lease expired, and of those that are known to be dead; how many units.

        Two at once are harmless.
        """
        work = functools.partial(reap, self._database, me=self.identity.id, grace_ms=self._lease_ms, dead=dead)
        return self._database.write(work)

    def survived(self) -> None:
        """The lease was lost, and the process lives: nothing that it held killed it."""
        database, me = self._database, self.identity.id
        sql = f"UPDATE worker SET stopped_at = {database.now_sql} WHERE id = :worker"

        def work(cursor: Cursor) -> None:
            cursor.run(sql, worker=me, **database.bind_now())
            clear_survivor(cursor, driven_tables(cursor), me)

        database.write(work)

    def idle(self) -> Idle:
        """One cheap query that says when anything next needs attention."""
        rows = self._database.read(
            lambda c: c.rows(self._idle_sql, worker=self.identity.id, **self._database.bind_now())
        )
        now, due, lease, gate, suspect = rows[0]
        moments = [instant(moment) for moment in (now, due, gate, suspect)]
        seconds = [None if m is None else (m - moments[0]).total_seconds() for m in moments[1:]]
        return Idle(moments[0], seconds[0], None if lease is None else float(lease), *seconds[1:])

    def park_unknown(self) -> int:
        """Park due units of machines that no running worker knows, and raise an alert; never discard them."""
        return self._database.write(lambda cursor: park_unknown(self._database, cursor))

    def watch(self) -> list[Finding]:
        """Look at what the ledger stands on, and raise an alert, once a day, for what fills up or holds it back."""
        database = self._database
        found = list(database.read(lambda cursor: list(surroundings(database, cursor))))
        if found:
            day = instant_text(self._clock.now())[:10]
            rows = [
                ["default", f"ledger.{f.check}:{f.subject}:{day}", f"ledger.{f.check}", _SEVERITIES[f.severity],
                 json.dumps({"subject": f.subject, "reason": f.message}), None, None]
                for f in found
            ]  # fmt: skip
            database.write(lambda cursor: insert_events(database, cursor, rows))
        return found

    def _make_idle_sql(self) -> str:
        database = self._database
        machines = list(self.served.values())
        waiting = " OR ".join(statements.anything_behind(database, m) for m in machines) or "false"
        due = _least(database, [statements.least_due_behind_open_gates(database, m) for m in machines])
        suspect = _least(database, [statements.least_due_of_suspects(m) for m in machines])
        if database.dialect == "postgresql":
            lease = f"EXTRACT(EPOCH FROM min(lease_until) - {database.lease_now_sql})"
        else:
            lease = "min(CASE WHEN boot_id = :boot_id THEN lease_until - :uptime ELSE 0 END) / 1000.0"
        return (
            f"SELECT {database.now_sql}, {due},"
            f" (SELECT {lease} FROM worker WHERE reaped_at IS NULL AND id <> :worker),"
            f" (SELECT min({_opens(database)}) FROM gate g WHERE held_by IS NULL AND NOT ({statements.is_open(database.now_sql)})"
            f" AND ({waiting})), {suspect}"
        )


def _least(database: Database, moments: Sequence[str]) -> str:
    """The earliest of some moments, NULL where none is known."""
    if not moments:
        return "NULL"
    if database.dialect == "postgresql":
        return f"LEAST({', '.join(moments)})"  # which ignores NULL
    return f"(SELECT min(column1) FROM (VALUES {', '.join(f'({moment})' for moment in moments)}))"


def _opens(database: Database) -> str:
    """When a gate that nobody holds opens; it is closed for one reason or for both."""
    if database.dialect == "postgresql":
        return "GREATEST(closed_until, next_at)"
    return "max(COALESCE(closed_until, next_at), COALESCE(next_at, closed_until))"

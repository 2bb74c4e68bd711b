"""One worker incarnation's dealings with the ledger: lease, claims, commits, and what was lost on the way.

All methods block; the runtime calls them through its executor.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter, itemgetter
from typing import Any

from penstock.clock import Clock, instant, instant_text, parse_instant
from penstock.errors import CommitUnknown
from penstock.ledger import statements
from penstock.ledger.budget import HORIZON, Metered, Pass
from penstock.ledger.columns import UNREADABLE, readable, unit_decoder
from penstock.ledger.commit import Committer, Result, insert_events
from penstock.ledger.database import Cursor, Database, Row, present
from penstock.ledger.entries import Entry
from penstock.ledger.finding import Finding
from penstock.ledger.gates import AT_ONCE as GATES_AT_ONCE
from penstock.ledger.gates import Gates
from penstock.ledger.reap import UNKNOWN_MACHINE, lock_parking, park_unknown, reap
from penstock.ledger.surroundings import surroundings
from penstock.machine import Actor, Machine
from penstock.unit import NO_GATE, Unit

LEASE_MS = 30_000
AT_ONCE = 1_000
_SEVERITIES = {"error": "critical", "warning": "warning"}


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the worker is; the id is fresh for every process and never reused."""

    id: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Idle:
    """When the ledger may next have something to do, in seconds from now; None where nothing is in sight."""

    now: datetime
    due: float | None
    lease: float | None
    gate: float | None

    def seconds(self) -> float | None:
        """The earliest of the three, at least zero."""
        known = [s for s in (self.due, self.lease, self.gate) if s is not None]
        return max(0.0, min(known)) if known else None


@dataclass(frozen=True, slots=True)
class Claimed:
    """Units of one claim; for every gate among theirs what a call through it carries, and since when (`elapsed`)."""

    units: list[Unit]
    passes: dict[str, Pass]
    at: float = -math.inf


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
        self._gates = dict.fromkeys(self.served, "")
        self._claim_sql = {n: statements.claim(database, m) for n, m in self.served.items()}
        self._behind_sql = {n: statements.claim(database, m, metered=True) for n, m in self.served.items()}
        self._metered = True
        self._asked_at = -math.inf
        self._turn = 0
        self._asked_last = ""
        self._idle_sql = self._make_idle_sql()
        self._gate_of = {n: itemgetter(m.columns.index("gate_id")) for n, m in self.served.items()}
        self._decoders = {n: unit_decoder(m.unit, database.dialect) for n, m in self.served.items()}

    @property
    def _me(self) -> dict[str, str]:
        return {"worker": self.identity.id, "actor": f"{Actor.WORKER}:{self.identity.id}"}

    def register(self, config_version: str | None = None) -> datetime:
        """Write the worker's row; the lease runs from here. Returns the ledger's present instant.

        Calling it again, when the answer was lost, changes nothing.
        """
        database = self._database
        boot = ":boot_id" if database.dialect == "sqlite" else "NULL"

        def work(cursor: Cursor) -> datetime:
            lock_parking(database, cursor)
            cursor.run(
                "INSERT INTO worker (id, host, pid, started_at, lease_until, boot_id, machines, config_version)"
                f" VALUES (:worker, :host, :pid, {database.now_sql}, {database.lease_value_sql(self._lease_ms)}, {boot},"
                " :machines, :config_version) ON CONFLICT (id) DO NOTHING",
                worker=self.identity.id,
                host=self.identity.host,
                pid=self.identity.pid,
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
        name = next(n for n, m in self.machines.items() if m.unit is type(unit))
        self._database.write(lambda cursor: self._park(cursor, name, unit.unit_id, unit.version, reason))

    def _park(self, cursor: Cursor, name: str, unit_id: str, version: int, reason: str) -> None:
        database = self._database
        touched = cursor.run(
            f"UPDATE {self.machines[name].table} SET parked_at = {database.now_sql}, parked_reason = :reason,"
            " claimed_by = NULL, crashes = crashes + 1, version = version + 1"
            " WHERE unit_id = :unit_id AND version = :version",
            reason=reason,
            unit_id=unit_id,
            version=version,
            **database.bind_now(),
        )
        if touched:
            alert = ["default", f"unit.parked:{name}:{unit_id}:{version}", "unit.parked", "critical"]
            payload = json.dumps({"unit": f"{name}:{unit_id}", "reason": reason})
            correlation = f"{name}:{unit_id}@{version + 1}"
            insert_events(database, cursor, [[*alert, payload, name, unit_id, correlation]])

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

    def claims(self) -> dict[tuple[str, str], int]:
        """What the ledger says is this worker's: machine and unit, and the version of its claim."""

        def work(cursor: Cursor) -> dict[tuple[str, str], int]:
            return {
                (name, str(unit_id)): version
                for name, machine in self.served.items()
                for unit_id, version in cursor.rows(
                    f"SELECT unit_id, version FROM {machine.table} WHERE claimed_by = :worker", worker=self.identity.id
                )
            }

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
                    f"UPDATE {machine.table} SET claimed_by = NULL, version = version + 1, crashes = crashes + 1"
                    " WHERE claimed_by = :worker",
                    worker=self.identity.id,
                )
            cursor.run(sql, worker=self.identity.id, **database.bind_now())

        database.write(work)

    def claim(self, wants: Mapping[str, int]) -> list[Unit]:
        """The units of `take`, for whoever needs no pass."""
        return self.take(wants).units

    def take(self, wants: Mapping[str, int], starts: int | None = None) -> Claimed:
        """Claim up to so many due units of each machine. A lost reply is found again by `retake`.

        `starts`: how many steps can begin at once; where a place in a budget is taken, the call must follow soon.
        """
        wanted = {name: n for name, n in wants.items() if n > 0}
        if not wanted:
            return Claimed([], {})

        def work(cursor: Cursor) -> tuple[dict[str, list[Row]], dict[str, Pass], set[str], float]:
            taken, passes, at = self._take_behind(cursor, wanted, starts)
            for name, n in wanted.items():
                room = n - len(taken.get(name, ()))
                if room > 0:
                    rows = self.claim_rows(cursor, name, room)
                    self._rotate(name, rows)
                    taken[name] = taken.get(name, []) + rows
            gates = {gate for name, rows in taken.items() for gate in {*map(self._gate_of[name], rows)}}
            doors = gates - {NO_GATE, *passes}
            return taken, passes | self.gates.passes(cursor, doors), doors, at

        taken, passes, doors, at = self._database.write(work)
        self.gates.checked(doors)
        claimed: list[Unit] = []
        for name, rows in taken.items():
            # RETURNING has no order; a worker starts with the oldest, ties by id.
            claimed += sorted(self._units(name, rows), key=attrgetter("due_at", "unit_id"))
        return Claimed(claimed, passes, at)

    @property
    def metered(self) -> bool:
        """Whether any gate must be asked before a claim, as last seen."""
        return self._metered

    def _take_behind(
        self, cursor: Cursor, wants: Mapping[str, int], starts: int | None
    ) -> tuple[dict[str, list[Row]], dict[str, Pass], float]:
        """Claim behind the gates that must be asked first: as many as their budgets allow, no more."""
        at = self._clock.elapsed()
        if at - self._asked_at >= HORIZON:
            self._asked_at = at
            self._metered = self.gates.any_metered(cursor)
        room = sum(wants.values()) if starts is None else min(starts, sum(wants.values()))
        if not self._metered or room <= 0:
            return {}, {}, at
        gates = {g.gate_id: g for g in self.gates.meter(cursor, wants, self._asked_last)}
        at = self._clock.elapsed()
        if gates:
            # The next claim begins with the next gate, or with those that there was no room to ask.
            self._asked_last = list(gates)[-1 if len(gates) == GATES_AT_ONCE else 0]
        taken: dict[str, list[Row]] = {}
        # Where machines share a gate, each has its turn to be the first.
        self._turn += 1
        names = list(wants)
        for name in names[self._turn % len(names) :] + names[: self._turn % len(names)]:
            rows = self._rows_behind(cursor, name, min(room, wants[name]), list(gates.values()))
            room -= len(rows)
            for gate_id, count in Counter(map(self._gate_of[name], rows)).items():
                gates[gate_id].take(count)
            taken[name] = rows
        self.gates.settle(cursor, list(gates.values()))
        return taken, {g.gate_id: g.given() for g in gates.values() if g.taken}, at

    def _rows_behind(self, cursor: Cursor, name: str, n: int, gates: Sequence[Metered]) -> list[Row]:
        shares = {g.gate_id: g.allowed(n) for g in gates}
        shares = {gate: share for gate, share in shares.items() if share}
        if not shares or n <= 0:
            return []
        fair = math.ceil(n / len(shares))
        pick, *rest = self._behind_sql[name]
        if not rest:
            text = statements.batch_text([[g, min(share, fair)] for g, share in shares.items()])
            return cursor.rows(pick, n=n, batch=text, **self._me, **self._database.bind_now())
        rows: list[Row] = []
        for gate, share in shares.items():
            given = {"gate": gate, "n": min(share, fair, n - len(rows)), **self._me}
            rows += self._taken(cursor, cursor.rows(pick, **given, **self._database.bind_now()), rest)
        return rows

    def claim_rows(self, cursor: Cursor, name: str, n: int) -> list[Row]:
        """Claim up to `n` units of one machine behind gates that need not be asked; their rows as they now are."""
        pick, *rest = self._claim_sql[name]
        found = cursor.rows(pick, n=n, gate=self._gates[name], **self._me, **self._database.bind_now())
        return self._taken(cursor, found, rest) if rest else found

    def _taken(self, cursor: Cursor, picked: Sequence[Row], rest: Sequence[str]) -> list[Row]:
        """Take and read the units whose ids were picked (SQLite: see `statements.claim`)."""
        take, read = rest
        ids = picked[0][0]
        if not cursor.run(take, ids=ids, **self._me, **self._database.bind_now()):
            return []
        return cursor.gather(read, ids=ids)

    def _rotate(self, name: str, rows: Sequence[Row]) -> None:
        if rows:
            # The rotation goes upwards from the last gate and begins anew: what lies below came last.
            gates = {*map(self._gate_of[name], rows)}
            self._gates[name] = max({g for g in gates if g <= self._gates[name]} or gates)

    def recover(self, held: Collection[tuple[str, str]]) -> list[Unit]:
        """The units of `retake`, for whoever needs no pass."""
        return self.retake(held).units

    def retake(self, held: Collection[tuple[str, str]]) -> Claimed:
        """Units that this worker claimed without hearing of it: in the ledger they are ours, here they are not."""
        self._committed_seq()

        def work(cursor: Cursor) -> dict[str, list[Row]]:
            found: dict[str, list[Row]] = {}
            for name, machine in self.served.items():
                columns = ", ".join(machine.column(c) for c in machine.columns)
                sql = f"SELECT {columns} FROM {machine.table} WHERE claimed_by = :worker"
                found[name] = [row for row in cursor.rows(sql, worker=self.identity.id) if (name, row[0]) not in held]
            return found

        units = [unit for name, rows in self._database.write(work).items() for unit in self._units(name, rows)]
        doors = {u.gate_id for u in units} - {NO_GATE}
        return Claimed(units, self._database.write(lambda cursor: self.gates.passes(cursor, doors)) if doors else {})

    def commit(self, entries: Sequence[Entry]) -> list[Result]:
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

    def _commit(self, entries: Sequence[Entry]) -> None:
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
        """Give units back. One whose step had begun counts a crash, so that the next worker looks before it acts."""
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

    def reap(self) -> int:
        """Free the units of workers whose lease expired; returns how many. Two at once are harmless."""
        return self._database.write(lambda cursor: reap(self._database, cursor, self.identity.id))

    def idle(self) -> Idle:
        """One cheap query that says when anything next needs attention."""
        rows = self._database.read(
            lambda c: c.rows(self._idle_sql, worker=self.identity.id, **self._database.bind_now())
        )
        now, due, lease, gate = rows[0]
        moments = [parse_instant(m) if isinstance(m, str) else m for m in (now, due, gate)]
        seconds = [None if m is None else (m - moments[0]).total_seconds() for m in moments[1:]]
        return Idle(moments[0], seconds[0], None if lease is None else float(lease), seconds[1])

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

    def _units(self, name: str, rows: Sequence[Row]) -> list[Any]:
        """The units of claimed rows; what somebody's SQL made unreadable is parked, and the others go on."""
        decode = self._decoders[name]
        try:
            return [decode(row) for row in rows]
        except UNREADABLE:
            units, unreadable = [], []
            for row in rows:
                try:
                    units.append(decode(row))
                except UNREADABLE as error:
                    unreadable.append((row, readable(f"a column cannot be read: {error}")))
            self._database.write(lambda cursor: self._park_rows(cursor, name, unreadable))
            return units

    def _park_rows(self, cursor: Cursor, name: str, unreadable: Sequence[tuple[Row, str]]) -> None:
        for row, reason in unreadable:
            values = dict(zip(self.machines[name].columns, row, strict=True))
            self._park(cursor, name, values["unit_id"], values["version"], reason)

    def _make_idle_sql(self) -> str:
        database = self._database
        dues = [statements.least_due_behind_open_gates(database, m) for m in self.served.values()] or ["NULL"]
        waiting = " OR ".join(statements.anything_behind(database, m) for m in self.served.values()) or "false"
        if database.dialect == "postgresql":
            # GREATEST and LEAST ignore NULL on PostgreSQL.
            due = f"LEAST({', '.join(dues)})"
            lease = f"EXTRACT(EPOCH FROM min(lease_until) - {database.lease_now_sql})"
        else:
            due = f"(SELECT min(column1) FROM (VALUES {', '.join(f'({d})' for d in dues)}))"
            lease = "min(CASE WHEN boot_id = :boot_id THEN lease_until - :uptime ELSE 0 END) / 1000.0"
        return (
            f"SELECT {database.now_sql}, {due},"
            f" (SELECT {lease} FROM worker WHERE reaped_at IS NULL AND id <> :worker),"
            f" (SELECT min({_opens(database)}) FROM gate g WHERE held_by IS NULL AND NOT ({statements.is_open(database.now_sql)})"
            f" AND ({waiting}))"
        )


def _opens(database: Database) -> str:
    """When a gate that nobody holds opens; it is closed for one reason or for both."""
    if database.dialect == "postgresql":
        return "GREATEST(closed_until, next_at)"
    return "max(COALESCE(closed_until, next_at), COALESCE(next_at, closed_until))"

"""One worker incarnation's dealings with the ledger: lease, claims, commits, and what was lost on the way.

All methods block; the runtime calls them through its executor.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.clock import Clock, parse_instant
from penstock.errors import CommitUnknown
from penstock.ledger import statements
from penstock.ledger.columns import unit_decoder
from penstock.ledger.commit import Committer, Result, insert_events
from penstock.ledger.database import Cursor, Database, Row
from penstock.ledger.entries import Entry
from penstock.machine import Actor, Machine
from penstock.unit import Unit

LEASE_MS = 30_000
CRASH_LIMIT = 3
AT_ONCE = 1_000
UNKNOWN_MACHINE = "no running worker knows this machine"
# A provider may ask for any wait; beyond this the databases' calendars end, and a gate would open instead.
_LONGEST_CLOSING = 100 * 365 * 86_400.0
_NEVER = 2**31
_PARKING_LOCK = 8025315


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


class Session:
    """A registered worker. `lease_ms` is how long others wait before they take its units over."""

    def __init__(
        self,
        database: Database,
        machines: Mapping[str, Machine],
        clock: Clock,
        identity: Identity,
        *,
        served: Collection[str] | None = None,
        lease_ms: int = LEASE_MS,
    ) -> None:
        self._database = database
        self._clock = clock
        self.identity = identity
        self.machines = dict(machines)
        self.served = {n: m for n, m in machines.items() if m.driven and (served is None or n in served)}
        self._lease_ms = lease_ms
        self._committer = Committer(database, self.machines)
        self._seq = 0
        self._durable: list[Result] = []  # of the batch being committed: what its first entries came to
        self._unknown: tuple[int, list[Result]] | None = None
        self._gates = dict.fromkeys(self.served, "")
        self._claim_sql = {n: statements.claim(database, m) for n, m in self.served.items()}
        self._idle_sql = self._make_idle_sql()
        self._decoders = {n: unit_decoder(m.unit, database.dialect) for n, m in self.served.items()}

    @property
    def _me(self) -> dict[str, str]:
        return {"worker": self.identity.id, "actor": f"{Actor.WORKER}:{self.identity.id}"}

    def register(self, config_version: str | None = None) -> None:
        """Write the worker's row; the lease runs from here.

        Calling it again, when the answer was lost, changes nothing.
        """
        database = self._database
        boot = ":boot_id" if database.dialect == "sqlite" else "NULL"

        def work(cursor: Cursor) -> None:
            _lock_parking(database, cursor)
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

        database.write(work)

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
        database, machine = self._database, self.machines[name]
        alert = ["default", f"unit.parked:{name}:{unit.unit_id}:{unit.version}", "unit.parked", "critical"]
        payload = json.dumps({"unit": f"{name}:{unit.unit_id}", "reason": reason})

        def work(cursor: Cursor) -> None:
            touched = cursor.run(
                f"UPDATE {machine.table} SET parked_at = {database.now_sql}, parked_reason = :reason, claimed_by = NULL,"
                " crashes = crashes + 1, version = version + 1 WHERE unit_id = :unit_id AND version = :version",
                reason=reason,
                unit_id=unit.unit_id,
                version=unit.version,
                **database.bind_now(),
            )
            if touched:
                insert_events(database, cursor, [[*alert, payload, name, unit.unit_id]])

        database.write(work)

    def renew(self) -> bool:
        """Extend the lease. False: it was lost and everything held with it; register anew under another id."""
        database = self._database
        sql = (
            f"UPDATE worker SET lease_until = {database.lease_value_sql(self._lease_ms)}"
            " WHERE id = :worker AND reaped_at IS NULL"
        )
        return database.write(lambda c: c.run(sql, worker=self.identity.id, **database.bind_now())) == 1

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
        """Claim up to so many due units of each machine. A lost reply is found again by `recover`."""

        def work(cursor: Cursor) -> dict[str, list[Row]]:
            return {
                name: cursor.rows(
                    self._claim_sql[name], n=n, gate=self._gates[name], **self._me, **self._database.bind_now()
                )
                for name, n in wants.items()
                if n > 0
            }

        claimed: list[Unit] = []
        for name, rows in self._database.write(work).items():
            units = self._units(name, rows)
            # RETURNING has no order; a worker starts with the oldest, ties by id.
            units.sort(key=lambda u: (u.due_at, u.unit_id))
            if units:
                # The rotation goes upwards from the last gate and begins anew: what lies below came last.
                gates = {u.gate_id for u in units}
                self._gates[name] = max({g for g in gates if g <= self._gates[name]} or gates)
            claimed += units
        return claimed

    def recover(self, held: Collection[tuple[str, str]]) -> list[Unit]:
        """Units that this worker claimed without hearing of it: in the ledger they are ours, here they are not."""
        self._committed_seq()

        def work(cursor: Cursor) -> dict[str, list[Row]]:
            found = {}
            for name, machine in self.served.items():
                columns = ", ".join(machine.column(c) for c in machine.columns)
                sql = f"SELECT {columns} FROM {machine.table} WHERE claimed_by = :worker"
                found[name] = cursor.rows(sql, worker=self.identity.id)
            return found

        claimed = self._database.write(work).items()
        return [u for name, rows in claimed for u in self._units(name, rows) if (name, u.unit_id) not in held]

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

        def finish(cursor: Cursor) -> None:
            cursor.run(
                "UPDATE worker SET commit_seq = :seq WHERE id = :worker", seq=self._seq + 1, worker=self.identity.id
            )

        def work(cursor: Cursor) -> list[Result]:
            applied[:] = self._committer.apply(cursor, entries, finish)
            return list(applied)

        try:
            results = self._committer.attempt(entries, work)
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

        def work(cursor: Cursor) -> None:
            for name, rows in by_machine.items():
                machine = self.machines[name]
                sql = statements.release(self._database, machine)
                text = statements.batch_text(self._database, ["unit_id", "version", "begun"], rows)
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

    def close_gate(self, gate_id: str, seconds: float, reason: str, *, alert: bool = False) -> None:
        """Close a door for so long; an earlier, later-reaching closing stands. One that was open may raise an alert."""
        database = self._database
        postgres = database.dialect == "postgresql"
        if postgres:
            until, half = (f"{database.now_sql} + make_interval(secs => :{n})" for n in ("seconds", "half"))
            later = f"greatest(COALESCE(closed_until, {until}), {until})"
        else:
            until, half = (f"strftime('%Y-%m-%dT%H:%M:%fZ', :now, :{n} || ' seconds')" for n in ("seconds", "half"))
            later = f"max(COALESCE(closed_until, {until}), {until})"
        sql = (
            f"UPDATE gate SET closed_until = {later}, throttles = throttles + 1, closed_reason ="
            f" CASE WHEN closed_until > {until} THEN closed_reason ELSE :reason END WHERE gate_id = :gate"
        )
        # The first of many that fail at once raises the alert: whoever comes next finds the door closed for as long.
        open_sql = (
            f"SELECT throttles FROM gate WHERE gate_id = :gate AND (closed_until IS NULL OR closed_until < {half})"
        )
        length = min(float(seconds), _LONGEST_CLOSING)
        now = {"gate": gate_id, **database.bind_now()}

        def work(cursor: Cursor) -> None:
            found = cursor.rows(open_sql + " FOR UPDATE" * postgres, half=length / 2, **now) if alert else []
            cursor.run(sql, seconds=length, reason=reason, **now)
            payload = json.dumps({"gate": gate_id, "reason": reason})
            for (throttles,) in found:
                key = f"gate.stopped:{gate_id}:{throttles}"
                insert_events(database, cursor, [["default", key, "gate.stopped", "critical", payload, None, None]])

        database.write(work)

    def _units(self, name: str, rows: Sequence[Row]) -> list[Any]:
        decode = self._decoders[name]
        try:
            return [decode(row) for row in rows]
        except (ValueError, ArithmeticError):
            return [unit for row in rows if (unit := self._readable_unit(name, row)) is not None]

    def _readable_unit(self, name: str, row: Row) -> Any:
        """The unit of a row; one that somebody's SQL made unreadable is parked, and the others go on."""
        try:
            return self._decoders[name](row)
        except (ValueError, ArithmeticError) as error:
            values = dict(zip(self.machines[name].columns, row, strict=True))
            stub = object.__new__(self.machines[name].unit)
            stub.__dict__.update(unit_id=values["unit_id"], version=values["version"])
            self.park(stub, f"a column cannot be read: {error}")  # type: ignore[arg-type]
            return None

    def _make_idle_sql(self) -> str:
        database = self._database
        dues = [statements.least_due_behind_open_gates(database, m) for m in self.served.values()] or ["NULL"]
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
            f" (SELECT min(closed_until) FROM gate WHERE closed_until > {database.now_sql})"
        )


def reap(database: Database, cursor: Cursor, me: str = "") -> int:
    """Free what expired workers hold: version + 1, crashes + 1, parked with an alert at the third crash in a row.

    Of several that were held together and would be parked none is: who killed the worker shows when each is held alone.
    """
    expired = (
        f"lease_until < {database.lease_now_sql}"
        if database.dialect == "postgresql"
        else "(lease_until < :uptime OR boot_id IS NOT :boot_id)"
    )
    lock = " FOR UPDATE SKIP LOCKED" if database.dialect == "postgresql" else ""
    now = database.bind_now()
    # Never oneself: after an outage longer than the lease, what is finished is offered for commit first.
    sql = f"SELECT id FROM worker WHERE reaped_at IS NULL AND id <> :me AND {expired}{lock}"
    dead = [r[0] for r in cursor.rows(sql, me=me, **now)]
    if not dead:
        return 0
    text = statements.batch_text(database, ["unit_id"], [[d] for d in dead])
    freed = 0
    tables = driven_tables(cursor)
    found = [r for _, t, _ in tables for r in cursor.rows(statements.suspects(database, t, CRASH_LIMIT), batch=text)]
    suspects = Counter(str(worker) for (worker,) in found)
    alone = [[d] for d in dead if suspects[d] <= 1]
    crowded = [[d] for d in dead if suspects[d] > 1]
    for name, table, _ in tables:
        parked: list[Row] = []
        for workers, limit in ((alone, CRASH_LIMIT), (crowded, _NEVER)):
            if workers:
                those = statements.batch_text(database, ["unit_id"], workers)
                rows = cursor.rows(statements.free(database, table, limit), batch=those, **now)
                freed += len(rows)
                parked += [r for r in rows if r[2] >= limit]
        if parked:
            alerts = [
                [
                    "default",
                    f"unit.parked:{name}:{unit_id}:{version}",
                    "unit.parked",
                    "critical",
                    json.dumps({"unit": f"{name}:{unit_id}", "reason": f"its step killed {crashes} workers in a row"}),
                    name,
                    unit_id,
                ]
                for unit_id, version, crashes in parked
            ]
            insert_events(database, cursor, alerts)
    source = statements.batch(database, {"unit_id": statements.TEXT})
    cursor.run(
        f"UPDATE worker SET reaped_at = {database.now_sql} WHERE id IN (SELECT n_unit_id FROM {source})",
        batch=text,
        **now,
    )
    return freed


def driven_tables(cursor: Cursor) -> list[tuple[str, str, str]]:
    """(machine, table, due column) of every driven machine in the ledger, known here or not."""
    rows = cursor.rows("SELECT name, table_name, due_column FROM machine_definition WHERE driven ORDER BY name")
    return [(str(a), str(b), str(c)) for a, b, c in rows]


def _lock_parking(database: Database, cursor: Cursor) -> None:
    """Until the end of the transaction no worker comes while units are parked for want of it."""
    if database.dialect == "postgresql":
        cursor.run(f"SELECT pg_advisory_xact_lock({_PARKING_LOCK})")


def park_unknown(database: Database, cursor: Cursor) -> int:
    """See Session.park_unknown."""
    _lock_parking(database, cursor)
    now = database.bind_now()
    lists = cursor.rows("SELECT machines FROM worker WHERE reaped_at IS NULL")
    known = {n for row in lists for n in (json.loads(row[0]) if isinstance(row[0], str) else row[0])}
    parked = 0
    for name, table, due in driven_tables(cursor):
        if name in known:
            continue
        free = f"{due} <= {database.now_sql} AND claimed_by IS NULL AND parked_at IS NULL"
        count = cursor.run(
            f"UPDATE {table} SET parked_at = {database.now_sql}, parked_reason = :reason, version = version + 1"
            f" WHERE unit_id IN (SELECT unit_id FROM {table} WHERE {free} LIMIT 1000)",
            reason=UNKNOWN_MACHINE,
            **now,
        )
        if count:
            parked += count
            day = str(cursor.rows(f"SELECT {database.now_sql}", **now)[0][0])[:10]
            alert = [
                "default",
                f"unknown-machine:{name}:{day}",
                "machine.unknown",
                "critical",
                json.dumps({"machine": name}),
                name,
                None,
            ]
            insert_events(database, cursor, [alert])
    return parked

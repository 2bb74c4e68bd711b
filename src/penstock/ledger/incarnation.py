"""One incarnation of a worker: its row with the lease, and by that what it may claim, commit and reap.

All methods block; the runtime calls them through its executor.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from penstock.ledger.batches import Batches
from penstock.ledger.care.doubt import refuse_restored
from penstock.ledger.care.finding import Finding
from penstock.ledger.claim import Claimed, Claims, Levels, Price
from penstock.ledger.commit import Committer, Result, insert_events
from penstock.ledger.crash import crash
from penstock.ledger.gates.gates import Gates
from penstock.ledger.idle import Idle, IdleQuery
from penstock.ledger.parking import park
from penstock.ledger.prepare import PreparedOutcome
from penstock.ledger.reap import driven_tables, lock_parking, park_unknown, reap, unpark_known
from penstock.ledger.store.database import Cursor, Database, present
from penstock.ledger.suspicion import clear_survivor
from penstock.model.clock import Clock, instant, instant_text
from penstock.model.machine import Machine
from penstock.model.unit import Unit

LEASE_MS = 30_000
_SEVERITIES = {"error": "critical", "warning": "warning"}


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the worker is; the id is fresh for every process and never reused."""

    id: str
    host: str
    pid: int
    #: See `processes.this_process`.
    process: str | None = None


class Incarnation:
    """One life of a worker in the ledger: its row, its claims, its commits.

    `lease_ms` is how long others wait before they take its units over.
    """

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
        prices: Mapping[str, Price] = MappingProxyType({}),
    ) -> None:
        self._database = database
        self._clock = clock
        self.identity = identity
        self.machines = dict(machines)
        self.served = {n: m for n, m in machines.items() if m.driven and (served is None or n in served)}
        self._lease_ms = lease_ms
        self.gates = gates or Gates(database, self.machines)
        self._batches = Batches(database, Committer(database, self.machines, self.gates.ensure), identity.id)
        self._idle = IdleQuery(database, self.served.values(), identity.id)
        self._claims = Claims(database, self.served, clock, identity.id, self.gates, prices=prices)

    def register(self, config_version: str | None = None) -> datetime:
        """Write the worker's row; the lease runs from here. Returns the ledger's present instant.

        Raises LedgerMismatch for a ledger that was restored from a backup and not put in doubt.

        Calling it again, when the answer was lost, changes nothing.
        """
        database = self._database

        def work(cursor: Cursor) -> datetime:
            lock_parking(database, cursor)
            refuse_restored(database, cursor)
            cursor.run(
                "INSERT INTO worker (id, host, pid, started_at, lease_until, boot_id, process, machines, config_version)"
                f" VALUES (:worker, :host, :pid, {database.now_sql}, {database.lease_value_sql(self._lease_ms)}, {database.boot_sql},"
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
        database, served, me = self._database, self.served.values(), self.identity.id
        return database.write(lambda cursor: unpark_known(database, cursor, served, me))

    def park(self, unit: Unit, reason: str) -> None:
        """Set one claimed unit aside by the least of statements, where an outcome cannot be written at all."""
        machine, database = self._machine_of(unit), self._database
        database.write(lambda cursor: park(database, cursor, machine, (unit.unit_id, unit.version), reason))

    def crash(self, units: Sequence[Unit], reason: str) -> None:
        """Give back a claimed unit, or siblings, whose step broke its worker: tried again soon, parked at the third."""
        machine, database, me = self._machine_of(units[0]), self._database, self.identity.id
        database.write(lambda cursor: crash(database, cursor, machine, units, worker=me, reason=reason))

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
            rows = cursor.rows(others, worker=self.identity.id)
            return self._claims.mine(cursor), {str(worker): str(process) for worker, process in rows}

        return self._database.read(work)

    def retire(self) -> None:
        """Say goodbye: the row stays for the history, nobody waits for the lease, and nothing stays claimed."""
        database = self._database
        sql = f"UPDATE worker SET stopped_at = {database.now_sql}, reaped_at = {database.now_sql} WHERE id = :worker AND reaped_at IS NULL"

        def work(cursor: Cursor) -> None:
            # The lock waits out a claim still under way, whose units would otherwise belong to nobody.
            cursor.rows(f"SELECT id FROM worker WHERE id = :worker{database.sql.for_update()}", worker=self.identity.id)
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
        self._batches.committed()  # waits out a claim that is still under way
        return self._claims.retake(held)

    def commit(self, entries: Sequence[PreparedOutcome]) -> list[Result]:
        """Commit a batch. After LedgerUnavailable, call again with the same batch: it is never written twice."""
        return self._batches.commit(entries)

    def release(self, units: Sequence[tuple[Unit, bool]]) -> None:
        """Give units back. One whose step had begun is in doubt, so that the next worker looks before it acts."""
        machine_of = {m.unit: m for m in self.machines.values()}
        claims = [(machine_of[type(unit)], unit.unit_id, unit.version, begun) for unit, begun in units]
        if claims:
            self._database.write(lambda cursor: self._claims.release(cursor, claims))

    def release_forgotten(self, claims: Mapping[tuple[str, str], int]) -> None:
        """Give back claims that the ledger knows and this worker does not; what their steps came to is not known."""
        begun = [(self.machines[name], unit_id, version, True) for (name, unit_id), version in claims.items()]
        if begun:
            self._database.write(lambda cursor: self._claims.release(cursor, begun))

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
            clear_survivor(database, cursor, driven_tables(cursor), me)

        database.write(work)

    def idle(self) -> Idle:
        """When anything next needs attention."""
        return self._database.read(self._idle.ask)

    def park_unknown(self) -> int:
        """Park due units of machines that no running worker knows, and raise an alert; never discard them."""
        return self._database.write(lambda cursor: park_unknown(self._database, cursor))

    def watch(self) -> list[Finding]:
        """Look at what the ledger stands on, and raise an alert, once a day, for what fills up or holds it back."""
        database = self._database
        found = list(database.read(lambda cursor: list(database.surroundings(cursor))))
        if found:
            day = instant_text(self._clock.now())[:10]
            rows = [
                ["default", f"ledger.{f.check}:{f.subject}:{day}", f"ledger.{f.check}", _SEVERITIES[f.severity],
                 json.dumps({"subject": f.subject, "reason": f.message}), None, None]
                for f in found
            ]  # fmt: skip
            database.write(lambda cursor: insert_events(database, cursor, rows))
        return found

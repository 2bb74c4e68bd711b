"""The rows of gates and of their limits: made, given their provider's limits, locked, read and written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.ledger.gates.budget import FATAL, Budget, breaker_open
from penstock.ledger.gates.log import CONFIGURATION, Change, note
from penstock.ledger.schema.tables import gate as gate_table
from penstock.ledger.schema.tables import gate_limit
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database, Row, present
from penstock.model.clock import instant, instant_text
from penstock.model.limits import GateLimits, limits_of
from penstock.model.unit import NO_GATE

HELD = ("held_by", "held_reason", "held_at", "held_config")
_LIMIT = ("gate_id", "name", "rate", "burst", "cost", "tokens", "filled_at")
_BIRTHS_LOCK = 8025316


@dataclass(frozen=True, slots=True)
class GateRow:
    """One gate, locked, and the moment at which it was read."""

    gate_id: str
    epoch: int
    throttles: int
    closed_until: datetime | None
    closed_reason: str | None
    next_at: datetime | None
    held_by: str | None
    held_reason: str | None
    failures: int
    failing_since: datetime | None
    now: datetime

    @property
    def from_now(self) -> datetime:
        """From when on its budgets are counted: now, or when it opens."""
        return self.now if self.closed_until is None else max(self.now, self.closed_until)

    @property
    def shut_until(self) -> datetime | None:
        """Until when it is closed; None: it is not."""
        return self.closed_until if self.from_now > self.now else None

    @property
    def breaker_open(self) -> bool:
        """Whether only one call at a time may find out if the provider is back."""
        return breaker_open(self.throttles, self.failures)


class GateRows:
    """The gates of one ledger. `providers` None: whatever limits the ledger has stand as they are."""

    def __init__(self, database: Database, providers: Sequence[GateLimits] | None = None) -> None:
        self._database = database
        self.providers = providers
        self._lock = database.sql.for_update(keys=False)
        self._at = database.sql.instant("at")
        self._gate_ids = statements.batch(database, {"gate_id": statements.TEXT})
        self._among = f"gate_id IN (SELECT n_gate_id FROM {self._gate_ids})"
        self._checked: set[str] = set()

    # Making gates, and giving them the limits of their provider.

    def ensure(self, cursor: Cursor, gate_ids: Iterable[str]) -> None:
        """Make the gates that are missing. One of a held provider or account is born held."""
        born = cursor.rows(
            f"INSERT INTO gate (gate_id) SELECT n_gate_id FROM {self._gate_ids} WHERE true"
            " ON CONFLICT DO NOTHING RETURNING gate_id",
            batch=self._ids(gate_ids),
        )
        fresh = sorted(str(r[0]) for r in born)
        if fresh:
            self._births_lock(cursor, shared=True)
            self._limit(cursor, fresh, born=True)
            self._inherit(cursor, fresh)

    def _inherit(self, cursor: Cursor, fresh: Sequence[str]) -> None:
        rows = cursor.rows(
            f"SELECT gate_id, {', '.join(HELD)} FROM gate WHERE {self._among}",
            batch=self._ids({a for g in fresh for a in _above(g)} - set(fresh)),
        )
        known: dict[str, Row] = {str(gate): held for gate, *held in rows}
        for gate in fresh:
            # The nearest decides: an account may have been resumed while its provider is held.
            nearest = next((a for a in reversed(_above(gate)) if a in known), None)
            if nearest is not None:
                known[gate] = known[nearest]
        held = [[g, *map(text, known[g])] for g in fresh if g in known and known[g][0] is not None]
        self._set(cursor, HELD, held)
        self._note(cursor, [Change(g, held_as(by), None, by, reason) for g, by, reason, *_ in held])

    def _births_lock(self, cursor: Cursor, *, shared: bool = False) -> None:
        """Until the transaction ends, gates are born or held, not both: none may slip through in between."""
        self._database.sql.lock(cursor, _BIRTHS_LOCK, shared=shared)

    def apply(self) -> int:
        """Give every gate the limits of its provider as configured; returns how many gates changed."""
        if self.providers is None:
            return 0

        def work(cursor: Cursor) -> tuple[set[str], int]:
            gates = {str(r[0]) for r in cursor.rows("SELECT gate_id FROM gate")} - {NO_GATE}
            return gates, self._limit(cursor, sorted(gates))

        self._checked, changed = self._database.write(work)
        return changed

    def check(self, cursor: Cursor, gates: Collection[str]) -> None:
        """Give gates that this program has not seen yet, made by another that may not know their limits, their own."""
        self._limit(cursor, sorted(g for g in gates if g not in self._checked))

    def checked(self, gates: Collection[str]) -> None:
        """The check of these is committed."""
        if self.providers is not None:
            self._checked.update(gates)

    def _limit(self, cursor: Cursor, gates: Sequence[str], *, born: bool = False) -> int:
        if self.providers is None or not self._differing(cursor, gates):
            return 0
        cursor.rows(
            f"SELECT 1 FROM gate WHERE {self._among} ORDER BY gate_id{self._lock}",
            batch=self._ids(gates),
        )
        changed = self._differing(cursor, gates)
        now = self._moment(cursor)
        levels = {(g, b.name): b.level for g, found in self._budgets(cursor, changed, now).items() for b in found}
        closed = self._closed(cursor, changed, now)
        cursor.run(
            f"DELETE FROM gate_limit WHERE {self._among}",
            batch=self._ids(changed),
        )
        rows = [
            [gate, x.name, x.rate, x.burst, x.cost, levels.get((gate, x.name), 0.0), text(closed.get(gate, now))]
            for gate, provider in changed.items()
            for x in provider.limits
        ]
        source = statements.batch(self._database, {n: gate_limit.c[n].type for n in _LIMIT})
        picks = ", ".join(f"n_{n}" for n in _LIMIT)
        cursor.run(
            f"INSERT INTO gate_limit ({', '.join(_LIMIT)}) SELECT {picks} FROM {source} WHERE true",
            batch=statements.batch_text(rows),
        )
        meters = [[g, bool(p.limits or p.max_in_flight), p.max_in_flight] for g, p in changed.items()]
        count = self._set(cursor, ["metered", "max_in_flight"], meters)
        if not born:  # what a gate is born with is no change
            told = [Change(g, "budget", None, CONFIGURATION, _limits_text(p)) for g, p in changed.items()]
            self._note(cursor, told)
        return count

    def _differing(self, cursor: Cursor, gates: Collection[str]) -> dict[str, GateLimits]:
        """The gates whose limits are not those of their provider, and which that is."""
        if not gates:
            return {}
        asked = {"batch": self._ids(gates)}
        rows = cursor.rows(f"SELECT gate_id, name, rate, burst, cost FROM gate_limit WHERE {self._among}", **asked)
        limits: dict[str, set[Any]] = {}
        for gate, *limit in rows:
            limits.setdefault(str(gate), set()).add(tuple(limit))
        found = cursor.rows(f"SELECT gate_id, metered, max_in_flight FROM gate WHERE {self._among}", **asked)
        differing = {}
        for gate, metered, places in sorted(map(tuple, found)):
            provider = limits_of(gate, self.providers or ()) or GateLimits(gate)
            wanted = {(x.name, x.rate, x.burst, x.cost) for x in provider.limits}
            meters = bool(wanted or provider.max_in_flight)
            if (limits.get(gate, set()), bool(metered), places) != (wanted, meters, provider.max_in_flight):
                differing[str(gate)] = provider
        return differing

    def _closed(self, cursor: Cursor, gates: Collection[str], now: datetime) -> dict[str, datetime]:
        """Until when each of the gates is closed that is: their budgets begin then, not before."""
        rows = cursor.rows(
            f"SELECT gate_id, closed_until FROM gate WHERE {self._among}",
            batch=self._ids(gates),
        )
        return {str(g): instant(until) for g, until in rows if until is not None and instant(until) > now}

    # The rows themselves.

    def _ids(self, gates: Iterable[str]) -> str:
        return statements.batch_text([[g] for g in gates])

    def _set(self, cursor: Cursor, names: Sequence[str], rows: Sequence[Row]) -> int:
        """Set columns of gates: each row is the gate and the values."""
        if not rows:
            return 0
        types = {n: gate_table.c[n].type for n in ("gate_id", *names)}
        sets = ", ".join(f"{n} = n_{n}" for n in names)
        if "closed_until" in names:
            sets += ", noticed = NULL"  # it may be closed until a moment that was over when a clock was wrong
        return cursor.run(
            f"UPDATE gate AS t SET {sets} FROM {statements.batch(self._database, types)} WHERE t.gate_id = n_gate_id",
            batch=statements.batch_text(rows),
        )

    def _empty(self, cursor: Cursor, gates: Collection[str], at: datetime) -> None:
        """The budgets of the gates begin at that moment, with nothing; a debt stays."""
        cursor.run(
            f"UPDATE gate_limit SET tokens = CASE WHEN tokens < 0 THEN tokens ELSE 0 END, filled_at = {self._at}"
            f" WHERE {self._among}",
            at=instant_text(at),
            batch=self._ids(gates),
        )

    def _budgets(self, cursor: Cursor, gates: Collection[str], now: datetime) -> dict[str, list[Budget]]:
        """What is left at that moment in every budget of the gates. It must have been read after they were locked."""
        if not gates:
            return {}
        rows = cursor.rows(
            "SELECT gate_id, name, rate, burst, cost, tokens, filled_at FROM gate_limit"
            f" WHERE {self._among} ORDER BY gate_id, name",
            batch=self._ids(gates),
        )
        found: dict[str, list[Budget]] = {}
        for gate_id, name, rate, burst, cost, tokens, filled_at in rows:
            budget = Budget(str(name), rate, burst, cost, 0.0)
            # A moment to come, after a pause or when the clock was set back, gives nothing yet.
            seconds = max(0.0, (now - instant(filled_at)).total_seconds())
            budget.level = min(budget.capacity, tokens + rate * seconds)
            found.setdefault(str(gate_id), []).append(budget)
        return found

    def _spend(self, cursor: Cursor, rows: Sequence[Row]) -> None:
        """Write what is left: gate, limit, level, moment."""
        if rows:
            types = {n: gate_limit.c[n].type for n in ("gate_id", "name", "tokens", "filled_at")}
            cursor.run(
                "UPDATE gate_limit AS t SET tokens = n_tokens, filled_at = n_filled_at"
                f" FROM {statements.batch(self._database, types)} WHERE t.gate_id = n_gate_id AND t.name = n_name",
                batch=statements.batch_text(rows),
            )

    def _locked(self, cursor: Cursor, gate_id: str) -> GateRow:
        if self._database.sql.locks_rows:
            # The moment must be read when the lock is had: it may have been waited for.
            cursor.rows(f"SELECT 1 FROM gate WHERE gate_id = :gate{self._lock}", gate=gate_id)
        ((epoch, throttles, closed, why, ahead, held, reason, failures, since, now),) = cursor.rows(
            "SELECT epoch, throttles, closed_until, closed_reason, next_at, held_by, held_reason, failures,"
            f" failing_since, {self._database.now_sql} FROM gate WHERE gate_id = :gate",
            gate=gate_id,
            **self._database.bind_now(),
        )
        shut = (instant(closed), why, instant(ahead), held, reason)
        return GateRow(gate_id, epoch, throttles, *shut, failures, instant(since), instant(now))

    def _moment(self, cursor: Cursor) -> datetime:
        return present(self._database, cursor)

    def _note(self, cursor: Cursor, changes: Sequence[Change], at: datetime | None = None) -> None:
        """Write down what was changed, at a moment or now."""
        if changes:
            note(self._database, cursor, self._moment(cursor) if at is None else at, changes)


def _above(gate_id: str) -> list[str]:
    """The names above a gate's: its provider, its account."""
    parts = gate_id.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


def held_as(by: str) -> str:
    """What holding a gate is called: a fatal error stops it, a person pauses it."""
    return "stopped" if by == FATAL else "paused"


def _limits_text(limits: GateLimits) -> str:
    parts = [f"{x.name} {x.rate:g}/s, burst {x.burst:g}, cost {x.cost:g}" for x in limits.limits]
    if limits.max_in_flight is not None:
        parts.append(f"{limits.max_in_flight} in flight")
    return "; ".join(parts) or "no limits"


def text(value: Any) -> Any:
    """An instant as a batch carries it; anything else as it is."""
    return instant_text(value) if isinstance(value, datetime) else value

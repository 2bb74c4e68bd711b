"""Provider gates: budgets, pauses, the breaker and its probe, one row per door.

Whoever changes a gate locks its row first; what it comes to is computed here, from the ledger's time, and written back.
A gate without limits and without trouble is never locked: the claim passes it by its row alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from penstock.clock import instant_text
from penstock.ledger import statements
from penstock.ledger.budget import BREAKER_AFTER, Closed, Metered, Pass
from penstock.ledger.commit import insert_events
from penstock.ledger.database import Cursor, Database
from penstock.ledger.gate_rows import HELD, GateRows, text, under
from penstock.machine import Machine
from penstock.provider import Provider
from penstock.retry import LONGEST_WAIT, THROTTLE_POLICY

BREAKER_SECONDS = 60.0
FATAL = "fatal"
AT_ONCE = 200
_JITTER = 0.1
_MOST_JITTER = 30.0
# Beyond this the databases' calendars end, and a gate would open instead.
_LONGEST = 100 * 365 * 86_400.0
# A place that was never taken, or that nobody knows the age of, is good no longer.
_OVER = -1.0


class Gates(GateRows):
    """The gates of one ledger: asked before calls, told of the answers, held and let go."""

    def __init__(
        self, database: Database, machines: Mapping[str, Machine], providers: Sequence[Provider] | None = None
    ) -> None:
        super().__init__(database, providers)
        self._machines = machines

    # Asking before a claim.

    def any_metered(self, cursor: Cursor) -> bool:
        """Whether any gate must be asked at all."""
        return bool(cursor.rows("SELECT 1 FROM gate WHERE metered OR throttles > 0 LIMIT 1"))

    def meter(self, cursor: Cursor, machines: Iterable[str], last: str = "") -> list[Metered]:
        """The gates with something due that are to be asked, locked, in rotation after `last`; at most AT_ONCE."""
        now = self._database.now_sql
        waiting = " OR ".join(
            f"(SELECT 1 FROM {m.table} u WHERE u.gate_id = g.gate_id AND u.{m.due} <= {now} AND u.{m.due} IS NOT NULL"
            " AND u.claimed_by IS NULL AND u.parked_at IS NULL LIMIT 1) IS NOT NULL"
            for m in (self._machines[name] for name in machines)
        )
        rows = cursor.rows(
            "SELECT g.gate_id, g.epoch, g.throttles, g.max_in_flight FROM gate g"
            f" WHERE (g.metered OR g.throttles > 0) AND {statements.is_open(now)} AND ({waiting})"
            f" ORDER BY (g.gate_id > :last) DESC, g.gate_id LIMIT {AT_ONCE}"
            + (f"{self._lock} SKIP LOCKED" if self._lock else ""),
            last=last,
            **self._database.bind_now(),
        )
        # Read when the locks are had: whoever held them before may have counted up to a later moment.
        moment = self._moment(cursor)
        gates = {str(g): Metered(str(g), epoch, throttles, places, moment) for g, epoch, throttles, places in rows}
        for gate_id, budgets in self._budgets(cursor, gates, moment).items():
            gates[gate_id].budgets = budgets
        self._count_in_flight(cursor, [g for g in gates.values() if g.max_in_flight is not None])
        return list(gates.values())

    def _count_in_flight(self, cursor: Cursor, gates: Sequence[Metered]) -> None:
        if not gates:
            return
        by_id = {g.gate_id: g for g in gates}
        for (table,) in cursor.rows("SELECT table_name FROM machine_definition WHERE driven ORDER BY name"):
            rows = cursor.rows(
                f"SELECT t.gate_id, count(*) FROM worker w JOIN {table} t ON t.claimed_by = w.id"
                f" WHERE w.reaped_at IS NULL AND t.{self._among} GROUP BY t.gate_id",
                batch=self._ids(by_id),
            )
            for gate_id, count in rows:
                by_id[str(gate_id)].in_flight += count

    def settle(self, cursor: Cursor, gates: Sequence[Metered]) -> None:
        """Write back what was taken, and when each is worth asking again."""
        self._spend(
            cursor, [[g.gate_id, b.name, b.level, instant_text(g.now)] for g in gates if g.taken for b in g.budgets]
        )
        waits = [[g.gate_id, text(g.next_at())] for g in gates]
        self._set(cursor, ["next_at"], [row for row in waits if row[1] is not None])

    def passes(self, cursor: Cursor, gate_ids: Collection[str]) -> dict[str, Pass]:
        """What calls carry through gates that were not asked. Where one should have been, no call may leave."""
        if not gate_ids:
            return {}
        self.check(cursor, gate_ids)
        rows = cursor.rows(
            f"SELECT gate_id, epoch, throttles, metered FROM gate WHERE {self._among}",
            batch=self._ids(gate_ids),
        )
        # One that was closed since it let the unit through did so under the epoch before.
        return {
            str(g): Pass(str(g), epoch - bool(throttles), good_for=_OVER if metered else None)
            for g, epoch, throttles, metered in rows
        }

    def enter(self, gate_id: str, wanted: int) -> tuple[Pass, int] | Closed:
        """Leave for up to so many calls now, besides those that claims made; or until when there is none."""

        def work(cursor: Cursor) -> tuple[Pass, int] | Closed:
            self.ensure(cursor, [gate_id])
            self.check(cursor, [gate_id])
            found = self._locked(cursor, gate_id)
            if found.held_by is not None:
                return Closed(None, f"{gate_id} is held by {found.held_by}: {found.held_reason}")
            if found.closed_until is not None and found.closed_until > found.now:
                return Closed(found.closed_until, f"{gate_id} is closed: {found.closed_reason}")
            gate = Metered(gate_id, found.epoch, found.throttles, None, found.now)
            gate.budgets = self._budgets(cursor, [gate_id], found.now).get(gate_id, [])
            if found.next_at is not None and found.next_at > found.now:
                return gate.closed(found.next_at)
            granted = gate.allowed(wanted)
            gate.take(granted)
            self.settle(cursor, [gate])
            return (gate.given(), granted) if granted else gate.closed(gate.next_at())

        answer = self._database.write(work)
        self.checked([gate_id])
        return answer

    # What the answers teach.

    def throttle(self, given: Pass, retry_after: float | None, reason: str, chance: float) -> datetime | None:
        """The provider asked for quiet. Of all calls under one epoch the first escalates; the rest may only lengthen.

        `chance` (0 to 1) places the wait within its jitter, which only lengthens it. A wait of more than 48 hours is
        not believed: it is cut to them, with one alert. Returns until when the gate is closed.
        """

        def work(cursor: Cursor) -> datetime | None:
            found = self._locked(cursor, given.gate_id)
            first = found.epoch == given.epoch
            if not first and retry_after is None:
                return found.closed_until
            throttles = found.throttles + first
            wait = retry_after
            if wait is None or math.isnan(wait):
                wait = _throttle_seconds(throttles)
            if first and throttles > BREAKER_AFTER:
                wait = max(wait, BREAKER_SECONDS)
            believed = min(max(wait, 0.0), LONGEST_WAIT.total_seconds())
            until = found.now + timedelta(seconds=believed + chance * min(believed * _JITTER, _MOST_JITTER))
            why: str | None = reason
            if found.closed_until is not None and found.closed_until >= until:
                until, why = found.closed_until, found.closed_reason
            row = [given.gate_id, instant_text(until), why, throttles, found.epoch + first]
            self._set(cursor, ["closed_until", "closed_reason", "throttles", "epoch", "next_at"], [[*row, None]])
            self._empty(cursor, [given.gate_id], until)
            if first and throttles == BREAKER_AFTER + 1:
                told = {"gate": given.gate_id, "reason": reason, "throttles": throttles, "until": instant_text(until)}
                self._alert(cursor, "gate.breaker", "critical", f"{given.gate_id}:{found.epoch}", told)
            if wait > believed:
                asked = int(min(wait, _LONGEST) // 3600)
                told = {"gate": given.gate_id, "reason": reason, "asked_hours": asked, "until": instant_text(until)}
                self._alert(cursor, "gate.long_wait", "warning", f"{given.gate_id}:{given.epoch}", told)
            return until

        return self._database.write(work)

    def close(self, gate_id: str, seconds: float, reason: str) -> None:
        """Close a door for so long; an earlier, later-reaching closing stands. Its budgets begin empty afterwards."""

        def work(cursor: Cursor) -> None:
            self.ensure(cursor, [gate_id])
            found = self._locked(cursor, gate_id)
            until = found.now + timedelta(seconds=min(max(seconds, 0.0), _LONGEST))
            if found.closed_until is None or found.closed_until < until:
                self._set(cursor, ["closed_until", "closed_reason"], [[gate_id, instant_text(until), reason]])
                self._empty(cursor, [gate_id], until)

        self._database.write(work)

    def worked(self, given: Pass) -> None:
        """A call came through where calls had failed: the door is healthy. After a probe its budget begins empty."""

        def work(cursor: Cursor) -> None:
            found = self._locked(cursor, given.gate_id)
            if found.epoch == given.epoch and found.throttles:
                self._set(cursor, ["throttles", "next_at"], [[given.gate_id, 0, None]])
                if given.probe:
                    self._empty(cursor, [given.gate_id], found.from_now)

        self._database.write(work)

    def probe_over(self, given: Pass) -> None:
        """The probe found nothing out: another may go."""

        def work(cursor: Cursor) -> None:
            if self._locked(cursor, given.gate_id).epoch == given.epoch:
                self._set(cursor, ["next_at"], [[given.gate_id, None]])

        self._database.write(work)

    def left(self, gate_ids: Collection[str]) -> None:
        """Places were given back: gates that were full are worth asking again. A probe that is out stays alone."""
        self._database.write(
            lambda cursor: cursor.run(
                f"UPDATE gate SET next_at = NULL WHERE next_at IS NOT NULL AND throttles = 0 AND {self._among}",
                batch=self._ids(sorted(gate_ids)),
            )
        )

    def learn(self, gate_id: str, name: str, *, left: float | None = None, rate: float | None = None) -> None:
        """What a response says of a limit. It may only lower what we allow ourselves; nonsense changes nothing."""

        def work(cursor: Cursor) -> None:
            if not self._budgets(cursor, [gate_id], self._moment(cursor)):
                return
            found = self._locked(cursor, gate_id)
            for budget in self._budgets(cursor, [gate_id], found.now).get(gate_id, []):
                if budget.name == name:
                    known = left is not None and math.isfinite(left)
                    slower = rate is not None and 0 < rate < budget.rate
                    cursor.run(
                        f"UPDATE gate_limit SET tokens = :tokens, rate = :rate, filled_at = {self._at}"
                        " WHERE gate_id = :gate AND name = :name",
                        tokens=min(budget.level, max(0.0, left)) if known and left is not None else budget.level,
                        rate=rate if slower else budget.rate,
                        at=instant_text(found.from_now),
                        gate=gate_id,
                        name=name,
                    )

        self._database.write(work)

    def charge(self, gate_id: str, times: float) -> None:
        """A call costs more than the usual one, or less: so many times the limits' costs are taken besides."""

        def work(cursor: Cursor) -> None:
            found = self._locked(cursor, gate_id)
            at = instant_text(found.from_now)
            budgets = self._budgets(cursor, [gate_id], found.now).get(gate_id, [])
            self._spend(cursor, [[gate_id, b.name, b.level - times * b.cost, at] for b in budgets])

        self._database.write(work)

    # Holding and letting go.

    def stop(self, gate_id: str, reason: str, config_version: str | None) -> int:
        """Credentials or configuration are wrong: hold every gate of the account, with one alert."""
        # Credentials are an account's: the gates of one are `provider/account` and `provider/account/endpoints`.
        return self._hold("/".join(gate_id.split("/")[:2]), FATAL, reason, config_version)

    def pause(self, prefix: str, who: str, reason: str) -> int:
        """Hold a gate and all below it until somebody resumes them; those made later are born held."""
        return self._hold(prefix, who, reason, None)

    def _hold(self, prefix: str, by: str, reason: str, config: str | None) -> int:
        def work(cursor: Cursor) -> int:
            self._births_lock(cursor)
            self.ensure(cursor, [prefix])
            below, names = under(prefix)
            rows = cursor.rows(f"SELECT gate_id, held_by FROM gate WHERE {below} ORDER BY gate_id{self._lock}", **names)
            # Whom a person holds is no less held when the credentials turn out to be wrong besides.
            free = [str(g) for g, held in rows if held is None or by not in (FATAL, held)]
            now = instant_text(self._moment(cursor))
            self._set(cursor, HELD, [[g, by, reason, now, config] for g in free])
            if free:
                kind, severity = ("gate.stopped", "critical") if by == FATAL else ("gate.paused", "info")
                told = {"gate": prefix, "by": by, "reason": reason, "gates": len(free)}
                self._alert(cursor, kind, severity, f"{prefix}:{now}", told)
            return len(free)

        return self._database.write(work)

    def resume(self, prefix: str, who: str) -> int:
        """Open a gate and all below it, whatever closed them; their budgets begin empty. How many were not open."""

        def work(cursor: Cursor) -> int:
            below, given = under(prefix)
            rows = cursor.rows(
                f"SELECT gate_id FROM gate WHERE {below} AND (held_by IS NOT NULL OR throttles > 0"
                f" OR closed_until > {self._database.now_sql} OR next_at > {self._database.now_sql})"
                f" ORDER BY gate_id{self._lock}",
                **given,
                **self._database.bind_now(),
            )
            gates, now = [str(r[0]) for r in rows], self._moment(cursor)
            names = [*HELD, "closed_until", "closed_reason", "next_at", "throttles"]
            self._set(cursor, names, [[g, *([None] * 7), 0] for g in gates])
            self._empty(cursor, gates, now)
            if rows:
                told = {"gate": prefix, "by": who, "gates": len(rows)}
                self._alert(cursor, "gate.resumed", "info", f"{prefix}:{instant_text(now)}", told)
            return len(rows)

        return self._database.write(work)

    def reconfigured(self, config_version: str | None) -> int:
        """Open what a fatal error stopped under another configuration: it may be mended. How many."""
        if config_version is None:
            return 0

        def work(cursor: Cursor) -> int:
            rows = cursor.rows(
                "SELECT gate_id FROM gate WHERE held_by = :fatal AND COALESCE(held_config, '') <> :config"
                f" ORDER BY gate_id{self._lock}",
                fatal=FATAL,
                config=config_version,
            )
            gates, now = [str(r[0]) for r in rows], self._moment(cursor)
            self._set(cursor, HELD, [[g, None, None, None, None] for g in gates])
            # What a provider asked for besides still stands.
            self._empty(cursor, set(gates) - set(self._closed(cursor, gates, now)), now)
            return len(gates)

        return self._database.write(work)

    def _alert(self, cursor: Cursor, kind: str, severity: str, key: str, payload: Mapping[str, Any]) -> None:
        row = ["default", f"{kind}:{key}", kind, severity, json.dumps(payload), None, None]
        insert_events(self._database, cursor, [row])


def _throttle_seconds(throttles: int) -> float:
    """16, 32, 64 s: how long a gate stays closed when the provider named no time."""
    policy = THROTTLE_POLICY
    return min(policy.cap, policy.base * policy.multiplier ** min(throttles - 1, 10)).total_seconds()

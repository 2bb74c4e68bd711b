"""What the answers of providers mean for their gates: pauses, the breaker and its probe, lessons about limits."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from penstock.ledger import delivery
from penstock.ledger.commit import insert_events
from penstock.ledger.gates.budget import BREAKER_AFTER, Costs, Pass, Trouble, breaker_open, outage_seconds
from penstock.ledger.gates.log import BREAKER, PROVIDER, Change
from penstock.ledger.gates.rows import GateRow, GateRows, text
from penstock.ledger.store.database import Cursor
from penstock.model.clock import instant_text
from penstock.model.retry import LONGEST_WAIT, THROTTLE_POLICY

BREAKER_SECONDS = 60.0
# Beyond this the databases' calendars end, and a gate would open instead.
LONGEST = 100 * 365 * 86_400.0
_JITTER = 0.1
BURST_FROM = 3
BURST_WITHIN = timedelta(minutes=5)
"""More throttles than that within this time are a burst: the gate's budgets are lowered."""
_SLOWER = 0.8
_MOST_JITTER = 30.0


class GateAnswers(GateRows):
    """Gates that are told of answers. Whoever tells them locks the row first and goes by the ledger's time."""

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
            believed = min(wait, LONGEST_WAIT.total_seconds())
            until = self._shut(cursor, found, believed, reason, chance=chance, first=first)
            told: dict[str, Any] = {"gate": given.gate_id, "reason": reason, "until": instant_text(until)}
            if first:
                self._alert(cursor, "gate.throttled", None, f"{given.gate_id}:{given.epoch}", told)
                self._slow_down(cursor, found)
            if wait > believed:
                asked = int(min(wait, LONGEST) // 3600)
                told = {**told, "asked_hours": asked}
                self._alert(cursor, "gate.long_wait", "warning", f"{given.gate_id}:{given.epoch}", told)
            return until

        return self._database.write(work)

    def _slow_down(self, cursor: Cursor, found: GateRow) -> None:
        """A gate that was throttled more than three times in five minutes has budgets that are too generous.

        Each further time they lose a fifth, until a worker starts anew.
        """
        prefix = f"gate.throttled:{found.gate_id}:"
        mine = f"event_type = 'gate.throttled' AND substr(event_key, 1, {len(prefix)}) = :prefix"
        sql = f"SELECT count(*) FROM event_log WHERE created_at >= {self._database.sql.instant('since')} AND {mine}"
        ((times,),) = cursor.rows(sql, since=instant_text(found.now - BURST_WITHIN), prefix=prefix)
        if times <= BURST_FROM:
            return
        slowed = cursor.run(
            "UPDATE gate_limit SET rate = rate * :less WHERE gate_id = :gate", less=_SLOWER, gate=found.gate_id
        )
        if slowed:
            why = f"throttled {times} times in five minutes"
            told = {"gate": found.gate_id, "reason": why, "slower_by": "20 %"}
            lowered = Change(found.gate_id, "budget", None, PROVIDER, f"a fifth slower: {why}")
            self._note(cursor, [lowered], found.now)
            self._alert(cursor, "gate.slowed", "warning", f"{found.gate_id}:{found.epoch}", told)

    def fail(self, given: Pass, reason: str, chance: float) -> Trouble:
        """The provider gave no answer that could be used. More than five times in a row close the gate.

        Of the calls that were under way together the first counts; those that left before the gate last closed do not.
        A probe that fails closes the gate again.
        """

        def work(cursor: Cursor) -> Trouble:
            found = self._locked(cursor, given.gate_id)
            known = (given.failures, given.failing_since) == (found.failures, found.failing_since)
            if found.epoch != given.epoch or not (known or found.failing_since is None):
                return Trouble(found.failing_since, found.failures, found.shut_until)
            failures, since = found.failures + 1, found.failing_since or found.now
            self._set(cursor, ["failures", "failing_since"], [[given.gate_id, failures, instant_text(since)]])
            if failures <= BREAKER_AFTER and not given.probe:
                return Trouble(since, failures, None)
            wait, why = _throttle_seconds(found.throttles + 1), reason
            if failures > BREAKER_AFTER:
                row = f"{failures} failures in a row since {instant_text(since)}"
                wait, why = outage_seconds(failures), f"the provider does not answer, {row}: {reason}"
            return Trouble(since, failures, self._shut(cursor, found, wait, why, chance=chance, failures=failures))

        return self._database.write(work)

    def _shut(
        self,
        cursor: Cursor,
        found: GateRow,
        wait: float,
        reason: str,
        *,
        chance: float,
        failures: int = 0,
        first: bool = True,
    ) -> datetime:
        """Close a locked gate; the first to do so under its epoch escalates. Returns until when."""
        throttles = found.throttles + first
        if first and throttles > BREAKER_AFTER:
            wait = max(wait, BREAKER_SECONDS)
        wait = max(wait, 0.0)
        until = found.now + timedelta(seconds=wait + chance * min(wait * _JITTER, _MOST_JITTER))
        why: str | None = reason
        if found.closed_until is not None and found.closed_until >= until:
            until, why = found.closed_until, found.closed_reason
        row = [found.gate_id, instant_text(until), why, throttles, found.epoch + first]
        self._set(cursor, ["closed_until", "closed_reason", "throttles", "epoch", "next_at"], [[*row, None]])
        self._empty(cursor, [found.gate_id], until)
        broken = breaker_open(throttles, failures)
        if first:
            self._note(
                cursor, [Change(found.gate_id, "closed", until, BREAKER if broken else PROVIDER, why)], found.now
            )
        if broken and not found.breaker_open:
            told = {"gate": found.gate_id, "reason": reason, "throttles": throttles, "failures": failures}
            key = f"{found.gate_id}:{found.epoch}"
            self._alert(cursor, "gate.breaker", "critical", key, {**told, "until": instant_text(until)})
        return until

    def worked(self, given: Pass) -> None:
        """A call came through where calls had failed: the gate is healthy. After a probe its budget begins empty."""

        def work(cursor: Cursor) -> None:
            found = self._locked(cursor, given.gate_id)
            if found.epoch != given.epoch:
                return
            if found.failing_since is not None:
                self._set(cursor, ["failures", "failing_since"], [[given.gate_id, 0, None]])
            if found.throttles:
                self._set(cursor, ["throttles", "next_at"], [[given.gate_id, 0, None]])
                if given.probe:
                    self._empty(cursor, [given.gate_id], found.from_now)
            if found.throttles or found.breaker_open:
                self._note(cursor, [Change(given.gate_id, "opened", reason="a call came through")], found.now)
            if found.breaker_open:
                told = {"gate": given.gate_id, "failing_since": text(found.failing_since)}
                self._alert(cursor, "gate.recovered", "info", f"{given.gate_id}:{found.epoch}", told)

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
                    if slower:
                        why = f"a response says {name} {rate:g}/s, not {budget.rate:g}/s"
                        self._note(cursor, [Change(gate_id, "budget", None, PROVIDER, why)], found.now)
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

    def charge(self, gate_id: str, costs: Costs, *, calls: int = 0) -> None:
        """Calls were made that no place was taken for: what they cost by limit, and so many usual ones.

        Less than nothing gives back what was taken and not used.
        """

        def work(cursor: Cursor) -> None:
            if not self._budgets(cursor, [gate_id], self._moment(cursor)):
                return
            found = self._locked(cursor, gate_id)
            at = instant_text(found.from_now)
            budgets = self._budgets(cursor, [gate_id], found.now).get(gate_id, [])
            spent = [(b, costs.get(b.name, 0.0) + calls * b.cost) for b in budgets]
            self._spend(cursor, [[gate_id, b.name, b.level - amount, at] for b, amount in spent])

        self._database.write(work)

    def _alert(self, cursor: Cursor, kind: str, severity: str | None, key: str, payload: Mapping[str, Any]) -> None:
        # What the outbox says of itself is never delivered: whom it is about could not take it.
        about = delivery.machine.name if str(payload["gate"]).startswith(delivery.gate_of("")) else None
        row = ["default", f"{kind}:{key}", kind, severity, json.dumps(payload), about, None]
        insert_events(self._database, cursor, [row])


def _throttle_seconds(throttles: int) -> float:
    """16, 32, 64 s: how long a gate stays closed when the provider named no time."""
    policy = THROTTLE_POLICY
    return min(policy.cap, policy.base * policy.multiplier ** min(throttles - 1, 10)).total_seconds()

"""Provider gates: who may pass, and who holds them; one row per gate. What answers mean is in `answers`.

Whoever changes a gate locks its row first; what it comes to is computed here, from the ledger's time, and written back.
A gate without limits and without trouble is never locked: the claim passes it by its row alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from penstock.ledger.gates.answers import LONGEST, GateAnswers
from penstock.ledger.gates.budget import FATAL, USUAL, Closed, Costs, Metered, Pass
from penstock.ledger.gates.in_flight import steps_in_flight
from penstock.ledger.gates.log import CONFIGURATION, PROVIDER, Change
from penstock.ledger.gates.rows import HELD, held_as, text
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database
from penstock.ledger.store.gate_walk import ASKED, MOMENT, OPEN, SHUT, one_moment
from penstock.ledger.store.gates_due import anywhere, nearest, rotation
from penstock.model.clock import instant, instant_text
from penstock.model.limits import GateLimits
from penstock.model.machine import Machine

AT_ONCE = 200
# Of the gates whose time is over, so many are noticed at once.
_NOTICED_AT_ONCE = 1_000
# A place that was never taken, or that nobody knows the age of, is good no longer.
_OVER = -1.0


class Gates(GateAnswers):
    """The gates of one ledger: asked before calls, told of the answers, held and let go."""

    def __init__(
        self, database: Database, machines: Mapping[str, Machine], providers: Sequence[GateLimits] | None = None
    ) -> None:
        super().__init__(database, providers)
        self._machines = machines
        self._statements: dict[tuple[tuple[str, ...], bool, bool], str] = {}

    # Asking before a claim.

    def any_metered(self, cursor: Cursor) -> bool:
        """Whether any gate must be asked at all."""
        return bool(cursor.rows(f"SELECT 1 FROM gate WHERE stands IN ('{ASKED}', '{SHUT[ASKED]}') LIMIT 1"))

    def numbers(self, cursor: Cursor, most: int) -> tuple[int, int]:
        """How many gates there are that nobody need ask, and how many must be asked: each at most so many."""

        def some(stands: str) -> str:
            kinds = f"('{stands}', '{SHUT[stands]}')"
            return f"(SELECT count(*) FROM (SELECT 1 FROM gate WHERE stands IN {kinds} LIMIT {most}) AS counted)"

        ((unasked, asked),) = cursor.rows(f"SELECT {some(OPEN)}, {some(ASKED)}")
        return unasked, asked

    def notice(self, cursor: Cursor) -> int:
        """Of gates that were shut, those whose time is over stand open from now on, or are to be asked; how many.

        Claims see by themselves that the time of a gate is over, but they look at each such gate until it was noticed.
        """
        shut = ", ".join(f"'{stands}'" for stands in SHUT.values())
        over = f"stands IN ({shut}) AND shut_until <= {self._database.now_sql} LIMIT {_NOTICED_AT_ONCE}"
        lock = self._database.sql.for_update(keys=False, skip=True)
        sql = f"UPDATE gate SET noticed = shut_until WHERE gate_id IN (SELECT gate_id FROM gate WHERE {over}{lock})"
        return cursor.run(sql, **self._database.bind_now())

    def meter(
        self,
        cursor: Cursor,
        machines: Iterable[str],
        last: str = "",
        levels: Mapping[str, int] | None = None,
        *,
        most: int = AT_ONCE,
        near: bool = False,
    ) -> list[Metered]:
        """The gates with something due that are to be asked, locked, in rotation after `last`; at most so many.

        With `levels` they are the gates of suspects, see `statements.accused`. `near`: none, if the nearest gates do
        not say which, see `gates_due`.
        """
        rows = cursor.rows(
            self._metered(tuple(machines), suspects=levels is not None, near=near),
            gate=last,
            most=most,
            **(levels or {}),
            **self._database.bind_now(),
        )
        if not rows:
            return []
        # Read when the locks are had: whoever held them before may have counted up to a later moment.
        moment = self._moment(cursor)
        gates = {
            str(g): Metered(str(g), epoch, throttles, places, moment, failures, instant(since))
            for g, epoch, throttles, places, failures, since in rows
        }
        for gate_id, budgets in self._budgets(cursor, gates, moment).items():
            gates[gate_id].budgets = budgets
        self._count_in_flight(cursor, [g for g in gates.values() if g.max_in_flight is not None])
        return list(gates.values())

    def _metered(self, machines: tuple[str, ...], *, suspects: bool, near: bool) -> str:
        """The statement of `meter`. A gate that another claim has locked is left to it."""
        known = self._statements.get((machines, suspects, near))
        if known is None:
            database, now = self._database, one_moment(self._database)
            how: dict[str, Any] = {"wanted": ":most", "now": now, "suspects": suspects}
            if near:
                parts = [nearest(database, [self._machines[name] for name in machines], ASKED, name="m0", **how)]
            else:
                parts = [
                    anywhere(database, self._machines[name], ASKED, name=f"m{number}", **how)
                    for number, name in enumerate(machines)
                ]
            end = f"LIMIT :most{database.sql.for_update('g', keys=False, skip=True)}"
            chosen = " UNION ".join(f"SELECT gate_id FROM m{number}" for number in range(len(parts)))
            known = self._statements[machines, suspects, near] = (
                f"WITH RECURSIVE {MOMENT.format(database.now_sql)}, {', '.join(parts)}"
                " SELECT g.gate_id, g.epoch, g.throttles, g.max_in_flight, g.failures, g.failing_since FROM gate g"
                f" WHERE g.gate_id IN ({chosen}) AND (g.metered OR g.throttles > 0) AND {statements.is_open(now)}"
                f" ORDER BY {rotation('g.gate_id')} {end}"
            )
        return known

    def _count_in_flight(self, cursor: Cursor, gates: Sequence[Metered]) -> None:
        if not gates:
            return
        by_id = {g.gate_id: g for g in gates}
        for gate_id, count in steps_in_flight(cursor, f"t.{self._among}", batch=self._ids(by_id)).items():
            by_id[gate_id].in_flight += count

    def settle(self, cursor: Cursor, gates: Sequence[Metered]) -> None:
        """Write back what was taken, and when each is worth asking again."""
        self._spend(
            cursor, [[g.gate_id, b.name, b.level, instant_text(g.now)] for g in gates if g.taken for b in g.budgets]
        )
        waits = [[g.gate_id, text(g.next_at())] for g in gates]
        self._set(cursor, ["next_at"], [row for row in waits if row[1] is not None])
        probes = [g for g in gates if g.half_open and g.taken]
        why = "one call, to see whether the provider is back"
        self._note(cursor, [Change(g.gate_id, "probe", g.next_at(), None, why) for g in probes])

    def passes(self, cursor: Cursor, gate_ids: Collection[str]) -> dict[str, Pass]:
        """What calls carry through gates that were not asked. Where one should have been, no call may leave."""
        if not gate_ids:
            return {}
        self.check(cursor, gate_ids)
        rows = cursor.rows(
            f"SELECT gate_id, epoch, throttles, metered, failures, failing_since FROM gate WHERE {self._among}",
            batch=self._ids(gate_ids),
        )
        # One that was closed since it let the unit through did so under the epoch before.
        return {
            str(g): _pass(g, epoch - bool(throttles), failures, since, _OVER if metered else None)
            for g, epoch, throttles, metered, failures, since in rows
        }

    def failing(self) -> list[Pass]:
        """The gates that no call has come through since one failed, as a call that leaves now finds them."""
        sql = "SELECT gate_id, epoch, failures, failing_since FROM gate WHERE failing_since IS NOT NULL"
        return [_pass(*row) for row in self._database.read(lambda cursor: cursor.rows(sql))]

    def enter(self, gate_id: str, wanted: int, costs: Costs = USUAL) -> tuple[Pass, int] | Closed:
        """Leave for up to so many calls now, besides those that claims made; or until when there is none."""

        def work(cursor: Cursor) -> tuple[Pass, int] | Closed:
            self.ensure(cursor, [gate_id])
            self.check(cursor, [gate_id])
            found = self._locked(cursor, gate_id)
            if found.held_by is not None:
                return Closed(None, f"{gate_id} is held by {found.held_by}: {found.held_reason}")
            if found.closed_until is not None and found.closed_until > found.now:
                return Closed(found.closed_until, f"{gate_id} is closed: {found.closed_reason}")
            health = (found.now, found.failures, found.failing_since)
            gate = Metered(gate_id, found.epoch, found.throttles, None, *health)
            gate.budgets = self._budgets(cursor, [gate_id], found.now).get(gate_id, [])
            if found.next_at is not None and found.next_at > found.now:
                return gate.closed(found.next_at)
            granted = gate.allowed(wanted, costs)
            gate.take(granted, costs)
            gate.refused = None if granted else costs
            self.settle(cursor, [gate])
            return (gate.given(), granted) if granted else gate.closed(gate.next_at())

        answer = self._database.write(work)
        self.checked([gate_id])
        return answer

    # Closing, holding and letting go.

    def close(self, gate_id: str, seconds: float, reason: str, by: str = PROVIDER) -> None:
        """Close a gate for so long; an earlier, later-reaching closing stands. Its budgets begin empty afterwards."""

        def work(cursor: Cursor) -> None:
            self.ensure(cursor, [gate_id])
            found = self._locked(cursor, gate_id)
            until = found.now + timedelta(seconds=min(max(seconds, 0.0), LONGEST))
            if found.closed_until is None or found.closed_until < until:
                self._set(cursor, ["closed_until", "closed_reason"], [[gate_id, instant_text(until), reason]])
                self._empty(cursor, [gate_id], until)
                what = "closed" if by == PROVIDER else "paused"
                self._note(cursor, [Change(gate_id, what, until, by, reason)], found.now)

        self._database.write(work)

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
            below, names = statements.under(prefix)
            rows = cursor.rows(f"SELECT gate_id, held_by FROM gate WHERE {below} ORDER BY gate_id{self._lock}", **names)
            # Whom a person holds is no less held when the credentials turn out to be wrong besides.
            free = [str(g) for g, held in rows if held is None or by not in (FATAL, held)]
            moment = self._moment(cursor)
            now = instant_text(moment)
            self._set(cursor, HELD, [[g, by, reason, now, config] for g in free])
            self._note(cursor, [Change(g, held_as(by), None, by, reason) for g in free], moment)
            if free:
                kind, severity = ("gate.stopped", "critical") if by == FATAL else ("gate.paused", "info")
                told = {"gate": prefix, "by": by, "reason": reason, "gates": len(free)}
                self._alert(cursor, kind, severity, f"{prefix}:{now}", told)
            return len(free)

        return self._database.write(work)

    def resume(self, prefix: str, who: str) -> int:
        """Open a gate and all below it, whatever closed them; their budgets begin empty. How many were not open."""

        def work(cursor: Cursor) -> int:
            below, given = statements.under(prefix)
            rows = cursor.rows(
                f"SELECT gate_id FROM gate WHERE {below} AND (held_by IS NOT NULL OR throttles > 0"
                f" OR closed_until > {self._database.now_sql} OR next_at > {self._database.now_sql})"
                f" ORDER BY gate_id{self._lock}",
                **given,
                **self._database.bind_now(),
            )
            gates, now = [str(r[0]) for r in rows], self._moment(cursor)
            # Since when no call came through stays: nobody has seen one.
            names = [*HELD, "closed_until", "closed_reason", "next_at", "throttles", "failures"]
            self._set(cursor, names, [[g, *([None] * 7), 0, 0] for g in gates])
            self._empty(cursor, gates, now)
            self._note(cursor, [Change(g, "resumed", None, who) for g in gates], now)
            if rows:
                told = {"gate": prefix, "by": who, "gates": len(rows)}
                self._alert(cursor, "gate.resumed", "info", f"{prefix}:{instant_text(now)}", told)
            return len(rows)

        resumed = self._database.write(work)
        self._database.rouse()
        return resumed

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
            why = "the configuration has changed since a fatal error"
            self._note(cursor, [Change(g, "resumed", None, CONFIGURATION, why) for g in gates], now)
            return len(gates)

        return self._database.write(work)


def _pass(gate_id: str, epoch: int, failures: int, since: Any, good_for: float | None = None) -> Pass:
    """What a call carries through a gate that was not asked."""
    failing_since = instant(since)
    troubled = failing_since is not None
    return Pass(str(gate_id), epoch, troubled, good_for=good_for, failures=failures, failing_since=failing_since)

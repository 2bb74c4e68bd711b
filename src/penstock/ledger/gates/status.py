"""Gates as people see them: open or why not, until when, and how much room is left."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from penstock.ledger.gates.budget import FATAL, Budget, breaker_open
from penstock.ledger.gates.in_flight import steps_in_flight
from penstock.ledger.store.database import Cursor, Database, present
from penstock.ledger.store.statements import waiting
from penstock.model.clock import instant, instant_text
from penstock.model.unit import NO_GATE

BREAKER_OPEN = "; the breaker is open, and waiting units are not charged"
COUNTED_AT_MOST = 10_000
"""People are told so many of those that wait behind a gate; who must know them all counts them (see `metrics`)."""


class LimitStatus(Struct, frozen=True):
    """One budget of a gate: what it refills by and holds, and what is there now."""

    name: str
    rate: float
    burst: float
    cost: float
    left: float


class GateStatus(Struct, frozen=True):
    """One gate. `state`: open, busy (its budget is spent), closed, half-open, paused or stopped."""

    gate_id: str
    state: str
    until: datetime | None
    reason: str | None
    by: str | None
    throttles: int
    #: Calls that failed in a row, and since when none has come through (None: the last one did).
    failures: int
    failing_since: datetime | None
    epoch: int
    max_in_flight: int | None
    limits: list[LimitStatus] = []
    #: Steps under way; siblings step as one.
    in_flight: int = 0
    waiting: int = 0


def gate_statuses(
    database: Database,
    cursor: Cursor,
    *,
    counts: bool = False,
    only: Sequence[str] | None = None,
    at_most: int | None = None,
) -> list[GateStatus]:
    """Every gate but the one that needs none, or `only` some; `counts` adds who waits behind it and who is inside.

    With `at_most` the counting of those who wait stops there, for each gate and machine.
    """
    now = present(database, cursor)
    limits = _limits(cursor, now)
    waiting, inside = (_waiting(database, cursor, at_most), steps_in_flight(cursor, "true")) if counts else ({}, {})
    asked = {} if only is None else {"only": json.dumps(list(only))}
    among = "" if only is None else f" AND gate_id IN ({database.sql.listed('only')})"
    rows = cursor.rows(
        "SELECT gate_id, closed_until, closed_reason, next_at, throttles, epoch, max_in_flight, held_by, held_reason,"
        f" failures, failing_since FROM gate WHERE gate_id <> :none{among} ORDER BY gate_id",
        none=NO_GATE,
        **asked,
    )
    found = []
    for gate_id, closed, why, ahead, throttles, epoch, places, held_by, held_reason, failures, failing in rows:
        since = instant(failing)
        probing = breaker_open(throttles, failures) or (throttles > 0 and gate_id not in limits)
        shut = [m for m in (instant(closed), instant(ahead)) if m is not None and m > now]
        until = max(shut, default=None)
        if held_by is not None:
            state, until, reason = ("stopped" if held_by == FATAL else "paused"), None, held_reason
        elif closed is not None and instant(closed) > now:
            state, reason = "closed", why
            if breaker_open(throttles, failures):
                reason = f"{why}{BREAKER_OPEN}"
        elif probing:
            out = "is under way" if until is not None else "goes first"
            state, reason = "half-open", f"one call {out}, to see whether the provider is back"
        elif until is not None:
            state, reason = "busy", "its budget is spent"
        else:
            state, reason = "open", None
            if failures:
                reason = f"{failures} failure{'s' if failures > 1 else ''} in a row since {instant_text(since)}"
        found.append(
            GateStatus(
                gate_id, state, until, reason, held_by, throttles, failures, since, epoch, places,
                limits.get(gate_id, []), inside.get(gate_id, 0), waiting.get(gate_id, 0),
            )
        )  # fmt: skip
    return found


def _limits(cursor: Cursor, now: datetime) -> dict[str, list[LimitStatus]]:
    found: dict[str, list[LimitStatus]] = {}
    for gate_id, name, rate, burst, cost, tokens, filled_at in cursor.rows(
        "SELECT gate_id, name, rate, burst, cost, tokens, filled_at FROM gate_limit ORDER BY gate_id, name"
    ):
        seconds = max(0.0, (now - instant(filled_at)).total_seconds())
        left = min(Budget(name, rate, burst, cost, 0.0).capacity, tokens + rate * seconds)
        found.setdefault(gate_id, []).append(LimitStatus(name, rate, burst, cost, round(left, 3)))
    return found


def due_behind(
    database: Database, cursor: Cursor, table: str, due: str, *, among: str = "true", at_most: int | None = None
) -> Counter[str]:
    """By gate, the units of a machine that a worker could take; `among` is a condition for the gate `g`.

    With `at_most` so many of each are looked at, and no more.
    """
    counts: Counter[str] = Counter()
    for suspects in (False, True):
        ready = f"{waiting(due, 't', suspects=suspects)} AND t.{due} <= {database.now_sql}"
        # Gate by gate, as the index has them: those that are due stand first.
        some = f"SELECT 1 FROM {table} t WHERE t.gate_id = g.gate_id AND {ready} LIMIT {at_most}"
        sql = f"SELECT g.gate_id, (SELECT count(*) FROM ({some}) AS s) FROM gate g WHERE {among}"
        if at_most is None:
            sql = f"SELECT t.gate_id, count(*) FROM {table} t WHERE {ready} GROUP BY t.gate_id"
        for gate_id, count in cursor.rows(sql, **database.bind_now()):
            counts[gate_id] += count
    return counts


def _waiting(database: Database, cursor: Cursor, at_most: int | None) -> Counter[str]:
    counts: Counter[str] = Counter()
    for table, due in cursor.rows("SELECT table_name, due_column FROM machine_definition WHERE driven"):
        counts += due_behind(database, cursor, table, due, among=f"g.gate_id <> '{NO_GATE}'", at_most=at_most)
    return counts

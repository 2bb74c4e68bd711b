"""What became of gates: one row for each change, written with the change. A call is none."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from msgspec import Struct

from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database
from penstock.model.clock import instant, instant_text
from penstock.model.unit import NO_GATE

PROVIDER, BREAKER, CONFIGURATION = "provider", "breaker", "configuration"
"""Who changed a gate where no person did, beside a fatal error (`fatal`)."""
_GIVEN = ("gate_id", "what", "until", "by", "reason")


class Change(NamedTuple):
    """A change of a gate: closed, opened, probe, paused, resumed, stopped or budget."""

    gate_id: str
    what: str
    until: datetime | None = None
    by: str | None = None
    reason: str | None = None


class Changed(Struct, frozen=True):
    """A change of a gate as the log tells it; `epoch` is the gate's afterwards."""

    seq: int
    gate_id: str
    what: str
    at: datetime
    until: datetime | None
    by: str | None
    reason: str | None
    epoch: int


def note(database: Database, cursor: Cursor, at: datetime, changes: Sequence[Change]) -> None:
    """Write changes down, in the transaction that makes them. The gates are changed already."""
    if not changes:
        return
    from penstock.ledger.schema.desk_tables import gate_log

    source = statements.batch(database, {name: gate_log.c[name].type for name in _GIVEN})
    rows = [[c.gate_id, c.what, None if c.until is None else instant_text(c.until), c.by, c.reason] for c in changes]
    cursor.run(
        "INSERT INTO gate_log (gate_id, what, at, until, by, reason, epoch) SELECT n_gate_id, n_what,"
        f" {database.sql.instant('at')}, n_until, n_by, n_reason, g.epoch"
        f" FROM {source} CROSS JOIN gate g WHERE g.gate_id = n_gate_id",
        at=instant_text(at),
        batch=statements.batch_text(rows),
    )


def gate_history(
    database: Database, gate: str, *, most: int, before: int | None = None, until: datetime | None = None
) -> list[Changed]:
    """The newest changes of a gate and of those below it, newest first: `before` a row of it, up to a moment."""
    below, given = statements.under(gate)
    ended = "" if until is None else f" AND l.at <= {database.sql.instant('until')}"
    values = {} if until is None else {"until": instant_text(until)}
    # From the gates, which are few, to the newest rows of each.
    sql = (
        "SELECT l.seq, l.gate_id, l.what, l.at, l.until, l.by, l.reason, l.epoch FROM gate_log l"
        f" WHERE l.gate_id IN (SELECT gate_id FROM gate WHERE {below}) AND l.seq < :before{ended}"
        " ORDER BY l.seq DESC LIMIT :most"
    )
    last = 2**62 if before is None else before
    rows = database.read(lambda cursor: cursor.rows(sql, before=last, most=most, **given, **values))
    return [_changed(row) for row in rows]


class Stood(NamedTuple):
    """How a gate stood. `told`: the last change of its state by then; None: none is known. Its budget is no state."""

    gate_id: str
    told: Changed | None
    #: It had been closed for an answer: a call goes first, unless a budget lets it open gently.
    answered: bool
    metered: bool


def gates_as_of(database: Database, cursor: Cursor, moment: datetime) -> list[Stood]:
    """Every gate of now as it stood then; whether it has a budget is as it is now."""
    rows = cursor.rows(
        "SELECT g.gate_id, g.metered,"
        " l.epoch > COALESCE((SELECT max(e.epoch) FROM gate_log e WHERE e.gate_id = l.gate_id AND e.seq < l.seq), 0),"
        " l.seq, l.what, l.at, l.until, l.by, l.reason, l.epoch FROM gate g LEFT JOIN gate_log l"
        " ON l.seq = (SELECT max(b.seq) FROM gate_log b WHERE b.gate_id = g.gate_id AND b.what <> 'budget'"
        f" AND b.at <= {database.sql.instant('moment')}) WHERE g.gate_id <> :none ORDER BY g.gate_id",
        moment=instant_text(moment),
        none=NO_GATE,
    )
    return [
        Stood(str(gate), None if seq is None else _changed((seq, gate, *rest)), bool(answered), bool(metered))
        for gate, metered, answered, seq, *rest in rows
    ]


def known_from(cursor: Cursor) -> datetime | None:
    """The oldest change that is still told; None where there is none."""
    ((oldest,),) = cursor.rows("SELECT min(at) FROM gate_log")
    known: datetime | None = instant(oldest)
    return known


def _changed(row: Sequence[Any]) -> Changed:
    seq, gate, what, at, ends, *rest = row
    return Changed(seq, gate, what, instant(at), instant(ends), *rest)

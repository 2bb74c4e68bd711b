"""The run lock: one query runs at a time, over all processes and machines. And what else keeps a query from running.

The lock is the one place behind the gate `queries/run`: a claim holds it, leased and fenced, and it falls with the
claim. The view `run_lock` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.lifecycles.queries.decide import Seen
from penstock.lifecycles.queries.machine import Query, S, query
from penstock.lifecycles.queries.settings import client_gate, query_gate
from penstock.model.clock import instant

if TYPE_CHECKING:
    from penstock.ledger.gates.status import GateStatus
    from penstock.ledger.ledger import Ledger
    from penstock.ledger.store.database import Cursor
    from penstock.operations.gates import GateRow
    from penstock.operations.reader import Reader

_SHUT = frozenset({"closed", "paused", "stopped"})
_PERSON = "operator:"


class RunLock(Struct, frozen=True):
    """Who holds the lock, and with which query."""

    held_by: str
    host: str
    pid: int
    query_key: str
    since: datetime | None

    def __str__(self) -> str:
        return f"worker {self.held_by} on {self.host} (process {self.pid}) runs {self.query_key}"


def holder(cursor: Cursor) -> RunLock | None:
    """Who holds the lock now."""
    rows = cursor.rows("SELECT held_by, host, pid, query_key, held_since FROM run_lock ORDER BY held_since LIMIT 1")
    for held_by, host, pid, key, since in rows:
        return RunLock(held_by, host, pid, key, instant(since))
    return None


def running(ledger: Ledger | Reader, but: str) -> list[Query]:
    """Queries that say that they run, but for one: whoever holds the lock knows that they do not."""
    sql = f"SELECT unit_id FROM {query.table} WHERE status = :running AND unit_id <> :but AND claimed_by IS NULL"
    rows = ledger.read(lambda cursor: cursor.rows(sql, running=str(S.RUNNING), but=but))
    return ledger.get_many(query, [row[0] for row in rows]) if rows else []


def peek(unit: Query, ledger: Ledger | Reader) -> Seen:
    """What the ledger says of a query whose turn it is: a gate that is shut, or runs that their workers left behind."""
    closed = closed_gate(ledger, unit.query_key, unit.client)
    return Seen(*closed) if closed is not None else Seen(abandoned=running(ledger, but=unit.unit_id))


def shut_gates(ledger: Ledger | Reader, gates: Sequence[str]) -> dict[str, GateStatus]:
    """Those of these gates that let nobody through: closed for a time, paused by a person, or stopped."""
    from penstock.ledger.gates.status import gate_statuses

    found = ledger.read(lambda cursor: gate_statuses(ledger.database, cursor, only=gates))
    return {gate.gate_id: gate for gate in found if gate.state in _SHUT}


def shut_then(reader: Reader, at: datetime) -> Mapping[str, GateRow]:
    """All gates that let nobody through at that moment."""
    from penstock.operations.gates import gates_then

    return {gate.gate: gate for gate in gates_then(reader.database, at)[0] if gate.state in _SHUT}


def closed_gate(ledger: Ledger | Reader, key: str, client: str) -> tuple[str, datetime | None] | None:
    """Why this query of that client may not run, and until when; None: nothing keeps it, or nobody has come to it yet.

    A person who paused it comes before its client.
    """
    return closed_among(shut_gates(ledger, [query_gate(key), client_gate(client)]), key, client)


def closed_among(shut: Mapping[str, GateStatus | GateRow], key: str, client: str) -> tuple[str, datetime | None] | None:
    """The same, where it is known which gates are shut."""
    mine, its = query_gate(key), client_gate(client)
    if mine in shut:
        return closed_words("it", shut[mine]), shut[mine].until
    if its in shut:
        return closed_words(f"its client {client}", shut[its]), shut[its].until
    return None


def closed_words(what: str, gate: GateStatus | GateRow) -> str:
    """That it is closed, by whom and why: `its client shop is paused by ada: too many calls`."""
    reason = gate.reason or "no reason was given"
    if gate.state == "paused":
        return f"{what} is paused by {(gate.by or 'somebody').removeprefix(_PERSON)}: {reason}"
    paused = f"paused by {_PERSON}"
    if reason.startswith(paused):
        # A pause for a time closes the gate for it.
        return f"{what} is paused by {reason.removeprefix(paused)}"
    return f"{what} is {gate.state}: {reason}"

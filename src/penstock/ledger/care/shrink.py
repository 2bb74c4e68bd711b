"""Shrinking the history, a batch of units at a time and under a permit: into baselines, into graves, and to nothing.

A living unit keeps its newest row that is old: a *baseline*, which stands for those before it. A unit that is gone
keeps its death: a *grave*, which tells by itself how the unit stood and since when. A grave may go too, in the end.

Whatever goes stays counted in `flow_hour`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from penstock.ledger.history import HORIZON
from penstock.ledger.past import BASELINE
from penstock.ledger.roll_up import locked, newest, take_out
from penstock.ledger.schema.columns import readable
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database
from penstock.model.clock import instant_text
from penstock.model.spoken import counted

LOG = "transition_log"
_CUT: dict[str, statements.SqlType] = {"unit_id": statements.TEXT, "seq": sa.BigInteger()}


def old(at: str, row: str = "l.") -> str:
    """The condition for a row that is older than `at`; a grave is as old as what it stands for."""
    return f"COALESCE({row}since, {row}at) < {at}"


def shrink(database: Database, cursor: Cursor, machine: str, permit: str, cuts: Iterable[Sequence[Any]]) -> int:
    """Of each unit the rows before a cut go, and the row at the cut stands for them; returns how many went.

    `cuts` are pairs of a unit's id and the number of a row.
    """
    source = statements.batch(database, _CUT)
    # CROSS JOIN: from the batch to the history. SQLite would rather go through the history once for each row of it.
    find = (
        "SELECT l.unit_id, l.seq, l.to_status, l.actor, l.reason,"
        f" (SELECT count(*) FROM {LOG} o WHERE o.machine = :machine AND o.unit_id = l.unit_id"
        f" AND o.seq < l.seq) FROM {source} CROSS JOIN {LOG} l"
        " WHERE l.machine = :machine AND l.unit_id = n_unit_id AND l.seq = n_seq"
    )
    text = statements.batch_text([list(cut) for cut in cuts])
    rows = [row for row in cursor.rows(find, batch=text, machine=machine) if row[-1]]
    living = [row for row in rows if row[2] is not None]
    deleted = _delete(
        database,
        cursor,
        machine,
        [(row[0], row[1]) for row in rows],
        # A baseline tells of nothing any more; a grave tells of the death.
        counted_out=[(row[0], row[1] - (row[2] is None)) for row in rows],
    )
    _baselines(database, cursor, machine, permit, living)
    return deleted


def fold(
    database: Database,
    cursor: Cursor,
    machine: str,
    table: str,
    unit_ids: Sequence[str],
    *,
    before: datetime | None = None,
) -> int:
    """Of units that are gone nothing stays but the grave; returns how many rows went.

    `before`: only where all that goes is older; None: whatever its age.
    """
    source = statements.batch(database, {"unit_id": statements.TEXT})
    aged = "" if before is None else f" AND l.since < {database.sql.instant('before')}"
    given = {} if before is None else {"before": instant_text(before)}
    cuts = cursor.rows(
        f"SELECT l.unit_id, max(l.seq) FROM {source} CROSS JOIN {LOG} l WHERE l.machine = :machine"
        f" AND l.unit_id = n_unit_id AND l.to_status IS NULL{aged}"
        f" AND NOT EXISTS (SELECT 1 FROM {table} u WHERE u.unit_id = n_unit_id) GROUP BY l.unit_id",
        batch=statements.batch_text([[unit_id] for unit_id in unit_ids]),
        machine=machine,
        **given,
    )
    return _delete(
        database,
        cursor,
        machine,
        [(unit_id, seq) for unit_id, seq in cuts],
        counted_out=[(unit_id, seq - 1) for unit_id, seq in cuts],
    )


def graves(at: str) -> str:
    """The condition for graves `l` that are older than `at`, and before which nothing is told of their unit."""
    return (
        f"l.to_status IS NULL AND l.since IS NOT NULL AND l.at < {at} AND NOT EXISTS (SELECT 1 FROM {LOG} o"
        " WHERE o.machine = l.machine AND o.unit_id = l.unit_id AND o.seq < l.seq)"
    )


def drop(database: Database, cursor: Cursor, machine: str, found: Iterable[Sequence[Any]], before: datetime) -> int:
    """Graves go, pairs of an id and a number; that they may be missing before a moment is remembered.

    The newest row of all stays, whatever it is: SQLite would draw its number again.
    """
    last = newest(cursor, locked(database, cursor).seq)
    cuts = [(unit_id, seq) for unit_id, seq in found if seq < last]
    deleted = _delete(database, cursor, machine, [(u, seq + 1) for u, seq in cuts], counted_out=cuts)
    if deleted:
        cursor.run(
            "INSERT INTO penstock_meta (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value ="
            " CASE WHEN excluded.value > penstock_meta.value THEN excluded.value ELSE penstock_meta.value END",
            name=f"{HORIZON}{machine}",
            value=instant_text(before),
        )
    return deleted


def _delete(
    database: Database,
    cursor: Cursor,
    machine: str,
    cuts: Sequence[tuple[str, int]],
    *,
    counted_out: Sequence[tuple[str, int]],
) -> int:
    """The rows before each cut go; those up to each of `counted_out` are counted as pruned."""
    if not cuts:
        return 0
    source, key = statements.batch(database, _CUT), database.sql.history_key
    take_out(database, cursor, machine, source, statements.batch_text([list(cut) for cut in counted_out]))
    return cursor.run(
        f"DELETE FROM {LOG} WHERE ({key.replace('l.', '')}) IN (SELECT {key} FROM {source} CROSS JOIN {LOG} l"
        " WHERE l.machine = :machine AND l.unit_id = n_unit_id AND l.seq < n_seq)",
        batch=statements.batch_text([list(cut) for cut in cuts]),
        machine=machine,
    )


def _baselines(database: Database, cursor: Cursor, machine: str, permit: str, rows: Sequence[Sequence[Any]]) -> None:
    """The newest of the old rows stays, and now stands for those before it."""
    types: dict[str, statements.SqlType] = {"unit_id": sa.Text(), "seq": sa.BigInteger(), "reason": sa.Text()}
    cursor.run(
        f"UPDATE {LOG} SET from_status = NULL, trigger = NULL, actor = :actor, reason = n_reason"
        f" FROM {statements.batch(database, types)}"
        f" WHERE {LOG}.machine = :machine AND {LOG}.unit_id = n_unit_id AND {LOG}.seq = n_seq",
        machine=machine,
        actor=f"{BASELINE}{permit}",
        batch=statements.batch_text([[row[0], row[1], _told(row)] for row in rows]),
    )


def _told(row: Sequence[Any]) -> str:
    """What a baseline says of the row it stands for, and of those before it."""
    *_, actor, reason, before = row
    return readable(f"baseline, {counted(before, 'row')} before it pruned; {actor}: {reason or ''}")

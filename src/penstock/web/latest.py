"""The newest rows of the history, over all machines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from penstock.ledger.flow import newest_rows
from penstock.model.clock import instant, instant_text

if TYPE_CHECKING:
    from penstock.ledger.store.database import Cursor
    from penstock.operations.reader import Reader


_LOOKED_AT = 300


class Latest(Struct, frozen=True):
    """One change of a unit."""

    at: datetime
    machine: str
    unit_id: str
    source: str | None
    target: str | None
    reason: str | None


def latest_transitions(reader: Reader, at: datetime | None, most: int) -> list[Latest]:
    """The newest changes, or those before a moment."""

    def rows(cursor: Cursor, where: str, moment: str = "at", **given: Any) -> Sequence[Any]:
        columns = "at, machine, unit_id, from_status, to_status, reason"
        sql = f"SELECT {columns} FROM transition_log WHERE {where} ORDER BY {moment} DESC, seq DESC LIMIT :most"
        return cursor.rows(sql, most=most, **given)

    def work(cursor: Cursor) -> Sequence[Any]:
        if at is not None:
            return rows(cursor, f"at <= {reader.database.sql.instant('before')}", before=instant_text(at))
        # By their numbers, and not by the index of moments, which SQLite would take: many may be of one moment.
        found = rows(cursor, "seq > :after", "COALESCE(at, at)", after=newest_rows(cursor, _LOOKED_AT))
        return found if len(found) == most else rows(cursor, "1 = 1")  # few: the newest were pruned, or there are few

    return [Latest(instant(row[0]), *row[1:]) for row in reader.read(work)]

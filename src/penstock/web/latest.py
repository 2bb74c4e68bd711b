"""The newest rows of the history, over all machines."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.model.clock import instant, instant_text

if TYPE_CHECKING:
    from penstock.operations.reader import Reader


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
    before = "" if at is None else f"WHERE at <= {reader.database.sql.instant('before')} "
    given = {} if at is None else {"before": instant_text(at)}
    sql = (
        f"SELECT at, machine, unit_id, from_status, to_status, reason FROM transition_log {before}"
        "ORDER BY at DESC, seq DESC LIMIT :most"
    )
    found = reader.read(lambda cursor: cursor.rows(sql, most=most, **given))
    return [Latest(instant(row[0]), *row[1:]) for row in found]

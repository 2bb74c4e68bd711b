"""The harness's own view of the ledger, in SQL and through the drivers alone: nothing of Penstock's is asked."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
from pysqlite3 import dbapi2

ENDED = ("SENT", "FAILED")
#: What may follow what in a parcel's history; None is before its birth.
LEGAL = {
    (None, "QUEUED"),
    ("QUEUED", "SENDING"),
    ("SENDING", "SENT"),
    ("SENDING", "QUEUED"),
    ("SENDING", "FAILED"),
}
AWAY = (psycopg.Error, dbapi2.Error)
"""What reading raises while the database is away."""
_OPEN = "status NOT IN ('SENT', 'FAILED') AND parked_at IS NULL"


class Books:
    """Reads the ledger at `place`, a file of SQLite or an address of PostgreSQL."""

    def __init__(self, place: Path | str) -> None:
        self._place = place
        self._connection: Any = None

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(*AWAY):
                self._connection.close()
            self._connection = None

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Raises one of AWAY while the database is away; the next call connects anew."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            found: list[tuple[Any, ...]] = self._connection.execute(sql).fetchall()
        except AWAY:
            self.close()
            raise
        return found

    def _connect(self) -> Any:
        if isinstance(self._place, Path):
            return dbapi2.connect(f"file:{self._place}?mode=ro", uri=True, timeout=10, isolation_level=None)
        return psycopg.connect(self._place, autocommit=True, connect_timeout=5)

    def count(self, condition: str) -> int:
        return int(self.rows(f"SELECT count(*) FROM parcel WHERE {condition}")[0][0])

    def open(self) -> int:
        """Parcels that have neither ended nor been parked."""
        return self.count(_OPEN)

    def ended(self) -> int:
        return self.count("status IN ('SENT', 'FAILED')")

    def parked(self) -> dict[str, str]:
        """Parked parcels and why."""
        return dict(self.rows("SELECT unit_id, parked_reason FROM parcel WHERE parked_at IS NOT NULL"))

    def statuses(self) -> dict[str, str]:
        return dict(self.rows("SELECT unit_id, status FROM parcel"))

    def held_by(self, pids: Iterable[int]) -> set[str]:
        """What the processes of these ids hold, dead or alive, until somebody takes it over."""
        listed = ", ".join(map(str, pids)) or "0"
        sql = f"SELECT p.unit_id FROM parcel p JOIN worker w ON w.id = p.claimed_by WHERE w.pid IN ({listed})"
        return {row[0] for row in self.rows(sql)}

    def ends(self) -> dict[str, float]:
        """When each parcel ended, in seconds of the wall clock that the ledger goes by."""
        sql = "SELECT unit_id, max(at) FROM transition_log WHERE machine = 'parcel' AND to_status IN ('SENT', 'FAILED')"
        return {unit: _seconds(at) for unit, at in self.rows(f"{sql} GROUP BY unit_id")}

    def last_end(self) -> tuple[int, float]:
        """How many have ended, and when the last did."""
        sql = (
            "SELECT count(*), max(at) FROM transition_log WHERE machine = 'parcel' AND to_status IN ('SENT', 'FAILED')"
        )
        count, at = self.rows(sql)[0]
        return int(count), _seconds(at) if at is not None else 0.0

    def broken_histories(self, expected: Collection[str]) -> list[str]:
        """Parcels whose history is not one legal path from birth to where they are now, one line each."""
        stories: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        sql = (
            "SELECT unit_id, from_status, to_status, version FROM transition_log WHERE machine = 'parcel' ORDER BY seq"
        )
        for unit, *entry in self.rows(sql):
            stories[unit].append(tuple(entry))
        now = self.statuses()
        found = [f"{unit}: it has no history" for unit in expected if unit not in stories]
        for unit, story in stories.items():
            error = _error_of(story, now.get(unit))
            if error is not None:
                found.append(f"{unit}: {error}")
        return found


def _error_of(story: list[tuple[Any, ...]], now: str | None) -> str | None:
    """What is wrong with a history, or None. PostgreSQL numbers rows in no order of commits: versions give it."""
    story = sorted(story, key=lambda entry: entry[2])
    before, last = None, None
    for source, target, version in story:
        if source != before or (source, target) not in LEGAL:
            return f"{source} to {target} after {before}"
        if last is not None and version <= last:
            return f"version {version} after {last}"
        if before in ENDED:
            return f"it went on after {before}"
        before, last = target, version
    return None if before == now else f"its history ends with {before}, and it is {now}"


def _seconds(at: Any) -> float:
    moment = at if isinstance(at, datetime) else datetime.fromisoformat(at)
    return moment.timestamp()

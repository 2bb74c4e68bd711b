"""How far a run has come: what its partitions and chunks tell, now or at a moment of the past."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from penstock.ledger.past import BASELINE
from penstock.ledger.store.database import Cursor
from penstock.lifecycles.harvest.chunk.machine import C
from penstock.lifecycles.harvest.partition.machine import P, Partition
from penstock.lifecycles.harvest.queries import partitions_of
from penstock.lifecycles.harvest.run.machine import R, Run, harvest_run

if TYPE_CHECKING:
    from penstock.operations.reader import Reader


@dataclass(frozen=True, slots=True)
class Progress:
    """Records of a run's present part, how fast, and when that part will be over; and how its partitions have ended.

    Of the past, None is what nobody knows any more.
    """

    fetched: int | None
    expected: int
    #: Records of the present part that are done: fetched, or consolidated.
    done: int | None
    #: Records per second of what is going on; None while nothing is, and of the past.
    rate: float | None
    eta: datetime | None
    #: Partitions that are completed, have failed, and are known to be whole.
    completed: int | None
    failed: int | None
    verified: int | None

    @property
    def share(self) -> float | None:
        """How much of the records have been fetched."""
        if self.fetched is None:
            return None
        return 1.0 if self.expected == 0 else min(1.0, self.fetched / self.expected)

    def says(self) -> str:
        """As a phrase for people."""
        if self.fetched is None or self.share is None:
            return f"{self.expected:,} records are expected; how many had been fetched is not known any more"
        pace = "" if self.rate is None else f", {self.rate:,.0f} records/s"
        return f"{self.fetched:,} of {self.expected:,} records ({self.share:.0%}){pace}"


def progress_of(reader: Reader, run: Run, now: datetime) -> Progress:
    """How far a run has come by now."""
    found = partitions_of(reader, run.run_id)
    fetched = sum(records_of(p) or 0 for p in found)
    rate, left, done = None, 0, fetched
    if run.status is R.WORKERS_RUNNING:
        begun = [p.begun_at for p in found if p.begun_at is not None]
        rate = _rate(sum(p.records for p in found), min(begun, default=now), now)
        left = sum(max(0, p.expected_records - p.next_offset) for p in found if p.status is not P.FAILED)
    elif run.status is R.CONSOLIDATING and run.consolidation_started_at is not None:
        done = run.records_consolidated + run.records_rejected
        rate = _rate(done, run.consolidation_started_at, now)
        left = max(0, fetched - done)
    eta = now + timedelta(seconds=left / rate) if rate else None
    ended = (run.completed_workers, run.failed_workers, run.verified_workers)
    return Progress(fetched, run.expected_records, done, rate, eta, *ended)


def progress_then(reader: Reader, run: Run) -> Progress:
    """How far a run had come at the moment of a reader that has one, as far as its partitions still tell."""
    found = partitions_of(reader, run.run_id)
    whole = len(found) == run.expected_workers
    fetched = _sum(map(records_of, found)) if whole else None
    ended: list[int | None] = [run.completed_workers, run.failed_workers, run.verified_workers]
    if whole and run.status is not R.COMPLETED:
        ended = [sum(p.status is state for p in found) for state in (P.COMPLETED, P.FAILED)]
        ended.append(sum(p.verified_at is not None for p in found))
    return Progress(fetched, run.expected_records, None, None, None, *ended)


def records_of(partition: Partition) -> int | None:
    """Its distinct records, or those received so far."""
    return partition.records if partition.found_records is None else partition.found_records


@dataclass(frozen=True, slots=True)
class Chunks:
    """How many chunks a run had, and how they had ended; None is what nobody knows any more."""

    expected: int | None
    completed: int | None
    failed: int | None


def chunks_of(run: Run) -> Chunks:
    """As the run counts them."""
    return Chunks(run.expected_chunks, run.completed_chunks, run.failed_chunks)


def chunks_then(reader: Reader, run: Run) -> Chunks:
    """Those of the moment of a reader that has one, if none was pruned since."""
    if run.status is R.COMPLETED:
        return chunks_of(run)
    own = f"run_id = {reader.database.sql.identifier('run_id')}"
    counting = f"SELECT status, count(*) FROM harvest_chunk WHERE {own} GROUP BY status"
    # What was pruned counts as more than one.
    begun = (
        f"SELECT sum(CASE WHEN actor LIKE '{BASELINE}%' THEN 2 WHEN to_status = :begun THEN 1 ELSE 0 END)"
        " FROM transition_log WHERE machine = :machine AND unit_id = :run_id"
    )
    given = {"machine": harvest_run.name, "begun": str(R.CONSOLIDATING)}

    def work(cursor: Cursor) -> Chunks:
        counts = {str(state): int(n) for state, n in cursor.rows(counting, run_id=run.unit_id)}
        ((times,),) = cursor.rows(begun, run_id=run.unit_id, **given)
        # A consolidation that begins again does not expect chunks that were set aside before.
        expected = sum(counts.values()) if int(times) < 2 or not counts else run.expected_chunks  # noqa: PLR2004 - again
        return Chunks(expected, counts.get(C.DONE, 0), counts.get(C.FAILED, 0))

    return reader.read(work)


def _sum(values: Iterable[int | None]) -> int | None:
    """Of all of them; None where one is not known."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _rate(records: int, since: datetime, now: datetime) -> float | None:
    seconds = (now - since).total_seconds()
    return records / seconds if seconds > 0 and records else None

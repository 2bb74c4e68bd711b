"""The job that sweeps what stages left behind; a program with staged tables gives it a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from penstock.ledger.stage import AT_MOST, GRACE, Staged, sweep
from penstock.worker.flow import Io
from penstock.worker.schedule import Job, JobResult, Schedule

SWEEP_STAGES = "sweep-stages"


def sweep_stages(staged: Sequence[Staged], grace: timedelta = GRACE, at_most: int = AT_MOST) -> Job:
    """The job `sweep-stages`. A run removes at most so many rows, and comes back at once while there are more."""

    async def job(schedule: Schedule, io: Io) -> JobResult:  # noqa: ARG001 - the shape of a job
        swept = await io.ledger(lambda ledger: sweep(ledger.database, staged, grace=grace, at_most=at_most))
        return JobResult(f"swept {swept.batches:,} batches, {swept.rows:,} rows", again=swept.more)

    return job

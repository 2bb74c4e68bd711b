"""The kernel's own jobs, by the names that a schedule gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from penstock.ledger.care.prune import Ages, Pruner
from penstock.ledger.stage import Staged
from penstock.model.errors import UsageError
from penstock.settings.config import Config
from penstock.worker.flow import Io
from penstock.worker.schedule import Job, JobResult, Schedule
from penstock.worker.sweep import SWEEP_STAGES, sweep_stages

PRUNE = "prune"


def kernel_jobs(config: Config | None = None, staged: Sequence[Staged] = ()) -> dict[str, Job]:
    """Name to job; without a configuration, with the settings' defaults."""
    return {PRUNE: prune({} if config is None else config.prune()), SWEEP_STAGES: sweep_stages(staged)}


async def unconfigured(schedule: Schedule, _: Io) -> JobResult:
    """Stands for a job that is made of the configuration, where only its name is asked for."""
    msg = f"{schedule.job} cannot run without a configuration"
    raise UsageError(msg)


def prune(kept: Mapping[str, timedelta | None]) -> Job:
    """The job `prune`: what is older than its age goes. Interrupted, it has done a part, and the next run the rest."""

    async def job(schedule: Schedule, io: Io) -> JobResult:
        who = f"schedule:{schedule.name}"
        gone = await io.ledger(lambda ledger: Pruner(ledger.database, Ages(kept), who=who, rng=io.rng).prune())
        told = ", ".join(f"{rows:,} of {table}" for table, rows in sorted(gone.items()) if rows)
        return JobResult(f"pruned {told or 'nothing'}")

    return job

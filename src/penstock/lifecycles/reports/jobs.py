"""The periodic jobs of reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.app.lifecycle import job
from penstock.lifecycles.reports.settings import ReportSettings

if TYPE_CHECKING:
    from penstock.app.ports import Ports
    from penstock.worker.flow import Io
    from penstock.worker.job import JobResult
    from penstock.worker.schedule_unit import Schedule

UPDATE, PRUNE = "update-report-datasets", "prune-report-datasets"


@job(UPDATE, "Makes the datasets of every account's retention window.")
async def update_datasets(settings: ReportSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:
    """It can be interrupted at any point: the next run makes what is missing."""
    import structlog

    from penstock.lifecycles.reports import hourly
    from penstock.lifecycles.reports.datasets import update_report_datasets
    from penstock.worker.job import JobResult

    who, now, streams = f"schedule:{schedule.name}", io.now(), hourly.streams(settings, ports.clock)
    done = await io.ledger(lambda ledger: update_report_datasets(ledger, settings, now, who=who, streams=streams))
    log = structlog.get_logger()
    log.info("report.datasets", job=UPDATE, accounts=done.accounts, datasets=done.born, woken=done.woken)
    woken = f", {done.woken:,} woken because their accounts are back" if done.woken else ""
    off = "".join(f"; {line}" for line in await io.run(warnings, settings))
    return JobResult(f"{done.born:,} datasets of {done.accounts:,} accounts made{woken}{off}")


@job(PRUNE, "Removes datasets beyond their retention, with their history and rows.")
async def prune_datasets(settings: ReportSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:  # noqa: ARG001 - one shape
    """Interrupted, it has done a part, and the next run does the rest."""
    from penstock.lifecycles.reports.datasets import prune_report_datasets
    from penstock.worker.job import JobResult

    who, now = f"schedule:{schedule.name}", io.now()
    gone = await io.ledger(lambda ledger: prune_report_datasets(ledger, settings, now, who=who, rng=io.rng))
    return JobResult(f"{gone:,} datasets beyond their retention pruned")


def warnings(settings: ReportSettings) -> list[str]:
    """What of the configuration is not in force: hourly, for accounts whose hours have no source."""
    from penstock.lifecycles.reports import hourly

    lacking = hourly.sourceless(settings)
    return [f"{hourly.told(lacking)}; set reports.hourly_offsets = [] if this is intended"] if lacking else []

"""The program `penstock.lifecycles.reports:app`: reports as `penstock.toml` configures them."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from penstock.app.app import App
from penstock.connectors.amazon_ads.client import DOWNLOAD_HOSTS, Amazon
from penstock.connectors.http.download import Allowed
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.collection import COLLECT, SCHEDULE, collect_job
from penstock.lifecycles.reports import hours, job, prune
from penstock.lifecycles.reports.flow import Reports
from penstock.lifecycles.reports.machine import machine
from penstock.lifecycles.reports.settings import SETTINGS, read_accounts, read_connections, read_settings
from penstock.lifecycles.reports.sources import Source
from penstock.lifecycles.reports.tables import DATA_TABLES, PERFORMANCE, VIEWS
from penstock.model.clock import Clock, SystemClock
from penstock.raw.sink import RawSink
from penstock.settings.config import Config
from penstock.worker.flow import Io
from penstock.worker.schedule import Job, JobResult, Schedule

log = structlog.get_logger()


def make_flow(config: Config, clock: Clock) -> Reports:
    """The flow of a configuration; accounts of one region share its connections."""
    connections = read_connections(config)
    allowed = Allowed(DOWNLOAD_HOSTS, private_hosts=tuple(config["reports.private_downloads"]))
    regions = {own.region: Amazon(own.region, clock, downloads=allowed) for own in connections.values()}
    sources, streams = {}, hours.read_streams(config, clock)
    for name, account in read_accounts(config).items():
        own = connections[name]
        ads = regions[own.region].profile(account.profile_id, own.credentials)
        sources[name] = Source(ads, streams.get(name))
    return Reports(read_settings(config), sources, RawSink(config["raw.url"]), close=list(regions.values()))


def _flows(config: Config) -> Sequence[Reports]:
    return [make_flow(config, SystemClock())]


def update_job(config: Config) -> Job:
    """The job `update-report-datasets`."""
    accounts, settings = read_accounts(config), read_settings(config)
    streams = hours.read_streams(config, SystemClock())

    async def run(schedule: Schedule, io: Io) -> JobResult:
        who, now = f"schedule:{schedule.name}", io.now()

        def update(ledger: Ledger) -> job.Updated:
            return job.update_report_datasets(ledger, accounts, settings, now, who=who, streams=streams)

        done = await io.ledger(update)
        log.info("report.datasets", job=job.JOB, accounts=done.accounts, datasets=done.born, woken=done.woken)
        woken = f", {done.woken:,} of accounts that are back" if done.woken else ""
        off = "".join(f"; {line}" for line in await io.run(warnings, config))
        return JobResult(f"{done.born:,} datasets of {done.accounts:,} accounts made{woken}{off}")

    return run


def warnings(config: Config) -> list[str]:
    """What of the configuration is not in force, in one line each: hourly, for accounts whose hours have no source."""
    lacking = hours.sourceless(config)
    return [f"{hours.told(lacking)}; reports.hourly_offsets = [] says that this is meant"] if lacking else []


def prune_job(config: Config) -> Job:
    """The job `prune-report-datasets`."""
    settings = read_settings(config)

    async def run(schedule: Schedule, io: Io) -> JobResult:
        who, now = f"schedule:{schedule.name}", io.now()
        gone = await io.ledger(lambda ledger: prune.prune_report_datasets(ledger, settings, now, who=who, rng=io.rng))
        return JobResult(f"{gone:,} datasets beyond their retention pruned")

    return run


app = App(
    machines=[machine],
    data_tables=DATA_TABLES,
    views=VIEWS,
    staged=[PERFORMANCE],
    configured=_flows,
    settings=SETTINGS,
    warnings=warnings,
    configured_jobs={job.JOB: update_job, prune.JOB: prune_job, COLLECT: collect_job},
    schedules=[
        Schedule(name=job.JOB, job=job.JOB, every="5m", settings_version="usual"),
        Schedule(name=prune.JOB, job=prune.JOB, every="1h", jitter="30m", settings_version="usual"),
        Schedule(name="sweep-stages", job="sweep-stages", every="10m", settings_version="usual"),
        SCHEDULE,
    ],
)

"""The program `penstock.lifecycles.harvest:app`: the feeds that `penstock.toml` configures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.app.app import App
from penstock.connectors.nivoda.client import Nivoda
from penstock.connectors.watermark import Blob, open_blob
from penstock.lifecycles.harvest import prune, reprice
from penstock.lifecycles.harvest import settings as configured
from penstock.lifecycles.harvest.chunks import Chunks
from penstock.lifecycles.harvest.consolidate import Consolidator
from penstock.lifecycles.harvest.flow import Configured, Partitions
from penstock.lifecycles.harvest.machine import MACHINES
from penstock.lifecycles.harvest.repricing import Priced
from penstock.lifecycles.harvest.runs import JOB, Runs, harvest_job
from penstock.lifecycles.harvest.sources import NivodaSource, nivoda_feed
from penstock.lifecycles.harvest.tables import DATA_TABLES, raw_diamonds_nivoda
from penstock.lifecycles.harvest.watermark import publisher, repairer
from penstock.model.cadence import parse_span
from penstock.model.clock import Clock, SystemClock
from penstock.model.limits import limits_of
from penstock.settings.config import Config
from penstock.worker.flow import Io
from penstock.worker.outbox import Subscriber
from penstock.worker.schedule import Job, JobResult, Schedule


def make_feeds(config: Config, clock: Clock) -> dict[str, Configured]:
    """The feeds of a configuration, each with connections of its own. Raises UsageError for what cannot be one."""
    limits = (*config.providers(), *configured.providers(config))
    found = {}
    for name, own in config.section("feeds").items():
        credentials, api = configured.read_login(own)
        gate = configured.gate_of(name)
        found[name] = Configured(
            nivoda_feed(name, own["price_unit"]),
            NivodaSource(Nivoda(credentials, clock, api=api), own["filters"] or {}),
            gate,
            metered=limits_of(gate, limits) is not None,
        )
    return found


def make_flows(config: Config, clock: Clock) -> Sequence[Any]:
    """The flows of a configuration."""
    feeds = make_feeds(config, clock)
    plain = {name: own.feed for name, own in feeds.items()}
    return [
        Runs(Consolidator(plain, configured.read_consolidation(config))),
        Partitions(configured.read_settings(config), feeds),
        Chunks(plain, at_once=config["harvest.chunks_at_once"]),
    ]


def make_blobs(config: Config) -> dict[str, Blob]:
    """Where the feeds' watermarks are published, of those that have such a place. Raises UsageError."""
    feeds = config.section("feeds").items()
    given = {name: (own["watermark"], own["watermark_options"]) for name, own in feeds}
    return {name: open_blob(address, options) for name, (address, options) in given.items() if address is not None}


def _subscribers(config: Config) -> Sequence[Subscriber]:
    return [publisher(make_blobs(config).get)]


def _job(config: Config) -> Job:
    """The job `harvest`, with connections that live as long as a scan."""
    rules, blobs = configured.read_rules(config), make_blobs(config)

    async def run(schedule: Schedule, io: Io) -> JobResult:
        feeds = make_feeds(config, SystemClock())
        try:
            job = harvest_job(feeds, dict.fromkeys(feeds, rules), repairer(blobs.get))
            return await job(schedule, io)
        finally:
            for feed in feeds.values():
                await feed.source.close()

    return run


def _prune_job(config: Config) -> Job:
    """The job `prune-raw-records`."""
    keep = parse_span(config["harvest.keep_raw"])

    async def run(schedule: Schedule, io: Io) -> JobResult:  # noqa: ARG001 - the shape of a job
        gone = await io.ledger(lambda ledger: prune.prune_raw_records(ledger, [raw_diamonds_nivoda], keep, io.now()))
        return JobResult(f"{gone.rows:,} raw records of runs that are long over pruned", again=gone.more)

    return run


def _reprice_job(config: Config) -> Job:
    """The job `reprice`."""
    feeds = {name: nivoda_feed(name, own["price_unit"]) for name, own in config.section("feeds").items()}
    return reprice.reprice_job({name: Priced.of(feed) for name, feed in feeds.items()})


app = App(
    machines=MACHINES,
    data_tables=DATA_TABLES,
    configured=lambda config: make_flows(config, SystemClock()),
    settings=configured.SETTINGS,
    subscribers=[publisher(lambda _: None)],
    configured_subscribers=_subscribers,
    configured_jobs={JOB: _job, prune.JOB: _prune_job, reprice.JOB: _reprice_job},
    schedules=[Schedule(name=prune.JOB, job=prune.JOB, every="1h", jitter="30m", settings_version="usual")],
    configured_schedules=configured.schedules,
    configured_providers=configured.providers,
)

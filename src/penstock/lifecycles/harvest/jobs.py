"""The jobs of harvests: starting a feed's runs, pricing records again, and pruning raw records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.app.lifecycle import job
from penstock.lifecycles.harvest.settings import FeedSettings, HarvestSettings, reprice_schedule_of, schedule_of
from penstock.model.errors import UsageError
from penstock.settings.shapes import written
from penstock.worker.schedule_unit import Schedule

if TYPE_CHECKING:
    from penstock.app.ports import Ports
    from penstock.worker.flow import Io
    from penstock.worker.job import JobResult


@job("harvest", "Scans a feed and starts its next run.")
async def harvest(settings: HarvestSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:
    """It first publishes a watermark that an earlier run left unpublished. Its connections live as long as the scan."""
    from penstock.lifecycles.harvest.run.start import start_run
    from penstock.lifecycles.harvest.sources import make_blob, make_feed
    from penstock.lifecycles.harvest.watermark import publish_pending

    name, own = _feed(settings, schedule)
    blob = make_blob(name, settings)
    if blob is not None:
        await io.ledger(lambda ledger: publish_pending(ledger, {name: blob}))
    configured = make_feed(name, own, ports)
    try:
        return await start_run(configured, settings, io)
    finally:
        await configured.source.close()


@job("reprice", "Prices a feed's records again when the pricing rules have changed.")
async def reprice(settings: HarvestSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:  # noqa: ARG001 - one shape
    from penstock.lifecycles.harvest import reprice as pricing_again
    from penstock.lifecycles.harvest.sources import feed_of

    return await pricing_again.reprice(pricing_again.Priced.of(feed_of(*_feed(settings, schedule))), io)


@job("prune-raw-records", "Removes the raw records of runs that have been over for long enough.")
async def prune_raw_records(settings: HarvestSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:  # noqa: ARG001 - one shape
    from penstock.lifecycles.harvest import prune
    from penstock.lifecycles.harvest.tables import raw_diamonds_nivoda
    from penstock.worker.job import JobResult

    keep = settings.keep_raw
    gone = await io.ledger(lambda ledger: prune.prune_raw_records(ledger, [raw_diamonds_nivoda], keep, io.now()))
    return JobResult(f"{gone.rows:,} raw records of old runs pruned", again=gone.more)


def _feed(settings: HarvestSettings, schedule: Schedule) -> tuple[str, FeedSettings]:
    """The feed that a schedule names. Raises UsageError where there is none."""
    name = str((schedule.settings or {}).get("feed"))
    if name not in settings.feeds:
        raise UsageError(f"no feed is called {name!r}; add [harvest.feeds.{name}] to the configuration")
    return name, settings.feeds[name]


def schedules(settings: HarvestSettings) -> Sequence[Schedule]:
    """Two schedules for every feed, for its runs and for its prices, and one for pruning."""
    pruning = prune_raw_records.name
    found = [Schedule(name=pruning, job=pruning, every="1h", jitter="30m", settings_version="usual")]
    for name, own in sorted(settings.feeds.items()):
        given, feed = written(own), {"feed": name}
        every, at = given.get("every"), given.get("at")
        found.append(
            Schedule(
                name=schedule_of(name),
                job=harvest.name,
                every=every,
                at=at or (None if every else ["02:00"]),
                time_zone=own.time_zone,
                settings=feed,
                settings_version="feed",
            )
        )
        prices = reprice_schedule_of(name)
        found.append(Schedule(name=prices, job=reprice.name, every="1m", settings=feed, settings_version="feed"))
    return found

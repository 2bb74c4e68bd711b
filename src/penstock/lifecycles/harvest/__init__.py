"""Harvest: a whole catalogue, split by density, fetched page by page, consolidated, and read on from its watermark.

`run`, `partition` and `chunk` are its driven machines, each with what it decides and how it acts. A feed says how a
catalogue is asked and what its records become; `nivoda` is the one that is shipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.app.lifecycle import Data, Lifecycle
from penstock.lifecycles.harvest import alerts, jobs, operations, readings
from penstock.lifecycles.harvest.chunk.machine import harvest_chunk
from penstock.lifecycles.harvest.partition.machine import harvest_partition, harvest_worker
from penstock.lifecycles.harvest.past import PAST
from penstock.lifecycles.harvest.run.machine import harvest_run
from penstock.lifecycles.harvest.settings import HarvestSettings, gate_of
from penstock.model.decider import Decider
from penstock.model.limits import GateLimits, Limit
from penstock.operations.pictures import Runs, Shares

if TYPE_CHECKING:
    from penstock.app.ports import Ports
    from penstock.worker.flow import AnyFlow
    from penstock.worker.outbox import Subscriber

MACHINES = (harvest_run, harvest_partition, harvest_worker, harvest_chunk)


def data() -> Data:
    """Raw and canonical records, pricing rules, watermarks, and what runs keep beside them."""
    from penstock.lifecycles.harvest.tables import DATA_TABLES

    return Data(DATA_TABLES)


def build(settings: HarvestSettings, ports: Ports) -> Sequence[AnyFlow]:
    """The flows of runs, partitions and chunks, with connections for every feed."""
    from penstock.lifecycles.harvest.chunk.flow import Chunks
    from penstock.lifecycles.harvest.partition.flow import Partitions
    from penstock.lifecycles.harvest.run.consolidate import Consolidator
    from penstock.lifecycles.harvest.run.flow import Runs
    from penstock.lifecycles.harvest.sources import make_feed

    configured = {name: make_feed(name, own, ports) for name, own in settings.feeds.items()}
    plain = {name: own.feed for name, own in configured.items()}
    return [
        Runs(settings, Consolidator(settings, plain)),
        Partitions(settings, configured),
        Chunks(settings, plain),
    ]


def decides() -> Mapping[str, Decider]:
    """What its flows decide, by machine."""
    from penstock.lifecycles.harvest.chunk.decide import decide as chunk
    from penstock.lifecycles.harvest.partition.decide import decide as partition
    from penstock.lifecycles.harvest.partition.decide import gate
    from penstock.lifecycles.harvest.run.decide import decide as run

    return {
        harvest_run.name: Decider(run),
        harvest_partition.name: Decider(partition, gate=gate),
        harvest_chunk.name: Decider(chunk),
    }


def gates(settings: HarvestSettings) -> Sequence[GateLimits]:
    """How fast each feed may be called."""
    return [
        GateLimits(gate_of(name), (Limit("requests", rate, max(rate, 1.0)),))
        for name, own in settings.feeds.items()
        if (rate := own.requests_per_second) > 0
    ]


def subscribers(settings: HarvestSettings, ports: Ports) -> Sequence[Subscriber]:  # noqa: ARG001 - one shape
    """Who publishes the watermarks."""
    from penstock.lifecycles.harvest.sources import make_blob
    from penstock.lifecycles.harvest.watermark import publisher

    return [publisher(partial(make_blob, settings=settings))]


lifecycle = Lifecycle(
    "harvest",
    "A whole catalogue, fetched in partitions and consolidated.",
    settings=HarvestSettings,
    machines=MACHINES,
    data=data,
    past=PAST,
    build=build,
    decides=decides,
    jobs=[jobs.harvest, jobs.reprice, jobs.prune_raw_records],
    gates=gates,
    schedules=jobs.schedules,
    subscribers=subscribers,
    policies=alerts.POLICIES,
    readings=[
        readings.runs,
        readings.show,
        readings.partitions,
        readings.feeds,
        readings.prices,
        readings.watermark_show,
    ],
    operations=[
        operations.start,
        operations.retry,
        operations.cancel,
        operations.force,
        operations.reopen,
        operations.reprice,
        operations.watermark_set,
        operations.watermark_publish,
    ],
    pictures=[
        Runs(
            says="Runs, and the records that each fetched.",
            reading=readings.runs,
            at="started_at",
            amount="records",
            note="run_type",
            state="status",
        ),
        Shares(
            says="Partitions of a run, and how far each has come.",
            reading=readings.partitions,
            name="partition_id",
            whole="expected_records",
            parts={"records": "done"},
            note="status",
        ),
    ],
    front=[readings.runs, readings.watermark_show, readings.feeds],
)

"""Reports: datasets that the provider makes on request and restates for weeks, fetched again at their offsets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.app.lifecycle import Data, Lifecycle
from penstock.lifecycles.reports import alerts, jobs, operations
from penstock.lifecycles.reports.expects import expects
from penstock.lifecycles.reports.machine import JOB, machine
from penstock.lifecycles.reports.past import PAST
from penstock.lifecycles.reports.settings import ReportSettings
from penstock.model.decider import Decider
from penstock.operations.pictures import Ladder

if TYPE_CHECKING:
    from penstock.app.ports import Ports
    from penstock.ledger.ledger import Ledger
    from penstock.operations.reader import Reader
    from penstock.raw.collect import Held
    from penstock.raw.paths import PartitionKey
    from penstock.worker.flow import AnyFlow
    from penstock.worker.schedule_unit import Schedule


def data() -> Data:
    """The loaded rows, what every load changed, and how far each account's window reaches."""
    from penstock.lifecycles.reports.tables import DATA_TABLES, PERFORMANCE, VIEWS

    return Data(DATA_TABLES, VIEWS, [PERFORMANCE])


def build(settings: ReportSettings, ports: Ports) -> Sequence[AnyFlow]:
    """The one flow; accounts of one region share its connections."""
    from penstock.lifecycles.reports.flow import make_flow

    return [make_flow(settings, ports.raw, ports.clock)]


def decides() -> Mapping[str, Decider]:
    """What its flows decide, by machine."""
    from penstock.lifecycles.reports.decide import decide, gate

    return {machine.name: Decider(decide, JOB, gate=gate)}


def schedules(_: ReportSettings) -> Sequence[Schedule]:
    """Datasets are made every five minutes and pruned every hour."""
    from penstock.worker.schedule_unit import Schedule

    return [
        Schedule(name=jobs.UPDATE, job=jobs.UPDATE, every="5m", settings_version="usual"),
        Schedule(name=jobs.PRUNE, job=jobs.PRUNE, every="1h", jitter="30m", settings_version="usual"),
    ]


def holds(ledger: Ledger | Reader, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, Held]:
    """The landed runs that datasets need."""
    from penstock.lifecycles.reports.keep import held

    return held(ledger, keys)


lifecycle = Lifecycle(
    "reports",
    "Report datasets, refreshed at their offsets.",
    settings=ReportSettings,
    machines=[machine],
    data=data,
    past=PAST,
    build=build,
    decides=decides,
    jobs=[jobs.update_datasets, jobs.prune_datasets],
    schedules=schedules,
    expects=expects,
    policies=alerts.POLICIES,
    readings=[operations.datasets, operations.show, operations.cadence, operations.accounts],
    operations=[operations.refresh, operations.reset, operations.backfill],
    pictures=[
        Ladder(
            says="How often data still changed, by its age.",
            reading=operations.cadence,
            group="aggregation",
            step="offset",
            part="changed",
            whole="compared",
        )
    ],
    front=[operations.datasets, operations.accounts],
    warnings=jobs.warnings,
    holds=holds,
)

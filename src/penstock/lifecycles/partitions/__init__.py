"""Partitions: which run of which slice of landed data is safe to consume, and how runs come to be."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.app.lifecycle import Data, Lifecycle
from penstock.lifecycles.partitions import alerts, jobs, operations
from penstock.lifecycles.partitions.calendar import calendar
from penstock.lifecycles.partitions.expects import expects
from penstock.lifecycles.partitions.machine import MACHINES, extraction, validation
from penstock.lifecycles.partitions.past import PAST
from penstock.lifecycles.partitions.settings import PartitionSettings
from penstock.lifecycles.partitions.validate import Rules
from penstock.model.decider import Decider
from penstock.operations.pictures import Calendar, Ladder

if TYPE_CHECKING:
    from penstock.app.ports import Ports
    from penstock.ledger.ledger import Ledger
    from penstock.lifecycles.partitions.flow import Extractor
    from penstock.operations.reader import Reader
    from penstock.raw.collect import Held
    from penstock.raw.paths import PartitionKey
    from penstock.worker.flow import AnyFlow
    from penstock.worker.schedule_unit import Schedule


PICTURES = [
    Calendar(
        says="Which days are safe to consume.",
        reading=calendar,
        series="series",
        first="first",
        days="states",
        leads=operations.status,
    ),
    Ladder(
        says="How often data still changed, by its age.",
        reading=operations.cadence,
        group="query_name",
        step="offset",
        part="changed",
        whole="compared",
    ),
]


def data() -> Data:
    """Every evaluation of a run, and the view of what is safe to read."""
    from penstock.lifecycles.partitions.tables import DATA_TABLES, VIEWS

    return Data(DATA_TABLES, VIEWS)


def schedules(_: PartitionSettings) -> Sequence[Schedule]:
    """Partitions are wanted every fifteen minutes."""
    from penstock.worker.schedule_unit import Schedule

    return [Schedule(name=jobs.ENUMERATE, job=jobs.ENUMERATE, every="15m", settings_version="usual")]


def decides() -> Mapping[str, Decider]:
    """What its flows decide, by machine."""
    from penstock.lifecycles.partitions.decide import decide, decide_validation, gate

    return {extraction.name: Decider(decide, gate=gate), validation.name: Decider(decide_validation)}


def holds(ledger: Ledger | Reader, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, Held]:
    """The landed runs that partitions need."""
    from penstock.lifecycles.partitions.keep import held

    return held(ledger, keys)


def partitions_lifecycle(
    name: str,
    says: str,
    extractors: Callable[[Any, Ports], Mapping[str, Extractor]],
    *,
    settings: type[PartitionSettings] = PartitionSettings,
    rules: Rules | None = None,
) -> Lifecycle[PartitionSettings]:
    """A lifecycle of partitions with sources and business rules of one's own, below the section of that name.

    `extractors` makes them from the settings: one for each source.
    """
    own = rules or Rules()

    def build(settings: PartitionSettings, ports: Ports) -> Sequence[AnyFlow]:
        from penstock.lifecycles.partitions.flow import Extractions
        from penstock.lifecycles.partitions.judgement import Validators
        from penstock.lifecycles.partitions.validations import Validations

        validators = Validators(ports.raw, settings, own)
        return [Extractions(extractors(settings, ports), validators), Validations(validators)]

    return Lifecycle(
        name,
        says,
        settings=settings,
        machines=MACHINES,
        data=data,
        past=PAST,
        build=build,
        decides=decides,
        jobs=[jobs.enumerate_partitions],
        schedules=schedules,
        expects=expects,
        policies=alerts.POLICIES,
        readings=[calendar, *operations.READINGS, operations.inspecting(own)],
        operations=operations.OPERATIONS,
        pictures=PICTURES,
        front=[operations.cadence],
        holds=holds,
    )


def _google_ads(settings: PartitionSettings, ports: Ports) -> Mapping[str, Extractor]:
    from penstock.lifecycles.partitions.google_ads import make_extractors

    return make_extractors(settings, ports.clock)


lifecycle = partitions_lifecycle("partitions", "Landed data, and which run of it is safe to consume.", _google_ads)

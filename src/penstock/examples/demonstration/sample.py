"""A lifecycle of one job: it makes the datasets of few days and hours, in place of all of them.

All days of three accounts would be some thousands of reports, and a demonstration of several minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from penstock.app.lifecycle import Lifecycle, NoSettings, job
from penstock.app.ports import Ports
from penstock.model.machine import Actor
from penstock.model.outcome import Birth
from penstock.model.unit import replace
from penstock.worker.flow import Io
from penstock.worker.job import JobResult
from penstock.worker.schedule_unit import Schedule

if TYPE_CHECKING:
    from penstock.lifecycles.reports.machine import Report
    from penstock.lifecycles.reports.settings import ReportSettings
    from penstock.model.forecast import Expected

SAMPLE = "sample-report-datasets"
EVERY_DAYS = 20


def _wanted(settings: ReportSettings, day: date, daily: Sequence[str], hourly: Sequence[str]) -> Iterator[Report]:
    from penstock.lifecycles.reports.datasets import LIKE, Window, columns_of, datasets
    from penstock.lifecycles.reports.machine import Aggregation

    hour = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    for name in daily:
        account = settings.accounts[name]
        spans = [(Aggregation.DAILY, Window(day, day))]
        if name in hourly:
            spans.append((Aggregation.HOURLY, Window(hour, hour)))
        for aggregation, within in spans:
            (own,) = columns_of({name: account}, aggregation)
            for columns in datasets(within, aggregation, account.time_zone, settings):
                yield replace(LIKE, time_zone=account.time_zone, **own, **columns)


@job(SAMPLE, "Makes the datasets of every twentieth day.")
async def sample(settings: NoSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:  # noqa: ARG001 - one shape
    """Its schedule's settings are the first day, the accounts, and those of them that have hourly data too."""
    from penstock.lifecycles import reports

    given = schedule.settings or {}
    day = io.now().date()
    if (day - date.fromisoformat(given["since"])).days % EVERY_DAYS:
        return JobResult("not a day of the sample")
    configured = ports.program.settings(reports.lifecycle)
    births = [
        Birth(unit, f"{day} is in the sample", if_absent=True, actor=Actor.SCHEDULER)
        for unit in _wanted(configured, day, given["daily"], given["hourly"])
    ]
    return JobResult(f"{len(births)} datasets of {day}", others=births)


def expects(settings: NoSettings, unit: Any, since: datetime) -> Sequence[Expected] | None:  # noqa: ARG001 - one shape
    """What a tick brings forth."""
    from penstock.lifecycles.reports.machine import Aggregation, EntityType, S, machine
    from penstock.model.forecast import Expected

    if not isinstance(unit, Schedule):
        return None
    given = unit.settings or {}
    if (since.date() - date.fromisoformat(given["since"])).days % EVERY_DAYS:
        return []
    spans = [(name, Aggregation.DAILY) for name in given["daily"]] + [(n, Aggregation.HOURLY) for n in given["hourly"]]
    kinds = [f"{name}/{span}/{entity}" for name, span in spans for entity in EntityType]
    return [Expected(machine=machine.name, at=since, target=S.MISSING, kind=kind) for kind in kinds]


lifecycle = Lifecycle(
    "sample", "Datasets of few days, for the demonstration.", NoSettings, jobs=[sample], expects=expects
)

"""The flow of runs: it starts the partitions, waits for all of them, and hands what was fetched to consolidation."""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog

from penstock.ledger.schema.columns import readable
from penstock.lifecycles.harvest.feed import Consolidation
from penstock.lifecycles.harvest.partition.machine import P
from penstock.lifecycles.harvest.queries import partitions_of
from penstock.lifecycles.harvest.run.decide import decide
from penstock.lifecycles.harvest.run.machine import CONSOLIDATIONS, R, Run, harvest_run
from penstock.lifecycles.harvest.settings import HarvestSettings
from penstock.model.clock import Rng
from penstock.model.errors import Rejected, StepError
from penstock.model.outcome import Event, Move, Outcome
from penstock.model.unit import replace
from penstock.worker.flow import Flow, Io

log = structlog.get_logger()


class Runs(Flow[Run, HarvestSettings, None]):
    """Drives runs of all feeds; what follows the fetching is the consolidation's."""

    machine = harvest_run
    decide = staticmethod(decide)
    deadline = timedelta(minutes=30)

    def __init__(self, settings: HarvestSettings, consolidation: Consolidation) -> None:
        super().__init__(settings)
        self._consolidation = consolidation

    async def act(self, what: str, unit: Run, seen: None, io: Io) -> Outcome[Run]:  # noqa: ARG002
        now = io.now()
        match what:
            case "start":
                return await self._start(unit, io)
            case "trigger":
                after = replace(unit, status=R.CONSOLIDATION_TRIGGERED, due_at=now)
                return Outcome(unit, after, f"all {unit.expected_workers} partitions are completed")
            case "skip":
                after = replace(unit, status=R.CONSOLIDATION_SKIPPED, due_at=now)
                why = f"{unit.failed_workers} of {unit.expected_workers} partitions have failed"
                log.warning("harvest.consolidation_skipped", run=str(unit.run_id), feed=unit.feed, reason=why)
                return Outcome(unit, after, why)
            case "alert":
                why = f"{unit.failed_workers} of {unit.expected_workers} partitions have failed"
                return failed_run(unit, f"{why}; the watermark stays where it was")
            case _:
                return await self._consolidation.step(unit, io)

    def failed(self, unit: Run, error: StepError, now: datetime, rng: Rng) -> Outcome[Run] | None:  # noqa: ARG002
        """Consolidation is tried three times; then the run has failed, and the next one covers the same window."""
        hopeless = isinstance(error, Rejected) or CONSOLIDATIONS.exhausted(unit.attempts)
        if unit.status is not R.CONSOLIDATING or not hopeless:
            return None
        return failed_run(unit, f"consolidation failed: {error}; the watermark stays where it was")

    async def _start(self, unit: Run, io: Io) -> Outcome[Run]:
        now = io.now()
        born = await io.ledger(lambda ledger: partitions_of(ledger, unit.run_id))
        starts = [Move(p, replace(p, due_at=now), "its run starts") for p in born if p.status is P.PENDING]
        after = replace(unit, status=R.WORKERS_RUNNING, due_at=None)
        return Outcome(unit, after, f"{len(starts)} partitions are due", others=starts)


def failed_run(unit: Run, why: str) -> Outcome[Run]:
    """The run has failed, and one alert says so."""
    alert = Event(
        f"harvest.failed:{unit.run_id}:{unit.version}",
        "harvest.failed",
        {"run": f"harvest_run:{unit.unit_id}", "feed": unit.feed, "reason": readable(why)},
        "critical",
    )
    after = replace(unit, status=R.FAILED, error=readable(why), due_at=None)
    return Outcome(unit, after, why, events=[alert])

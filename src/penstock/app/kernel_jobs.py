"""The kernel's own jobs: pruning, sweeping what stages left behind, counting flow, collecting unneeded data."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.app.lifecycle import job
from penstock.model.errors import Transient
from penstock.model.outcome import Event
from penstock.operations.raw import COLLECT, all_holds, superseded_age
from penstock.settings.kernel import KernelSettings

if TYPE_CHECKING:
    from penstock.app.ports import Ports
    from penstock.ledger.ledger import Ledger
    from penstock.raw.collect import Collected
    from penstock.worker.flow import Io
    from penstock.worker.job import JobResult
    from penstock.worker.schedule_unit import Schedule

SWEEP_STAGES = "sweep-stages"
ROLL_UP_FLOW = "roll-up-flow"
_BATCHES = 20
_MUCH, _SOON, _LONG = 500, timedelta(seconds=3), timedelta(minutes=2)
_MOST_NAMED = 20


@job("prune", "Removes ended units and log rows that are older than [prune] keeps them.")
async def prune(settings: KernelSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:  # noqa: ARG001
    """Interrupted, it has done a part, and the next run does the rest."""
    from penstock.ledger.care.prune import Ages, Pruner
    from penstock.operations.alerts.prune import prune_resolved
    from penstock.worker.job import JobResult

    ages, now = Ages(settings.prune), io.now()
    kept = ages.of("alert")

    def work(ledger: Ledger) -> dict[str, int]:
        pruner = Pruner(ledger.database, ages, who=f"schedule:{schedule.name}", rng=io.rng)
        gone = pruner.prune()
        return gone | {"alert": prune_resolved(ledger, pruner, None if kept is None else now - kept)}

    gone = await io.ledger(work)
    told = ", ".join(f"{rows:,} of {table}" for table, rows in sorted(gone.items()) if rows)
    return JobResult(f"pruned {told or 'nothing'}")


@job(SWEEP_STAGES, "Removes staged rows that no unit refers to.")
async def sweep_stages(settings: KernelSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:  # noqa: ARG001
    """A run removes a bounded number of rows, and comes back at once while there are more."""
    from penstock.ledger import stage
    from penstock.operations.bulk.actions import sweep_items
    from penstock.worker.job import JobResult

    staged = ports.program.app.data.staged
    swept = await io.ledger(lambda ledger: stage.sweep(ledger.database, staged, at_most=stage.AT_MOST))
    items = await io.ledger(sweep_items)
    left = f", {items:,} items of bulk actions that are gone" if items else ""
    return JobResult(f"swept {swept.batches:,} batches, {swept.rows:,} rows{left}", again=swept.more)


@job(ROLL_UP_FLOW, "Counts new rows of the history into the flow by the hour.")
async def roll_up_flow(settings: KernelSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:  # noqa: ARG001
    """A run counts a bounded number of rows, and comes back at once while there are more. No reading waits for it.

    Readings add what is not counted yet. Where much happens it comes back soon, so that this stays little; where little
    does, after twice as long as before, until ticks are nearer. After a pause nobody knows how much will.
    """
    from penstock.ledger.roll_up import bookmark, recount_as_asked, roll_up
    from penstock.worker.job import JobResult
    from penstock.worker.schedule_unit import cadence_of

    def work(ledger: Ledger) -> tuple[bool, int]:
        before = ledger.read(bookmark).seq
        more = roll_up(ledger.database, batches=_BATCHES)
        return more, ledger.read(bookmark).seq - before

    anew = await io.ledger(lambda ledger: recount_as_asked(ledger.database))
    more, counted = await io.ledger(work)
    since = _LONG if schedule.last_tick_at is None else io.now() - schedule.last_tick_at
    soon: timedelta | None = _SOON if counted >= _MUCH or since >= _LONG else max(_SOON, 2 * since)
    tick = cadence_of(schedule).every
    if tick is None or tick > _LONG:
        soon = None  # who has it tick seldom wants it so
    said = "counted the flow anew from the history" if anew else "rolled up the flow"
    return JobResult(said, again=more, soon=soon)


@job(COLLECT, "Removes landed data that nobody needs: unfinished attempts, and superseded runs of a given age.")
async def collect_raw(settings: KernelSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:  # noqa: ARG001
    """With `settings = { superseded = "90d" }` superseded runs of that age go too."""
    from penstock.raw.collect import collect_by_age
    from penstock.raw.store import RawUnavailable
    from penstock.worker.job import JobResult

    now, age = io.now(), superseded_age(schedule.settings or {})

    def work(ledger: Ledger) -> Collected:
        return collect_by_age(ports.raw, all_holds(ledger, ports.program.app), now, superseded=age)

    try:
        done = await io.ledger(work)
    except RawUnavailable as error:
        raise Transient(str(error)) from error
    first = next((f", the first {name}: {why}" for name, why in done.skipped.items()), "")
    return JobResult(f"collected {done.counts()}{first}", events=_alerts(schedule, done))


def _alerts(schedule: Schedule, done: Collected) -> list[Event]:
    if not done.skipped:
        return []
    named = dict(list(done.skipped.items())[:_MOST_NAMED])
    facts = {"skipped": len(done.skipped), "runs": named}
    return [Event(f"raw.unreadable:{schedule.name}:{schedule.version}", "raw.unreadable", facts, "warning")]

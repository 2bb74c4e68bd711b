"""How a run begins: the feed is scanned, and the run and its partitions are born together."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.lifecycles.harvest.feed import Configured, Span, Window
from penstock.lifecycles.harvest.partition.machine import CALLS, Partition
from penstock.lifecycles.harvest.queries import standing_of
from penstock.lifecycles.harvest.run.decide import Wanted, wanted_run
from penstock.lifecycles.harvest.run.machine import Run, RunType
from penstock.lifecycles.harvest.run.scan import Scanned, Split, scan
from penstock.lifecycles.harvest.settings import HarvestSettings
from penstock.lifecycles.harvest.tables import harvest_density, harvest_request
from penstock.model.clock import Rng
from penstock.model.errors import Transient
from penstock.model.machine import Actor
from penstock.model.outcome import Birth, Write
from penstock.worker.flow import Io
from penstock.worker.job import JobResult


async def start_run(configured: Configured, settings: HarvestSettings, io: Io) -> JobResult:
    """Scan a feed and give birth to its next run, unless one is under way."""
    standing = await io.ledger(lambda ledger: standing_of(ledger, configured.feed.name))
    if standing.open_run is not None:
        return JobResult(f"run {standing.open_run} is still under way")
    wanted = wanted_run(standing.known, io.now(), settings)
    remembered = standing.density.get(wanted.run_type) or standing.density.get(RunType.FULL) or ()
    scanned = await _scan(configured, settings.split(wanted.run_type), wanted.window, remembered, io)
    return births(configured, wanted, scanned, requested=standing.requested, now=io.now(), rng=io.rng)


async def _scan(configured: Configured, split: Split, window: Window, remembered: Any, io: Io) -> Scanned:
    feed = configured.feed
    questions = scan(feed.lowest, feed.highest, split, remembered)
    span = next(questions)
    while True:
        count = await _count(configured, window, span, io)
        try:
            span = questions.send(count)
        except StopIteration as done:
            scanned: Scanned = done.value
            return scanned


async def _count(configured: Configured, window: Window, span: Span, io: Io) -> int:
    """One answer. A call that fails is made again at once, because a scan has dozens of them and begins anew."""
    for attempt in itertools.count():
        try:
            async with io.gate(configured.gate):
                return await configured.source.count(window, span)
        except Transient:
            if CALLS.exhausted(attempt):
                raise
    raise AssertionError("unreachable")


def births(
    configured: Configured,
    wanted: Wanted,
    scanned: Scanned,
    *,
    requested: Mapping[str, Any] | None,
    now: datetime,
    rng: Rng,
) -> JobResult:
    """The run, all its partitions and the counts, to be committed together."""
    feed, window = configured.feed.name, wanted.window
    run = Run(
        run_id=UUID(hex=(rng.token() + rng.token())[:32], version=4),
        feed=feed,
        run_type=wanted.run_type,
        expected_workers=len(scanned.partitions),
        watermark_before=wanted.watermark,
        started_at=wanted.window_to,
        window_from=wanted.window_from,
        window_to=wanted.window_to,
        expected_records=scanned.records,
        scan_calls=scanned.calls,
        due_at=now,
    )
    partitions = [
        Partition(
            run_id=run.run_id,
            partition_id=f"partition-{ordinal}",
            feed=feed,
            ordinal=ordinal,
            low=low,
            high=high,
            window_from=window.lower,
            window_to=window.upper,
            expected_records=count,
            created_at=now,
            updated_at=now,
            gate_id=configured.gate,
        )
        for ordinal, (low, high, count) in enumerate(scanned.partitions)
    ]
    reason = f"{wanted.run_type}: {wanted.why}"
    density = {
        "feed": feed,
        "run_type": wanted.run_type,
        "spans": [list(span) for span in scanned.density],
        "calls": scanned.calls,
        "at": now,
    }
    writes = [Write(harvest_density, [density])]
    if requested is not None:
        writes.append(Write(harvest_request, [{**requested, "run_id": run.run_id}]))
        reason = f"{reason} ({requested['requested_by']}: {requested['reason']})"
    return JobResult(
        f"{wanted.run_type} run {run.run_id}: {scanned.records:,} records in {len(partitions)} partitions,"
        f" {scanned.calls} counts",
        others=[Birth(unit, reason, actor=Actor.SCHEDULER) for unit in (run, *partitions)],
        writes=writes,
    )

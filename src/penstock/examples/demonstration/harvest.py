"""The part of the harvest: a catalogue of stones, read whole, changed, and read again from the watermark.

Nivoda's simulator throttles once. On day 10 stones change, come and go. The next run reads what is new; its worker is
refused a page, and an operator has it try again. The full run after it does not see what is gone, and the full one a
month later, the second, soft-deletes it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from penstock.examples.demonstration.part import Check, Table, Told, World, closings, throttled
from penstock.lifecycles import harvest
from penstock.lifecycles.harvest.jobs import prune_raw_records, reprice
from penstock.lifecycles.harvest.operations import WhichRun, retry
from penstock.lifecycles.harvest.settings import reprice_schedule_of
from penstock.model.clock import Clock, instant
from penstock.simulators.nivoda import PATH, Fault, NivodaSimulator, throttle
from penstock.simulators.nivoda_data import Catalogue
from penstock.simulators.server import in_thread

FEED = "diamonds"
STONES = 3_000
_CHANGED, _INSERTED, _REMOVED = 150, 60, 40
_DAY = timedelta(days=1)
_HOUR = timedelta(hours=1)
_QUIET_SECONDS = "900"
_REFUSAL = Fault(400, {"message": "this range is being moved"})
_MENDED = "Nivoda has moved the range"
_GATES = "nivoda/%"
_BLOB = "watermark.json"
_RULE = "INSERT INTO pricing_rules (id, priority, shape, margin, rounding) VALUES (:id, :priority, :shape, {0}, {1})"
#: Round stones at a tenth on top, everything else at a fifth; the lower priority comes first.
_RULES: tuple[dict[str, Any], ...] = (
    {"id": 1, "priority": 10, "shape": "ROUND", "margin": "0.10", "rounding": "0.01"},
    {"id": 2, "priority": 20, "shape": None, "margin": "0.20", "rounding": "0.01"},
)


class HarvestPart:
    """One feed, harvested every ten days; ticks lie where the calendar has them, so that the first may come soon."""

    leaves = (_BLOB, f"{_BLOB}.lock")

    def __init__(self, clock: Clock) -> None:
        self._nivoda = NivodaSimulator(clock, Catalogue(STONES, clock.now()))
        self._folder = Path()

    @contextlib.contextmanager
    def serving(self, folder: Path, start: datetime, clock: Clock) -> Iterator[str]:  # noqa: ARG002 - one shape
        self.now_by(clock)
        self._folder = folder
        (folder / "secrets" / "nivoda-password").write_text(self._nivoda.password)
        with in_thread(self._nivoda) as address:
            yield "\n".join(self._settings(address))

    def _settings(self, address: str) -> Iterator[str]:
        yield '[harvest]\ntarget_records = 1_000\nfull_every = "21d"\n'
        yield f"[harvest.feeds.{FEED}]"
        yield f'url = "{address}{PATH}"\nusername = "{self._nivoda.username}"'
        yield 'password = { file = "secrets/nivoda-password" }'
        yield f'requests_per_second = 0\nwatermark = "{_BLOB}"\nevery = "10d"\n'
        # Once a day: time leaps from tick to tick.
        yield f'[schedules.{reprice_schedule_of(FEED)}]\njob = "{reprice.name}"\nat = ["07:00"]'
        yield f'settings = {{ feed = "{FEED}" }}\n'
        yield f'[schedules.{prune_raw_records.name}]\njob = "{prune_raw_records.name}"\nat = ["09:00"]\n'

    def now_by(self, clock: Clock) -> None:
        self._nivoda.clock = clock

    async def happen(self, world: World) -> None:
        """Prices have rules from the start. In the first run the API throttles; on day 10 the catalogue changes.

        The run after that is refused a page. Hours later somebody retries it.
        """
        database = world.ledger.database
        statement = _RULE.format(database.sql.decimal("margin"), database.sql.decimal("rounding"))
        database.write(lambda cursor: [cursor.run(statement, **rule) for rule in _RULES])
        self._nivoda.faults["page"].append(throttle(_QUIET_SECONDS))
        await world.until(world.start + 10 * _DAY)
        now, stones = world.ledger.clock.now(), self._nivoda.stones
        stones.change(_CHANGED, now)
        stones.insert(_INSERTED, now)
        stones.remove(_REMOVED)
        self._nivoda.faults["page"].append(_REFUSAL)
        while not (failed := world.rows("SELECT unit_id FROM run_metadata WHERE status = 'failed'")):
            await world.until(world.ledger.clock.now() + _HOUR)
        await world.until(world.ledger.clock.now() + 6 * _HOUR)
        world.do(harvest.lifecycle, retry, WhichRun(run=str(failed[0][0])), _MENDED)

    def told(self, world: World, since: datetime, until: datetime) -> Iterator[Told]:
        rows = world.rows(
            "SELECT machine, unit_id, to_status, reason, at FROM transition_log WHERE at >= {since} AND at < {until}"
            " AND (machine = 'harvest_run' AND (to_status IN ('created', 'completed', 'failed') OR trigger = 'retry')"
            " OR machine = 'harvest_partition' AND to_status = 'failed'"
            " OR machine = 'alert' AND unit_id LIKE 'harvest_failed/%') ORDER BY seq",
            since=since,
            until=until,
        )
        for machine, unit_id, status, reason, at in rows:
            yield Told(instant(at), f"{machine}:{unit_id} is {status}: {reason}")
        yield from closings(world, _GATES, since, until)

    def _runs(self, world: World) -> list[tuple[Any, ...]]:
        return world.rows(
            "SELECT unit_id, run_type, status, completed_workers, expected_workers, expected_records,"
            " records_consolidated, records_deleted, watermark_after FROM run_metadata ORDER BY started_at"
        )

    def checks(self, world: World) -> Iterator[Check]:
        runs = [run for run in self._runs(world) if run[2] == "completed"]
        full = (f"harvest_run:{run[0]}, {run[6]:,} stones" for run in runs if run[1] == "full" and run[6] >= STONES)
        some = (
            f"harvest_run:{run[0]}, {run[6]:,} stones"
            for run in runs
            if run[1] == "incremental" and _CHANGED <= run[6] < STONES
        )
        gone = (f"harvest_run:{run[0]}, {run[7]:,} stones" for run in runs if run[7] > 0)
        yield Check("a whole catalogue, harvested", next(full, None))
        yield Check("what has changed, from the watermark", next(some, None))
        yield Check("stones that are gone, soft-deleted", next(gone, None))
        yield Check("a worker that failed, retried, and its run completed", self._retried(world))
        yield Check("a throttle of Nivoda, waited for", throttled(world, _GATES))
        yield Check("every stone there at its price, and no others", self._equal(world))
        yield Check("the watermark of the last run, published", self._published(runs[-1] if runs else None))

    def _retried(self, world: World) -> str | None:
        found = world.rows(
            "SELECT l.unit_id, r.unit_id FROM transition_log l"
            " JOIN worker_runs w ON w.unit_id = l.unit_id AND w.status = 'completed'"
            " JOIN run_metadata r ON r.run_id = w.run_id AND r.status = 'completed'"
            " WHERE l.machine = 'harvest_worker' AND l.trigger = 'retry'"
        )
        return f"harvest_worker:{found[0][0]}, of harvest_run:{found[0][1]}" if found else None

    def _equal(self, world: World) -> str | None:
        """Compare the table with the other side's own catalogue."""
        stones = self._nivoda.stones
        there = {
            stones.stone_id(number): price
            for number in range(STONES + _INSERTED)
            if (price := stones.price(number)) is not None
        }
        rows = world.rows(
            "SELECT supplier_stone_id, supplier_price, price, pricing_rule_id FROM diamonds WHERE deleted_at IS NULL"
        )
        ours = {stone: Decimal(str(price)) * 100 for stone, price, _, _ in rows}
        priced = all(
            Decimal(str(price)) > Decimal(str(supplier)) and rule in {1, 2} for _, supplier, price, rule in rows
        )
        return f"{len(ours):,} stones" if ours == there and priced else None

    def _published(self, last: tuple[Any, ...] | None) -> str | None:
        file = self._folder / _BLOB
        found = json.loads(file.read_text()) if file.exists() else {}
        named = last is not None and found.get("lastRunId") == str(last[0])
        return f"{_BLOB}: {found['lastUpdatedAt']}" if named else None

    def tables(self, world: World) -> Iterator[Table]:
        rows = [
            (str(run_id), kind, status, f"{done}/{wanted}", f"{found:,}", f"{kept:,}", f"{deleted:,}", str(mark))
            for run_id, kind, status, done, wanted, found, kept, deleted, mark in self._runs(world)
        ]
        headings = ("run", "type", "status", ">partitions", ">records", ">consolidated", ">deleted", "watermark after")
        yield Table("The runs over the catalogue", headings, rows)

    def next(self, world: World) -> Iterator[str]:
        yield "penstock harvest runs"
        for run_id, *_ in self._runs(world)[:1]:
            yield f"penstock harvest partitions {run_id}"
        yield "penstock harvest watermark show"

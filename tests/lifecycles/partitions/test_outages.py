"""Outages of a source: however long they last they end no partition; what fails while others pass still ends."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta

import pytest

from penstock.lifecycles.partitions.flow import Extractions
from penstock.lifecycles.partitions.machine import X, gate_of, wanted_unit
from penstock.model.clock import Rng
from penstock.model.errors import InDoubt, Transient, UsageError
from penstock.model.machine import Actor
from penstock.model.simulation import simulate
from penstock.raw.paths import PartitionKey
from penstock.raw.store import RawUnavailable
from penstock.worker.executor import InlineExecutor
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.partitions import DAY, KEY, Partitions, Said, rows

pytestmark = pytest.mark.by_day
HOUR = 3_600
KEYS = [dataclasses.replace(KEY, logical_date=DAY - timedelta(days=n)) for n in range(8)]
GATE = gate_of(KEY)
# Nobody else writes to the ledger: hours pass in a moment.
ALONE = WorkerSettings(
    lease_ms=24 * HOUR * 1_000,
    renew_seconds=600,
    watch_seconds=60,
    unknown_seconds=1e9,
    idle_seconds=None,
    place_seconds=None,
)


def away(_: PartitionKey) -> Exception:
    return Transient("could not connect: connection refused")


def late(_: PartitionKey) -> Exception:
    return InDoubt("timed out")


def want(world: Partitions, *keys: PartitionKey, **columns) -> None:
    now = world.ledger.clock.now()
    world.ledger.birth([wanted_unit(key, now, **columns) for key in keys], actor=Actor.SCHEDULER, who="test")


def good(key: PartitionKey) -> object:
    return rows(key=key)


def work(world: Partitions, source: Said, seconds: float) -> None:
    world.work(world.flow(source), seconds=seconds, settings=ALONE)


def stand(world: Partitions) -> set[str]:
    return {status for (status,) in world.rows("SELECT status FROM extraction")}


def gate(world: Partitions, name: str = GATE) -> tuple[object, ...]:
    return world.rows("SELECT failures, failing_since IS NULL, throttles FROM gate WHERE gate_id = :g", g=name)[0]


@pytest.mark.parametrize("backfill", [False, True], ids=["daily", "backfill"])
@pytest.mark.parametrize("error", [away, late], ids=["refused", "timeout"])
def test_three_hours_of_outage_end_no_partition(world, error, backfill):
    """A backfill calls through a later gate, the account's: it is that one which fails."""
    want(world, *KEYS, backfill=backfill)
    source = Said(error)
    work(world, source, 3 * HOUR)
    assert not stand(world) & {"failed", "done"}
    assert world.rows("SELECT max(attempts), max(crashes) FROM extraction") == [(1, 0)]
    assert world.alerts() == ["gate.breaker"]
    assert len(source.asked) < 100
    work(world, Said(good), 1_000)
    assert stand(world) == {"done"}
    assert world.alerts() == ["gate.breaker", "gate.recovered"]
    assert gate(world) == (0, True, 0)


def test_a_partition_that_fails_while_others_pass_meets_its_limit(world):
    want(world, *KEYS)

    def answer(key: PartitionKey) -> object:
        return away(key) if key == KEY else rows(key=key)

    for hour in range(8):
        work(world, Said(answer), HOUR)
        if world.extraction().status is X.FAILED:
            break
        want(world, dataclasses.replace(KEY, logical_date=DAY - timedelta(days=100 + hour)))
    assert world.extraction().status is X.FAILED
    assert "after 3 retries" in str(world.extraction().change_reason)
    assert stand(world) == {"done", "failed"}


def test_two_that_fail_in_turn_between_those_that_pass_both_meet_their_limit(world):
    bad = KEYS[:2]
    want(world, *bad)

    def answer(key: PartitionKey) -> object:
        return away(key) if key in bad else rows(key=key)

    for n in range(30):
        want(world, dataclasses.replace(KEY, logical_date=DAY - timedelta(days=100 + n)))
        work(world, Said(answer), 400)
    assert {world.extraction(key).status for key in bad} == {X.FAILED}


def test_outages_one_after_the_other_are_charged_once_each_at_most(world):
    want(world, KEY)
    others = iter(range(200, 300))
    for _ in range(2):
        work(world, Said(away), HOUR)
        # Another has its turn first and ends the outage; this one meets the next.
        early = dataclasses.replace(KEY, logical_date=DAY - timedelta(days=next(others)))
        want(world, early)
        work(world, Said(lambda key: away(key) if key == KEY else good(key)), HOUR)
    assert world.extraction().status in {X.WANTED, X.EXTRACTING}
    assert world.extraction().attempts <= 3


def test_a_store_that_is_away_is_not_the_providers_failure_nor_the_partitions(world, monkeypatch):
    want(world, KEY)

    def full(*_: object, **__: object) -> None:
        raise RawUnavailable("no space left on the device")

    with monkeypatch.context() as patched:
        patched.setattr(world.sink, "writer", full)
        work(world, Said(good), HOUR)
    unit = world.extraction()
    assert (unit.status, unit.attempts, unit.crashes) == (X.EXTRACTING, 0, 0)
    assert "no space left" in str(unit.change_reason)
    assert gate(world) == (0, True, 0)
    assert world.alerts() == []
    work(world, Said(good), 100)
    assert world.extraction().status is X.DONE


def test_many_workers_in_one_outage_make_one_alert_and_few_calls(world):
    want(world, *(dataclasses.replace(KEY, logical_date=DAY - timedelta(days=n)) for n in range(60)))
    sources = [Said(away) for _ in range(4)]

    async def main() -> None:
        workers = [
            Worker(
                world.ledger,
                [world.flow(s)],
                ALONE,
                executor=InlineExecutor(),
                rng=Rng(n),
            )
            for n, s in enumerate(sources)
        ]
        running = [asyncio.create_task(w.run()) for w in workers]
        await asyncio.sleep(3 * HOUR)
        for s in sources:
            s.answers = [good]
        await asyncio.sleep(HOUR)
        for w in workers:
            w.stop()
        await asyncio.gather(*running)

    simulate(world.time, main)
    assert stand(world) == {"done"}
    assert world.alerts() == ["gate.breaker", "gate.recovered"]
    assert sum(len(s.asked) for s in sources) < 60 + 60 * 2 + 60


def test_what_is_tried_again_and_not_charged_says_so(world):
    want(world, *KEYS)
    work(world, Said(away), 600)
    reasons = [r for (r,) in world.rows("SELECT change_reason FROM extraction")]
    assert any("not charged: the provider does not answer" in r for r in reasons)


def test_a_flow_that_spares_outages_needs_a_column_for_it(world, monkeypatch):
    flow = world.flow(Said())
    monkeypatch.setattr(Extractions, "machine", world.ledger.machine("schedule"))
    with pytest.raises(UsageError, match="to Schedule"):
        Worker(world.ledger, [flow])

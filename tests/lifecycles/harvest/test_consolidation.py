"""Consolidation: raw rows become canonical ones, once, by any number of workers; what is wrong with them is told."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from penstock.lifecycles.harvest.chunk.flow import Chunks
from penstock.lifecycles.harvest.chunk.machine import C, Chunk
from penstock.lifecycles.harvest.run.machine import Phase, R, RunType
from penstock.model.clock import Rng, instant, instant_text
from penstock.model.errors import Transient
from penstock.model.machine import Actor
from penstock.model.outcome import MAX_ROWS
from penstock.model.unit import Ref, replace
from tests.support.consolidation import FEEDS, Site, a_run, processes, run_id, wait_for
from tests.support.harvest import FEED, START, small

HOUR = timedelta(hours=1)


@pytest.fixture
def site(ledger_url) -> Iterator[Site]:
    made = Site(ledger_url)
    yield made
    made.close()


def stones(count: int, price: int = 100) -> dict[str, int]:
    return {f"s{n:04}": price + n for n in range(count)}


def phases(site: Site, number: int = 1) -> list[str]:
    reasons = site.rows(
        "SELECT reason FROM transition_log WHERE machine = 'harvest_run' AND unit_id = :unit ORDER BY seq",
        unit=str(run_id(number)),
    )
    return [row[0] for row in reasons]


def test_raw_rows_become_canonical_ones(site):
    site.raw(stones(25))
    site.birth(a_run())
    run = site.consolidate()
    assert (run.status, run.phase, run.completed_at is not None) == (R.COMPLETED, None, True)
    assert (run.records_consolidated, run.records_rejected, run.records_deleted) == (25, 0, 0)
    assert (run.expected_chunks, run.completed_chunks, run.failed_chunks) == (3, 3, 0)
    assert run.watermark_after == run.window_to
    assert site.prices() == {stone: Decimal(price) for stone, price in stones(25).items()}
    assert site.rows("SELECT count(*) FROM raw_diamonds_nivoda WHERE NOT consolidated") == [(0,)]
    assert [(c.status, c.records) for c in site.chunks()] == [(C.DONE, 10), (C.DONE, 10), (C.DONE, 5)]
    ((feed, first, last, digest),) = site.rows(
        "SELECT DISTINCT feed, first_seen_run_id, last_seen_run_id, payload_hash FROM diamonds"
    )
    assert (feed, str(first), str(last), digest) == (FEED, str(run_id(1)), str(run_id(1)), "hash-1")


def test_a_run_without_rows_completes_and_moves_the_watermark(site):
    site.birth(a_run())
    run = site.consolidate()
    assert (run.status, run.expected_chunks, run.watermark_after) == (R.COMPLETED, 0, run.window_to)
    assert instant(site.watermark()) == run.window_to


def test_the_phases_are_committed_one_by_one(site):
    site.raw(stones(3))
    site.birth(a_run())
    found = []
    with_phase = "SELECT phase FROM run_metadata"

    class Watching(dict):  # type: ignore[type-arg]
        def get(self, name, default=None):
            found.append(site.rows(with_phase)[0][0])
            return super().get(name, default)

    site.consolidate(feeds=Watching(FEEDS))
    seen = list(dict.fromkeys(p for p in found if p))
    assert seen == [
        Phase.VALIDATING_RUN,
        Phase.LOADING_PRICING_RULES,
        Phase.FETCHING_RAW_BATCH,
        Phase.PROCESSING_BATCH,
        Phase.UPDATING_RUN_METADATA,
        Phase.ADVANCING_WATERMARK,
    ]


def test_newer_wins_whatever_the_order_of_the_runs(site):
    site.raw({"a": 1, "b": 1, "c": 1}, 1, updated=START)
    site.raw({"a": 2, "b": 2, "c": 2}, 2, updated=START + HOUR)
    site.raw({"a": 3, "b": 3}, 3, updated=START - HOUR)
    site.raw({"c": 4}, 4, updated=START + HOUR)
    incremental = RunType.INCREMENTAL
    for number in (1, 2, 3, 4):
        site.birth(a_run(number, run_type=incremental))
        site.consolidate(number)
    assert site.prices() == {"a": 2, "b": 2, "c": 4}
    found = {
        s: (str(f), str(last))
        for s, f, last in site.rows("SELECT supplier_stone_id, first_seen_run_id, last_seen_run_id FROM diamonds")
    }
    assert found["a"] == (str(run_id(1)), str(run_id(2)))
    assert found["c"] == (str(run_id(1)), str(run_id(4)))


def test_a_record_of_unknown_age_is_as_old_as_its_fetching(site):
    site.raw({"a": 1}, updated=None)
    site.birth(a_run())
    site.consolidate()
    assert instant(site.rows("SELECT source_updated_at FROM diamonds")[0][0]) == START


def test_pricing_rules_are_applied_and_kept_as_they_were(site):
    site.sql(
        "INSERT INTO pricing_rules (id, priority, shape, margin, rounding) VALUES (1, 10, 'OVAL', '0.105', '0.01')"
        if site.ledger.database.dialect == "sqlite"
        else "INSERT INTO pricing_rules (id, priority, shape, margin, rounding) VALUES (1, 10, 'OVAL', 0.105, 0.01)"
    )
    site.sql("INSERT INTO pricing_rules (id, priority, active, absolute) VALUES (2, 1, false, 999)")
    site.raw({"a": json.dumps({"id": "o", "price": "10.01", "shape": "oval"}), "b": 10})
    site.birth(a_run())
    site.consolidate()
    assert site.prices() == {"a": Decimal("11.06"), "b": Decimal(10)}
    assert dict(site.rows("SELECT supplier_stone_id, pricing_rule_id FROM diamonds")) == {"a": 1, "b": None}
    ((rules,),) = site.rows("SELECT rules FROM harvest_pricing")
    assert [r["id"] for r in (json.loads(rules) if isinstance(rules, str) else rules)] == [1]


def test_a_pricing_rule_that_cannot_be_applied_fails_the_run_before_anything_is_written(site):
    site.sql("INSERT INTO pricing_rules (id, priority, margin, rounding_mode) VALUES (7, 1, 0, 'sideways')")
    site.raw(stones(3))
    site.birth(a_run())
    run = site.consolidate()
    assert run.status is R.FAILED
    assert "pricing rule 7" in run.error
    assert site.prices() == {}
    assert site.watermark() is None


BAD = json.dumps({"id": "offer"})


def test_rows_that_cannot_be_mapped_are_set_aside_and_stop_nothing(site):
    payloads = {**stones(300), "s0007": BAD, "s0100": "7", "s0200": json.dumps({"id": "x\0y", "price": 1})}
    site.raw(payloads)
    site.birth(a_run())
    run = site.consolidate(chunk_rows=100)
    assert (run.status, run.records_consolidated, run.records_rejected) == (R.COMPLETED, 297, 3)
    assert set(site.prices()) == set(stones(300)) - {"s0007", "s0100", "s0200"}
    found = site.rejected()
    assert found["s0007"] == "it has no price"
    assert found["s0100"].startswith("TypeError")
    assert "cannot be stored" in found["s0200"]


def test_more_than_a_hundredth_of_them_fails_the_run(site):
    site.raw({**stones(150), "s0007": BAD, "s0008": BAD})
    site.birth(a_run())
    run = site.consolidate()
    assert run.status is R.FAILED
    assert "2 rows of 150 cannot be mapped" in run.error
    assert "s0007: it has no price" in run.error
    assert site.watermark() is None
    assert [severity for severity, _ in site.events("harvest.failed")] == ["critical"]
    assert set(site.rejected()) == {"s0007", "s0008"}


def test_what_was_set_aside_is_mapped_when_the_run_is_consolidated_again(site):
    site.raw({**stones(20), "s0007": BAD})
    site.birth(a_run())
    assert site.consolidate().status is R.FAILED
    ref = Ref("harvest_run", str(run_id(1)))
    given = {"forced_by": "operator:ann", "forced_reason": "the mapping is mended", "due_at": site.ledger.clock.now()}
    site.ledger.move(
        ref, R.CONSOLIDATION_TRIGGERED, actor=Actor.OPERATOR, who="ann", reason="mended", error=None, **given
    )
    mended = dataclasses.replace(
        FEEDS[FEED], map=lambda payload: FEEDS[FEED].map(json.dumps({"price": 5, **json.loads(payload)}))
    )
    run = site.consolidate(feeds={FEED: mended})
    assert (run.status, run.records_consolidated, run.records_rejected) == (R.COMPLETED, 20, 0)
    assert site.prices()["s0007"] == 5
    assert site.rejected() == {}


def test_a_forced_run_bears_what_is_set_aside_and_leaves_the_watermark(site):
    site.raw({**stones(20), "s0007": BAD})
    site.birth(a_run(forced_by="operator:ann", forced_reason="we need it now"))
    run = site.consolidate()
    assert (run.status, run.records_rejected, run.watermark_after) == (R.COMPLETED, 1, None)
    assert site.watermark() is None
    assert site.events("harvest.watermark_advanced") == []


def test_a_forced_run_keeps_the_watermark_it_started_from_and_deletes_nothing(site):
    site.raw(stones(20))
    site.birth(a_run())
    site.consolidate()
    site.raw(stones(5), 2)
    before = START + HOUR
    site.birth(a_run(2, watermark_before=before, forced_by="operator:ann", forced_reason="why not"))
    run = site.consolidate(2)
    assert (run.status, run.watermark_after, run.records_deleted) == (R.COMPLETED, before, 0)
    assert instant(site.watermark()) == before
    assert len(site.prices()) == 20


def without(*names: str) -> dict[str, int]:
    return {stone: price for stone, price in stones(25).items() if stone not in names}


def test_the_second_full_run_that_does_not_see_a_record_soft_deletes_it(site):
    site.raw(stones(25))
    site.birth(a_run(1))
    site.consolidate()
    few: dict[str, Any] = {"most_rejected": 0.1, "bounds": {"at_once": 1}}
    site.raw(without("s0003", "s0024") | {"s0005": BAD}, 2)
    site.birth(a_run(2))
    run = site.consolidate(2, **few)
    assert (run.status, run.records_deleted, run.unseen) == (R.COMPLETED, 0, 2)
    assert len(site.prices()) == 25
    site.raw(without("s0003", "s0009"), 3)
    site.birth(a_run(3))
    run = site.consolidate(3, **few)
    assert (run.status, run.records_deleted, run.unseen) == (R.COMPLETED, 1, 1)
    assert set(site.prices()) == set(without("s0003"))
    assert site.missed() == {"s0003": 2, "s0009": 3}


@pytest.mark.by_day
@pytest.mark.parametrize("kind", ["newer", "older", "unmappable"])
@pytest.mark.parametrize("run_type", [RunType.FULL, RunType.INCREMENTAL])
def test_a_record_that_any_run_sees_again_lives_again(site, kind, run_type):
    """Also where the row is newer than what was seen, and stays, or where that cannot be mapped."""
    site.raw(stones(25))
    site.birth(a_run(1))
    site.consolidate()
    for number in (2, 3):
        site.raw(without("s0003"), number)
        site.birth(a_run(number))
        assert site.consolidate(number).records_deleted == number - 2
    assert set(site.prices()) == set(without("s0003"))
    if run_type is RunType.FULL:
        site.raw(without("s0003"), 4)
    seen = {"s0003": BAD if kind == "unmappable" else 7}
    site.raw(seen, 4, updated=START - HOUR if kind == "older" else START)
    site.birth(a_run(4, run_type=run_type))
    run = site.consolidate(4, chunk_rows=2_500, most_rejected=1)
    assert (run.status, run.records_deleted) == (R.COMPLETED, 0)
    assert site.prices() == {**stones(25), "s0003": 7 if kind == "newer" else 103}
    assert site.missed() == {}


@pytest.mark.by_day
def test_a_record_that_is_seen_between_two_full_runs_is_not_gone(site):
    site.raw(stones(25))
    site.birth(a_run(1))
    site.consolidate()
    site.raw(without("s0003", "s0004"), 2)
    site.birth(a_run(2))
    site.consolidate(2)
    site.raw({"s0003": 7}, 3, updated=START - HOUR)
    site.birth(a_run(3, run_type=RunType.INCREMENTAL))
    site.consolidate(3)
    assert site.missed() == {"s0004": 2}
    site.raw(without("s0003", "s0004"), 4)
    site.birth(a_run(4))
    assert site.consolidate(4).records_deleted == 1
    assert set(site.prices()) == set(without("s0004"))
    assert site.missed() == {"s0003": 4, "s0004": 2}


def test_a_forced_run_neither_deletes_nor_counts_as_one_of_the_two(site):
    site.raw(stones(25))
    site.birth(a_run(1))
    site.consolidate()
    for number in (2, 3):
        site.raw(without("s0003"), number)
        site.birth(a_run(number, watermark_before=START, forced_by="operator:ann", forced_reason="why not"))
        run = site.consolidate(number)
        assert (run.records_deleted, run.unseen) == (0, 1)
    assert site.missed() == {}
    assert len(site.prices()) == 25


def test_a_run_that_sees_nothing_proves_nothing(site):
    site.raw(stones(25))
    site.birth(a_run(1))
    site.consolidate()
    for number in (2, 3):
        site.birth(a_run(number))
        run = site.consolidate(number)
        assert (run.status, run.records_deleted, run.unseen) == (R.COMPLETED, 0, 25)
    assert len(site.prices()) == 25


def test_an_incremental_run_deletes_nothing(site):
    site.raw(stones(25))
    site.birth(a_run(1))
    site.consolidate()
    site.raw({"s0001": 5}, 2)
    site.birth(a_run(2, run_type=RunType.INCREMENTAL))
    assert site.consolidate(2).status is R.COMPLETED
    assert len(site.prices()) == 25


def test_a_full_run_that_would_empty_the_feed_fails_instead(site):
    site.raw(stones(25))
    site.birth(a_run(1))
    site.consolidate()
    site.raw(stones(12), 2)
    site.birth(a_run(2))
    run = site.consolidate(2, bounds={"judged_from": 25})
    assert run.status is R.FAILED
    assert "13 of 25 records" in run.error
    assert len(site.prices()) == 25
    assert instant(site.watermark()) == site.run(1).window_to


def test_the_watermark_never_moves_backwards(site):
    for number in (3, 2):
        site.raw(stones(2), number)
        site.birth(a_run(number, run_type=RunType.INCREMENTAL))
        assert site.consolidate(number).status is R.COMPLETED
    assert instant(site.watermark()) == START + 3 * HOUR
    assert site.run(2).watermark_after == START + 2 * HOUR


def test_a_watermark_that_was_set_back_meanwhile_stays_where_it_was_set(site):
    site.raw(stones(2))
    site.birth(a_run(1))
    site.consolidate()
    site.raw(stones(2), 2)
    site.birth(a_run(2, run_type=RunType.INCREMENTAL, watermark_before=START + HOUR))
    moment = instant_text(START - HOUR)
    cast = ":at" if site.ledger.database.dialect == "sqlite" else "CAST(:at AS timestamptz)"
    site.sql(f"UPDATE watermark SET last_updated_at = {cast}", at=moment)
    run = site.consolidate(2)
    assert run.status is R.COMPLETED
    assert instant(site.watermark()) == START - HOUR


def test_a_run_is_not_completed_while_a_row_is_unconsolidated(site):
    site.raw(stones(3))
    site.birth(a_run())
    late = {"added": False}

    def map_late(payload):
        if not late["added"]:
            late["added"] = True
            site.raw({"late": 9, **{f"late{n}": 9 for n in range(4)}}, 1)
        return FEEDS[FEED].map(payload)

    run = site.consolidate(feeds={FEED: dataclasses.replace(FEEDS[FEED], map=map_late)})
    assert run.status is R.FAILED
    assert "not consolidated" in run.error
    assert site.watermark() is None


def test_a_chunk_of_a_run_that_was_cancelled_goes_with_it(site):
    site.raw(stones(30))
    site.birth(a_run())
    ref = Ref("harvest_run", str(run_id(1)))

    def cancel(payload):
        if site.run().status is R.CONSOLIDATING:
            cancelled = {"error": "cancelled by ann", "due_at": None}
            site.ledger.move(ref, R.FAILED, actor=Actor.OPERATOR, who="ann", reason="enough", **cancelled)
        return FEEDS[FEED].map(payload)

    site.consolidate(feeds={FEED: dataclasses.replace(FEEDS[FEED], map=cancel)})
    assert site.run().status is R.FAILED
    assert site.watermark() is None


def test_a_row_of_two_with_the_same_position_is_not_lost(site):
    site.raw(stones(30))
    site.sql("UPDATE raw_diamonds_nivoda SET position = position - 1 WHERE supplier_stone_id IN ('s0010', 's0011')")
    site.sql("UPDATE raw_diamonds_nivoda SET position = position + 1 WHERE supplier_stone_id = 's0019'")
    site.birth(a_run())
    assert site.consolidate().records_consolidated == 30
    assert len(site.prices()) == 30


def test_rows_that_do_not_fit_one_outcome_take_several(site):
    long = "x" * 400_000
    site.raw({f"s{n}": json.dumps({"id": f"{n}{long}", "price": n + 1}) for n in range(20)})
    site.birth(a_run())
    run = site.consolidate(chunk_rows=20)
    assert (run.status, run.expected_chunks, run.records_consolidated) == (R.COMPLETED, 1, 20)
    assert [(c.status, c.records) for c in site.chunks()] == [(C.DONE, 20)]
    assert len(site.prices()) == 20


def test_more_rows_in_a_range_than_an_outcome_carries_take_several(site):
    """Ranges are larger where a run has more rows than chunks, and where rows share a position."""
    count = 2 * MAX_ROWS + 100
    site.raw(stones(count))
    site.birth(a_run())
    run = site.consolidate(chunk_rows=3 * MAX_ROWS)
    assert (run.status, run.expected_chunks, run.records_consolidated) == (R.COMPLETED, 1, count)
    assert site.rows("SELECT count(*) FROM diamonds") == [(count,)]


def test_a_chunk_is_tried_three_times_and_says_why_it_failed():
    flow, rng = Chunks(small(), FEEDS), Rng(1)
    chunk = Chunk(run_id=run_id(1), number=0, feed=FEED, first=0, last=5, status=C.WORKING, attempts=1)
    assert flow.failed(chunk, Transient("away"), START, rng) is None
    outcome = flow.failed(replace(chunk, attempts=2), Transient("away"), START, rng)
    assert outcome is not None
    assert (outcome.after.status, outcome.after.error) == (C.FAILED, "Transient: away (after 2 retries)")


def test_two_consolidators_at_once_come_to_the_same_as_one(ledger_url):
    site = Site(ledger_url, real=True)
    try:
        site.raw({**stones(2_000), "s0007": BAD, "s1007": BAD})
        site.sql("INSERT INTO pricing_rules (id, priority, absolute) VALUES (1, 1, 5)")
        with processes(ledger_url, 2, 50):
            site.birth(a_run())
            run = wait_for(site)
        assert (run.status, run.records_consolidated, run.records_rejected) == (R.COMPLETED, 1_998, 2)
        assert run.completed_chunks == run.expected_chunks == 40
        wanted = {s: Decimal(p + 5) for s, p in stones(2_000).items() if s not in ("s0007", "s1007")}
        assert site.prices() == wanted
        workers = {row[0] for row in site.rows("SELECT DISTINCT changed_by FROM harvest_chunk")}
        assert len(workers) == 2
    finally:
        site.close()

"""Whole harvests, consolidation included: what was updated meanwhile, and what a run leaves to the next."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from penstock.lifecycles.harvest.chunk.flow import Chunks
from penstock.lifecycles.harvest.run.consolidate import Consolidator
from penstock.lifecycles.harvest.run.machine import R, RunType
from penstock.model.clock import instant
from penstock.model.errors import Rejected
from tests.support.consolidation import FEEDS
from tests.support.harvest import FEED, START, Bench, Catalogue, Stone, on_bench, small, stones


def harvest(url: str, source: Catalogue, test: Any) -> None:
    consolidation = Consolidator(small(chunk_rows=60), FEEDS)
    on_bench(url, source, test, feed=FEEDS[FEED], consolidation=consolidation, more=[Chunks(small(), FEEDS)])


def prices(bench: Bench) -> dict[str, int]:
    found = bench.rows("SELECT supplier_stone_id, price FROM diamonds WHERE deleted_at IS NULL")
    return {stone: int(price) for stone, price in found}


def wanted(source: Catalogue) -> dict[str, int]:
    return {s.stone: s.price for s in source.stones}


def watermark(bench: Bench) -> Any:
    found = bench.rows("SELECT last_updated_at FROM watermark")
    return instant(found[0][0]) if found else None


def test_a_catalogue_is_harvested_and_then_what_changed(ledger_url):
    source = Catalogue(stones(300))

    async def test(bench: Bench) -> None:
        assert (await bench.harvest()).status is R.COMPLETED
        assert prices(bench) == wanted(source)
        bench.clock.advance(3_600)
        source.put(*(Stone(s.price + 1, s.stone, bench.clock.now()) for s in source.stones[:40]))
        run = await bench.harvest()
        assert (run.status, run.run_type, run.records_consolidated) == (R.COMPLETED, RunType.INCREMENTAL, 40)
        assert prices(bench) == wanted(source)

    harvest(ledger_url, source, test)


def test_what_is_updated_while_a_run_is_under_way_is_there_after_the_next_one(ledger_url):
    source = Catalogue(stones(300))
    changed: list[str] = []

    async def test(bench: Bench) -> None:
        def meanwhile(what: str, span: Any, offset: int) -> None:
            bench.clock.advance(60)
            if what == "page" and offset == 30 and not changed:
                # Already fetched by this run, and changed long before it completes.
                first = source.stones[0]
                changed.append(first.stone)
                source.put(Stone(first.price, first.stone, bench.clock.now(), "changed"))

        source.trouble = meanwhile
        run = await bench.harvest()
        assert run.status is R.COMPLETED
        assert run.watermark_after < run.completed_at
        assert changed
        source.trouble = lambda *_: None
        bench.clock.advance(3_600)
        run = await bench.harvest()
        assert (run.status, run.run_type) == (R.COMPLETED, RunType.INCREMENTAL)
        assert changed[0] in bench.raw()
        assert '"note": "changed"' in bench.raw()[changed[0]]

    harvest(ledger_url, source, test)


def test_a_failed_partition_leaves_the_watermark_and_the_canonical_rows_alone(ledger_url):
    source = Catalogue(stones(300))

    async def test(bench: Bench) -> None:
        await bench.harvest()
        before, rows = watermark(bench), prices(bench)
        bench.clock.advance(3_600)
        source.put(*(Stone(s.price + 1, s.stone, bench.clock.now()) for s in source.stones))

        def trouble(what: str, span: Any, offset: int) -> None:
            if what == "page" and span.low == 0 and offset >= 30:
                raise Rejected("no")

        source.trouble = trouble
        run = await bench.harvest()
        assert (run.status, run.watermark_after) == (R.FAILED, None)
        assert (watermark(bench), prices(bench)) == (before, rows)
        assert bench.rows("SELECT count(*) FROM harvest_chunk WHERE run_id = :run", run=_id(bench, run)) == [(0,)]
        source.trouble = lambda *_: None
        bench.clock.advance(3_600)
        run = await bench.harvest()
        assert (run.status, run.watermark_before) == (R.COMPLETED, before)
        assert prices(bench) == wanted(source)
        assert watermark(bench) == run.window_to > before >= START - timedelta(0)

    harvest(ledger_url, source, test)


def _id(bench: Bench, run: Any) -> Any:
    return run.run_id if bench.ledger.database.dialect == "postgresql" else str(run.run_id)

"""Raw records go when their run is over for long enough; those of a run that can be retried stay."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.lifecycles.harvest.chunk.flow import Chunks
from penstock.lifecycles.harvest.prune import Gone, prune_raw_records
from penstock.lifecycles.harvest.run.consolidate import Consolidator
from penstock.lifecycles.harvest.run.machine import R
from penstock.model.errors import Rejected
from tests.support.consolidation import FEEDS
from tests.support.harvest import FEED, Bench, Catalogue, Stone, on_bench, small, stones

KEEP = timedelta(days=30)
RAW = [FEEDS[FEED].raw]


def harvest(url: str, source: Catalogue, test: Any) -> None:
    consolidation = Consolidator(small(chunk_rows=60), FEEDS)
    on_bench(url, source, test, feed=FEEDS[FEED], consolidation=consolidation, more=[Chunks(small(), FEEDS)])


def raw(bench: Bench) -> dict[str, int]:
    sql = f"SELECT run_id, count(*) FROM {RAW[0].name} GROUP BY run_id"
    return {str(run_id): count for run_id, count in bench.rows(sql)}


@pytest.mark.by_day
def test_raw_records_of_a_run_that_is_long_over_go_and_its_stones_stay(ledger_url):
    source = Catalogue(stones(300))

    async def test(bench: Bench) -> None:
        first = await bench.harvest()
        bench.clock.advance(29 * 86_400)
        source.put(Stone(7, "new", bench.clock.now()))
        second = await bench.harvest()
        assert prune_raw_records(bench.ledger, RAW, KEEP, bench.clock.now()) == Gone(0, more=False)
        bench.clock.advance(2 * 86_400)
        assert raw(bench).keys() == {str(first.run_id), str(second.run_id)}
        some = prune_raw_records(bench.ledger, RAW, KEEP, bench.clock.now(), at_most=1)
        assert some == Gone(300, more=True), "a transaction is whole, and the rest waits for the next run of the job"
        assert prune_raw_records(bench.ledger, RAW, KEEP, bench.clock.now()) == Gone(0, more=False)
        assert raw(bench).keys() == {str(second.run_id)}
        assert bench.rows("SELECT count(*) FROM diamonds WHERE deleted_at IS NULL")[0][0] == len(source.stones)

    harvest(ledger_url, source, test)


@pytest.mark.by_day
def test_a_run_that_can_still_be_retried_keeps_its_records(ledger_url):
    source = Catalogue(stones(300))

    async def test(bench: Bench) -> None:
        def refuse(what: str, _span: Any, offset: int) -> None:
            if what == "page" and offset:
                raise Rejected("no such page")

        source.trouble = refuse
        failed = await bench.harvest()
        assert failed.status is R.FAILED
        source.trouble = lambda *_: None
        kept = raw(bench)
        bench.clock.advance(40 * 86_400)
        assert prune_raw_records(bench.ledger, RAW, KEEP, bench.clock.now()).rows == 0
        assert raw(bench) == kept
        later = await bench.harvest()
        assert later.status is R.COMPLETED
        prune_raw_records(bench.ledger, RAW, KEEP, bench.clock.now())
        assert raw(bench).keys() == {str(later.run_id)}, "no longer: another has covered what it lacks"

    harvest(ledger_url, source, test)

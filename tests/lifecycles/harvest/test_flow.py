"""From the tick to the completed run, page by page, with what goes wrong on the way."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.lifecycles.harvest.feed import Span
from penstock.lifecycles.harvest.partition.machine import P
from penstock.lifecycles.harvest.run.machine import R, RunType
from penstock.model.errors import Fatal, Rejected, Throttled, Transient
from penstock.model.unit import Ref
from tests.support.harvest import FEED, START, Bench, Catalogue, Stone, on_bench, small, stones


def everything(source: Catalogue) -> dict[str, str]:
    return {s.stone: s.payload() for s in source.stones}


def test_the_first_run_is_full_and_fetches_everything_once(ledger_url):
    source = Catalogue(stones(500))

    async def test(bench: Bench) -> None:
        run = await bench.harvest()
        assert (run.status, run.run_type, run.expected_workers) == (R.COMPLETED, RunType.FULL, 5)
        assert (run.completed_workers, run.failed_workers, run.verified_workers) == (5, 0, 5)
        assert run.watermark_before is None
        assert run.watermark_after == run.started_at == START
        assert run.expected_records == 500
        assert bench.raw() == everything(source)
        assert sum(p.expected_records for p in bench.partitions()) == 500
        # And the last record of each once more, after it was counted again.
        assert source.asked("page") == sum(-(-p.expected_records // 30) + 1 for p in bench.partitions())
        assert [status for _, status, _, _ in bench.workers()] == ["completed"] * 5
        assert sum(records for _, _, records, _ in bench.workers()) == 500
        assert bench.edges("harvest_run", run.unit_id) == [
            "created",
            "workers_running",
            "consolidation_triggered",
            "consolidating",
            "completed",
        ]
        first = bench.partitions()[0]
        assert bench.edges("harvest_partition", first.unit_id) == [
            "pending",
            "in_progress",
            "fetching_pages",
            "completed",
        ]

    on_bench(ledger_url, source, test)


def test_run_partitions_and_counts_are_born_together(ledger_url):
    """What the scan found is there before the first page is asked for, and nothing of it before the scan has ended."""
    source = Catalogue(stones(300))
    there: list[int] = []

    async def test(bench: Bench) -> None:
        def look(what: str, span: Span, offset: int) -> None:
            there.append(len(bench.rows("SELECT 1 FROM partition_progress")) if what == "count" else -1)

        source.trouble = look
        await bench.harvest()
        scanned = there[: there.index(-1)]
        assert set(scanned) == {0}
        assert len(bench.partitions()) == 3

    on_bench(ledger_url, source, test)


def test_later_runs_read_what_was_updated_since_the_watermark_less_an_overlap(ledger_url):
    source = Catalogue(stones(300))

    async def test(bench: Bench) -> None:
        first = await bench.harvest()
        bench.clock.advance(3_600)
        touched = [Stone(s.price + 1, s.stone, bench.clock.now(), "again") for s in source.stones[:40]]
        within = Stone(777, "within-the-overlap", first.window_to - timedelta(minutes=9))
        before = Stone(778, "before-the-overlap", first.window_to - timedelta(minutes=11))
        source.put(*touched, within, before)
        second = await bench.harvest()
        assert (second.run_type, second.status) == (RunType.INCREMENTAL, R.COMPLETED)
        assert second.watermark_before == first.watermark_after
        assert second.window_from == first.watermark_after - timedelta(minutes=10)
        assert second.watermark_after == second.window_to == START + timedelta(hours=1)
        assert set(bench.raw()) == {s.stone for s in (*touched, within)}

    on_bench(ledger_url, source, test)


def test_what_is_updated_while_a_run_is_under_way_is_read_by_the_next(ledger_url):
    """With the moment of completion as the watermark it would be lost."""
    source = Catalogue(stones(300))
    late = Stone(source.stones[0].price, source.stones[0].stone, START + timedelta(minutes=20), "late")

    async def test(bench: Bench) -> None:
        def change(what: str, span: Span, offset: int) -> None:
            if what == "page" and offset == 30 and bench.clock.now() < START + timedelta(hours=1):
                # The page that held it has been read; the run takes another hour.
                bench.clock.advance(3_600)
                source.put(late)

        source.trouble = change
        first = await bench.harvest()
        assert first.status is R.COMPLETED
        assert "late" not in bench.raw()[late.stone]
        source.trouble = lambda *_: None
        second = await bench.harvest()
        assert bench.raw() == {late.stone: late.payload()}
        assert second.window_from < late.updated <= second.window_to

    on_bench(ledger_url, source, test)


def test_nothing_to_do_completes_and_moves_the_watermark(ledger_url):
    source = Catalogue(stones(100))

    async def test(bench: Bench) -> None:
        await bench.harvest()
        bench.clock.advance(7_200)
        second = await bench.harvest()
        assert (second.status, second.expected_workers, second.expected_records) == (R.COMPLETED, 0, 0)
        assert second.watermark_after == START + timedelta(hours=2)
        assert bench.edges("harvest_run", second.unit_id)[:2] == ["created", "consolidation_triggered"]

    on_bench(ledger_url, source, test)


def test_a_full_run_comes_again_after_its_time(ledger_url):
    source = Catalogue(stones(60))

    async def test(bench: Bench) -> None:
        kinds = []
        for _ in range(4):
            kinds.append((await bench.harvest()).run_type)
            bench.clock.advance(3 * 86_400)
        assert kinds == [RunType.FULL, RunType.INCREMENTAL, RunType.INCREMENTAL, RunType.FULL]

    on_bench(ledger_url, source, test)


def test_a_tick_while_a_run_is_under_way_starts_no_other(ledger_url):
    source = Catalogue(stones(100))

    async def test(bench: Bench) -> None:
        source.trouble = _refuse(Transient("away"), lambda what, span, offset: what == "page")
        bench.tick()
        await bench.quiet()
        bench.tick()
        await bench.quiet()
        assert len(bench.runs()) == 1
        assert bench.rows("SELECT change_reason FROM schedule")[0][0].endswith("is still under way")

    on_bench(ledger_url, source, test)


def test_duplicate_and_late_deliveries_change_nothing(ledger_url):
    """A partition that is asked for again, before, while and after it is fetched, counts every page once."""
    source = Catalogue(stones(400))

    async def test(bench: Bench) -> None:
        def again(what: str, span: Span, offset: int) -> None:
            if what == "page":
                bench.ledger.nudge([Ref("harvest_partition", p.unit_id) for p in bench.partitions()])

        source.trouble = again
        run = await bench.harvest()
        assert run.status is R.COMPLETED
        assert bench.raw() == everything(source)
        # And the last record of each once more, after it was counted again.
        assert source.asked("page") == sum(-(-p.expected_records // 30) + 1 for p in bench.partitions())
        before = bench.partitions()
        bench.ledger.nudge([Ref("harvest_partition", p.unit_id) for p in before])
        await bench.quiet()
        after = bench.partitions()
        assert [p.duplicate_pages for p in after] == [p.duplicate_pages + 1 for p in before]
        assert [(p.status, p.pages, p.next_offset) for p in after] == [
            (p.status, p.pages, p.next_offset) for p in before
        ]
        assert bench.run().status is R.COMPLETED
        assert bench.run().completed_workers == run.completed_workers

    on_bench(ledger_url, source, test)


def test_of_two_workers_with_the_same_page_one_commits(ledger_url):
    """The first one's claim is taken from it while its page is on the way; its page comes to nothing."""
    source = Catalogue(stones(90))

    async def test(bench: Bench) -> None:
        taken: list[int] = []

        def take(what: str, span: Span, offset: int) -> None:
            if what == "page" and offset == 30 and not taken:
                taken.append(offset)
                machine = bench.ledger.machine("harvest_partition")
                bench.ledger.database.write(
                    lambda c: c.run(f"UPDATE {machine.table} SET claimed_by = NULL, version = version + 1")
                )

        source.trouble = take
        run = await bench.harvest()
        assert run.status is R.COMPLETED
        assert bench.worker.counts.lost == 1
        (partition,) = bench.partitions()
        assert (partition.pages, partition.records) == (3, 90)
        assert [offset for what, _, offset in source.calls if what == "page"] == [0, 30, 30, 60, 89]
        assert bench.raw() == everything(source)

    on_bench(ledger_url, source, test)


def test_a_source_without_an_end_is_read_within_a_bound(ledger_url):
    """A source that has rows without end, as one that forgets its filter past the count."""
    source = Catalogue(stones(95))

    async def page(window, span, offset, limit):
        source.calls.append(("page", span, offset))
        found = source._within(window, span)[offset : offset + limit]
        return [*found, *(Stone(1, f"beyond-{n}") for n in range(offset + len(found), offset + limit))]

    source.page = page  # type: ignore[method-assign]

    async def test(bench: Bench) -> None:
        run = await bench.harvest()
        assert run.status is R.COMPLETED
        assert everything(source).items() < bench.raw().items()
        assert [offset for what, _, offset in source.calls if what == "page"] == list(range(0, 210, 30))
        (partition,) = bench.partitions()
        assert partition.doubt == "it goes on past its count of 95 without an end"
        assert (partition.ended, partition.rescans) == (False, 0)

    on_bench(ledger_url, source, test, settings=small(extra_pages=3))


def test_a_throttle_charges_nobody(ledger_url):
    source = Catalogue(stones(100))

    async def test(bench: Bench) -> None:
        source.trouble = _refuse(Throttled("slow down", 120), lambda what, span, offset: offset == 60, times=6)
        run = await bench.harvest()
        assert run.status is R.COMPLETED
        assert all(p.attempts == 0 for p in bench.partitions())
        assert bench.clock.now() >= START + timedelta(minutes=2)

    on_bench(ledger_url, source, test)


def test_a_throttle_in_the_scan_puts_it_off_and_is_no_failure(ledger_url):
    source = Catalogue(stones(100))

    async def test(bench: Bench) -> None:
        source.trouble = _refuse(Throttled("slow down", 120), lambda what, span, offset: what == "count", times=1)
        bench.tick()
        await bench.quiet()
        assert bench.runs() == []
        assert bench.rows("SELECT failures FROM schedule") == [(0,)]
        bench.clock.advance(200)
        run = await bench.settled()
        assert run.status is R.COMPLETED
        assert [kind for kind, _ in bench.alerts() if kind.startswith("schedule")] == []

    on_bench(ledger_url, source, test)


def test_a_failure_that_passes_is_retried_where_it_was(ledger_url):
    source = Catalogue(stones(100))

    async def test(bench: Bench) -> None:
        source.trouble = _refuse(Transient("away"), lambda what, span, offset: offset == 60, times=3)
        run = await bench.harvest()
        assert run.status is R.COMPLETED
        pages = [offset for what, _, offset in source.calls if what == "page"]
        assert pages.count(0) == pages.count(30) == 1
        assert pages.count(60) == 4
        assert bench.raw() == everything(source)

    on_bench(ledger_url, source, test)


@pytest.mark.parametrize("error", [Transient("away"), Rejected("never")], ids=["exhausted", "rejected"])
def test_a_failed_partition_fails_the_run_once_all_have_ended(ledger_url, error):
    source = Catalogue(stones(500))

    async def test(bench: Bench) -> None:
        broken: list[Span] = []

        def fail(what: str, span: Span, offset: int) -> None:
            if what == "page" and offset == 60 and (not broken or span in broken):
                broken.append(span)
                raise error

        source.trouble = fail
        run = await bench.harvest()
        assert (run.status, run.completed_workers, run.failed_workers) == (R.FAILED, 4, 1)
        assert bench.edges("harvest_run", run.unit_id)[-2:] == ["consolidation_skipped", "failed"]
        assert (run.completed_at, run.watermark_after) == (None, None)
        assert bench.rows("SELECT 1 FROM watermark") == []
        assert [a for a in bench.alerts() if a[0] == "harvest.failed"] == [("harvest.failed", "critical")]
        (failed,) = [p for p in bench.partitions() if p.status is P.FAILED]
        assert Span(failed.low, failed.high) == broken[0]
        assert (failed.next_offset, failed.records) == (60, 60)
        assert str(error) in failed.error
        (worker,) = [w for w in bench.workers() if w[1] == "failed"]
        assert worker == (failed.partition_id, "failed", 60, failed.error)

    on_bench(ledger_url, source, test)


def test_credentials_that_are_refused_stop_the_account_and_charge_no_partition(ledger_url):
    source = Catalogue(stones(100))

    async def test(bench: Bench) -> None:
        source.trouble = _refuse(Fatal("no such login"), lambda what, span, offset: offset == 30, times=1)
        run = await bench.harvest()
        assert run.status is R.WORKERS_RUNNING
        assert all(p.attempts == 0 and p.error is None for p in bench.partitions())
        bench.ledger.gates.resume("catalogue/stones", "a person")
        run = await bench.settled()
        assert run.status is R.COMPLETED

    on_bench(ledger_url, source, test)


def test_records_that_moved_across_the_border_of_a_page_are_read(ledger_url):
    """Records in front vanish between pages, so that others move forward; the page before is read again."""
    source = Catalogue(stones(300))

    async def test(bench: Bench) -> None:
        shifted: list[Span] = []

        def shift(what: str, span: Span, offset: int) -> None:
            if what == "page" and offset == 60 and not shifted:
                shifted.append(span)
                source.drop([s.stone for s in source.stones if s.price >= span.low][:10])

        source.trouble = shift
        run = await bench.harvest()
        assert (run.status, run.verified_workers) == (R.COMPLETED, 3)
        (back,) = [p for p in bench.partitions() if p.steps_back]
        assert Span(back.low, back.high) == shifted[0]
        assert (back.steps_back, back.rescans, back.doubt) == (1, 0, None)
        assert [offset for what, span, offset in source.calls if (what, span) == ("page", shifted[0])] == [
            *(0, 30, 60, 30, 60),
            *range(90, back.next_offset, 30),
            back.next_offset,
            back.next_offset - 1,
        ]
        assert set(bench.raw()) >= set(everything(source))

    on_bench(ledger_url, source, test)


def test_a_partition_that_lost_too_much_is_fetched_again(ledger_url):
    """The record that the page before saw coming is gone itself: where the next one lies, nobody can tell."""
    source = Catalogue(stones(300))

    async def test(bench: Bench) -> None:
        shifted: list[Span] = []

        def shift(what: str, span: Span, offset: int) -> None:
            if what == "page" and offset == 60 and not shifted:
                shifted.append(span)
                source.drop([s.stone for s in source.stones if s.price >= span.low][50:61])

        source.trouble = shift
        run = await bench.harvest()
        assert run.status is R.COMPLETED
        (again,) = [p for p in bench.partitions() if p.rescans]
        assert Span(again.low, again.high) == shifted[0]
        assert again.rescans == 1
        assert bench.edges("harvest_partition", again.unit_id) == [
            *("pending", "in_progress", "fetching_pages", "completed"),
            *("pending", "in_progress", "fetching_pages", "completed"),
        ]
        assert set(bench.raw()) >= set(everything(source))
        assert (run.completed_workers, run.verified_workers) == (3, 3)
        assert {p.doubt for p in bench.partitions()} == {None}

    on_bench(ledger_url, source, test, settings=small(extra_pages=1))


def test_a_partition_that_is_never_whole_fails_with_its_reason(ledger_url):
    source = Catalogue(stones(100))

    async def page(window, span, offset, limit):
        source.calls.append(("page", span, offset))
        return source._within(window, span)[::2][offset : offset + limit]

    source.page = page  # type: ignore[method-assign]

    async def test(bench: Bench) -> None:
        run = await bench.harvest()
        assert (run.status, run.failed_workers, run.completed_workers) == (R.FAILED, 1, 0)
        (partition,) = bench.partitions()
        assert partition.error == "50 of 100 records were found, after it was fetched 3 times"
        assert bench.workers()[0][1] == "failed"

    on_bench(ledger_url, source, test)


def test_what_is_missing_within_the_tolerance_is_borne(ledger_url):
    source = Catalogue(stones(100))

    async def page(window, span, offset, limit):
        return [s for s in source._within(window, span)[offset : offset + limit] if s.stone != "s000007"]

    source.page = page  # type: ignore[method-assign]

    async def test(bench: Bench) -> None:
        run = await bench.harvest()
        assert run.status is R.COMPLETED
        assert [(p.found_records, p.rescans) for p in bench.partitions()] == [(99, 2)]
        assert bench.partitions()[0].doubt == "a page was short before the end"

    on_bench(ledger_url, source, test, settings=small(tolerance=0.01))


def test_a_count_that_cannot_be_had_again_is_done_without(ledger_url):
    source = Catalogue(stones(100))

    async def test(bench: Bench) -> None:
        source.trouble = _refuse(Transient("away"), lambda what, span, offset: what == "count" and bool(bench.runs()))
        run = await bench.harvest()
        assert run.status is R.COMPLETED
        assert [(p.found_records, p.doubt) for p in bench.partitions()] == [(100, "it could not be counted again")]

    on_bench(ledger_url, source, test)


def test_a_run_is_not_consolidated_before_every_partition_is_known_to_be_whole(ledger_url):
    source = Catalogue(stones(300))

    async def test(bench: Bench) -> None:
        seen: list[tuple[int, str]] = []

        def look(what: str, span: Span, offset: int) -> None:
            if what == "count" and bench.runs():
                seen.append((bench.run().completed_workers, bench.run().status))

        source.trouble = look
        await bench.harvest()
        assert len(seen) == 3
        assert {status for _, status in seen} == {R.WORKERS_RUNNING}

    on_bench(ledger_url, source, test)


def test_every_page_takes_its_own_place_where_calls_are_counted(ledger_url):
    source = Catalogue(stones(100))

    async def test(bench: Bench) -> None:
        run = await bench.harvest()
        assert run.status is R.COMPLETED
        assert bench.worker.counts.claimed >= source.asked("page") - len(bench.partitions())

    on_bench(ledger_url, source, test, metered=True)


def test_a_feed_that_is_paused_waits_with_what_it_has(ledger_url):
    source = Catalogue(stones(100))
    settings = small(paused=True)

    async def test(bench: Bench) -> None:
        bench.tick()
        await bench.quiet()
        bench.clock.advance(3_600)
        await bench.quiet()
        assert source.asked("page") == 0
        assert bench.run().status is R.WORKERS_RUNNING
        assert {p.error for p in bench.partitions()} == {None}

    on_bench(ledger_url, source, test, settings=settings)


def test_the_work_item_says_what_is_fetched_and_in_which_order(ledger_url):
    source = Catalogue(stones(50))

    async def test(bench: Bench) -> None:
        await bench.harvest()
        ids = [row[0] for row in bench.rows("SELECT unit_id FROM worker_runs")]
        (worker,) = bench.ledger.get_many(bench.ledger.machine("harvest_worker"), ids)
        assert worker.work_item_payload == {
            "feed": FEED,
            "axis": "price",
            "low": 0,
            "high": None,
            "updated": [None, None],
            "expected_records": 50,
            "page_size": 30,
            "order": {"type": "price", "direction": "ASC"},
        }
        assert worker.worker_id

    on_bench(ledger_url, source, test)


def _refuse(error: Exception, when, times: int | None = None):
    """Trouble that raises where `when` says so, so many times."""
    left = [times]

    def trouble(what: str, span: Span, offset: int) -> None:
        if when(what, span, offset) and left[0] != 0:
            if left[0] is not None:
                left[0] -= 1
            raise error

    return trouble


@pytest.mark.by_day
@pytest.mark.parametrize(("typed", "metered"), [(0, False), (30, True), (90, False)])
def test_an_offset_typed_while_a_page_is_under_way_stands_and_is_read_from(ledger_url, typed, metered):
    """The page's own compare-and-set: it commits over the offset that it was asked at, and over no other."""
    source = Catalogue(stones(120))
    asked: list[int] = []

    async def test(bench: Bench) -> None:
        def type_offset(what: str, span: Span, offset: int) -> None:
            if what != "page":
                return
            asked.append(offset)
            if asked == [0, 30, 60]:
                sql = f"UPDATE partition_progress SET next_offset = {typed}"
                bench.ledger.database.write(lambda cursor: cursor.run(sql))

        source.trouble = type_offset
        run = await bench.harvest()
        (done,) = bench.partitions()
        assert asked[:4] == [0, 30, 60, typed]
        assert (run.status, run.verified_workers, done.found_records) == (R.COMPLETED, 1, 120)
        assert bench.raw() == everything(source)
        # What is counted is what was committed: neither the page that was lost nor the look at the end.
        assert asked[-1] == 119
        assert done.records == 30 * (len(asked) - 2)
        assert (done.pages, done.crashes) == (len(asked) - 2, 0)
        strange = bench.rows("SELECT machine, from_status, to_status, reason FROM transition_log WHERE actor = 'sql'")
        assert strange == [("harvest_partition", "fetching_pages", "fetching_pages", "changed next_offset")]
        assert bench.worker.counts.lost == 1

    on_bench(ledger_url, source, test, metered=metered, settings=small(target_records=1_000, incremental_workers=6))

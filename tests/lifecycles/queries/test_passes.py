"""A pass over a list that changes while it is read loses nothing that was there throughout."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors.searches import Bad, Batch, Wanted
from penstock.lifecycles.queries.passes import Kind, Pass, Step, advance, begin_of, closed_day, day_of, read_pass
from tests.support.queries import HOUR, START, Lists, ladder, offer

MADRID = ZoneInfo("Europe/Madrid")
FIRST = Pass(kind=Kind.RECENT, number=1, begun=START, until=START - 1_000 * HOUR)


def _read(client: Lists, now: Pass, between=lambda: None, most: int = 500) -> tuple[Step, set[str]]:
    """Read a list to its end; what was seen."""
    seen: set[str] = set()
    for _ in range(most):
        batch = asyncio.run(_page(client, now))
        fresh = {one.id for one in batch.records if one.id is not None} - seen
        seen |= fresh
        step = advance(now, batch, client, len(fresh))
        now = step.following
        assert read_pass(msgspec.json.decode(msgspec.json.encode(now.document()))) == now
        if step.over or step.repeating:
            return step, seen
        between()
    raise AssertionError("it never ends")


async def _page(client: Lists, now: Pass) -> Batch:
    wanted = now.wanted(client)
    return client._batch(client.records, wanted)


CHANGES = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "bump", "remove many"]), st.floats(0, 0.999)), max_size=6
)


@settings(max_examples=100)
@given(
    count=st.integers(1, 120),
    size=st.integers(4, 20),
    changes=st.lists(CHANGES, max_size=12),
    step=st.sampled_from([timedelta(), timedelta(minutes=1)]),
)
def test_what_is_listed_throughout_is_seen(count, size, changes, step):
    client = Lists(ladder(count, START - HOUR, step), size=size, overlap=min(3, size - 1))
    stayed = {one.id for one in client.records}
    left = list(changes)
    made = 1_000

    def change():
        nonlocal made
        # A list that grows by a page between two looks is read in one place for ever, as one that repeats itself.
        before, most = made, size - client.overlap - 1
        for what, where in left.pop(0) if left else ():
            place = int(where * len(client.records))
            if made - before == most and what in ("add", "bump"):
                continue
            if what == "add" or not client.records:
                made += 1
                client.records.insert(0, offer(made, START + made * timedelta(seconds=1)))
            elif what == "bump":
                made += 1
                one = client.records.pop(place)
                stayed.discard(str(one.id))
                client.records.insert(0, offer(str(one.id), START + made * timedelta(seconds=1)))
            else:
                many = 1 if what == "remove" else len(client.records) // 2
                for one in client.records[place : place + many]:
                    stayed.discard(str(one.id))
                del client.records[place : place + many]

    done, seen = _read(client, FIRST, change)
    assert done.over
    assert stayed <= seen
    assert done.following.whole


def test_it_ends_where_records_are_old_enough():
    client = Lists(ladder(100))
    done, seen = _read(client, msgspec.structs.replace(FIRST, until=START - 25 * HOUR))
    assert (done.over, done.cut) == (True, False)
    assert {str(number) for number in range(26)} <= seen
    assert len(seen) <= 25 + client.size
    assert (done.following.newest, done.following.pages) == (START, 4)


def test_a_list_that_is_cut_says_so():
    done, seen = _read(Lists(ladder(100), cap=30), FIRST)
    assert (done.over, done.cut, len(seen)) == (True, True, 30)
    done, _ = _read(Lists(ladder(100), cap=30), msgspec.structs.replace(FIRST, until=START - 5 * HOUR))
    assert (done.over, done.cut) == (True, False)


def test_a_list_that_repeats_itself_is_noticed():
    client = Lists(ladder(10))
    client.repeats = True
    done, seen = _read(client, FIRST)
    assert (done.repeating, done.over, len(seen)) == (True, False, 10)
    assert done.following.pages < 10


@pytest.mark.parametrize("total", [25, 35, 90])
def test_a_first_page_in_place_of_every_other_is_noticed_whatever_the_size(total):
    """Pages of other sizes have other ends, and a short list has no third page to be certain by."""
    client, sizes = Lists(), [10, 8, 9, 7]
    now, seen = FIRST, set[str | None]()
    for number in range(10):
        start, size = max(0, now.place - 1), sizes[number % 4]
        batch = Batch(ladder(size), start, last=start + size >= total, total=total)
        fresh = {one.id for one in batch.records} - seen
        seen |= fresh
        step = advance(now, batch, client, len(fresh))
        now = step.following
        if step.repeating:
            break
        assert not step.over
    assert (step.repeating, len(seen)) == (True, 10)


@pytest.mark.parametrize("by_place", [True, False])
def test_bad_records_that_are_alike_are_no_repetition_where_pages_differ(by_place):
    records: list[Any] = [Bad("it is null", "null") for _ in range(60)]
    for place in range(0, 60, 8):
        records[place] = Bad("it has no title", f"{place}")
    done, _ = _read(Lists(records, by_place=by_place, overlap=0), FIRST)
    assert (done.over, done.repeating) == (True, False)


def test_records_out_of_order_are_noticed_and_all_are_read():
    dates = [START - (number * 37 % 60) * 12 * HOUR for number in range(60)]
    client = Lists([offer(number, at) for number, at in enumerate(dates)])
    done, seen = _read(client, msgspec.structs.replace(FIRST, until=START - 2 * HOUR))
    assert (done.over, len(seen)) == (True, 60)
    assert (done.following.disordered, done.following.whole) == (True, False)


@pytest.mark.parametrize("by_place", [True, False])
@pytest.mark.parametrize("step", [timedelta(minutes=10), 3 * HOUR])
def test_a_list_that_is_oldest_first_is_noticed_and_read_to_its_end(step, by_place):
    records = ladder(60, step=step)[::-1]
    done, seen = _read(Lists(records, by_place=by_place), msgspec.structs.replace(FIRST, until=START - HOUR))
    assert (done.over, len(seen)) == (True, 60)
    assert done.following.disordered


def test_records_that_are_listed_a_little_late_are_in_order():
    late = timedelta(minutes=50)
    records = [offer(number, START - number * timedelta(minutes=5) + late * (number % 2)) for number in range(60)]
    assert not _read(Lists(records), FIRST)[0].following.disordered


def test_a_few_records_out_of_order_are_not_the_lists_order():
    records = ladder(60)
    records.insert(0, offer("pinned", START - 900 * HOUR))
    records.insert(30, offer("wrong date", START + 900 * HOUR))
    done, seen = _read(Lists(records), FIRST)
    assert (done.over, len(seen)) == (True, 62)
    assert (done.following.disordered, done.following.whole) == (False, True)


def test_the_order_of_a_list_with_one_page_does_not_matter():
    records = [offer(number, START - (number * 7 % 10) * HOUR * 5) for number in range(10)]
    done, _ = _read(Lists(records), FIRST)
    assert (done.following.disordered, done.following.whole) == (False, True)


def test_a_list_in_another_order_at_every_look_is_read_to_its_end_and_proves_nothing():
    # All of one moment, and others on top at every look: the place is never found again.
    client = Lists([offer(number, START) for number in range(40)], size=10)

    def shuffle():
        client.records = [offer(f"{one.id}x", START) for one in client.records]

    done, _ = _read(client, FIRST, shuffle)
    assert done.over
    assert not done.following.whole


def test_a_place_beyond_the_end_of_a_list_that_shrank_is_looked_for_again():
    client = Lists(ladder(100))
    now = FIRST
    for _ in range(6):
        now = advance(now, client._batch(client.records, now.wanted(client)), client, 10).following
    client.records = client.records[40:]
    done, seen = _read(client, now)
    assert {one.id for one in client.records[20:]} <= seen
    assert done.following.whole


@pytest.mark.parametrize("by_place", [True, False])
def test_a_list_without_order_is_read_whole(by_place):
    records = [offer(number, START - (number * 7 % 30) * HOUR) for number in range(30)]
    client = Lists(records, newest_first=False, by_place=by_place)
    done, seen = _read(client, msgspec.structs.replace(FIRST, until=START - HOUR))
    assert len(seen) == 30
    assert (done.over, done.following.reached, done.following.newest) == (True, None, START)


def test_a_walk_by_tokens_asks_for_what_follows():
    client = Lists(ladder(25), by_place=False)
    step = advance(FIRST, client._batch(client.records, Wanted()), client, 10)
    assert step.following.wanted(client) == Wanted(token="10", since=FIRST.until)
    done, seen = _read(client, FIRST)
    assert (done.over, len(seen)) == (True, 25)


def test_an_empty_page_ends_a_pass():
    step = advance(FIRST, Batch([], last=True), Lists(), 0)
    assert (step.over, step.following.newest, step.following.whole) == (True, None, True)


def test_a_date_in_the_future_counts_for_no_more_than_the_present():
    batch = Batch([offer(1, START + 100 * HOUR), offer(2, START - HOUR)], last=True)
    assert advance(FIRST, batch, Lists(), 2).following.newest == START


def test_records_without_an_id_leave_it_open_what_was_seen():
    listed: list[Any] = [offer(1, START), Bad("it has no title", "{}", "2", START - HOUR)]
    assert advance(FIRST, Batch(listed, last=True), Lists(), 1).following.whole
    assert not advance(FIRST, Batch([*listed, Bad("no id", "{}")], last=True), Lists(), 1).following.whole


@pytest.mark.parametrize("at", [START - 9 * HOUR, None])
def test_a_record_without_an_id_between_two_pages_is_met_again(at):
    client = Lists(ladder(40), overlap=1)
    client.records[9] = Bad("it has no id", "{}", None, at)
    done, seen = _read(client, FIRST)
    assert (done.over, len(seen), done.following.lost) == (True, 39, 0)


def test_a_step_back_is_no_repetition():
    client = Lists(ladder(40), overlap=1)
    removals = iter([5, 0, 5, 0, 5, 0, 5])

    def remove():
        del client.records[: next(removals, 0)]

    done, seen = _read(client, FIRST, remove)
    assert (done.over, done.following.whole) == (True, True)
    assert {one.id for one in client.records} <= seen


def test_a_pass_says_where_it_is():
    assert FIRST.says() == "new records, page 1, at its beginning"
    gone = msgspec.structs.replace(FIRST, kind=Kind.SEED, pages=3, reached=START)
    assert gone.says() == "history, page 4, down to 2026-06-15T12:00:00.000Z"


def test_days_begin_where_the_client_is():
    assert begin_of(date(2026, 3, 29), MADRID) == datetime(2026, 3, 28, 23, tzinfo=UTC)
    assert begin_of(date(2026, 3, 30), MADRID) == datetime(2026, 3, 29, 22, tzinfo=UTC)
    assert day_of(datetime(2026, 6, 14, 22, tzinfo=UTC), MADRID) == date(2026, 6, 15)


def test_a_day_is_closed_when_it_was_passed():
    noon = datetime(2026, 6, 15, 10, tzinfo=UTC)
    assert closed_day(None, MADRID, noon) is None
    assert closed_day(noon, MADRID, noon) is None
    assert closed_day(noon - timedelta(days=1), MADRID, noon) == date(2026, 6, 15)
    assert closed_day(noon - timedelta(days=3), MADRID, noon) == date(2026, 6, 13)

"""Runs of a query: history first, then what is new, page by page, within limits."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from penstock.connectors.searches import Batch, Wanted
from penstock.lifecycles.queries.machine import S, query
from penstock.lifecycles.queries.settings import QuerySettings
from penstock.model.unit import replace
from tests.support.queries import DAY, HOUR, PAUSE, START, Lists, bench, ladder, offer


@pytest.mark.by_day
def test_the_first_run_reads_history_down_to_the_horizon(queries_url):
    client = Lists(ladder(400))
    with bench(queries_url, client, horizon=3 * DAY) as world:
        world.work()
        state = world.state("jobs")
        assert state.status is S.SUCCESS
        assert state.last_processed_date == state.seed_until == (START - 3 * DAY).date()
        assert (state.covered_through, state.seeded_at) == (START, state.last_success_at)
        # The page on which the horizon lies is kept whole; none is asked for beyond it.
        horizon = int((START - START.replace(hour=0) + 3 * DAY) / HOUR)
        assert horizon < len(world.offers()) <= horizon + client.size
        assert world.runs("jobs", "status, stopped_by, new") == [("SUCCESS", "exhausted", len(world.offers()))]


def test_seeding_goes_on_over_runs_and_begins_no_day_at_page_one(queries_url):
    client = Lists(ladder(130))
    with bench(queries_url, client, max_pages=3, horizon=4 * DAY) as world:
        days: list[Any] = []
        while world.state("jobs").seeded_at is None:
            world.later()
            days.append(world.state("jobs").last_processed_date)
        assert days == sorted(days, reverse=True)
        assert days[-1] == (START - 4 * DAY).date() < days[0]
        assert set(world.offers()) >= {str(number) for number in range(4 * 24 + 12)}
        assert {row[0] for row in world.runs("jobs", "stopped_by")[:-1]} == {"max_pages"}
        # Every run looks for what is new at the top, once; and history is read where it was left.
        history = [place for place in client.places if place]
        assert history == sorted(history)
        assert client.places.count(0) == len(days)


def test_offers_limit_a_run_too(queries_url):
    with bench(queries_url, Lists(ladder(60)), max_offers=20) as world:
        world.work()
        assert world.runs("jobs", "stopped_by, pages_fetched, offers_fetched") == [("max_offers", 2, 20)]
        assert world.state("jobs").status is S.SUCCESS


class _Cursors(Lists):
    """Its tokens are the ids of the last records: what is added above does not move them."""

    def _batch(self, records: list[Any], wanted: Wanted) -> Batch:
        ids = [one.id for one in records]
        start = 0 if wanted.token is None else ids.index(wanted.token) + 1
        found = records[start : start + self.size]
        last = start + self.size >= len(records)
        return Batch(found, 0, None if last else found[-1].id, last)


@pytest.mark.parametrize(
    "limits", [{"max_pages": 2}, {"max_pages": 8}, {"max_offers": 10}, {"max_offers": 40}], ids=str
)
def test_new_records_do_not_put_off_history_for_ever(queries_url, limits):
    """More is listed in a pause than a run may read."""
    client = _Cursors(ladder(150), by_place=False)
    with bench(queries_url, client, horizon=5 * DAY, **limits) as world:
        world.work()
        for _ in range(20):
            if world.state("jobs").seeded_at is not None:
                break
            client.records[:0] = ladder(90, world.clock.now() + PAUSE, timedelta(minutes=1), first=len(client.records))
            world.later()
        assert world.state("jobs").seeded_at is not None
        assert {str(number) for number in range(5 * 24 + 12)} <= {*world.offers()}
        assert world.value("SELECT sum(requests_count) FROM ingestion_runs") == client.calls


def test_history_that_what_is_new_pushes_down_for_ever_is_told(queries_url):
    """By places: every run reads past as much as was listed since the last one, and gets no further into history."""
    client = Lists(ladder(150))
    with bench(queries_url, client, horizon=5 * DAY, max_pages=4) as world:
        for _ in range(6):
            world.later()
            client.records[:0] = ladder(16, world.clock.now() + PAUSE, PAUSE / 16, first=len(client.records))
        state = world.state("jobs")
        (told,) = world.events("queries.stuck")
        assert "two runs in a row reached max_pages and read no history further: " in told["reason"]
        assert state.seeded_at is None
        assert state.covered_through is not None
        assert world.clock.now() - state.covered_through < HOUR, "what is new is read"
        world.settings = replace(world.settings, max_pages=40)
        world.later()
        assert world.state("jobs").seeded_at is not None
        assert world.state("jobs").stuck == 0


def test_what_is_new_is_read_whole_though_history_has_its_share(queries_url):
    client = Lists(ladder(60))
    with bench(queries_url, client, horizon=2 * DAY, max_pages=3) as world:
        world.work()
        world.clock.advance(PAUSE.total_seconds())
        client.records[:0] = ladder(70, world.clock.now(), timedelta(minutes=3), first=60)
        for _ in range(15):
            world.later()
        assert {str(number) for number in (*range(60), *range(60, 130))} == {*world.offers()}
        assert world.offers("closed_at IS NOT NULL") == []


def test_afterwards_only_what_is_new_is_read(queries_url):
    client = Lists(ladder(200, step=timedelta(minutes=20)), size=5)
    with bench(queries_url, client, overlap=HOUR) as world:
        world.work()
        client.asked.clear()
        client.records = [*ladder(3, START + PAUSE, first=1_000), *client.records]
        world.later()
        assert world.runs("jobs", "new, pages_fetched")[-1] == (3, 2)
        assert world.state("jobs").covered_through == START + PAUSE
        assert [one.since for one in client.asked] == [START - HOUR] * 2


@pytest.mark.by_day
def test_a_gap_of_weeks_is_closed_whole(queries_url):
    client = Lists(ladder(50))
    with bench(queries_url, client, max_pages=15) as world:
        world.work()
        world.clock.advance((21 * DAY).total_seconds())
        now = world.clock.now()
        client.records = [*ladder(21 * 24, now, first=10_000), *client.records]
        runs = 0
        while world.state("jobs").covered_through != now:
            world.later()
            runs += 1
        assert runs > 3
        assert set(world.offers()) >= {str(10_000 + number) for number in range(21 * 24)} | {str(n) for n in range(30)}


def test_the_newest_gap_is_closed_before_history(queries_url):
    client = Lists(ladder(100))
    with bench(queries_url, client, max_pages=4) as world:
        world.work()
        client.records = [*ladder(20, START + PAUSE, timedelta(minutes=1), first=1_000), *client.records]
        client.asked.clear()
        world.later()
        assert client.places[0] == 0
        assert set(world.offers()) >= {str(number) for number in range(1_000, 1_020)}


@pytest.mark.by_day
def test_running_twice_changes_nothing_but_when_it_was_seen(queries_url):
    client = Lists(ladder(40))
    tables = {
        "offers": "client, offer_id, title, company_key, content_hash, updated_at, first_seen_at, closed_at, payload",
        "query_offers": "query_key, offer_id, record_at, gone_at",
        "companies": "company_key, name, offers_total, offers_open, first_seen_at, stale",
    }

    def everything(world):
        return {table: sorted(world.rows(f"SELECT {columns} FROM {table}")) for table, columns in tables.items()}

    with bench(queries_url, client) as world:
        world.work()
        before = everything(world)
        world.later()
        assert everything(world) == before
        assert world.runs("jobs", "new, changed, closed, companies_aggregated")[-1] == (0, 0, 0, 0)
        assert world.value("SELECT max(last_seen_at) FROM offers WHERE offer_id = '0'") != START


def test_a_changed_offer_is_updated_and_an_older_view_of_it_is_not(queries_url):
    client = Lists([offer(1, START, title="Old"), offer(2, START - HOUR)])
    with bench(queries_url, client) as world:
        world.work()
        client.records[0] = offer(1, START + HOUR, title="New")
        world.later()
        assert world.runs("jobs", "new, changed")[-1] == (0, 1)
        client.records[0] = offer(1, START - 2 * HOUR, title="Older")
        world.later()
        assert world.value("SELECT title FROM offers WHERE offer_id = '1'") == "New"


def test_queries_are_run_one_after_another_each_in_its_turn(queries_url):
    queries = {name: QuerySettings(client="jobs", parameters={"q": name}) for name in ("a", "b", "c")}
    with bench(queries_url, Lists(ladder(5)), queries) as world:
        world.work()
        world.later()
        spans = world.rows("SELECT started_at, finished_at FROM ingestion_runs ORDER BY started_at, finished_at")
        assert len(spans) == 6
        assert all(one[1] <= two[0] for one, two in pairwise(spans))
        assert len(world.offers()) == 5
        assert world.value("SELECT count(*) FROM query_offers") == 15


def test_the_end_of_a_cycle_is_the_beginning_of_the_next(queries_url):
    with bench(queries_url, Lists(ladder(5)), pause=timedelta(minutes=15)) as world:
        world.work(within=timedelta(minutes=100))
        started = [row[0] for row in world.rows("SELECT started_at FROM ingestion_runs ORDER BY started_at")]
        assert len(started) == 7


def test_a_query_that_the_configuration_no_longer_has_rests_and_keeps_its_state(queries_url):
    with bench(queries_url, Lists(ladder(5))) as world:
        world.work()
        before = world.state("jobs")
        world.settings = type(world.settings)(pause=PAUSE, feed_jsonl=world.settings.feed_jsonl)
        world.later()
        (after,) = world.ledger.get_many(query, [before.query_key])
        assert (after.status, after.covered_through, after.due_at) == (S.SUCCESS, before.covered_through, None)


def test_a_query_that_is_called_otherwise_goes_on_under_its_new_name(queries_url):
    with bench(queries_url, Lists(ladder(5))) as world:
        world.work()
        before = world.state("jobs")
        world.settings = replace(world.settings, queries={"better": world.settings.queries["jobs"]})
        world.later()
        after = world.state("better")
        assert (after.query_key, after.name, after.seeded_at) == (before.query_key, "better", before.seeded_at)
        assert len(world.runs("better", "id")) == 2


def test_a_query_is_not_begun_before_the_day_that_it_is_to_be_seeded_from(queries_url):
    wanted = (START + 2 * DAY).date()
    queries = {"jobs": QuerySettings(client="jobs", parameters={"q": "x"}, seed_from=wanted)}
    with bench(queries_url, Lists(ladder(5)), queries) as world:
        world.work()
        due = world.state("jobs").due_at
        assert due is not None
        assert due.date() == wanted
        assert world.value("SELECT count(*) FROM ingestion_runs") == 0

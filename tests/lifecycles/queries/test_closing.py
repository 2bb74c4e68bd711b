"""Offers that are no longer listed are closed: after two readings, and never half a list at once."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.connectors.searches import Bad
from penstock.lifecycles.queries.settings import QuerySettings
from penstock.model.errors import Transient
from penstock.model.unit import replace
from tests.support.queries import DAY, HOUR, PAUSE, START, Lists, bench, ladder, offer

CLOSED = "closed_at IS NOT NULL"


def _census(world):
    """Let everything be listed again."""
    world.clock.advance((7 * DAY).total_seconds())
    world.work()


@pytest.mark.by_day
def test_what_two_readings_have_not_seen_is_closed(queries_url):
    client = Lists(ladder(60))
    with bench(queries_url, client) as world:
        world.work()
        world.later()
        removed = [client.records.pop(place) for place in (40, 20, 1)]
        _census(world)
        assert world.offers(CLOSED) == []
        world.later()
        assert world.offers(CLOSED) == sorted((one.id for one in removed), key=int)
        assert world.runs("jobs", "closed")[-1] == (3,)
        assert world.value("SELECT count(*) FROM query_offers WHERE gone_at IS NOT NULL") == 3


def test_what_is_listed_again_is_open_again(queries_url):
    client = Lists(ladder(60))
    with bench(queries_url, client) as world:
        world.work()
        gone = client.records.pop(0)
        _census(world)
        world.later()
        assert world.offers(CLOSED) == [gone.id]
        client.records.insert(0, gone)
        world.later()
        assert world.offers(CLOSED) == []
        assert world.value("SELECT count(*) FROM query_offers WHERE gone_at IS NOT NULL") == 0
        assert (
            world.value(
                "SELECT offers_open FROM companies WHERE company_key = (SELECT company_key FROM offers"
                " WHERE offer_id = :id)",
                id=gone.id,
            )
            == 9
        )


def test_an_offer_is_open_as_long_as_any_query_lists_it(queries_url):
    queries = {name: QuerySettings(client="jobs", parameters={"q": name}) for name in ("a", "b")}
    client = Lists()
    client.lists = {"a": ladder(30), "b": ladder(30)}
    with bench(queries_url, client, queries) as world:
        world.work()
        gone = client.lists["a"].pop(3)
        _census(world)
        world.later()
        assert world.offers(CLOSED) == []
        assert world.value("SELECT count(*) FROM query_offers WHERE gone_at IS NOT NULL") == 1
        client.lists["b"].pop(3)
        _census(world)
        world.later()
        assert world.offers(CLOSED) == [gone.id]


@pytest.mark.by_day
def test_a_query_that_the_configuration_no_longer_has_keeps_no_offer_open(queries_url):
    queries = {name: QuerySettings(client="jobs", parameters={"q": name}) for name in ("a", "b")}
    client = Lists(ladder(30))
    with bench(queries_url, client, queries) as world:
        world.work()
        world.settings = replace(world.settings, queries={"a": queries["a"]})
        gone = client.records.pop(3)
        _census(world)
        world.later()
        assert world.offers(CLOSED) == [gone.id]


@pytest.mark.by_day
def test_too_many_at_once_are_held_back_told_and_closed_a_census_later(queries_url):
    client = Lists(ladder(60))
    with bench(queries_url, client) as world:
        world.work()
        world.later()
        client.records = client.records[:10]
        _census(world)
        world.later()
        assert world.offers(CLOSED) == []
        assert [(one["missing"], one["listed"]) for one in world.events("queries.many_closed")] == [(50, 60)]
        for _ in range(2):
            _census(world)
            world.later()
        assert len(world.offers(CLOSED)) == 50


def test_half_a_list_for_once_closes_nothing_ever(queries_url):
    client = Lists(ladder(60))
    with bench(queries_url, client) as world:
        world.work()
        whole, client.records = client.records, client.records[:10]
        _census(world)
        world.later()
        client.records = whole
        for _ in range(3):
            _census(world)
            world.later()
        assert world.offers(CLOSED) == []


def test_an_offer_that_moves_up_while_everything_is_read_is_not_closed(queries_url):
    client = Lists(ladder(60))
    with bench(queries_url, client) as world:
        world.work()
        world.clock.advance((7 * DAY).total_seconds())

        def bump():
            one = client.records.pop(50)
            client.records.insert(0, offer(one.id, world.clock.now(), company="Company 1"))

        client.trouble.extend([None, bump])
        world.work()
        world.later()
        world.later()
        assert world.offers(CLOSED) == []


def test_a_reading_over_several_runs_closes_nothing_by_itself(queries_url):
    client = Lists(ladder(60))
    with bench(queries_url, client, overlap=2 * DAY) as world:
        world.work()
        bumped = client.records[45]

        def bump(place):
            def move():
                (one,) = [record for record in client.records if record.id == bumped.id]
                client.records.remove(one)
                client.records.insert(place, offer(one.id, client.records[0].at + timedelta(minutes=1)))

            return move

        # It moves up while everything is read, and once more while what is new is read, which takes two runs.
        world.clock.advance((7 * DAY).total_seconds())
        client.trouble.extend([None, bump(0)])
        world.work()
        client.records = [*ladder(15, world.clock.now() + PAUSE, timedelta(minutes=1), 1_000), *client.records]
        client.trouble.extend([None, *[Transient("down")] * 4, bump(0)])
        world.later()
        world.later()
        assert world.offers(CLOSED) == []
        world.later()
        world.later()
        assert world.offers(CLOSED) == []


def test_a_record_that_turned_bad_is_still_listed(queries_url):
    client = Lists(ladder(60))
    with bench(queries_url, client) as world:
        world.work()
        for place in (5, 30, 45):
            one = client.records[place]
            client.records[place] = Bad("it has no title", "{}", one.id, one.at)
        for _ in range(3):
            _census(world)
            world.later()
        assert world.offers(CLOSED) == []


def test_a_record_without_an_id_may_be_any_of_them(queries_url):
    client = Lists(ladder(60))
    with bench(queries_url, client) as world:
        world.work()
        one = client.records[30]
        client.records[30] = Bad("it has no id", "{}", None, one.at)
        for _ in range(2):
            _census(world)
            world.later()
        assert world.offers(CLOSED) == []


def test_history_that_is_read_late_makes_nothing_look_unseen(queries_url):
    # Seeding goes on between readings of what is new, and meets what these have seen.
    client = Lists(ladder(200), size=10)
    with bench(queries_url, client, max_pages=2, overlap=HOUR) as world:
        world.work()
        for number in range(12):
            fresh = ladder(15, world.clock.now() + PAUSE, timedelta(minutes=1), 1_000 + 100 * number)
            client.records = [*fresh, *client.records]
            world.later()
        assert world.offers(CLOSED) == []


def test_a_list_that_is_cut_closes_what_it_must_have_listed(queries_url):
    client = Lists(ladder(60), cap=30)
    with bench(queries_url, client) as world:
        world.work()
        assert world.state("jobs").unreachable_before == world.state("jobs").last_processed_date is not None
        assert len(world.events("queries.unreachable")) == 1
        gone = client.records.pop(5)
        _census(world)
        world.later()
        assert world.offers(CLOSED) == [gone.id]
        # What was read before is no hole, however little of it is still listed.
        assert "holes" not in (world.state("jobs").metadata or {})
        assert len(world.events("queries.unreachable")) == 1


def test_more_that_is_new_than_the_provider_lists_is_a_hole_and_told(queries_url):
    client = Lists(ladder(60), cap=30)
    with bench(queries_url, client) as world:
        world.work()
        client.records = [*ladder(50, START + 50 * HOUR, HOUR, 1_000), *client.records]
        world.later(50 * HOUR)
        (hole,) = (world.state("jobs").metadata or {})["holes"]
        assert hole == {"from": "2026-06-15T10:00:00.000Z", "to": "2026-06-16T09:00:00.000Z"}
        assert len(world.events("queries.unreachable")) == 2

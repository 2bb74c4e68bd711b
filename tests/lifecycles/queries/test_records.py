"""What becomes of records: reposts and duplicates, companies, pages that are cut into parts, odd lists and dates."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from penstock.connectors.searches import Item
from penstock.lifecycles.queries import aggregate
from penstock.lifecycles.queries.machine import S
from penstock.lifecycles.queries.offer_store import OfferStore
from penstock.lifecycles.queries.settings import QuerySettings
from penstock.lifecycles.queries.sources import Source
from penstock.lifecycles.queries.store import Taken
from penstock.testing import KILL, Fault, inject
from tests.support.queries import DAY, HOUR, PAUSE, START, Lists, bench, ladder, offer

LINKS = "SELECT client, offer_id, link_kind, linked_client, linked_offer_id FROM offers ORDER BY client, offer_id"


@pytest.mark.by_day
def test_an_offer_under_a_new_id_is_linked_and_so_is_one_of_another_client(queries_url):
    a = Lists([offer("first", START, title="Python Developer", company="Ibérica, S.L.")])
    b = Lists([offer("same", START, title="python developer", company="IBERICA SL")])
    with bench(queries_url, {"a": a, "b": b}) as world:
        world.work()
        a.records.insert(0, offer("again", START + PAUSE, title="Python Developer", company="Ibérica, S.L."))
        a.records.insert(0, offer("other", START + PAUSE, title="Java Developer", company="Ibérica, S.L."))
        world.later()
        assert world.rows(LINKS) == [
            ("a", "again", "repost", "a", "first"),
            ("a", "first", None, None, None),
            ("a", "other", None, None, None),
            ("b", "same", "duplicate", "a", "first"),
        ]
        assert world.rows("SELECT offers_total, offers_open FROM companies") == [(2, 2)]


def test_companies_are_aggregated_from_their_offers(queries_url):
    records = [
        offer(1, START, title="A", company="Ibérica, S.L.", city="Madrid"),
        offer(2, START - HOUR, title="B", company="IBERICA SL", city="Getafe"),
        offer(3, START - 2 * HOUR, title="C", company=None),
        offer(4, START - 3 * HOUR, title="D", company="Talento"),
    ]
    with bench(queries_url, Lists(records)) as world:
        world.work()
        sql = "SELECT name, cities, offers_total, offers_open, stale FROM companies ORDER BY name"
        found = [(name, *rest[1:]) for name, *rest in world.rows(sql)]
        assert [row[1:3] for row in found] == [(2, 2), (1, 1)]
        assert found[1][0] == "Talento"
        assert world.runs("jobs", "companies_aggregated, companies_failed") == [(2, 0)]


def test_a_company_that_cannot_be_aggregated_is_counted_and_left_behind(queries_url, monkeypatch):
    real = aggregate.summed

    def broken(ledger, keys, now):
        bad = [
            row[0]
            for row in ledger.read(lambda cursor: cursor.rows("SELECT company_key FROM companies WHERE name = 'Bad'"))
        ]
        if {*bad} & {*keys}:
            raise ValueError("a number that is none")
        return real(ledger, keys, now)

    monkeypatch.setattr(aggregate, "summed", broken)
    records = [offer(1, START, company="Bad"), offer(2, START, title="x", company="Good")]
    with bench(queries_url, Lists(records)) as world:
        world.work()
        assert world.runs("jobs", "status, companies_aggregated, companies_failed") == [("SUCCESS", 1, 1)]
        rows = dict(world.rows("SELECT name, failed FROM companies"))
        assert rows == {"Good": None, "Bad": "ValueError: a number that is none"}
        world.later()
        assert world.runs("jobs", "companies_failed")[-1] == (0,)


@pytest.mark.by_day
def test_a_big_page_is_written_in_parts(queries_url):
    records = [offer(number, START - number * timedelta(seconds=1), more="x" * 2_000) for number in range(5_000)]
    client = Lists(records, size=5_000)
    store: Any = _Counting(timedelta(days=30))
    with bench(queries_url, client, sources={"jobs": Source(client, store)}) as world:
        world.work()
        assert world.runs("jobs", "status, pages_fetched, offers_fetched, new") == [("SUCCESS", 1, 5_000, 5_000)]
        assert world.value("SELECT count(*) FROM offers") == 5_000
        assert sum(store.parts) == 5_000
        assert max(store.parts) <= 1_000


class _Counting(OfferStore):
    """It remembers how many records it was given at a time."""

    def __init__(self, within: timedelta) -> None:
        super().__init__(within)
        self.parts: list[int] = []

    def take(self, *asked: Any, items: Sequence[Item], **given: Any) -> Taken:  # type: ignore[override]
        self.parts.append(len(items))
        taken = super().take
        return taken(*asked, items=items, **given)  # type: ignore[misc]


def test_a_worker_that_dies_between_two_parts_loses_nothing(queries_url):
    records = [offer(number, START - number * timedelta(seconds=1)) for number in range(2_500)]
    with bench(queries_url, Lists(records, size=2_500)) as world:
        kill = Fault("page", KILL, after=True)
        flow = inject(world.flow(), Fault("page", KILL, times=1), kill)
        world.work(flow=flow)
        assert world.value("SELECT count(*) FROM offers") == 2_500
        assert world.state("jobs").status is S.SUCCESS


def test_dates_in_the_future_hide_nothing(queries_url):
    client = Lists([offer("f", START + 300 * DAY), *ladder(5)])
    with bench(queries_url, client) as world:
        world.work()
        assert world.state("jobs").covered_through == START
        client.records = [
            client.records[0],
            *ladder(25, START + PAUSE, timedelta(minutes=5), 1_000),
            *client.records[1:],
        ]
        world.later()
        assert len(world.offers()) == 31


@pytest.mark.parametrize(
    "kind", [{"newest_first": False}, {"by_place": False}, {"newest_first": False, "by_place": False}]
)
def test_lists_without_order_and_lists_by_token(queries_url, kind):
    records = ladder(35)
    if not kind.get("newest_first", True):
        records = [*records[1::2], *records[::2]]
    client = Lists(records, **kind)
    with bench(queries_url, client, max_pages=10) as world:
        world.work()
        state = world.state("jobs")
        assert (len(world.offers()), state.covered_through, state.seeded_at is not None) == (35, START, True)
        assert [(one.place, one.token) for one in client.asked].count((0, None)) == 1
        client.records.insert(20 if "newest_first" in kind else 0, offer("new", START + HOUR))
        world.later()
        assert world.runs("jobs", "new")[-1] == (1,)
        assert world.state("jobs").covered_through == START + HOUR


def test_a_list_without_order_goes_on_over_runs(queries_url):
    records = ladder(60)
    client = Lists([*records[1::2], *records[::2]], newest_first=False)
    with bench(queries_url, client, max_pages=3) as world:
        while world.state("jobs").seeded_at is None:
            world.later()
        assert len(world.offers()) == 60
        assert world.state("jobs").covered_through == START


def test_a_list_that_shrinks_while_it_is_read_loses_nothing(queries_url):
    client = Lists(ladder(60))
    stay = {str(number) for number in range(40, 60)}

    def shrink():
        del client.records[:40]

    client.trouble.extend([None, None, None, shrink])
    with bench(queries_url, client) as world:
        world.work()
        assert {*world.offers()} >= stay
        assert world.state("jobs").status is S.SUCCESS


def test_two_queries_of_a_client_share_an_offer_and_count_it_once(queries_url):
    queries = {name: QuerySettings(client="jobs", parameters={"q": name}) for name in ("a", "b")}
    with bench(queries_url, Lists(ladder(10)), queries) as world:
        world.work()
        new = sorted(world.runs("a", "new") + world.runs("b", "new"))
        assert new == [(0,), (10,)]
        assert world.value("SELECT count(*) FROM query_offers") == 20

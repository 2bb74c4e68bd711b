"""How the databases carry out what a run of a query asks: by their keys, and for no more rows than a page has.

One query has listed everything, so that whatever goes by the query or by the client alone visits all of it. Nobody has
analysed the tables, as in the first hours of a ledger: what a planner does not know it takes for small.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from operator import methodcaller
from typing import Any

import pytest

from penstock.connectors.searches import OFFER_COLUMNS, Batch, Item
from penstock.ledger.ledger import Ledger
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor
from penstock.lifecycles.queries import MACHINES
from penstock.lifecycles.queries.aggregate import aggregate
from penstock.lifecycles.queries.erasure.guard import without_erased
from penstock.lifecycles.queries.machine import Query
from penstock.lifecycles.queries.offer_store import OfferStore
from penstock.lifecycles.queries.own_store import OwnStore
from penstock.lifecycles.queries.runs import Unseen
from penstock.lifecycles.queries.store import Store
from penstock.lifecycles.queries.tables import DATA_TABLES, VIEWS, own_table
from penstock.model.clock import instant_text
from penstock.model.outcome import Update
from tests.support.databases import temporary_database
from tests.support.plans import Plan

pytestmark = pytest.mark.by_day

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
ROWS, PAGE, SOME = 20_000, 500, 40
QUERY = Query(query_key="jobs-1", client="jobs", name="all")
OWN = own_table("issues", {"title": "text"})
STORES: Mapping[str, Store] = {"offers": OfferStore(timedelta(days=30)), "own": OwnStore(OWN, ["title"])}
BY_KEY = {
    "offers": {"client=? AND offer_id=?", "likeness=?", "company_key=?"},
    "query_offers": {
        *("query_key=? AND offer_id=?", "client=? AND offer_id=?", "client=? AND offer_id=? AND query_key=?"),
        "query_key=? AND record_at>?",
    },
    "companies": {"company_key=?"},
    "erased_records": {"client=? AND record_id=?"},
    "issues": {"query_key=? AND record_id=?", "query_key=? AND record_at>?"},
}


class RolledBack(Exception):
    """Ends a transaction without its effects, and carries the answer out of it."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer


class Watched:
    """A ledger that remembers what is read through it."""

    def __init__(self, ledger: Ledger) -> None:
        self.database = ledger.database
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def read(self, work: Callable[[Any], Any]) -> Any:
        return self.database.read(lambda cursor: work(_Cursor(cursor, self.asked)))


class _Cursor:
    def __init__(self, cursor: Any, asked: list[tuple[str, dict[str, Any]]]) -> None:
        self._cursor = cursor
        self._asked = asked

    def rows(self, sql: str, **given: Any) -> Any:
        self._asked.append((sql, given))
        return self._cursor.rows(sql, **given)

    def run(self, sql: str) -> None:
        self._cursor.run(sql)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def full(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """A ledger with many offers, all of one client and one query."""
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path_factory.mktemp('plans') / 'penstock.db'}"
        if request.param == "postgres":
            url = stack.enter_context(temporary_database(request.getfixturevalue("postgres_server")))
        tables = [*DATA_TABLES, OWN]
        ledger = stack.enter_context(Ledger.open(url, MACHINES, create=True, data_tables=tables, views=VIEWS))
        fill(ledger)
        yield ledger


def fill(ledger: Ledger) -> None:
    numbers = f"WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {ROWS})"
    at = f"CAST('{instant_text(NOW)}' AS {'timestamptz' if ledger.database.dialect == 'postgresql' else 'text'})"
    old = at.replace("2026-", "2020-")
    when = f"CASE WHEN i > {SOME} THEN {old} ELSE {at} END"
    text = "CAST(i AS text)"
    shared = "content_hash, first_seen_at, last_seen_at"
    for insert in (
        f"erased_records (client, record_id, erased_at) {numbers} SELECT 'jobs', {text}, {at} FROM s",
        (
            f"offers (client, offer_id, updated_at, company_key, likeness, {shared}) {numbers} SELECT 'jobs',"
            f" {text}, {at}, CAST(i % 500 AS text), {text}, 'x', {at}, {at} FROM s"
        ),
        (
            f"query_offers (query_key, offer_id, client, record_at, seen_in) {numbers} SELECT 'jobs-1', {text}, 'jobs',"
            f" {when}, 1 FROM s"
        ),
        (
            f"issues (query_key, record_id, record_at, seen_in, {shared}) {numbers} SELECT 'jobs-1', {text}, {when}, 1,"
            f" 'x', {at}, {at} FROM s"
        ),
        (
            f"companies (company_key, first_seen_at, last_seen_at, stale, erased_at) {numbers} SELECT {text}, {at},"
            f" {at}, i <= {SOME}, CASE WHEN i = {ROWS} THEN {at} END FROM s"
        ),
    ):
        ledger.database.write(methodcaller("run", f"INSERT INTO {insert}"))


def items(columns: int) -> list[Item]:
    """A page: half of it is there, the other half is new."""
    ids = range(ROWS - PAGE // 2, ROWS + PAGE // 2)
    return [Item(str(n), NOW, (f"Work {n}", f"Firm {n}", *[None] * (columns - 2)), "{}") for n in ids]


def check(ledger: Ledger, sql: str, given: dict[str, Any], most: int) -> None:
    """A statement of a reader goes by keys, and visits at most so many rows of each table."""
    if ledger.database.dialect == "sqlite":
        check_words(ledger, sql, given)
        return

    def explained(cursor: Cursor) -> Any:
        if "batch" in given:
            ledger.database.sql.by_index(cursor)
        return cursor.rows(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", **given)

    plan = Plan(ledger.database.read(explained), sqlite=False)
    assert plan.compared() <= most, sql
    for table in BY_KEY:
        assert plan.visited(table) <= most, f"{table}: {sql}"
        assert "scan" not in plan.scans(table, ""), sql


def check_update(ledger: Ledger, update: Update) -> None:
    """An update visits the rows that it changes, by their keys."""
    values = {name: instant_text(v) if isinstance(v, datetime) else v for name, v in update.values.items()}
    sql, given = statements.update_rows(ledger.database, update.rows, values)
    if ledger.database.dialect == "sqlite":
        check_words(ledger, sql, given)
        return

    def explained(cursor: Cursor) -> None:
        raise RolledBack(cursor.rows(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", **given))

    with pytest.raises(RolledBack) as rolled:
        ledger.database.write(explained)
    plan, table = Plan(rolled.value.answer, sqlite=False), update.rows.table.name
    assert plan.scans(table, "") == [f"{table}_pkey"]
    assert plan.visited(table) + plan.compared() <= PAGE + 1


def check_words(ledger: Ledger, sql: str, given: dict[str, Any]) -> None:
    """SQLite searches every table by a key, but for the index of the few stale companies."""
    for row in ledger.database.read(lambda cursor: cursor.rows(f"EXPLAIN QUERY PLAN {sql}", **given)):
        found = re.match(r"(SCAN|SEARCH) (\w+)(?: USING .*?(INDEX \w+|PRIMARY KEY))?(?: \((.*)\))?", row[-1])
        if found is None or found[2] in ("jsonb_each", "json_each", "j"):
            continue
        name = found[2] if found[2] in BY_KEY else re.findall(rf"({'|'.join(BY_KEY)}) (?:AS )?{found[2]}\b", sql)[0]
        by_key = found[4] in BY_KEY[name] if found[1] == "SEARCH" else found[3] == "INDEX companies_stale"
        assert by_key, f"{row[-1]}: {sql}"


@pytest.mark.parametrize("name", STORES)
def test_a_page_is_compared_with_what_is_there_by_its_keys(full, name):
    watched: Any = Watched(full)
    page = items(len(OFFER_COLUMNS) if name == "offers" else 1 + 1)
    taken = STORES[name].take(watched, QUERY, 2, page, ["1"], NOW)
    assert watched.asked
    assert taken.updates
    for sql, given in watched.asked:
        check(full, sql, given, PAGE + SOME)
    for update in taken.updates:
        check_update(full, update)


@pytest.mark.parametrize("name", STORES)
def test_what_is_absent_is_found_and_closed_by_its_keys(full, name):
    watched: Any = Watched(full)
    unseen = Unseen(2, NOW - timedelta(days=1))
    ids, missing, live = STORES[name].absent(watched, QUERY, unseen, ["1"], 10)
    assert (len(ids), missing, live) == (10, SOME, SOME)
    taken = STORES[name].close(watched, QUERY, ids, ["jobs-2"], NOW)
    assert taken.changed == len(ids)
    for sql, given in watched.asked:
        check(full, sql, given, 2 * SOME)
    for update in taken.updates:
        check_update(full, update)


def test_companies_are_aggregated_by_their_keys(full):
    watched: Any = Watched(full)
    found = aggregate(watched, NOW)
    assert found.done == SOME
    assert len(watched.asked) == 2
    for sql, given in watched.asked:
        check(full, sql, given, SOME * ROWS // 500)


def test_what_was_erased_is_found_by_its_keys(full):
    watched: Any = Watched(full)
    page = without_erased(watched, "jobs", OFFER_COLUMNS, Batch(items(len(OFFER_COLUMNS))))
    assert sum(isinstance(one, Item) and one.erased for one in page.records) == PAGE // 2 + 1
    (ever, _), *asked = watched.asked
    if full.database.dialect == "sqlite":
        plan = full.database.read(lambda cursor: cursor.rows(f"EXPLAIN QUERY PLAN {ever}"))
        assert any("companies_erased" in row[-1] for row in plan)
    else:

        def explained(cursor: Cursor) -> Any:
            full.database.sql.by_index(cursor)
            return cursor.rows(f"EXPLAIN (ANALYZE, FORMAT JSON) {ever}")

        plan = Plan(full.database.read(explained), sqlite=False)
        assert plan.visited("companies") + plan.visited("erased_records") <= 2
    assert len(asked) == 2
    for sql, given in asked:
        check(full, sql, given, PAGE)

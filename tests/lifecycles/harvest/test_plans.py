"""How the databases carry out what a run asks of the rows that it has just written: nobody has analysed them.

What a planner does not know it takes for small, and so for cheap to go through once more for every page and chunk. Here
PostgreSQL learns nothing of its tables, as between a run's first page and the next autovacuum, and says of every
statement how many rows it visited. SQLite says by which index it goes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from operator import methodcaller
from typing import Any

import psycopg
import pytest

from penstock.ledger.ledger import Ledger
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor
from penstock.lifecycles.harvest.chunk.flow import read_range
from penstock.lifecycles.harvest.chunk.machine import Chunk
from penstock.lifecycles.harvest.partition.flow import found_records
from penstock.lifecycles.harvest.partition.machine import Partition, WorkerRun, worker_run_id
from penstock.lifecycles.harvest.partition.pages import Page, known_of
from penstock.lifecycles.harvest.prune import prune_some
from penstock.lifecycles.harvest.reprice import Priced, reprice_some
from penstock.lifecycles.harvest.run import absence, consolidate
from penstock.lifecycles.harvest.tables import POSITIONS
from penstock.model.clock import instant_text
from penstock.model.machine import Actor
from penstock.model.outcome import Where
from tests.support.consolidation import a_run
from tests.support.databases import temporary_database
from tests.support.harvest import ALL, FEED, START, STONES, TABLES, Stone
from tests.support.plans import Plan

pytestmark = pytest.mark.by_day

ROWS, PARTITIONS, PAGE, CHUNK = 20_000, 20, 30, 500
EACH = ROWS // PARTITIONS
RAW, CANONICAL = STONES.raw.name, STONES.canonical.name
KEYS = {f"{RAW}_pkey", f"sqlite_autoindex_{RAW}_1"}
POSITION = {f"{RAW}_position"}
RUN = a_run(1)
FIRST = 3 * POSITIONS
"""The position of the first row of the partition that the tests ask for."""


class RolledBack(Exception):
    """Ends a transaction without its effects."""


class Watched:
    """A ledger that explains every statement, in the transaction that it belongs to, and takes back what it wrote.

    `generic`: by the plan that a prepared statement comes to after a few calls, which knows no parameter.
    """

    def __init__(self, ledger: Ledger, *, generic: bool = False) -> None:
        self.database = self
        self.generic = generic
        self.plans: list[tuple[str, Plan]] = []
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger.database, name)

    def read(self, work: Callable[[Any], Any], **how: Any) -> Any:
        return self._ledger.database.read(lambda cursor: work(_Cursor(cursor, self)), **how)

    def write(self, work: Callable[[Any], Any]) -> Any:
        found: list[Any] = []

        def and_back(cursor: Cursor) -> None:
            found.append(work(_Cursor(cursor, self)))
            raise RolledBack

        with pytest.raises(RolledBack):
            self._ledger.database.write(and_back)
        return found[0]

    def check(self, most: int, indexes: set[str] | None = None, table: str = RAW) -> None:
        """No statement looked at more rows of the table; where it says by which `indexes`, by no other."""
        if self.dialect == "sqlite":
            used = {scan for sql, plan in self.plans for scan in plan.scans(table, _aliases(table, sql))}
            assert used <= (indexes if indexes is not None else used - {"scan"}), [plan.words for _, plan in self.plans]
            return
        looked = [(plan.visited(table) + plan.compared(), sql) for sql, plan in self.plans]
        assert any(number for number, _ in looked)
        assert [(number, sql) for number, sql in looked if number > most] == []


def _aliases(table: str, sql: str) -> str:
    return "|".join(re.findall(rf"{table} (?:AS )?(\w+)", sql)) or table


class _Cursor:
    def __init__(self, cursor: Any, watched: Watched) -> None:
        self._cursor = cursor
        self._watched = watched

    def rows(self, sql: str, **given: Any) -> Any:
        self._explain(sql, given)
        return self._cursor.rows(sql, **given)

    def gather(self, sql: str, **given: Any) -> Any:
        self._explain(sql, given)
        return self._cursor.gather(sql, **given)

    def run(self, sql: str, **given: Any) -> int:
        if "set_config" in sql:
            return int(self._cursor.run(sql, **given))
        self._explain(sql, given)
        return 0

    def _explain(self, sql: str, given: dict[str, Any]) -> None:
        sqlite = self._watched.dialect == "sqlite"
        if sqlite:
            answer = self._cursor.rows(f"EXPLAIN QUERY PLAN {sql}", **given)
        elif self._watched.generic and given:
            answer = self._prepared(sql, given)
        else:
            answer = self._cursor.rows(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", **given)
        self._watched.plans.append((sql, Plan(answer, sqlite=sqlite)))

    def _prepared(self, sql: str, given: dict[str, Any]) -> Any:
        names = list(given)
        numbered = re.sub(r"(?<![:\w]):([a-z_]+)\b", lambda m: f"${names.index(m[1]) + 1}", sql)
        literals = ", ".join(psycopg.sql.Literal(given[name]).as_string(None) for name in names)
        self._cursor.run("SET LOCAL plan_cache_mode = force_generic_plan")
        self._cursor.run(f"PREPARE asked AS {numbered}")
        try:
            return self._cursor.rows(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE asked({literals})")
        finally:
            self._cursor.run("DEALLOCATE asked")


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def full(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """A ledger with the raw rows of one run, none of them consolidated, and as many records; nobody analysed them."""
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path_factory.mktemp('plans') / 'penstock.db'}"
        if request.param == "postgres":
            url = stack.enter_context(temporary_database(request.getfixturevalue("postgres_server")))
        ledger = stack.enter_context(Ledger.open(url, ALL, create=True, data_tables=TABLES))
        begin(ledger)
        fill(ledger)
        yield ledger


def begin(ledger: Ledger) -> None:
    ledger.birth([RUN], actor=Actor.SCHEDULER, who="test")
    ledger.birth([worker()], actor=Actor.WORKER, who="test")


def fill(ledger: Ledger) -> None:
    postgres = ledger.database.dialect == "postgresql"
    statement: Callable[[str], Any] = lambda sql: ledger.database.write(methodcaller("run", sql))  # noqa: E731
    if postgres:
        for table in (RAW, CANONICAL):
            statement(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    numbers = f"WITH RECURSIVE s(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM s WHERE i < {ROWS - 1})"
    at = f"CAST('{instant_text(START)}' AS {'timestamptz' if postgres else 'text'})"
    run = f"CAST('{RUN.run_id}' AS {'uuid' if postgres else 'text'})"
    payload = "CAST('{}' AS json)" if postgres else "'{}'"
    amount = "CAST('7' AS numeric)" if postgres else "'7'"
    statement(
        f"INSERT INTO {RAW} (run_id, supplier_stone_id, partition_id, position, offer_id, payload, payload_hash,"
        f" fetched_at) {numbers} SELECT {run}, 's' || (i * 7919 % {ROWS}), 'p' || (i / {EACH}),"
        f" (i / {EACH}) * CAST({POSITIONS} AS bigint) + i % {EACH}, 'o' || i, {payload}, 'x', {at} FROM s"
    )
    statement(
        f"INSERT INTO {CANONICAL} (feed, supplier_stone_id, offer_id, currency, supplier_price, price, payload_hash,"
        f" first_seen_run_id, last_seen_run_id, updated_at) {numbers} SELECT '{FEED}', 's' || i, 'o' || i, 'USD',"
        f" {amount}, {amount}, 'x', {run}, {run}, {at} FROM s"
    )


def partition() -> Partition:
    given: dict[str, Any] = {"window_from": None, "window_to": None, "expected_records": EACH}
    given |= {"created_at": START, "updated_at": START, "due_at": START}
    return Partition(run_id=RUN.run_id, partition_id="p3", ordinal=3, feed=FEED, low=0, high=None, **given)


def worker() -> WorkerRun:
    found = worker_run_id(RUN.run_id, "p3")
    return WorkerRun(id=found, run_id=RUN.run_id, partition_id="p3", worker_id="w", started_at=START)


def chunk() -> Chunk:
    return Chunk(run_id=RUN.run_id, number=1, feed=FEED, first=FIRST, last=FIRST + CHUNK, due_at=START)


@pytest.fixture(params=["as asked", "prepared"])
def watched(request: pytest.FixtureRequest, full: Ledger) -> Any:
    if request.param == "prepared" and full.database.dialect == "sqlite":
        pytest.skip("SQLite has one plan")
    return Watched(full, generic=request.param == "prepared")


def test_a_page_is_compared_with_what_is_there_by_its_keys(watched):
    there, fresh = [f"s{n}" for n in range(PAGE)], [f"new{n}" for n in range(PAGE)]
    page = Page.of(STONES, partition(), [Stone(1, name) for name in (*there, *fresh)], START)
    (known,) = known_of(watched, [(partition(), page)])
    assert known.records == {*there}
    watched.check(PAGE, KEYS)


def test_the_records_of_a_partition_are_counted_by_their_positions(watched):
    assert found_records(watched, STONES, partition()) == EACH
    watched.check(EACH, POSITION)


def test_chunks_are_cut_by_reading_each_row_twice(watched):
    cut = consolidate._ranges(watched, RUN, STONES, CHUNK)
    assert len(cut.ranges) == ROWS // CHUNK
    assert len(watched.plans) == 3
    watched.check(ROWS)


def test_a_chunk_is_read_by_its_positions(watched):
    assert len(read_range(watched, STONES, chunk())) == CHUNK
    watched.check(CHUNK, POSITION)


def test_a_chunk_is_marked_by_its_positions(watched):
    rows = Where(STONES.raw, {"run_id": str(RUN.run_id)}, span=("position", FIRST, FIRST + CHUNK))
    sql, given = statements.update_rows(watched, rows, {"consolidated": True})
    watched.write(lambda cursor: cursor.run(sql, **given))
    watched.check(CHUNK, POSITION)


def test_what_became_of_a_run_is_counted_by_reading_each_row_once(watched):
    assert consolidate._counted(watched, RUN, STONES).rows == ROWS
    assert consolidate._unconsolidated(watched, RUN, STONES)
    watched.check(ROWS)


def test_what_was_set_aside_is_taken_up_by_its_keys(watched):
    rows = Where(STONES.raw, {"run_id": str(RUN.run_id)}, among=(STONES.identity, [f"s{n}" for n in range(CHUNK)]))
    sql, given = statements.update_rows(watched, rows, {"consolidated": False})
    watched.write(lambda cursor: cursor.run(sql, **given))
    watched.check(CHUNK, KEYS)


def test_absence_is_looked_for_by_reading_each_row_a_few_times(watched):
    assert absence._live_and_unseen(watched, RUN, STONES) == (ROWS, 0)
    assert absence._seen_again(watched, RUN, STONES, CHUNK) == ([], [])
    assert absence._unseen(watched, RUN, STONES, CHUNK) == ([], [])
    watched.check(2 * ROWS)
    watched.check(2 * ROWS, table=CANONICAL)


def test_raw_rows_are_removed_some_at_a_time(watched):
    prune_some(watched, STONES.raw, str(RUN.run_id), CHUNK)
    watched.check(2 * CHUNK, KEYS)


def test_records_are_priced_again_by_their_keys(watched):
    reprice_some(watched, Priced.of(STONES), START, CHUNK)
    watched.check(ROWS, table=CANONICAL)


class Grown:
    """A ledger that says after each read how many raw rows PostgreSQL fetched for it."""

    def __init__(self, ledger: Ledger) -> None:
        self.database, self.fetched, self._ledger = ledger.database, 0, ledger

    def read(self, work: Callable[[Any], Any]) -> Any:
        sql = f"SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = '{RAW}'"

        def and_count(cursor: Cursor) -> Any:
            found = work(cursor)
            ((self.fetched,),) = cursor.rows(sql)
            return found

        return self._ledger.read(and_count)


def test_pages_are_compared_by_their_keys_where_the_first_of_them_met_an_empty_table(postgres_server):
    with (
        temporary_database(postgres_server) as url,
        Ledger.open(url, ALL, create=True, data_tables=TABLES, connections=2) as ledger,
    ):
        grown: Any = Grown(ledger)
        page = Page.of(STONES, partition(), [Stone(1, f"s{n}") for n in range(PAGE)], START)
        begin(ledger)
        for _ in range(10):
            known_of(grown, [(partition(), page)])
        fill(ledger)
        (known,) = known_of(grown, [(partition(), page)])
        assert known.records == {*page.records}
        assert grown.fetched <= 2 * PAGE

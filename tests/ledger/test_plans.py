"""How the databases carry out the hot statements: by their indexes, and no more rows than the batch asks for.

Thirty thousand due units stand behind closed gates, as after a long outage of a provider. PostgreSQL says how many
rows it visited; SQLite says by which index it goes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from penstock.ledger import parents, suspicion
from penstock.ledger.incarnation import Incarnation
from penstock.ledger.store import gates_due, statements
from penstock.ledger.store.claim_statements import ClaimSql, claim
from penstock.ledger.store.database import Cursor
from penstock.ledger.store.sqlite.database import SqliteDatabase
from penstock.model.clock import SystemClock
from penstock.model.machine import Actor
from penstock.operations.selection import Moment, condition
from penstock.operations.units import UnitList
from tests.support.databases import temporary_database
from tests.support.machines import BATCH_ITEM, BATCH_RUN, INVOICE, batch_item, batch_run, invoice
from tests.support.plans import Plan
from tests.support.world import World

HOUR = timedelta(hours=1)
CLOSED_GATES = 30
BEHIND_EACH = 1_000
OPEN = 2_000
BATCH = 100


class RolledBack(Exception):
    """Ends a transaction without its effects, and carries the answer out of it."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def crowd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A ledger with a crowd in it; tests leave it as they find it."""
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path_factory.mktemp('plans') / 'penstock.db'}"
        if request.param == "postgres":
            server, template = map(request.getfixturevalue, ("postgres_server", "postgres_world"))
            url = stack.enter_context(temporary_database(server, template))
        world = World(url, SystemClock())
        stack.callback(world.close)
        crowded(world)
        yield world


def crowded(world: World) -> None:
    closed = [f"closed{g:02}" for g in range(CLOSED_GATES)]
    waiting = (invoice(f"{g}-{i}", gate_id=g) for g in closed for i in range(BEHIND_EACH))
    free = (invoice(f"free{i}", gate_id=f"open{i % 4}") for i in range(OPEN))
    world.ledger.birth([*waiting, *free], actor=Actor.API, who="test")
    family = [batch_run(f"r{r}", items_expected=500) for r in range(2_000)]
    items = (batch_item(i, run_id=f"r{r}") for r in range(20) for i in range(500))
    world.ledger.birth(family, actor=Actor.API, who="test")
    world.ledger.birth(items, actor=Actor.API, who="test")
    worker = world.worker("invoice")
    for gate in closed:
        worker.gates.close(gate, 3600, "an outage")
    assert len(worker.claim({"invoice": 200})) == 200


@pytest.fixture(params=["fresh", "analysed"])
def world(request: pytest.FixtureRequest, crowd: World) -> World:
    """As found, and with the planner's statistics."""
    if request.param == "analysed":
        crowd.sql("ANALYZE")
    return crowd


def ask(world: World, work: Callable[[Cursor], Any], *, reader: bool = False) -> Any:
    """Run something on a connection of the ledger, and take back what it did."""

    def and_back(cursor: Cursor) -> None:
        raise RolledBack(work(cursor))

    with pytest.raises(RolledBack) as rolled:
        (world.ledger.database.read if reader else world.ledger.database.write)(and_back)
    return rolled.value.answer


def plan(world: World, sql: str, parameters: dict[str, Any], *, generic: bool = False, reader: bool = False) -> Plan:
    """The plan of a statement on a connection of the ledger, as the ledger itself would run it."""
    if world.sqlite:
        return Plan(ask(world, lambda c: c.rows(f"EXPLAIN QUERY PLAN {sql}", **parameters), reader=reader), sqlite=True)
    explain = "EXPLAIN (ANALYZE, FORMAT JSON) "
    if not generic:
        return Plan(ask(world, lambda c: c.rows(explain + sql, **parameters), reader=reader), sqlite=False)
    names = list(parameters)
    numbered = re.sub(r"(?<![:\w]):([a-z_]+)\b", lambda m: f"${names.index(m[1]) + 1}", sql)
    literals = ", ".join(psycopg.sql.Literal(parameters[n]).as_string(None) for n in names)

    def prepared(cursor: Cursor) -> Any:
        cursor.run("SET LOCAL plan_cache_mode = force_generic_plan")
        cursor.run(f"PREPARE asked AS {numbered}")
        try:
            return cursor.rows(f"{explain} EXECUTE asked({literals})")
        finally:
            cursor.run("DEALLOCATE asked")

    return Plan(ask(world, prepared, reader=reader), sqlite=False)


def used(parameters: dict[str, Any], sql: str) -> dict[str, Any]:
    """Those that the statement mentions; a prepared statement takes no others."""
    return {n: v for n, v in parameters.items() if re.search(rf":{n}\b", sql)}


def given(world: World, session: Incarnation, sql: str, **more: Any) -> dict[str, Any]:
    everything = {**world.ledger.database.bind_now(), "worker": session.identity.id, "actor": "worker:x", **more}
    return used(everything, sql)


def picking(world: World, session: Incarnation, made: ClaimSql, *, generic: bool = False, **more: Any) -> Plan:
    """The plan by which a claim finds its units; on SQLite of two statements, for the gates and for the units."""
    if not world.sqlite:
        return plan(world, made.pick, given(world, session, made.pick, n=BATCH, gate="", **more), generic=generic)
    behind = {"batch": statements.batch_text([["open0"], ["open1"]]), "share": BATCH // 2}
    found = plan(world, made.pick, given(world, session, made.pick, **behind, **more))
    if made.gates:
        gates = plan(world, made.gates, given(world, session, made.gates, n=BATCH, gate="", **more))
        found.words += gates.words
    return found


def covered(found: Plan, indexes: str) -> bool:
    """SQLite goes by these indexes, and never from them to the table."""
    looks = [re.search(rf"USING (COVERING )?INDEX ({indexes})\b", word) for word in found.words]
    return any(looks) and all(look[1] for look in looks if look)


def batch_of(world: World, table: str, where: str = "true", limit: int = BATCH) -> str:
    found = world.rows(f"SELECT unit_id FROM {table} WHERE {where} ORDER BY unit_id LIMIT {limit}")
    assert found
    return statements.batch_text([[r[0]] for r in found])


@pytest.fixture
def worker(crowd: World) -> Iterator[Incarnation]:
    session = crowd.worker("invoice", "batch_item")
    yield session
    session.retire()


GENERIC = pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
NEAR = pytest.mark.parametrize("near", [True, False], ids=["near", "anywhere"])


def by_moment(near: bool) -> int:
    """How many of the units that have waited longest are looked at besides."""
    return 0 if near else gates_due._LONGEST_WAITING


def due_indexes(table: str, near: bool) -> set[str]:
    return {f"{table}_due"} if near else {f"{table}_due", f"{table}_moments"}


@NEAR
@GENERIC
def test_a_claim_goes_by_the_due_index_and_stays_small(world, worker, generic, near):
    made = claim(world.ledger.database, INVOICE, near=near)
    found = picking(world, worker, made, generic=generic)
    scans = found.scans("invoice", "k|c|t|d")
    if world.sqlite:
        assert set(scans) == due_indexes("invoice", near)
        assert covered(found, "invoice_due|invoice_moments"), "no unit is read before it is picked"
        sorts = [w.split()[-2] for w in found.words if "TEMP B-TREE" in w]
        assert sorts == (["ORDER"] if near else ["GROUP", "ORDER"]), "of the gates alone"
        for by_ids in (made.take, made.read):
            found = plan(world, by_ids, given(world, worker, by_ids, ids='["acme/1"]'), generic=generic)
            assert found.scans("invoice", "t|invoice") == ["PRIMARY KEY"]
        return
    assert set(scans) == {*due_indexes("invoice", near), "invoice_pkey"}
    # The gates' first units, the picked ones, and the picked ones again to change them.
    assert found.visited("invoice") <= CLOSED_GATES + 10 + 3 * BATCH + by_moment(near)
    assert found.sorted_rows() <= CLOSED_GATES + 10, "only gates are sorted, never units"


@GENERIC
def test_asking_when_to_wake_goes_by_the_due_index(world, worker, generic):
    sql = worker._idle.sql
    found = plan(world, sql, given(world, worker, sql), generic=generic, reader=True)
    if world.sqlite:
        # At those that are due first. Behind gates that are open, and behind those that are asked: from gate to gate,
        # and at the end for the one without a name; at the first unit of each; at the first behind those that the walk
        # did not come to, that have just opened, and that are closed. Of suspects: behind the closed, and once at all.
        looks = sorted([*found.scans("invoice", "d|k"), *found.scans("batch_item", "batch_item")])
        of = {table: looks.count(f"{table}_due") for table in ("invoice", "batch_item")}
        of |= {f"{table} moments": looks.count(f"{table}_moments") for table in ("invoice", "batch_item")}
        of |= {f"{table} suspects": looks.count(f"{table}_suspects") for table in ("invoice", "batch_item")}
        expected = {"": 12, " moments": 1, " suspects": 3}
        assert of == {f"{table}{kind}": n for kind, n in expected.items() for table in ("invoice", "batch_item")}
        assert len(looks) == 32
        assert covered(found, r"\w+_due|\w+_moments")
        return
    for table in ("invoice", "batch_item"):
        assert set(found.scans(table, "d")) == {f"{table}_{which}" for which in ("due", "moments", "suspects")}
    assert found.visited("invoice") <= CLOSED_GATES + 10


@GENERIC
@pytest.mark.parametrize("many", [BATCH, statements.ALIKE_FROM], ids=["few", "alike"])
def test_a_commit_goes_by_the_unit_id(world, worker, generic, many):
    committer = world.ledger._committer
    units = world.rows(f"SELECT unit_id, version, status FROM invoice ORDER BY unit_id LIMIT {many}")
    rows = [[u, v, s, s, "worker:x", "why", 0, None, "r"] for u, v, s in units]
    alike = statements.alike_in(rows, after=statements.FENCE)
    assert list(alike) == ([3, 4, 5, 6, 7, 8] if many > BATCH else [])
    sql = committer._statement("update", "invoice", ("remote_id",), False, tuple(alike))
    parameters = statements.batch_given(world.ledger.database, rows, alike)
    found = plan(world, sql, given(world, worker, sql, **parameters), generic=generic)
    assert found.scans("invoice", "t") == ["PRIMARY KEY" if world.sqlite else "invoice_pkey"]
    if not world.sqlite:
        assert found.visited("invoice") == many


@GENERIC
def test_reaping_goes_by_the_claimed_index(world, worker, generic):
    sql = suspicion._accuse(world.ledger.database, "invoice")
    text = batch_of(world, "(SELECT id AS unit_id FROM worker) w")
    found = plan(world, sql, given(world, worker, sql, batch=text), generic=generic)
    assert found.scans("invoice", "invoice") == ["invoice_claimed"]
    if not world.sqlite:
        assert found.visited("invoice") == 200


@GENERIC
def test_recovering_and_retiring_go_by_the_claimed_index(world, worker, generic):
    for sql in (
        "SELECT unit_id FROM invoice WHERE claimed_by = :worker",
        "UPDATE invoice SET claimed_by = NULL, version = version + 1 WHERE claimed_by = :worker",
    ):
        found = plan(world, sql, given(world, worker, sql), generic=generic)
        assert found.scans("invoice", "invoice") == ["invoice_claimed"]


@GENERIC
def test_waking_locking_and_releasing_go_by_the_unit_id(world, worker, generic):
    database = world.ledger.database
    by_id = "PRIMARY KEY" if world.sqlite else "invoice_pkey"
    text = batch_of(world, "invoice")
    for sql in (statements.wake_units(database, INVOICE), statements.lock_units(database, "invoice")):
        found = plan(world, sql, given(world, worker, sql, batch=text), generic=generic)
        assert set(found.scans("invoice", "t")) == {by_id}
        if not world.sqlite:
            assert found.visited("invoice") == BATCH
    sql = statements.release(database, INVOICE)
    rows = [[r[0], 1, 0] for r in world.rows(f"SELECT unit_id FROM invoice ORDER BY unit_id LIMIT {BATCH}")]
    text = statements.batch_text(rows)
    found = plan(world, sql, given(world, worker, sql, batch=text), generic=generic)
    assert set(found.scans("invoice", "t")) == {by_id}


@GENERIC
def test_a_tally_finds_the_parent_by_id_and_counts_its_own_children_alone(world, worker, generic):
    database = world.ledger.database
    by_id = "PRIMARY KEY" if world.sqlite else "batch_run_pkey"
    sql = parents.tally_units(database, BATCH_RUN, BATCH_ITEM, ["items_done"])
    text = statements.batch_text([["r1", 1], ["r2", 1]])
    found = plan(world, sql, given(world, worker, sql, batch=text), generic=generic)
    assert found.scans("batch_run", "t") == [by_id]
    assert found.scans("batch_item", "c") == [], "it asks for the counters alone"
    sql = parents.wake_complete(database, BATCH_RUN, BATCH_ITEM)
    text = batch_of(world, "batch_run", limit=2)
    found = plan(world, sql, given(world, worker, sql, batch=text), generic=generic)
    assert set(found.scans("batch_run", "t")) == {by_id}
    assert set(found.scans("batch_item", "c")) == {"batch_item_parent"}
    if not world.sqlite:
        assert found.visited("batch_item") <= 2 * 500, "the children of these parents"


def test_reading_units_goes_by_the_unit_id(world, worker):
    source = statements.batch(world.ledger.database, {"unit_id": statements.TEXT})
    sql = f"SELECT * FROM invoice WHERE unit_id IN (SELECT n_unit_id FROM {source}) ORDER BY unit_id"
    found = plan(world, sql, {"batch": batch_of(world, "invoice", limit=10)}, reader=True)
    assert found.scans("invoice", "invoice") == ["PRIMARY KEY" if world.sqlite else "invoice_pkey"]


def test_registering_looks_at_parked_units_alone(world, worker):
    sql = "UPDATE invoice SET parked_at = NULL WHERE parked_at IS NOT NULL AND parked_reason = :reason"
    found = plan(world, sql, {"reason": "x"})
    assert found.scans("invoice", "invoice") == ["invoice_parked"]


def test_parking_the_unknown_does_not_read_the_whole_table(world, worker):
    if world.sqlite:
        pytest.skip("SQLite may read the table itself, and stops at the limit")
    sql = f"SELECT unit_id FROM invoice WHERE {statements.waiting('due_at')} AND due_at <= :moment LIMIT 1000"
    moment = world.one("SELECT max(changed_at) FROM invoice")
    found = plan(world, sql, {"moment": moment})
    assert found.scans("invoice", "invoice") == ["invoice_due"]
    assert found.visited("invoice") <= 1000


@pytest.mark.parametrize("counted", [False, True], ids=["listed", "counted"])
def test_listing_by_state_goes_by_the_index_of_states(world, counted):
    wanted = UnitList(machine="batch_run", status=("running",))
    where = condition(Moment(world.ledger.database, world.clock.now()), BATCH_RUN, wanted)
    listed = f"SELECT unit_id, status FROM batch_run WHERE {where.sql} ORDER BY unit_id LIMIT 50"
    sql = f"SELECT status, count(*) FROM batch_run WHERE {where.sql} GROUP BY status" if counted else listed
    found = plan(world, sql, dict(where.values), reader=True)
    assert found.scans("batch_run", "batch_run") == ["batch_run_status"]


IDLE_GATES = 10_000


def with_idle_gates(cursor: Cursor) -> None:
    """Ten thousand gates with nobody behind them, and no limits."""
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {IDLE_GATES})"
    assert cursor.run(f"{numbers} INSERT INTO gate (gate_id) SELECT 'idle' || i FROM n") == IDLE_GATES


class Recording:
    """A cursor that remembers what it was asked."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def rows(self, sql: str, **parameters: Any) -> Any:
        self.asked.append((sql, parameters))
        return self._cursor.rows(sql, **parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


def explained(world: World, cursor: Cursor, sql: str, parameters: dict[str, Any]) -> Plan:
    words = "EXPLAIN QUERY PLAN " if world.sqlite else "EXPLAIN (ANALYZE, FORMAT JSON) "
    return Plan(cursor.rows(words + sql, **parameters), sqlite=world.sqlite)


@NEAR
def test_asking_gates_with_limits_looks_behind_no_others(world, worker, near):
    def work(cursor: Cursor) -> tuple[list[Any], Plan]:
        with_idle_gates(cursor)
        cursor.run("UPDATE gate SET metered = true WHERE gate_id = 'open1'")
        recording: Any = Recording(cursor)
        gates = worker.gates.meter(recording, ["invoice", "batch_item"], near=near)
        ((sql, parameters),) = [asked for asked in recording.asked if "FROM gate g" in asked[0]]
        return gates, explained(world, cursor, sql, parameters)

    gates, found = ask(world, work)
    assert [g.gate_id for g in gates] == ["open1"]
    if world.sqlite:
        assert set(found.scans("invoice", "d|k")) == due_indexes("invoice", near) | due_indexes("batch_item", near)
        return
    assert set(found.scans("invoice", "d|k")) == due_indexes("invoice", near)
    assert found.visited("invoice") + found.visited("batch_item") <= 8 + 2 * by_moment(near)
    assert set(found.scans("gate", "o|g")) <= {"gate_stands", "gate_shut", "gate_pkey"}
    assert found.visited("gate") <= 8, "idle ones are not even looked at"


def test_a_claim_behind_asked_gates_goes_by_the_due_index_and_takes_its_share(world, worker):
    made = claim(world.ledger.database, INVOICE, metered=True)
    shares = statements.batch_text([["open0", 7], ["open1", 5]])
    more: dict[str, Any] = {} if world.sqlite else {"batch": shares}
    found = picking(world, worker, made, **more)
    scans = set(found.scans("invoice", "c|t|invoice"))
    assert scans == ({"invoice_due"} if world.sqlite else {"invoice_due", "invoice_pkey"})
    if not world.sqlite:
        assert found.visited("invoice") <= 2 * (7 + 5)


@NEAR
def test_ten_thousand_idle_gates_do_not_make_a_claim_visit_more_units(world, worker, near):
    made = claim(world.ledger.database, INVOICE, near=near)
    sql = made.gates or made.pick
    parameters = given(world, worker, sql, n=BATCH, gate="")

    def work(cursor: Cursor) -> Plan:
        with_idle_gates(cursor)
        return explained(world, cursor, sql, parameters)

    found = ask(world, work)
    if world.sqlite:
        assert set(found.scans("invoice", "k|c|t|d")) == due_indexes("invoice", near)
    else:
        assert found.visited("invoice") <= CLOSED_GATES + 10 + 3 * BATCH + by_moment(near)
        assert found.sorted_rows() <= CLOSED_GATES + 10, "idle gates are not even sorted"


@NEAR
@GENERIC
@pytest.mark.parametrize("suspects", [False, True], ids=["others", "suspects"])
def test_a_claim_of_siblings_goes_by_their_index_and_stays_small(world, worker, generic, suspects, near):
    """Ten thousand items wait, five hundred to a run, of which 250 are claimed at once."""
    sql = claim(world.ledger.database, BATCH_ITEM, suspects=suspects, near=near)
    most = BATCH_ITEM.siblings_at_once
    extra = {"low": 1, "high": 2} if suspects else {}
    found = picking(world, worker, sql, generic=generic, **extra)
    by_due = {"batch_item_suspects"} if suspects else due_indexes("batch_item", near)
    if world.sqlite:
        assert set(found.scans("batch_item", "k|c|t|d")) == by_due
    else:
        assert set(found.scans("batch_item", "c|d|t|k")) <= {*by_due, "batch_item_pkey"}
        looked_at = 4 * BATCH + most + 20 + by_moment(near)
        assert found.visited("batch_item") <= looked_at, "what is looked at, and the oldest of each run"
    picked = json.dumps([f"r{r}/{n}" for r in range(10) for n in range(10)])
    found = plan(
        world, sql.widen, given(world, worker, sql.widen, n=BATCH, gate="", ids=picked, **extra), generic=generic
    )
    by_id = "PRIMARY KEY" if world.sqlite else "batch_item_pkey"
    assert set(found.scans("batch_item", "batch_item|c|u")) == {by_id, "batch_item_siblings"}
    if not world.sqlite:
        runs = 10 if suspects else 2  # there is no suspect among them
        assert found.visited("batch_item") <= 100 + runs * 500, "what was picked, and the runs that are claimed"
    for by_ids in (sql.take, sql.read):
        found = plan(world, by_ids, given(world, worker, by_ids, ids=picked), generic=generic)
        assert found.scans("batch_item", "t|batch_item") == [by_id]


@pytest.mark.parametrize("gates", [["none"], ["open0", "open1", "open2"]], ids=["one gate", "three gates"])
def test_a_claim_on_sqlite_does_the_same_work_however_many_wait(tmp_path, gates):
    def steps(waiting: int) -> int:
        """Steps of SQLite's machine, in hundreds: a plan does not say where it stops."""
        counted = []
        with closing(World(f"sqlite:///{tmp_path}/{waiting}.db", SystemClock())) as world:
            due = (invoice(f"{i:05}", gate_id=gates[i % len(gates)]) for i in range(waiting))
            world.ledger.birth(due, actor=Actor.API, who="test")
            session = world.worker("invoice")

            def work(cursor: Any) -> list[Any]:
                cursor.connection.set_progress_handler(lambda: counted.append(1), 100)
                return session._claims.rows(cursor, "invoice", BATCH, None)

            assert len(ask(world, work)) == BATCH
        return len(counted)

    few = steps(3 * BATCH)
    assert few > 0
    assert steps(30 * BATCH) <= 1.2 * few


@pytest.mark.parametrize("metered", [False, True], ids=["unasked", "asked"])
@pytest.mark.parametrize("gates", [3, 100], ids=["few gates", "many gates"])
def test_what_a_claim_asks_stays_compiled_on_sqlite(tmp_path, gates, metered):
    """SQLite looks at a bare parameter behind LIMIT, and compiles the statement anew for each value."""
    compiled: list[Any] = []
    with closing(World(f"sqlite:///{tmp_path}/penstock.db", SystemClock())) as world:
        due = [invoice(f"{i:05}", gate_id=f"g{i % 3}") for i in range(300)]
        later = [invoice(f"l{i}", gate_id=f"g{i}", due_at=world.clock.now() + HOUR) for i in range(gates)]
        world.ledger.birth([*due, *later], actor=Actor.API, who="test")
        world.sql("UPDATE gate SET metered = :metered WHERE gate_id <> 'none'", metered=int(metered))
        session = world.worker("invoice")

        def work(cursor: Cursor, n: int) -> int:
            return sum(map(len, session._claims.within(cursor, {"invoice": n}, None, None)[0].values()))

        def authorized(*about: Any) -> int:
            compiled.append(about)
            return 0

        def claims(cursor: Any) -> tuple[list[int], list[Any]]:
            cursor.connection.set_authorizer(authorized)
            taken = [work(cursor, n) for n in (2, 4)]
            del compiled[:]
            taken += [work(cursor, n) for n in (3, 5, 30)]
            return taken, compiled[:]

        assert ask(world, claims) == ([2, 4, 3, 5, 30], [])


def test_what_a_worker_asks_in_turn_stays_compiled_on_sqlite(tmp_path):
    """SQLite asks an authorizer whenever it compiles a statement."""
    database = SqliteDatabase(str(tmp_path / "penstock.db"), SystemClock())
    compiled: list[str] = []

    def every(connection: Any) -> None:
        for number in range(600):
            connection.execute(f"SELECT {number}").fetchall()

    def allowed(*about: Any) -> int:
        compiled.append(str(about))
        return 0

    with database._writing() as connection:
        connection.set_authorizer(allowed)
        every(connection)
        assert len(compiled) == 600
        compiled.clear()
        every(connection)
        assert compiled == []
    database.close()

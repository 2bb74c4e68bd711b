"""Staged rows: invisible until they are pointed at, fenced by the claim, and swept when nobody can point at them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from penstock.ledger.claim import Levels
from penstock.ledger.commit import Lost, Won
from penstock.ledger.incarnation import Incarnation
from penstock.ledger.ledger import Ledger
from penstock.ledger.stage import Staged, StageWriter, sweep
from penstock.ledger.store.database import Database
from penstock.model.clock import Rng, SystemClock, VirtualClock
from penstock.model.errors import BrokenFlow, ClaimLost, CommitUnknown, LedgerRefused, LedgerUnavailable, MachineError
from penstock.model.machine import Actor
from penstock.model.outcome import MAX_ROWS, Outcome
from penstock.model.unit import Ref, replace
from penstock.settings.redaction import conceal, release
from tests.support.hand import Hand
from tests.support.machines import DUE, PARTITION
from tests.support.staging import LOAD, MEASURES, Load, S, measure, measures

NOW = timedelta()


class Loading:
    """A ledger with loads, and the words that tests speak about them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.time = VirtualClock(DUE)
        self.ledger = Ledger.open(url, [LOAD], clock=self.time, rng=Rng(1), create=True, data_tables=[measure])
        self.database: Database = self.ledger.database

    def worker(self) -> Incarnation:
        session = self.ledger.incarnation()
        session.register()
        return session

    def born(self, *names: str, **fields: Any) -> None:
        self.ledger.birth((Load(name=n, due_at=DUE, **fields) for n in names), actor=Actor.API, who="test")

    def unit(self, name: str = "a") -> Any:
        return self.ledger.get(Ref("load", name))

    def writer(self, unit: Any, database: Any = None, staged: Staged = MEASURES) -> StageWriter:
        return StageWriter(database or self.database, staged, unit, self.ledger.rng.token())

    def strict(self, unit: Any, database: Any = None) -> StageWriter:
        """One that refuses a key that is there, and so fills its table in the quickest way."""
        return self.writer(unit, database, Staged(measure, LOAD, "loaded_stage", on_conflict="error"))

    def staged(self, unit: Any, count: int, **options: Any) -> StageWriter:
        """A sealed batch of so many rows."""
        writer = self.writer(unit, **options)
        writer.take(measures(count, unit.version))
        writer.seal()
        return writer

    def point(self, session: Incarnation, unit: Any, stage_id: str | None, **changes: Any) -> Any:
        after = replace(unit, status=S.LOADED, loaded_stage=stage_id, due_at=None, **changes)
        entry = self.ledger.preparer.entry(Outcome(unit, after, "loaded"), session.identity.id)
        return session.commit([entry])[0]

    def loaded(self, session: Incarnation, count: int) -> str:
        """Claim the one load that is due and load it whole."""
        (unit,) = session.claim({"load": 1}) + session.take({"load": 1}, levels=Levels(1, 9)).units
        writer = self.staged(unit, count)
        assert self.point(session, unit, writer.stage_id) == Won()
        return writer.stage_id

    def again(self, name: str = "a") -> None:
        now = self.time.now()
        self.ledger.move(Ref("load", name), S.WANTED, actor=Actor.OPERATOR, who="jo", reason="again", due_at=now)

    def die(self, session: Incarnation) -> None:
        """The session's worker is found dead."""
        self.time.advance(60)
        assert self.worker().reap() == 1

    def rows(self, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
        return self.ledger.read(lambda c: [tuple(r) for r in c.rows(sql, **parameters)])

    def visible(self) -> int:
        return int(self.rows(f"SELECT count(*) FROM {MEASURES.visible}")[0][0])

    def kept(self) -> tuple[int, int]:
        """(batches, rows) in the ledger, visible or not."""
        sql = "SELECT (SELECT count(*) FROM stage), (SELECT count(*) FROM measure)"
        found = self.rows(sql)[0]
        return int(found[0]), int(found[1])

    def sweep(self, grace: timedelta = NOW, **options: Any) -> tuple[int, int, bool]:
        swept = sweep(self.database, [MEASURES], grace=grace, **options)
        return swept.batches, swept.rows, swept.more


@pytest.fixture
def loading(ledger_url: str) -> Iterator[Loading]:
    made = Loading(ledger_url)
    yield made
    made.ledger.close()


def test_rows_are_visible_from_the_commit_that_points_at_them(loading):
    loading.born("a")
    session = loading.worker()
    (unit,) = session.claim({"load": 1})
    writer = loading.writer(unit)
    writer.take(measures(MAX_ROWS + 1, unit.version))
    writer.write()
    assert (loading.kept(), loading.visible()) == ((1, MAX_ROWS), 0)
    writer.seal()
    assert (loading.kept(), loading.visible()) == ((1, MAX_ROWS + 1), 0)
    assert loading.point(session, unit, writer.stage_id) == Won()
    assert loading.visible() == MAX_ROWS + 1
    assert loading.rows("SELECT row_count, chunks, version, unit_id FROM stage") == [
        (MAX_ROWS + 1, 2, unit.version, "a")
    ]


def test_a_second_load_takes_the_place_of_the_first_at_once(loading):
    loading.born("a")
    session = loading.worker()
    first = loading.loaded(session, 10)
    loading.again()
    (unit,) = session.claim({"load": 1})
    second = loading.staged(unit, 7)
    assert loading.visible() == 10
    loading.point(session, unit, second.stage_id)
    assert loading.visible() == 7
    assert loading.rows(f"SELECT DISTINCT r.version FROM {MEASURES.visible}") == [(unit.version,)]
    assert loading.kept() == (2, 17)
    assert loading.rows("SELECT count(*) FROM measure WHERE stage_id = :stage_id", stage_id=first) == [(10,)]


def test_the_former_batch_stays_for_its_readers_until_the_grace_is_over(loading):
    loading.born("a")
    session = loading.worker()
    loading.loaded(session, 10)
    loading.again()
    loading.loaded(session, 7)
    hour = timedelta(hours=1)
    assert loading.sweep(hour) == (0, 0, False)
    loading.time.advance(3_599)
    assert loading.sweep(hour) == (0, 0, False)
    assert loading.kept() == (2, 17)
    loading.time.advance(1)
    assert loading.sweep(hour) == (1, 10, False)
    assert (loading.kept(), loading.visible()) == ((1, 7), 7)
    loading.time.advance(10**6)
    assert loading.sweep(hour) == (0, 0, False)


def test_a_batch_of_few_rows_is_one_transaction(loading):
    loading.born("a")
    (unit,) = loading.worker().claim({"load": 1})
    wire = Wire(loading.database)
    loading.staged(unit, 100, database=wire)
    assert wire.writes == 1


def test_a_batch_without_rows_is_a_batch(loading):
    loading.born("a")
    session = loading.worker()
    loading.loaded(session, 10)
    loading.again()
    loading.loaded(session, 0)
    assert loading.visible() == 0
    assert loading.rows("SELECT row_count, chunks FROM stage ORDER BY row_count") == [(0, 1), (10, 1)]


def test_a_chunk_has_at_most_four_megabytes(loading):
    loading.born("a")
    (unit,) = loading.worker().claim({"load": 1})
    writer = loading.writer(unit)
    writer.take(measures(9, note="x" * 2**20))
    writes = 0
    while writer.full:
        writer.write()
        writes += 1
    writer.seal()
    assert writes == 2
    assert loading.rows("SELECT row_count, chunks FROM stage") == [(9, 3)]
    with pytest.raises(BrokenFlow, match=r"load:a: measure\.note cannot be stored: it has 5,242,880 bytes, a value"):
        loading.writer(unit).take(measures(1, note="x" * 5 * 2**20))


def test_the_last_row_of_a_key_wins_across_chunks(loading):
    loading.born("a")
    session = loading.worker()
    (unit,) = session.claim({"load": 1})
    writer = loading.writer(unit)
    writer.take(measures(MAX_ROWS, note="first"))
    writer.take(measures(3, note="second"))
    writer.seal()
    loading.point(session, unit, writer.stage_id)
    assert loading.visible() == MAX_ROWS
    assert loading.rows("SELECT position FROM measure WHERE note = 'second' ORDER BY 1") == [(0,), (1,), (2,)]


def test_a_refused_row_refuses_its_chunk(loading):
    loading.born("a")
    (unit,) = loading.worker().claim({"load": 1})
    writer = loading.writer(unit)
    writer.take([*measures(3), {"position": -1}])
    with pytest.raises(LedgerRefused, match="measure_position"):
        writer.seal()
    assert not writer.sealed
    assert loading.kept() == (0, 0)
    strict = Staged(measure, LOAD, "loaded_stage", on_conflict="error")
    writer = loading.writer(unit, staged=strict)
    writer.take([*measures(3), *measures(1)])
    with pytest.raises(LedgerRefused):
        writer.seal()
    assert loading.kept() == (0, 0)


def test_rows_that_cannot_be_kept_are_refused_by_name(loading):
    loading.born("a")
    (unit,) = loading.worker().claim({"load": 1})
    for row, message in (
        ({"position": 1, "nota": 1}, r"load:a: measure has no column 'nota'"),
        ({"position": 1, "facts": {"x": float("nan")}}, r"load:a: measure\.facts cannot be stored"),
        ({"position": 1, "stage_id": "mine"}, r"load:a: stage_id of measure is filled by the stage"),
    ):
        with pytest.raises(BrokenFlow, match=message):
            loading.writer(unit).take([row])
    with pytest.raises(BrokenFlow, match="measure is filled by a claimed unit of load"):
        loading.writer(loading.ledger.get(Ref("load", "a")).__class__(name="nobody"))


@pytest.mark.parametrize("loss", ["reaped", "moved", "sql", "released"])
def test_a_worker_that_lost_its_claim_adds_nothing(loading, loss):
    loading.born("a")
    session = loading.worker()
    (unit,) = session.claim({"load": 1})
    writer = loading.writer(unit)
    writer.take(measures(MAX_ROWS * 2))
    writer.write()
    if loss == "reaped":
        loading.die(session)
    elif loss == "moved":
        loading.ledger.move(Ref("load", "a"), S.WANTED, actor=Actor.OPERATOR, who="jo", reason="x", row_count=1)
    elif loss == "sql":
        loading.database.write(lambda c: c.run("UPDATE load SET loaded_stage = 'x'"))
    else:
        session.release([(unit, True)])
    assert loading.unit().version != unit.version
    for attempt in (writer.write, writer.seal, loading.writer(unit).seal):
        with pytest.raises(ClaimLost, match="load:a was taken away while measure was being filled for it"):
            attempt()
    assert loading.kept() == (1, MAX_ROWS)
    assert loading.sweep(timedelta(days=1)) == (1, MAX_ROWS, False), "never sealed, never seen: no grace"
    assert loading.kept() == (0, 0)


def test_a_retried_load_begins_anew_and_the_orphan_is_swept(loading):
    loading.born("a")
    dead = loading.worker()
    (lost,) = dead.claim({"load": 1})
    orphan = loading.staged(lost, 10)
    loading.die(dead)
    session = loading.worker()
    loaded = loading.loaded(session, 12)
    assert loading.point(dead, lost, orphan.stage_id) == Lost()
    assert loading.unit().loaded_stage == loaded
    assert loading.sweep() == (1, 10, False)
    assert (loading.kept(), loading.visible()) == ((1, 12), 12)


def test_a_batch_of_a_live_claim_is_never_swept(loading):
    loading.born("a")
    session = loading.worker()
    (unit,) = session.claim({"load": 1})
    writer = loading.writer(unit)
    writer.take(measures(MAX_ROWS + 1))
    writer.write()
    loading.time.advance(10**7)
    assert loading.sweep() == (0, 0, False)
    writer.seal()
    assert loading.sweep() == (0, 0, False)
    assert loading.point(session, unit, writer.stage_id) == Won()
    assert loading.sweep() == (0, 0, False)
    assert loading.visible() == MAX_ROWS + 1


def test_what_no_unit_points_at_any_more_is_swept(loading):
    loading.born("a", "b", "c")
    session = loading.worker()
    for _ in "abc":
        loading.loaded(session, 5)
    loading.ledger.move(Ref("load", "a"), S.WANTED, actor=Actor.OPERATOR, who="jo", reason="emptied", loaded_stage=None)
    with Hand(loading.database.url) as hand:
        hand.prune("DELETE FROM load WHERE unit_id = 'b'", machine="load")
    assert loading.sweep() == (2, 10, False)
    assert (loading.kept(), loading.visible()) == ((1, 5), 5)


def test_a_batch_that_another_column_keeps_is_not_swept(loading):
    loading.born("a")
    session = loading.worker()
    first = loading.loaded(session, 5)
    loading.again()
    (unit,) = session.claim({"load": 1})
    second = loading.staged(unit, 6)
    loading.point(session, unit, second.stage_id, former_stage=first)
    keeping = Staged(measure, LOAD, "loaded_stage", keeps=("former_stage",))
    assert sweep(loading.database, [keeping], grace=NOW).batches == 0
    assert loading.sweep() == (1, 5, False)


def test_a_batch_pointed_at_again_within_the_grace_stays(loading):
    loading.born("a")
    session = loading.worker()
    first = loading.loaded(session, 5)
    loading.again()
    loading.loaded(session, 6)
    assert loading.sweep(timedelta(hours=1)) == (0, 0, False)
    loading.ledger.move(Ref("load", "a"), S.WANTED, actor=Actor.OPERATOR, who="jo", reason="back", loaded_stage=first)
    loading.time.advance(3_600)
    loading.sweep(timedelta(hours=1))
    loading.time.advance(3_600)
    assert loading.sweep(timedelta(hours=1)) == (1, 6, False)
    assert loading.visible() == 5


def test_a_sweep_is_bounded_and_says_that_there_is_more(loading):
    loading.born("a", "b", "c")
    dead = loading.worker()
    for unit in dead.claim({"load": 3}):
        loading.staged(unit, 4_000)
    loading.time.advance(60)
    loading.worker().reap()
    assert loading.sweep(at_most=7_000) == (1, 7_000, True)
    assert loading.kept() == (2, 5_000)
    assert loading.sweep(at_most=1_000) == (0, 1_000, True)
    assert loading.sweep() == (2, 4_000, False)
    assert loading.kept() == (0, 0)


def test_batches_of_a_table_that_is_not_declared_are_left_alone(loading):
    loading.born("a")
    dead = loading.worker()
    (unit,) = dead.claim({"load": 1})
    loading.staged(unit, 5)
    loading.die(dead)
    assert sweep(loading.database, [], grace=NOW).batches == 0
    assert loading.kept() == (1, 5)


class Wire:
    """A database whose answers to COMMIT get lost, before or after it landed."""

    def __init__(self, database: Database, *, lose: str = "nothing") -> None:
        self._database = database
        self._lose = lose
        self._lost = False
        self.writes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def write(self, work: Any) -> Any:
        self.writes += 1
        self._lost = not self._lost
        if self._lost and self._lose == "before":
            raise LedgerUnavailable("cut before COMMIT")
        result = self._database.write(work)
        if self._lost and self._lose == "after":
            raise CommitUnknown("cut after COMMIT")
        return result


@pytest.mark.parametrize("lose", ["before", "after"])
def test_every_chunk_is_written_once_though_every_answer_is_lost_once(loading, lose):
    loading.born("a")
    session = loading.worker()
    (unit,) = session.claim({"load": 1})
    strict = Staged(measure, LOAD, "loaded_stage", on_conflict="error")
    writer = loading.writer(unit, Wire(loading.database, lose=lose), strict)
    writer.take(measures(MAX_ROWS * 2 + 1))
    for attempt in (writer.write, writer.write, writer.seal):
        with pytest.raises(LedgerUnavailable):
            attempt()
        attempt()
    loading.point(session, unit, writer.stage_id)
    assert loading.visible() == MAX_ROWS * 2 + 1
    assert loading.rows("SELECT row_count, chunks FROM stage") == [(MAX_ROWS * 2 + 1, 3)]


@pytest.mark.parametrize("ledger_url", ["postgres"], indirect=True)
def test_a_sweep_during_a_commit_leaves_what_it_points_at(loading):
    """The commit is under way in another transaction: neither the old row nor the new one lets the batch go."""
    loading.born("a")
    session = loading.worker()
    (unit,) = session.claim({"load": 1})
    writer = loading.staged(unit, 10)
    with psycopg.connect(loading.url) as other:
        other.execute(
            "UPDATE load SET status = 'loaded', loaded_stage = %s, version = version + 1, claimed_by = NULL",
            [writer.stage_id],
        )
        assert loading.sweep() == (0, 0, False)
        other.commit()
    assert loading.sweep() == (0, 0, False)
    assert loading.visible() == 10


@pytest.mark.parametrize("ledger_url", ["postgres"], indirect=True)
def test_a_sweep_during_a_chunk_leaves_nothing_behind(loading):
    """The chunk passed the fence, then its claim was lost, and it commits after the sweep came by."""
    loading.born("a")
    session = loading.worker()
    (unit,) = session.claim({"load": 1})
    writer = loading.writer(unit)
    writer.take(measures(MAX_ROWS * 2))
    writer.write()
    with psycopg.connect(loading.url) as other:
        other.execute("UPDATE stage SET row_count = row_count + 1, chunks = chunks + 1")
        loading.die(session)
        assert loading.sweep() == (0, 0, False)
        other.execute("INSERT INTO measure (stage_id, position) VALUES (%s, 999999)", [writer.stage_id])
        other.commit()
    assert loading.sweep() == (1, MAX_ROWS + 1, False)
    assert loading.kept() == (0, 0)


@pytest.mark.parametrize(
    ("table", "machine", "pointer", "message"),
    [
        (sa.Table("t", sa.MetaData(), sa.Column("id", sa.Text, primary_key=True)), LOAD, "loaded_stage", "stage_id"),
        (measure, LOAD, "loaded_rows", "load has no column loaded_rows: str | None"),
        (measure, LOAD, "nowhere", "load has no column nowhere"),
        (measure, LOAD, "name", "load has no column name"),
        (measure, LOAD, "parked_reason", "load has no column parked_reason"),
        (measure, PARTITION, "current_run_id", "partition is not driven"),
    ],
)
def test_a_wrong_declaration_is_refused(table, machine, pointer, message):
    with pytest.raises(MachineError) as refused:
        Staged(table, machine, pointer)
    assert message in str(refused.value)


def test_a_sweep_among_many_batches_reads_and_locks_nobody_out(loading):
    """With nothing loose, a sweep is two reads: it never asks for the writer's place."""
    loading.born("a")
    loading.loaded(loading.worker(), 5)
    wire = Wire(loading.database)
    sweep(wire, [MEASURES], grace=NOW)
    assert wire.writes == 0


def test_the_clock_of_the_grace_is_the_ledgers(ledger_url):
    """On PostgreSQL's own clock as on the virtual one of the other tests."""
    with Ledger.open(ledger_url, [LOAD], clock=SystemClock(), create=True, data_tables=[measure]) as ledger:
        ledger.birth([Load(name="a", due_at=ledger.clock.now())], actor=Actor.API, who="test")
        session = ledger.incarnation()
        session.register()
        (unit,) = session.claim({"load": 1})
        assert isinstance(unit, Load)
        writer = StageWriter(ledger.database, MEASURES, unit, "stage")
        writer.take(measures(3))
        writer.seal()
        session.release([(unit, True)])
        assert sweep(ledger.database, [MEASURES]).batches == 0
        assert sweep(ledger.database, [MEASURES], grace=NOW).batches == 1


COLUMNS = ("position", "version", "note")


def block(start: int, count: int, note: str | None = "n") -> list[tuple[Any, ...]]:
    return [(n, 1, note) for n in range(start, start + count)]


@pytest.mark.parametrize("mode", ["error", "update", "ignore"])
def test_blocks_become_chunks_and_are_visible_when_pointed_at(loading, mode):
    loading.born("a")
    session = loading.worker()
    (unit,) = session.claim({"load": 1})
    writer = loading.writer(unit, staged=Staged(measure, LOAD, "loaded_stage", on_conflict=mode))
    for start in range(0, MAX_ROWS + 2_000, 1_000):
        writer.take_block(COLUMNS, block(start, 1_000))
        assert writer.full == (start >= MAX_ROWS)
    writer.write()
    assert (loading.kept(), loading.visible()) == ((1, MAX_ROWS), 0)
    writer.take([{"position": 10**6}])
    writer.take_block(COLUMNS[:1], [(10**6 + 1,)])
    writer.seal()
    assert loading.point(session, unit, writer.stage_id) == Won()
    assert loading.visible() == writer.rows == MAX_ROWS + 2_002
    assert loading.rows("SELECT row_count, chunks FROM stage") == [(MAX_ROWS + 2_002, 4)]
    assert loading.rows("SELECT count(*) FROM measure WHERE version IS NULL") == [(2,)]


TEXTS = [
    *(
        "",
        "null",
        '"',
        "\\",
        "\\.",
        '\\"',
        "a\nb",
        "\r\n",
        "\t",
        "a,b",
        "],[",
        "]\n[",
        "\\n",
        "\x01\x1f\x7f",
        "é",
        "😀",
    ),
    *(",", "'", "\u2028", " ", "\b\f", "\\u0041", "{}", "[1]", "\\N", "x" * 10_000),
]


def test_every_text_is_kept_as_it_is(loading):
    loading.born("a")
    (unit,) = loading.worker().claim({"load": 1})
    writer = loading.strict(unit)
    facts = [None if n % 2 else {"text": text, "n": [n, 0.5, True]} for n, text in enumerate(TEXTS)]
    rows = [(n, None if n % 3 else -n, text, about) for n, (text, about) in enumerate(zip(TEXTS, facts, strict=True))]
    writer.take_block(("position", "version", "note", "facts"), rows)
    writer.seal()
    found = loading.rows("SELECT position, version, note, facts FROM measure ORDER BY position")
    assert [row[:3] for row in found] == [row[:3] for row in rows]
    assert [json.loads(row[3]) if isinstance(row[3], str) else row[3] for row in found] == facts


def test_a_block_that_cannot_be_kept_is_refused_by_name(loading):
    loading.born("a")
    (unit,) = loading.worker().claim({"load": 1})
    for columns, row, message in (
        (("position", "nota"), (1, 1), "load:a: measure has no column 'nota'"),
        (("position", "note"), (1, "\ud800"), r"load:a: measure\.note cannot be stored"),
        (("position", "note"), (1, "x" * 2**21), r"load:a: measure\.note cannot be stored: it has 2,097,152 bytes"),
        (("position", "facts"), (1, {"x": float("nan")}), r"load:a: measure\.facts cannot be stored"),
        (("position",), (2**63,), r"load:a: measure\.position cannot be stored"),
        (("position", "stage_id"), (1, "mine"), "load:a: stage_id of measure is filled by the stage"),
        (("position", "note"), (1,), "load:a: a row of measure must have 2 values"),
    ):
        with pytest.raises(BrokenFlow, match=message):
            loading.strict(unit).take_block(columns, [row])
    with pytest.raises(BrokenFlow, match="a block of measure has at most 5,000 rows or 4 MB, not 5,001 rows"):
        loading.strict(unit).take_block(COLUMNS, block(0, MAX_ROWS + 1))


def test_a_key_that_comes_again_is_refused_with_its_chunk(loading):
    loading.born("a")
    (unit,) = loading.worker().claim({"load": 1})
    for again in (5, MAX_ROWS + 5):
        writer = loading.strict(unit)
        for start in range(0, again, MAX_ROWS):
            writer.take_block(COLUMNS, block(start, min(MAX_ROWS, again - start)))
        writer.take_block(COLUMNS, block(3, 1))
        with pytest.raises(LedgerRefused):
            writer.seal()
        assert not writer.sealed
    assert loading.kept() == (1, MAX_ROWS), "the chunk before it was in order"


def test_a_secret_in_a_block_is_not_kept(loading):
    loading.born("a")
    (unit,) = loading.worker().claim({"load": 1})
    conceal("hush/hush+42")
    try:
        writer = loading.strict(unit)
        writer.take_block(COLUMNS, [*block(0, 3), (3, 1, "it is hush/hush+42, you know")])
        writer.seal()
    finally:
        release("hush/hush+42")
    assert loading.rows("SELECT note FROM measure WHERE position >= 2 ORDER BY position") == [
        ("n",),
        ("it is [secret], you know",),
    ]


@pytest.mark.parametrize("lose", ["before", "after"])
def test_every_block_is_written_once_though_every_answer_is_lost_once(loading, lose):
    loading.born("a")
    session = loading.worker()
    (unit,) = session.claim({"load": 1})
    writer = loading.strict(unit, Wire(loading.database, lose=lose))
    for start in (0, MAX_ROWS, MAX_ROWS * 2):
        writer.take_block(COLUMNS, block(start, MAX_ROWS))
    for attempt in (writer.write, writer.write, writer.seal):
        with pytest.raises(LedgerUnavailable):
            attempt()
        attempt()
    loading.point(session, unit, writer.stage_id)
    assert loading.visible() == MAX_ROWS * 3
    assert loading.rows("SELECT row_count, chunks FROM stage") == [(MAX_ROWS * 3, 3)]


def test_a_worker_that_dies_between_blocks_leaves_what_is_swept(loading):
    loading.born("a")
    dead = loading.worker()
    (lost,) = dead.claim({"load": 1})
    half = loading.strict(lost)
    half.take_block(COLUMNS, block(0, MAX_ROWS))
    half.take_block(COLUMNS, block(MAX_ROWS, 1))
    half.write()
    loading.die(dead)
    session = loading.worker()
    (unit,) = session.take({"load": 1}, levels=Levels(1, 9)).units
    whole = loading.strict(unit)
    whole.take_block(COLUMNS, block(0, 7))
    with pytest.raises(ClaimLost, match="load:a was taken away"):
        half.seal()
    assert loading.visible() == 0
    whole.seal()
    assert loading.point(session, unit, whole.stage_id) == Won()
    assert loading.visible() == 7
    assert loading.sweep(timedelta(days=1)) == (1, MAX_ROWS, False)
    assert loading.kept() == (1, 7)


@pytest.mark.parametrize("ledger_url", ["postgres"], indirect=True)
def test_a_chunk_that_the_server_lost_is_missed_by_the_next(loading):
    """As after a crash of the server: chunks before the last are not flushed to its disk one by one."""
    loading.born("a")
    (unit,) = loading.worker().claim({"load": 1})
    writer = loading.strict(unit)
    for start in (0, MAX_ROWS, MAX_ROWS * 2):
        writer.take_block(COLUMNS, block(start, MAX_ROWS))
    writer.write()
    writer.write()
    with psycopg.connect(loading.url) as other:
        other.execute("DELETE FROM measure WHERE position >= %s", [MAX_ROWS])
        other.execute("UPDATE stage SET chunks = 1, row_count = %s", [MAX_ROWS])
    with pytest.raises(ClaimLost):
        writer.seal()
    assert loading.visible() == 0

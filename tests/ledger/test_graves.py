"""Graves: what is left of a unit that was pruned, what it still answers, and what is said when it is gone too."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

from penstock.ledger import flow, history
from penstock.ledger.care.doctor import examine
from penstock.ledger.care.prune import GRAVES, HISTORY, UNITS, Ages, Pruner
from penstock.ledger.roll_up import roll_up
from penstock.model.clock import Rng
from penstock.model.errors import LedgerRefused, UnknownUnit, UsageError
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from tests.support.machines import invoice, partition
from tests.support.world import ALL_MACHINES, World

DAY = 86_400.0
MONTH = timedelta(days=30)
SHORT = {UNITS: MONTH, HISTORY: MONTH}
# The others look at leases and clocks, which these tests let run out.
TOUCHED = {
    *("states", "present", "contiguous", "pairs", "flow", "counters", "permits", "definitions", "triggers"),
    "constraints",
}


def prune(world: World, kept: Mapping[str, timedelta | None] | None = None, **options: Any) -> dict[str, int]:
    run = Pruner(world.ledger.database, Ages(SHORT if kept is None else kept), who="operator:ana", rng=Rng())
    return run.prune(**options)


def healthy(world: World) -> bool:
    found = examine(world.ledger.database, {m.name: m for m in ALL_MACHINES})
    return [f for f in found if f.check in TOUCHED] == []


def sent(world: World, *numbers: str) -> list[Ref]:
    """Invoices that go the whole way, a day to each step."""
    refs = world.born(*(invoice(number) for number in numbers))
    ids = [ref.unit_id for ref in refs]
    for status, changes in (("SENDING", {}), ("SENT", {"remote_id": "r"})):
        world.time.advance(DAY)
        world.ledger.move_many("invoice", ids, status, actor=Actor.WORKER, who="w", reason=f"to {status}", **changes)
    return refs


def told(world: World, ref: Ref) -> list[tuple[str | None, str | None]]:
    return [(row.from_status, row.to_status) for row in history.history(world.ledger.database, ref)]


def flows(world: World, moments: list[datetime]) -> list[Any]:
    """What the flow says of the past: every edge, and the counts at each moment."""
    database = world.ledger.database

    def work(cursor: Any) -> list[Any]:
        counts = [flow.counts_at(database, cursor, moment) for moment in moments]
        return [flow.edges(database, cursor, flow.Window(None, moments[-1])), counts]

    return database.read(work)


# What is left.


def test_what_was_told_of_a_unit_is_folded_into_its_grave(world):
    (ref,) = sent(world, "1")
    ended = world.time.now()
    world.time.advance(40 * DAY)
    assert prune(world) == {"invoice": 1, HISTORY: 3}
    (grave,) = history.history(world.ledger.database, ref)
    assert (grave.from_status, grave.to_status, grave.since, grave.at) == ("SENT", None, ended, world.time.now())
    assert grave.actor == "operator:ana"
    assert grave.reason == "pruned: old enough; last worker:w: to SENT"
    assert healthy(world)
    world.time.advance(400 * DAY)
    assert prune(world) == {}, "a grave stays"
    assert told(world, ref) == [("SENT", None)]


def test_a_baseline_is_folded_too(world):
    (ref,) = sent(world, "1")
    world.time.advance(40 * DAY)
    assert prune(world, {HISTORY: MONTH, UNITS: None}) == {HISTORY: 2}
    assert told(world, ref) == [(None, "SENT")]
    assert prune(world) == {"invoice": 1, HISTORY: 1}
    assert told(world, ref) == [("SENT", None)]
    assert healthy(world)


def test_a_grave_answers_for_the_time_that_is_kept(world):
    database = world.ledger.database
    (ref,) = sent(world, "1")
    ended = world.time.now()
    world.time.advance(40 * DAY)
    pruned = world.time.now()
    inside = pruned - timedelta(days=5)
    before = history.as_of(database, ref, inside)
    listed = history.units_as_of(database, "invoice", inside).units
    prune(world)
    after = history.as_of(database, ref, inside)
    assert (after.status, after.since, after.version, after.data) == (
        before.status,
        before.since,
        before.version,
        before.data,
    )
    assert [(u.unit, u.status, u.since) for u in listed] == [(str(ref), "SENT", ended)]
    assert [(u.unit, u.status, u.since) for u in history.units_as_of(database, "invoice", inside).units] == [
        (str(ref), "SENT", ended)
    ]
    assert history.as_of(database, ref, pruned).status is None
    assert history.units_as_of(database, "invoice", pruned).units == []
    assert history.units_as_of(database, "invoice", ended - timedelta(hours=1)).units == []
    with pytest.raises(UsageError, match=r"before 2026-01-03T00:00:00\.000Z was pruned; ask for a later moment"):
        history.as_of(database, ref, ended - timedelta(seconds=1))


def test_history_that_is_young_outlives_its_unit(world):
    (ref,) = sent(world, "1")
    ended = world.time.now()
    world.time.advance(10 * DAY)
    kept = {UNITS: timedelta(days=5), HISTORY: MONTH}
    assert prune(world, kept) == {"invoice": 1}
    assert told(world, ref) == [(None, "QUEUED"), ("QUEUED", "SENDING"), ("SENDING", "SENT"), ("SENT", None)]
    assert history.as_of(world.ledger.database, ref, ended - timedelta(hours=1)).status == "SENDING"
    world.time.advance(25 * DAY)
    assert prune(world, kept) == {HISTORY: 3}, "all but the death is old now"
    assert told(world, ref) == [("SENT", None)]
    assert history.as_of(world.ledger.database, ref, world.time.now() - timedelta(days=28)).status == "SENT"
    assert healthy(world)


def test_history_that_is_kept_for_ever_is_not_folded(world):
    (ref,) = sent(world, "1")
    world.time.advance(1_000 * DAY)
    assert prune(world, {UNITS: MONTH, HISTORY: None, GRAVES: MONTH}) == {"invoice": 1}
    world.time.advance(1_000 * DAY)
    assert prune(world, {UNITS: MONTH, HISTORY: None, GRAVES: MONTH}) == {}
    assert len(told(world, ref)) == 4


# Flow.


@pytest.mark.parametrize("counted", [False, True], ids=["counted later", "counted before"])
def test_the_flow_stays_as_it_is(world, counted):
    begun = world.time.now()
    sent(world, "1", "2")
    world.born(partition())
    world.time.advance(40 * DAY)
    moments = [begun + timedelta(days=n, hours=5) for n in range(42)]  # in hours without a change
    if counted:
        roll_up(world.ledger.database)
    before = flows(world, moments)
    prune(world)
    assert flows(world, moments) == before
    roll_up(world.ledger.database)
    assert flows(world, moments) == before
    world.time.advance(90 * DAY)
    world.born(invoice("new"))
    assert prune(world, {**SHORT, GRAVES: timedelta(days=60)}) == {HISTORY: 2}
    assert flows(world, moments) == before
    assert healthy(world)


# Graves that go.


def test_graves_go_by_an_age_of_their_own_and_it_is_said(world):
    database = world.ledger.database
    (ref,) = sent(world, "1")
    world.time.advance(40 * DAY)
    prune(world)
    world.born(invoice("living"))
    kept = {**SHORT, GRAVES: timedelta(days=60)}
    world.time.advance(50 * DAY)
    assert prune(world, kept) == {}
    assert told(world, ref) == [("SENT", None)]
    world.time.advance(20 * DAY)
    counts = Pruner(database, Ages(kept), who="operator:ana", rng=Rng()).counts()
    assert [(c.what, c.rows) for c in counts if c.rows] == [("graves", 1)]
    assert prune(world, kept) == {HISTORY: 1}
    said = "units of invoice that were pruned before 2026-02-22T00:00:00.000Z are no longer in the history"
    with pytest.raises(UnknownUnit, match=said):
        history.history(database, ref)
    assert healthy(world)
    assert prune(world, kept) == {}


def test_no_grave_goes_that_answers_for_the_time_that_is_kept(world):
    (ref,) = sent(world, "1")
    world.time.advance(40 * DAY)
    kept = {**SHORT, GRAVES: timedelta(days=1)}
    prune(world, kept)
    world.born(invoice("living"))
    world.time.advance(25 * DAY)
    assert prune(world, kept) == {}
    assert history.as_of(world.ledger.database, ref, world.time.now() - timedelta(days=28)).status == "SENT"


def test_older_than_leaves_graves_alone(world):
    (ref,) = sent(world, "1")
    for _ in range(3):
        world.time.advance(40 * DAY)
        Pruner(world.ledger.database, Ages(older_than=MONTH), who="operator:ana", rng=Rng()).prune()
    assert told(world, ref) == [("SENT", None)]


def test_the_newest_row_of_all_stays(world):
    sent(world, "1")
    world.time.advance(40 * DAY)
    prune(world)
    newest = world.one("SELECT max(seq) FROM transition_log")
    world.time.advance(100 * DAY)
    kept = {**SHORT, GRAVES: timedelta(days=60)}
    assert prune(world, kept) == {}, "its number would be drawn again"
    world.born(invoice("2"))
    assert prune(world, kept) == {HISTORY: 1}
    assert world.one("SELECT min(seq) FROM transition_log") > newest


# Rebirth.


def test_a_unit_is_born_again_above_its_grave(world):
    (ref,) = sent(world, "1")
    world.time.advance(40 * DAY)
    prune(world)
    world.time.advance(DAY)
    sent(world, "1")
    assert told(world, ref)[:2] == [("SENT", None), (None, "QUEUED")]
    assert healthy(world)
    world.time.advance(40 * DAY)
    assert prune(world) == {"invoice": 1, HISTORY: 4}
    assert told(world, ref) == [("SENT", None)], "the newer grave stands for both lives"
    assert healthy(world)


def test_a_unit_is_born_again_after_its_grave_has_gone(world):
    database = world.ledger.database
    (ref,) = sent(world, "1")
    world.time.advance(40 * DAY)
    pruned = world.time.now()
    prune(world)
    world.born(invoice("2"))
    world.time.advance(100 * DAY)
    prune(world, {**SHORT, GRAVES: timedelta(days=60)})
    world.born(invoice("1"))
    assert told(world, ref) == [(None, "QUEUED")]
    assert healthy(world)
    then = history.as_of(database, ref, pruned - timedelta(days=1))
    assert then.status is None
    assert then.note is not None
    assert "units of invoice that were pruned before" in then.note
    later = history.as_of(database, ref, world.time.now() - timedelta(days=1))
    assert (later.status, later.note) == (None, None), "of that time nothing is missing"


# Guards.


def test_nobody_else_deletes_or_changes_a_grave(world):
    sent(world, "1")
    world.time.advance(40 * DAY)
    prune(world)
    world.born(invoice("2"))
    with pytest.raises(LedgerRefused, match="append-only; old rows go by"):
        world.sql("DELETE FROM transition_log WHERE to_status IS NULL")
    with pytest.raises(LedgerRefused, match="its rows cannot be changed"):
        world.sql("UPDATE transition_log SET since = NULL WHERE to_status IS NULL")


def permitted(world: World, sql: str) -> int:
    """What a program does that opens a permit of its own."""
    database = world.ledger.database

    def work(cursor: Any) -> int:
        cursor.run(
            "INSERT INTO prune_permit (id, machine, actor, reason, at, open)"
            f" VALUES ('p', 'invoice', 'me', 'why', {database.now_sql}, {database.sql.transaction})",
            **database.bind_now(),
        )
        rows = cursor.run(sql)
        cursor.run("UPDATE prune_permit SET open = NULL WHERE id = 'p'")
        return rows

    return database.write(work)


def test_a_permit_lets_a_grave_go_and_not_what_a_living_unit_is(world):
    sent(world, "1")
    world.time.advance(40 * DAY)
    prune(world)
    world.born(invoice("2"))
    with pytest.raises(LedgerRefused, match="append-only; old rows go by"):
        permitted(world, "DELETE FROM transition_log WHERE unit_id = 'acme/2'")
    for change in ("since = NULL", "actor = 'prune:p', from_status = NULL"):
        with pytest.raises(LedgerRefused, match="its rows cannot be changed"):
            permitted(world, f"UPDATE transition_log SET {change} WHERE to_status IS NULL")
    assert permitted(world, "DELETE FROM transition_log WHERE to_status IS NULL") == 1


def test_a_death_that_stands_alone_without_a_permit_is_found(world):
    """As somebody leaves it who has switched the guards off."""
    sent(world, "1")
    world.time.advance(40 * DAY)
    prune(world)
    for trigger in ("penstock_log_update",):
        world.sql(f"DROP TRIGGER {trigger}{'' if world.sqlite else ' ON transition_log'}")
    world.sql("UPDATE transition_log SET actor = 'me', since = NULL WHERE to_status IS NULL")
    found = {f.check for f in examine(world.ledger.database, {m.name: m for m in ALL_MACHINES})}
    assert {"permits", "contiguous"} <= found


# Several at once, and cut off.

MANY = 1_201


def one_grave_each(world: World) -> bool:
    rows = world.rows("SELECT unit_id, count(*), max(to_status) FROM transition_log GROUP BY unit_id")
    return len(rows) == MANY and all(tuple(row[1:]) == (1, None) for row in rows)


def test_two_prunings_at_once_do_it_once(world):
    sent(world, *(f"{n:05}" for n in range(MANY)))
    world.time.advance(40 * DAY)
    gone: list[dict[str, int]] = []

    def run() -> None:
        ledger = world.another()
        gone.append(Pruner(ledger.database, Ages(SHORT), who="operator:ana", rng=Rng()).prune())

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(one.get("invoice", 0) for one in gone) == MANY
    assert sum(one.get(HISTORY, 0) for one in gone) == 3 * MANY
    assert one_grave_each(world)
    assert healthy(world)


PRUNE = """
import sys
from datetime import timedelta
from penstock.ledger.care.prune import HISTORY, UNITS, Ages, Pruner
from penstock.ledger.ledger import Ledger
from penstock.model.clock import Rng, VirtualClock, parse_instant
from tests.support.world import ALL_MACHINES
from tests.support.more_machines import DATA_TABLES
clock = VirtualClock(parse_instant(sys.argv[2]))
with Ledger.open(sys.argv[1], ALL_MACHINES, clock=clock, data_tables=DATA_TABLES) as ledger:
    ages = Ages({UNITS: timedelta(days=30), HISTORY: timedelta(days=30)})
    Pruner(ledger.database, ages, who="operator:ana", rng=Rng()).prune(lambda *_: print("went", flush=True))
"""


def test_pruning_that_is_killed_has_done_a_part(world):
    sent(world, *(f"{n:05}" for n in range(MANY)))
    world.time.advance(40 * DAY)
    command = [sys.executable, "-c", PRUNE, world.url, world.time.now().isoformat()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "went\n"
        child.kill()
    left = world.one("SELECT count(*) FROM invoice")
    assert 0 < left < MANY
    assert world.one("SELECT count(*) FROM prune_permit WHERE open IS NOT NULL") == 0
    assert healthy(world)
    assert prune(world)["invoice"] == left
    assert one_grave_each(world)
    assert healthy(world)


def test_space_of_many_rows_is_made_usable_again(postgres_url):
    """The number of rows that PostgreSQL believes in is -1 until the table is vacuumed."""
    world = World(postgres_url)
    try:
        world.born(*(invoice(f"{n}") for n in range(100)))
        believed = "SELECT CAST(reltuples AS bigint) FROM pg_class WHERE oid = CAST('transition_log' AS regclass)"
        assert world.one(believed) == -1
        assert world.ledger.database.reclaim("transition_log", 50)
        assert world.one(believed) == 100
        assert not world.ledger.database.reclaim("transition_log", 4), "few: a vacuum would cost more than it frees"
    finally:
        world.close()

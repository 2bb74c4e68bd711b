"""Rows that are replaced only by newer ones, rows changed where they are, and rows that must not be there."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.ledger.commit import OthersMissed, Refused, Won
from penstock.model.errors import BrokenFlow
from penstock.model.outcome import MAX_ROWS, Outcome, Update, Where, Write
from penstock.model.unit import Ref, replace
from penstock.settings.redaction import conceal, release
from tests.support.machines import invoice
from tests.support.more_machines import reading
from tests.support.world import World


def commit(world: World, name: str = "1", **parts: Any) -> Any:
    """Commit the parts with one outcome; its result."""
    world.born(invoice(name))
    worker = world.worker("invoice")
    (unit,) = worker.claim({"invoice": 1})
    return world.commit(worker, Outcome(unit, replace(unit, due_at=None), "done", **parts))[0]


def row(position: int, note: str, count: int | None = None) -> dict[str, Any]:
    return {"sensor": "s", "position": position, "note": note, "count": count}


def readings(world: World) -> list[tuple[Any, ...]]:
    return world.rows("SELECT position, note, count FROM reading ORDER BY position")


def newer(*rows: dict[str, Any], first: tuple[str, ...] = ()) -> Write:
    return Write(reading, rows, newer="count", first=first)


def test_a_row_is_replaced_only_by_one_that_is_not_older(world):
    commit(world, writes=[newer(row(0, "new", 5), row(1, "same", 5), row(2, "old", 5))])
    commit(world, "2", writes=[newer(row(0, "older", 4), row(1, "as new", 5), row(2, "newer", 6))])
    assert readings(world) == [(0, "new", 5), (1, "as new", 5), (2, "newer", 6)]


def test_what_has_no_age_is_older_than_anything(world):
    commit(world, writes=[newer(row(0, "none"), row(1, "some", 1), row(2, "none"))])
    commit(world, "2", writes=[newer(row(0, "some", 1), row(1, "none"), row(2, "none again"))])
    assert readings(world) == [(0, "some", 1), (1, "some", 1), (2, "none again", None)]


def test_the_newest_of_a_key_wins_within_a_batch_whatever_its_place(world):
    rows = [row(0, "b", 2), row(0, "c", 3), row(0, "a", 1), row(1, "other", 1)]
    assert commit(world, writes=[newer(*rows), newer(row(1, "older", 0))]) == Won()
    assert readings(world) == [(0, "c", 3), (1, "other", 1)]


def test_columns_stay_as_the_first_row_wrote_them(world):
    both = [newer(row(0, "first", 1), first=("note",)), newer(row(0, "second", 2), first=("note",))]
    commit(world, writes=both)
    assert readings(world) == [(0, "first", 2)]
    commit(world, "2", writes=[newer(row(0, "third", 3), first=("note",))])
    assert readings(world) == [(0, "first", 3)]


def test_rows_are_amended_where_they_are(world):
    commit(world, writes=[Write(reading, [row(n, "as it was", n % 2) for n in range(6)])])
    odd = Where(reading, {"sensor": "s", "count": 1}, span=("position", 1, 5))
    assert commit(world, "2", updates=[Update(odd, {"note": "amended", "count": None})]) == Won()
    assert readings(world) == [
        (0, "as it was", 0),
        (1, "amended", None),
        (2, "as it was", 0),
        (3, "amended", None),
        (4, "as it was", 0),
        (5, "as it was", 1),
    ]


def test_rows_are_amended_among_those_listed_and_where_there_is_nothing(world):
    commit(world, writes=[Write(reading, [row(n, "as it was", n or None) for n in range(4)])])
    listed = Where(reading, {"sensor": "s", "count": None}, among=("position", [0, 2, 9]))
    commit(world, "2", updates=[Update(listed, {"count": 7})])
    assert readings(world) == [(0, "as it was", 7), (1, "as it was", 1), (2, "as it was", 2), (3, "as it was", 3)]


def test_an_amendment_is_part_of_the_outcome(world):
    commit(world, writes=[Write(reading, [row(0, "as it was")])])
    refused = commit(
        world,
        "2",
        updates=[Update(Where(reading, {"sensor": "s"}), {"note": "amended"})],
        writes=[Write(reading, [row(0, "again")], on_conflict="error")],
    )
    assert isinstance(refused, Refused)
    assert readings(world) == [(0, "as it was", None)]


def test_an_amendment_sees_the_rows_of_its_own_outcome(world):
    both: dict[str, Any] = {
        "writes": [Write(reading, [row(0, "written")])],
        "updates": [Update(Where(reading, {"position": 0}), {"count": 1})],
    }
    commit(world, **both)
    assert readings(world) == [(0, "written", 1)]


def test_an_outcome_with_a_row_that_must_not_be_there_is_not_written(world):
    commit(world, writes=[Write(reading, [row(0, "open", 0)])])
    waiting = Where(reading, {"sensor": "s", "count": 0})
    refused = commit(world, "2", only_if_absent=[waiting], writes=[Write(reading, [row(1, "too early")])])
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, OthersMissed)
    assert readings(world) == [(0, "open", 0)]
    assert world.unit(Ref("invoice", "acme/2")).claimed_by is not None
    commit(world, "3", writes=[Write(reading, [row(0, "done", 1)])])
    assert commit(world, "4", only_if_absent=[waiting], writes=[Write(reading, [row(1, "now")])]) == Won()
    assert readings(world) == [(0, "done", 1), (1, "now", None)]


def test_in_a_batch_only_the_outcome_that_requires_in_vain_is_left_out(world):
    commit(world, writes=[Write(reading, [row(0, "there", 0)])])
    world.born(invoice("2"), invoice("3"))
    worker = world.worker("invoice")
    first, second = worker.claim({"invoice": 2})
    results = world.commit(
        worker,
        Outcome(first, replace(first, due_at=None), "in vain", only_if_absent=[Where(reading, {"sensor": "s"})]),
        Outcome(second, replace(second, due_at=None), "fine", only_if_absent=[Where(reading, {"sensor": "other"})]),
    )
    assert [type(result) for result in results] == [Refused, Won]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"writes": [Write(reading, [], newer="age")]}, "'age'"),
        ({"writes": [Write(reading, [], first=["age"])]}, "'age'"),
        ({"updates": [Update(Where(reading, {"sensor": "s"}), {"age": 1})]}, "'age'"),
        ({"updates": [Update(Where(reading, {"sensor": "s"}), {})]}, "no column"),
        ({"updates": [Update(Where(reading, {}), {"count": 1})]}, "at least one value"),
        ({"only_if_absent": [Where(reading, {"age": 1})]}, "'age'"),
        ({"only_if_absent": [Where(reading, {"count": None})]}, "at least one value"),
        ({"only_if_absent": [Where(reading, {"sensor": "s"}, span=("age", 1, 2))]}, "'age'"),
        ({"only_if_absent": [Where(reading, {"sensor": "s"}, among=("position", range(MAX_ROWS + 1)))]}, "5,001 rows"),
    ],
)
def test_what_names_no_rows_of_a_table_is_refused_before_the_database_is_asked(world, parts, says):
    with pytest.raises(BrokenFlow, match=says):
        commit(world, **parts)


def test_rows_may_be_lists_in_the_order_of_their_columns(world):
    columns = ("note", "sensor", "position", "count")
    lists = [["a", "s", 0, 1], ["Zoë ☃", "s", 1, None]]
    assert commit(world, writes=[Write(reading, lists, columns=columns, newer="count")]) == Won()
    later = [["older", "s", 0, 0], ["newer", "s", 1, 5]]
    commit(world, "2", writes=[Write(reading, later, columns=columns, newer="count", first=("note",))])
    assert readings(world) == [(0, "a", 1), (1, "Zoë ☃", 5)]


def test_lists_are_written_after_the_mappings_of_their_outcome(world):
    lists = Write(reading, [["s", 0, "last"]], columns=("sensor", "position", "note"))
    commit(world, writes=[lists, Write(reading, [row(0, "first", 7)])])
    assert readings(world) == [(0, "last", 7)]


def test_no_secret_is_written_in_a_list_either(world):
    conceal("swordfish")
    try:
        lists = [["s", 0, "it is swordfish"], ["s", 1, "nothing"]]
        commit(world, writes=[Write(reading, lists, columns=("sensor", "position", "note"))])
        commit(world, "2", writes=[Write(reading, [row(2, "swordfish"), row(3, "nothing")])])
        commit(world, "3", updates=[Update(Where(reading, {"position": 3}), {"note": "swordfish!"})])
    finally:
        release("swordfish")
    assert [note for _, note, _ in readings(world)] == ["it is [secret]", "nothing", "[secret]", "[secret]!"]


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (Write(reading, [["s", 0]], columns=("sensor", "position", "age")), "'age'"),
        (Write(reading, [["s"]], columns=("sensor", "position")), "2 values"),
        (Write(reading, [["s", object()]], columns=("sensor", "position")), "reading.position"),
        (Write(reading, [["s", "\ud800"]], columns=("sensor", "note")), "reading.note"),
        (Write(reading, [["s", n] for n in range(MAX_ROWS + 1)], columns=("sensor", "position")), "5,001 rows"),
        (Write(reading, [["s", n, "x" * 1_000_000] for n in range(5)], columns=("sensor", "position", "note")), "4 MB"),
    ],
)
def test_lists_that_cannot_be_kept_are_refused_by_name(world, write, says):
    with pytest.raises(BrokenFlow, match=says):
        commit(world, writes=[write])

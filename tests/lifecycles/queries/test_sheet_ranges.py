"""Which cells are written, from what was read: pure."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.connectors.google_sheets.ranges import Values
from penstock.lifecycles.queries import sheet_ranges as ranges
from penstock.lifecycles.queries.sheet_ranges import FEEDBACK, KEY, NoKeyColumn
from penstock.lifecycles.queries.sheet_rows import key_parts, key_text

HEADERS = ("Title", "City")
TEXTS = st.text(max_size=12)


def test_columns_are_found_by_their_headers_in_any_order_and_case():
    header = ["Notes", " city ", FEEDBACK.upper(), "", KEY, "Title", "Title"]
    found = ranges.lay_out("T", header, HEADERS, len(header))
    assert (found.key, found.feedback, found.columns, found.missing) == (5, 3, (6, 2), {})
    assert found.read == (2, 3, 5, 6)


def test_missing_headers_come_after_everything_that_is_used():
    found = ranges.lay_out("T", [KEY, "Notes"], HEADERS, 5)
    assert found.missing == {6: "Title", 7: "City", 8: FEEDBACK}
    assert ranges.headers_of(found) == [Values("T", 1, 6, [["Title", "City", FEEDBACK]])]
    empty = ranges.lay_out("T", [], HEADERS, 0)
    assert list(empty.missing.values()) == [KEY, *HEADERS, FEEDBACK]


@pytest.mark.parametrize(("header", "used"), [(["Title"], 1), ([], 1), (["Key"], 3)])
def test_content_without_keys_is_refused(header, used):
    with pytest.raises(NoKeyColumn, match="the tab 'T' has content, and no column with the header 'Penstock key'"):
        ranges.lay_out("T", header, HEADERS, used)


def test_keys_that_are_there_again_do_not_count():
    keys = ranges.read_keys([["a"], [], ["b"], [" a "], [7.0], [""], []])
    assert (keys.first, keys.doubled, keys.last) == ({"a": 2, "b": 4, "7": 6}, {"a"}, 6)
    assert [keys.owns("a", row) for row in (2, 5)] == [True, False]


def test_only_what_differs_is_written():
    layout = ranges.lay_out("T", ["Title", KEY, "City", FEEDBACK], HEADERS, 4)
    read: list[list[list[Any]]] = [[["x", "a", "Vigo"], ["y", "b"], ["z", "people's", "Lugo"], ["", "c", 5]]]
    rows = ranges.block(read, layout.read, 4)
    keys = ranges.read_keys([["a"], ["b"], ["people's"], ["c"]])
    wanted: dict[str, tuple[Any, ...]] = {"a": ("x", "Vigo"), "b": ("new", "Lugo"), "c": ("", "5")}
    assert ranges.changes(layout, 2, rows, wanted, keys) == [
        Values("T", 3, 1, [["new"]]),
        Values("T", 3, 3, [["Lugo"]]),
        Values("T", 5, 3, [["5"]]),
    ]


def test_rows_that_were_moved_are_noticed():
    assert ranges.in_place([["a"], [], ["b"]], 5, {5: "a", 7: "b"})
    assert not ranges.in_place([["b"], [], ["a"]], 5, {5: "a", 7: "b"})
    assert not ranges.in_place([["a"]], 5, {5: "a", 7: "b"})


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        (True, "yes"),
        (12, 12),
        (2**60, str(2**60)),
        (1.5, 1.5),
        (float("nan"), ""),
        (datetime(2026, 3, 29, 1, tzinfo=UTC), "2026-03-29T01:00:00.000Z"),
        (date(2026, 3, 29), "2026-03-29"),
        (["Madrid", "Vigo"], "Madrid, Vigo"),
        ("  a\r\n\tb\x00\u202e ", "a b"),
        ("=1+1", "=1+1"),
    ],
)
def test_values_as_they_stand_in_cells(value, shown):
    assert ranges.cell(value) == shown
    assert type(ranges.cell(value)) is type(shown)


def test_long_texts_are_cut_as_google_counts():
    assert len(ranges.plain("x" * 60_000)) == 50_000
    assert len(ranges.plain("😀" * 30_000)) == 25_000
    assert ranges.plain("x" + "😀" * 30_000) == "x" + "😀" * 24_999


@settings(max_examples=100)
@given(st.lists(TEXTS, min_size=1, max_size=3))
@example(["-"])
@example(["=1+1", " a "])
@example(["a%2Fb", "c/d"])
def test_keys_come_back_as_they_were(parts):
    text = key_text(*parts)
    assert key_parts(text, len(parts)) == (None if "\0" in "".join(parts) else tuple(parts))
    assert text == ranges.key_of(text) == ranges.plain(text)
    assert text[:1] not in {"=", "+", "-", "@", "'"}


@settings(max_examples=100)
@given(st.lists(st.tuples(TEXTS, TEXTS), unique=True, max_size=20))
def test_two_keys_are_two_texts(pairs):
    assert len({key_text(*pair) for pair in pairs}) == len(pairs)


@st.composite
def tabs(draw: st.DrawFn) -> tuple[list[list[Any]], dict[str, tuple[str, str]]]:
    """A tab that people had in their hands, and what is wanted in it."""
    header = draw(st.permutations([KEY, *HEADERS, FEEDBACK, "Ours", ""]))
    names = draw(st.lists(st.sampled_from("abcdefgh"), max_size=8))
    cells = st.sampled_from(["", "x", "y", 3])
    rows = [[name if title == KEY else draw(cells) for title in header] for name in names]
    wanted = draw(st.dictionaries(st.sampled_from("abcdefghij"), st.tuples(st.sampled_from("xyz"), TEXTS), max_size=8))
    return [list(header), *rows], {key: tuple(map(ranges.cell, row)) for key, row in wanted.items()}


def written(grid: list[list[Any]], values: list[Values]) -> list[list[Any]]:
    after = [list(row) for row in grid]
    for one in values:
        for row, cells in enumerate(one.rows, one.row):
            while len(after) < row:
                after.append([""] * len(grid[0]))
            for column, value in enumerate(cells, one.column):
                after[row - 1][column - 1] = value
    return after


@settings(max_examples=100)
@given(tabs())
def test_after_writing_every_wanted_row_is_there_and_nothing_of_others_has_changed(made):
    grid, wanted = made
    header = grid[0]
    layout = ranges.lay_out("T", header, HEADERS, len(header))
    keys = ranges.read_keys([[row[layout.key - 1]] for row in grid[1:]])

    def block(of: list[list[Any]]) -> Any:
        read = [[row[first - 1 : last] for row in of[1:]] for first, last in ranges.runs(layout.read)]
        return ranges.block(read, layout.read, len(of) - 1)

    new = [(key, row) for key, row in wanted.items() if key not in keys.first]
    values = ranges.changes(layout, 2, block(grid), wanted, keys)
    values += ranges.additions(layout, len(grid) + 1, new) if new else []
    after = written(grid, values)
    found = ranges.read_keys([[row[layout.key - 1]] for row in after[1:]])
    for key, row in wanted.items():
        assert tuple(after[found.first[key] - 1][column - 1] for column in layout.columns) == row
    for place, row in enumerate(grid):
        mine = place and row[layout.key - 1] in wanted and keys.owns(row[layout.key - 1], place + 1)
        others = [column for column in range(1, len(header) + 1) if not (mine and column in layout.columns)]
        assert [after[place][column - 1] for column in others] == [row[column - 1] for column in others]
    assert ranges.changes(layout, 2, block(after), wanted, found) == []


def test_parts_are_never_too_large():
    rows = [(str(number), ("x" * 1_000, number)) for number in range(1_200)]
    parts = list(ranges.portions(rows))
    assert [one for part in parts for one in part] == rows
    assert max(map(len, parts)) <= ranges.MOST_ROWS
    wide = list(ranges.portions([("a", ("x" * 200_000,))] * 4))
    assert [len(part) for part in wide] == [1] * 4

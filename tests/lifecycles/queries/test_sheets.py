"""A spreadsheet in step with the ledger, whatever people do to it."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from penstock.lifecycles.queries.sheet_ranges import FEEDBACK, KEY
from penstock.simulators.google_grids import MOST_CHARACTERS
from tests.support.sheets import START, Sheets

OFFERS = ["infojobs/1", "infojobs/2", "infojobs/3"]


def filled(world: Sheets) -> Sheets:
    world.company("acme")
    world.company("globex", cities=None)
    world.offer("1", "2", "3")
    world.work()
    return world


def writes(world: Sheets) -> list[str]:
    """The ranges of the last write."""
    return [one["range"] for one in world.simulator.bodies[-1]["data"]]


@pytest.mark.by_day
def test_companies_and_offers_are_written_once(world):
    world.company("acme")
    world.company("globex", cities=None)
    world.offer("1", "2", published_at=START, closed_at=START, url="https://example.com/1")
    world.offer("9", title="a repost", link_kind="repost", linked_client="infojobs", linked_offer_id="1")
    world.offer("8", title="long ago", last_seen_at=START - timedelta(days=31))
    world.work()
    assert world.said == "4 rows added, 0 changed, 0 feedback read"
    assert world.keys() == ["infojobs/1", "infojobs/2"]
    assert world.rows("Companies")[0] == {
        KEY: "acme",
        "Company": "ACME",
        "Cities": "Madrid, Vigo",
        "Open offers": 2,
        "All offers": 3,
        "First seen": "2026-11-15T02:30:00.000Z",
        "Last seen": "2026-11-15T02:30:00.000Z",
        FEEDBACK: "",
    }
    first = world.rows()[0]
    assert (first["Title"], first["Published"], first["Province"]) == ("Title 1", "2026-11-15T02:30:00.000Z", "")
    before = world.simulator.calls("write") + world.simulator.calls("change")
    world.work()
    assert world.said == "0 rows added, 0 changed, 0 feedback read"
    assert world.simulator.calls("write") + world.simulator.calls("change") == before
    ((synced, failing),) = world.query("SELECT synced_at, failing_since FROM sheet_state")
    assert synced is not None
    assert failing is None


@pytest.mark.by_day
def test_feedback_is_read_and_never_overwritten(world):
    filled(world)
    grid = world.grid()
    column = grid.column(FEEDBACK)
    grid.put(2, column, "called them")
    grid.put(3, column, 5)
    grid.put(4, column, "x" * 3_000)
    world.grid("Companies").put(2, world.grid("Companies").column(FEEDBACK), "nice\x07 people\nthere")
    world.offer("1", title="Another")
    world.work()
    assert world.feedback() == {
        ("company", "acme"): "nice people there",
        ("offer", "infojobs/1"): "called them",
        ("offer", "infojobs/2"): "5",
        ("offer", "infojobs/3"): "x" * 2_000,
    }
    assert world.said == "0 rows added, 1 changed, 4 feedback read"
    assert [row[FEEDBACK] for row in world.rows()] == ["called them", 5, "x" * 3_000]
    grid.put(2, column, "")
    world.time.advance(60)
    world.work()
    assert world.feedback()["offer", "infojobs/1"] == ""
    ((read, changed),) = world.query("SELECT read_at, changed_at FROM feedback WHERE key = 'infojobs/1'")
    assert read < changed


@pytest.mark.by_day
def test_what_was_erased_leaves_its_key_alone(world):
    filled(world)
    world.grid().put(2, world.grid().column(FEEDBACK), "a name")
    world.work()
    world.offer("1", erased_at=START)
    world.company("acme", erased_at=START)
    world.offer("7", erased_at=START)
    world.work()
    assert world.keys() == OFFERS
    assert {name: value for name, value in world.rows()[0].items() if value} == {
        KEY: "infojobs/1",
        FEEDBACK: "a name",
    }
    assert set(world.rows("Companies")[0].values()) == {"acme", ""}
    assert world.feedback()["offer", "infojobs/1"] == ""


def test_only_cells_that_differ_are_written(local):
    filled(local)
    local.offer("2", title="Another", city="Vigo")
    local.work()
    assert writes(local) == ["'Offers'!B3:B3", "'Offers'!D3:D3"]
    local.grid().put(4, 3, "typed over")
    local.work()
    assert writes(local) == ["'Offers'!C4:C4"]
    assert local.rows()[2]["Company"] == "Acme"


def test_columns_and_rows_are_found_wherever_they_were_moved(local):
    filled(local)
    grid = local.grid()
    grid.move_column("Title", 9)
    grid.move_column(KEY, 4)
    grid.put(1, 20, "Ours")
    grid.put(2, 20, "a note")
    grid.shuffle(lambda rows: list(reversed(rows)))
    local.offer("2", title="Another")
    local.offer("4")
    local.work()
    assert local.keys() == ["infojobs/3", "infojobs/2", "infojobs/1", "infojobs/4"]
    assert [row["Title"] for row in local.rows()] == ["Title 3", "Another", "Title 1", "Title 4"]
    assert [row["Ours"] for row in local.rows()] == ["", "", "a note", ""]


def test_headers_of_ours_that_are_missing_are_added_at_the_end(local):
    filled(local)
    grid = local.grid()
    grid.put(1, grid.column("City"), "Town")
    grid.put(3, 26, "somebody's, without a header")
    local.work()
    assert grid.columns == 27
    assert grid.column("City") == 27
    assert [row["City"] for row in local.rows()] == ["Madrid"] * 3
    assert [row["Town"] for row in local.rows()] == ["Madrid"] * 3
    assert grid.cells[3][26] == "somebody's, without a header"


def test_rows_of_people_are_left_alone(local):
    filled(local)
    local.grid().put(6, 3, "a remark below")
    local.grid().put(7, 1, "no key of ours")
    local.grid().put(9, 4, "another remark")
    local.offer("4")
    local.work()
    assert [row.get(KEY) for row in local.rows()] == [*OFFERS, "", "", "no key of ours", "", "", "infojobs/4"]
    assert local.grid().cells[9] == {4: "another remark"}
    assert local.grid().cells[6] == {3: "a remark below"}


def test_a_key_that_is_there_twice_counts_once_and_is_told(local):
    filled(local)
    local.grid().shuffle(lambda rows: [*rows, [rows[0][0], "a copy"]])
    local.offer("1", title="Another")
    local.work()
    local.work()
    assert [row["Title"] for row in local.rows()] == ["Another", "Title 2", "Title 3", "a copy"]
    assert [severity for _, severity in local.events("queries.sheet_doubled")] == ["warning"]
    assert local.events("queries.sheet_failed") == []


@pytest.mark.parametrize("hand", ["delete", "clear", "rename"])
def test_without_its_key_header_nothing_is_written(local, hand):
    filled(local)
    grid = local.grid()
    if hand == "delete":
        grid.delete_row(1)
    elif hand == "clear":
        grid.cells[1] = {}
    else:
        grid.put(1, 1, "Id")
    before = grid.values()
    local.offer("4")
    local.work()
    assert grid.values() == before
    assert "no column with the header 'Penstock key'" in local.said
    assert [severity for _, severity in local.events("queries.sheet_failed")] == ["critical"]
    grid.cells[1] = {}
    grid.cells.clear()
    local.work()
    assert sorted(local.keys()) == [*OFFERS, "infojobs/4"]
    assert local.query("SELECT failing_since FROM sheet_state") == [(None,)]


def test_texts_from_outside_are_texts(local):
    formula = '=IMPORTXML("https://example.com","//a")'
    local.offer("1", title=formula, company="a\x00b\x1b[31m\u202ec", city="x" * 60_000)
    local.work()
    (row,) = local.rows()
    assert row["Title"] == formula
    assert row["Company"] == "ab[31mc"
    assert row["City"] == "x" * MOST_CHARACTERS
    assert {body.get("valueInputOption", "RAW") for body in local.simulator.bodies} == {"RAW"}
    local.work()
    assert local.said == "0 rows added, 0 changed, 0 feedback read"


def test_strange_keys_are_written_once(local):
    strange = ["=1+1", " a ", "b/c", "d%2Fe", "%", "ñ 漢字", "'f", "007", "g\nh", "-1", "0"]
    local.offer(*strange, client="feed/one")
    local.company(" =x/ %\t")
    local.work()
    local.work()
    assert local.said == "0 rows added, 0 changed, 0 feedback read"
    assert len(local.keys()) == len(set(local.keys())) == len(strange)
    assert [row["Title"] for row in local.rows() if row[KEY] == "feed%2Fone/%3D1+1"] == ["Title =1+1"]


def test_the_grid_grows_and_large_tabs_are_written_in_parts(local):
    local.offer(*(f"{number:05}" for number in range(1_700)))
    local.work(300)
    assert local.said == "1,700 rows added, 0 changed, 0 feedback read"
    assert Counter(local.keys()) == Counter(f"infojobs/{number:05}" for number in range(1_700))
    assert max(len(one["values"]) for body in local.simulator.bodies if "data" in body for one in body["data"]) == 500
    local.offer(*(f"{number:05}" for number in range(0, 1_700, 100)), title="Another")
    local.work(300)
    assert local.said == "0 rows added, 17 changed, 0 feedback read"

"""What the simulator promises to those who test against it, beyond what the connector's tests show."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.model.clock import VirtualClock
from penstock.simulators.google_grids import BadRequest, Grid, Spreadsheet
from penstock.simulators.google_sheets import LOST, SPREADSHEET, GoogleSheetsSimulator
from penstock.simulators.server import in_thread

NOW = datetime(2026, 11, 15, 3, tzinfo=UTC)


def call(address: str, path: str, body: Any = None, token: str = "") -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{address}{path}", data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def table(*rows: list[Any]) -> Grid:
    grid = Grid("T", 0)
    for row, cells in enumerate(rows, 1):
        for column, value in enumerate(cells, 1):
            grid.put(row, column, value)
    return grid


def test_it_answers_as_google_does():
    simulator = GoogleSheetsSimulator(VirtualClock(NOW))
    simulator._tokens["good"] = datetime(2027, 1, 1, tzinfo=UTC)
    simulator.grid("Sheet1").put(2, 2, "x")
    path = f"/v4/spreadsheets/{SPREADSHEET}"
    with in_thread(simulator) as address:
        status, refused = call(address, path)
        assert (status, refused["error"]["status"]) == (401, "UNAUTHENTICATED")
        status, missing = call(address, "/v4/spreadsheets/none", token="good")
        assert (status, missing["error"]) == (
            404,
            {"code": 404, "message": "Requested entity was not found.", "status": "NOT_FOUND"},
        )
        assert call(address, f"{path}/values/Sheet1!A1:C3", token="good") == (
            200,
            {"range": "Sheet1!A1:C3", "majorDimension": "ROWS", "values": [[], ["", "x"]]},
        )
        query = urllib.parse.urlencode([("ranges", "Sheet1"), ("ranges", "'Sheet1'!C:C")])
        status, both = call(address, f"{path}/values:batchGet?{query}", token="good")
        assert [one.get("values") for one in both["valueRanges"]] == [[[], ["", "x"]], None]
        assert call(address, "/elsewhere", token="good")[0] == 404
        assert call(address, f"{path}/values:batchUpdate", {"data": 5}, token="good")[0] == 400
        status, token = call(address, "/token", {})
        assert (status, token["error"]) == (400, "invalid_grant")
        simulator.faults["write"].append(LOST)
        body = {"valueInputOption": "RAW", "data": [{"range": "Sheet1!A1", "values": [["done"]]}]}
        with pytest.raises(http.client.IncompleteRead):
            call(address, f"{path}/values:batchUpdate", body, token="good")
    assert simulator.grid("Sheet1").cells[1] == {1: "done"}


@pytest.mark.parametrize(
    ("value", "raw", "entered"),
    [
        ("=1+1", "=1+1", "computed: =1+1"),
        ("'7", "'7", "7"),
        ("7", "7", 7.0),
        (7, 7, 7),
        (True, True, True),
        ("text", "text", "text"),
    ],
)
def test_raw_keeps_what_user_entered_reads(value, raw, entered):
    for option, kept in (("RAW", raw), ("USER_ENTERED", entered)):
        sheet = Spreadsheet(set())
        sheet.update([{"range": "Sheet1!B2", "values": [[value]]}], option)
        assert sheet.grid("Sheet1").cells == {2: {2: kept}}


def test_empty_texts_empty_and_nothing_leaves_alone():
    sheet = Spreadsheet(set())
    sheet.update([{"range": "Sheet1!A1:C1", "values": [["a", "b", "c"]]}], "RAW")
    sheet.update([{"range": "Sheet1!A1:C1", "values": [["", None, "d"]]}], "RAW")
    assert sheet.grid("Sheet1").cells == {1: {2: "b", 3: "d"}}


@pytest.mark.parametrize(
    "data",
    [
        {"range": "Sheet1!A1001", "values": [["x"]]},
        {"range": "Sheet1!AA1", "values": [["x"]]},
        {"range": "Other!A1", "values": [["x"]]},
        {"range": "Sheet1!A1:A1", "values": [["x", "y"]]},
        {"range": "Sheet1!A1", "values": [["x" * 50_001]]},
        {"range": "Sheet1!A1", "values": [[["list"]]]},
        {"range": "!!", "values": [["x"]]},
    ],
)
def test_a_write_is_done_whole_or_not_at_all(data):
    sheet = Spreadsheet(set())
    with pytest.raises(BadRequest):
        sheet.update([{"range": "Sheet1!A1", "values": [["first"]]}, data], "RAW")
    assert sheet.grid("Sheet1").values() == []


def test_what_hands_do():
    grid = table(["K", "N"], ["b", 1], ["a", 2], ["", 3], ["c"])
    grid.sort("K")
    assert grid.values() == [["K", "N"], ["a", 2], ["b", 1], ["c"], ["", 3]]
    grid.sort("K", reverse=True)
    grid.move_column("N", 1)
    assert grid.values() == [["N", "K"], ["", "c"], [1, "b"], [2, "a"], [3]]
    grid.delete_row(1)
    grid.shuffle(lambda rows: [*rows, rows[0]])
    assert grid.values() == [["", "c"], [1, "b"], [2, "a"], [3], [1, "b"]]


def test_a_grid_cannot_grow_for_ever():
    sheet = Spreadsheet(set())
    with pytest.raises(BadRequest, match="above the limit of 10000000"):
        sheet.change({"appendDimension": {"sheetId": 0, "dimension": "ROWS", "length": 400_000}})
    with pytest.raises(BadRequest, match="No grid with id: 5"):
        sheet.change({"appendDimension": {"sheetId": 5, "dimension": "ROWS", "length": 1}})
    with pytest.raises(BadRequest, match="Unknown request: deleteSheet"):
        sheet.change({"deleteSheet": {}})

"""Lost answers, failures, quotas and people who sort at the wrong moment: every key keeps one row."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.lifecycles.queries.sheet_calls import gates
from penstock.lifecycles.queries.sheet_ranges import FEEDBACK, KEY
from penstock.settings.typed import Hours
from penstock.simulators.google_sheets import LOST, Fault, GoogleSheetsSimulator, quota
from tests.support.sheets import GATE, Sheets, sheets

OFFERS = [f"{number:02}" for number in range(12)]
FAULTS = {"lost": LOST, "cut": Fault(cut=True), "500": Fault(500), "late 500": Fault(500, carried_out=True)}


def complete(world: Sheets) -> None:
    """Both tabs have every row once, whole."""
    assert Counter(world.keys()) == Counter(f"infojobs/{one}" for one in OFFERS)
    assert Counter(world.keys("Companies")) == Counter(["acme", "globex"])
    titles = dict(world.query("SELECT offer_id, title FROM offers"))
    for row in world.rows():
        assert row["Title"] == titles[row[KEY].partition("/")[2]]
        assert row["Company"] == "Acme"


@pytest.fixture
def stocked(queries_url: str, tmp_path: Path) -> Iterator[Sheets]:
    """A ledger with companies and offers, and an empty spreadsheet that is never out of its hours."""
    with sheets(queries_url, tmp_path, hours=Hours("00:00-23:59"), requests_per_minute=0.0) as world:
        yield stock(world)


def stock(world: Sheets) -> Sheets:
    world.company("acme")
    world.company("globex")
    world.offer(*OFFERS)
    return world


def anew(world: Sheets) -> GoogleSheetsSimulator:
    """An empty spreadsheet in place of the one that there was."""
    world.simulator.spreadsheets = GoogleSheetsSimulator(world.time).spreadsheets
    world.simulator.forget()
    world.time.advance(60)
    return world.simulator


def positions(world: Sheets) -> int:
    """How many calls a synchronisation takes that changes something in every way."""
    anew(world)
    scene(world)
    return sum(world.simulator.calls(kind) for kind in ("tabs", "read", "write", "change"))


def scene(world: Sheets) -> None:
    """An empty spreadsheet is filled; then somebody deletes a row, and types over another."""
    world.work(40)
    world.grid().delete_row(3)
    world.grid().put(2, 2, "typed over")
    world.work(40)


def test_an_answer_that_is_lost_anywhere_never_doubles_a_row(stocked):
    calls = positions(stocked)
    assert calls > 25
    for place in range(1, calls + 4):
        anew(stocked).lost = {place} if place % 3 else {place, place + 2, place + 3}
        scene(stocked)
        complete(stocked)
    assert stocked.events("queries.sheet_failed") == []


@pytest.mark.parametrize("fault", FAULTS)
def test_every_kind_of_call_may_fail(stocked, fault):
    for kind in ("token", "tabs", "read", "write", "change"):
        stocked.simulator.expire_tokens()
        anew(stocked).faults[kind].extend([FAULTS[fault]] * 3)
        stocked.work()
        complete(stocked)
    assert stocked.events("queries.sheet_failed") == []


@pytest.mark.by_day
def test_after_three_retries_there_is_one_alarm_for_the_whole_outage(stocked):
    start = stocked.time.now()
    stocked.simulator.every["read", 1] = Fault(503, "The service is currently unavailable.")
    stocked.simulator.every["tabs", 1] = Fault(503, "The service is currently unavailable.")
    stocked.simulator.every["token", 1] = Fault(503, "The service is currently unavailable.")
    stocked.work(20)
    assert stocked.simulator.counted["token"] == 4
    assert "cannot be synchronised: POST /token: 503" in stocked.said
    ((key, severity),) = stocked.events("queries.sheet_failed")
    assert severity == "critical"
    assert key.startswith("queries.sheet_failed:simulated-spreadsheet:2026-11-15T02:30:1")
    due = stocked.schedule().due_at
    assert due is not None
    assert due - start == timedelta(minutes=30)
    stocked.work(2 * 3600 - 60, nudge=False)
    assert len(stocked.events("queries.sheet_failed")) == 1
    assert 8 <= stocked.simulator.counted["token"] <= 40
    stocked.simulator.every.clear()
    stocked.work(600)
    complete(stocked)
    assert stocked.query("SELECT failing_since, last_error FROM sheet_state") == [(None, None)]
    stocked.simulator.spreadsheets.clear()
    stocked.work()
    assert len(stocked.events("queries.sheet_failed")) == 2


def test_waits_grow_from_two_to_eight_seconds(local):
    moments = []
    local.simulator.every["tabs", 1] = LOST
    local.simulator.before = lambda operation: moments.append(local.time.elapsed())
    local.work(60)
    assert [round(after - before) for before, after in pairwise(moments)] == [2, 4, 8]


def test_a_quota_closes_this_gate_alone_and_nothing_is_doubled(stocked):
    stocked.simulator.per_minute = 4
    stocked.work(1_500)
    complete(stocked)
    closed = stocked.query("SELECT gate_id FROM gate WHERE epoch > 0")
    assert closed == [(GATE,)]
    assert stocked.query("SELECT count(*) FROM event_log WHERE event_type = 'gate.throttled'") != [(0,)]
    assert stocked.events("queries.sheet_failed") == []


def test_a_wait_that_google_asks_for_is_kept(local):
    local.company("acme")
    local.simulator.faults["read"].append(quota(retry_after="45"))
    moments = []
    local.simulator.before = lambda operation: moments.append(local.time.elapsed())
    local.work(300)
    assert max(after - before for before, after in pairwise(moments)) >= 45
    assert local.keys("Companies") == ["acme"]


def test_a_long_wait_is_the_gates_and_the_job_begins_anew(local):
    local.company("acme")
    local.simulator.faults["write"].append(quota("Write", retry_after="1200"))
    local.work(600)
    assert local.results == []
    local.work(1_500, nudge=False)
    assert local.keys("Companies") == ["acme"]


def test_what_somebody_types_while_a_quota_is_waited_for_stays(local):
    stock(local).work()
    local.offer("99")
    ends = local.time.elapsed() + 45
    local.simulator.faults["write"].append(quota("Write", retry_after="45"))

    def type_in(operation: str) -> None:
        if local.time.elapsed() >= ends and 14 not in local.grid().cells:
            local.grid().put(14, 3, "a remark")

    local.simulator.before = type_in
    local.work(120)
    assert local.grid().cells[14] == {3: "a remark"}
    assert local.keys()[-1] == "infojobs/99"


def test_a_row_that_somebody_adds_meanwhile_is_not_added_again(local):
    stock(local).work()
    local.company("new")
    local.offer("99")

    def add(operation: str) -> None:
        if operation == "write" and 14 not in local.grid().cells:
            local.grid().put(14, 1, "infojobs/99")

    local.simulator.before = add
    local.work()
    local.work()
    assert local.keys().count("infojobs/99") == 1
    assert local.rows()[-1]["Title"] == "Title 99"


@pytest.mark.parametrize("rate", [6.0, 1.0, 0.0])
def test_few_calls_a_minute_still_come_to_an_end(queries_file, tmp_path, rate):
    shutil.copy(queries_file, tmp_path / "penstock.db")
    with sheets(f"sqlite:///{tmp_path / 'penstock.db'}", tmp_path, requests_per_minute=rate) as world:
        world.company("acme")
        world.offer("1")
        world.work(8_000)
        assert world.keys() == ["infojobs/1"]
        assert any(result.again for result in world.results) == (rate == 1.0)
        limits = {limit.name: limit.rate * 60 + limit.burst for one in gates(world.settings) for limit in one.limits}
        assert limits == (dict.fromkeys(("reads", "writes"), pytest.approx(max(rate, 1.5))) if rate else {})


def test_a_token_that_is_refused_is_renewed(stocked):
    def expire(operation: str) -> None:
        if stocked.simulator.counted["read"] == 3:
            stocked.simulator.expire_tokens()

    stocked.simulator.before = expire
    stocked.work()
    complete(stocked)
    assert 1 < stocked.simulator.counted["token"] < 4


@pytest.mark.by_day
def test_a_spreadsheet_that_is_not_shared_stops_the_gate(stocked):
    stocked.simulator.spreadsheets["simulated-spreadsheet"].editors.clear()
    stocked.work()
    ((held, reason),) = stocked.query("SELECT held_by, held_reason FROM gate WHERE gate_id = :gate", gate=GATE)
    assert held == "fatal"
    assert "share the spreadsheet simulated-spreadsheet with penstock@simulated.iam.gserviceaccount.com" in reason
    assert stocked.simulator.counted["tabs"] == 1
    stocked.work(1_800, nudge=False)
    assert stocked.simulator.counted["tabs"] == 1


def sorting(world: Sheets, times: int) -> None:
    """Somebody sorts the offers, the other way each time, right before they are written: so many times."""
    left = [times]

    def sort(operation: str) -> None:
        if operation == "write" and left[0]:
            world.grid().sort(KEY, reverse=left[0] % 2 == times % 2)
            left[0] -= 1

    world.simulator.before = sort


def test_somebody_sorts_while_rows_are_written(local):
    stock(local).work()
    grid = local.grid()
    for row in range(2, 14):
        grid.put(row, grid.column(FEEDBACK), f"of {grid.cells[row][1]}")
    local.offer("03", title="Another")
    local.offer("07", title="Another")
    sorting(local, 1)
    local.work()
    complete(local)
    assert all(row[FEEDBACK] == f"of {row[KEY]}" for row in local.rows())
    assert local.events("queries.sheet_failed") == []


def test_somebody_who_never_stops_sorting_is_an_alarm_and_heals(local):
    stock(local).work()
    local.offer("03", title="Another")
    sorting(local, 99)
    local.work()
    assert "rows of the tab 'Offers' were moved while they were written; it was written 4 times" in local.said
    assert [severity for _, severity in local.events("queries.sheet_failed")] == ["critical"]
    local.simulator.before = str
    local.work()
    complete(local)


def test_columns_that_move_while_rows_are_written(local):
    stock(local).work()
    local.offer("03", title="Another")
    local.offer("50", link_kind="repost")
    moved = [False]

    def move(operation: str) -> None:
        if operation == "write" and not moved[0]:
            moved[0] = True
            local.grid().move_column("Title", 6)

    local.simulator.before = move
    local.work()
    local.simulator.before = str
    local.work()
    titles = dict(local.query("SELECT offer_id, title FROM offers"))
    assert [row["Title"] for row in local.rows()] == [titles[row[KEY].partition("/")[2]] for row in local.rows()]
    assert local.said == "0 rows added, 0 changed, 0 feedback read"

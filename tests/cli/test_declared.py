"""Commands made of declarations, on real ledgers: what they take, print, ask and do."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from penstock.app.app import App
from penstock.ledger.ledger import Ledger
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from tests.support import shop
from tests.support.shop import Order, S
from tests.support.terminal import in_terminal

CONFIGURATION = 'lifecycles = ["tests.support.shop:lifecycle"]\n\n[shop]\ngreeting = "good day"\n'
NOTE = "a note that is far too long for any table, and must be shortened to fit its line"


def make(folder: Path, url: str) -> None:
    """A configuration, and a ledger of ten orders, two in each state."""
    (folder / "penstock.toml").write_text(f'{CONFIGURATION}\n[ledger]\nurl = "{url}"\n')
    app = App(shop.lifecycle)
    data, tracks = app.data, app.migrations
    with Ledger.open(url, app.machines, create=True, data_tables=data.tables, migrations=tracks) as ledger:
        orders = [
            Order(shop="acme", number=n, day=date(2026, 11, n), status=list(S)[n % 5], pieces=n, note=NOTE)
            for n in range(1, 11)
        ]
        ledger.birth(orders, actor=Actor.API, who="test")


@pytest.fixture
def opened(ledger_url: str, tmp_path: Path) -> Callable[[], Ledger]:
    """The folder of a test on either database; called, the ledger."""
    make(tmp_path, ledger_url)
    return lambda: Ledger.open(ledger_url, App(shop.lifecycle).machines)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which nothing is changed."""
    made = tmp_path_factory.mktemp("shop")
    make(made, f"sqlite:///{made / 'penstock.db'}")
    return made


def states(opened: Callable[[], Ledger]) -> dict[str, str]:
    with opened() as ledger:
        rows = ledger.read(lambda cursor: cursor.rows("SELECT unit_id, status FROM shop_order"))
    return {str(row[0]): str(row[1]) for row in rows}


LOST = {"acme/4", "acme/9"}


def test_a_page_is_a_table_json_and_csv(penstock, opened, tmp_path):
    table = penstock("shop", "orders", "--limit", "3", cwd=tmp_path)
    assert table.code == 0, table.err
    heading, *rows = table.out.splitlines()
    assert heading.split() == ["unit", "status", "pieces", "day", "changed", "note"]
    assert [row.split()[:4] for row in rows] == [
        ["order:acme/1", "packing", "1", "2026-11-01"],
        ["order:acme/10", "open", "10", "2026-11-10"],
        ["order:acme/2", "sent", "2", "2026-11-02"],
    ]
    assert all(NOTE in row for row in rows)  # nothing is shortened in a pipe
    assert table.err.splitlines() == ["orders 10", "there are more: --after acme/2"]

    exact = penstock("shop", "orders", "--limit", "3", "--json", cwd=tmp_path)
    found = json.loads(exact.out)
    assert (found["next"], found["counts"], len(found["rows"])) == ("acme/2", {"orders": 10}, 3)
    assert found["rows"][0]["version"]  # a detail is left out of the table alone
    assert exact.err == ""

    parsed = list(csv.DictReader(io.StringIO(penstock("shop", "orders", "--csv", cwd=tmp_path).out)))
    assert len(parsed) == 10
    assert (parsed[0]["unit"], parsed[0]["pieces"], parsed[0]["note"]) == ("order:acme/1", "1", NOTE)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["--status", "lost"], LOST),
        (["--lost"], LOST),
        (["--from", "2026-11-09"], {"acme/9", "acme/10"}),
        (["-s", "acme", "--shop", "other", "--lost"], LOST),
        (["--shop", "other"], set()),
        (["--after", "acme/8"], {"acme/9"}),
    ],
)
def test_options_reach_the_reading(penstock, folder, given, found):
    answer = json.loads(penstock("shop", "orders", *given, "--json", cwd=folder).out)
    assert {row["unit"].removeprefix("order:") for row in answer["rows"]} == found


def test_a_single_thing_is_shown_whole(penstock, opened, tmp_path):
    said = penstock("shop", "order", "show", "order:acme/3", cwd=tmp_path).out
    assert "status:   waiting\n" in said
    assert f"note:     {NOTE}\n" in said
    assert "greeting: good day\n" in said  # the lifecycle's settings
    assert said.endswith("pieces:\n  place  name\n      1  acme/3#1\n      2  acme/3#2\n      3  acme/3#3\n")
    assert json.loads(penstock("shop", "order", "show", "order:acme/3", "--json", cwd=tmp_path).out)["pieces"][2] == {
        "place": 3,
        "name": "acme/3#3",
    }


def test_lines_are_data(penstock, folder):
    answer = penstock("shop", "export", cwd=folder)
    assert len(answer.out.splitlines()) == 10
    assert "--json" not in penstock("shop", "export", "--help", cwd=folder).out


def test_an_answer_that_found_something_wrong_ends_with_1(penstock, opened, tmp_path):
    assert penstock("shop", "check", cwd=tmp_path).code == 1
    assert penstock("shop", "reset", "--reason", "found", "--yes", cwd=tmp_path).code == 0
    assert penstock("shop", "check", cwd=tmp_path).code == 0


def test_a_dry_run_shows_the_plan_and_changes_nothing(penstock, opened, tmp_path):
    before = states(opened)
    shown = penstock("shop", "reset", "--dry-run", cwd=tmp_path)
    assert shown.code == 0, shown.err
    assert shown.out.splitlines()[:3] == ["this would reset 2 orders", "  order:acme/4", "  order:acme/9"]
    assert "skipped 2 units: it is sent (order:acme/2, …)" in shown.out
    plan = json.loads(penstock("shop", "reset", "--dry-run", "--json", cwd=tmp_path).out)
    assert (plan["count"], plan["skipped"]["it is sent"]) == (2, 2)
    assert f"digest {plan['digest']}" in shown.out
    assert states(opened) == before


def test_it_is_done_with_who_and_why_in_the_history(penstock, opened, tmp_path):
    done = penstock("shop", "reset", "--reason", "found behind a shelf", "--yes", "--by", "anna", cwd=tmp_path)
    assert (done.code, done.out.splitlines()[0]) == (0, "done: reset 2 orders")
    assert {unit for unit, state in states(opened).items() if state == "open"} == {*LOST, "acme/5", "acme/10"}
    with opened() as ledger:
        sql = "SELECT actor, reason FROM transition_log WHERE unit_id = 'acme/4' AND from_status = 'lost'"
        rows = [tuple(row) for row in ledger.read(lambda cursor: cursor.rows(sql))]
    assert rows == [("operator:anna", "found behind a shelf")]
    again = penstock("shop", "reset", "--reason", "once more", "--yes", cwd=tmp_path)
    assert (again.code, again.out.splitlines()[0]) == (0, "there is nothing to do")


def test_another_set_than_the_one_shown_is_refused_whole(penstock, opened, tmp_path):
    digest = json.loads(penstock("shop", "reset", "--dry-run", "--json", cwd=tmp_path).out)["digest"]
    with opened() as ledger:
        ledger.move(Ref("order", "acme/4"), S.OPEN, actor=Actor.OPERATOR, who="ben", reason="found")
    before = states(opened)
    refused = penstock("shop", "reset", "--reason", "x", "--yes", "--digest", digest, cwd=tmp_path)
    assert refused.code == 2
    assert refused.err.count("\n") == 1
    assert f"digest {digest}" in refused.err
    assert states(opened) == before


def test_nobody_can_be_asked_in_a_pipe(penstock, opened, tmp_path):
    before = states(opened)
    refused = penstock("shop", "reset", "--reason", "x", cwd=tmp_path)
    line = (
        "penstock: this would reset 2 orders; there is no terminal to ask on; give --yes, or --dry-run to only look\n"
    )
    assert (refused.code, refused.err) == (2, line)
    assert states(opened) == before


@pytest.mark.parametrize(("typed", "code", "moved"), [("y\n", 0, True), ("n\n", 1, False), ("\x04", 130, False)])
def test_somebody_is_asked_in_a_terminal(opened, tmp_path, typed, code, moved):
    seen = in_terminal("shop", "reset", "--reason", "x", cwd=tmp_path, typed=typed)
    assert "this would reset 2 orders" in seen.plain
    assert (seen.code, states(opened)["acme/4"] == "open") == (code, moved), seen.text


def test_a_large_plan_becomes_a_bulk_action_that_the_command_drives(penstock, opened, tmp_path):
    with opened() as ledger:
        many = [Order(shop="big", number=n, day=date(2026, 11, 1), status=S.LOST) for n in range(1_500)]
        ledger.birth(many, actor=Actor.API, who="test")
    done = penstock("shop", "reset", "--shop", "big", "--reason", "a large one", "--yes", cwd=tmp_path)
    assert (done.code, done.out) == (0, "done: reset 1,500 orders\n"), done.err
    assert "to end it:   penstock bulk cancel " in done.err
    found = states(opened)
    assert {state for unit, state in found.items() if unit.startswith("big/")} == {"open"}


def test_a_reason_that_is_not_wanted_may_be_left_out(penstock, opened, tmp_path):
    done = penstock(
        "shop", "order", "note", "order:acme/1", "order:acme/2", "--text", "hi", "--yes", "--json", cwd=tmp_path
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["count"] == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["orders", "--from", "2026-13-01"], "--from must be a date, for example 2026-11-01"),
        (["orders", "--from", "20261101"], "--from must be a date, for example 2026-11-01"),
        (["orders", "--before", "yesterday"], "--before must be an instant, for example 2026-11-15T19:31:00Z"),
        (["orders", "--older-than", "9x"], "--older-than must be a span, for example 90d or 6h"),
        (["orders", "--limit", "0"], "--limit must be a whole number from 1 to 1,000"),
        (["orders", "--limit", "many"], "--limit must be a whole number from 1 to 1,000"),
        (["orders", "--weight", "nan"], "--weight must be a number, at least 0"),
        (["orders", "--sort", "nummer"], "--sort must be one of number, day; did you mean number?"),
        (["orders", "--shape", "x"], "--shape must be one of full, short"),
        (["orders", "--wieght", "1"], "penstock shop orders has no option --wieght; did you mean --weight?"),
        (["orders", "--from"], "--from needs a value"),
        (["ordrs"], "penstock shop has no command 'ordrs'; did you mean orders or order?"),
        (["order", "show"], "penstock shop order show needs UNIT: the order, as order:shop/number"),
        (["order", "note", "order:acme/1"], "penstock shop order note needs --text TEXT: what to note"),
        (["reset"], "penstock shop reset needs --reason TEXT: why, for the history"),
        (["reset", "--reason", " "], "--reason is empty; the history keeps why something was done by hand"),
        (["order", "show", "order:acme/99"], "no unit order:acme/99 in the ledger"),
        (["order", "show", "ordr:acme/1"], "no machine is called 'ordr'; known here: bulk_action, order"),
    ],
)
def test_bad_input_is_one_clear_line(penstock, folder, given, said):
    refused = penstock("shop", *given, cwd=folder)
    assert refused.code == 2
    assert refused.out == ""
    if "known here" in said:  # the kernel has more machines of its own
        assert refused.err.startswith(f"penstock: {said.partition(';')[0]}")
    else:
        assert refused.err == f"penstock: {said}\n"


def test_text_from_outside_is_shown_and_not_obeyed(penstock, opened, tmp_path):
    evil = "\x1b]0;owned\x07 \x1b[2J\u202e\x9b31m\nforged row"
    done = penstock("shop", "order", "note", "order:acme/1", "--text", evil, "--yes", cwd=tmp_path)
    assert done.code == 0, done.err
    for command in (["orders"], ["orders", "--json"], ["order", "show", "order:acme/1"]):
        answer = penstock("shop", *command, cwd=tmp_path)
        assert not set(answer.out + answer.err) & set("\x1b\x07\x9b\u202e"), command
    rows = json.loads(penstock("shop", "orders", "--json", cwd=tmp_path).out)["rows"]
    assert rows[0]["note"] == evil
    in_table = in_terminal("shop", "orders", "--csv", cwd=tmp_path)
    assert "\x1b]0;" not in in_table.text
    assert "\x1b]0;" not in in_terminal("shop", "export", cwd=tmp_path).text

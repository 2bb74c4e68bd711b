"""Answers as people read them: at 80 and 120 columns, and in a pipe."""

from __future__ import annotations

import csv
import itertools
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest

from penstock.cli.render import Showing, answer_lines, csv_lines, notes
from penstock.cli.terminal import Screen, cells, shortened
from penstock.model.spoken import counted, duration
from penstock.operations.answers import json_text
from penstock.operations.declare import Page
from penstock.operations.fields import Row, column
from penstock.operations.words import sentence, word
from penstock.operations.words import shown as told
from tests.support.shop import S

NOW = datetime(2026, 11, 17, 22, 8, tzinfo=UTC)
REASON = "the provider answered 503 Service Unavailable, and then nothing at all for several minutes"


class Line(Row, frozen=True):
    unit: Annotated[str, column("Which.", show="reference")]
    status: Annotated[str, column("State.", show="state")]
    machine: Annotated[str, column("Machine.")]
    tries: Annotated[int, column("How often.")]
    since: Annotated[datetime, column("Since when.")]
    reason: Annotated[str, column("Why.", show="text", heading="why")]
    secret: Annotated[str, column("More.", show="detail")] = "only in show"


class Seen(Row, frozen=True):
    since: Annotated[datetime, column("Since when.")]
    kind: Annotated[str, column("What.")]
    unit: Annotated[str | None, column("What it is about.", show="reference")]


def lines(count: int = 3, reference: str = "report:acme/2026-11-01/daily/target") -> Page[Line]:
    rows = [
        Line(
            unit=f"{reference}/{n}",
            status=S.LOST,
            machine="report",
            tries=1_234 * n,
            since=NOW - timedelta(minutes=3),
            reason=REASON,
        )
        for n in range(count)
    ]
    return Page(rows=rows)


def shown(answer: Any, width: int | None, *, colour: bool = False) -> list[str]:
    return list(answer_lines(answer, Showing(Screen(width, colour), NOW)))


@pytest.mark.parametrize("width", [100, 120, 160])
def test_a_row_is_one_line_and_fits(width):
    page = lines()
    found = shown(page, width)
    assert len(found) == 4
    assert all(cells(line) <= width for line in found)
    for row, line in zip(page.rows, found[1:], strict=True):
        assert row.unit in line  # never broken, never shortened
        assert line.endswith("…")
        assert "only in show" not in line


def test_in_a_narrow_terminal_a_text_has_a_line_of_its_own():
    page = lines()
    found = shown(page, 80)
    assert len(found) == 7
    assert all(cells(line) <= 80 for line in found)
    assert [line.split()[0] for line in found[1::2]] == [row.unit for row in page.rows]
    assert all(line.startswith("    the provider") and line.endswith("…") for line in found[2::2])


def test_a_long_reference_has_a_line_of_its_own_and_stays_whole():
    page = lines(2, "report:acme/2026-11-01/daily/a-target-with-quite-a-long-name-that-fills-the-line")
    found = shown(page, 80)
    assert found[0] == "unit"
    assert [found[2], found[5]] == [row.unit for row in page.rows]
    assert all(line.startswith("    ") and cells(line) <= 80 for line in (found[1], *found[3:5], *found[6:]))
    assert len(found) == 8


def test_a_long_reference_that_does_not_name_its_row_comes_below_it():
    where = f"folder:{'x' * 70}"
    rows = [Seen(since=NOW, kind="report.given_up", unit=unit) for unit in (where, None)]
    assert shown(Page(rows=rows), 80) == [
        "since    kind",
        "0 s ago  report.given_up",
        f"    {where}",
        "0 s ago  report.given_up",
    ]


def test_where_not_even_the_shortest_line_fits_each_row_is_a_record():
    page = lines(2)
    found = shown(page, 20)
    assert any(line.endswith(page.rows[0].unit) for line in found)
    assert "" in found
    assert " ".join("\n".join(found).split()).count(REASON) == 2  # wrapped, and whole


def test_in_a_pipe_nothing_is_shortened_and_a_row_is_one_line():
    found = shown(lines(), None)
    assert len(found) == 4
    assert all(REASON in line for line in found[1:])
    assert not any("\x1b" in line for line in found)


def test_numbers_times_and_nothing():
    first, second = (line.split("  ") for line in shown(lines(2), None)[1:])
    assert "1,234" in [part.strip() for part in second]
    assert "0" in [part.strip() for part in first]
    local = (NOW - timedelta(minutes=3)).astimezone()
    assert f"{local:%Y-%m-%d %H:%M} (3 min ago)" in shown(lines(), None)[1]
    assert word(NOW + timedelta(hours=5), NOW, short=True) == "in 5 h"
    values: list[Any] = [None, "", [], True, False, 1234567, 0.25]
    assert [word(value, NOW) for value in values] == [*("-", "-", "-", "yes", "no", "1,234,567", "0.25")]
    assert [duration(s) for s in (0, 59, 60, 3_599, 3_600, 172_800)] == ["0 s", "59 s", "1 min", "60 min", "1 h", "2 d"]
    assert [counted(n, "unit") for n in (0, 1, 12_345)] == ["0 units", "1 unit", "12,345 units"]


def test_a_state_has_the_colour_of_its_meaning():
    def colour(state: str, meaning: str | None = None) -> str:
        page = Page(rows=[Line(unit="a:1", status=state, machine="a", tries=0, since=NOW, reason="")])
        showing = Showing(Screen(80, colour=True), NOW, lambda machine, _: meaning if machine == "a" else None)
        return next(itertools.islice(answer_lines(page, showing), 1, None)).partition(state)[0].rpartition("  ")[2]

    assert [colour(state) for state in S] == [
        "",
        "\x1b[38;5;63m",
        "\x1b[38;5;28m",
        "\x1b[38;5;130m",
        "\x1b[38;5;196m\x1b[1m",
    ]
    assert colour("somewhere", "fault") == "\x1b[38;5;196m\x1b[1m"  # a plain text, looked up by its machine
    assert colour("somewhere") == ""


def test_wide_characters_count_as_two_columns():
    assert cells("日本語") == 6
    assert shortened("日本語の長い文", 7) == "日本語…"
    assert shortened("short", 5) == "short"


def test_what_stands_below_a_page():
    assert notes(Page(rows=[], next="a b", counts={"due": 1_200}, note="all of today")) == [
        "due 1,200",
        "all of today",
        "there are more: --after 'a b'",
    ]
    assert shown(Page(rows=[]), 80) == ["none"]


def test_an_option_to_copy_begins_on_a_line_of_its_own():
    cursor = "x" * 70
    assert notes(Page(rows=[], next=cursor), 80) == ["there are more:", f"--after {cursor}"]
    assert notes(Page(rows=[], next=cursor), 120) == [f"there are more: --after {cursor}"]


@pytest.mark.parametrize(
    ("kind", "payload", "said"),
    [
        ("schedule.failed", {"schedule": "nightly", "error": "disk full"}, "schedule nightly failed: disk full"),
        (
            "unit.dead",
            {"unit": "invoice:acme/17", "reason": "no such customer"},
            "unit invoice:acme/17 dead: no such customer",
        ),
        ("harvest.watermark_advanced", '{"feed": "demo", "rows": 12}', "harvest demo watermark advanced (rows 12)"),
        ("provider.breaker_open", None, "provider breaker open"),
    ],
)
def test_an_event_is_a_sentence(kind, payload, said):
    assert sentence(kind, payload) == said


def test_json_is_exact_and_steers_no_terminal():
    import json

    evil = "\x1b[2J\x9b31m\u202e\u2028\x7f plain"
    text = json_text({"evil": evil})
    assert json.loads(text) == {"evil": evil}
    assert not set(text) & set("\x1b\x9b\u202e\u2028\x7f")


class Cell(Row, frozen=True):
    text: Annotated[str, column("Anything.")]
    number: Annotated[int, column("A number.")] = -1


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("@SUM(1)", "'@SUM(1)"),
        ("+1+1", "'+1+1"),
        ("-2+3", "'-2+3"),
        ("  =1", "'  =1"),
        ("\t=1", "'\t=1"),
        ("\uff1d1", "'\uff1d1"),
        ("-2.50", "-2.50"),
        ("+49", "+49"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_csv_has_no_formulas(text, written):
    _, line = csv_lines(Page(rows=[Cell(text=text)]), Cell, safe=False)
    assert next(csv.reader([line])) == [written, "-1"]


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "100 %"), (0.973, "97.3 %"), (0.0, "0 %"), (0.99999, "over 99.99 %"), (None, "-")]
)
def test_a_share_is_a_percentage(value, text):
    assert told(value, "share", NOW) == text

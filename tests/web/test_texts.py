"""Values as a page shows them: moments in words, names in one piece, long texts folded, nothing alive."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import pytest

from penstock.operations.declare import Page
from penstock.operations.fields import Row, column
from penstock.web.answers import NOTHING_YET, Answers, Facts, Table
from penstock.web.frame import begun, ended, folded, heading, moment, told
from tests.support.web import Client, Site

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)


class Reading(Row, frozen=True):
    """What a list shows."""

    name: Annotated[str, column("Its name.", show="reference")]
    changed: Annotated[float | None, column("How much.", heading="changed %")]
    by: Annotated[str, column("By whom.")]
    version: Annotated[int, column("A number that is a name.", show="reference")]
    why: Annotated[str, column("Why.", show="text")]


class Whole(Row, frozen=True):
    """What is known of one thing."""

    name: Annotated[str, column("Its name.")]
    largest_falls: Annotated[list[Reading], column("Rows.")]


def text_of(markup: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", markup))


@pytest.fixture(scope="session")
def still_browser(still_site: Site) -> Client:
    return still_site.browser()


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("none since 2026-10-12T06:05:03.928Z, so far", "none since 2026-10-12 06:05, so far"),
        ("between 2026-11-18T03:00:00Z and 2026-11-19T03:35:56.832Z", "between 2026-11-18 03:00 and 2026-11-19 03:35"),
        ("2026-10-27T07:00:00.000Z", "2026-10-27T07:00:00.000Z"),
        ("run 2026-10-27T07:00:00.000Z is authoritative", "run 2026-10-27T07:00:00.000Z is authoritative"),
        ("report stream/2026-10-27T07:00:00.000Z", "report stream/2026-10-27T07:00:00.000Z"),
        ("until 2026-99-99T99:99:99Z", "until 2026-99-99T99:99:99Z"),
    ],
)
def test_moments_in_a_sentence_are_told_to_the_minute_but_names_stay(sentence: str, shown: str):
    assert text_of(told(sentence)) == shown


def test_the_exact_moment_is_one_step_away_and_options_stay_whole():
    assert 'datetime="2026-10-12T06:05:03.928Z"' in told("since 2026-10-12T06:05:03.928Z")
    assert '<span class="nowrap">--machine</span>' in told("'penstock dead list --machine invoice'")


def test_a_very_long_text_is_folded_and_whole():
    short, long = "word " * 20, "word <b> " * 100
    assert "<details" not in folded(short)
    whole = folded(long)
    assert whole.startswith('<details class="fold"><summary>word')
    assert len(text_of(whole.partition("</summary>")[0])) < 320
    assert text_of(whole).count("word <b>") == 100
    assert "<b>" not in whole


def test_words_of_pages():
    assert heading("Runs, the newest first.") == "Runs, the newest first"
    assert [ended("no runs yet"), ended("none."), ended("why?")] == ["no runs yet.", "none.", "why?"]
    assert text_of(moment(NOW, NOW + timedelta(milliseconds=300))) == "now"
    assert text_of(moment(NOW, NOW + timedelta(seconds=3))) == "3 s ago"


def test_short_values_stand_in_one_line_and_long_names_have_room(still_site: Site):
    rows = [
        Reading(name="SKU-1000012", changed=66.6667, by="worker:77d8ae5dd4352937c650", version=1234567, why="w"),
        Reading(name="google_ads/1111111111/campaign_daily", changed=100.0, by="a" * 40, version=2, why="w " * 300),
    ]
    answers = Answers(still_site.frame(), NOW)
    (table,) = answers.blocks(Page(rows=rows, note="no more"))
    assert isinstance(table, Table)
    assert [kind for _, kind in table.rows[0]] == ["nowrap", "num", "nowrap", "nowrap", "muted"]
    assert [kind for _, kind in table.rows[1]] == ["name", "num", "", "nowrap", "muted"]
    assert [text_of(row[1][0]) for row in table.rows] == ["66.7", "100.0"]
    assert text_of(table.rows[0][3][0]) == "1234567", "a name has no separators"
    assert table.note == "No more."
    assert answers.table("", []).note == NOTHING_YET
    facts, falls = answers.blocks(Whole(name="x", largest_falls=rows))
    assert isinstance(facts, Facts)
    assert falls.title == "Largest falls"


def test_a_unit_is_named_once(still_browser: Client):
    text = still_browser.get("/units/order/acme/1").text
    assert '<h1 class="mono">order:acme/1</h1>' in text
    for name in ("unit", "status"):
        assert f">{name}</dt>" not in text


def test_what_is_known_of_one_thing_goes_along_to_operations_on_many(still_browser: Client):
    text = still_browser.get("/read/units/show?unit=order:acme/1").text
    assert "Act on it" in text
    assert "/do/units/park?units=order%3Aacme%2F1" in text


def test_long_values_have_wide_fields(still_browser: Client):
    text = still_browser.get(f"/read/units/why?unit=order:{'x' * 40}").text
    assert '<label class="field wide"' in text
    assert '<label class="field wide"' not in still_browser.get("/read/units/why").text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nobody holds it", "Nobody holds it"),
        ("don't know", "Don't know"),
        ("all", "All"),
        ("well, then", "Well, then"),
        ("order:acme/1 was new", "order:acme/1 was new"),
        ("penstock.toml: no such key", "penstock.toml: no such key"),
        ("tick-google runs", "tick-google runs"),
        ("", ""),
    ],
)
def test_a_sentence_begins_with_a_capital_unless_with_a_name(text: str, shown: str):
    assert begun(text) == shown


def test_a_very_long_text_is_shown_in_one_pass():
    text = f"{'x' * 40} 2026-11-18T03:00:00Z " * 5_000
    assert html.unescape(re.sub(r"<[^>]+>", "", told(text))).count("2026-11-18 03:00") == 5_000

"""What `penstock.toml` says of queries: what cannot be is refused, and what the documentation shows can be."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from penstock.lifecycles.queries.settings import QueriesSettings
from penstock.settings.reader import read_section

PAGE = Path(__file__).parents[3] / "docs" / "queries.md"
SHOWN = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
FEED = '[queries.feed_jsonl.feed]\nfolder = "feed"\n'


def _read(text):
    errors: list[str] = []
    given = tomllib.loads(text)["queries"]
    found = read_section(QueriesSettings, given, at=("queries",), folder=Path(), errors=errors, path_text="p.toml")
    return found, errors


def test_every_configuration_that_the_page_shows_is_valid():
    assert [_read(text)[1] for text in SHOWN] == [[], [], []]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[queries]\nhorizon = "999999d"', "horizon"),
        ('[queries]\noverlap = "999999d"', "overlap"),
        (FEED + '[queries.queries.a]\nclient = "feed"\nseed_from = 0001-01-01', "lies before 1900-01-01"),
    ],
)
def test_a_day_beyond_the_calendar_is_refused(text, said):
    (error,) = _read(text)[1]
    assert said in error

"""A class of settings: its types, what is said of each field, and what a declaration must not be."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from penstock.model.limits import Limit
from penstock.settings.scalars import span_text
from penstock.settings.shapes import fields_of, written
from penstock.settings.typed import Hours, LedgerAddress, Place, Secret, Settings, TimeZone, Url, says
from tests.settings.support import holder, one, read, wrong


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


def spans(value: Any) -> tuple[timedelta, ...]:
    if value != ["1d", "3d"]:
        raise ValueError("exactly two spans")
    return (timedelta(days=1), timedelta(days=3))


PLAIN = says("A setting.")
RIGHT: list[tuple[Any, Any, Any]] = [
    (Annotated[str, PLAIN], "a", "a"),
    (Annotated[str, says("", choices=["a", "b"])], "b", "b"),
    (Annotated[bool, PLAIN], True, True),
    (Annotated[int, PLAIN], 2**63 - 1, 2**63 - 1),
    (Annotated[int, says("", ge=1, le=3)], 3, 3),
    (Annotated[int, says("", choices=[1, 2])], 2, 2),
    (Annotated[float, PLAIN], 3, 3.0),
    (Annotated[float, says("", gt=0, lt=1)], 0.5, 0.5),
    (Annotated[Decimal, PLAIN], "12.50", Decimal("12.50")),
    (Annotated[Decimal, PLAIN], 0.005, Decimal("0.005")),
    (Annotated[timedelta, PLAIN], "90m", timedelta(minutes=90)),
    (Annotated[timedelta, says("", ge=timedelta())], "0s", timedelta()),
    (Annotated[timedelta | None, says("", never=True)], "never", None),
    (Annotated[timedelta | None, says("", never=True)], "1d", timedelta(days=1)),
    (Annotated[date, PLAIN], date(2026, 1, 31), date(2026, 1, 31)),
    (Annotated[date, PLAIN], "2026-01-31", date(2026, 1, 31)),
    (Annotated[datetime, PLAIN], "2026-01-31T03:00:00Z", datetime(2026, 1, 31, 3, tzinfo=UTC)),
    (Annotated[time, PLAIN], "03:30", time(3, 30)),
    (Annotated[time, PLAIN], time(3, 30), time(3, 30)),
    (Annotated[Hours, PLAIN], "22:00-06:00", "22:00-06:00"),
    (Annotated[TimeZone, PLAIN], "Europe/Madrid", "Europe/Madrid"),
    (Annotated[Url, PLAIN], "https://api.example.com/v1", "https://api.example.com/v1"),
    (Annotated[Url, PLAIN], "http://127.0.0.1:8080", "http://127.0.0.1:8080"),
    (Annotated[LedgerAddress, PLAIN], "postgresql://me@h/x", "postgresql://me@h/x"),
    (Annotated[LedgerAddress, PLAIN], "sqlite:///x.db", "sqlite:////there/x.db"),
    (Annotated[Place, PLAIN], "raw", "/there/raw"),
    (Annotated[Place, PLAIN], "s3://bucket/raw", "s3://bucket/raw"),
    (Annotated[Path, PLAIN], "raw", Path("/there/raw")),
    (Annotated[Path, PLAIN], "/raw", Path("/raw")),
    (Annotated[Secret, PLAIN], {"env": "TOKEN"}, Secret("env", "TOKEN")),
    (Annotated[Secret, PLAIN], {"file": "token"}, Secret("file", "/there/token")),
    (Annotated[Colour, PLAIN], "red", Colour.RED),
    (Annotated[Literal["a", "b"], PLAIN], "b", "b"),
    (Annotated[list[int], PLAIN], [1, 2], [1, 2]),
    (Annotated[tuple[str, ...], PLAIN], [], ()),
    (Annotated[frozenset[str], PLAIN], ["a"], frozenset({"a"})),
    (Annotated[dict[str, TimeZone], PLAIN], {"1-2": "UTC"}, {"1-2": "UTC"}),
    (Annotated[dict[str, Any], PLAIN], {"a": {"b": [1]}}, {"a": {"b": [1]}}),
    (
        Annotated[dict[str, str | Secret], PLAIN],
        {"region": "eu", "key": {"file": "k"}},
        {"region": "eu", "key": Secret("file", "/there/k")},
    ),
    (
        Annotated[tuple[Limit, ...], PLAIN],
        [{"name": "requests", "rate": 2, "burst": 40}],
        (Limit("requests", 2.0, 40.0),),
    ),
    (Annotated[tuple[timedelta, ...], says("", reads=spans)], ["1d", "3d"], (timedelta(days=1), timedelta(days=3))),
]


@pytest.mark.parametrize(("kind", "given", "value"), RIGHT, ids=range(len(RIGHT)))
def test_a_value_is_read_as_its_type_says(kind, given, value):
    assert one(kind, given) == value


@pytest.mark.parametrize(("kind", "given"), [(kind, given) for kind, given, _ in RIGHT[:-1]])
def test_what_was_read_is_written_as_it_is_read_again(kind, given):
    value = one(kind, given)
    again = written(holder(kind)(setting=value))
    assert one(kind, again["setting"]) == value


WRONG: list[tuple[Any, list[Any], str]] = [
    (Annotated[str, PLAIN], ["", "  ", 7, ["x"], "a\0b", "\ud800"], "must be text"),
    (Annotated[bool, PLAIN], [1, "true"], "must be true or false"),
    (Annotated[int, PLAIN], [True, 1.0, "1", 2**63, -(2**64), 10**400], "must be a whole number"),
    (Annotated[int, says("", ge=1, le=1_000)], [0, 1_001], "must be a whole number from 1 to 1,000"),
    (Annotated[int, says("", ge=1)], [0], "must be a whole number of at least 1"),
    (Annotated[int, says("", gt=1, lt=5)], [1, 5], "must be a whole number above 1 and below 5"),
    (Annotated[float, PLAIN], [True, "1", float("nan"), float("inf"), 10**400], "must be a number"),
    (Annotated[Decimal, PLAIN], ["", "x", "NaN", "Infinity", float("nan"), 10**400, True, []], "must be a decimal"),
    (
        Annotated[timedelta, says("", ge=timedelta(seconds=1))],
        ["", 5, "5", "5w", "0s", "5 minutes", "9" * 5_000 + "d"],
        'must be a span of time, for example "5m"',
    ),
    (
        Annotated[timedelta, says("", ge=timedelta(minutes=1), le=timedelta(hours=1))],
        ["59s", "2h"],
        'must be a span of time from 1m to 1h, for example "5m"',
    ),
    (Annotated[timedelta | None, says("", never=True)], ["ever", 3], 'must be a span of time, for example "5m", or "n'),
    (Annotated[date, PLAIN], ["today", 3, datetime(2026, 1, 1, tzinfo=UTC)], "must be a date"),
    (Annotated[datetime, PLAIN], ["2026-01-01T00:00:00", date(2026, 1, 1), 3], "must be an instant with its offset"),
    (Annotated[time, PLAIN], ["25:00", 3, "03:00:01", time(3, 0, 1), "03:00Z"], "must be a time of day"),
    (Annotated[Hours, PLAIN], ["03:00", 3, "a-b", "03:00-03:00"], "must be two different times of day"),
    (Annotated[TimeZone, PLAIN], ["", 3, "../etc/passwd", "Nowhere", "x" * 5_000], "must be a time zone"),
    (Annotated[TimeZone, PLAIN], ["europe/madird"], 'did you mean "Europe/Madrid"?'),
    (Annotated[Url, PLAIN], ["", 3, "ftp://x", "http://example.com", "https://"], "must be the address of an API"),
    (Annotated[LedgerAddress, PLAIN], ["", 3, "sqlite:///", "sqlite://x", "mysql://h"], "must be sqlite:///FILE or"),
    (Annotated[Secret, PLAIN], ["hunter2", {"env": 7}, {"vault": "x"}, {"env": "A", "file": "b"}], "a reference to"),
    (Annotated[Colour, PLAIN], ["green", 1, [], {}], "must be one of red, blue"),
    (Annotated[Literal["a", "b"], PLAIN], ["c", 1, ["a"]], "must be one of a, b"),
    (Annotated[int, says("", choices=[0, 1])], [True, 2], "must be one of 0, 1"),
    (Annotated[list[int], PLAIN], [1, {"a": 1}], "must be a list"),
    (Annotated[list[int], says("", filled=True)], [[]], "must be a list that is not empty"),
    (Annotated[dict[str, int], PLAIN], [1, []], "must be a table; each value is a whole number"),
    (
        Annotated[tuple[Limit, ...], PLAIN],
        [
            *([{"name": "a", "rate": rate, "burst": 1}] for rate in (0, True, float("nan"), "1", 10**400)),
            *([{"name": "a", "rate": 1, "burst": burst}] for burst in (0, 0.5, "1", float("inf"))),
            *([{"name": "a", "rate": 1, "burst": 5, "cost": cost}] for cost in (0, 6, "1")),
            [{"name": "a", "rate": 1, "burst": 5, "price": 1}],
            [{"name": " ", "rate": 1, "burst": 5}],
            [3],
        ],
        "must be a table such as",
    ),
    (Annotated[tuple[timedelta, ...], says("", reads=spans)], [["1d"], 3], "must be exactly two spans"),
]


@pytest.mark.parametrize(("kind", "given", "told"), [(k, g, t) for k, values, t in WRONG for g in values])
def test_anything_else_is_one_short_line_that_says_what_is_allowed(kind, given, told):
    line = wrong(kind, given)
    assert line.startswith("p.toml: x.setting")
    assert told in line
    assert len(line) < 700


class Shadowed(Settings):
    """Its annotations are evaluated late, where a field may have the name of a type."""

    date: Annotated[date | None, PLAIN] = None
    time: Annotated[time, PLAIN] = time(3)
    offsets: Annotated[
        tuple[timedelta, ...], says("", reads=spans, writes=lambda value: [span_text(span) for span in value])
    ] = (timedelta(days=1),)
    factory: Annotated[dict[str, int], PLAIN] = {}


def test_names_in_annotations_are_those_of_the_module():
    assert written(Shadowed(date=date(2026, 1, 31))) == {
        "date": date(2026, 1, 31),
        "time": "03:00",
        "offsets": ["1d"],
        "factory": {},
    }
    assert read(Shadowed, {"factory": {"a": 1}}).factory == {"a": 1}


def test_settings_are_frozen_and_given_by_name():
    class Some(Settings):
        later: Annotated[int, PLAIN] = 1
        first: Annotated[int, PLAIN]

    some = Some(first=3)
    with pytest.raises(AttributeError):
        some.first = 4  # type: ignore[misc]
    with pytest.raises(TypeError):
        Some(3)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Some()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (int, "says nothing"),
        (Annotated[int, "a note"], "says nothing"),
        (Annotated[complex, PLAIN], "cannot be read"),
        (Annotated[tuple[int, str], PLAIN], "of one type"),
        (Annotated[int | str, PLAIN], "cannot be read"),
        (Annotated[int, says("", reads=lambda value: value)], "takes None"),
    ],
)
def test_a_declaration_that_cannot_be_read_names_its_field(kind, told):
    with pytest.raises(TypeError, match=rf"Holder\.setting.*{told}"):
        fields_of(holder(kind))


@pytest.mark.parametrize("text", ["1s", "90s", "5m", "36h", "7d", "36500d"])
def test_a_span_is_written_in_its_largest_whole_unit(text):
    value = one(Annotated[timedelta, PLAIN], text)
    assert one(Annotated[timedelta, PLAIN], span_text(value)) == value


def test_a_span_that_no_file_can_have_is_no_default():
    with pytest.raises(ValueError, match="whole number of seconds"):
        span_text(timedelta(milliseconds=1_500))


def test_importing_them_is_light():
    code = "import penstock.settings.file, penstock.settings.sample, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    heavy = {"sqlalchemy", "alembic", "rich", "aiohttp", "asyncio", "structlog", "click"}
    assert "msgspec" in loaded
    assert not heavy & {name.partition(".")[0] for name in loaded}

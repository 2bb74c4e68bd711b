"""Reading a section: all errors at once, each with its key, its value and what is allowed; no secret in any of them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import UsageError
from penstock.model.inert import inert
from penstock.settings.reader import read_section, shown, shown_key
from penstock.settings.secret import WANTED
from penstock.settings.typed import Place, Secret, Settings, TimeZone, says
from tests.settings.support import errors_of, read

A_ZONE = 'a time zone, for example "Europe/Madrid" or "UTC"'
A_NAME = "a name of 1 to 100 characters, without control characters and without spaces around it"
CANARY = "canary-7f3a-never-shown"


class Retry(Settings):
    limit: Annotated[int, says("How often.", ge=1)] = 3
    delay: Annotated[timedelta, says("How long between.")] = timedelta(seconds=30)


class Account(Settings):
    profile_id: Annotated[str, says("The profile.")]
    time_zone: Annotated[TimeZone, says("Where its days begin.")] = TimeZone("UTC")
    token: Annotated[Secret | None, says("Its token.")] = None
    retry: Annotated[Retry | None, says("Its own patience.")] = None


class Hook(Settings):
    url: Annotated[str, says("Where it goes.")]


class ReportSettings(Settings):
    poll: Annotated[timedelta, says("How often a report is checked.", ge=timedelta(seconds=1))] = timedelta(minutes=5)
    create_limit: Annotated[int, says("Failed creates per offset.", ge=1, le=1_000)] = 3
    client_secret: Annotated[Secret | None, says("The client's secret.")] = None
    folder: Annotated[Place, says("Where data lies.")] = Place("raw")
    retry: Annotated[Retry, says("How failures are retried.")] = Retry(limit=5)
    accounts: Annotated[dict[str, Account], says("Accounts, by name.", examples=["acme"])] = {}
    zones: Annotated[dict[str, TimeZone], says("Time zones, by customer.")] = {}
    hooks: Annotated[tuple[Hook, ...], says("Whom to tell.")] = ()

    def __post_init__(self) -> None:
        if self.create_limit == 13:
            raise ValueError("create_limit is unlucky\nand nobody may poll either")
        if self.create_limit == 14:
            raise UsageError("create_limit comes from the wrong place")


def test_what_is_left_out_is_its_default_and_a_path_starts_at_the_file():
    assert read(ReportSettings, {}) == ReportSettings(folder=Place("/there/raw"))


def test_named_and_nested_sections_are_read_into_theirs():
    found = read(
        ReportSettings,
        {
            "retry": {"delay": "1m"},
            "accounts": {
                "acme": {"profile_id": "1", "token": {"file": "t"}, "retry": {"limit": 9}},
                "b b": {"profile_id": "2"},
            },
            "hooks": [{"url": "a"}, {"url": "b"}],
        },
    )
    assert found.retry == Retry(limit=5, delay=timedelta(minutes=1))
    assert found.accounts == {
        "acme": Account(profile_id="1", token=Secret("file", "/there/t"), retry=Retry(limit=9)),
        "b b": Account(profile_id="2"),
    }
    assert found.hooks == (Hook(url="a"), Hook(url="b"))


def test_all_errors_come_at_once():
    given: dict[str, Any] = {
        "pol": "5m",
        "poll": "5 minutes",
        "create_limit": 0,
        "client_secret": CANARY,
        "retry": {"limit": "3", "dely": "1s"},
        "accounts": {"acme": {"time_zone": "Europe/Madrit"}, "": {"profile_id": "x"}, "b": 3},
        "zones": {"1": "UTC", "2": "Nowhere"},
        "hooks": [{"url": "a"}, {}, 3],
    }
    assert errors_of(ReportSettings, given, "reports") == [
        "p.toml: reports.pol is not a setting; did you mean reports.poll?",
        'p.toml: reports.poll = "5 minutes" must be a span of time, for example "5m"',
        "p.toml: reports.create_limit = 0 must be a whole number from 1 to 1,000",
        f"p.toml: reports.client_secret = (not shown) must be {WANTED}",
        "p.toml: reports.retry.dely is not a setting; did you mean reports.retry.delay?",
        'p.toml: reports.retry.limit = "3" must be a whole number of at least 1',
        "p.toml: reports.accounts.acme.profile_id is missing; it must be text",
        f'p.toml: reports.accounts.acme.time_zone = "Europe/Madrit" must be {A_ZONE}; did you mean "Europe/Madrid"?',
        f'p.toml: reports.accounts."": "" must be {A_NAME}',
        "p.toml: reports.accounts.b = (not shown) must be a table, [reports.accounts.b]",
        f'p.toml: reports.zones.2 = "Nowhere" must be {A_ZONE}',
        "p.toml: reports.hooks[1].url is missing; it must be text",
        "p.toml: reports.hooks[2] = 3 must be a table",
    ]


def test_a_name_that_resembles_none_is_told_what_there_is():
    assert errors_of(Retry, {"zzz": 1}) == ["p.toml: x.zzz is not a setting; [x] takes delay, limit"]


@pytest.mark.parametrize("given", [3, "x", [], None, [{"poll": "5m"}]])
def test_a_section_is_a_table(given):
    (error,) = errors_of(ReportSettings, given)
    assert "must be a table, [x]" in error


def test_what_is_wrong_across_fields_is_told_line_by_line_with_the_section():
    assert errors_of(ReportSettings, {"create_limit": 13}) == [
        "p.toml: x: create_limit is unlucky",
        "p.toml: x: and nobody may poll either",
    ]
    assert errors_of(ReportSettings, {"create_limit": 14}) == ["p.toml: x: create_limit comes from the wrong place"]


def test_a_section_with_an_error_is_not_judged_across_its_fields():
    assert len(errors_of(ReportSettings, {"create_limit": 13, "poll": 3})) == 1


SECRET_PLACES: list[dict[str, Any]] = [
    {"client_secret": CANARY},
    {"client_secret": {"env": 7, "value": CANARY}},
    {"client_secret": [CANARY]},
    {"client_secrt": CANARY},
    {"accounts": CANARY},
    {"accounts": [{"token": CANARY}]},
    {"accounts": {"a": {"profile_id": "x", "token": CANARY}}},
    {"accounts": {"a": [{"token": CANARY}]}},
    {"accounts": {"a": {"profile_id": "x", "passwort": CANARY}}},
    {"folder": f"s3://me:{CANARY}@bucket/x"},
    {"poll": f"https://me:{CANARY}@host/x"},
    {"poll": f"https://host/x?token={CANARY}"},
]


@pytest.mark.parametrize("wrong", SECRET_PLACES, ids=range(len(SECRET_PLACES)))
def test_a_secret_in_the_file_is_refused_and_not_repeated(wrong):
    errors = errors_of(ReportSettings, wrong)
    assert errors
    assert CANARY not in "\n".join(errors)


def test_a_private_value_is_not_shown():
    class Store(Settings):
        options: Annotated[dict[str, int], says("How it is reached.", private=True)] = {}

    (error,) = errors_of(Store, {"options": {"key": CANARY}})
    assert "x.options.key = (not shown) must be a whole number" in error


@pytest.mark.parametrize("name", ["", " a", "a ", "a\n", "\x1b[31m", "x" * 101, "\u202eabc", "\ud800"])
def test_a_name_is_short_and_safe_to_show(name):
    (error,) = errors_of(ReportSettings, {"accounts": {name: {"profile_id": "1"}}})
    assert "must be a name of 1 to 100 characters" in error
    assert error.isprintable()
    assert len(error) < 700


def test_what_is_shown_is_short_and_inert():
    assert shown("\x1b[31m\u202e\ud800" + "x" * 10_000).isprintable()
    assert len(shown(["x" * 10_000])) < 320
    assert shown_key(("a", "b c", "d\x1b", 3, "é")) == 'a."b c"."d\\u001b"[3].é'
    assert len(shown_key(("a",) * 10_000)) < 200


def test_what_comes_before_the_file_is_judged_by_its_own_name():
    errors: list[str] = []
    over: dict[tuple[str, ...], tuple[str, str]] = {("x", "create_limit"): ("--limit", "7")}
    over["x", "folder"] = "FOLDER", "here"
    found = read_section(
        ReportSettings, {"create_limit": 5}, at=("x",), folder=Path("/there"), errors=errors, path_text="p", over=over
    )
    assert found is not None
    assert (found.create_limit, found.folder) == (7, "here")
    over = {("x", "create_limit"): ("--limit", "0"), ("x", "client_secret"): ("SECRET", CANARY)}
    assert None is read_section(
        ReportSettings, {"create_limit": 5}, at=("x",), folder=None, errors=errors, path_text="p", over=over
    )
    assert errors[0] == '--limit = "0" must be a whole number from 1 to 1,000'
    assert "SECRET = (not shown)" in errors[1]


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.datetimes() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
_NAMES = st.sampled_from(
    ["poll", "create_limit", "client_secret", "folder", "retry", "accounts", "zones", "hooks", "x"]
)


@given(st.dictionaries(_NAMES, _ANY, max_size=6))
def test_anything_is_settings_or_lines_that_can_be_shown(anything):
    errors: list[str] = []
    found = read_section(ReportSettings, anything, at=("x",), folder=None, errors=errors, path_text="p.toml")
    assert (found is None) == bool(errors)
    assert all(error == inert(error) and len(error) < 1_000 for error in errors)

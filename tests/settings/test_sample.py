"""What is made of declarations alone: the commented file reads back as the defaults, and the reference has them all."""

from __future__ import annotations

import re
import tomllib
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.limits import GateLimits, Limit
from penstock.settings.file import KernelSettings, load
from penstock.settings.sample import reference, sample, toml
from penstock.settings.typed import Hours, Place, Secret, Settings, TimeZone, Url, says
from tests.settings.support import made, one

PLAIN = says("A setting.")
HERE = Path("p.toml")


class Retry(Settings):
    limit: Annotated[int, says("How often.", ge=1)] = 3
    delay: Annotated[timedelta, says("How long between.")] = timedelta(seconds=30)


class Account(Settings):
    profile_id: Annotated[str, says("The profile.", examples=["1234567890123"])]
    region: Annotated[Literal["NA", "EU"], says("Where it is served.")] = "NA"
    token: Annotated[Secret | None, says("Its token.")] = None
    retry: Annotated[Retry | None, says("Its own patience.")] = None


class Reports(Settings):
    poll: Annotated[timedelta, says("How often a report is checked; a | b = c.")] = timedelta(minutes=5)
    keep: Annotated[timedelta | None, says("How long it is kept.", never=True)] = None
    client_secret: Annotated[Secret | None, says("The client's secret.")] = None
    zones: Annotated[dict[str, TimeZone], says("Time zones, by customer.", examples={"123-4": "UTC"})] = {}
    hooks: Annotated[tuple[str, ...], says("Whom to tell.", examples=[["a b"]])] = ()
    starts: Annotated[date | None, says("When it begins.")] = None
    retry: Annotated[Retry, says("How failures are retried.")] = Retry(limit=5)
    accounts: Annotated[dict[str, Account], says("Accounts, by name.", examples=["acme", "b b"])] = {}


class Strict(Settings):
    customer: Annotated[str, says("Whose it is.")]


def uncommented(content: str) -> str:
    return re.sub(r"^#(?! )", "", content, flags=re.MULTILINE)


def read_back(content: str, kinds: dict[str, type[Settings]]) -> Any:
    return load(HERE, kinds, raw=tomllib.loads(content))


def test_the_sample_works_as_it_is_and_changes_nothing():
    kinds: dict[str, type[Settings]] = {"reports": Reports, "strict": Strict}
    nothing = load(HERE, kinds, raw={})
    assert read_back(sample(KernelSettings, kinds), kinds) == nothing
    chosen = read_back(sample(KernelSettings, kinds, on=["reports"]), kinds)
    assert chosen.kernel == nothing.kernel
    assert chosen.sections == {"reports": Reports()}


def test_every_line_of_the_sample_works_when_it_is_uncommented():
    kinds: dict[str, type[Settings]] = {"reports": Reports, "strict": Strict}
    found = read_back(uncommented(sample(KernelSettings, kinds)), kinds)
    assert found.gate_limits() == (GateLimits("accounting", (Limit("requests", 2.0, 40),), 10),)
    assert sorted(found.kernel.schedules) == ["nightly-prune", "sweep"]
    assert found.kernel.prune == {"invoice": timedelta(days=90)}
    assert found.kernel.lifecycles == ("shop.contacts:lifecycle",)
    reports = found.sections["reports"]
    assert reports.client_secret == Secret("env", "REPORTS_CLIENT_SECRET")
    assert (reports.zones, reports.hooks, reports.retry) == ({"123-4": "UTC"}, ("a b",), Retry(limit=5))
    token = Secret("env", "REPORTS_ACCOUNTS_B_B_TOKEN")
    assert reports.accounts["b b"] == Account(profile_id="1234567890123", token=token, retry=Retry())
    assert found.sections["strict"] == Strict(customer="…")


def test_the_sample_says_of_each_lifecycle_what_it_is_and_switches_on_what_was_chosen():
    kinds: dict[str, type[Settings]] = {"reports": Reports, "strict": Strict}
    content = sample(KernelSettings, kinds, on=["strict"], about={"reports": "Report datasets."})
    assert "# Report datasets.\n#[reports]\n" in content
    assert "\n[strict]\n" in content
    assert "# Whose it is. It must be given.\n#customer =" in content


def test_the_reference_shows_every_setting_with_what_it_takes_and_its_default():
    told = reference({"reports": Reports})
    assert "| `ledger.url` | sqlite:///FILE or" in told
    assert '| `"sqlite:///penstock.db"` | `--ledger`, `PENSTOCK_LEDGER` | Where the ledger is. |' in told
    assert "| `gates.*.accounts.*.max_in_flight` | a whole number from 1 to 100,000 |  |" in told
    assert "| `schedules.*.settings` | a table |" in told
    assert "| `prune.*` | a span of time" in told
    assert "### [reports]" in told
    assert '| `"5m"` |  | How often a report is checked; a \\| b = c. |' in told
    assert '| `reports.keep` | a span of time, for example "5m", or "never" | `"never"` |' in told
    assert "| `reports.retry.limit` | a whole number of at least 1 | `5` |" in told
    assert "| `reports.accounts.*.profile_id` | text | must be given |" in told
    assert all(line.replace("\\|", "").count("|") == 6 for line in told.splitlines() if line.startswith("|"))


_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20).filter(
    lambda text: text.strip() and "://" not in text
)
_DAYS = st.builds("{}d".format, st.integers(1, 36_500))
_SPAN = st.builds("{}{}".format, st.integers(1, 876_000), st.sampled_from("smh")) | _DAYS
_ZONE = st.sampled_from(["UTC", "Europe/Madrid"])
_TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, _TEXT),
    (bool, st.booleans()),
    (int, st.integers(-(2**63) + 1, 2**63 - 1)),
    (float, st.floats(-1e15, 1e15)),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False, places=2, max_value=10**9).map(str)),
    (timedelta, _SPAN),
    (date, st.dates()),
    (datetime, st.sampled_from(["2026-01-31T03:00:00.123456+02:00", "0001-01-01T00:00:00Z"])),
    (time, st.times().map(lambda moment: moment.strftime("%H:%M"))),
    (Hours, st.sampled_from(["22:00-06:00"])),
    (TimeZone, _ZONE),
    (Url, st.sampled_from(["https://api.example.com/a?b=c", "http://localhost:1"])),
    (Place, st.sampled_from(["/raw", "s3://bucket/x"])),
    (Path, st.sampled_from(["/raw", "/a b/'c\"\\"])),
    (Secret, st.sampled_from([{"env": "A"}, {"file": "/a b"}])),
    (Literal["a b", "c'\"d"], st.sampled_from(["a b", "c'\"d"])),
    (tuple[str, ...], st.lists(_TEXT, max_size=3)),
    (list[timedelta], st.lists(_SPAN, max_size=3)),
    (
        dict[str, TimeZone],
        st.dictionaries(_TEXT.filter(lambda text: text.isprintable() and text == text.strip()), _ZONE, max_size=3),
    ),
    (
        tuple[Limit, ...],
        st.just([{"name": "a", "rate": 0.5, "burst": 2.5, "cost": 2}, {"name": "b\n", "rate": 1, "burst": 1}]),
    ),
]


@st.composite
def _kinds(draw: st.DrawFn, nested: bool = True) -> type[Settings]:
    """A class of settings with any types and any defaults."""
    annotations, defaults = {}, {}
    for place in range(draw(st.integers(1, 5))):
        kind, values = draw(st.sampled_from(_TYPES))
        said = says(draw(st.sampled_from(["A setting.", "One = two # [x].", "Long " * 60])))
        annotations[f"field_{place}"] = Annotated[kind, said]
        defaults[f"field_{place}"] = one(Annotated[kind, said], draw(values))
    if nested and draw(st.booleans()):
        inner = draw(_kinds(nested=False))
        annotations["inner"] = Annotated[inner, PLAIN]
        defaults["inner"] = inner()
        annotations["named"] = Annotated[dict[str, inner], PLAIN]  # type: ignore[valid-type]
        defaults["named"] = {}
    # Only an empty table may be written as a default; others are made anew each time.
    fixed = {name: _default(value) for name, value in defaults.items()}
    return made("Any", annotations, fixed)


def _default(value: Any) -> Any:
    return msgspec.field(default_factory=lambda: value) if isinstance(value, dict | list) else value


@settings(max_examples=150)
@given(_kinds())
def test_any_settings_are_read_back_from_their_sample_as_their_defaults(kind):
    content = sample(KernelSettings, {"mine": kind}, on=["mine"])
    assert load(None, {"mine": kind}, raw=tomllib.loads(content)).sections == {"mine": kind()}
    found = load(None, {"mine": kind}, raw=tomllib.loads(uncommented(content))).sections["mine"]
    for name in (name for name in kind.__struct_fields__ if name.startswith("field")):
        assert getattr(found, name) == getattr(kind(), name)
    assert reference({"mine": kind}).count("| `mine.field_0` |") == 1


@given(st.dictionaries(st.text(max_size=5), _TEXT | st.floats(allow_nan=False) | st.integers() | st.booleans()))
def test_any_value_is_written_as_toml_reads_it(value):
    assert tomllib.loads(f"x = {toml(value)}") == {"x": value}

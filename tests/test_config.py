"""`penstock.toml`: all errors at once, one order of precedence, secrets only as references."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.limits import GateLimits, Limit, limits_of
from penstock.settings import config, redaction
from penstock.settings.config import SETTINGS, ConfigError, read, validate
from penstock.settings.declarations import reference, sample
from penstock.settings.setting import (
    Secret,
    Setting,
    age,
    hours,
    ledger_address,
    limits,
    moments,
    secret,
    span,
    text,
    zone,
)

CANARY = "canary-7f3a-never-shown"
TOKEN = Setting("flows.*.token", secret, None, "A token.", examples={"orders": {"env": "ORDERS_TOKEN"}})
WITH_SECRET = (*SETTINGS, TOKEN)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What a test reveals is no secret of the next one."""
    values, patterns = set(redaction._values), list(redaction.PATTERNS)
    yield
    redaction._values.clear()
    redaction._values.update(values)
    redaction.PATTERNS[:] = patterns


def load(path: Path, **wishes):
    return validate(config.read(path), path, **wishes)


def written(folder: Path, content: str) -> Path:
    path = folder / "penstock.toml"
    path.write_text(content)
    return path


def errors(raw, **wishes) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        validate(raw, Path("p.toml"), **wishes)
    return str(raised.value).splitlines()


def uncommented(content: str) -> str:
    lines = content.splitlines()
    return "\n".join(line.removeprefix("# ") if " = " in line or line.startswith("# [") else line for line in lines)


def test_the_sample_works_as_it_is_and_changes_nothing(tmp_path):
    assert load(written(tmp_path, sample())).values == load(written(tmp_path, "")).values


def test_every_line_of_the_sample_works_when_it_is_uncommented(tmp_path):
    found = load(written(tmp_path, uncommented(sample(WITH_SECRET))), settings=WITH_SECRET)
    assert found["worker.concurrency"] == 1_000
    assert found.providers() == (GateLimits("accounting", (Limit("requests", 2.0, 40),), 10),)
    assert found.section("flows") == {"orders": {"token": Secret("env", "ORDERS_TOKEN")}}
    assert sorted(found.section("schedules")) == ["nightly-prune", "sweep"]
    assert found.prune() == {"invoice": timedelta(days=90)}


def test_the_sample_and_the_reference_show_every_setting():
    shown, told = sample(WITH_SECRET), reference(WITH_SECRET)
    for setting in WITH_SECRET:
        assert f"| `{setting.key}` |" in told
        if "*" not in setting.parts or setting.examples:
            assert f"# {setting.help}\n" in shown


def test_the_sample_names_the_program_it_was_written_for():
    assert '\napp = "mine:app"\n' in sample(app="mine:app")


def test_all_errors_come_at_once_each_with_file_key_value_and_what_is_allowed(tmp_path):
    path = written(tmp_path, '[ledger]\nurll = "x"\n[worker]\nconcurrency = 0\n[log]\nlevel = "loud"\n')
    with pytest.raises(ConfigError) as raised:
        load(path)
    assert str(raised.value).splitlines() == [
        f"{path}: ledger.urll is not a setting; did you mean ledger.url?",
        f'{path}: log.level = "loud" is not allowed; it is one of debug, info, warning, error',
        f"{path}: worker.concurrency = 0 is not allowed; it is a whole number from 1 to 100,000",
    ]


def test_errors_of_the_file_the_environment_and_the_options_come_together():
    found = errors(
        {"worker": {"concurrency": 0}},
        given={"ledger.url": "mysql://x"},
        environment={"PENSTOCK_LOG": "loud"},
        errors=["one from elsewhere"],
    )
    assert [line.partition(" is not allowed")[0] for line in found] == [
        '--ledger = "mysql://x"',
        'PENSTOCK_LOG = "loud"',
        "one from elsewhere",
        "p.toml: worker.concurrency = 0",
    ]


def test_an_option_comes_before_the_environment_before_the_file_before_the_default():
    raw, environment, given = {"log": {"level": "error"}}, {"PENSTOCK_LOG": "warning"}, {"log.level": "debug"}
    assert validate({})["log.level"] == "info"
    assert validate(raw)["log.level"] == "error"
    assert validate(raw, environment=environment)["log.level"] == "warning"
    assert validate(raw, environment=environment, given=given)["log.level"] == "debug"
    assert validate(raw, environment={"PENSTOCK_LOG": ""}, given={"log.level": None})["log.level"] == "error"


def test_a_number_in_the_environment_is_a_number():
    assert validate({}, environment={"PENSTOCK_CONCURRENCY": "7"})["worker.concurrency"] == 7


@pytest.mark.parametrize("content", ["[ledger", "a = ", "\x00", "[a]\n[a]\n"])
def test_what_is_not_toml_is_one_clear_line(tmp_path, content):
    with pytest.raises(ConfigError, match="is not TOML"):
        load(written(tmp_path, content))


@pytest.mark.parametrize(
    "content",
    [
        "a = " + "[" * 100_000,
        "a = " + "{a=" * 3_000,
        "a = " + "9" * 5_000,
        "[ledger]\nurl = 0x" + "f" * 5_000,
        "[worker]\nslots = 0x" + "f" * 5_000,
        ".".join(["a"] * 3_000) + " = 1",
        "[providers.a]\nlimits = [{ name = 'x', rate = 0x" + "f" * 500 + ", burst = 1 }]",
        "[schedules.x]\njob = 'a'\nevery = '" + "9" * 5_000 + "d'",
        "[prune]\nreport = 0x" + "f" * 5_000,
    ],
    ids=range(9),
)
@pytest.mark.parametrize("strangers", [False, True])
def test_no_file_is_too_long_or_too_deep_for_a_clear_error(tmp_path, content, strangers):
    path = tmp_path / "penstock.toml"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        validate(read(path), path, strangers=strangers)
    assert len(str(caught.value)) < 1_000


@settings(max_examples=100)
@given(st.text(alphabet="[]{}=.,#'\"\n 019xaeTZ:+-_\\\U0001f600", max_size=60))
def test_any_text_is_a_configuration_or_a_clear_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "penstock.toml"
    path.write_text(content)
    with contextlib.suppress(ConfigError):
        validate(read(path), path)


def test_a_number_without_end_in_the_environment_is_a_clear_error():
    with pytest.raises(ConfigError, match="PENSTOCK_CONCURRENCY"):
        validate({}, environment={"PENSTOCK_CONCURRENCY": "9" * 5_000})


def test_a_missing_file_says_how_to_get_one(tmp_path):
    with pytest.raises(ConfigError, match="penstock init"):
        config.read(tmp_path / "penstock.toml")


def test_a_file_is_found_by_its_option_by_the_environment_or_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert config.find(None, {}) is None
    written(tmp_path, "")
    assert config.find(None, {}) == Path("penstock.toml")
    assert config.find(None, {"PENSTOCK_CONFIG": "other.toml"}) == Path("other.toml")
    assert config.find(Path("mine.toml"), {"PENSTOCK_CONFIG": "other.toml"}) == Path("mine.toml")


def test_a_relative_path_in_the_file_starts_at_the_file(tmp_path):
    path = written(tmp_path, '[ledger]\nurl = "sqlite:///data/ledger.db"\npassword = { file = "secret" }\n')
    found = load(path)
    assert found["ledger.url"] == f"sqlite:///{tmp_path}/data/ledger.db"
    assert found["ledger.password"] == Secret("file", f"{tmp_path}/secret")
    assert load(path, given={"ledger.url": "sqlite:///x.db"})["ledger.url"] == "sqlite:///x.db"
    absolute = written(tmp_path, '[ledger]\nurl = "sqlite:////data/ledger.db"\n')
    assert load(absolute)["ledger.url"] == "sqlite:////data/ledger.db"


def test_the_version_follows_the_settings_and_nothing_else(tmp_path):
    one = validate({})
    assert one.version == validate({"log": {"level": "info"}}).version
    assert one.version != validate({"log": {"level": "debug"}}).version
    assert one.version != validate({}, given={"log.level": "debug"}).version
    assert one.version != validate({"schedules": {"a": {"job": "x", "every": "5m"}}}).version


def test_a_section_that_nobody_declares_is_left_to_those_who_load_the_program():
    raw = {"flows": {"orders": {"token": 1}}, "log": {"levle": "info"}}
    assert errors(raw, strangers=True) == ["p.toml: log.levle is not a setting; did you mean log.level?"]
    assert len(errors(raw)) == 2


def test_a_misspelt_name_is_put_right_below_a_name_of_the_files_own():
    found = errors({"schedules": {"nightly": {"job": "x", "evry": "5m"}}})
    assert "p.toml: schedules.nightly.evry is not a setting; did you mean schedules.nightly.every?" in found


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ({"every": "5m"}, "schedules.s.job is missing; it is text"),
        ({"job": "j"}, "schedules.s: a cadence is either 'every' (a span) or 'at' (times of day)"),
        ({"job": "j", "every": "5m", "at": ["03:00"]}, "schedules.s: a cadence is either 'every'"),
        ({"job": "j", "at": ["03:00"], "hours": "01:00-02:00"}, "schedules.s: a window is for 'every'"),
        ({"job": "j", "every": "soon"}, 'schedules.s.every = "soon" is not allowed; it is a span of time'),
        ({"job": "j", "every": "9999999d"}, 'schedules.s.every = "9999999d" is not allowed; it is a span of time'),
        ({"job": "j", "at": ["25:00"]}, 'schedules.s.at = ["25:00"] is not allowed; it is a list of times of day'),
        ({"job": "j", "every": "5m", "hours": "03:00-03:00"}, "is not allowed; it is two different times of day"),
        ({"job": "j", "every": "5m", "time_zone": "Nowhere"}, "is not allowed; it is a time zone"),
        ({"job": "prunee", "every": "5m"}, 'schedules.s.job = "prunee" is not allowed; it is one of j, prune'),
    ],
)
def test_a_schedule_is_judged_whole(spec, wrong):
    (found,) = errors({"schedules": {"s": spec}}, jobs=["prune", "j"])
    assert wrong in found


def test_what_is_pruned_must_exist():
    assert validate({"prune": {"invoice": "never"}}, prunable=["invoice"]).prune() == {"invoice": None}
    assert errors({"prune": {"invoce": "3d"}}, prunable=["units", "invoice"]) == [
        "p.toml: prune.invoce is not a setting; [prune] takes invoice, units"
    ]


def test_providers_have_limits_and_accounts_may_have_their_own():
    limit = {"name": "requests", "rate": 2, "burst": 40}
    raw = {
        "providers": {
            "shop": {"limits": [limit], "max_in_flight": 5, "accounts": {"acme": {"max_in_flight": 1}}},
            "ads": {"max_in_flight": 3},
        }
    }
    found = validate(raw).providers()
    assert found == (
        GateLimits("ads", (), 3),
        GateLimits("shop", (Limit("requests", 2.0, 40),), 5),
        GateLimits("shop/acme", (Limit("requests", 2.0, 40),), 1),
    )
    assert [
        getattr(limits_of(gate, found), "name", None) for gate in ("shop", "shop/x", "shop/acme/1", "shopping")
    ] == [
        "shop",
        "shop",
        "shop/acme",
        None,
    ]


WRONG: dict[Callable[[Any], Any], list[Any]] = {
    text: ["", "  ", 7, None, ["x"]],
    span: ["", 5, "5", "5w", "0s"],
    moments: [[], "03:00", [3], ["3"]],
    hours: ["03:00", 3, "a-b", "03:00-03:00"],
    zone: ["", 3, "../etc/passwd", "Nowhere"],
    age: ["", 3, "ever"],
    ledger_address: ["", "sqlite:///", "sqlite://x", "mysql://h", 3],
    limits: [
        *([], {}, [{"name": "a"}], [{"name": "a", "rate": 1, "burst": 1}] * 2),
        *([{"name": "a", "rate": rate, "burst": 1}] for rate in (0, True, float("nan"), "1")),
        *([{"name": "a", "rate": 1, "burst": burst}] for burst in (0, 0.5, "1", float("inf"))),
        *([{"name": "a", "rate": 1, "burst": 5, "cost": cost}] for cost in (0, 6, "1")),
        [{"name": "a", "rate": 1, "burst": 5, "price": 1}],
    ],
}


@pytest.mark.parametrize(("read", "wrong"), [(read, value) for read, values in WRONG.items() for value in values])
def test_a_reader_takes_nothing_else(read, wrong):
    with pytest.raises(ValueError, match=r"\w"):
        read(wrong)


def test_a_secret_is_read_from_its_reference(tmp_path):
    (tmp_path / "token").write_text(f"{CANARY}\n")
    assert Secret("env", "TOKEN").reveal({"TOKEN": CANARY}) == CANARY
    assert Secret("file", str(tmp_path / "token")).reveal() == CANARY


def test_a_secret_shows_its_reference_and_never_its_value():
    found = validate({"flows": {"orders": {"token": {"env": "TOKEN"}}}}, settings=WITH_SECRET)
    assert str(found.section("flows")["orders"]["token"]) == "env:TOKEN"


@pytest.mark.parametrize("value", [CANARY, {"env": 7}, {"vault": CANARY}, {"env": "A", "file": "b"}, [CANARY]])
def test_a_secret_written_into_the_file_is_refused_and_not_repeated(value):
    (found,) = errors({"flows": {"orders": {"token": value}}}, settings=WITH_SECRET)
    assert "reference" in found
    assert CANARY not in found


@pytest.mark.parametrize("reference", [Secret("env", "NOT_SET"), Secret("file", "/nowhere/at/all")])
def test_a_secret_that_is_not_there_is_named_by_its_reference(reference):
    with pytest.raises(ConfigError, match=reference.name):
        reference.reveal({})


def test_what_is_too_short_is_no_secret():
    with pytest.raises(ConfigError, match="fewer than 4 characters"):
        Secret("env", "PIN").reveal({"PIN": "123"})


def test_secrets_that_cannot_be_read_are_told_all_at_once(monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    raw = {"flows": {"a": {"token": {"env": "NOT_SET"}}, "b": {"token": {"file": "/nowhere/at/all"}}}}
    with pytest.raises(ConfigError) as raised:
        config.check_secrets(validate(raw, Path("p.toml"), WITH_SECRET))
    lines = str(raised.value).splitlines()
    assert [line.split(": ")[:2] for line in lines] == [["p.toml", "flows.a.token"], ["p.toml", "flows.b.token"]]


def test_a_password_in_the_ledgers_address_is_refused_and_not_repeated():
    (found,) = errors({"ledger": {"url": f"postgresql://me:{CANARY}@h/x"}})
    assert "without a password" in found
    assert CANARY not in found


def test_the_ledgers_password_comes_from_its_reference(monkeypatch):
    monkeypatch.setenv("LEDGER_PASSWORD", "p/ss w:rd@")
    raw = {"ledger": {"url": "postgresql://me@h/x", "password": {"env": "LEDGER_PASSWORD"}}}
    assert validate(raw).ledger_url() == "postgresql://me:p%2Fss%20w%3Ard%40@h/x"
    assert validate({"ledger": raw["ledger"] | {"url": "sqlite:///x"}}).ledger_url() == "sqlite:///x"

"""`penstock.toml`: one order of precedence, lifecycles switched on by their sections, one clear error for anything."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.cadence import Cadence
from penstock.model.limits import GateLimits, Limit
from penstock.settings.file import ConfigError, Configuration, find, load, read, switched_on
from penstock.settings.typed import Secret, Settings, says

CANARY = "canary-7f3a-never-shown"
P = Path("p.toml")
KNOWN = "alerts, gates, ledger, lifecycles, log, orders, otlp, prune, raw, schedules, strict, web, worker"


class Account(Settings):
    token: Annotated[Secret, says("Its token.")]


class Orders(Settings):
    poll: Annotated[timedelta, says("How often.")] = timedelta(minutes=5)
    token: Annotated[Secret | None, says("A token.")] = None
    accounts: Annotated[dict[str, Account], says("Accounts, by name.")] = {}


class Strict(Settings):
    customer: Annotated[str, says("Whose it is.")]


KINDS: dict[str, type[Settings]] = {"orders": Orders, "strict": Strict}


def written(folder: Path, content: str) -> Path:
    path = folder / "penstock.toml"
    path.write_text(content)
    return path


def taken(raw: dict[str, Any], *arguments: Any, path: Path | None = P, **wishes: Any) -> Configuration:
    return load(path, KINDS, *arguments, raw=raw, **wishes)


def errors(raw: dict[str, Any], *arguments: Any, **wishes: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        taken(raw, *arguments, **wishes)
    return str(raised.value).splitlines()


def test_without_a_file_everything_is_at_its_default():
    found = load(None, KINDS)
    assert found.kernel.worker.concurrency == 1_000
    assert found.kernel.ledger.url == "sqlite:///penstock.db"
    assert found.sections == {}


def test_an_option_comes_before_the_environment_before_the_file_before_the_default():
    raw, environment, option = {"log": {"level": "error"}}, {"PENSTOCK_LOG": "warning"}, {"log.level": "debug"}
    assert taken({}).kernel.log.level == "info"
    assert taken(raw).kernel.log.level == "error"
    assert taken(raw, {}, environment).kernel.log.level == "warning"
    assert taken(raw, option, environment).kernel.log.level == "debug"
    assert taken(raw, {"log.level": None}, {"PENSTOCK_LOG": ""}).kernel.log.level == "error"


def test_a_number_in_the_environment_is_a_number():
    assert taken({}, {}, {"PENSTOCK_CONCURRENCY": "7"}).kernel.worker.concurrency == 7
    (error,) = errors({}, {}, {"PENSTOCK_CONCURRENCY": "9" * 5_000})
    assert error.startswith('PENSTOCK_CONCURRENCY = "999')
    assert len(error) < 500


def test_errors_of_kernel_and_lifecycles_of_file_environment_and_options_come_together():
    raw = {
        "worker": {"concurrency": 0},
        "orders": {"poll": 3},
        "strict": {"enabled": False},
        "ordrs": {},
        "gats": {},
        "zzz": 1,
    }
    assert errors(raw, {"ledger.url": "mysql://x"}, {"PENSTOCK_LOG": "loud"}, errors=["one from elsewhere"]) == [
        "one from elsewhere",
        '--ledger = "mysql://x" must be sqlite:///FILE or postgresql://USER@HOST/NAME',
        "p.toml: worker.concurrency = 0 must be a whole number from 1 to 100,000",
        'PENSTOCK_LOG = "loud" must be one of debug, info, warning, error',
        "p.toml: [ordrs] is not a section or a lifecycle; did you mean [orders]?",
        "p.toml: [gats] is not a section or a lifecycle; did you mean [gates]?",
        f"p.toml: zzz is not a setting; known are {KNOWN}",
        'p.toml: orders.poll = 3 must be a span of time, for example "5m"',
        "p.toml: strict.customer is missing; it must be text",
    ]


def test_a_section_switches_a_lifecycle_on_and_enabled_off_again():
    assert taken({"orders": {}}).sections == {"orders": Orders()}
    assert taken({"orders": {"enabled": True}}).sections == {"orders": Orders()}
    assert taken({"orders": {"enabled": False, "poll": "1m"}}).sections == {}
    assert errors({"orders": {"enabled": "no"}}) == ['p.toml: orders.enabled = "no" must be true or false']
    assert errors({"orders": {"enabeld": False}}) == [
        "p.toml: orders.enabeld is not a setting; did you mean orders.enabled?"
    ]
    assert switched_on({"ledger": {}, "orders": {}, "mine": {"enabled": False}, "other": {}, "x": 3}) == (
        "orders",
        "other",
    )


def test_a_lifecycle_of_ones_own_runs_without_a_section_unless_it_is_switched_off():
    assert taken({}, on=["orders"]).sections == {"orders": Orders()}
    assert taken({"orders": {"enabled": False}}, on=["orders"]).sections == {}
    assert errors({}, on=["strict"]) == ["p.toml: strict.customer is missing; it must be text"]


def test_sections_that_nobody_has_declared_are_looked_for_first():
    asked: list[tuple[str, ...]] = []

    def unknown(names: tuple[str, ...]) -> dict[str, type[Settings]]:
        asked.append(names)
        return {"installed": Strict}

    found = taken({"orders": {}, "installed": {"customer": "x"}}, unknown=unknown)
    assert found.sections == {"orders": Orders(), "installed": Strict(customer="x")}
    taken({"orders": {}}, unknown=unknown)
    assert asked == [("installed",)]
    assert errors({"instaled": {}}, unknown=unknown) == [
        "p.toml: [instaled] is not a section or a lifecycle; did you mean [installed]?"
    ]


def test_a_name_that_exists_but_was_not_loaded_puts_a_section_right():
    assert errors({"harvst": {}}, known=["harvest"]) == [
        "p.toml: [harvst] is not a section or a lifecycle; did you mean [harvest]?"
    ]


def test_a_command_that_loads_no_lifecycle_leaves_their_sections_alone():
    raw = {"mine": {"token": 1}, "log": {"levle": "info"}}
    assert errors(raw, strangers=True) == ["p.toml: log.levle is not a setting; did you mean log.level?"]


def test_a_lifecycle_may_not_have_a_setting_that_switches_it():
    class Wrong(Settings):
        enabled: Annotated[bool, says("Whether.")] = True

    with pytest.raises(TypeError, match=r"Wrong\.enabled"):
        load(P, {"wrong": Wrong}, raw={})


@pytest.mark.parametrize("name", ["shop", "shop:", ":x", "shop.contacts.lifecycle", "a b:c", "../x:y"])
def test_a_lifecycle_of_ones_own_is_a_module_and_an_attribute(name):
    assert taken({"lifecycles": ["shop.contacts:lifecycle"]}).kernel.lifecycles == ("shop.contacts:lifecycle",)
    (error,) = errors({"lifecycles": [name]})
    assert error.startswith("p.toml: lifecycles: ")
    assert "must be module:attribute" in error


def test_a_relative_path_in_the_file_starts_at_the_file(tmp_path):
    path = written(tmp_path, '[ledger]\nurl = "sqlite:///data/ledger.db"\npassword = { file = "secret" }\n')
    found = load(path, KINDS)
    assert found.kernel.ledger.url == f"sqlite:///{tmp_path}/data/ledger.db"
    assert found.kernel.ledger.password == Secret("file", f"{tmp_path}/secret")
    assert found.kernel.raw.url == f"{tmp_path}/raw"
    assert load(path, KINDS, {"ledger.url": "sqlite:///x.db"}).kernel.ledger.url == "sqlite:///x.db"
    assert load(written(tmp_path, ""), KINDS).kernel.ledger.url == f"sqlite:///{tmp_path}/penstock.db"


def test_a_file_is_found_by_its_option_by_the_environment_or_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find(None, {}) is None
    written(tmp_path, "")
    assert find(None, {}) == Path("penstock.toml")
    assert find(None, {"PENSTOCK_CONFIG": "other.toml"}) == Path("other.toml")
    assert find(Path("mine.toml"), {"PENSTOCK_CONFIG": "other.toml"}) == Path("mine.toml")
    with pytest.raises(ConfigError, match="penstock init"):
        read(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path)


@pytest.mark.parametrize("content", [b"[ledger", b"a = ", b"\x00", b"[a]\n[a]\n", b"\xff\xfe", b'a = "\\ud800"'])
def test_what_is_not_toml_is_one_clear_line(tmp_path, content):
    path = tmp_path / "penstock.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is not TOML"):
        read(path)


@pytest.mark.parametrize(
    "content",
    [
        "a = " + "[" * 100_000,
        "a = " + "{a=" * 3_000,
        "a = " + "9" * 5_000,
        "[ledger]\nurl = 0x" + "f" * 5_000,
        "[worker]\nconcurrency = 0x" + "f" * 900,
        ".".join(["a"] * 3_000) + " = 1",
        "[gates.a]\nlimits = [{ name = 'x', rate = 0x" + "f" * 500 + ", burst = 1 }]",
        "[schedules.x]\njob = 'a'\nevery = '" + "9" * 5_000 + "d'",
        "[prune]\nreport = 0x" + "f" * 5_000,
        "[orders]\n" + "x" * 100_000 + " = 1",
        "[orders.accounts.'" + "x" * 100_000 + "']",
        "[" + "x" * 100_000 + "]",
        "#" * (17 * 1024 * 1024),
    ],
    ids=range(13),
)
@pytest.mark.parametrize("strangers", [False, True])
def test_no_file_is_too_long_or_too_deep_for_a_clear_error(tmp_path, content, strangers):
    path = written(tmp_path, content)
    if strangers and content.startswith("[xxx"):
        assert load(path, KINDS, strangers=True).sections == {}
        return
    with pytest.raises(ConfigError) as caught:
        load(path, KINDS, strangers=strangers)
    assert len(str(caught.value)) < 1_200


@settings(max_examples=100)
@given(st.text(alphabet="[]{}=.,#'\"\n 019xaeTZ:+-_\\\U0001f600", max_size=60))
def test_any_text_is_a_configuration_or_a_clear_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "penstock.toml"
    path.write_text(content)
    with contextlib.suppress(ConfigError):
        load(path, KINDS)


def test_the_version_follows_the_settings_in_force_and_nothing_else():
    one = taken({}).version
    assert one == taken({"log": {"level": "info"}}).version
    assert one == taken({"orders": {"enabled": False}}).version
    different = [
        taken({"log": {"level": "debug"}}),
        taken({"orders": {}}),
        taken({"orders": {"poll": "1m"}}),
        taken({"orders": {"token": {"env": "A"}}}),
        taken({"orders": {"token": {"env": "B"}}}),
        taken({"schedules": {"a": {"job": "x", "every": "5m"}}}),
        taken({"prune": {"units": "never"}}),
    ]
    assert len({one, *(found.version for found in different)}) == 8
    assert taken({"log": {"level": "debug"}}).version == taken({}, {"log.level": "debug"}).version
    assert taken({"orders": {"poll": "60s"}}).version == taken({"orders": {"poll": "1m"}}).version


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"every": "5m"}, "schedules.s.job is missing; it must be text"),
        ({"job": "j"}, "schedules.s: give either 'every' (a span) or 'at' (times of day)"),
        ({"job": "j", "every": "5m", "at": ["03:00"]}, "schedules.s: give either 'every'"),
        ({"job": "j", "at": ["03:00"], "hours": "01:00-02:00"}, "schedules.s: 'hours' goes with 'every'"),
        ({"job": "j", "every": "9999999d"}, 'schedules.s.every = "9999999d" must be a span of time'),
        ({"job": "j", "at": ["03:00", "25:00"]}, 'schedules.s.at[1] = "25:00" must be a time of day'),
        ({"job": "j", "at": []}, "schedules.s.at = [] must be a list that is not empty"),
        ({"job": "j", "every": "5m", "evry": "5m"}, "did you mean schedules.s.every?"),
        ({"job": "prunee", "every": "5m"}, 'schedules.s.job = "prunee" must be one of j, prune'),
    ],
)
def test_a_schedule_is_judged_whole(spec, told):
    (found,) = errors({"schedules": {"s": spec}}, jobs=lambda: ["prune", "j"])
    assert told in found


def test_a_schedule_has_the_texts_of_its_row():
    given = {"job": "j", "every": "90m", "hours": "22:00-06:00", "jitter": "5m", "time_zone": "Europe/Madrid"}
    texts = taken({"schedules": {"s": given | {"settings": {"days": 3}}}}).kernel.schedules["s"].texts()
    assert texts == given | {"at": None, "settings": {"days": 3}}
    assert Cadence.parse(**{name: texts[name] for name in ("every", "at", "time_zone", "hours", "jitter")})


def test_what_is_pruned_must_exist():
    assert taken({"prune": {"invoice": "never"}}, prunable=lambda: ["invoice"]).kernel.prune == {"invoice": None}
    assert errors({"prune": {"invoce": "3d"}}, prunable=lambda: ["units", "invoice"]) == [
        "p.toml: prune.invoce is not a setting; [prune] takes invoice, units"
    ]


def test_a_renewal_that_fails_has_time_for_a_second():
    assert errors({"worker": {"lease": "10s", "renew": "6s"}}) == [
        "p.toml: worker: renew is more than half of lease; a renewal that fails must have time for a second try"
    ]


def test_gates_have_limits_and_accounts_may_have_their_own():
    limit = {"name": "requests", "rate": 2, "burst": 40}
    raw = {
        "gates": {
            "shop": {"limits": [limit], "max_in_flight": 5, "accounts": {"acme": {"max_in_flight": 1}}},
            "ads": {"max_in_flight": 3},
        }
    }
    assert taken(raw).gate_limits() == (
        GateLimits("ads", (), 3),
        GateLimits("shop", (Limit("requests", 2.0, 40),), 5),
        GateLimits("shop/acme", (Limit("requests", 2.0, 40),), 1),
    )
    assert errors({"gates": {"shop": {"limits": [limit, limit]}}}) == [
        "p.toml: gates.shop.limits: requests is there twice; each limit needs a name of its own"
    ]


def test_the_ledgers_password_comes_from_its_reference(monkeypatch):
    monkeypatch.setenv("LEDGER_PASSWORD", "p/ss w:rd@")
    ledger = {"url": "postgresql://me@h/x", "password": {"env": "LEDGER_PASSWORD"}}
    assert taken({"ledger": ledger}).ledger_url() == "postgresql://me:p%2Fss%20w%3Ard%40@h/x"
    assert taken({"ledger": ledger | {"url": "sqlite:////x"}}).ledger_url() == "sqlite:////x"


@pytest.mark.parametrize("url", [f"postgresql://me:{CANARY}@h/x", f"postgresql://h/x?password={CANARY}"])
def test_a_password_in_the_ledgers_address_is_refused_and_not_repeated(url):
    (found,) = errors({"ledger": {"url": url}})
    assert "address without" in found
    assert CANARY not in found


def test_secrets_that_cannot_be_read_are_told_all_at_once(monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("IS_SET", CANARY)
    missing, there = {"env": "NOT_SET"}, {"env": "IS_SET"}
    raw = {
        "ledger": {"password": missing},
        "orders": {"token": there, "accounts": {"a": {"token": missing}, "b": {"token": {"file": "/nowhere/at/all"}}}},
    }
    with pytest.raises(ConfigError) as raised:
        taken(raw).check_secrets()
    lines = str(raised.value).splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        ["p.toml", "ledger.password"],
        ["p.toml", "orders.accounts.a.token"],
        ["p.toml", "orders.accounts.b.token"],
    ]
    taken({"orders": {"token": there}}).check_secrets()


def test_a_configuration_shows_its_secrets_as_references(monkeypatch):
    monkeypatch.setenv("TOKEN", CANARY)
    found = taken({"orders": {"token": {"env": "TOKEN"}}})
    found.check_secrets()
    assert CANARY not in repr(found)
    assert "name='TOKEN'" in repr(found)

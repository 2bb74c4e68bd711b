"""`penstock.toml`: all errors at once, secrets only as references."""

from __future__ import annotations

import pytest

from penstock.config import SETTINGS, ConfigError, Secret, Setting, load, sample, secret, text, validate

CANARY = "canary-7f3a-never-shown"
WITH_SECRET = (*SETTINGS, Setting("providers.token", secret, None, "A token."))


def test_the_sample_works_as_it_is(tmp_path):
    path = tmp_path / "penstock.toml"
    path.write_text(sample())
    assert load(path).values == {s.key: s.default for s in SETTINGS}


def test_every_line_of_the_sample_works_when_it_is_uncommented(tmp_path):
    path = tmp_path / "penstock.toml"
    lines = sample().splitlines()
    path.write_text("\n".join(line.removeprefix("# ") if " = " in line else line for line in lines))
    assert load(path).values == {s.key: s.default for s in SETTINGS}


def test_all_errors_come_at_once_each_with_file_key_value_and_what_is_allowed(tmp_path):
    path = tmp_path / "penstock.toml"
    path.write_text('[ledger]\nurll = "x"\n[worker]\nconcurrency = 0\n[log]\nlevel = "loud"\n')
    with pytest.raises(ConfigError) as raised:
        load(path)
    lines = str(raised.value).splitlines()
    assert lines == [
        f"{path}: ledger.urll is not a setting; did you mean ledger.url?",
        f'{path}: log.level = "loud" is not allowed; it is one of debug, info, warning, error',
        f"{path}: worker.concurrency = 0 is not allowed; it is a whole number from 1 to 100,000",
    ]


@pytest.mark.parametrize("content", ["[ledger", "a = ", "\x00", "[a]\n[a]\n"])
def test_what_is_not_toml_is_one_clear_line(tmp_path, content):
    path = tmp_path / "penstock.toml"
    path.write_text(content)
    with pytest.raises(ConfigError, match="is not TOML"):
        load(path)


def test_a_missing_file_says_how_to_get_one(tmp_path):
    with pytest.raises(ConfigError, match="penstock init"):
        load(tmp_path / "penstock.toml")


def test_the_version_follows_the_settings_and_nothing_else():
    one = validate({}, None)
    assert one.version == validate({"log": {"level": "info"}}, None).version
    assert one.version != validate({"log": {"level": "debug"}}, None).version


def test_a_secret_is_read_from_its_reference(tmp_path):
    (tmp_path / "token").write_text(f"{CANARY}\n")
    assert Secret("env", "TOKEN").reveal({"TOKEN": CANARY}) == CANARY
    assert Secret("file", str(tmp_path / "token")).reveal() == CANARY


def test_a_secret_shows_its_reference_and_never_its_value():
    reference = validate({"providers": {"token": {"env": "TOKEN"}}}, None, WITH_SECRET)["providers.token"]
    assert str(reference) == "env:TOKEN"
    assert CANARY not in repr(reference)


@pytest.mark.parametrize("value", [CANARY, {"env": 7}, {"vault": CANARY}, {"env": "A", "file": "b"}, [CANARY]])
def test_a_secret_written_into_the_file_is_refused_and_not_repeated(value):
    with pytest.raises(ConfigError) as raised:
        validate({"providers": {"token": value}}, None, WITH_SECRET)
    assert "reference" in str(raised.value)
    assert CANARY not in str(raised.value)


@pytest.mark.parametrize("reference", [Secret("env", "NOT_SET"), Secret("file", "/nowhere/at/all")])
def test_a_secret_that_is_not_there_is_named_by_its_reference(reference):
    with pytest.raises(ConfigError, match=reference.name):
        reference.reveal({})


@pytest.mark.parametrize("value", ["", "  ", 7, None, ["x"]])
def test_text_is_text(value):
    with pytest.raises(ValueError, match="text"):
        text(value)

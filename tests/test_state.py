"""States: a name, a meaning and a sentence, in an enum like any other."""

from __future__ import annotations

import copy
import json
import pickle
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.state import Meaning, State, done, fault, hold, rest, work


class S(State):
    MISSING = rest("missing", "not requested yet")
    PARSING = work("parsing", "being loaded")
    COMPLETED = done("completed", "loaded")
    FETCHING = hold("fetching", "the provider is making the report")
    ERROR = fault("error", "given up")


class Row(msgspec.Struct):
    status: S


states = st.sampled_from(S)


def test_a_state_has_a_meaning_and_a_sentence():
    assert [(str(s), s.meaning, s.says) for s in S] == [
        ("missing", Meaning.REST, "not requested yet"),
        ("parsing", Meaning.WORK, "being loaded"),
        ("completed", Meaning.DONE, "loaded"),
        ("fetching", Meaning.HOLD, "the provider is making the report"),
        ("error", Meaning.FAULT, "given up"),
    ]


def test_a_state_may_say_how_long_a_unit_stays():
    class Slow(State):
        ASKED = hold("asked", "a person is asked", allowed=timedelta(days=30))
        SENT = work("sent", "on its way", allowed=timedelta(hours=1))
        HERE = work("here", "being read")

    assert [s.allowed for s in Slow] == [timedelta(days=30), timedelta(hours=1), None]
    assert all(s.allowed is None for s in S)
    with pytest.raises(ValueError, match="state 'never': allowed must be longer than nothing"):
        work("never", "gone at once", allowed=timedelta(0))


@given(states)
def test_a_state_is_its_name(state):
    assert S(str(state)) is S(state.value) is state
    assert state == state.value == f"{state}"
    assert hash(state) == hash(state.value)
    assert type(state.value) is str


@given(states)
def test_a_state_travels_as_its_name_and_comes_back_whole(state):
    assert json.loads(json.dumps({state: state})) == {state.value: state.value}
    text = msgspec.json.encode(Row(state))
    assert text == b'{"status":"%s"}' % state.value.encode()
    assert msgspec.json.decode(text, type=Row).status is state
    assert msgspec.convert({"status": state.value}, Row).status is state
    for back in (pickle.loads(pickle.dumps(state)), copy.deepcopy(state)):
        assert back is state
        assert back.says == state.says


def test_a_state_can_be_matched():
    def kind(state: S) -> int:
        match state:
            case S.MISSING | S.FETCHING:
                return 1
            case S.PARSING | S.COMPLETED | S.ERROR:
                return 2

    assert [kind(s) for s in S] == [1, 2, 2, 1, 2]


def test_an_unknown_name_is_no_state():
    with pytest.raises(ValueError, match="'gone' is not a valid S"):
        S("gone")


@pytest.mark.parametrize("value", ["plain", rest("plain", ""), rest("plain", " "), rest("plain", "two\nlines")])
def test_a_state_that_does_not_say_what_it_is_is_refused(value):
    with pytest.raises(TypeError, match="state 'plain' of Mute does not say what it is"):

        class Mute(State):
            PLAIN = value


def typed(tmp_path: Path, lines: str) -> str:
    program = tmp_path / "program.py"
    program.write_text(f"from penstock.model.state import State, rest\n\n\n{lines}\n")
    root = Path(__file__).parent.parent
    # What `make lint` has read of Penstock need not be read again.
    options = ["--config-file", str(root / "pyproject.toml"), "--cache-dir", str(root / ".mypy_cache")]
    command = [sys.executable, "-m", "mypy", *options, str(program)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def test_a_missing_sentence_is_a_type_error(tmp_path):
    found = typed(tmp_path, 'class S(State):\n    MISSING = rest("missing")\n')
    assert re.search(r'program.py:5: error: Missing positional argument "says" in call to "rest"', found), found


def test_a_sentence_and_a_value_are_text_to_the_type_checker(tmp_path):
    body = 'class S(State):\n    MISSING = rest("missing", "not yet")\n\n\n'
    assert "Success" in typed(tmp_path, body + 'told: str = S("missing").says + S.MISSING.value\n')
    assert "no attribute" in typed(tmp_path, body + "print(S.MISING)\n")

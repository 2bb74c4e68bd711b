"""Text from outside is shown, never obeyed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.inert import inert


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;owned\x07", r"\x1b[2J\x1b]0;owned\x07"),
        ("a\r\nb\tc\0", r"a\r\nb\tc\x00"),
        ("\x9b31m red", r"\x9b31m red"),
        ("gpj.\u202eexe", r"gpj.\u202eexe"),
        ("half \ud83d", r"half \ud83d"),
        ("plain, größer, 100 %", "plain, größer, 100 %"),
    ],
)
def test_what_a_terminal_would_obey_is_written_out(text, shown):
    assert inert(text) == shown


def test_lines_may_stay_lines():
    assert inert("one\n\ttwo\r\x1b", lines=True) == "one\n\ttwo\\r\\x1b"


@given(st.text(st.characters(categories=["Cc", "Cf", "Cs", "L", "Zl", "Zp"])))
def test_nothing_that_is_shown_can_steer_a_terminal(text):
    shown = inert(text)
    assert not any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in shown)
    assert shown.encode() is not None  # no half of a surrogate pair is left

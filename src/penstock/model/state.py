"""States that say what they are.

A machine's states are a `State`, and each member has a name, a meaning and a sentence:

    class S(State):
        MISSING = rest("missing", "not requested yet")
        FETCHING = hold("fetching", "the provider is making the report")

A member is its name: `S("fetching")`, `match`, JSON, pickle and comparison with text work as with any `StrEnum`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Meaning(StrEnum):
    """What a state is to somebody who does not know the machine."""

    REST = "rest"
    """Nothing happens until its time comes or somebody wants something."""
    WORK = "work"
    """We are at it."""
    DONE = "done"
    """What was wanted is there."""
    HOLD = "hold"
    """It waits for somebody else: a provider, other units, a person."""
    FAULT = "fault"
    """It went wrong, and somebody should look."""


class _Said(str):
    __slots__ = ("meaning", "says")
    meaning: Meaning
    says: str


def _said(name: str, meaning: Meaning, says: str) -> str:
    made = _Said(name)
    made.meaning, made.says = meaning, says
    return made


def rest(name: str, says: str) -> str:
    """A state in which nothing happens until its time comes or somebody wants something."""
    return _said(name, Meaning.REST, says)


def work(name: str, says: str) -> str:
    """A state in which we are at it."""
    return _said(name, Meaning.WORK, says)


def done(name: str, says: str) -> str:
    """A state in which what was wanted is there."""
    return _said(name, Meaning.DONE, says)


def hold(name: str, says: str) -> str:
    """A state that waits for somebody else: a provider, other units, a person."""
    return _said(name, Meaning.HOLD, says)


def fault(name: str, says: str) -> str:
    """A state in which something went wrong, and somebody should look."""
    return _said(name, Meaning.FAULT, says)


class State(StrEnum):
    """The states of a machine. Raises TypeError for a member that does not say what it is."""

    meaning: Meaning
    says: str

    def __new__(cls, name: str) -> Self:
        if not isinstance(name, _Said) or not name.says.strip() or "\n" in name.says:
            msg = (
                f"state {str(name)!r} of {cls.__name__} does not say what it is; write rest({str(name)!r}, "
                '"a short sentence"), or work, done, hold or fault'
            )
            raise TypeError(msg)
        member = str.__new__(cls, name)
        member._value_ = str(name)
        member.meaning, member.says = name.meaning, name.says
        return member

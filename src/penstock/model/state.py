"""States that say what they are.

A machine's states are a `State`, and each member has a name, a meaning and a sentence:

    class S(State):
        MISSING = rest("missing", "not requested yet")
        FETCHING = hold("fetching", "the provider is making the report")

A member is its name: `S("fetching")`, `match`, JSON, pickle and comparison with text work as with any `StrEnum`.
"""

from __future__ import annotations

from datetime import timedelta
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
    __slots__ = ("allowed", "meaning", "says")
    meaning: Meaning
    says: str
    allowed: timedelta | None


def _said(name: str, meaning: Meaning, says: str, allowed: timedelta | None = None) -> str:
    if allowed is not None and allowed <= timedelta(0):
        msg = f"state {name!r}: allowed must be longer than nothing"
        raise ValueError(msg)
    made = _Said(name)
    made.meaning, made.says, made.allowed = meaning, says, allowed
    return made


def rest(name: str, says: str) -> str:
    """A state in which nothing happens until its time comes or somebody wants something."""
    return _said(name, Meaning.REST, says)


def work(name: str, says: str, *, allowed: timedelta | None = None) -> str:
    """A state in which we are at it. A unit that stays there for longer than `allowed` is stuck; by default a day."""
    return _said(name, Meaning.WORK, says, allowed)


def done(name: str, says: str) -> str:
    """A state in which what was wanted is there."""
    return _said(name, Meaning.DONE, says)


def hold(name: str, says: str, *, allowed: timedelta | None = None) -> str:
    """A state that waits for somebody else: a provider, other units, a person.

    A unit that stays there for longer than `allowed` is stuck; by default seven days.
    """
    return _said(name, Meaning.HOLD, says, allowed)


def fault(name: str, says: str) -> str:
    """A state in which something went wrong, and somebody should look."""
    return _said(name, Meaning.FAULT, says)


class State(StrEnum):
    """The states of a machine. Raises TypeError for a member that does not say what it is."""

    meaning: Meaning
    says: str
    #: How long a unit may stay in it without moving; None: as long as its meaning says.
    allowed: timedelta | None

    def __new__(cls, name: str) -> Self:
        if not isinstance(name, _Said) or not name.says.strip() or "\n" in name.says:
            msg = (
                f"state {str(name)!r} of {cls.__name__} does not say what it is; write rest({str(name)!r}, "
                '"a short sentence"), or work, done, hold or fault'
            )
            raise TypeError(msg)
        member = str.__new__(cls, name)
        member._value_ = str(name)
        member.meaning, member.says, member.allowed = name.meaning, name.says, name.allowed
        return member

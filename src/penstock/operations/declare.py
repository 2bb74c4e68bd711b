"""Readings and operations: declared once, used by the command line, the API, the pages and Python.

A reading answers a question and never writes. An operation makes a plan and never writes either: the kernel shows the
plan, asks, and carries it out with actor, reason and history. Both take an `Ask` and a struct of parameters.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import msgspec

from penstock.model.clock import Rng, instant_text
from penstock.model.errors import UsageError
from penstock.operations.fields import NoParameters, Parameters
from penstock.operations.plan import Plan

if TYPE_CHECKING:
    from penstock.operations.reader import Reader

S = TypeVar("S")
P = TypeVar("P", bound=Parameters)
R = TypeVar("R")
Row = TypeVar("Row")


class Role(StrEnum):
    """Who may do it. Each may do what those before it may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


def _silent(done: int, total: int | None) -> None:
    """Nobody watches."""


def _request() -> str:
    return str(Rng().uuid())


@dataclass(frozen=True, slots=True)
class Ask(Generic[S]):
    """What a reading or an operation works with: the ledger to read, the lifecycle's settings, when, and who asks."""

    reader: Reader
    settings: S
    now: datetime
    who: str = ""
    reason: str = ""
    #: Tell how far a long reading has come: so many of so many (None: nobody knows).
    progress: Callable[[int, int | None], None] = field(default=_silent)
    #: The program as a whole, for readings of the kernel's own.
    program: Any = None
    #: The id of this request, a UUID: the same for every plan that is made for it. What is born may be named by it.
    request: str = field(default_factory=_request)

    def then(self, at: datetime | None) -> Ask[S]:
        """The same question of a moment in the past, or as it is where there is none (see `ledger.past`)."""
        if at is None:
            return self
        return replace(self, reader=self.reader.then(at), now=at)

    def watched(self, progress: Callable[[int, int | None], None]) -> Ask[S]:
        """The same, with somebody who watches."""
        return replace(self, progress=progress)


class Page(msgspec.Struct, Generic[Row], frozen=True, kw_only=True):
    """Rows of a list. `next` asks for those after them, `counts` sums all that match, `note` is a sentence below."""

    rows: Sequence[Row]
    next: str | None = None
    counts: dict[str, int] | None = None
    note: str | None = None


class Lines:
    """Text that is streamed line by line: data, not a table."""

    def __init__(self, lines: Iterator[str] | Sequence[str]) -> None:
        self.lines = lines


@dataclass(frozen=True, eq=False)
class Declared(Generic[S]):
    """What readings and operations have in common. `name` is its path below the lifecycle: `watermark set`."""

    name: str
    says: str
    function: Callable[..., Any]
    role: Role = Role.VIEWER
    #: It waits for something to happen, which a terminal may and a request may not: only a command.
    stays: bool = field(default=False, kw_only=True)

    def __call__(self, ask: Ask[S], parameters: Parameters | None = None) -> Any:
        """Ask it directly, as Python does."""
        if self.function.__code__.co_argcount == 1:
            return self.function(ask)
        return self.function(ask, parameters if parameters is not None else self.parameters())

    @property
    def path(self) -> tuple[str, ...]:
        """Its name as the words of a command."""
        return tuple(self.name.split())

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return typing.get_type_hints(self.function, include_extras=True)

    @cached_property
    def parameters(self) -> type[Parameters]:
        """The struct that it is asked with."""
        names = self.function.__code__.co_varnames[: self.function.__code__.co_argcount]
        found: type[Parameters] = self._hints[names[1]] if len(names) > 1 else NoParameters
        if not (isinstance(found, type) and issubclass(found, Parameters)):
            msg = f"{self.name}: its second parameter is a struct of Parameters, not {found!r}"
            raise UsageError(msg)
        return found

    @property
    def help(self) -> str:
        """All that it says of itself: the sentence, and the docstring's further paragraphs."""
        rest = inspect.cleandoc(self.function.__doc__ or "")
        return f"{self.says}\n\n{rest}" if rest else self.says


_FIRST_YEAR = 1_000
"""Spans are taken from a moment, and no calendar goes before the year 1."""


@dataclass(frozen=True, eq=False)
class Reading(Declared[S]):
    """A question with its answer. Asking it changes nothing."""

    #: Why it cannot be asked for a moment of the past, where it cannot: a sentence for whoever does.
    no_past: str = field(default="", kw_only=True)

    def __call__(self, ask: Ask[S], parameters: Parameters | None = None) -> Any:
        """Ask it directly, as Python does.

        Raises UsageError for a moment that is yet to come, that has no time zone, or before which no span can go.
        """
        at: datetime | None = getattr(parameters, "at", None)
        if at is not None and at.tzinfo is None:
            raise UsageError(f"{at} has no time zone; give an instant with its offset from UTC")
        if at is not None and at > ask.now:
            raise UsageError(f"{instant_text(at)} is yet to come: nobody knows how things will stand")
        if at is not None and at.year < _FIRST_YEAR:
            raise UsageError("the instant is too near to the beginning of the calendar; give one of this ledger's time")
        return super().__call__(ask, parameters)

    @property
    def answer(self) -> Any:
        """The type of the answer: `Page[Row]`, a struct, or `Lines`."""
        return self._hints["return"]


@dataclass(frozen=True, eq=False)
class Operation(Declared[S]):
    """Something that a person does, as a plan. `wants_reason`: the history keeps why, so it must be said."""

    role: Role = Role.OPERATOR
    wants_reason: bool = True


Declaration: TypeAlias = Reading[Any] | Operation[Any]


def reading(
    name: str, says: str, *, role: Role = Role.VIEWER, stays: bool = False, no_past: str = ""
) -> Callable[[Callable[[Ask[S], P], R] | Callable[[Ask[S]], R]], Reading[S]]:
    """Declare a reading: `@reading("datasets", "Datasets, those that are due next first.")`."""

    def declare(function: Callable[..., R]) -> Reading[S]:
        return Reading(name, says, function, role, stays=stays, no_past=no_past)

    return declare


def operation(
    name: str, says: str, *, role: Role = Role.OPERATOR, wants_reason: bool = True
) -> Callable[[Callable[[Ask[S], P], Plan] | Callable[[Ask[S]], Plan]], Operation[S]]:
    """Declare an operation: `@operation("refresh", "Fetch datasets again now.")`."""

    def declare(function: Callable[..., Plan]) -> Operation[S]:
        return Operation(name, says, function, role, wants_reason)

    return declare

"""What a lifecycle looks like: pictures as data.

A picture names the reading that feeds it, and which fields of its rows are drawn. Who draws it knows the kind of
picture and nothing of the lifecycle. The first picture of a lifecycle stands for it on the overview.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from penstock.operations.declare import Reading


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A sentence above it, and the reading whose rows it shows. The other attributes name fields of a row."""

    says: str
    reading: Reading[Any]

    def names(self) -> Iterator[str]:
        """The fields that it draws."""
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name not in {"says", "reading", "leads"} and value is not None:
                yield from [value] if isinstance(value, str) else value


@dataclass(frozen=True, kw_only=True)
class Ladder(Picture):
    """Steps beside each other, each filled by the share that still changed. Rows of one group and step are summed."""

    group: str
    step: str
    part: str
    whole: str


@dataclass(frozen=True, kw_only=True)
class Calendar(Picture):
    """A row for each series, a cell for each day from `first` on, coloured by its state.

    A cell leads to the reading `leads`, which is asked with `series/2026-11-01`.
    """

    series: str
    first: str
    days: str
    leads: Reading[Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Runs(Picture):
    """Runs below each other: when, and how much each brought."""

    at: str
    amount: str
    note: str
    state: str


@dataclass(frozen=True, kw_only=True)
class Cycle(Picture):
    """A ring for each thing that comes round: how much of the time from its last run to the next has passed."""

    name: str
    since: str
    until: str
    state: str


@dataclass(frozen=True, kw_only=True)
class Windows(Picture):
    """Spans of time below each other: from where to where each has read."""

    name: str
    start: str
    end: str
    state: str


@dataclass(frozen=True, kw_only=True)
class Shares(Picture):
    """A bar for each row: its parts, by what each means, of the whole."""

    name: str
    whole: str
    #: The field of each part, and what it means: rest, work, done, hold or fault.
    parts: Mapping[str, str]
    note: str | None = None

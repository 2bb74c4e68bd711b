"""How a value is written as text, and what is said of a text that is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.model.near import near

if TYPE_CHECKING:
    from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Form:
    """How one type of value is written. `must` follows "must be"; `read` raises ValueError."""

    name: str
    must: str
    read: Callable[[str], Any]
    choices: Sequence[str] = ()

    def refusal(self, text: str) -> str:
        """What is said of a text that is none: what it must be, and what was perhaps meant."""
        close = near(text, self.choices)
        return f"must be {self.must}" + (f"; did you mean {close[0]}?" if close else "")


def instant_form(example: str | None = None) -> Form:
    """A moment with its offset from UTC."""
    return Form("INSTANT", f"an instant, for example {example or '2026-11-15T19:31:00Z'}", _instant)


def span_form(example: str | None = None) -> Form:
    """A length of time."""
    other = "90d" if example == "6h" else "6h"
    return Form("SPAN", f"a span, for example {example or '90d'} or {other}", _span)


def _instant(text: str) -> datetime:
    from penstock.model.clock import parse_instant

    return parse_instant(text)


def _span(text: str) -> timedelta:
    from penstock.model.cadence import parse_span
    from penstock.model.errors import UsageError

    try:
        return parse_span(text)
    except UsageError as error:
        raise ValueError from error

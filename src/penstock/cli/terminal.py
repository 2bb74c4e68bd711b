"""Standard output and standard error: how wide, in colour or not, and never obeyed.

Whatever is printed is inert first: a text from outside cannot steer the terminal of whoever reads it. Colours are put
around it afterwards. In a pipe there are no colours and no width.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from penstock.model.inert import inert

if TYPE_CHECKING:
    from penstock.model.clock import Clock
from penstock.model.spoken import duration


class Declined(Exception):
    """Somebody was asked, and said no."""


Progress = Callable[[int, int | None], None]

_ELLIPSIS = "…"
_BAR = 20
_EVERY_SECONDS = 0.2
# Of the palette of 256 colours, which no theme changes: those that are about as far from white as from black.
_BLUE, _GREEN, _ORANGE, _RED = 63, 28, 130, 196
_STYLES: dict[str, dict[str, object]] = {
    "rest": {},
    "work": {"fg": _BLUE},
    "done": {"fg": _GREEN},
    "hold": {"fg": _ORANGE},
    "fault": {"fg": _RED, "bold": True},
    "critical": {"fg": _RED, "bold": True},
    "error": {"fg": _RED, "bold": True},
    "warning": {"fg": _ORANGE},
    "info": {},
    "heading": {"bold": True},
}


@dataclass(frozen=True, slots=True)
class Screen:
    """Where something is shown. `width` None: a pipe or a file, in which nothing is shortened."""

    width: int | None = None
    colour: bool = False

    @classmethod
    def of_output(cls) -> Screen:
        """Standard output as it is."""
        if not sys.stdout.isatty():
            return cls()
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        return cls(shutil.get_terminal_size().columns, not plain)

    def styled(self, text: str, meaning: str | None) -> str:
        """The text in the colour of what it means."""
        wishes = _STYLES.get(meaning or "") if self.colour else None
        return click.style(text, **wishes) if wishes else text  # type: ignore[arg-type]


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text that may have come from anywhere."""
    click.echo(inert(text, lines=True), err=err, nl=nl)


def write(lines: Iterator[str] | list[str], *, err: bool = False) -> None:
    """Print lines that are inert already, and may be coloured."""
    file = sys.stderr if err else sys.stdout
    for line in lines:
        file.write(f"{line}\n")
    file.flush()


def cells(text: str) -> int:
    """How many columns a text takes."""
    if text.isascii():
        return len(text)
    return sum(_cells(character) for character in text)


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shortened(text: str, width: int) -> str:
    """The text with an ellipsis where it is cut, so that it takes no more columns than that."""
    if cells(text) <= width:
        return text
    kept, left = [], width - 1
    for character in text:
        left -= _cells(character)
        if left < 0:
            break
        kept.append(character)
    return "".join(kept).rstrip() + _ELLIPSIS


@contextlib.contextmanager
def progress(what: str, clock: Clock, *, quiet: bool = False) -> Iterator[Progress]:
    """One changing line on a terminal: a bar, how many of how many, the rate, and how long it will take."""
    if quiet or not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    bar = _Bar(what, clock)
    try:
        yield bar.tell
    finally:
        bar.clear()


class _Bar:
    def __init__(self, what: str, clock: Clock) -> None:
        self._what = inert(what)
        self._clock = clock
        self._began = clock.elapsed()
        self._first: int | None = None
        self._told = -_EVERY_SECONDS
        self._shown = False

    def tell(self, done: int, total: int | None) -> None:
        at = self._clock.elapsed() - self._began
        if self._first is None:
            self._first = done
        if at - self._told < _EVERY_SECONDS and done != total:
            return
        self._told, self._shown = at, True
        line = shortened(self.line(done, total, at), shutil.get_terminal_size().columns - 1)
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()

    def line(self, done: int, total: int | None, at: float) -> str:
        """What is shown so long after the beginning."""
        gone = done - (self._first or 0)
        rate = f"  {gone / at:,.0f}/s" if gone and at >= 1 else ""
        if not total:
            return f"{self._what}  {done:,}{rate}"
        full = round(_BAR * min(done, total) / total)
        left = f"  {duration((total - done) * at / gone)} left" if rate and done < total else ""
        return f"{self._what}  {'━' * full}{'─' * (_BAR - full)}  {done:,} of {total:,}{rate}{left}"

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def can_ask() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def agree(question: str) -> None:
    """Ask on standard error. Raises Declined for anything but yes, and click.Abort where the input ends."""
    if not click.confirm(inert(question), err=True):
        raise Declined

"""The answer to `searchStream`: one JSON array of batches, each with an array of nested rows, read in constant memory.

The array is cut into rows by patterns that know strings and brackets, and nothing else; a run of whole rows is then
decoded at once, by a decoder that knows JSON. What is held at any moment is one piece of text and at most one
unfinished row. No quantifier in the patterns gives anything back, so that a row costs the same whether it fits or not.
See docs/decisions/0025 for why no streaming parser is used.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec

from penstock.connectors.http.unpacking import BadBody, TooLarge, Unpacker
from penstock.connectors.records import Limits
from penstock.model.errors import Rejected, Transient

Row = dict[str, Any]

ROW_LIMITS = Limits(max_record=1 << 20)
DEPTH = 24
"""How deep a row may nest; those of the API stay below ten."""

_PIECE = 1 << 18
_INT64 = range(-(2**63), 2**63)
_LONG_DIGITS = re.compile(rb"[0-9]{19}")

_SPACE = rb"[ \t\r\n]*+"
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_FLAT = rb'[^"{}\[\]]*+(?:' + _STRING + rb'[^"{}\[\]]*+)*+'

_TOKEN = re.compile(_STRING + rb"|[\[{\]}]", re.DOTALL)


def _nested(depth: int) -> bytes:
    """A value in brackets, of whatever kind; the decoder sees to it that they match."""
    inner = rb"[\[{]" + _FLAT + rb"[\]}]"
    for _ in range(depth - 1):
        inner = rb"[\[{]" + _FLAT + rb"(?:" + inner + _FLAT + rb")*+[\]}]"
    return inner


_ROW = rb"(?=\{)" + _nested(DEPTH)
_VALUE = rb"(?:" + _STRING + rb"|" + _nested(DEPTH) + rb'|[^"{}\[\],\s]++)'
_RUN = re.compile(rb"(?:" + _SPACE + _ROW + _SPACE + rb",)*+", re.DOTALL)
_LAST = re.compile(_SPACE + rb"(" + _ROW + rb")" + _SPACE + rb"\]", re.DOTALL)


def _state(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(_SPACE + rb"(?:" + pattern.replace(b" ", _SPACE) + rb")", re.DOTALL)


# What may come next, by state. The group that takes part names the state after it.
_GRAMMAR = {
    "start": _state(rb"(?P<first_batch>\[)"),
    "first_batch": _state(rb"(?P<first_name>\{)|(?P<done>\])"),
    "next_batch": _state(rb"(?P<first_name>, \{)|(?P<done>\])"),
    "first_name": _state(rb"(?P<value>" + _STRING + rb") :|(?P<next_batch>\})"),
    "next_name": _state(rb", (?P<value>" + _STRING + rb") :|(?P<next_batch>\})"),
    "value": re.compile(_SPACE + rb"(?P<next_name>" + _VALUE + rb")" + _SPACE + rb"(?=[,}])", re.DOTALL),
    "results": _state(rb"(?P<first_row>\[)"),
    "first_row": _state(rb"(?P<next_name>\])|(?P<rows>(?=\{))"),
}
# What it begins with: anything else is wrong at once, and not only when no more comes.
_BEGINS = {
    "start": b"[",
    "first_batch": b"{]",
    "next_batch": b",]",
    "first_name": b'"}',
    "next_name": b",}",
    "results": b"[",
    "first_row": b"{]",
    "rows": b"{",
    "done": b"",
}


class BrokenStream(Transient):
    """The stream breaks off, or is not what the API sends: what came so far is worth nothing, ask again."""


class BadAnswer(Rejected):
    """The stream is whole and cannot be read: too large, too deep, or no JSON; asking again brings the same."""


async def rows(pieces: AsyncIterator[bytes], splitter: Splitter) -> AsyncGenerator[list[Row]]:
    """The rows of a stream, some hundreds at a time, as its text arrives. Raises BrokenStream or BadAnswer.

    Other work gets its turn between the pieces, however fast they arrive.
    """
    async for piece in pieces:
        if found := splitter.feed(piece):
            yield found
            await asyncio.sleep(0)
    if found := splitter.close():
        yield found


async def inflated(pieces: AsyncIterator[bytes], encoding: str, limits: Limits) -> AsyncGenerator[bytes]:
    """The text of a body, in pieces of bounded size. Raises BrokenStream, or BadAnswer where it grows out of bounds."""
    try:
        unpacker = Unpacker(encoding, limits.max_bytes, limits.max_ratio)
        async for piece in pieces:
            for text in unpacker.feed(piece):
                yield text
        unpacker.close()
    except BadBody as error:
        raise BrokenStream(str(error)) from error
    except TooLarge as error:
        raise BadAnswer(str(error)) from error


class Splitter:
    """Cuts the text into rows: `feed` it, then `close` it.

    `rows` counts them. `told` is what the batches say beside their rows, the last word of each; under `error` is what
    went wrong at the provider after the stream had begun.
    """

    def __init__(self, limits: Limits = ROW_LIMITS) -> None:
        self._limit = limits.max_record
        self._held = b""
        self._waiting: list[bytes] = []
        self._size = 0
        self._state = "start"
        self._name = ""
        self.rows = 0
        self.told: dict[str, Any] = {}

    def feed(self, text: bytes) -> list[Row]:
        """The rows that became whole. Small pieces are gathered first: a row is not looked at for each of them."""
        self._waiting.append(text)
        self._size += len(text)
        return self._cut() if self._size >= _PIECE else []

    def close(self) -> list[Row]:
        """The stream has ended: the last rows. Raises BrokenStream when it should not have ended."""
        found = self._cut()
        if self._state != "done":
            if _depth(self._held) > DEPTH:
                raise BadAnswer(f"row {self.rows + 1:,} is deeper than {DEPTH} levels")
            raise BrokenStream(f"the answer breaks off or is not JSON, after {self.rows:,} rows")
        return found

    def _cut(self) -> list[Row]:
        held = self._held + b"".join(self._waiting)
        self._waiting, self._size = [], 0
        found: list[Row] = []
        at = 0
        while (end := self._step(held, at, found)) is not None:
            at = end
        self._held = held[at:]
        self._check()
        return found

    def _step(self, held: bytes, at: int, found: list[Row]) -> int | None:
        """One step of the grammar, from a position to the one after it; None where more text is needed."""
        if self._state == "rows":
            return self._take_rows(held, at, found)
        pattern = _GRAMMAR.get(self._state)
        match = pattern.match(held, at) if pattern else None
        if match is None or match.lastgroup is None:
            return None
        state = match.lastgroup
        if self._state == "value":
            self.told[self._name] = self._decode(match[state])
        elif state == "value":
            self._name = self._decode(match[state])
            state = "results" if self._name == "results" else "value"
        self._state = state
        return match.end()

    def _take_rows(self, held: bytes, at: int, found: list[Row]) -> int | None:
        run = _RUN.match(held, at)
        end = run.end() if run else at
        if end > at:
            found += self._decode_rows(held[at : end - 1])
        if last := _LAST.match(held, end):
            found += self._decode_rows(last[1])
            self._state = "next_name"
            return last.end()
        return end if end > at else None

    def _check(self) -> None:
        begun = self._held.lstrip(b" \t\r\n")
        wanted = _BEGINS.get(self._state)
        if begun and wanted is not None and begun[:1] not in {wanted[n : n + 1] for n in range(len(wanted))}:
            shown = begun[:20].decode(errors="replace")
            raise BrokenStream(f"the answer is not an array of batches: {shown!r} after {self.rows:,} rows")
        if len(self._held) > self._limit:
            raise BadAnswer(f"row {self.rows + 1:,} is longer than {self._limit:,} bytes or deeper than {DEPTH} levels")

    def _decode_rows(self, run: bytes) -> list[Row]:
        found: list[Row] = self._decode(b"[" + run + b"]")
        if _LONG_DIGITS.search(run) and any(_beyond(row) for row in found):
            raise BadAnswer(f"near row {self.rows + 1:,}: a whole number beyond 64 bits")
        self.rows += len(found)
        return found

    def _decode(self, text: bytes) -> Any:
        try:
            return msgspec.json.decode(text)
        except UnicodeDecodeError as error:
            raise BadAnswer(f"near row {self.rows + 1:,}: a text is not UTF-8") from error
        except (msgspec.DecodeError, ValueError) as error:
            # The text is whole: what looks cut off to the decoder is half of a pair of escapes.
            said = str(error).replace("Input data was truncated", "a text has a broken escape")
            raise BadAnswer(f"near row {self.rows + 1:,}: {said}") from error


def _depth(text: bytes) -> int:
    """How deep a text goes."""
    depth = deepest = 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in (b"[", b"{")) - (token[0] in (b"]", b"}"))
        deepest = max(deepest, depth)
    return deepest


def _beyond(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_beyond, value.values()))
    if isinstance(value, list):
        return any(map(_beyond, value))
    return isinstance(value, int) and value not in _INT64

"""A report's file: one JSON array of flat records, compressed with gzip, read in constant memory.

The file comes from outside. Whatever is wrong with it ends in `BadReport`, which says what and where, and no file makes
the reader slow or large: what is held at any moment is one piece of decompressed text and at most one unfinished
record. Numbers with a fraction are Decimals; a number longer than any real one is refused.

Records leave it as they came, one on a line. Most files are compact: they are cut at every `},{`, and looked through
many records at a time (`quick.py`). Where that is not enough to be sure, the records are cut by a pattern that knows
strings and braces, and nothing else, and decoded: that way knows what is wrong, and in which record. See
docs/decisions/0020 for why no streaming parser is used, and 0067 for the two ways.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

import msgspec

from penstock.connectors.quick import quick_lines
from penstock.model.errors import Rejected

Value = str | int | Decimal | bool | None
Record = dict[str, Value]

_PIECE = 1 << 18
_MIB = 1 << 20
_RATIO_FROM = 16 * _MIB  # below it any ratio is harmless
_MEMBERS = 10_000
_LONGEST_NUMBER = 40
_INT64 = 1 << 63
_GZIP = 16 + zlib.MAX_WBITS

# Unrolled, so that each character is looked at in one way only and a failure costs no more than a success.
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_PLAIN = rb'[^"{}\[\]]*'
_RECORD = rb"\{" + _PLAIN + rb"(?:" + _STRING + _PLAIN + rb")*\}"
_SPACE = rb"[ \t\r\n]*"
_RUN = re.compile(rb"(?:" + _SPACE + _RECORD + _SPACE + rb",)*", re.DOTALL)
_EACH = re.compile(_RECORD, re.DOTALL)
_LAST = re.compile(_SPACE + rb"(" + _RECORD + rb")" + _SPACE + rb"\]", re.DOTALL)
_EMPTY = re.compile(_SPACE + rb"\]")
_OPEN = re.compile(_SPACE + rb"\[")
_BEGUN = re.compile(
    _SPACE
    + rb"(?:\{"
    + _PLAIN
    + rb"(?:"
    + _STRING
    + _PLAIN
    + rb')*(?:"[^"\\]*(?:\\.[^"\\]*)*\\?|\}'
    + _SPACE
    + rb")?)?",
    re.DOTALL,
)
_LONG_DIGITS = re.compile(rb"[0-9]{19}")


class BadReport(Rejected):
    """A report's file cannot be read; `reason` says what is wrong with it and where."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the report cannot be read: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a file may become: in all, for each compressed byte, and for one record."""

    max_bytes: int = 8 << 30
    max_ratio: int = 200
    max_record: int = 1 << 16


async def records(pieces: AsyncIterator[bytes], limits: Limits | None = None) -> AsyncGenerator[bytes]:
    """The records of a file as they came, one on a line, some hundreds at a time, while its bytes arrive.

    Raises BadReport. Other work gets its turn between the pieces, however fast the file arrives.
    """
    import asyncio  # who only reads a folder does without

    reader = Reader(limits or Limits())
    async for piece in pieces:
        for lines in reader.feed(piece):
            yield lines
            await asyncio.sleep(0)
    if last := reader.close():
        yield last


class Reader:
    """The same without a loop: `feed` it the file's bytes, then `close` it."""

    def __init__(self, limits: Limits) -> None:
        self._inflate = _Inflate(limits)
        self._array = _Array(limits)

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The records that became whole; those of small pieces come later, some hundreds at a time."""
        for text in self._inflate.feed(piece):
            if lines := self._array.feed(text):
                yield lines

    def close(self) -> bytes:
        """The file has ended: the last records. Raises BadReport when it should not have."""
        self._inflate.close()
        return self._array.close()


class _Inflate:
    """Decompresses in pieces of bounded size, and stops where the result is out of proportion."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._stream = zlib.decompressobj(_GZIP)
        self._received = self._made = 0
        self._members = 1

    def feed(self, piece: bytes) -> Iterator[bytes]:
        self._received += len(piece)
        rest = piece
        while rest:
            if self._stream.eof:
                self._next_member(rest)
            text = self._text(rest)
            rest = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
            yield text
            # The input may be spent and its text not yet.
            while not rest and not self._stream.eof and len(text) == _PIECE:
                text = self._text(b"")
                yield text

    def close(self) -> None:
        if not self._received:
            raise BadReport("the file is empty; a report without records is '[]'")
        if not self._stream.eof:
            raise BadReport(f"the gzip file ends in the middle, after {self._received:,} bytes")

    def _text(self, rest: bytes) -> bytes:
        try:
            text = self._stream.decompress(rest, _PIECE)
        except zlib.error as error:
            raise BadReport(f"not a whole gzip file: {error}, after {self._made:,} bytes of text") from error
        self._made += len(text)
        self._check()
        return text

    def _next_member(self, rest: bytes) -> None:
        # A file may be several gzip files one after the other; thousands of tiny ones only cost time.
        self._members += 1
        if not rest.startswith(b"\x1f"[: len(rest)]) or self._members > _MEMBERS:
            raise BadReport("something follows the end of the gzip file")
        self._stream = zlib.decompressobj(_GZIP)

    def _check(self) -> None:
        if self._made > self._limits.max_bytes:
            raise BadReport(f"larger than {self._limits.max_bytes:,} bytes decompressed, the limit of a report")
        if self._made > max(_RATIO_FROM, self._received * self._limits.max_ratio):
            raise BadReport(
                f"{self._received:,} bytes became {self._made:,}: growth of more than {self._limits.max_ratio} times"
                " is taken for an attack"
            )


class _Array:
    """Cuts the text of an array into records, one on a line."""

    def __init__(self, limits: Limits) -> None:
        self._limit = limits.max_record
        self._rest = b""
        self._waiting: list[bytes] = []
        self._size = 0
        self._opened = self._closed = False
        self._seen = 0

    def feed(self, text: bytes) -> bytes:
        """The records that became whole. Small pieces are gathered: a record is not looked at for each of them."""
        self._waiting.append(text)
        self._size += len(text)
        return self._cut() if self._size >= _PIECE else b""

    def close(self) -> bytes:
        found = self._cut()
        if not self._closed:
            raise BadReport(f"the JSON ends in the middle, after {self._seen:,} records")
        return found

    def _cut(self) -> bytes:
        held = self._rest + b"".join(self._waiting)
        self._waiting, self._size = [], 0
        if not self._opened:
            held = self._open(held)
        if self._closed or not self._opened:
            self._keep(held)
            return b""
        found = b""
        end = held.rfind(b"},{") + 1
        if end and (quick := quick_lines(held[:end], self._limit)):
            found, held = quick, held[end + 1 :]
            self._seen += found.count(b"\n")
        run = _RUN.match(held)
        end = run.end() if run else 0
        if end:
            found += self._lines(held[: end - 1])
            held = held[end:]
        if last := _LAST.match(held):
            found += self._lines(last[1])
            self._closed = True
            held = held[last.end() :]
        elif not self._seen and (empty := _EMPTY.match(held)):
            self._closed = True
            held = held[empty.end() :]
        self._keep(held)
        return found

    def _open(self, held: bytes) -> bytes:
        start = _OPEN.match(held)
        if start is None:
            if held.strip():
                raise BadReport("not a JSON array of records")
            return held
        self._opened = True
        return held[start.end() :]

    def _keep(self, held: bytes) -> None:
        if self._closed or not self._opened:
            if held.strip(b" \t\r\n"):
                raise BadReport(f"something follows the end of the array, after {self._seen:,} records")
            held = b""
        elif not _BEGUN.fullmatch(held):
            raise BadReport(f"record {self._seen + 1:,} is not a flat JSON object, or not followed by a comma")
        elif len(held) > self._limit:
            raise self._too_long(self._seen + 1)
        self._rest = held

    def _lines(self, run: bytes) -> bytes:
        """The records of a run, looked at one by one."""
        self._check(run)
        # Between the parts of a record a line break is space like any other; in a text there is none.
        each = [record.replace(b"\n", b" ") for record in _EACH.findall(run)]
        for number, record in enumerate(each, self._seen + 1):
            if len(record) > self._limit:
                raise self._too_long(number)
        self._seen += len(each)
        return b"".join([record + b"\n" for record in each])

    def _too_long(self, number: int) -> BadReport:
        return BadReport(f"record {number:,} is longer than {self._limit:,} bytes, the limit of a record")

    def _check(self, run: bytes) -> None:
        where = f"near record {self._seen + 1:,}"
        if rb"\u0000" in run:
            raise BadReport(f"{where}: a text holds a NUL character")
        try:
            found: list[Record] = _DECODER.decode(b"[" + run + b"]")
        except UnicodeDecodeError as error:
            raise BadReport(f"{where}: a text is not UTF-8") from error
        except (msgspec.DecodeError, ValueError) as error:
            # The run is whole: what looks cut off to the decoder is half of a pair of escapes.
            said = str(error).replace("Input data was truncated", "a text has a broken escape")
            raise BadReport(f"{where}: {said}") from error
        if _LONG_DIGITS.search(run):
            for value in (value for record in found for value in record.values()):
                if isinstance(value, int) and not -_INT64 <= value < _INT64:
                    raise BadReport(f"{where}: a whole number beyond 64 bits")


def exact(text: str) -> Decimal:
    """A number with a fraction, exactly; for decoders. Raises ValueError where it is longer than any real one."""
    try:
        value = Decimal(text)
    except InvalidOperation:  # an exponent that not even a Decimal has
        value = None
    if value is None or len(text) > _LONGEST_NUMBER or abs(value.adjusted()) > _LONGEST_NUMBER:
        raise ValueError(f"a number of more than {_LONGEST_NUMBER} digits")
    return value


_DECODER = msgspec.json.Decoder(float_hook=exact)

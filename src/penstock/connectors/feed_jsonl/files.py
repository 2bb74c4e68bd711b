"""Reading lines of files that others write: a page at a time, from a place on, in bounded memory."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote_to_bytes

from msgspec import Struct

from penstock.connectors.offers import NotJson, bad, decode, instant_of, line_of, number, offer, text
from penstock.connectors.searches import OFFER_COLUMNS, Bad, Batch, Item
from penstock.model.errors import Fatal, Rejected, Transient

_LONGEST_LINE = 1 << 20
_MOST_BYTES = 4 << 20
_REMEMBERED = 256
_SAFELY = timedelta(days=2)
_TOKEN = re.compile(r"([0-9]{1,18}):([0-9a-f]{16}):([!-~]{1,12000})")
_NUMBERS = frozenset({"salary_min", "salary_max"})
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Place(Struct, frozen=True):
    """A byte of a file, and a digest of what stands before it: it tells whether the file is still the same."""

    name: str
    offset: int
    before: str

    @classmethod
    def read(cls, token: str) -> Place:
        """The place that a token names. Raises Rejected for a token that is none."""
        found = _TOKEN.fullmatch(token)
        if found is None:
            raise Rejected(f"{token!r:.100} is not a place in a folder of offers; begin again without it")
        return cls(os.fsdecode(unquote_to_bytes(found[3])), int(found[1]), found[2])

    @property
    def token(self) -> str:
        """The place as a text."""
        return f"{self.offset}:{self.before}:{quote(os.fsencode(self.name))}"


class Feed:
    """The files of a folder. Everything here blocks."""

    def __init__(self, folder: Path, page_size: int) -> None:
        self._folder = folder
        self._size = page_size

    def page(self, pattern: str, words: Sequence[str], after: Place | None, since: datetime | None) -> Batch:
        """The offers with all of these words, from that place on. Files written long before `since` are left out."""
        page = _Page(self._size, words)
        place = after
        for name, path in self._files(pattern, since):
            if after is not None and os.fsencode(name) < os.fsencode(after.name):
                continue
            try:
                place = _taken(page, name, path, after) or place
            except OSError as error:
                raise Transient(f"{path} cannot be read to its end: {error.strerror or error}") from error
            if place is not None and page.full:
                return Batch(page.records, after=place.token)
        return Batch(page.records, after=None if place is None else place.token, last=True)

    def _files(self, pattern: str, since: datetime | None) -> list[tuple[str, Path]]:
        """The files by their names within the folder, in order. What leads out of the folder is left out."""
        try:
            root = self._folder.resolve(strict=True)
            if not root.is_dir():
                raise Fatal(f"{self._folder} is not a folder")
            os.scandir(root).close()
        except FileNotFoundError:
            raise Transient(f"{self._folder} is not there") from None
        except OSError as error:
            raise Fatal(f"{self._folder} cannot be read: {error.strerror or error}") from error
        found = []
        for path in root.glob(pattern):
            try:
                real = path.resolve(strict=True)
                about = real.stat()
            except (OSError, RuntimeError):  # it is gone, or a circle of links
                continue
            old = since is not None and about.st_mtime < (since - _SAFELY).timestamp()
            if stat.S_ISREG(about.st_mode) and real.is_relative_to(root) and not old:
                found.append((path.relative_to(root).as_posix(), real))
        return sorted(found, key=lambda one: os.fsencode(one[0]))


class _Page:
    """Gathers offers until it is full: of records, or of bytes looked at."""

    def __init__(self, size: int, words: Sequence[str]) -> None:
        self._size = size
        self._words = words
        self._bytes = 0
        self.records: list[Item | Bad] = []

    @property
    def full(self) -> bool:
        return len(self.records) >= self._size or self._bytes >= _MOST_BYTES

    def read(self, file: BinaryIO) -> None:
        """Take lines until the page is full or the file ends; the file is left where the next page begins."""
        while not self.full:
            start = file.tell()
            line = file.readline(_LONGEST_LINE)
            if not line:
                return
            self._bytes += len(line)
            if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
                if not _skip(file):
                    file.seek(start)
                    return
                self.records.append(Bad(f"the line is longer than {_LONGEST_LINE:,} bytes", _beginning(line)))
            elif not self._take(line):
                file.seek(start)
                return

    def _take(self, line: bytes) -> bool:
        """Whether the line was whole. One without an end is whole if it is an object: no longer one begins with it."""
        if not line.strip():
            return line.endswith(b"\n")
        try:
            record = decode(line)
        except NotJson as error:
            if not line.endswith(b"\n"):
                return False
            self.records.append(Bad(f"the line is not JSON: {error}", _beginning(line)))
            return True
        if not isinstance(record, dict):
            if line.endswith(b"\n"):
                self.records.append(bad("it is not an object", record))
            return line.endswith(b"\n")
        found = _offer(record)
        if isinstance(found, Bad) or self._matches(found):
            self.records.append(found)
        return True

    def _matches(self, item: Item) -> bool:
        if not self._words:
            return True
        title, description = item.values[0], item.values[OFFER_COLUMNS.index("description")]
        searched = f"{title}\n{description or ''}".casefold()
        return all(word in searched for word in self._words)


def _offer(record: dict[str, Any]) -> Item | Bad:
    values = tuple(_column(name, record.get(name)) for name in OFFER_COLUMNS)
    updated = record.get("updated_at")
    return offer(record, record.get("published_at") if updated in (None, "") else updated, values, line_of(record))


def _column(name: str, value: Any) -> Any:
    if name in _NUMBERS:
        return number(value)
    return instant_of(value) if name == "published_at" else text(value, name)


def _taken(page: _Page, name: str, path: Path, after: Place | None) -> Place | None:
    """Where the page ends in a file, of which as much was taken as there was room for; None where it is gone."""
    with _opened(path) as file:
        if file is None:
            return None
        begun = after is not None and after.name == name and _same(file, after)
        file.seek(after.offset if after is not None and begun else 0)
        page.read(file)
        end = file.tell()
        return Place(name, end, _digest(file, end))


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO | None]:
    """The file; None where it is gone by now. A link or a pipe that has taken its place is not followed."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
            yield None
            return
        raise Fatal(f"{path} cannot be read: {error.strerror or error}") from error
    with os.fdopen(descriptor, "rb") as file:
        yield file if stat.S_ISREG(os.fstat(descriptor).st_mode) else None


def _same(file: BinaryIO, place: Place) -> bool:
    size = os.fstat(file.fileno()).st_size
    return place.offset <= size and _digest(file, place.offset) == place.before


def _digest(file: BinaryIO, offset: int) -> str:
    start = max(0, offset - _REMEMBERED)
    file.seek(start)
    return hashlib.blake2b(file.read(offset - start), digest_size=8).hexdigest()


def _skip(file: BinaryIO) -> bool:
    """Go to the end of a line; False where it has none yet."""
    while line := file.readline(_LONGEST_LINE):
        if line.endswith(b"\n"):
            return True
    return False


def _beginning(line: bytes) -> str:
    return line_of(line[:1_000].decode("utf-8", "replace"))

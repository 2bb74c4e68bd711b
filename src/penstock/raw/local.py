"""Landed data on a local disk: written beside its place, flushed, and moved there whole.

The move of a folder is what finalises a run. It fails where a run already is, so that a run is finalised once; before
it nothing is visible, and after it the files are read-only. A power cut leaves the one or the other.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

from penstock.raw.store import (
    CHUNK,
    METADATA,
    PAYLOAD,
    AlreadyFinalised,
    RawMissing,
    RawUnavailable,
    Unfinished,
    Unreadable,
    encode_metadata,
)

_WRITING = ".writing-"


class LocalAttempt:
    """A run in a folder of its own, next to the place that it will have."""

    def __init__(self, place: Path, root: Path) -> None:
        self._place = place
        self._root = root
        with _told(place):
            _make_folders(place.parent, root)
            self._folder = Path(tempfile.mkdtemp(prefix=_WRITING, dir=place.parent))
            self._file = _opened(self._folder / PAYLOAD)

    def write(self, data: bytes) -> None:
        with _told(self._place):
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]

    def finalise(self, metadata: Mapping[str, object]) -> None:
        with _told(self._place):
            os.fsync(self._file.fileno())
            self._file.close()
            with _opened(self._folder / METADATA) as file:
                file.write(encode_metadata(metadata))
                os.fsync(file.fileno())
            for name in (PAYLOAD, METADATA):
                (self._folder / name).chmod(0o400)
            _flush_folder(self._folder)
            try:
                self._folder.rename(self._place)
            except OSError as error:
                if not (self._place / METADATA).exists():
                    raise
                self.abandon()
                msg = f"{self._place} is finalised and can no longer be changed; a new attempt needs a new run id"
                raise AlreadyFinalised(msg) from error
            _flush_folder(self._place.parent)

    def abandon(self) -> None:
        self._file.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class LocalStore:
    """A folder of this machine, or of a network filesystem that can rename a folder in one step."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def begin(self, folder: str) -> LocalAttempt:
        return LocalAttempt(self.root / folder, self.root)

    def metadata(self, folder: str) -> bytes | None:
        place = self.root / folder / METADATA
        with _told(place):
            try:
                return place.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def size(self, folder: str, metadata: Mapping[str, object]) -> int:  # noqa: ARG002 - a run has one payload
        place = self.root / folder / PAYLOAD
        with _told(place):
            return place.stat().st_size

    def chunks(self, folder: str, metadata: Mapping[str, object]) -> Iterator[bytes]:  # noqa: ARG002 - likewise
        place = self.root / folder / PAYLOAD
        with _told(place), place.open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                yield chunk

    def address(self, folder: str, metadata: Mapping[str, object]) -> str:  # noqa: ARG002 - likewise
        return str(self.root / folder / PAYLOAD)

    def folders(self, below: str) -> Iterator[str]:
        with _told(self.root):
            for place, children, _ in os.walk(self.root / below):
                runs = sorted(name for name in children if name.startswith("run_id="))
                # Runs have no folders inside, and what is being written is nobody's yet.
                children[:] = sorted(name for name in children if not name.startswith((".", "run_id=")))
                for name in runs:
                    yield (Path(place) / name).relative_to(self.root).as_posix()

    def remove(self, folder: str) -> None:
        place = self.root / folder
        with _told(place):
            # Out of sight in one step: whoever opens it now finds nothing, and who reads it reads on.
            gone = Path(tempfile.mkdtemp(prefix=_WRITING, dir=place.parent))
            try:
                place.rename(gone / place.name)
            finally:
                shutil.rmtree(gone)

    def unfinished(self, before: datetime) -> Iterator[Unfinished | Unreadable]:
        closed: list[OSError] = []
        for place, children, _ in os.walk(self.root, onerror=closed.append):
            folder = Path(place).relative_to(self.root).as_posix()
            attempts = sorted(name for name in children if name.startswith(_WRITING))
            children[:] = sorted(name for name in children if not name.startswith((".", "run_id=")))
            for name in attempts:
                found = _attempt(Path(place) / name, folder)
                if isinstance(found, Unreadable) or (found is not None and found.written_at < before):
                    yield found
        for error in closed:
            if error.filename == str(self.root) and not isinstance(error, FileNotFoundError):
                with _told(self.root):
                    raise error
            if not isinstance(error, FileNotFoundError):
                yield Unreadable(os.path.relpath(error.filename, self.root), str(error.strerror))

    def discard(self, found: Unfinished) -> bool:
        place = self.root / found.path
        if not place.is_dir():
            return False
        shutil.rmtree(place, ignore_errors=True)  # another collector may be at it
        if place.exists():
            msg = f"{place} could not be removed; look at its permissions"
            raise RawUnavailable(msg)
        return True


@contextlib.contextmanager
def _told(place: Path) -> Iterator[None]:
    """An error of the filesystem in the sink's own words."""
    try:
        yield
    except FileNotFoundError as error:
        msg = f"{error.filename or place} is not there (any more)"
        raise RawMissing(msg) from error
    except OSError as error:
        msg = f"{error.filename or place}: {error.strerror or error}"
        raise RawUnavailable(msg) from error


def _make_folders(folder: Path, root: Path) -> None:
    """Make what is missing and flush it: a folder is not durable before the folder above it is."""
    root.parent.mkdir(parents=True, exist_ok=True)
    missing = [place for place in (folder, *folder.parents) if place.is_relative_to(root) and not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)
        _flush_folder(place.parent)


def _opened(place: Path) -> FileIO:
    """A new file for its owner alone."""
    return FileIO(place, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))


def _flush_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _attempt(place: Path, folder: str) -> Unfinished | Unreadable | None:
    """An attempt, with the moment at which it was last added to; None when it is gone by now."""
    path = f"{folder}/{place.name}"
    try:
        times = [place.stat().st_mtime, *(file.stat().st_mtime for file in place.iterdir())]
    except FileNotFoundError:
        return None
    except OSError as error:
        return Unreadable(path, str(error.strerror))
    return Unfinished(path, folder, datetime.fromtimestamp(max(times), UTC))

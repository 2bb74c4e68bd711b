"""Landed data in an object store: S3, Google Cloud Storage, Azure, or memory for tests.

An object store has no folders to move. A run's payload is uploaded under a name of its own for every attempt, and the
conditional creation of `metadata.json`, which names the attempt, finalises the run. A late writer of the same run can
therefore neither change it nor be taken for it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from penstock.raw.paths import read_folder
from penstock.raw.store import (
    CHUNK,
    METADATA,
    PAYLOAD,
    AlreadyFinalised,
    RawCorrupt,
    RawError,
    RawMissing,
    RawUnavailable,
    Unfinished,
    Unreadable,
    encode_metadata,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_PART = 8 * CHUNK  # the parts of an upload: 10,000 of them are the most that S3 takes
_ATTEMPT = "attempt="


class ObjectAttempt:
    """A run whose payload is being uploaded under a token of its own."""

    def __init__(self, store: ObjectStore, folder: str, token: str) -> None:
        self._store = store
        self._folder = folder
        self._payload = f"{_ATTEMPT}{token}/{PAYLOAD}"
        with _told(folder):
            self._upload: Any = obstore.open_writer(
                store, f"{folder}/{self._payload}", buffer_size=_PART, max_concurrency=1
            )

    def write(self, data: bytes) -> None:
        with _told(self._folder):
            self._upload.write(data)

    def finalise(self, metadata: Mapping[str, object]) -> None:
        with _told(self._folder):
            self._upload.close()
            made = encode_metadata({**metadata, "payload": self._payload})
            try:
                obstore.put(self._store, f"{self._folder}/{METADATA}", made, mode="create")
            except (AlreadyExistsError, PreconditionError) as error:
                obstore.delete(self._store, f"{self._folder}/{self._payload}")
                msg = f"{self._folder} is finalised and can no longer be changed; a new attempt needs a new run id"
                raise AlreadyFinalised(msg) from error

    def abandon(self) -> None:
        # Closing would complete the upload; one that is dropped stays invisible, and its parts expire in the bucket.
        self._upload = None


class ObjectStoreBackend:
    """Any store that obstore speaks to and that can create an object only if it is not there."""

    def __init__(self, store: ObjectStore, root: str, tokens: Any) -> None:
        self._store = store
        self._root = root.rstrip("/")
        self._tokens = tokens

    def begin(self, folder: str) -> ObjectAttempt:
        return ObjectAttempt(self._store, folder, self._tokens.token())

    def metadata(self, folder: str) -> bytes | None:
        with _told(folder):
            try:
                return bytes(obstore.get(self._store, f"{folder}/{METADATA}").bytes())
            except FileNotFoundError:
                return None

    def size(self, folder: str, metadata: Mapping[str, object]) -> int:
        with _told(folder):
            return int(obstore.head(self._store, _payload(folder, metadata))["size"])

    def chunks(self, folder: str, metadata: Mapping[str, object]) -> Iterator[bytes]:
        with _told(folder):
            for chunk in obstore.get(self._store, _payload(folder, metadata)).stream(min_chunk_size=CHUNK):
                yield bytes(chunk)

    def address(self, folder: str, metadata: Mapping[str, object]) -> str:
        return f"{self._root}/{_payload(folder, metadata)}"

    def folders(self, below: str) -> Iterator[str]:
        for path, _ in self._objects(below):
            folder, _, name = path.rpartition("/")
            if name == METADATA:
                yield folder

    def remove(self, folder: str) -> None:
        with _told(folder):
            obstore.delete(self._store, f"{folder}/{METADATA}")
            rest = [path for path, _ in self._objects(folder)]
            if rest:
                obstore.delete(self._store, rest)

    def unfinished(self, before: datetime) -> Iterator[Unfinished | Unreadable]:
        for folder, objects in itertools.groupby(self._objects(""), key=lambda item: _run_of(item[0])):
            there = dict(objects)
            attempts = {path: at for path, at in there.items() if path.endswith(f"/{PAYLOAD}")}
            old = {path: at for path, at in attempts.items() if at < before}
            if folder is None or not old or (len(attempts) == 1 and f"{folder}/{METADATA}" in there):
                continue
            try:
                # Asked now, for the list may be older than the run.
                own = self._own_payload(folder)
            except RawError as error:
                yield Unreadable(folder, str(error))
                continue
            yield from (Unfinished(path, folder, at, beside=own is not None) for path, at in old.items() if path != own)

    def discard(self, found: Unfinished) -> bool:
        with _told(found.path):
            try:
                obstore.delete(self._store, found.path)
            except FileNotFoundError:
                return False
        return True

    def _own_payload(self, folder: str) -> str | None:
        """The payload of a run; None when it was never finalised. Raises RawError when that cannot be told."""
        text = self.metadata(folder)
        if text is None:
            return None
        try:
            named = json.loads(text)["payload"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            msg = f"its metadata.json cannot be read: {type(error).__name__} {error}"
            raise RawCorrupt(msg) from error
        return f"{folder}/{named}"

    def _objects(self, below: str) -> Iterator[tuple[str, datetime]]:
        with _told(below):
            for page in obstore.list(self._store, below or None, chunk_size=1_000):
                for item in page:
                    yield item["path"], item["last_modified"]


def _payload(folder: str, metadata: Mapping[str, object]) -> str:
    return f"{folder}/{metadata['payload']}"


def _run_of(path: str) -> str | None:
    """The folder of the run that an object belongs to; None for what is not ours."""
    folder, _, name = path.rpartition("/")
    if name == PAYLOAD:
        folder, _, token = folder.rpartition("/")
        folder = folder if token.startswith(_ATTEMPT) else ""
    return folder if name in (PAYLOAD, METADATA) and read_folder(folder) is not None else None


@contextlib.contextmanager
def _told(place: str) -> Iterator[None]:
    """An error of the store in the sink's own words; obstore adds pages of detail after the first line."""
    try:
        yield
    except FileNotFoundError as error:
        msg = f"{place} is not there (any more)"
        raise RawMissing(msg) from error
    except (BaseError, OSError) as error:
        msg = f"{place}: {str(error).splitlines()[0]}"
        raise RawUnavailable(msg) from error

"""The published watermark: one small JSON blob, replaced only by whoever knows what lies there.

An object store compares ETags itself. A file is compared under a lock beside it and moved into place whole, because
nothing else on a filesystem replaces a file only if it is the one that was read.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from penstock.model.clock import instant_text, parse_instant
from penstock.model.errors import Fatal, Rejected, Transient, UsageError
from penstock.settings.addresses import plain_store
from penstock.settings.secret import Secret

if TYPE_CHECKING:
    from obstore.store import ObjectStore

REMOTE = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
_PATIENCE = timedelta(seconds=10)


class ForeignBlob(Rejected):
    """Somebody else wrote the blob, or removed it: a person decides which of the two is right."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """What the blob says: up to when everything was read, by which run, and when that run had finished."""

    last_updated_at: datetime
    last_run_id: str
    last_run_completed_at: datetime

    def encode(self) -> bytes:
        """The document as it is published: the same bytes for the same watermark."""
        document = {
            "lastUpdatedAt": instant_text(self.last_updated_at),
            "lastRunId": self.last_run_id,
            "lastRunCompletedAt": instant_text(self.last_run_completed_at),
        }
        return json.dumps(document).encode()

    @classmethod
    def decode(cls, content: bytes) -> Watermark:
        """Read the blob. Raises ForeignBlob for what no watermark looks like."""
        try:
            found = json.loads(content)
            moments = [parse_instant(found[name]) for name in ("lastUpdatedAt", "lastRunCompletedAt")]
            return cls(moments[0], str(found["lastRunId"]), moments[1])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            msg = f"the blob is not a watermark: {type(error).__name__}: {error}"
            raise ForeignBlob(msg) from error


class Found(NamedTuple):
    """What lies there, and the tag by which it is known."""

    content: bytes
    etag: str


class Blob(Protocol):
    """Where the watermark is published. Its methods block."""

    @property
    def address(self) -> str:
        """As people write it."""

    def read(self) -> Found | None:
        """What lies there; None when nothing does."""

    def swap(self, content: bytes, etag: str | None) -> str:
        """Replace what has that tag (None: what is not there yet); the new tag.

        Raises ForeignBlob when something else lies there, unless it is this very content: then an earlier attempt has
        landed without our hearing of it. Raises Transient when the store is away, Fatal when it refuses us.
        """


class FileBlob:
    """A file of this machine. Its tag is the digest of its content."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.address = str(path)

    def read(self) -> Found | None:
        with _told(self.address):
            try:
                content = self._path.read_bytes()
            except FileNotFoundError:
                return None
        return Found(content, _digest(content))

    def swap(self, content: bytes, etag: str | None) -> str:
        with _told(self.address):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked():
                found = self.read()
                if (found and found.etag) != etag:
                    return _landed(self.address, found, content)
                self._replace(content)
        return _digest(content)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # The lock file stays: one that is removed could be locked by two, each by its own.
        number = os.open(self._path.with_name(self._path.name + ".lock"), os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
            yield
        finally:
            os.close(number)

    def _replace(self, content: bytes) -> None:
        number, name = tempfile.mkstemp(prefix=f".{self._path.name}-", dir=self._path.parent)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o644)
            Path(name).rename(self._path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class ObjectBlob:
    """An object of a store that compares ETags: S3, Google Cloud Storage, Azure."""

    def __init__(self, store: ObjectStore, name: str, address: str) -> None:
        self._store = store
        self._name = name
        self.address = address

    def read(self) -> Found | None:
        import obstore

        with _told(self.address):
            try:
                found = obstore.get(self._store, self._name)
            except FileNotFoundError:
                return None
            return Found(bytes(found.bytes()), str(found.meta["e_tag"]))

    def swap(self, content: bytes, etag: str | None) -> str:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        mode: Any = "create" if etag is None else {"e_tag": etag}
        with _told(self.address):
            try:
                return str(obstore.put(self._store, self._name, content, mode=mode)["e_tag"])
            except (AlreadyExistsError, PreconditionError, FileNotFoundError):
                return _landed(self.address, self.read(), content)


def open_blob(address: str, options: Mapping[str, str | Secret] | None = None) -> Blob:
    """The blob at a path, `file://…`, `s3://bucket/name`, `gs://…` or `az://container/name`. Raises UsageError.

    `options` are the store's own (`aws_region`, `azure_storage_account_name`, …); what is secret is a reference, read
    here and nowhere else. Without them a store finds its credentials where its own tools do.
    """
    scheme, colon, rest = address.partition("://")
    if not colon:
        return FileBlob(Path(address).absolute())
    if scheme == "file":
        return FileBlob(Path(unquote(urlsplit(address).path)))
    place, _, name = rest.partition("/")
    if scheme not in REMOTE or not place or not name or name.endswith("/"):
        msg = (
            f"{address!r} cannot hold a watermark; write a file,"
            " s3://BUCKET/NAME, gs://BUCKET/NAME or az://CONTAINER/NAME"
        )
        raise UsageError(msg)
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    given: dict[str, Any] = {n: v.reveal() if isinstance(v, Secret) else v for n, v in (options or {}).items()}
    try:
        store = from_url(
            f"{scheme}://{place}",
            client_options={"timeout": _PATIENCE, "allow_http": plain_store(scheme, given)},
            retry_config={"max_retries": 2, "retry_timeout": _PATIENCE},
            **given,
        )
    except (BaseError, ValueError, TypeError) as error:
        msg = f"{address}: {_first_line(error)}"
        raise UsageError(msg) from error
    return ObjectBlob(store, name, address)


def _landed(address: str, found: Found | None, content: bytes) -> str:
    if found is None:
        msg = f"{address} was removed by somebody else"
        raise ForeignBlob(msg)
    if found.content != content:
        msg = f"{address} was written by somebody else; it says {found.content[:200].decode(errors='replace')}"
        raise ForeignBlob(msg)
    return found.etag


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def _told(address: str) -> Iterator[None]:
    """An error of the store as a connector classifies it; obstore adds pages of detail after the first line."""
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
        raise Fatal(f"{address}: {_first_line(error)}") from error
    except (BaseError, OSError) as error:
        raise Transient(f"{address}: {_first_line(error)}") from error

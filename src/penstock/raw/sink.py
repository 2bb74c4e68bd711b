"""The raw sink: immutable landed data, one folder per partition and run, on any store.

A run is written once, in a stream, and becomes visible whole when it is finalised; before that it may be begun anew as
often as needed. `metadata.json` says how many records the payload has, and its checksum.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from penstock.model.clock import Rng, instant_text, parse_instant
from penstock.model.errors import UsageError
from penstock.raw.local import LocalStore
from penstock.raw.paths import PARTS, PartitionKey, encode, partition_folder, read_folder, run_folder
from penstock.raw.store import CHUNK, AlreadyFinalised, Attempt, RawCorrupt, RawMissing, Store, Unfinished, Unreadable
from penstock.settings.addresses import plain_store

_REMOTE = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "memory")
Record = Mapping[str, Any] | bytes
BLOCK = 256 * 1024


@dataclass(frozen=True, slots=True)
class RawMetadata:
    """What `metadata.json` says. `checksum` is the SHA-256 of the payload, `facts` is what the source told of it."""

    key: PartitionKey
    run_id: str
    schema_version: str
    record_count: int
    checksum: str
    size: int
    created_at: datetime
    facts: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As it stands in the file."""
        return {
            **{name: str(getattr(self.key, name)) for name in PARTS},
            "run_id": self.run_id,
            "schema_version": self.schema_version,
            "record_count": self.record_count,
            "checksum": self.checksum,
            "size": self.size,
            "created_at": instant_text(self.created_at),
            "facts": dict(self.facts),
        }


class RawWriter:
    """A run that is being written: `with sink.writer(…) as run: run.write(row)`. Leaving it by an error abandons it."""

    def __init__(self, attempt: Attempt, metadata: RawMetadata) -> None:
        self._attempt = attempt
        self._begun = metadata
        self._digest = hashlib.sha256()
        self._waiting: list[bytes] = []
        self._waiting_size = 0
        self.count = 0
        self.size = 0
        #: What the source told; it may be added to until the run is finalised.
        self.facts: dict[str, Any] = dict(metadata.facts)
        self.metadata: RawMetadata | None = None

    def write(self, record: Record) -> None:
        """Append one record: a mapping, or the line of JSON that it already is. Raises UsageError for anything else."""
        line = _line(record)
        self._waiting.append(line)
        self._waiting_size += len(line)
        self.count += 1
        if self._waiting_size >= CHUNK:
            self._flush()

    def write_lines(self, lines: bytes) -> None:
        """Append records that are lines of JSON already. Raises UsageError where the last one has no line break."""
        if not lines.endswith(b"\n"):
            msg = f"records are lines of JSON, and the last one ends without a line break: {lines[-60:]!r}"
            raise UsageError(msg)
        self._waiting.append(lines)
        self._waiting_size += len(lines)
        self.count += lines.count(b"\n")
        if self._waiting_size >= CHUNK:
            self._flush()

    def finalise(self) -> RawMetadata:
        """Make the run visible, for good. Raises AlreadyFinalised when it is there already."""
        self._flush()
        begun = self._begun
        made = RawMetadata(
            begun.key,
            begun.run_id,
            begun.schema_version,
            self.count,
            f"sha256:{self._digest.hexdigest()}",
            self.size,
            begun.created_at,
            self.facts,
        )
        self._attempt.finalise(made.document())
        self.metadata = made
        return made

    def abandon(self) -> None:
        """Forget the attempt; the run may be begun anew."""
        self._attempt.abandon()

    def _flush(self) -> None:
        if self._waiting:
            data = b"".join(self._waiting)
            self._waiting, self._waiting_size = [], 0
            self._digest.update(data)
            self.size += len(data)
            self._attempt.write(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is not None:
            self.abandon()
        elif self.metadata is None:
            self.finalise()


@dataclass(frozen=True, slots=True)
class RawPartition:
    """A finalised run, opened."""

    metadata: RawMetadata
    #: The payload as other programs name it: a path of this machine, or an address of the store.
    address: str
    _store: Store
    _folder: str
    _document: Mapping[str, Any]

    def lines(self) -> Iterator[bytes]:
        """The payload line by line, without the line breaks. Raises RawCorrupt as `blocks` does."""
        for block in self.blocks():
            yield from block[:-1].split(b"\n")

    def blocks(self) -> Iterator[bytes]:
        """The payload, many whole lines at a time. Raises RawCorrupt when it is not what was landed.

        A payload of another length is refused before its first line; another checksum shows at the end.
        """
        size = self._store.size(self._folder, self._document)
        if size != self.metadata.size:
            msg = f"{self.address} has {size:,} bytes; {self.metadata.size:,} were landed"
            raise RawCorrupt(msg)
        digest = hashlib.sha256()
        rest, count = b"", 0
        for chunk in self._store.chunks(self._folder, self._document):
            digest.update(chunk)
            end = chunk.rfind(b"\n") + 1
            if not end:
                rest += chunk
                continue
            block, rest = rest + chunk[:end], chunk[end:]
            count += block.count(b"\n")
            yield from _cut(block)
        checksum = f"sha256:{digest.hexdigest()}"
        if rest or checksum != self.metadata.checksum:
            msg = f"{self.address} has the checksum {checksum}; {self.metadata.checksum} was landed"
            raise RawCorrupt(msg)
        if count != self.metadata.record_count:
            msg = f"{self.address} has {count:,} records; its metadata says {self.metadata.record_count:,}"
            raise RawCorrupt(msg)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The records. Raises RawCorrupt as `lines` does, and for a line that is not a JSON object."""
        for number, line in enumerate(self.lines(), 1):
            yield decode_row(line, number, self.address)


class RawSink:
    """Landed data at an address: a folder, `file://`, `s3://`, `gs://`, `az://` or `memory://`.

    Credentials of an object store are those of its own environment variables; `options` are obstore's.
    """

    def __init__(self, url: str | Path, *, rng: Rng | None = None, options: Mapping[str, Any] | None = None) -> None:
        self.url = str(url)
        self._store = _open_store(self.url, rng or Rng(), dict(options or {}))

    def writer(
        self,
        key: PartitionKey,
        run_id: str,
        *,
        schema_version: str,
        created_at: datetime,
        facts: Mapping[str, Any] | None = None,
    ) -> RawWriter:
        """Begin a run. Raises AlreadyFinalised when it is there already."""
        folder = run_folder(key, run_id)
        if not isinstance(schema_version, str) or not schema_version:
            msg = f"{key}: schema_version is {schema_version!r}; it must be text that is not empty"
            raise UsageError(msg)
        if self._store.metadata(folder) is not None:
            msg = f"{key} run {run_id} is finalised and can no longer be changed; a new attempt needs a new run id"
            raise AlreadyFinalised(msg)
        begun = RawMetadata(key, run_id, schema_version, 0, "", 0, created_at, dict(facts or {}))
        return RawWriter(self._store.begin(folder), begun)

    def write_partition(
        self,
        key: PartitionKey,
        run_id: str,
        records: Iterable[Record],
        *,
        schema_version: str,
        created_at: datetime,
        facts: Mapping[str, Any] | None = None,
    ) -> RawMetadata:
        """Write a whole run from any iterable, in bounded memory, and finalise it."""
        with self.writer(key, run_id, schema_version=schema_version, created_at=created_at, facts=facts) as run:
            for record in records:
                run.write(record)
            return run.finalise()

    def find(self, key: PartitionKey, run_id: str) -> RawMetadata | None:
        """What a finalised run says of itself; None when there is none. Raises RawCorrupt when it cannot be read."""
        found = self._store.metadata(run_folder(key, run_id))
        return None if found is None else _read(found, key, run_id)[0]

    def open_partition(self, key: PartitionKey, run_id: str) -> RawPartition:
        """A finalised run. Raises RawMissing when there is none, RawCorrupt when its metadata cannot be read."""
        folder = run_folder(key, run_id)
        found = self._store.metadata(folder)
        if found is None:
            msg = f"{key} has no finalised run {run_id} in {self.url}"
            raise RawMissing(msg)
        metadata, document = _read(found, key, run_id)
        return RawPartition(metadata, self._store.address(folder, document), self._store, folder, document)

    def list_partitions(
        self,
        source: str | None = None,
        customer_id: str | None = None,
        query_name: str | None = None,
        logical_date: date | None = None,
    ) -> Iterator[tuple[PartitionKey, str]]:
        """Key and run id of every finalised run, in order; each part of a key narrows it if those before are given."""
        parts = (source, customer_id, query_name, logical_date)
        given = list(zip(PARTS, parts, strict=True))[: parts.index(None) if None in parts else len(parts)]
        if any(part is not None for part in parts[len(given) :]):
            msg = f"to list by {PARTS[len(given) + 1]} or what follows, {PARTS[len(given)]} is needed too"
            raise UsageError(msg)
        for folder in self._store.folders("/".join(f"{name}={encode(name, str(part))}" for name, part in given)):
            if (found := read_folder(folder)) is not None:
                yield found

    def runs(self, key: PartitionKey) -> list[str]:
        """The ids of a partition's finalised runs, oldest first."""
        found = (read_folder(folder) for folder in self._store.folders(partition_folder(key)))
        return sorted(run for each in found if each is not None for run in each[1:])

    def remove(self, key: PartitionKey, run_id: str) -> None:
        """Remove a finalised run. Whoever calls this has made sure that nothing refers to it."""
        self._store.remove(run_folder(key, run_id))

    def unfinished(self, before: datetime) -> Iterator[Unfinished | Unreadable]:
        """The attempts that were last written before that moment and never finalised, and what cannot be told."""
        return self._store.unfinished(before)

    def discard(self, found: Unfinished) -> bool:
        """Remove an attempt; False when it is gone already. `collect` says which may go."""
        return self._store.discard(found)


def _cut(lines: bytes) -> Iterator[bytes]:
    """Whole lines in pieces of about `BLOCK` bytes: what is made of a piece takes many times its memory."""
    start = 0
    while start < len(lines):
        end = lines.find(b"\n", start + BLOCK) + 1 or len(lines)
        yield lines[start:end]
        start = end


def decode_row(line: bytes, number: int, place: str) -> dict[str, Any]:
    """One record. Raises RawCorrupt that names the line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        msg = f"{place} line {number:,} is not JSON: {error}"
        raise RawCorrupt(msg) from error
    if not isinstance(row, dict):
        msg = f"{place} line {number:,} is {type(row).__name__}, not an object"
        raise RawCorrupt(msg)
    return row


def _line(record: Record) -> bytes:
    if isinstance(record, bytes):
        if b"\n" in record or not record:
            msg = f"a record is one line of JSON, not {record[:60]!r}"
            raise UsageError(msg)
        return record + b"\n"
    try:
        text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair: JSON can carry it in its escaped form alone
        return json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"a record cannot be stored as JSON: {error}"
        raise UsageError(msg) from error


def _read(text: bytes, key: PartitionKey, run_id: str) -> tuple[RawMetadata, dict[str, Any]]:
    """`metadata.json`, compared with the name that it was found under."""
    try:
        document = json.loads(text)
        found = RawMetadata(
            PartitionKey(
                document["source"],
                document["customer_id"],
                document["query_name"],
                date.fromisoformat(document["logical_date"]),
            ),
            document["run_id"],
            document["schema_version"],
            int(document["record_count"]),
            document["checksum"],
            int(document["size"]),
            parse_instant(document["created_at"]),
            document.get("facts") or {},
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        msg = f"metadata.json of {key} run {run_id} cannot be read: {type(error).__name__} {error}"
        raise RawCorrupt(msg) from error
    if (found.key, found.run_id) != (key, run_id):
        msg = f"metadata.json of {key} run {run_id} says it is {found.key} run {found.run_id}"
        raise RawCorrupt(msg)
    return found, document


def _over_tls(scheme: str, options: dict[str, Any]) -> dict[str, Any]:
    """A store is asked over TLS, whatever its environment allows, unless it is an emulator of this machine."""
    client = {**options.get("client_options", {}), "allow_http": plain_store(scheme, options)}
    return {**options, "client_options": client}


def _open_store(url: str, rng: Rng, options: dict[str, Any]) -> Store:
    scheme, colon, _ = url.partition("://")
    if not colon:
        if not url.strip():
            msg = "a raw sink needs an address: a folder, file://, s3://, gs://, az:// or memory://"
            raise UsageError(msg)
        return LocalStore(Path(url).absolute())
    if scheme == "file":
        return LocalStore(Path(unquote(urlsplit(url).path)))
    if scheme not in _REMOTE:
        msg = f"{url!r} is not an address of a raw sink; write a folder, file://, s3://, gs://, az:// or memory://"
        raise UsageError(msg)
    from obstore.exceptions import BaseError
    from obstore.store import MemoryStore, from_url

    from penstock.raw.objects import ObjectStoreBackend

    try:
        store = MemoryStore() if scheme == "memory" else from_url(url, **_over_tls(scheme, options))
    except (BaseError, ValueError, TypeError) as error:
        msg = f"{url}: {str(error).splitlines()[0]}"
        raise UsageError(msg) from error
    return ObjectStoreBackend(store, url, rng)

"""Amazon Marketing Stream: hourly data, as deltas that somebody else receives and lays into a folder.

The stream is pushed into a queue, at least once; a consumer of the queue, which is not Penstock's, writes what it gets:

    <root>/<profile_id>/<dataset>/<hour>/<any name>.jsonl        hour as 2026-11-14T10, in UTC

one delta on a line, unchanged, in files that appear whole (written under another ending, then renamed). A delta belongs
to the hour of its `time_window_start`, however late it arrives. Deltas are counted once by their `idempotency_id` and
then summed.

The stream is silent where nothing happened, so silence has to be written down: once the consumer knows that nothing
came for an hour, it lays an empty file into the hour's folder. An hour is known when each dataset has a file for it,
empty or not. One without a file has not come yet: it is never taken for zero.

Reports of hours look like other reports: `snapshot` opens one and gives it an id, `status` says whether the hour has
come, and `records` reads what has arrived by then. All of them touch the disk: run them where blocking work runs.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pysqlite3

from penstock.connectors.amazon_ads.report import Created, ReportState, ReportStatus
from penstock.connectors.records import BadReport, Record, Value, exact
from penstock.model.clock import Clock, instant_text, parse_instant
from penstock.model.errors import Rejected, UsageError

ORIGIN = "Amazon Marketing Stream, deltas from a folder"
DATASETS = ("sp-traffic", "sp-conversion")

_LONGEST_LINE = 1 << 20
_AT_ONCE = 1_000
_LARGEST = 1 << 62
_HOUR = "%Y-%m-%dT%H"
_ENDING = ".jsonl"
_ENTITIES = {
    "target": {
        "campaign_id": "campaignId",
        "ad_group_id": "adGroupId",
        "keyword_id": "keywordId",
        "keyword_text": "keyword",
        "match_type": "matchType",
    },
    "product": {"campaign_id": "campaignId", "ad_group_id": "adGroupId", "ad_id": "adId"},
}
_METRICS = {
    "impressions": "impressions",
    "clicks": "clicks",
    "cost": "cost",
    "attributed_conversions_7d": "purchases7d",
    "attributed_sales_7d": "sales7d",
}
# What only describes: a conversion may come without it, and must still meet its clicks.
_DESCRIBES = ("keyword_text", "match_type")
_ID = re.compile(r"stream/(?P<entity>\w+)/(?P<hour>\d{4}-\d\d-\d\dT\d\d)/(?P<opened>[0-9TZ:.-]+)")
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
_SAFE = re.compile(r"[\w.-]*\w[\w.-]*")
_DECODER = msgspec.json.Decoder(dict[str, Any], float_hook=exact)


class StreamGone(Rejected):
    """The folder of the stream is not there, or cannot be read; the message says which and why."""


@dataclass(frozen=True, slots=True)
class AmazonStream:
    """The hours of one profile. Every method raises StreamGone while the profile's folder is not there."""

    root: Path
    profile_id: str
    clock: Clock

    def __post_init__(self) -> None:
        if not _SAFE.fullmatch(self.profile_id):
            raise UsageError(f"{self.profile_id!r} is not a profile id; use letters, digits, '.', '-' and '_'")

    @property
    def folder(self) -> Path:
        """Where the consumer lays what the stream brings for this profile."""
        return self.root / self.profile_id

    def require(self) -> None:
        """Raise StreamGone unless the profile's folder is there."""
        with _readable(self.folder):
            if not stat.S_ISDIR(self.folder.stat().st_mode):
                raise StreamGone(f"{self.folder} is not a folder")

    def first_hour(self) -> datetime | None:
        """The earliest hour that the stream has brought traffic of; None before the first one."""
        self.require()
        hours = (_hour_of(name) for name in _names(self.folder / DATASETS[0]))
        return min((hour for hour in hours if hour is not None), default=None)

    def snapshot(self, hour: datetime, entity_type: str) -> Created:
        """Open the report of an hour. Its id says all that `records` needs."""
        if entity_type not in _ENTITIES:
            raise UsageError(f"{entity_type!r} is not an entity type; use one of {', '.join(_ENTITIES)}")
        start = hour.astimezone(UTC)
        if start != start.replace(minute=0, second=0, microsecond=0):
            raise UsageError(f"{hour.isoformat()} is not the start of an hour")
        self.require()
        now = self.clock.now()
        return Created(f"stream/{entity_type}/{start.strftime(_HOUR)}/{instant_text(now)}", now)

    def status(self, report_id: str) -> ReportStatus:
        """Completed once each dataset has a file for the hour; pending, with what is missing, until then."""
        _, hour, opened = _parts(report_id)
        _, missing = self._files(hour)
        if missing:
            return ReportStatus(report_id, ReportState.PENDING, missing, created_at=opened)
        return ReportStatus(report_id, ReportState.COMPLETED, "COMPLETED", created_at=opened, generated_at=opened)

    def records(self, report_id: str) -> Iterator[list[Record]]:
        """The sums of an hour, some hundreds at a time; nothing where its files are empty. Raises BadReport.

        Raises StreamGone where a dataset has no file for the hour. Its memory does not grow with the number of deltas.
        """
        entity_type, hour, _ = _parts(report_id)
        files, missing = self._files(hour)
        if missing:
            raise StreamGone(missing)
        with closing(_Deltas(_ENTITIES[entity_type])) as deltas:
            for path in files:
                with _readable(path):
                    deltas.add(path, hour)
            rows = deltas.sums(instant_text(hour))
            while batch := list(itertools.islice(rows, _AT_ONCE)):
                yield batch

    def _files(self, hour: datetime) -> tuple[list[Path], str]:
        """The files of an hour, and what is missing of it: a dataset without a file."""
        self.require()
        files: list[Path] = []
        lacking = []
        for dataset in DATASETS:
            folder = self.folder / dataset / hour.strftime(_HOUR)
            paths = (folder / name for name in sorted(_names(folder)) if name.endswith(_ENDING))
            with _readable(folder):
                found = [path for path in paths if path.is_file()]  # a pipe would be read for ever
            files += found
            if not found:
                lacking.append(dataset)
        missing = f"the stream has brought no file of {hour.strftime(_HOUR)} for {' and '.join(lacking)}"
        return files, missing if lacking else ""


class _Deltas:
    """Deltas once each, in a temporary file that the database library keeps, grouped and summed exactly."""

    def __init__(self, entity: dict[str, str]) -> None:
        self._entity = entity
        self._keys = [name for name in entity if name not in _DESCRIBES]
        # A step may go on in another thread than the one it began in; never in two at once.
        self._database = pysqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._database.execute(
            "CREATE TABLE delta (id BLOB PRIMARY KEY, entity TEXT NOT NULL, body TEXT NOT NULL) WITHOUT ROWID"
        )
        self._database.execute("BEGIN")

    def add(self, path: Path, hour: datetime) -> None:
        rows = self._rows(path, hour)
        while batch := list(itertools.islice(rows, _AT_ONCE)):
            self._database.executemany("INSERT OR IGNORE INTO delta VALUES (?, ?, ?)", batch)

    def sums(self, hour: str) -> Iterator[Record]:
        rows = self._database.execute("SELECT entity, body FROM delta ORDER BY entity, id")
        for _, group in itertools.groupby(rows, key=lambda row: row[0]):
            record: Record = dict.fromkeys(self._entity.values())
            sums: dict[str, int | Decimal] = dict.fromkeys(_METRICS.values(), 0)
            for _, body in group:
                delta = _DECODER.decode(body)
                for name, column in self._entity.items():
                    if record[column] is None:
                        record[column] = delta.get(name)
                for name, column in _METRICS.items():
                    sums[column] += delta.get(name) or 0
            yield {"hour": hour, **record, **sums}

    def close(self) -> None:
        self._database.close()

    def _rows(self, path: Path, hour: datetime) -> Iterator[tuple[bytes, str, str]]:
        with path.open("rb") as lines:
            for number in itertools.count(1):
                line = lines.readline(_LONGEST_LINE + 1)
                if not line:
                    return
                if line.strip():
                    try:
                        yield self._row(line, hour)
                    except (ValueError, msgspec.DecodeError) as error:
                        raise BadReport(f"{path.name}, line {number}: {error}") from error

    def _row(self, line: bytes, hour: datetime) -> tuple[bytes, str, str]:
        if len(line) > _LONGEST_LINE:
            raise ValueError(f"longer than {_LONGEST_LINE:,} bytes")
        delta = _DECODER.decode(line)
        identity, window = delta.get("idempotency_id"), delta.get("time_window_start")
        if not isinstance(identity, str) or not identity:
            raise ValueError("a delta without idempotency_id")
        if not isinstance(window, str) or parse_instant(window) != hour:
            raise ValueError(f"time_window_start is {window!r}, not {instant_text(hour)}, the hour of its folder")
        key = [_text(delta, name) for name in self._keys]
        wanted = {name: _text(delta, name) for name in self._entity} | {name: _metric(delta, name) for name in _METRICS}
        digest = hashlib.blake2b(identity.encode(), digest_size=16).digest()
        return digest, msgspec.json.encode(key).decode(), _ENCODER.encode(wanted).decode()


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Say of a path that it cannot be read, and why, in place of the system's error."""
    try:
        yield
    except OSError as error:
        raise StreamGone(f"{path} cannot be read: {error.strerror or error}") from error


def _names(folder: Path) -> list[str]:
    """What a folder holds; nothing where it is not there."""
    with _readable(folder), suppress(FileNotFoundError):
        return [path.name for path in folder.iterdir()]
    return []


def _hour_of(name: str) -> datetime | None:
    try:
        hour = datetime.strptime(name, _HOUR).replace(tzinfo=UTC)
    except ValueError:
        return None
    return hour if hour.strftime(_HOUR) == name else None


def _text(delta: dict[str, Any], name: str) -> Value:
    """A text, or a number where it is an id: the stream writes ids as texts, the daily reports as numbers."""
    value = delta.get(name)
    if isinstance(value, str) and name.endswith("_id") and _NUMBER.fullmatch(value):
        return int(value)
    if value is None or isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError(f"{name} is {value!r}, not text")


def _metric(delta: dict[str, Any], name: str) -> int | Decimal:
    value = delta.get(name)
    if value is None:
        return 0
    if isinstance(value, int | Decimal) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST:
        return value
    raise ValueError(f"{name} is {value!r}, not a number that can be summed")


def _parts(report_id: str) -> tuple[str, datetime, datetime]:
    found = _ID.fullmatch(report_id)
    if found is None or found["entity"] not in _ENTITIES:
        raise BadReport(f"{report_id!r} is not the id of a snapshot")
    hour = datetime.strptime(found["hour"], _HOUR).replace(tzinfo=UTC)
    return found["entity"], hour, parse_instant(found["opened"])


_ENCODER = msgspec.json.Encoder(decimal_format="number")

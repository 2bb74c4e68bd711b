"""Names of landed data: the key of a logical partition, the id of a run, and the folder of both in any store.

A folder is made of the key alone, `source=…/customer_id=…/query_name=…/logical_date=…/run_id=…`, each value
percent-encoded: whatever a key contains, it cannot leave the root, and it is read back equal.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import product
from urllib.parse import unquote

from penstock.model.clock import instant_text, parse_instant, truncate
from penstock.model.errors import BadReference, UsageError

PARTS = ("source", "customer_id", "query_name", "logical_date")
PARTITION_MACHINE, PARTITION_TABLE, ATTEMPT_TABLE = "partition", "partition_state", "partition_attempt"
"""Where the ledger keeps the state of partitions, and every evaluation of a run."""
LONGEST = 200
"""Bytes that an encoded value may have: with its name it stays below the 255 of every filesystem."""
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_TEXTS = PARTS[:3]


@dataclass(frozen=True, slots=True, order=True)
class PartitionKey:
    """The smallest independent slice of work. Raises UsageError for a value that no store could keep."""

    source: str
    customer_id: str
    query_name: str
    logical_date: date

    def __post_init__(self) -> None:
        for name in _TEXTS:
            _check(name, getattr(self, name))
        if not isinstance(self.logical_date, date) or isinstance(self.logical_date, datetime):
            msg = f"logical_date is {self.logical_date!r}; it must be a date: the day where the customer is"
            raise UsageError(msg)

    @classmethod
    def parse(cls, text: str) -> PartitionKey:
        """Read the key's one text form, `google_ads/1234567890/campaign_daily/2026-11-01`."""
        parts = text.split("/")
        if len(parts) != len(PARTS):
            msg = f"{text!r} is not a partition; write {'/'.join(PARTS)}, for example {_EXAMPLE}"
            raise BadReference(msg)
        try:
            *names, day = [unquote(part, errors="strict") for part in parts]
            return cls(names[0], names[1], names[2], parse_day(day))
        except UnicodeDecodeError:
            msg = f"{text!r} is not a partition: a %-escape in it is not UTF-8"
            raise BadReference(msg) from None

    def __str__(self) -> str:
        """The key's text, which is also the id of its unit in the ledger."""
        # As `unit.key_part` makes it, without asking again what the key was made of: a range has millions of keys.
        texts = f"{_part(self.source)}/{_part(self.customer_id)}/{_part(self.query_name)}"
        return f"{texts}/{self.logical_date.isoformat()}"


_EXAMPLE = "google_ads/1234567890/campaign_daily/2026-11-01"


@dataclass(frozen=True, slots=True)
class Range:
    """Every query of every customer on every day, both ends included. Raises UsageError when it is empty."""

    source: str
    customers: Sequence[str]
    queries: Sequence[str]
    start: date
    end: date

    def __post_init__(self) -> None:
        if self.end < self.start:
            msg = f"the range from {self.start} to {self.end} ends before it starts"
            raise UsageError(msg)
        if not self.customers or not self.queries:
            msg = "a range needs at least one customer and one query"
            raise UsageError(msg)

    @property
    def days(self) -> int:
        return (self.end - self.start).days + 1

    def __len__(self) -> int:
        return len(self.customers) * len(self.queries) * self.days

    def keys(self) -> Iterator[PartitionKey]:
        """Every key, day by day."""
        for offset in range(self.days):
            day = self.start + timedelta(days=offset)
            for customer, query in product(self.customers, self.queries):
                yield PartitionKey(self.source, customer, query, day)


def parse_day(text: str) -> date:
    """A day as `YYYY-MM-DD`. Raises UsageError."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = None
    if day is None or day.isoformat() != text:
        msg = f"{text!r} is not a date; write YYYY-MM-DD, for example 2026-11-01"
        raise UsageError(msg)
    return day


def run_id_at(moment: datetime) -> str:
    """The id of a run that begins at that moment."""
    return instant_text(truncate(moment))


def check_run_id(text: str) -> str:
    """The same text, if it is a run's id; ids in this form sort as their instants do. Raises UsageError."""
    try:
        canonical = instant_text(parse_instant(text)) == text
    except ValueError:
        canonical = False
    if not canonical:
        msg = (
            f"{text!r} is not a run id; write an instant in UTC with milliseconds, for example 2026-11-15T19:31:00.123Z"
        )
        raise UsageError(msg)
    return text


def partition_folder(key: PartitionKey) -> str:
    """The folder of all runs of a partition, below the root of the store."""
    return "/".join(f"{name}={encode(name, str(getattr(key, name)))}" for name in PARTS)


def run_folder(key: PartitionKey, run_id: str) -> str:
    """The folder of one run."""
    return f"{partition_folder(key)}/run_id={encode('run_id', check_run_id(run_id))}"


def read_partition(folder: str) -> PartitionKey | None:
    """The key of a folder that `partition_folder` made; None for anything else that lies in the store."""
    named = [part.partition("=") for part in folder.split("/")]
    if [name for name, _, _ in named] != list(PARTS):
        return None
    try:
        source, customer_id, query_name, day = [unquote(value, errors="strict") for _, _, value in named]
        key = PartitionKey(source, customer_id, query_name, parse_day(day))
    except (UsageError, UnicodeDecodeError):
        return None
    return key if partition_folder(key) == folder else None


def read_folder(folder: str) -> tuple[PartitionKey, str] | None:
    """The key and the run of a folder that `run_folder` made; None for anything else that lies in the store."""
    above, _, own = folder.rpartition("/")
    key, run_id = read_partition(above), unquote(own.removeprefix("run_id="))
    try:
        return (key, run_id) if key is not None and run_folder(key, run_id) == folder else None
    except UsageError:
        return None


def encode(name: str, value: str) -> str:
    """A value as part of a folder's name. Raises UsageError when it would be too long."""
    made = _encoded(value)
    if len(made) > LONGEST:
        msg = f"{name} {value[:40]!r}… takes {len(made):,} bytes in a path; at most {LONGEST} fit, choose a shorter one"
        raise UsageError(msg)
    return made


@functools.lru_cache(maxsize=65_536)  # a range has many keys and few customers, queries and days
def _encoded(value: str) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in value.encode())


def _part(value: str) -> str:
    return value.replace("%", "%25").replace("/", "%2F")


def _check(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        msg = f"{name} is {value!r}; it must be text that is not empty"
        raise UsageError(msg)
    if _UNSTORABLE.search(value):
        msg = f"{name} {value!r} has a NUL character or half a surrogate pair and cannot be stored"
        raise UsageError(msg)
    encode(name, value)

"""What the refreshes at a ladder of offsets came to: whether data still changes, and so which of them are worth it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import unpack
from typing import Any

from penstock.ledger.store.database import Database

_VERSION = 2
_MASK = (1 << 64) - 1


class Digest:
    """A digest of rows that is the same for the same rows in any order.

    It begins with the version of the way in which it is made: digests of two versions say nothing about each other.
    """

    __slots__ = ("_rows", "_sum")

    def __init__(self) -> None:
        self._rows = 0
        self._sum = 0

    def add(self, lines: bytes) -> None:
        """Add rows, one on a line, in a form that equal rows share."""
        rows = lines.split(b"\n")[:-1]
        self._rows += len(rows)
        self._sum += sum(unpack(f"<{len(rows)}Q", b"".join([blake2b(row, digest_size=8).digest() for row in rows])))

    @property
    def text(self) -> str:
        return f"{_VERSION}:{self._rows:x}-{self._sum & _MASK:016x}"


def differ(one: str, other: str) -> bool | None:
    """Whether two digests are of different rows; None where that cannot be told, as they are of two versions."""
    return one != other if _version(one) == _version(other) else None


def _version(digest: str) -> str:
    """Those of the first version do not say so."""
    return digest.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class Refreshes:
    """A table with one row per refresh that brought data: `serving_offset`, `changed`, and what they are counted by.

    A measure `m` is a column with another, `m_difference`, beside it. `name` makes an offset readable.
    """

    table: str
    by: Sequence[str]
    name: Callable[[Mapping[str, str], int], str]
    measures: Sequence[str] = ()
    where: str = "true"


@dataclass(frozen=True, slots=True)
class Cadence:
    """What the refreshes at one offset came to. Shares are of those that had one before them."""

    of: Mapping[str, str]
    offset: str
    loads: int
    compared: int
    changed: int
    #: By measure, the mean change in per cent of what it was, whatever its sign.
    percents: Mapping[str, float | None]

    @property
    def changed_percent(self) -> float | None:
        return None if not self.compared else 100 * self.changed / self.compared

    def document(self) -> dict[str, Any]:
        """All of it, flat."""
        counts = {"offset": self.offset, "loads": self.loads, "compared": self.compared, "changed": self.changed}
        measured = {f"{name}_percent": value for name, value in self.percents.items()}
        return {**self.of, **counts, "changed_percent": self.changed_percent, **measured}


def cadence(database: Database, those: Refreshes, **only: str | None) -> list[Cadence]:
    """Per offset, how often the data still changed and by how much. `only` narrows it to values of some columns."""
    chosen = {name: value for name, value in only.items() if value is not None}
    by = ", ".join(those.by)
    parts = ["", *(_percent(name) for name in those.measures)]
    where = " AND ".join([those.where, *(f"{name} = :{name}" for name in chosen)])
    sql = (
        f"SELECT {by}, serving_offset, count(*), count(changed), sum(CASE WHEN changed THEN 1 ELSE 0 END)"
        f"{', '.join(parts)} FROM {those.table} WHERE {where}"
        f" GROUP BY {by}, serving_offset ORDER BY {by}, serving_offset"
    )

    return [_cadence(those, row) for row in database.read(lambda cursor: cursor.rows(sql, **chosen))]


def _percent(measure: str) -> str:
    before = f"({measure} - {measure}_difference)"
    return f"100 * avg(abs({measure}_difference) / nullif({before}, 0))"


def _cadence(those: Refreshes, row: Sequence[Any]) -> Cadence:
    width = len(those.by)
    of = dict(zip(those.by, map(str, row[:width]), strict=True))
    seconds, loads, compared, changed, *percents = row[width:]
    found = [None if value is None else float(value) for value in percents]
    measured = dict(zip(those.measures, found, strict=True))
    return Cadence(of, those.name(of, int(seconds)), int(loads), int(compared), int(changed), measured)

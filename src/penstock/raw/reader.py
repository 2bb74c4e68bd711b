"""Reading landed data: the one way by which consumers get at it.

A consumer asks whether a partition is safe, and is given the rows of the run that validators have declared
authoritative, or the reason why not. A key that nobody has judged is pending. One read of the state names one immutable
run, so that what is read is never mixed and never half written, however often the partition is reprocessed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from penstock.ledger.schema.columns import document
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database, open_database
from penstock.model.clock import Clock, SystemClock, instant, instant_text
from penstock.model.errors import PenstockError, UsageError
from penstock.raw.paths import ATTEMPT_TABLE, PARTITION_MACHINE, PARTITION_TABLE, PARTS, PartitionKey, Range
from penstock.raw.sink import RawPartition, RawSink
from penstock.raw.store import RawCorrupt, RawMissing

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger

PENDING, SUCCESS, FAILED = "pending", "success", "failed"
_AT_ONCE = 20_000
_TRIES = 3
_COLUMNS = "status, current_run_id, schema_version, record_count, updated_at, error_message, attempt_count"


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """How one partition stands. A key without a row is pending, and everything else of it is empty."""

    key: PartitionKey
    status: str = PENDING
    current_run_id: str | None = None
    schema_version: str | None = None
    record_count: int | None = None
    updated_at: datetime | None = None
    error_message: str | None = None
    attempt_count: int = 0

    @property
    def ready(self) -> bool:
        """Whether it is safe to consume."""
        return self.status == SUCCESS

    @property
    def reason(self) -> str:
        """Why it is as it is, in a sentence."""
        if self.status == SUCCESS:
            return f"run {self.current_run_id} is authoritative, with {self.record_count:,} records"
        if self.status == FAILED:
            return f"run {self.current_run_id} was rejected: {self.error_message or 'nobody knows why any more'}"
        if self.updated_at is None:
            return "no run of it has been validated yet"
        return "it was reset, and no run has been validated since"


class NotReady(PenstockError):
    """The partition is not safe to consume; `status` says how it stands."""

    def __init__(self, status: PartitionStatus) -> None:
        super().__init__(f"{status.key} is {status.status}: {status.reason}")
        self.status = status


@dataclass(frozen=True, slots=True)
class SeriesStatus:
    """How the days of one query of one customer stand."""

    customer_id: str
    query_name: str
    success: int
    failed: int
    pending: int


@dataclass(frozen=True, slots=True)
class RangeStatus:
    """How a range stands: all together, and each customer and query."""

    total: int
    success: int
    failed: int
    pending: int
    series: Sequence[SeriesStatus] = field(default_factory=tuple)

    @property
    def ready(self) -> bool:
        """Whether all of it is safe to consume."""
        return self.success == self.total


class PartitionReader:
    """Reads states from a ledger (or its address) and rows from a sink (or its address)."""

    def __init__(
        self, ledger: Ledger | Database | str, sink: RawSink | str | Path, *, clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._own = isinstance(ledger, str)
        found: Any = open_database(ledger, self._clock) if isinstance(ledger, str) else ledger
        self._database: Database = getattr(found, "database", found)
        self.sink = sink if isinstance(sink, RawSink) else RawSink(sink)
        self._as_of: datetime | None = None

    def close(self) -> None:
        """Close the connections that the reader opened itself."""
        if self._own:
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def as_of(self, moment: datetime) -> PartitionReader:
        """A reader of what stood at that moment, from the history; it shares the connections of this one."""
        if moment.tzinfo is None:
            msg = f"{moment} has no time zone; give an instant with its offset from UTC"
            raise UsageError(msg)
        made = object.__new__(PartitionReader)
        made.__dict__.update(self.__dict__, _as_of=moment, _own=False)
        return made

    def status(self, key: PartitionKey) -> PartitionStatus:
        """How one partition stands. Raises UsageError for a moment whose history was pruned."""
        return next(iter(self.statuses([key])))

    def statuses(self, keys: Iterable[PartitionKey]) -> list[PartitionStatus]:
        """How each of some partitions stands, in their order, from one snapshot."""
        wanted = [(str(key), key) for key in keys]
        ids = dict(wanted)
        find = self._states_now if self._as_of is None else self._states_then
        found = self._database.read(lambda cursor: find(cursor, ids))
        return [found.get(unit_id) or PartitionStatus(key) for unit_id, key in wanted]

    def range(self, wanted: Range) -> RangeStatus:
        """How many partitions of a range stand how; those without a row count as pending. One statement."""
        if self._as_of is not None:
            return _summed(wanted, self.each(wanted))
        columns: dict[str, statements.SqlType] = {"customer_id": statements.TEXT, "query_name": statements.TEXT}
        pairs = statements.batch_text(product(wanted.customers, wanted.queries))
        sql = (
            f"SELECT n_customer_id, n_query_name, {self._count(SUCCESS)}, {self._count(FAILED)}"
            f" FROM {statements.batch(self._database, columns)}"
        )
        rows = self._database.read(lambda cursor: cursor.rows(sql, batch=pairs, **self._bounds(wanted)))
        series = [SeriesStatus(c, q, ok, bad, wanted.days - ok - bad) for c, q, ok, bad in sorted(map(tuple, rows))]
        good, bad = sum(s.success for s in series), sum(s.failed for s in series)
        return RangeStatus(len(wanted), good, bad, len(wanted) - good - bad, series)

    def each(
        self, wanted: Range, only: Collection[str] = (), *, after: PartitionKey | None = None
    ) -> Iterator[PartitionStatus]:
        """Every partition of a range, implicit pendings included; a few thousand are read at once.

        With `after`, those that follow it. Raises UsageError where that is not in the range.
        """
        pairs = list(product(wanted.customers, wanted.queries))
        step, first = max(1, _AT_ONCE // wanted.days), 0
        if after is not None:
            if (after.customer_id, after.query_name) not in pairs:
                raise UsageError(f"{after} is not in this range; take it from an earlier list of the same range")
            first = pairs.index((after.customer_id, after.query_name))
        for start in range(first, len(pairs), step):
            part = [
                PartitionKey(wanted.source, customer, query, wanted.start + timedelta(days=n))
                for customer, query in pairs[start : start + step]
                for n in range(wanted.days)
            ]
            if after is not None and start == first:
                part = part[(after.logical_date - wanted.start).days + 1 :]
            yield from (status for status in self.statuses(part) if not only or status.status in only)

    def open(self, key: PartitionKey) -> RawPartition:
        """The authoritative run. Raises NotReady with the reason, RawCorrupt when the run is not what was validated."""
        seen: set[str | None] = set()
        while True:
            status = self.status(key)
            if not status.ready:
                raise NotReady(status)
            try:
                opened = self.sink.open_partition(key, str(status.current_run_id))
            except RawMissing:
                # Superseded and collected since the state was read: another run is authoritative now.
                if status.current_run_id in seen or len(seen) >= _TRIES:
                    raise
                seen.add(status.current_run_id)
                continue
            landed = opened.metadata
            if (landed.record_count, landed.schema_version) != (status.record_count, status.schema_version):
                msg = (
                    f"{key} run {landed.run_id} has {landed.record_count:,} records of schema {landed.schema_version};"
                    f" {status.record_count:,} of schema {status.schema_version} were validated"
                )
                raise RawCorrupt(msg)
            return opened

    def paths(self, keys: Iterable[PartitionKey]) -> list[str]:
        """The payloads of partitions, for DuckDB, Polars or Arrow. Raises NotReady for the first that is not safe."""
        found = self.statuses(keys)
        for status in found:
            if not status.ready:
                raise NotReady(status)
        return [self._address(status) for status in found]

    def _address(self, status: PartitionStatus) -> str:
        try:
            return self.sink.open_partition(status.key, str(status.current_run_id)).address
        except RawMissing:  # superseded and collected since the state was read
            return self.open(status.key).address

    def wait(
        self,
        keys: Iterable[PartitionKey],
        *,
        timeout: float,
        every: float = 1.0,
        progress: Callable[[int], None] = lambda _: None,
    ) -> list[PartitionStatus]:
        """Wait until all are safe to consume. Raises NotReady for the first that is not when the time is over."""
        wanted = list(keys)
        deadline = self._clock.elapsed() + timeout
        nobody = threading.Event()
        while True:
            found = self.statuses(wanted)
            missing = [status for status in found if not status.ready]
            if not missing:
                return found
            left = deadline - self._clock.elapsed()
            if left <= 0:
                raise NotReady(missing[0])
            progress(len(missing))
            nobody.wait(min(every, left))

    def _count(self, status: str) -> str:
        """How many days of a customer and a query are so: a stretch of one index, which grouping would sort first."""
        return (
            f"(SELECT count(*) FROM {PARTITION_TABLE} t WHERE t.source = :source AND t.customer_id = n_customer_id"
            f" AND t.query_name = n_query_name AND t.status = '{status}'"
            f" AND t.logical_date >= {self._database.sql.day('start')}"
            f" AND t.logical_date <= {self._database.sql.day('end')})"
        )

    @staticmethod
    def _bounds(wanted: Range) -> dict[str, str]:
        return {"source": wanted.source, "start": wanted.start.isoformat(), "end": wanted.end.isoformat()}

    def _states_now(self, cursor: Cursor, ids: dict[str, PartitionKey]) -> dict[str, PartitionStatus]:
        source = statements.batch(self._database, {"unit_id": statements.TEXT})
        sql = f"SELECT unit_id, {_COLUMNS} FROM {PARTITION_TABLE} WHERE unit_id IN (SELECT n_unit_id FROM {source})"
        rows = cursor.rows(sql, batch=statements.batch_text([[i] for i in ids]))
        return {r[0]: PartitionStatus(ids[r[0]], r[1], r[2], r[3], r[4], instant(r[5]), r[6], r[7]) for r in rows}

    def _states_then(self, cursor: Cursor, ids: dict[str, PartitionKey]) -> dict[str, PartitionStatus]:
        """From the history: the last row that was written by then. Raises UsageError where it was pruned.

        What it does not track is told by the evaluations: of those that replaced nothing, no more than how many.
        """
        assert self._as_of is not None  # noqa: S101 - asked by `statuses`
        source = statements.batch(self._database, {"unit_id": statements.TEXT})
        moment = self._database.sql.instant("moment")
        own = f"machine = '{PARTITION_MACHINE}' AND unit_id IN (SELECT n_unit_id FROM {source})"
        given = {
            "batch": statements.batch_text([[i] for i in ids]),
            "moment": instant_text(self._as_of),
        }
        mine, last = (" AND ".join(f"{t}.{name} = s.{name}" for name in PARTS) for t in "ab")
        rows = cursor.rows(
            "SELECT l.unit_id, l.to_status, l.data, l.at, a.run_id, a.verdict, a.at, a.error,"
            f" (SELECT count(DISTINCT b.run_id) FROM {ATTEMPT_TABLE} b WHERE {last} AND b.at <= {moment})"
            " FROM transition_log l JOIN"
            f" (SELECT unit_id, max(seq) AS seq FROM transition_log WHERE {own} AND at <= {moment} GROUP BY unit_id) n"
            f" ON l.machine = '{PARTITION_MACHINE}' AND l.unit_id = n.unit_id AND l.seq = n.seq"
            f" LEFT JOIN {PARTITION_TABLE} s ON s.unit_id = l.unit_id"
            f" LEFT JOIN {ATTEMPT_TABLE} a ON {mine} AND a.state_version = (SELECT max(b.state_version)"
            f" FROM {ATTEMPT_TABLE} b WHERE {last} AND b.at <= {moment} AND b.verdict IN ('{SUCCESS}', '{FAILED}'))",
            **given,
        )
        found = {r[0]: _then(ids[r[0]], r) for r in rows if r[1] is not None}
        pruned = cursor.rows(
            f"SELECT unit_id, at FROM transition_log WHERE {own} AND actor LIKE 'prune:%' AND at > {moment} LIMIT 1",
            **given,
        )
        for unit_id, at in pruned:
            msg = f"the history of {unit_id} before {instant_text(instant(at))} was pruned; ask for a later moment"
            raise UsageError(msg)
        return found


def _then(key: PartitionKey, row: Sequence[Any]) -> PartitionStatus:
    _, status, data, at, run_id, verdict, judged_at, error, count = row
    facts = document(data) if isinstance(data, str) else data
    facts = facts if isinstance(facts, dict) else {}
    current = facts.get("current_run_id")
    # Nobody evaluates a reset, and what SQL has written need not be of any evaluation.
    written = at if status == PENDING else judged_at if (verdict, run_id) == (status, current) else None
    return PartitionStatus(
        key,
        status,
        current,
        facts.get("schema_version"),
        facts.get("record_count"),
        instant(written),
        error if status == FAILED and written is not None else None,
        count,
    )


def _summed(wanted: Range, statuses: Iterable[PartitionStatus]) -> RangeStatus:
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for status in statuses:
        pair = counts.setdefault((status.key.customer_id, status.key.query_name), dict.fromkeys((SUCCESS, FAILED), 0))
        if status.status in pair:
            pair[status.status] += 1
    series = [SeriesStatus(c, q, n[SUCCESS], n[FAILED], wanted.days - sum(n.values())) for (c, q), n in counts.items()]
    good, bad = sum(s.success for s in series), sum(s.failed for s in series)
    return RangeStatus(
        len(wanted), good, bad, len(wanted) - good - bad, sorted(series, key=lambda s: (s.customer_id, s.query_name))
    )

"""What people ask of partitions and do to them: status, rows, cadence; reprocess, backfill, validate, point, reset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import date, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from penstock.lifecycles.ladder import offset_name
from penstock.lifecycles.partitions.machine import (
    P,
    V,
    Validation,
    X,
    extraction,
    gate_of,
    key_of,
    partition,
    validation,
)
from penstock.lifecycles.partitions.past import landed_by
from penstock.lifecycles.partitions.settings import PartitionSettings
from penstock.model.errors import UsageError
from penstock.model.spoken import counted
from penstock.model.unit import Ref, unit_id_of
from penstock.operations.declare import Ask, Lines, Page, Reading, operation, reading
from penstock.operations.fields import Parameters, Row, argument, column, option
from penstock.operations.past import At
from penstock.operations.plan import NOW, Births, Moves, Plan
from penstock.raw.paths import ATTEMPT_TABLE, PartitionKey, Range, check_run_id

if TYPE_CHECKING:
    from penstock.lifecycles.partitions.validate import Rules
    from penstock.raw.reader import PartitionReader, PartitionStatus
    from penstock.raw.sink import RawSink

_MOST_DAYS = 3_660
_EXAMPLE = "google_ads/1234567890/campaign_daily/2026-11-01"
_RUN = "2026-11-02T06:00:00.000Z"

PartitionAsk = Ask[PartitionSettings]

_Partition = Annotated[str, argument("The partition, as source/customer/query/date.", example=_EXAMPLE)]


class OnePartition(Parameters, frozen=True):
    """One partition by name."""

    partition: _Partition


class PartitionThen(OnePartition, frozen=True):
    """One partition, now or at a moment of the past."""

    at: At = None


class ReadWanted(PartitionThen, frozen=True):
    """Which rows to read."""

    path: Annotated[bool, option("Print where the rows are, instead of the rows.")] = False


class OneRun(OnePartition, frozen=True):
    """A run of a partition."""

    run: Annotated[
        str | None, option("Which run; by default the newest that has landed.", example="2026-11-02T06:00:00.000Z")
    ] = None


class PointWanted(OnePartition, frozen=True):
    """A run of a partition, by its id."""

    run: Annotated[str, argument("The run that is to be authoritative; it may be an older one.", example=_RUN)]


class Waiting(Parameters, frozen=True):
    """Which partitions to wait for."""

    partitions: Annotated[tuple[str, ...], argument("The partitions, as source/customer/query/date.", example=_EXAMPLE)]
    timeout: Annotated[timedelta, option("How long to wait, for example 30m.")] = timedelta(hours=1)


class RangeWanted(Parameters, frozen=True):
    """Partitions of one source: customers, queries and days."""

    source: Annotated[str, argument("A source of the configuration.", example="google_ads")]
    first: Annotated[date, option("The first day, as 2026-11-01.")] = msgspec.field(name="from")
    last: Annotated[date | None, option("The last day; by default the first.")] = msgspec.field(default=None, name="to")
    customer: Annotated[tuple[str, ...], option("Only of this customer.")] = ()
    query: Annotated[tuple[str, ...], option("Only of this query.")] = ()


class RangeThen(RangeWanted, frozen=True):
    """The same, now or at a moment of the past."""

    at: At = None


class SeriesWanted(RangeThen, frozen=True):
    """Which customers and queries to count."""

    unready: Annotated[bool, option("Only customers and queries with days that are not safe to consume.")] = False


class ListWanted(RangeThen, frozen=True):
    """Which partitions to list, and how many."""

    status: Annotated[tuple[P, ...], option("Only partitions in this status.")] = ()
    limit: Annotated[int, option("How many at most.", ge=1, le=100_000)] = 100
    after: Annotated[str | None, option("Continue after an earlier page: the cursor that it ended with.")] = None


class ReprocessWanted(RangeWanted, frozen=True):
    """Which partitions to extract again."""

    failed: Annotated[bool, option("Only partitions that are failed.")] = False


class CadenceWanted(Parameters, frozen=True):
    """Which partitions to sum up."""

    source: Annotated[str | None, argument("Only of this source.", example="google_ads")] = None
    at: At = None


class PartitionRow(Row, frozen=True):
    """How one partition stands."""

    partition: Annotated[str, column("The partition.", show="reference", leads="status")]
    status: Annotated[P, column("Whether consumers may read it.", show="state")]
    reason: Annotated[str, column("Why it is so.", show="text")]
    current_run_id: Annotated[str | None, column("The authoritative run, or the one that was rejected.", show="detail")]
    record_count: Annotated[int | None, column("How many records that run has.", show="detail")]
    schema_version: Annotated[str | None, column("The version of its schema.", show="detail")]
    updated_at: Annotated[datetime | None, column("When its state was last written.", show="detail")]
    error_message: Annotated[str | None, column("What the validators found.", show="detail")]
    attempt_count: Annotated[int, column("How many runs were evaluated.", show="detail")]
    source: Annotated[str, column("Its source.", show="detail", gives="source")]
    customer: Annotated[str, column("Its customer.", show="detail", gives="customer")]
    query: Annotated[str, column("Its query.", show="detail", gives="query")]
    day: Annotated[date, column("Its day.", show="detail", gives="from")]


class SeriesRow(Row, frozen=True):
    """How the days of one query of one customer stand."""

    customer_id: Annotated[str, column("The customer.", show="reference", heading="customer")]
    query_name: Annotated[str, column("The query.", heading="query")]
    success: Annotated[int, column("Days that are safe to consume.")]
    failed: Annotated[int, column("Days whose last run was rejected.")]
    pending: Annotated[int, column("Days of which no run was validated yet.")]


class RunRow(Row, frozen=True):
    """A landed run of a partition."""

    run_id: Annotated[str, column("The run.", show="reference", heading="run")]
    authoritative: Annotated[bool, column("Whether consumers read this one.")]
    verdict: Annotated[str | None, column("The verdict on it; empty if it was never judged.")]
    judged_at: Annotated[datetime | None, column("When that was.", heading="judged")]
    judged_by: Annotated[str | None, column("By whom.", show="detail")]
    record_count: Annotated[int | None, column("How many records it has.", heading="records")]
    error: Annotated[str | None, column("What the validators found.", show="text")]


class Metadata(Row, frozen=True):
    """The authoritative run, as its `metadata.json` describes it."""

    partition: Annotated[str, column("The partition.", show="reference")]
    run_id: Annotated[str, column("The run.", show="reference")]
    schema_version: Annotated[str, column("The version of its schema.")]
    record_count: Annotated[int, column("How many records it has.")]
    checksum: Annotated[str, column("The checksum of its payload.")]
    size: Annotated[int, column("How many bytes its payload has.")]
    created_at: Annotated[datetime, column("When it was begun.")]
    facts: Annotated[dict[str, Any], column("What the source said about it.")]
    path: Annotated[str, column("Where its payload is.", show="reference")]


class Inspected(Row, frozen=True):
    """What the validators find in a run."""

    partition: Annotated[str, column("The partition.", show="reference")]
    run_id: Annotated[str, column("The run.", show="reference")]
    failed: Annotated[bool, column("Whether the validators reject it.")]
    record_count: Annotated[int, column("How many records it has.")]
    errors: Annotated[list[str], column("What is wrong with it.")]


class OffsetRow(Row, frozen=True):
    """What the refreshes at one offset brought."""

    source: Annotated[str, column("The source.")]
    query_name: Annotated[str, column("The query.", heading="query")]
    offset: Annotated[str, column("How long after the beginning of the day.")]
    loads: Annotated[int, column("How many good runs were fetched.")]
    compared: Annotated[int, column("How many had an earlier run to compare with.", show="detail")]
    changed: Annotated[int, column("How many of these had changed.", show="detail")]
    changed_percent: Annotated[float | None, column("The share that had changed.", heading="changed %")]


@reading("status", "How one partition stands: its authoritative run, and why.")
def status(ask: PartitionAsk, wanted: PartitionThen) -> PartitionRow:
    return _shown(_reader(ask, wanted.at).status(ask.settings.key(wanted.partition)))


@reading("range", "How many partitions of customers and days are safe to consume.")
def range_(ask: PartitionAsk, wanted: SeriesWanted) -> Page[SeriesRow]:
    """A partition that nobody has judged is pending."""
    found = _reader(ask, wanted.at).range(_range(ask, wanted))
    chosen = [one for one in found.series if not wanted.unready or one.failed or one.pending]
    rows = [SeriesRow(**asdict(one)) for one in chosen]
    counts = {"partitions": found.total, "success": found.success, "failed": found.failed, "pending": found.pending}
    return Page(rows=rows, counts=counts, note=None if rows else "all of them are safe to consume")


@reading("list", "Partitions of customers and days, one by one.")
def list_(ask: PartitionAsk, wanted: ListWanted) -> Page[PartitionRow]:
    """A partition that nobody has judged is pending."""
    reader, over = _reader(ask, wanted.at), _range(ask, wanted)
    after = None if wanted.after is None else ask.settings.key(wanted.after)
    found = list(islice(reader.each(over, wanted.status, after=after), wanted.limit + 1))
    rows = [_shown(one) for one in found[: wanted.limit]]
    return Page(rows=rows, next=rows[-1].partition if len(found) > wanted.limit else None)


@reading("runs", "The landed runs of a partition, the newest first.")
def runs(ask: PartitionAsk, wanted: PartitionThen) -> Page[RunRow]:
    from penstock.lifecycles.partitions.judgement import last_attempts

    key = ask.settings.key(wanted.partition)
    reader = _reader(ask, wanted.at)
    current, judged = reader.status(key), last_attempts(ask.then(wanted.at).reader.database, key)
    landed, lacks = reader.sink.runs(key), None
    if wanted.at is not None:
        landed, lacks = landed_by(ask.reader, key, wanted.at, landed, judged)
    rows = []
    for run_id in reversed(landed):
        facts = judged.get(run_id, dict.fromkeys(("verdict", "judged_at", "judged_by", "record_count", "error")))
        rows.append(RunRow(run_id=run_id, authoritative=current.ready and run_id == current.current_run_id, **facts))
    return Page(rows=rows, note=lacks if rows or lacks else f"no run of {key} has landed yet")


@reading("cadence", "Per offset, how often the data still changed.")
def cadence(ask: PartitionAsk, wanted: CadenceWanted) -> Page[OffsetRow]:
    """An offset at which nothing changes any more can be dropped. Runs that were judged by hand are not counted."""
    from penstock.lifecycles import refreshes

    _require(ask)
    loads = refreshes.Refreshes(
        ATTEMPT_TABLE,
        ("source", "query_name"),
        lambda _, seconds: offset_name(seconds),
        where="verdict = 'success' AND serving_offset IS NOT NULL",
    )
    found = refreshes.cadence(ask.then(wanted.at).reader.database, loads, source=wanted.source)
    note = None if found else "nothing has been loaded yet"
    return Page(rows=[OffsetRow(**one.document()) for one in found], note=note)


@reading("wait", "Wait until partitions are safe to consume.", stays=True, no_past="it waits for what is to come")
def wait(ask: PartitionAsk, wanted: Waiting) -> Page[PartitionRow]:
    """Exit code 1 when one of them is not in time."""
    keys = [ask.settings.key(text) for text in wanted.partitions]
    total, seconds = len(keys), wanted.timeout.total_seconds()
    found = _reader(ask).wait(keys, timeout=seconds, progress=lambda left: ask.progress(total - left, total))
    return Page(rows=[_shown(one) for one in found])


@reading("read", "The rows of the authoritative run, as JSON lines.")
def read(ask: PartitionAsk, wanted: ReadWanted) -> Lines:
    """Exit code 1 when the partition is not safe to consume."""
    opened = _reader(ask, wanted.at).open(ask.settings.key(wanted.partition))
    return Lines([opened.address]) if wanted.path else Lines(line.decode() for line in opened.lines())


@reading("metadata", "The authoritative run: checksum, size, and where its rows are.")
def metadata(ask: PartitionAsk, wanted: PartitionThen) -> Metadata:
    """Exit code 1 when the partition is not safe to consume."""
    key = ask.settings.key(wanted.partition)
    opened = _reader(ask, wanted.at).open(key)
    found = opened.metadata
    named = {name: getattr(found, name) for name in Metadata.__struct_fields__ if name not in ("partition", "path")}
    return Metadata(partition=str(key), path=opened.address, **named)


def inspecting(rules: Rules) -> Reading[PartitionSettings]:
    """The reading `inspect`, with a program's own business rules."""

    @reading(
        "inspect",
        "What the validators find in a run. Nothing is written.",
        no_past="a landed run never changes, and it is inspected by the rules of now",
    )
    def inspect(ask: PartitionAsk, wanted: OneRun) -> Inspected:
        """Exit code 1 when it is not good."""
        from penstock.lifecycles.partitions.judgement import Validators

        key, sink = ask.settings.key(wanted.partition), _sink(ask)
        run_id = _run(sink, key, wanted.run)
        found = Validators(sink, ask.settings, rules).inspect(key, run_id)
        return Inspected(
            partition=str(key),
            run_id=run_id,
            failed=not found.good,
            record_count=found.record_count,
            errors=list(found.errors),
        )

    return inspect


@operation("reprocess", "Extract and judge partitions again, now.")
def reprocess(ask: PartitionAsk, wanted: ReprocessWanted) -> Plan:
    """Consumers read the present run until the new one is judged. One that is under way is left alone."""
    _require(ask)
    over, moves, seen = _range(ask, wanted, by_now=True), Moves(extraction), 0
    keys = (one.key for one in _reader(ask).each(over, [P.FAILED])) if wanted.failed else over.keys()
    asked = 0
    for chunk in _chunks(keys):
        asked += len(chunk)
        units = ask.reader.get_many(extraction, [str(key) for key in chunk])
        seen += len(units)
        for unit in units:
            gate = gate_of(key_of(unit))
            changed = {} if unit.gate_id == gate else {"gate_id": gate}
            if unit.status in (X.DONE, X.FAILED):
                fresh = {"run_id": None, "verdict": None, "attempts": 0, "backfill": False, "due_at": NOW}
                moves.add(unit, X.WANTED, **fresh, **changed)
            else:
                moves.skip(unit.unit_id, f"it is {unit.status} already")
        ask.progress(asked, len(over))
    missed = counted(asked - seen, "partition")
    unwanted = f"{missed} left out because never extracted; 'penstock partitions backfill' extracts them"
    return moves.plan(f"extract {counted(len(moves), 'partition')} again", [unwanted] if asked > seen else [])


@operation("backfill", "Extract partitions of older days that were never extracted.")
def backfill(ask: PartitionAsk, wanted: RangeWanted) -> Plan:
    """They fall due one after another, the newest first, and the daily work goes on beside them."""
    from penstock.lifecycles.partitions.backfill import lacking, products

    _require(ask)
    over = _range(ask, wanted, by_now=True)
    source = ask.settings.source(over.source)
    groups = lacking(ask.reader.database, over, ask.progress)
    made, last = products(over, groups, ask.now, timedelta(hours=1) / source.backfill_per_hour)
    count = sum(len(product) for product in made)
    warnings = (
        [f"{counted(len(over) - count, 'partition')} left as they are: they have an extraction already"]
        if count < len(over)
        else []
    )
    if count:
        warnings.append(f"the last falls due at {last:%Y-%m-%d %H:%M} UTC")
    return Births(extraction, f"extract {counted(count, 'partition')}", products=made, warnings=warnings)


@operation("validate", "Have the validators judge a run, and record what they find.")
def validate(ask: PartitionAsk, wanted: OneRun) -> Plan:
    """A worker does it. An older run than the authoritative one replaces nothing."""
    _require(ask)
    key = ask.settings.key(wanted.partition)
    run_id = _run(_sink(ask), key, wanted.run)
    return _wish(ask, key, run_id, point=False)


@operation("point", "Make a run authoritative, even an older one.")
def point(ask: PartitionAsk, wanted: PointWanted) -> Plan:
    """A worker does it, if the run has landed and the validators find it good; else the partition stays as it is."""
    _require(ask)
    return _wish(ask, ask.settings.key(wanted.partition), check_run_id(wanted.run), point=True)


@operation("reset", "Let nobody read a partition until a run of it is validated.")
def reset(ask: PartitionAsk, wanted: OnePartition) -> Plan:
    _require(ask)
    key = ask.settings.key(wanted.partition)
    moves = Moves(partition)
    for unit in ask.reader.get_many(partition, [str(key)]):
        if unit.status is not P.PENDING:
            emptied = dict.fromkeys(("current_run_id", "schema_version", "record_count", "error_message"))
            moves.add(unit, P.PENDING, updated_at=NOW, **emptied)
    if not moves:
        raise UsageError(f"{key} is pending already; there is nothing to reset")
    return moves.plan(f"make {key} pending")


READINGS = (status, range_, list_, runs, cadence, wait, read, metadata)
OPERATIONS = (reprocess, backfill, validate, point, reset)


def _wish(ask: PartitionAsk, key: PartitionKey, run_id: str, *, point: bool) -> Plan:
    """Have a worker judge a run; who wants it and why is in the history of the unit."""
    unit = Validation(
        source=key.source,
        customer_id=key.customer_id,
        query_name=key.query_name,
        logical_date=key.logical_date,
        run_id=run_id,
        point=point,
        due_at=ask.now,
    )
    ref = Ref(validation.name, unit_id_of(unit))
    what = f"point {key} at run {run_id} if it is good" if point else f"have run {run_id} of {key} judged"
    says = f"{what}; a worker does it, and 'penstock why {ref}' shows its progress"
    found = ask.reader.get_many(validation, [ref.unit_id])
    if not found:
        return Births(validation, says, units=[unit])
    moves = Moves(validation)
    if found[0].status is V.WANTED:
        moves.skip(ref.unit_id, "this run already waits to be judged; a worker does it next")
    else:
        moves.add(found[0], V.WANTED, point=point, verdict=None, attempts=0, due_at=NOW)
    return moves.plan(says)


def _run(sink: RawSink, key: PartitionKey, run_id: str | None) -> str:
    """The run that is meant. Raises UsageError where it has not landed."""
    landed = sink.runs(key)
    chosen = (landed[-1] if landed else None) if run_id is None else check_run_id(run_id)
    if chosen is None or chosen not in landed:
        which = f"run {run_id}" if run_id else "run"
        raise UsageError(f"{key} has no finalised {which} in {sink.url}")
    return chosen


def _sink(ask: PartitionAsk) -> RawSink:
    found: RawSink = ask.program.ports.raw
    return found


def _reader(ask: PartitionAsk, at: datetime | None = None) -> PartitionReader:
    from penstock.raw.reader import PartitionReader

    _require(ask)
    reader = PartitionReader(ask.reader.database, _sink(ask))
    return reader if at is None else reader.as_of(at)


def _range(ask: PartitionAsk, wanted: RangeWanted, *, by_now: bool = False) -> Range:
    """What the options of a range come to; with `by_now`, every day of it is over. Raises UsageError."""
    name, last = wanted.source, wanted.last or wanted.first
    source = ask.settings.source(name)
    if (last - wanted.first).days >= _MOST_DAYS:
        raise UsageError(f"{wanted.first} to {last} is more than {_MOST_DAYS:,} days; ask for fewer at once")
    customers = tuple(dict.fromkeys(ask.settings.customer(name, text) for text in wanted.customer))
    for query in wanted.query:
        ask.settings.query(name, query)
    chosen = Range(
        name,
        customers or tuple(source.zones),
        tuple(dict.fromkeys(wanted.query)) or tuple(source.queries),
        wanted.first,
        last,
    )
    if by_now:
        source.refuse_unfinished(chosen.customers, last, ask.now)
    return chosen


def _chunks(keys: Iterator[PartitionKey]) -> Iterator[Sequence[PartitionKey]]:
    from penstock.lifecycles.partitions.jobs import AT_ONCE

    while chunk := list(islice(keys, AT_ONCE)):
        yield chunk


def _shown(found: PartitionStatus) -> PartitionRow:
    key = found.key
    own: dict[str, Any] = {
        "partition": str(key),
        "status": P(found.status),
        "source": key.source,
        "customer": key.customer_id,
        "query": key.query_name,
        "day": key.logical_date,
    }
    named = {name: getattr(found, name) for name in PartitionRow.__struct_fields__ if name not in own}
    return PartitionRow(**own, **named)


def _require(ask: PartitionAsk) -> None:
    if not ask.reader.keeps(partition):
        raise UsageError("this ledger keeps no partitions yet; 'penstock db upgrade' adds them")

"""The flow of reports: ask for one, look until it is ready, land it, check it, load it.

`process` streams: records go from the download to the raw sink, and from there through the checks into the stage, a
few hundred at a time. What has landed is not downloaded again when a step is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import structlog

from penstock.connectors.amazon_ads.client import DOWNLOAD_HOSTS, Amazon, DuplicateReport
from penstock.connectors.amazon_ads.report import ReportState
from penstock.connectors.amazon_ads.stream import StreamGone
from penstock.connectors.http.download import Allowed, LinkExpired
from penstock.connectors.records import BadReport
from penstock.ledger.ledger import Ledger
from penstock.ledger.store.statements import waiting
from penstock.lifecycles.refreshes import differ
from penstock.lifecycles.reports import failure
from penstock.lifecycles.reports.decide import (
    Seen,
    decide,
    gate,
    is_served,
    may_adopt,
    named,
    next_attention,
    wanted_offset,
)
from penstock.lifecycles.reports.hourly import streams as streams_of
from penstock.lifecycles.reports.load import Loader, Totals
from penstock.lifecycles.reports.machine import JOB, NO_FAILURES, Aggregation, Report, S, machine
from penstock.lifecycles.reports.settings import PROVIDER, ReportSettings
from penstock.lifecycles.reports.shape import COLUMNS
from penstock.lifecycles.reports.sources import Source, connections
from penstock.lifecycles.reports.tables import PERFORMANCE, report_load
from penstock.model.clock import Clock, Rng, instant_text
from penstock.model.errors import InDoubt, LedgerRefused, MustWait, Rejected, StepError, Transient
from penstock.model.outcome import Outcome, Write
from penstock.model.unit import replace
from penstock.raw.paths import PartitionKey
from penstock.raw.sink import RawSink, RawWriter
from penstock.raw.store import AlreadyFinalised, RawCorrupt, RawUnavailable
from penstock.worker.flow import Flow, Gate, Io

SCHEMA_VERSION = "1"
log = structlog.get_logger()
_SEEN = {ReportState.PENDING: "pending", ReportState.COMPLETED: "ready", ReportState.FAILED: "failed"}


class Reports(Flow[Report, ReportSettings, Seen]):
    """Every account's datasets. `sources` are by account; one that is missing there is not configured."""

    machine = machine
    decide = staticmethod(decide)
    deadline = timedelta(hours=2)
    charges_outages = False

    def __init__(
        self, settings: ReportSettings, sources: Mapping[str, Source], sink: RawSink, close: Sequence[Amazon] = ()
    ) -> None:
        super().__init__(settings, JOB)
        self._sources = sources
        self._sink = sink
        self._close = close

    def gate(self, unit: Report) -> Gate:
        return Gate(gate(unit, self.settings))

    async def stop(self) -> None:
        for region in self._close:
            await region.close()

    async def look(self, unit: Report, io: Io) -> Seen:
        if unit.report_id is None:
            return Seen("busy" if await io.ledger(lambda ledger: daily_work_waits(ledger, unit)) else "free")
        status = await self._sources[unit.account].status(unit, io)
        says = status.said if status.failure_reason is None else f"{status.said}: {status.failure_reason}"
        return Seen(_SEEN[status.state], says, status.url)  # type: ignore[arg-type]

    async def act(self, what: str, unit: Report, seen: Seen | None, io: Io) -> Outcome[Report]:
        says = seen.says if seen is not None else ""
        log.debug("report.step", job=JOB, unit=f"report:{unit.unit_id}", action=what)
        match what:
            case "create":
                return await self._create(unit, io)
            case "process":
                return await self._process(unit, seen, io)
            case "cancel":
                return await self._cancel(unit, says, io)
            case "fail":
                counter = "provider_failures" if unit.status is S.FETCHING else "parse_failures"
                why = f"the provider says that report {unit.report_id} failed: {says}"
                return failure.of(unit, counter, why, self._moment(io))
            case "give_up":
                return failure.pending(unit, self._moment(io), says)
            case _:
                return failure.disowned(unit)

    def failed(self, unit: Report, error: StepError, now: datetime, rng: Rng) -> Outcome[Report]:
        moment = failure.Moment(now, rng, self.settings)
        if isinstance(error, StreamGone):
            return failure.stream_gone(unit, error, moment)
        if unit.report_id is None:
            return _create_failed(unit, error, moment)
        if unit.status is S.FETCHING:
            return _look_failed(unit, error, moment)
        return _parse_failed(unit, error, moment)

    def _moment(self, io: Io) -> failure.Moment:
        return failure.Moment(io.now(), io.rng, self.settings)

    async def _create(self, report: Report, io: Io) -> Outcome[Report]:
        now = io.now()
        offset = wanted_offset(report, now, self.settings)
        assert offset is not None  # noqa: S101 - decide has just said so
        seconds = int(offset.total_seconds())
        if report.create_requested_at is None or report.serving_offset != seconds:
            fresh = {} if report.serving_offset == seconds else {**NO_FAILURES, "attempts": 0}
            after = replace(report, serving_offset=seconds, create_requested_at=now, **fresh)
            why = f"a report is about to be created for {named(report, offset)}"
            return Outcome(report, after, why, keep_claim=True, keep_crashes=True)
        created = await self._sources[report.account].create(report, io)
        older = created.adopted and created.created_at < report.timestamp + offset
        if created.adopted and not may_adopt(report, created.report_id, created.created_at, older=older):
            return failure.duplicate(report, created.report_id, self._moment(io))
        # An adopted report was made when the provider says it was, be that before the offset. Of our own the moment
        # before the call counts: the provider's clock may be behind ours, and the offset would seem unserved.
        at = min(created.created_at, now) if created.adopted else now
        after = replace(
            report,
            status=S.FETCHING,
            report_id=created.report_id,
            last_report_created_at=at,
            create_requested_at=None,
            cancel_refused_at=None,
            duplicates=report.duplicates + older,
            attempts=0,
            due_at=now + self.settings.poll,
        )
        how = "adopted" if created.adopted else "created"
        return Outcome(report, after, f"report {created.report_id} {how} for {named(report, offset)}")

    async def _cancel(self, report: Report, says: str, io: Io) -> Outcome[Report]:
        if await self._sources[report.account].cancel(report):
            return failure.pending(report, self._moment(io), says, cancelled=True)
        now = io.now()
        after = replace(report, cancel_refused_at=now, due_at=now + self.settings.poll)
        return Outcome(report, after, f"report {report.report_id} is pending too long and could not be cancelled")

    async def _process(self, report: Report, seen: Seen | None, io: Io) -> Outcome[Report]:
        if report.status is S.FETCHING:
            after = replace(report, status=S.PARSING, attempts=0, link_expiries=0)
            return Outcome(report, after, f"report {report.report_id} is ready", keep_claim=True)
        key, run_id = raw_key(report), raw_run_id(report)
        with _raw_errors():
            landed = await io.run(self._sink.find, key, run_id)
            if landed is None:
                await self._land(report, key, run_id, seen.url if seen is not None else None, io)
            partition = await io.run(self._sink.open_partition, key, run_id)
            loader = Loader(report, partition.blocks())
            try:
                async with io.stage(report, PERFORMANCE) as stage:
                    while rows := await io.run(loader.some):
                        await stage.add_block(COLUMNS, rows)
            except LedgerRefused as error:
                # Every value was checked before: what is left for the table to refuse is a key that is there already.
                raise BadReport(f"a record has the ids of another record: {error}") from error
        before = await io.ledger(lambda ledger: _last_load(ledger, report))
        return self._loaded(report, loader.totals, stage.sealed, before, io.now())

    async def _land(self, report: Report, key: PartitionKey, run_id: str, url: str | None, io: Io) -> None:
        facts = {"report_id": report.report_id, "unit": f"report:{report.unit_id}"}
        records = self._sources[report.account].records(report, url, io)

        def begin() -> RawWriter:
            return self._sink.writer(key, run_id, schema_version=SCHEMA_VERSION, created_at=io.now(), facts=facts)

        run = await io.run(begin)
        try:
            async with contextlib.aclosing(records) as blocks:
                async for lines in blocks:
                    await io.run(run.write_lines, lines)
            await io.run(run.finalise)
        except BaseException:
            run.abandon()
            raise

    def _loaded(
        self, report: Report, totals: Totals, stage_id: str, before: Mapping[str, Any] | None, now: datetime
    ) -> Outcome[Report]:
        # One that was adopted and is older than the offset is loaded, and another is asked for.
        still = {} if is_served(report) else {"serving_offset": report.serving_offset, "duplicates": report.duplicates}
        after = replace(
            report,
            status=S.COMPLETED,
            report_id=None,
            last_processed_report_id=report.report_id,
            cancel_refused_at=None,
            error=None,
            attempts=0,
            loaded_stage=stage_id,
            loaded_report_id=report.report_id,
            loaded_at=now,
            loaded_rows=totals.rows,
            loaded_digest=totals.digest,
            raw_run_id=raw_run_id(report),
            **{"serving_offset": None, **NO_FAILURES, **still},
        )
        after = replace(after, due_at=next_attention(after, now, self.settings))
        load = _load_row(report, totals, before, now)
        changed = {None: "", True: ", changed since the last load", False: ", as before"}[load["changed"]]
        reason = f"{totals.rows:,} rows of report {report.report_id} loaded{changed}"
        return Outcome(report, after, reason, writes=[Write(report_load, [load])])


def make_flow(settings: ReportSettings, sink: RawSink, clock: Clock) -> Reports:
    """The flow of these settings. Raises ConfigError with every account that lacks credentials."""
    accounts, reached, streams = settings.accounts, connections(settings), streams_of(settings, clock)
    allowed = Allowed(DOWNLOAD_HOSTS, private_hosts=settings.private_downloads)
    regions = {own.region: Amazon(own.region, clock, downloads=allowed) for own in reached.values()}
    sources = {
        name: Source(regions[own.region].profile(accounts[name].profile_id, own.credentials), streams.get(name))
        for name, own in reached.items()
    }
    return Reports(settings, sources, sink, close=list(regions.values()))


def raw_key(report: Report) -> PartitionKey:
    """The partition of the raw sink that a dataset lands in; an hour is part of the query's name."""
    query = f"{report.aggregation}-{report.entity_type}"
    if report.aggregation is Aggregation.HOURLY:
        query = f"{query}-{report.period}"
    return PartitionKey(PROVIDER, report.account, query, report.report_date)


def raw_run_id(report: Report) -> str:
    """One run for each report, so that a step that is taken again finds what the first one landed."""
    assert report.last_report_created_at is not None  # noqa: S101 - there is a report
    return instant_text(report.last_report_created_at)


def daily_work_waits(ledger: Ledger, report: Report) -> bool:
    """Whether datasets that are not backfill are due behind the same gate, or being worked on."""
    database = ledger.database
    daily = "SELECT 1 FROM report_dataset_metadata WHERE gate_id = :gate AND NOT backfill AND"
    due = f"{waiting('next_refresh_at')} AND next_refresh_at <= {database.now_sql}"
    # Apart, as there is an index for each.
    sql = f"SELECT EXISTS ({daily} {due}) OR EXISTS ({daily} claimed_by IS NOT NULL)"
    return bool(ledger.read(lambda cursor: cursor.rows(sql, gate=report.gate_id, **database.bind_now()))[0][0])


def _create_failed(report: Report, error: StepError, moment: failure.Moment) -> Outcome[Report]:
    if isinstance(error, Transient | InDoubt) and not failure.CALLS.exhausted(report.attempts):
        least = timedelta(seconds=error.retry_after) if isinstance(error, DuplicateReport) else timedelta()
        return failure.again(report, error, moment, least)
    return failure.of(report, "create_failures", f"no report could be created: {error}", moment)


def _look_failed(report: Report, error: StepError, moment: failure.Moment) -> Outcome[Report]:
    now, settings = moment.now, moment.settings
    if isinstance(error, Rejected):
        why = f"report {report.report_id} cannot be checked: {error}"
        return failure.of(report, "provider_failures", why, moment)
    if now - (report.last_report_created_at or now) >= settings.give_up_after:
        return failure.pending(report, moment, str(error))
    after = replace(report, attempts=report.attempts + 1, due_at=now + settings.poll)
    return Outcome(report, after, f"{type(error).__name__}: {error}")


def _parse_failed(report: Report, error: StepError, moment: failure.Moment) -> Outcome[Report]:
    if isinstance(error, LinkExpired):
        count = report.link_expiries + 1
        if count < moment.settings.link_limit:
            after = replace(report, link_expiries=count, due_at=moment.now)
            return Outcome(report, after, f"the link has expired; another one is asked for: {error}")
        why = f"the link of report {report.report_id} had expired {count} times before it was read: {error}"
        return failure.of(report, "link_expiries", why, moment)
    if isinstance(error, Transient | InDoubt) and not failure.CALLS.exhausted(report.attempts):
        return failure.again(report, error, moment)
    return failure.of(report, "parse_failures", f"report {report.report_id} could not be loaded: {error}", moment)


@contextlib.contextmanager
def _raw_errors() -> Iterator[None]:
    """What a failure of the raw sink means for the step."""
    try:
        yield
    except RawUnavailable as error:
        raise MustWait(str(error)) from error
    except (RawCorrupt, AlreadyFinalised) as error:
        raise Rejected(str(error)) from error


def _last_load(ledger: Ledger, report: Report) -> dict[str, Any] | None:
    if report.loaded_report_id is None:
        return None
    names = ("digest", "row_count", "cost", "sales")
    sql = f"SELECT {', '.join(names)} FROM report_load WHERE unit_id = :unit_id AND report_id = :report_id"
    rows = ledger.read(lambda cursor: cursor.rows(sql, unit_id=report.unit_id, report_id=report.loaded_report_id))
    return dict(zip(names, rows[0], strict=True)) if rows else None


def _load_row(report: Report, totals: Totals, before: Mapping[str, Any] | None, now: datetime) -> dict[str, Any]:
    cost, sales = float(totals.cost), float(totals.sales)
    return {
        "unit_id": report.unit_id,
        "report_id": report.report_id,
        "aggregation": report.aggregation,
        "entity_type": report.entity_type,
        "serving_offset": report.serving_offset or 0,
        "loaded_at": now,
        "row_count": totals.rows,
        "digest": totals.digest,
        "impressions": totals.impressions,
        "clicks": totals.clicks,
        "cost": cost,
        "sales": sales,
        "changed": None if before is None else differ(before["digest"], totals.digest),
        "rows_difference": None if before is None else totals.rows - before["row_count"],
        "cost_difference": None if before is None else cost - before["cost"],
        "sales_difference": None if before is None else sales - before["sales"],
    }

"""What one run of a query has done so far, and what there is left for it to do. Pure."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

from penstock.lifecycles.queries.machine import Query
from penstock.lifecycles.queries.passes import Kind, Pass, begin_of, day_of, read_pass
from penstock.lifecycles.queries.registry import Configured
from penstock.lifecycles.queries.settings import QueriesSettings

_SHARE = 4
"""One part in so many of a run's limits is kept for history, where new records would fill them."""


class Stop(StrEnum):
    """Why a run stopped."""

    EXHAUSTED = "exhausted"
    """Everything that is wanted was read."""
    MAX_PAGES = "max_pages"
    MAX_OFFERS = "max_offers"
    RATE_LIMITED = "rate_limited"
    CLIENT_CLOSED = "client_closed"
    """Its client's gate was closed by somebody else."""
    ERROR = "error"
    FATAL = "fatal"
    """Credentials or configuration: the client is stopped."""
    STOPPED = "stopped"
    """Its worker was told to stop; the next one goes on."""
    ABANDONED = "abandoned"
    """Whoever ran it is gone."""


class Unseen(msgspec.Struct, frozen=True):
    """A reading that saw everything there was, from its beginning down to `until`."""

    number: int
    until: datetime


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The counters of `ingestion_runs`, and what the run has behind it."""

    pages_fetched: int = 0
    offers_fetched: int = 0
    requests_count: int = 0
    http_429_count: int = 0
    errors_count: int = 0
    new: int = 0
    changed: int = 0
    closed: int = 0
    companies_aggregated: int = 0
    companies_failed: int = 0
    #: Whether what is new was read.
    recent: bool = False
    #: Whether companies are to be aggregated.
    companies: bool = False
    #: What the reading of this number did not see, down to this moment, is closed: another one has not seen it either.
    closing: Unseen | None = None
    #: Why it stops, what went wrong, and until when its client is closed.
    stop: Stop | None = None
    error: str | None = None
    until: datetime | None = None
    #: How far the query had read when the run began: of what is new, and of history.
    marks: tuple[str, str] = ("", "")

    def document(self) -> dict[str, Any]:
        """As a column keeps it."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]

    def counters(self) -> dict[str, int]:
        """The columns of its record."""
        return {name: getattr(self, name) for name in COUNTERS}


COUNTERS = (
    *("pages_fetched", "offers_fetched", "requests_count", "http_429_count", "errors_count", "new", "changed"),
    *("closed", "companies_aggregated", "companies_failed"),
)


def run_of(query: Query) -> Run:
    """The run that is under way."""
    return msgspec.convert(query.run or {}, Run)


def marks_of(query: Query) -> tuple[str, str]:
    """How far a query has read of what is new, and of history: another text is progress."""
    new, history = (kept and (kept.get("further"), kept.get("reached")) for kept in (query.reading, query.seeding))
    return f"{query.covered_through} {new}", f"{query.last_processed_date} {history}"


def next_pass(query: Query, now: datetime, own: Configured, settings: QueriesSettings) -> Pass | None:
    """What the run reads next: what is new first, then history; None: nothing is left."""
    under_way = read_pass(query.reading)
    if under_way is not None and not _turn_of_history(query, under_way, own):
        # Where history was read meanwhile, it no longer proves that what it did not see is gone.
        stale = under_way.number < query.readings
        return msgspec.structs.replace(under_way, number=query.readings + 1, whole=False) if stale else under_way
    recent = run_of(query).recent or under_way is not None
    if query.covered_through is not None and not recent:
        return _recent(query, now, own, settings)
    if query.seeded_at is not None or (query.covered_through is None and recent):
        return None
    history = read_pass(query.seeding)
    if history is None:
        until = begin_of(seed_day(query, now, own), own.zone)
        return Pass(kind=Kind.SEED, number=query.readings + 1, begun=now, until=until)
    if history.number < query.readings:
        # What was read meanwhile has higher numbers: none may be seen in a lower one afterwards.
        return msgspec.structs.replace(history, number=query.readings + 1)
    return history


def _waits_for(query: Query, own: Configured) -> bool:
    """Whether history waits for its turn, which has come."""
    under_way = read_pass(query.reading)
    return under_way is not None and _turn_of_history(query, under_way, own)


def _turn_of_history(query: Query, under_way: Pass, own: Configured) -> bool:
    """Whether what is left of the run's limits is kept for history, which new records would put off for ever."""
    run = run_of(query)
    if under_way.kind is not Kind.RECENT or query.seeded_at is not None:
        return False
    pages = max(1, own.max_pages // _SHARE)
    offers = max(run.offers_fetched // max(1, run.pages_fetched), own.max_offers // _SHARE)
    return run.pages_fetched >= own.max_pages - pages or run.offers_fetched >= own.max_offers - offers


def _recent(query: Query, now: datetime, own: Configured, settings: QueriesSettings) -> Pass:
    """What was listed since the last reading; once in a while everything, to find what was closed."""
    assert query.covered_through is not None  # noqa: S101 - asked for only then
    number = query.readings + 1
    until = query.covered_through - settings.overlap
    every, oldest = settings.census_every, query.last_processed_date or query.unreachable_before
    counted = query.census_at or query.seeded_at
    # One in the future was made while the clock was wrong.
    if every is not None and counted is not None and oldest is not None and not timedelta() <= now - counted < every:
        return Pass(kind=Kind.CENSUS, number=number, begun=now, until=min(until, begin_of(oldest, own.zone)))
    return Pass(kind=Kind.RECENT, number=number, begun=now, until=until)


def seed_day(query: Query, now: datetime, own: Configured) -> date:
    """The oldest day that is to be seeded: fixed at the first run, unless somebody wants more."""
    return query.seed_until or own.seed_from or day_of(now - own.horizon, own.zone)


def limit_of(run: Run, own: Configured) -> Stop | None:
    """Which limit a run has come to."""
    if run.pages_fetched >= own.max_pages:
        return Stop.MAX_PAGES
    if run.offers_fetched >= own.max_offers:
        return Stop.MAX_OFFERS
    return None


def what_next(query: Query, now: datetime, own: Configured, settings: QueriesSettings) -> tuple[str, str]:
    """What a run does next, and why."""
    run = run_of(query)
    if run.closing is not None:
        return "close", "what is no longer listed is closed"
    # Where one page fills the limit, history has the second.
    if run.stop is None and (limit_of(run, own) is None or (run.pages_fetched == 1 and _waits_for(query, own))):
        following = next_pass(query, now, own, settings)
        if following is not None:
            return "page", following.says()
    if run.companies:
        return "aggregate", "companies whose offers changed are aggregated again"
    return "finish", "nothing is left to read" if run.stop is None else str(run.error or run.stop)


def next_due(query: Query, now: datetime, settings: QueriesSettings) -> datetime:
    """When its next run is due: runs begin at least a pause apart, and at once where this one took longer."""
    begun = query.run_started_at or now
    # After a clock that was set back, what began in the future counts as begun now.
    return max(now, min(begun, now) + settings.pause)

"""How a run ends: the state that it leaves its query in, when the next one is due, and what is to be told. Pure."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Struct

from penstock.lifecycles.queries.alerts import CRITICAL_FROM, FAILING_FROM
from penstock.lifecycles.queries.machine import Query, S
from penstock.lifecycles.queries.registry import Configured
from penstock.lifecycles.queries.runs import Run, Stop, limit_of, marks_of, next_due, next_pass, run_of
from penstock.lifecycles.queries.settings import QueriesSettings
from penstock.model.clock import instant_text
from penstock.model.outcome import Event
from penstock.model.spoken import counted
from penstock.model.unit import replace

"""Runs in a row that fail until it is told, and told again as critical."""
_STUCK = 2
_USELESS = 10
"""A run that finds so many records, and can use none of them, has failed."""
_EARLY = frozenset({Stop.RATE_LIMITED, Stop.CLIENT_CLOSED, Stop.STOPPED})
_FAILED = frozenset({Stop.ERROR, Stop.FATAL})
_LIMITS = frozenset({Stop.MAX_PAGES, Stop.MAX_OFFERS})


class Ended(Struct, frozen=True):
    """A query whose run is over, and why it stopped."""

    query: Query
    stop: Stop
    reason: str
    at: datetime
    events: list[Event]


def ended(query: Query, now: datetime, own: Configured | None, settings: QueriesSettings) -> Ended:
    """The run that is under way, ended."""
    run = run_of(query)
    stop = run.stop or _stop(query, run, now, own, settings)
    if run.stop is None and not run.offers_fetched and run.errors_count >= _USELESS:
        query, run, stop = _useless(query, run, stop)
    query = replace(query, run_version=None, run=None, due_at=next_due(query, now, settings))
    if stop in _FAILED:
        return _failed(query, run, stop, now)
    if stop in _EARLY:
        due = query.due_at if run.until is None else max(run.until, now)
        return Ended(replace(query, status=S.IDLE, due_at=due), stop, f"{stop}: {run.error}", now, [])
    query = replace(query, status=S.SUCCESS, last_success_at=now, consecutive_failures=0, error=None)
    query, events = _stuck(query, run, stop)
    events += _silent(query, now, settings)
    return Ended(query, stop, _summary(run, stop), now, events)


def _stop(query: Query, run: Run, now: datetime, own: Configured | None, settings: QueriesSettings) -> Stop:
    if own is None or next_pass(query, now, own, settings) is None:
        return Stop.EXHAUSTED
    return limit_of(run, own) or Stop.EXHAUSTED


def _useless(query: Query, run: Run, stop: Stop) -> tuple[Query, Run, Stop]:
    """Nothing that was read could be used: a path in the configuration is wrong, or the provider has changed.

    Where nothing ever could, the list is read from its beginning when that is mended.
    """
    why = f"none of {run.errors_count:,} records could be used; 'penstock queries rejected' says why"
    if query.last_found_at is None and stop is Stop.EXHAUSTED:
        query = replace(query, covered_through=None, last_processed_date=None, seeded_at=None, census_at=None)
        query = replace(query, reading=None, seeding=None)
    return query, msgspec.structs.replace(run, error=why), Stop.ERROR


def _failed(query: Query, run: Run, stop: Stop, now: datetime) -> Ended:
    failures = query.consecutive_failures + 1
    text = run.error or str(stop)
    query = replace(query, status=S.ERROR, error=text, last_error_at=now, consecutive_failures=failures)
    events = []
    if failures in (FAILING_FROM, CRITICAL_FROM):
        since = instant_text(query.last_success_at) if query.last_success_at else "ever"
        said = {"query": query.name, "key": query.query_key, "failures": failures, "since": since, "reason": text}
        severity = "critical" if failures == CRITICAL_FROM else "warning"
        key = f"queries.failing:{query.query_key}:{since}:{failures}"
        events.append(Event(key, "queries.failing", said, severity))  # type: ignore[arg-type]
    return Ended(query, stop, text, now, events)


def abandoned(query: Query, now: datetime) -> Ended:
    """The run of somebody who is gone. It is nobody's failure, and runs again at once, or when its crash lets it."""
    why = "abandoned: the worker that ran it is gone"
    due = max(now, query.due_at or now)
    after = replace(query, status=S.ERROR, error=why, last_error_at=now, run=None, run_version=None, due_at=due)
    return Ended(after, Stop.ABANDONED, why, now, [])


def _stuck(query: Query, run: Run, stop: Stop) -> tuple[Query, list[Event]]:
    """Runs that come to their limit time after time and get nowhere are told; also if that is so of history alone."""
    new, history = (one == before for one, before in zip(marks_of(query), run.marks, strict=True))
    if stop not in _LIMITS or not (history and (new or query.seeded_at is None)):
        return replace(query, stuck=0), []
    query = replace(query, stuck=query.stuck + 1)
    if query.stuck != _STUCK:
        return query, []
    what = "nothing further" if new else "no history further: what is new takes it up"
    why = f"two runs in a row reached {stop} and read {what}; raise it"
    said = {"query": query.name, "key": query.query_key, "reason": why}
    return query, [Event(f"queries.stuck:{query.query_key}:{query.version}", "queries.stuck", said, "warning")]


def _silent(query: Query, now: datetime, settings: QueriesSettings) -> list[Event]:
    """A query that used to have results and has none."""
    found = query.last_found_at
    if found is None or now - found < settings.silent_after:
        return []
    since = instant_text(found)
    said = {
        "query": query.name,
        "key": query.query_key,
        "since": since,
        "reason": "it used to have results, and has had none since",
    }
    return [Event(f"queries.silent:{query.query_key}:{since}", "queries.silent", said, "warning")]


def _summary(run: Run, stop: Stop) -> str:
    read = f"{counted(run.pages_fetched, 'page')}, {counted(run.offers_fetched, 'offer')}"
    return f"{read}: {run.new:,} new, {run.changed:,} changed, {run.closed:,} closed; stopped: {stop}"

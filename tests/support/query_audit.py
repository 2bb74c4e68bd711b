"""What must be true of queries after a year: by the ledger, by what the providers saw, and by what they listed."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import groupby, pairwise
from typing import Any
from zoneinfo import ZoneInfo

from penstock.app.app import App
from penstock.ledger.care.doctor import examine
from penstock.lifecycles.queries import lifecycle
from penstock.lifecycles.queries.passes import begin_of
from penstock.model.clock import instant, parse_instant
from penstock.simulators.infojobs_data import Seen
from tests.support.query_year import CAPPED, START, Ended, Year

_ZONE = ZoneInfo("Europe/Madrid")
_RUN = timedelta(hours=1)
"""No run takes longer, retries and all."""
_CENSUS = timedelta(days=15)
"""Two readings of everything are no further apart, as troubles go."""
_EXPLAINED = {
    "500": re.compile("500 Internal Server Error"),
    "503": re.compile("503 Service Unavailable"),
    "cut": re.compile("closed the connection"),
    "html": re.compile("is not JSON"),
}
_ABANDONED = "abandoned: the worker that ran it is gone"


def findings(year: Year) -> list[str]:
    """Everything that is wrong; nothing is."""
    checks = (holes, wrongly_closed, never_closed, doubles, locks, unexplained, overlaps, sick, standstills)
    return [found for check in checks for found in check(year)]


@dataclass(frozen=True, slots=True)
class Stay:
    """How long an offer was listed without a break, and when it was bumped meanwhile."""

    id: str
    start: datetime
    end: datetime
    dates: tuple[tuple[datetime, datetime], ...]


def stays(year: Year, query: str) -> Sequence[tuple[Seen, Stay]]:
    """Every offer that was ever to be found by a query."""
    if query not in year.listed:
        own = year.settings.queries[query]
        simulator = year.providers[own.client].simulator
        found = simulator.offers_of(own.parameters, START, year.clock.now())
        year.listed[query] = [(seen, _stay(seen)) for seen in found]
    return year.listed[query]


def _stay(seen: Seen) -> Stay:
    dates = tuple((start, updated) for start, _, updated in seen.spans)
    return Stay(seen.id, seen.spans[0][0], seen.spans[-1][1], dates)


def holes(year: Year) -> Iterator[str]:
    """Every offer that was listed while two runs in a row came to their end, and within reach, is there."""
    for query, own in year.settings.queries.items():
        key, oldest, hole = _state(year, query)
        there = {row[0] for row in year.rows("SELECT offer_id FROM query_offers WHERE query_key = :key", key=key)}
        known = {row[0] for row in year.rows("SELECT offer_id FROM offers WHERE client = :name", name=own.client)}
        runs = _whole_runs(year, query)
        spoiled = [call.at for call in year.journal.calls if call.query == query and call.trouble in _DEFECTS]
        missing = expected = 0
        for seen, stay in stays(year, query):
            if seen.defect is not None or not _must_be_seen(stay, runs, oldest, hole):
                continue
            expected += 1
            if seen.id in there and seen.id in known:
                continue
            # What was malformed when it was new is found when everything is listed again, as far as that goes.
            listed = _CENSUS if own.client != CAPPED else timedelta.max
            if not any(stay.start <= at < stay.end and stay.end - at < listed for at in spoiled):
                missing += 1
                first = f"{stay.id} listed from {stay.start} to {stay.end}"
        if missing:
            yield f"{query}: {missing} of {expected} offers are missing, such as {first}"
        if expected < len(there) / 2:
            yield f"{query}: only {expected} offers were sure to be seen, of {len(there)}"


_DEFECTS = frozenset({"no_id", "no_date", "nonsense_date", "null_title"})


def _must_be_seen(
    stay: Stay, runs: Sequence[Ended], oldest: datetime, hole: Sequence[tuple[datetime, datetime]]
) -> bool:
    """Whether it was there from before the end of one run to the end of the next, and not bumped in between."""
    place = bisect_left(runs, stay.start, key=lambda run: run.at - _RUN)
    for before, after in pairwise(runs[place:]):
        if after.at >= stay.end:
            return False
        bumped = any(before.at - _RUN < start <= after.at for start, _ in stay.dates[1:])
        updated = [date for start, date in stay.dates if start <= after.at][-1]
        if not bumped and updated >= oldest and not any(low <= updated <= high for low, high in hole):
            return True
    return False


def _state(year: Year, query: str) -> tuple[str, datetime, list[tuple[datetime, datetime]]]:
    """The key of a query, from when on its days are reachable, and the spans that it knows it has missed."""
    sql = "SELECT query_key, last_processed_date, metadata, unreachable_before FROM query_state WHERE name = :name"
    ((key, day, metadata, unreachable),) = year.rows(sql, name=query)
    holes = _document(metadata).get("holes", [])
    oldest = max(filter(None, (_day(day), _day(unreachable))))
    return key, begin_of(oldest, _ZONE), [(parse_instant(one["from"]), parse_instant(one["to"])) for one in holes]


def _whole_runs(year: Year, query: str) -> list[Ended]:
    """The runs that read everything they wanted."""
    return [run for run in year.ended if run.query == query and run.stopped_by == "exhausted"]


def wrongly_closed(year: Year) -> Iterator[str]:
    """What is closed is not listed any more."""
    now = year.clock.now()
    listed: dict[str, set[str]] = {name: set() for name in year.providers}
    for query, own in year.settings.queries.items():
        listed[own.client] |= {stay.id for _, stay in stays(year, query) if stay.start <= now < stay.end}
    closed = year.rows("SELECT client, offer_id, closed_at FROM offers WHERE closed_at IS NOT NULL")
    wrong = [row for row in closed if row[1] in listed[row[0]]]
    if wrong:
        yield f"{len(wrong)} of {len(closed)} closed offers are still listed, such as {wrong[0]}"
    # And it was gone when it was closed, by a clock that may have been wrong by some days.
    margin = max((abs(window.skew) for window in year.jumps), default=timedelta())
    ends = {
        (own.client, stay.id): stay.end
        for query, own in year.settings.queries.items()
        for _, stay in stays(year, query)
    }
    early = [row for row in closed if instant(row[2]) + margin < ends[row[0], row[1]]]
    if early:
        yield f"{len(early)} of {len(closed)} offers were closed while they were listed, such as {early[0]}"


def never_closed(year: Year) -> Iterator[str]:
    """What has been gone for long is closed, but where a provider lists too little to tell."""
    long_ago = year.clock.now() - 3 * _CENSUS
    for query, own in year.settings.queries.items():
        if own.client == CAPPED:
            continue
        key, oldest, _ = _state(year, query)
        sql = "SELECT offer_id, record_at FROM query_offers WHERE query_key = :key AND gone_at IS NULL"
        left = {row[0] for row in year.rows(sql, key=key) if instant(row[1]) >= oldest}
        gone = {stay.id for _, stay in stays(year, query) if stay.end < long_ago}
        if len(left & gone) > len(gone) / 50:
            yield f"{query}: {len(left & gone)} of {len(gone)} offers have long been gone, and are not"


def doubles(year: Year) -> Iterator[str]:
    """A repost is linked to what it reposts, and what both clients list is one offer twice, linked."""
    sql = "SELECT client, offer_id, linked_client, linked_offer_id, link_kind, updated_at FROM offers"
    offers = {(row[0], row[1]): row[2:] for row in year.rows(sql)}
    heads = {ref: (row[0], row[1]) if row[0] else ref for ref, row in offers.items()}
    wrong = [ref for ref, head in heads.items() if head not in offers or heads[head] != head]
    if wrong:
        yield f"{len(wrong)} offers are linked to one that is linked itself, such as {wrong[0]}"
    first, second = year.providers
    twice = [one for client, one in offers if client == first and (second, one) in offers]
    apart = [one for one in twice if heads[first, one] != heads[second, one]]
    if not twice or apart:
        yield f"{len(apart)} of {len(twice)} offers that both clients list are not linked: {apart[:1]}"
    reposts = 0
    for query, own in year.settings.queries.items():
        for seen, stay in stays(year, query):
            ref, original = (own.client, seen.id), (own.client, str(seen.repost_of))
            if seen.repost_of is None or ref not in offers or original not in offers:
                continue
            reposts += 1
            near = stay.start - instant(offers[original][3]) < year.settings.repost_within
            if near and heads[ref] != heads[original]:
                yield f"{query}: {ref} is not linked to {original}, which it reposts"
    if not reposts and year.clock.now() - START > 2 * _CENSUS:
        yield "no offer was reposted"


def locks(year: Year) -> Iterator[str]:
    """Nobody holds the lock, and no query is claimed."""
    yield from (f"the lock is held: {row}" for row in year.rows("SELECT * FROM run_lock"))
    claimed = year.rows("SELECT query_key, claimed_by FROM query_state WHERE claimed_by IS NOT NULL")
    yield from (f"claimed by nobody who lives: {row}" for row in claimed)
    parked = year.rows("SELECT query_key, parked_reason FROM query_state WHERE parked_at IS NOT NULL")
    yield from (f"parked: {row}" for row in parked)
    open_runs = year.rows("SELECT id FROM ingestion_runs WHERE status = 'RUNNING' OR finished_at IS NULL")
    yield from (f"a run was never closed: {row}" for row in open_runs)


def unexplained(year: Year) -> Iterator[str]:
    """Every error names a trouble that was made on purpose, shortly before; nothing else went wrong."""
    for run in year.ended:
        if run.status != "ERROR" or run.error == _ABANDONED:
            continue
        made = {call.trouble for call in year.journal.calls if run.at - _RUN <= call.at <= run.at}
        if not any(told in made and text.search(run.error or "") for told, text in _EXPLAINED.items()):
            yield f"{run.query} failed at {run.at}, and nobody knows why: {run.error}"
    told = {row[0] for row in year.rows("SELECT error FROM ingestion_runs WHERE status = 'ERROR'")}
    strange = [
        error for error in told if error != _ABANDONED and not any(t.search(error or "") for t in _EXPLAINED.values())
    ]
    yield from (f"an error that nobody made: {error}" for error in strange)
    abandoned = sum(run.stopped_by == "abandoned" for run in year.ended)
    if abandoned != year.killed:
        yield f"{year.killed} workers were killed in a call, and {abandoned} runs were abandoned"


def overlaps(year: Year) -> Iterator[str]:
    """One run after another: by the history of states, and by the calls that the providers saw."""
    if year.journal.most_under_way != 1:
        yield f"{year.journal.most_under_way} calls were under way at once"
    sql = (
        "SELECT unit_id, to_status FROM transition_log WHERE machine = 'query'"
        " AND (to_status = 'RUNNING') <> (coalesce(from_status, '') = 'RUNNING') ORDER BY seq"
    )
    running: str | None = None
    left: str | None = None
    order: list[str] = []
    for unit, status in year.rows(sql):
        if status == "RUNNING":
            if left is not None:
                yield f"{unit} began while {left} ran"
            # Whoever begins closes with the same commit what a dead worker has left.
            left, running = running, unit
            order.append(unit)
        elif unit == left:
            left = None
        elif unit == running:
            running = None
        else:
            yield f"{unit} ended, and did not run"
    names = dict(year.rows("SELECT query_key, name FROM query_state"))
    ran = [name for name, _ in groupby(names[unit] for unit in order)]
    called = [name for name, _ in groupby(call.query for call in year.journal.calls)]
    if not within(called, ran):
        yield "the providers were asked in another order than queries ran"


def within(some: Sequence[str], every: Sequence[str]) -> bool:
    """Whether one sequence is the other with some left out: runs that made no call."""
    rest = iter(every)
    return all(one in rest for one in some)


def sick(year: Year) -> Iterator[str]:
    app = App(lifecycle)
    found = examine(year.ledger.database, {one.name: one for one in app.machines}, views=app.data.views)
    yield from (f"doctor: {one.subject}: {one.message}" for one in found)


def standstills(year: Year) -> Iterator[str]:
    """No query rests for longer than troubles explain: a closed client, an outage, a clock that was ahead."""
    ahead = max((window.skew for window in year.jumps), default=timedelta())
    longest = timedelta(hours=60) + max(ahead, timedelta())
    for query in year.settings.queries:
        ends = [run.at for run in year.ended if run.query == query]
        for one, two in pairwise([START, *ends, year.clock.now()]):
            if two - one > longest:
                yield f"{query} did not run from {one} to {two}"


def digest(year: Year) -> str:
    """All that the ledger has come to, but for ids by chance."""
    found = hashlib.sha256()
    for sql in _DIGESTED:
        for row in year.rows(sql):
            found.update(repr(tuple(map(_plain, row))).encode())
    return found.hexdigest()[:16]


_DIGESTED = (
    (
        "SELECT client, offer_id, title, company_key, content_hash, updated_at, link_kind, linked_client,"
        " linked_offer_id, first_seen_at, last_seen_at, closed_at FROM offers ORDER BY 1, 2"
    ),
    "SELECT query_key, offer_id, record_at, seen_in, gone_at FROM query_offers ORDER BY 1, 2",
    (
        "SELECT query_key, status, stopped_by, error, pages_fetched, offers_fetched, requests_count, http_429_count,"
        " errors_count, new, changed, closed, companies_aggregated, companies_failed, started_at, finished_at"
        " FROM ingestion_runs ORDER BY query_key, started_at, finished_at, 3, 5, 6, 7"
    ),
    (
        "SELECT query_key, status, last_processed_date, covered_through, seed_until, seeded_at, unreachable_before,"
        " readings, census_at, consecutive_failures FROM query_state ORDER BY 1"
    ),
    "SELECT company_key, name, offers_total, offers_open FROM companies ORDER BY 1",
    "SELECT query_key, digest, reason FROM rejected_records ORDER BY 1, 2",
)


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime | date) else str(value)


def _document(value: Any) -> Mapping[str, Any]:
    import json

    return json.loads(value) if isinstance(value, str) else value or {}


def _day(value: Any) -> date | None:
    return date.fromisoformat(value) if isinstance(value, str) else value

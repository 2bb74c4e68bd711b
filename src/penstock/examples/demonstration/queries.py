"""The part of the queries: two searches at InfoJobs, and a described API whose records have a table of their own.

Each is seeded backwards over several runs. On day 4 InfoJobs limits the rate of calls and rests for six hours, while
the other client goes on; on day 8 the other is away. From day 24 to day 34 an operator holds InfoJobs, and what was
listed meanwhile is read afterwards. Offers come and go all the time, and some come back under another id. The first
call of the other client fails and is made again within its run. Once a week, at night, companies and offers are written
to a spreadsheet, and what somebody wrote beside a company there is read back.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import defaultdict, deque
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from penstock.examples.demonstration.part import Check, Table, Told, World, closings
from penstock.lifecycles import queries
from penstock.lifecycles.queries import operations
from penstock.lifecycles.queries.jobs import UPDATE
from penstock.lifecycles.queries.machine import S
from penstock.lifecycles.queries.runs import Stop
from penstock.lifecycles.queries.settings import client_gate
from penstock.lifecycles.queries.sheet_ranges import FEEDBACK, KEY
from penstock.model.cadence import local_instant, parse_zone
from penstock.model.clock import Clock, instant
from penstock.model.spoken import counted
from penstock.simulators.google_sheets import SPREADSHEET, GoogleSheetsSimulator
from penstock.simulators.infojobs import OPERATION, InfoJobsSimulator, throttle
from penstock.simulators.infojobs_data import Market
from penstock.simulators.paged import Fault, PagedSimulator
from penstock.simulators.paged_data import Listing
from penstock.simulators.server import in_thread

INFOJOBS, OTHER = "infojobs", "vacancies"
"""The clients. The query of the second has its name, and so has the table of its records."""
SEARCHES: dict[str, dict[str, Any]] = {
    "python": {"q": "python"},
    "accounting": {"q": "contable", "province": ["Barcelona", "Madrid"]},
}
ZONE = "Europe/Madrid"
_RECORDS, _ADDED, _BUMPED, _REMOVED = 160, 20, 10, 8
#: With this share exactly one record is malformed: its pay is a word.
_BAD = 0.005
#: Told apart from a hiccup, which is tried again within the run, after seconds that are real ones here.
_AWAY = Fault(404, {"message": "We are moving. Come back tomorrow."})
#: What is mended by the next call.
_HICCUP = Fault(503, {"message": "Try again."})
_NIGHT = range(3, 6)
_SAID = "They called back."
_DAY, _HOUR = timedelta(days=1), timedelta(hours=1)
_REST = 6 * _HOUR
_SEVERAL = 2
_QUIET = {Stop.EXHAUSTED, Stop.MAX_PAGES, Stop.MAX_OFFERS}
_FIELDS = {"title": "title", "company": "company.name", "city": "places.0.city", "pay_min": "pay.min"}
_TYPES = {"pay_min": "number"}
_RUNS = (
    "SELECT q.query_key, q.name, r.client, r.status, r.stopped_by, r.error, r.started_at, r.finished_at,"
    " r.offers_fetched FROM ingestion_runs r JOIN query_state q ON q.query_key = r.query_key"
    " WHERE r.started_at >= {since} AND r.finished_at IS NOT NULL ORDER BY r.started_at"
)
_BEGUN = (
    "SELECT unit_id FROM transition_log WHERE machine = 'query' AND from_status <> 'RUNNING' AND to_status = 'RUNNING'"
    " AND at >= {since} ORDER BY seq"
)


class _Run(NamedTuple):
    query: str
    client: str
    status: str
    stopped_by: str
    error: str | None
    started: datetime
    finished: datetime
    offers: int


class _Reading(NamedTuple):
    """Runs of one query in a row, of which the last found nothing left to read."""

    query: str
    begun: datetime
    ended: datetime
    runs: int
    offers: int

    @property
    def found(self) -> str:
        return f"{counted(self.offers, 'offer')} in {counted(self.runs, 'run')}"


class QueriesPart:
    """Three queries, each run once a day, three pages at a time."""

    leaves = ()

    def __init__(self, clock: Clock) -> None:
        market = Market(clock.now(), rate=0.4, history=80 * _DAY)
        self._infojobs = InfoJobsSimulator(clock, market)
        self._other = PagedSimulator(clock, Listing(_RECORDS, clock.now(), bad=_BAD), auth="bearer")
        self._other.faults["list"].append(_HICCUP)
        #: The hours in which the spreadsheet was read or written, where it is.
        self._hours: set[int] = set()
        self._sheet = GoogleSheetsSimulator(clock, before=self._clocked)

    def _clocked(self, _operation: str) -> None:
        self._hours.add(self._sheet.clock.now().astimezone(parse_zone(ZONE)).hour)

    @contextlib.contextmanager
    def serving(self, folder: Path, start: datetime, clock: Clock) -> Iterator[str]:  # noqa: ARG002 - one shape
        self.now_by(clock)
        (folder / "secrets" / "infojobs-secret").write_text(self._infojobs.client_secret)
        (folder / "secrets" / "vacancies-key").write_text(self._other.key)
        with in_thread(self._infojobs) as infojobs, in_thread(self._other) as other, in_thread(self._sheet) as sheet:
            (folder / "secrets" / "sheet-key.json").write_text(self._sheet.key(sheet))
            yield "\n".join([*self._settings(infojobs), *self._described(other), *self._written(sheet)])

    def _settings(self, address: str) -> Iterator[str]:
        yield '[queries]\npause = "1d"\nhorizon = "30d"\nmax_pages = 3\n'
        yield f'[queries.infojobs.{INFOJOBS}]\nurl = "{address}"\nclient_id = "{self._infojobs.client_id}"'
        yield 'client_secret = { file = "secrets/infojobs-secret" }'
        yield f'page_size = 20\nrequests_per_second = 0\ntime_zone = "{ZONE}"\n'
        for name, parameters in SEARCHES.items():
            given = ", ".join(f"{key} = {json.dumps(value)}" for key, value in parameters.items())
            yield f'[queries.queries.{name}]\nclient = "{INFOJOBS}"\nparameters = {{ {given} }}\n'
        # Once a day: time leaps from tick to tick.
        yield f'[schedules.{UPDATE}]\njob = "{UPDATE}"\nat = ["00:05"]\n'

    def _described(self, address: str) -> Iterator[str]:
        """The other API, as a configuration describes one that Penstock does not know."""
        yield f'[queries.rest_json.{OTHER}]\nurl = "{address}"\npath = "/cursor"\nparameters = {{ limit = 40 }}'
        yield 'auth.bearer = { secret = { file = "secrets/vacancies-key" } }'
        yield 'paging.cursor = { next = "meta.next_cursor" }\nsince = { parameter = "since" }'
        yield 'order = "newest_first"\nrecords = "data.items"\ndate = "updated_at"\nrequests_per_second = 0'
        yield f'table = "{OTHER}"'
        for name, path in _FIELDS.items():
            yield f'fields.{name} = {{ path = "{path}", type = "{_TYPES.get(name, "text")}" }}'
        yield f'\n[queries.queries.{OTHER}]\nclient = "{OTHER}"\nhorizon = "100d"\n'

    def _written(self, address: str) -> Iterator[str]:
        yield f'\n[queries.sheet]\nspreadsheet_id = "{SPREADSHEET}"\nurl = "{address}"'
        yield 'credentials = { file = "secrets/sheet-key.json" }\nevery = "7d"\n'

    def now_by(self, clock: Clock) -> None:
        self._infojobs.clock = self._other.clock = self._sheet.clock = clock

    async def happen(self, world: World) -> None:
        await world.until(world.start + 4 * _DAY)
        self._infojobs.faults[OPERATION].append(throttle())
        await world.until(world.start + 8 * _DAY)
        self._other.faults["list"].append(_AWAY)
        await world.until(world.start + 12 * _DAY)
        now, listing = world.ledger.clock.now(), self._other.offers
        listing.remove(_REMOVED)
        listing.bump(_BUMPED, now)
        listing.add(_ADDED, now)
        noon = world.start + 12 * _HOUR
        companies = self._sheet.grid("Companies")
        companies.put(_SEVERAL, companies.column(FEEDBACK), _SAID)
        await world.until(noon + 24 * _DAY)
        held = operations.PauseParameters(client=INFOJOBS)
        world.do(queries.lifecycle, operations.pause, held, "our contract with InfoJobs is being renewed")
        await world.until(noon + 34 * _DAY)
        world.do(queries.lifecycle, operations.resume, operations.GateParameters(client=INFOJOBS), "")

    def told(self, world: World, since: datetime, until: datetime) -> Iterator[Told]:
        yield from self._seeding(world, since, until)
        yield from self._trouble(world, since, until)
        yield from closings(world, client_gate(INFOJOBS), since, until)
        yield from (told for told in self._held(world) if since <= told.at < until)
        for reading in self._caught_up(world):
            if since <= reading.ended < until:
                words = f"has read what was listed meanwhile: {reading.found}"
                yield Told(reading.ended, f"query {reading.query} {words}")
        yield from (told for told in self._firsts(world) if since <= told.at < until)

    def _seeding(self, world: World, since: datetime, until: datetime) -> Iterator[Told]:
        """How far back each query has got at the end of the day."""
        rows = world.rows(
            "SELECT name, last_processed_date, seed_until, seeded_at, last_run_at FROM query_state"
            " WHERE (seeded_at IS NULL OR seeded_at >= {since}) AND last_run_at >= {since} AND last_run_at < {until}"
            " ORDER BY name",
            since=since,
            until=until,
        )
        for name, day, wanted, seeded, at in rows:
            over = "" if seeded is None else ", as far as is wanted"
            yield Told(instant(at), f"query {name} has read back to {day} (of {wanted}){over}")

    def _trouble(self, world: World, since: datetime, until: datetime) -> Iterator[Told]:
        """Runs that went wrong, and the next ones."""
        before: dict[str, _Run] = {}
        for run in _runs(world, since - _DAY):
            last, before[run.query] = before.get(run.query), run
            if not since <= run.finished < until:
                continue
            if run.stopped_by not in _QUIET:
                yield Told(run.finished, f"query {run.query} is {run.status}, {run.stopped_by}: {run.error}")
            elif last is not None and last.stopped_by not in _QUIET:
                yield Told(run.finished, f"query {run.query} is {run.status} again: {run.offers:,} offers")

    def _held(self, world: World) -> Iterator[Told]:
        """What an operator did to a client's gate."""
        sql = (
            "SELECT event_type, payload, created_at FROM event_log WHERE event_type IN ('gate.paused', 'gate.resumed')"
        )
        for kind, payload, at in world.rows(f"{sql} ORDER BY created_at"):
            said = json.loads(payload) if isinstance(payload, str) else payload
            if said["gate"] == client_gate(INFOJOBS):
                why = f": {said['reason']}" if said.get("reason") else ""
                yield Told(instant(at), f"gate {said['gate']} is {kind.partition('.')[2]} by {said['by']}{why}")

    def _caught_up(self, world: World) -> Iterator[_Reading]:
        """The first reading of each query that was begun after its client was resumed."""
        held = [told.at for told in self._held(world)]
        if len(held) < 2:  # noqa: PLR2004 - paused and resumed
            return
        # One that was under way when the client was paused does not count: it ends where it had begun.
        readings = [one for one in _readings(world, held[0] - 5 * _DAY) if one.begun >= held[1]]
        for name in SEARCHES:
            yield from [one for one in readings if one.query == name][:1]

    def _firsts(self, world: World) -> Iterator[Told]:
        """What was set aside; the first offer that was closed, and the first that came back."""
        rejected = "SELECT record_id, reason, min(first_seen_at) FROM rejected_records GROUP BY record_id, reason"
        for record, reason, at in world.rows(rejected):
            yield Told(instant(at), f"record {record} is set aside: {reason}")
        closed = (
            "SELECT offer_id, closed_at FROM offers WHERE closed_at IS NOT NULL ORDER BY closed_at, offer_id LIMIT 1"
        )
        for offer, at in world.rows(closed):
            yield Told(instant(at), f"offer {offer} is closed: it is no longer listed")
        for offer, earlier, at in _reposts(world)[:1]:
            yield Told(instant(at), f"offer {offer} is a repost of {earlier}")

    def checks(self, world: World) -> Iterator[Check]:
        yield Check("every query seeded back to its horizon, run by run", self._seeded(world))
        yield Check("no offer missed that a reading could see", self._complete(world))
        yield Check("a limited rate, waited for, while the other client went on", self._limited(world))
        yield Check("a query in ERROR, and SUCCESS in its next run", self._mended(world))
        caught = [f"{one.query} {one.found}" for one in self._caught_up(world)]
        yield Check("ten days held by an operator, read afterwards", "; ".join(caught) or None)
        ((closed,),) = world.rows("SELECT count(*) FROM offers WHERE closed_at IS NOT NULL")
        yield Check("offers that are gone, closed", f"{closed:,} offers" if closed else None)
        reposts = _reposts(world)
        linked = f"{reposts[0][0]} of {reposts[0][1]}, and {len(reposts) - 1} more" if reposts else None
        yield Check("an offer under another id, linked as a repost", linked)
        bad = world.rows("SELECT DISTINCT record_id, reason FROM rejected_records")
        yield Check("a malformed record, set aside", f"{bad[0][0]}: {bad[0][1]}" if len(bad) == 1 else None)
        yield Check("every record of the other client in its own table, and no others", self._equal(world))
        yield Check("a call that failed, made again within its run", self._again(world))
        yield Check("companies and offers in a spreadsheet, and feedback from it, at night alone", self._synced(world))
        yield Check("one run at a time, and the run lock free in the end", self._alone(world))

    def _seeded(self, world: World) -> str | None:
        """As far back as was wanted. What fits into one run takes one; the longest list does not."""
        rows = world.rows("SELECT name, last_processed_date, seed_until, seeded_at FROM query_state ORDER BY name")
        runs, found = _runs(world, world.start), {}
        for name, day, wanted, seeded in rows:
            if seeded is None or day != wanted:
                return None
            found[name] = sum(run.query == name and run.started <= instant(seeded) for run in runs)
        told = ", ".join(f"{name} in {count}" for name, count in found.items())
        return f"runs: {told}" if max(found.values(), default=0) > _SEVERAL else None

    def _complete(self, world: World) -> str | None:
        """Ask the other side: whatever stood in a list all through a whole reading was found by it."""
        expected = known = 0
        readings = list(_readings(world, world.start))
        for name, key, day in world.rows("SELECT name, query_key, seed_until FROM query_state"):
            if name not in SEARCHES:
                continue
            sql = (
                "SELECT o.offer_id FROM query_offers q JOIN offers o ON o.client = q.client AND o.offer_id = q.offer_id"
            )
            ours = {offer for (offer,) in world.rows(f"{sql} WHERE q.query_key = :key", key=key)}
            oldest = local_instant(date.fromisoformat(str(day)), time(), parse_zone(ZONE))
            mine = [one for one in readings if one.query == name]
            for seen in self._infojobs.offers_of(SEARCHES[name], world.start, world.ledger.clock.now()):
                shown = [span for span in seen.spans if span[2] >= oldest]
                if any(first <= one.begun and one.ended < last for first, last, _ in shown for one in mine):
                    expected += 1
                    known += seen.id in ours
        return f"{expected:,} offers" if expected and expected == known else None

    def _limited(self, world: World) -> str | None:
        """One run was ended by a 429. Nobody asked that client for six hours, and the other was asked."""
        runs = _runs(world, world.start)
        ends = [run for run in runs if run.stopped_by == Stop.RATE_LIMITED]
        if len(ends) != 1:
            return None
        begun = ends[0].finished
        meanwhile = [run.client for run in runs[runs.index(ends[0]) + 1 :] if begun <= run.started < begun + _REST]
        return f"{client_gate(INFOJOBS)}, from {begun:%H:%M} on" if {*meanwhile} == {OTHER} else None

    def _mended(self, world: World) -> str | None:
        runs = [run for run in _runs(world, world.start) if run.client == OTHER]
        for run, following in itertools.pairwise(runs):
            if run.status == S.ERROR:
                return f"{run.error}" if run.error and following.status == S.SUCCESS else None
        return None

    def _again(self, world: World) -> str | None:
        """By cursors, a page is one call."""
        sql = (
            "SELECT requests_count, pages_fetched FROM ingestion_runs WHERE client = :client AND status = 'SUCCESS'"
            " AND errors_count <= 1 AND requests_count > pages_fetched"
        )
        rows = world.rows(sql, client=OTHER)
        return f"{rows[0][0]} calls for {rows[0][1]} pages" if len(rows) == 1 else None

    def _synced(self, world: World) -> str | None:
        """The sheet has rows that the ledger has, each once; what a person wrote there is in the ledger."""
        said = {text for (text,) in world.rows("SELECT text FROM feedback")}
        shown: dict[str, list[Any]] = {}
        for tab in ("Companies", "Offers"):
            grid = self._sheet.grid(tab)
            shown[tab] = [row[grid.column(KEY) - 1] for row in grid.values()[1:]]
        keys = {name for (name,) in world.rows("SELECT company_key FROM companies")}
        keys |= {f"{client}/{offer}" for client, offer in world.rows("SELECT client, offer_id FROM offers")}
        each_once = all(len(rows) == len({*rows}) and {*rows} <= keys and rows for rows in shown.values())
        told = " and ".join(f"{len(rows):,} {tab.lower()}" for tab, rows in shown.items())
        return told if each_once and said == {_SAID} and self._hours <= {*_NIGHT} else None

    def _equal(self, world: World) -> str | None:
        listing = self._other.offers
        there = {str(number) for number in listing if listing.defect(number) is None}
        ours = {record for (record,) in world.rows(f"SELECT record_id FROM {OTHER} WHERE gone_at IS NULL")}
        ((gone,),) = world.rows(f"SELECT count(*) FROM {OTHER} WHERE gone_at IS NOT NULL")
        return f"{len(ours):,} records, and {gone} that are gone" if ours == there and gone == _REMOVED else None

    def _alone(self, world: World) -> str | None:
        runs = _runs(world, world.start)
        alone = all(run.finished <= following.started for run, following in itertools.pairwise(runs))
        ((held,),) = world.rows("SELECT count(*) FROM run_lock")
        ((under_way,),) = world.rows("SELECT count(*) FROM ingestion_runs WHERE finished_at IS NULL")
        return f"{len(runs):,} runs" if alone and not held and not under_way else None

    def tables(self, world: World) -> Iterator[Table]:
        rows = world.rows(
            "SELECT q.name, q.status, q.covered_through, q.last_processed_date, count(r.id), sum(r.pages_fetched),"
            " sum(r.new), sum(r.changed), sum(r.closed) FROM query_state q"
            " JOIN ingestion_runs r ON r.query_key = q.query_key"
            " GROUP BY q.name, q.status, q.covered_through, q.last_processed_date ORDER BY q.name"
        )
        shown = [
            (name, status, f"{instant(through):%Y-%m-%d %H:%M}", str(day), *(f"{int(count):,}" for count in counts))
            for name, status, through, day, *counts in rows
        ]
        headings = ("query", "status", "read up to", "back to", ">runs", ">pages", ">new", ">changed", ">closed")
        yield Table("The queries", headings, shown)

    def next(self, world: World) -> Iterator[str]:  # noqa: ARG002 - one shape
        yield "penstock queries list"
        yield f"penstock queries show {next(iter(SEARCHES))}"
        yield f"penstock queries runs {OTHER} --status ERROR"
        yield "penstock queries rejected"


def _runs(world: World, since: datetime) -> list[_Run]:
    """Every run that is over, in the order in which they were begun: many of them at one virtual moment."""
    found: dict[str, deque[_Run]] = defaultdict(deque)
    for key, *row, begun, ended, offers in world.rows(_RUNS, since=since):
        name, client, status, stopped_by, error = row
        found[key].append(_Run(name, client, status, stopped_by, error, instant(begun), instant(ended), offers))
    return [found[key].popleft() for (key,) in world.rows(_BEGUN, since=since) if found[key]]


def _readings(world: World, since: datetime) -> Iterator[_Reading]:
    """A reading may take several runs: until one of them stops because nothing is left."""
    under_way: dict[str, list[_Run]] = defaultdict(list)
    for run in _runs(world, since):
        under_way[run.query].append(run)
        if run.stopped_by == Stop.EXHAUSTED:
            some = under_way.pop(run.query)
            yield _Reading(run.query, some[0].started, run.finished, len(some), sum(one.offers for one in some))


def _reposts(world: World) -> list[tuple[Any, ...]]:
    return world.rows(
        "SELECT offer_id, linked_offer_id, first_seen_at FROM offers WHERE link_kind = 'repost'"
        " ORDER BY first_seen_at, offer_id"
    )

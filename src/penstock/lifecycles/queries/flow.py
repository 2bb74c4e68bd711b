"""Running a query: from its first page to its last over one claim, page by page.

A page's rows, the place where the pass goes on and the counters are one commit. Whatever a provider does is caught
here: it ends the run in the state that it deserves, and never reaches the run lock, which is everybody's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

import msgspec
import structlog

from penstock.connectors.searches import Bad, Batch, Item
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.queries.aggregate import aggregate
from penstock.lifecycles.queries.ahead import Ahead
from penstock.lifecycles.queries.closing import freed, held_back, too_many
from penstock.lifecycles.queries.decide import Seen, decide
from penstock.lifecycles.queries.ending import Ended, abandoned, ended
from penstock.lifecycles.queries.erasure.guard import without_erased
from penstock.lifecycles.queries.fetch import Asked, Fetched, Halted, fetch
from penstock.lifecycles.queries.lock import closed_words, holder, peek, shut_gates
from penstock.lifecycles.queries.machine import Query, S, query
from penstock.lifecycles.queries.passes import Pass, advance
from penstock.lifecycles.queries.progress import after_page, disordered
from penstock.lifecycles.queries.recording import ended_record, record, rejected, tell_bad, tell_runs
from penstock.lifecycles.queries.registry import Configured, registry
from penstock.lifecycles.queries.runs import Run, Stop, marks_of, next_pass, run_of, what_next
from penstock.lifecycles.queries.settings import RUN_GATE, QueriesSettings, client_gate, query_gate
from penstock.lifecycles.queries.sources import Source
from penstock.lifecycles.queries.store import Digest, Taken
from penstock.model.outcome import Event, Move, Outcome, Write
from penstock.model.unit import replace
from penstock.raw.store import RawError
from penstock.worker.flow import Flow, Gate, Io

_PART, _PART_BYTES, _MOST_BYTES = 1_000, 1_280 * 1024, 1_536 * 1024
"""So many records, of about so many bytes and never of more, are one commit: memory holds them several times over."""
_LARGE = 4 * 1024 * 1024
"""A page of more bytes is alone in memory."""
_CLOSED_AT_ONCE = 1_000
_TWICE = 2

log = structlog.get_logger()


def _nobody() -> None:
    """Nobody waits for it."""


class _Page(msgspec.Struct):
    """A page that was fetched and is being written in parts."""

    now: Pass
    batch: Batch
    parts: list[list[Item]]
    digests: Mapping[str, Digest]
    bad: list[Bad]
    seen: set[str]
    landed: Sequence[Write]
    #: Records of the parts so far that were not seen in the pass before.
    fresh: int = 0


class Queries(Flow[Query, QueriesSettings, Seen]):
    """Runs queries, one at a time."""

    machine = query
    decide = staticmethod(decide)
    #: A run ends by its limits long before; a call has patience of its own.
    deadline = timedelta(hours=12)
    turns = 10_000_000
    at_once = 1

    def __init__(self, settings: QueriesSettings, sources: Mapping[str, Source]) -> None:
        super().__init__(settings)
        self._sources = sources
        #: Pages whose first parts are written, by run. Lost with the process, they are fetched again.
        self._pages: dict[str, _Page] = {}
        self._ahead = Ahead()
        #: How many calls of the client of the run under way are counted.
        self._counted = 0
        #: Which worker this is, once it has claimed anything; how often others were seen with the lock.
        self._me: str | None = None
        self._seen: Counter[str] = Counter()

    def gate(self, unit: Query) -> Gate:  # noqa: ARG002 - the same for all: one query runs at a time
        return Gate(RUN_GATE)

    async def look(self, unit: Query, io: Io) -> Seen:
        self._me = unit.claimed_by
        return await io.ledger(lambda ledger: self.peek(unit, ledger))

    def peek(self, unit: Query, ledger: Ledger) -> Seen:
        return peek(unit, ledger)

    async def act(self, what: str, unit: Query, seen: Seen | None, io: Io) -> Outcome[Query]:
        self._me = unit.claimed_by
        if what == "abandon":
            return self._over(unit, unit, abandoned(unit, io.now()), (), keep_claim=True)
        own = registry(self.settings).get(unit.query_key)
        if what == "begin":
            name = unit.name if own is None else own.name
            return self._begin(unit, name, io, () if seen is None else seen.abandoned)
        if what == "finish" or own is None:
            last = self._with_calls(unit)
            return self._over(unit, last, ended(last, io.now(), own, self.settings), ())
        if what == "page":
            return await self._page(unit, own, io)
        if what == "close":
            return await self._close(unit, own, io)
        return await self._aggregate(unit, own, io)

    def committed(self, outcome: Outcome[Query]) -> None:
        others = [one.after for one in outcome.others if isinstance(one, Move) and isinstance(one.after, Query)]
        tell_runs(outcome.writes, [outcome.after, *others])

    def tend(self, ledger: Ledger) -> None:
        """Say who holds the run lock, once of each, where it is somebody else."""
        found = ledger.read(holder)
        if found is None or found.held_by == self._me:
            return
        self._seen[found.held_by] += 1
        # A claim of its own may be so new that it knows nothing of it yet.
        if self._seen[found.held_by] == _TWICE:
            log.info("queries.lock", held=str(found), next="this worker waits, and runs queries when the lock is free")

    async def stop(self) -> None:
        self._ahead.forget()
        for source in self._sources.values():
            await source.close()

    def _begin(self, unit: Query, name: str, io: Io, left: Sequence[Query]) -> Outcome[Query]:
        """Begin a run, and close those that others have left behind: they are over before this one begins.

        `name` is what the configuration calls it by now.
        """
        now, run = io.now(), Run(marks=marks_of(unit))
        ends = [(one, abandoned(one, now)) for one in left]
        records = [ended_record(one, end) for one, end in ends]
        after = replace(
            unit,
            status=S.RUNNING,
            name=name,
            run_id=io.rng.uuid(),
            run_started_at=now,
            run_version=unit.version + 1,
            last_run_at=now,
            run=run.document(),
        )
        self._pages.clear()
        self._ahead.forget()
        self._counted = self._calls(unit)
        # No call was made: what an earlier crash left is settled by the first page.
        return Outcome(
            unit,
            after,
            "a run began",
            writes=[*records, record(after, run, S.RUNNING)],
            others=[Move(one, end.query, end.reason, keep_crashes=True) for one, end in ends],
            keep_claim=True,
            keep_crashes=True,
        )

    async def _page(self, unit: Query, own: Configured, io: Io) -> Outcome[Query]:
        """The next page, or the next part of one."""
        page = self._pages.get(str(unit.run_id))
        source = self._sources[own.client]
        if page is None:
            now = next_pass(unit, io.now(), own, self.settings)
            assert now is not None  # noqa: S101 - decide asks only then
            fetched = await self._ahead.take(str(unit.run_id), now) or await self._read(own, now, io)
            if fetched.batch is None:
                return self._halted(unit, fetched, own, io.now())
            try:
                landed = await source.land(unit, own, fetched.batch, io)
            except RawError as error:
                halted = Halted(Stop.ERROR, f"a page could not be landed: {error}")
                return self._halted(unit, Fetched(halted=halted), own, io.now())
            page = self._pages[str(unit.run_id)] = _paged(now, fetched, landed)
        items = page.parts.pop(0) if page.parts else []
        unread = [] if page.parts else [one.id for one in page.bad if one.id is not None]
        take = partial(source.store.take, query=unit, number=page.now.number, items=items, unread=unread)
        taken = await io.ledger(partial(take, now=io.now(), digests=page.digests))
        page.fresh += taken.fresh
        run = _added(run_of(unit), items, taken)
        if page.parts:
            return self._going(
                unit, replace(unit, run=run.document()), taken, (), f"part of a page: {len(items):,} records"
            )
        del self._pages[str(unit.run_id)]
        return await self._turned(unit, own, page, run, taken, io)

    async def _turned(  # noqa: PLR0917 - all that a page came to
        self, unit: Query, own: Configured, page: _Page, run: Run, taken: Taken, io: Io
    ) -> Outcome[Query]:
        """A page is read to its end: the pass goes on, or is over."""
        moment, client = io.now(), self._sources[own.client].client
        step = advance(page.now, page.batch, client, page.fresh)
        run = msgspec.structs.replace(
            run,
            pages_fetched=run.pages_fetched + 1,
            errors_count=run.errors_count + len(page.bad),
        )
        after = replace(unit, run=run.document())
        if page.seen:
            after = replace(after, last_found_at=moment)
        if step.repeating:
            return self._repeating(unit, after, run, taken, page, moment)
        ordered = client.newest_first and not step.following.disordered
        after, events = after_page(after, page.now, step, own, moment, ordered=ordered)
        if step.following.disordered and not page.now.disordered:
            events = [*events, disordered(after, own, moment)]
        run = run_of(after)
        if run.closing is not None:
            after = await self._worth_closing(after, own, page, io)
        tell_bad(after, page.bad)
        await self._read_ahead(after, own, page, moment, io)
        writes = [*page.landed, *rejected(after, page.bad, moment)]
        reason = f"{page.now.says()}: {len(page.batch.records):,} records"
        return self._going(unit, after, taken, writes, reason, events, moment=moment, own=own)

    async def _worth_closing(self, after: Query, own: Configured, page: _Page, io: Io) -> Query:
        """Whether there is anything to close; mostly there is not, and the run can do without another commit."""
        run, store = run_of(after), self._sources[own.client].store
        assert run.closing is not None  # noqa: S101 - asked for only then
        listed = page.seen | {one.id for one in page.bad if one.id is not None}
        ids, _, _ = await io.ledger(partial(store.absent, query=after, unseen=run.closing, but=listed, most=1))
        return after if ids else replace(after, run=msgspec.structs.replace(run, closing=None).document())

    def _repeating(  # noqa: PLR0917 - all that a page came to
        self, unit: Query, after: Query, run: Run, taken: Taken, page: _Page, moment: datetime
    ) -> Outcome[Query]:
        """The list gives the same records for ever: the run ends, and the reading begins anew the next time."""
        alike = all(one.id is None for one in page.batch.records)
        what = "its pages repeat, or their records have no ids and are all alike" if alike else "its pages repeat"
        why = f"{what}: {page.now.says()} has nothing new"
        run = msgspec.structs.replace(run, stop=Stop.ERROR, error=why)
        after = replace(after, run=run.document(), reading=None)
        tell_bad(after, page.bad)
        return self._going(unit, after, taken, [*page.landed, *rejected(after, page.bad, moment)], why)

    async def _read_ahead(self, after: Query, own: Configured, page: _Page, moment: datetime, io: Io) -> None:
        """Read the next page while this one is committed, where the reading goes on and pages are not large."""
        large = sum(len(one.payload) for one in page.batch.records) > _LARGE
        if large or io.stopping() or what_next(after, moment, own, self.settings)[0] != "page":
            return
        following = next_pass(after, moment, own, self.settings)
        if following is not None and following.pages:
            await self._ahead.begin(str(after.run_id), following, partial(self._read, own, following, io))

    async def _read(self, own: Configured, now: Pass, io: Io, asked: Asked = _nobody) -> Fetched:
        """The page of a pass, without what was erased. Nothing is erased meanwhile: that takes the run lock."""
        source = self._sources[own.client]
        fetched = await self._fetch(source, own, now, io, asked)
        if fetched.batch is None:
            return fetched
        look = partial(without_erased, client=own.client, columns=source.client.columns, batch=fetched.batch)
        batch = await io.ledger(look)
        digests = source.store.digests([one for one in batch.records if isinstance(one, Item)])
        return msgspec.structs.replace(fetched, batch=batch, digests=digests)

    async def _fetch(self, source: Source, own: Configured, now: Pass, io: Io, asked: Asked) -> Fetched:
        mine = query_gate(own.key)
        paused = (await io.ledger(lambda ledger: shut_gates(ledger, [mine]))).get(mine)
        if paused is not None:
            why = closed_words("it", paused)
            return Fetched(halted=Halted(Stop.CLIENT_CLOSED, why, paused.until))
        gate, pause = client_gate(own.client), self.settings.client_pause
        return await fetch(source.client, own.parameters, now.wanted(source.client), gate, pause, io, asked)

    def _halted(self, unit: Query, fetched: Fetched, own: Configured, moment: datetime) -> Outcome[Query]:
        """The client cannot be asked: the run ends here, once what it has read is put in order."""
        halted, run = fetched.halted, run_of(unit)
        assert halted is not None  # noqa: S101 - there is no page
        run = msgspec.structs.replace(
            run,
            http_429_count=run.http_429_count + fetched.throttles,
            errors_count=run.errors_count + (halted.stop in (Stop.ERROR, Stop.FATAL)),
            stop=halted.stop,
            error=halted.error,
            until=halted.until,
        )
        after = replace(unit, run=run.document())
        if halted.refused:
            # A place or a token that is refused once is refused for ever: the reading begins anew.
            by_token = not self._sources[own.client].client.by_place
            after = replace(after, reading=None, seeding=None if by_token else unit.seeding)
        return self._going(unit, after, Taken(), (), halted.error, moment=moment, own=own)

    async def _close(self, unit: Query, own: Configured, io: Io) -> Outcome[Query]:
        """Close what is no longer listed, unless that is suspiciously much."""
        run, store, moment = run_of(unit), self._sources[own.client].store, io.now()
        closing = run.closing
        assert closing is not None  # noqa: S101 - decide asks only then
        look = partial(store.absent, query=unit, but=(), most=_CLOSED_AT_ONCE)
        ids, missing, live = await io.ledger(partial(look, unseen=closing))
        after, events = unit, list[Event]()
        if too_many(missing, run.closed, live, self.settings):
            long_gone = freed(unit, closing, moment, self.settings)
            ids = [] if long_gone is None else (await io.ledger(partial(look, unseen=long_gone)))[0]
            after = held_back(unit, closing, moment, anew=long_gone is not None and not ids)
            said = {
                "query": own.name,
                "missing": missing,
                "listed": live,
                "reason": "too many vanished at once; they are closed if they are still missing a census later",
            }
            key = f"queries.many_closed:{unit.query_key}:{moment:%Y-%m-%d}"
            events = [] if ids else [Event(key, "queries.many_closed", said, "warning")]
        others = [
            one.key for one in registry(self.settings).values() if one.client == own.client and one.key != own.key
        ]
        close = partial(store.close, query=unit, ids=ids, others=others, now=moment)
        taken = await io.ledger(close) if ids else Taken()
        run = msgspec.structs.replace(
            run,
            closing=closing if len(ids) == _CLOSED_AT_ONCE else None,
            closed=run.closed + taken.changed,
            companies=run.companies or taken.companies,
        )
        after = replace(after, run=run.document())
        return self._going(
            unit, after, taken, (), f"{len(ids):,} records are no longer listed", events, moment=moment, own=own
        )

    async def _aggregate(self, unit: Query, own: Configured, io: Io) -> Outcome[Query]:
        moment = io.now()
        found = await io.ledger(lambda ledger: aggregate(ledger, moment))
        run = run_of(unit)
        run = msgspec.structs.replace(
            run,
            companies=found.more,
            companies_aggregated=run.companies_aggregated + found.done,
            companies_failed=run.companies_failed + found.failed,
        )
        taken = Taken(found.writes)
        after = replace(unit, run=run.document())
        return self._going(unit, after, taken, (), f"{found.done:,} companies aggregated", moment=moment, own=own)

    def _going(  # noqa: PLR0917 - one place where a run commits
        self,
        unit: Query,
        after: Query,
        taken: Taken,
        writes: Sequence[Write],
        reason: str,
        events: Sequence[Event] = (),
        *,
        moment: datetime | None = None,
        own: Configured | None = None,
    ) -> Outcome[Query]:
        """A commit of the run. Where nothing is left to do, it is the last one."""
        writes, after = [*taken.writes, *writes], self._with_calls(after)
        if moment is not None and own is not None and what_next(after, moment, own, self.settings)[0] == "finish":
            end = ended(after, moment, own, self.settings)
            end = msgspec.structs.replace(end, events=[*events, *end.events])
            outcome = self._over(unit, after, end, writes)
            return replace(outcome, updates=taken.updates)
        run = run_of(after)
        after = replace(after, run_version=unit.version + 1)
        writes = [*writes, record(after, run, S.RUNNING)]
        return Outcome(unit, after, reason, writes=writes, updates=taken.updates, events=events, keep_claim=True)

    def _calls(self, unit: Query) -> int:
        source = self._sources.get(unit.client)
        return 0 if source is None else source.client.calls

    def _with_calls(self, unit: Query) -> Query:
        """The query with all calls in the counters of its run, also those that failed or led to a page nobody took.

        One query runs at a time, so they are all its own.
        """
        made, self._counted = self._calls(unit) - self._counted, self._calls(unit)
        if not made:
            return unit
        run = run_of(unit)
        return replace(unit, run=msgspec.structs.replace(run, requests_count=run.requests_count + made).document())

    def _over(
        self, unit: Query, last: Query, end: Ended, writes: Sequence[Write], *, keep_claim: bool = False
    ) -> Outcome[Query]:
        writes = [*writes, ended_record(last, end)]
        return Outcome(unit, end.query, end.reason, writes=writes, events=end.events, keep_claim=keep_claim)


def _paged(now: Pass, fetched: Fetched, landed: Sequence[Write]) -> _Page:
    """A page, cut into parts that one commit carries."""
    assert fetched.batch is not None  # noqa: S101 - it was fetched
    records = fetched.batch.records
    items = [one for one in records if isinstance(one, Item)]
    most = _most(items)
    parts: list[list[Item]] = []
    size = 0
    for item in items:
        size += len(item.payload)
        if not parts or len(parts[-1]) == most or size > _MOST_BYTES:
            parts.append([])
            size = len(item.payload)
        parts[-1].append(item)
    bad = [one for one in records if isinstance(one, Bad)]
    seen = {item.id for item in items}
    return _Page(now, fetched.batch, parts, fetched.digests, bad, seen, landed)


def _most(items: Sequence[Item]) -> int:
    """How many records a part has, where they are much alike in size: all parts about the same."""
    size = sum(len(item.payload) for item in items)
    count = max(math.ceil(len(items) / _PART), math.ceil(size / _PART_BYTES))
    return math.ceil(len(items) / max(count, 1))


def _added(run: Run, items: Sequence[Item], taken: Taken) -> Run:
    return msgspec.structs.replace(
        run,
        offers_fetched=run.offers_fetched + len(items),
        new=run.new + taken.new,
        changed=run.changed + taken.changed,
        companies=run.companies or taken.companies,
    )

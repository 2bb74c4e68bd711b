"""The flow of erasures: step by step, each a transaction that leaves the rest to the next.

Each step holds the run lock: no query reads, lands or writes a page meanwhile, so that none can bring back what it had
read before. What is in the ledger is erased over one claim. Landed pages may take long, and queries have their turns
in between: what they land by then is without it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from penstock.connectors.rest_json.mapping import Mapper
from penstock.lifecycles.queries.erasure import pages, rows
from penstock.lifecycles.queries.erasure.decide import REMOVE, decide
from penstock.lifecycles.queries.erasure.machine import E, Erasure, Kind, Step, erasure, next_step
from penstock.lifecycles.queries.erasure.rows import Blanked
from penstock.lifecycles.queries.settings import RUN_GATE, QueriesSettings
from penstock.lifecycles.queries.tables import own_table
from penstock.model.errors import MustWait, Rejected
from penstock.model.outcome import Outcome, Update, Write
from penstock.model.unit import replace
from penstock.raw.store import RawError, RawUnavailable
from penstock.worker.flow import Flow, Gate, Io

if TYPE_CHECKING:
    from penstock.connectors.rest_json.settings import RestSettings
    from penstock.ledger.ledger import Ledger
    from penstock.raw.sink import RawSink


class Erasures(Flow[Erasure, QueriesSettings, None]):
    """Erases, one at a time and while no query runs."""

    machine = erasure
    decide = staticmethod(decide)
    #: Some hundreds of pages are looked through at once, or a company with very many offers.
    deadline = timedelta(hours=1)
    turns = 100_000
    at_once = 1

    def __init__(self, settings: QueriesSettings, raw: Callable[[], RawSink]) -> None:
        """`raw` opens the raw sink, which only records with a table of their own have anything in."""
        super().__init__(settings)
        self._raw = raw

    def gate(self, unit: Erasure) -> Gate:  # noqa: ARG002 - the same for all
        return Gate(RUN_GATE)

    async def act(self, what: str, unit: Erasure, seen: None, io: Io) -> Outcome[Erasure]:  # noqa: ARG002
        try:
            if what == REMOVE:
                return await self._remove(unit, io)
            if what == Step.PAGES:
                return await self._pages(unit, io)
            if what == Step.LEFTOVERS:
                return await self._leftovers(unit, io)
        except RawUnavailable as error:
            raise MustWait(str(error)) from error
        except RawError as error:
            raise Rejected(str(error)) from error
        now = io.now()
        works: dict[str, Callable[[Ledger], Blanked]] = {
            Step.MARK: lambda _: rows.mark(unit, now),
            Step.SET_ASIDE: lambda ledger: rows.set_aside(ledger, unit),
            Step.ROWS: lambda ledger: self._rows(ledger, unit, io),
            Step.COMPANIES: lambda ledger: rows.company_row(ledger, unit, now),
        }
        blanked = await io.ledger(works[what])
        after = replace(unit, rows=unit.rows + blanked.rows, place=blanked.place)
        outcome = _went_on(unit, after, f"{what}: {blanked.rows:,} rows", io)
        return replace(outcome, writes=blanked.writes, updates=blanked.updates)

    def _rows(self, ledger: Ledger, unit: Erasure, io: Io) -> Blanked:
        if unit.kind is not Kind.RECORD:
            return rows.offer_rows(ledger, unit, io.now())
        own = self._own(unit)
        table = own_table(str(own.table), {name: field.type for name, field in own.fields.items()})
        return rows.own_rows(ledger, unit, table, list(own.fields), io.now())

    async def _pages(self, unit: Erasure, io: Io) -> Outcome[Erasure]:
        """Copies of the next pages that have the record, and the rows by which they count."""
        raw, record = self._raw(), pages.Record(Mapper(self._own(unit)), unit.record)
        keys = await io.ledger(partial(rows.query_keys, client=unit.client))
        found = await io.run(pages.find, raw, unit.client, keys, record, unit.place)
        counting = await io.ledger(partial(pages.recorded, pages=found.pages)) if found.pages else {}
        writes: list[Write] = []
        updates: list[Update] = []
        for page in found.pages:
            row = counting.get((str(page[0]), page[1]))
            if row is not None:
                io.check()
                made = await io.run(pages.copy, raw, page, record, unit.unit_id, io.now())
                write, update = pages.replaced(row, made)
                writes.append(write)
                updates.append(update)
        after = replace(
            unit,
            place=found.place,
            pages_seen=unit.pages_seen + found.seen,
            pages_replaced=unit.pages_replaced + len(writes),
            leaving=[[str(key), run_id] for key, run_id in found.pages] or None,
        )
        says = f"{found.seen:,} landed pages looked through, {len(writes):,} replaced"
        outcome = _went_on(unit, after, says, io, keep_claim=after.leaving is not None)
        return replace(outcome, writes=writes, updates=updates)

    async def _remove(self, unit: Erasure, io: Io) -> Outcome[Erasure]:
        leaving = unit.leaving or []
        io.check()
        await io.run(pages.remove, self._raw(), leaving)
        after = replace(unit, leaving=None, due_at=io.now())
        return Outcome(unit, after, f"{len(leaving):,} landed pages removed")

    async def _leftovers(self, unit: Erasure, io: Io) -> Outcome[Erasure]:
        keys = await io.ledger(partial(rows.query_keys, client=unit.client))
        io.check()
        gone = await io.run(pages.remove_leftovers, self._raw(), unit.client, keys, io.now())
        return _went_on(unit, replace(unit, place=None), f"{gone:,} leftovers removed", io)

    def _own(self, unit: Erasure) -> RestSettings:
        return self.settings.rest_json[unit.client]


def _went_on(unit: Erasure, after: Erasure, says: str, io: Io, *, keep_claim: bool = True) -> Outcome[Erasure]:
    """The step goes on where it has a place, else the next one follows; after the last all is done."""
    if after.place is None:
        following = next_step(unit)
        if following is None and not after.leaving:
            ended = replace(after, status=E.DONE, erased_at=io.now(), due_at=None)
            return Outcome(unit, ended, "erased")
        after = replace(after, step=following or unit.step)
    if io.stopping() or not keep_claim:
        return Outcome(unit, replace(after, due_at=io.now()), says)
    return Outcome(unit, after, says, keep_claim=True)

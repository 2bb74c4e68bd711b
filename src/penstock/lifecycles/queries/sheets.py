"""One synchronisation of the spreadsheet: new rows are added, those that were there are compared, feedback is read.

Both tabs are looked at before rows are written. New ones go below the last row that has anything in it; those that were
there are walked in the order of the sheet, some hundreds at a time. After each write the keys are read back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.connectors.google_sheets.client import GoogleSheets, Tab
from penstock.connectors.google_sheets.ranges import Area, Values, split
from penstock.ledger.schema.columns import readable
from penstock.lifecycles.queries import sheet_ranges as ranges
from penstock.lifecycles.queries.sheet_calls import Calls, Moved, TimeUp, WindowClosed, gate_of, window_of
from penstock.lifecycles.queries.sheet_rows import Source, companies, offers
from penstock.lifecycles.queries.sheet_tables import feedback, sheet_state
from penstock.model.clock import instant, instant_text
from penstock.model.errors import InDoubt, Rejected, Transient, UsageError
from penstock.model.outcome import Event, Write
from penstock.worker.job import JobResult

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.lifecycles.queries.settings import QueriesSettings, SheetSettings
    from penstock.worker.flow import Io

FAILED, DOUBLED = "queries.sheet_failed", "queries.sheet_doubled"
_PAGE = 5_000
_MORE_ROWS = 1_000
_NAMED = 5


@dataclass(slots=True)
class _Plan:
    """One tab as it was last looked at, and what is left to do there."""

    source: Source
    tab: Tab
    header: list[Any]
    layout: ranges.Layout
    keys: ranges.Keys
    #: Nobody knows whether it is still like that.
    stale: bool = False
    new: list[str] = field(default_factory=list)
    #: Rows that are not yet compared.
    uncompared: int = 0

    def doubt(self) -> None:
        self.stale = True


@dataclass(slots=True)
class _Counts:
    added: int = 0
    changed: int = 0
    feedback: int = 0

    def __str__(self) -> str:
        return f"{self.added:,} rows added, {self.changed:,} changed, {self.feedback:,} feedback read"


async def sync(settings: QueriesSettings, io: Io, sheet: GoogleSheets) -> JobResult:
    """Bring the sheet up to date, inside its hours. Raises Throttled, Fatal or GateClosed; other failures alarm."""
    own = settings.sheet
    if own is None:
        raise UsageError("there is no spreadsheet in the configuration; add [queries.sheet]")
    run = _Run(own, io, sheet)
    try:
        await run.whole()
    except WindowClosed:
        reason = f"the window closed; {run.left:,} rows are left ({run.counts})" if run.plans else "the window closed"
        return JobResult(reason, writes=run.worked() if run.calls.made else (), events=run.warnings)
    except TimeUp:
        return JobResult(f"{run.left:,} rows are left ({run.counts})", writes=run.worked(), again=True)
    except (Transient, InDoubt, Rejected) as error:
        return await _failure(own, io, error)
    return JobResult(str(run.counts), writes=run.worked(io.now()), events=run.warnings)


async def _failure(own: SheetSettings, io: Io, error: Exception) -> JobResult:
    """The alarm, one for each outage: its key says since when. The next tick tries again."""
    since = await io.ledger(lambda ledger: failing_since(ledger, own.spreadsheet_id)) or io.now()
    reason = readable(f"the spreadsheet {own.spreadsheet_id} cannot be synchronised: {error}")
    told = {"spreadsheet": own.spreadsheet_id, "reason": reason, "since": instant_text(since)}
    row = {"spreadsheet_id": own.spreadsheet_id, "failing_since": since, "last_error": reason}
    alarm = Event(f"{FAILED}:{own.spreadsheet_id}:{instant_text(since)}", FAILED, told, "critical")
    return JobResult(reason, writes=[Write(sheet_state, [list(row.values())], columns=list(row))], events=[alarm])


def failing_since(ledger: Ledger, spreadsheet_id: str) -> datetime | None:
    """Since when the spreadsheet cannot be synchronised; None while it can."""
    sql = "SELECT failing_since FROM sheet_state WHERE spreadsheet_id = :id"
    rows = ledger.read(lambda cursor: cursor.rows(sql, id=spreadsheet_id))
    return instant(rows[0][0]) if rows else None


class _Run:
    """One synchronisation."""

    def __init__(self, own: SheetSettings, io: Io, sheet: GoogleSheets) -> None:
        self._own = own
        self._io = io
        self._sheet = sheet
        self._id = own.spreadsheet_id
        self.calls = Calls(gate_of(own), window_of(own), io)
        self.counts = _Counts()
        self.plans: list[_Plan] = []
        self.warnings: list[Event] = []

    @property
    def left(self) -> int:
        """How many rows are neither compared nor added yet."""
        return sum(plan.uncompared + len(plan.new) for plan in self.plans)

    def worked(self, synced_at: datetime | None = None) -> list[Write]:
        """It works: nothing is failing."""
        row: dict[str, Any] = {"spreadsheet_id": self._id, "failing_since": None, "last_error": None}
        if synced_at is not None:
            row["synced_at"] = synced_at
        return [Write(sheet_state, [list(row.values())], columns=list(row))]

    async def whole(self) -> None:
        own = self._own
        for source in (companies(own.companies_tab), offers(own.offers_tab, own.offers_for, self._io.now())):
            plan = await self.calls.settle(partial(self._look_at, source), lambda: None)
            self._warn(plan)
            plan.uncompared = max(0, plan.keys.last - 1)
            plan.new = await self._new_keys(plan)
            self.plans.append(plan)
        for plan in self.plans:
            await self._add(plan)
            await self._compare(plan)

    async def _look_at(self, source: Source) -> _Plan:
        """The tab as it is, with all of our headers; what is missing is made. Raises NoKeyColumn."""
        while True:
            tabs = await self.calls.read(lambda: self._sheet.tabs(self._id))
            tab = next((one for one in tabs if one.title == source.tab), None)
            if tab is None:
                await self.calls.write(lambda: self._sheet.add_tab(self._id, source.tab))
                continue
            (rows,) = await self._read([Area(tab.title, 1, 1, 1, tab.columns)])
            header = rows[0] if rows else []
            layout = ranges.lay_out(tab.title, header, source.headers, await self._used(tab, header, source))
            if not layout.missing:
                return _Plan(source, tab, header, layout, await self._keys(tab, layout))
            if layout.width > tab.columns:
                await self._grow(tab, columns=layout.width - tab.columns)
            await self._write(ranges.headers_of(layout))

    async def _used(self, tab: Tab, header: Sequence[Any], source: Source) -> int:
        """The last column that has anything in it, as far as that matters: where a header is to be added."""
        known = ranges.lay_out(tab.title, header, source.headers, 0)
        keyed = len(header) if known.key not in known.missing else 0
        if not known.missing or keyed == tab.columns:
            return keyed
        (rows,) = await self._read([Area(tab.title, 1, keyed + 1, tab.rows, tab.columns)])
        return keyed + max(map(len, rows), default=0)

    async def _keys(self, tab: Tab, layout: ranges.Layout) -> ranges.Keys:
        if tab.rows < 2:  # noqa: PLR2004 - a header alone
            return ranges.read_keys([])
        (rows,) = await self._read([Area(tab.title, 2, layout.key, tab.rows, layout.key)])
        return ranges.read_keys(rows)

    async def _new_keys(self, plan: _Plan) -> list[str]:
        """The keys that belong into the sheet and are not there, page by page."""
        found: list[str] = []
        after: str | None = None
        while page := await self._io.ledger(lambda ledger: plan.source.page(ledger, after, _PAGE)):  # noqa: B023 - awaited here
            found += [key for key in page if key not in plan.keys.first]
            after = page[-1]
        return found

    async def _compare(self, plan: _Plan) -> None:
        """Bring the rows that are there up to date, and read what people wrote beside them."""
        first, last = 2, plan.uncompared + 1
        while first <= last:
            end = min(first + ranges.MOST_ROWS - 1, last)
            changed = await self.calls.settle(partial(self._compare_block, plan, first, end), plan.doubt)
            self.counts.changed += changed
            plan.uncompared = last - end
            first = end + 1

    async def _compare_block(self, plan: _Plan, first: int, last: int) -> int:
        await self._refresh(plan)
        layout, end = plan.layout, min(last, plan.tab.rows)
        if first > end:
            return 0
        areas = [Area(layout.tab, first, left, end, right) for left, right in ranges.runs(layout.read)]
        rows = ranges.block(await self._read_checked(plan, areas), layout.read, end - first + 1)
        there = {ranges.key_of(cells.get(layout.key, "")) for cells in rows} - {""}
        found = await self._io.ledger(lambda ledger: plan.source.rows(ledger, sorted(there)))
        await self._keep_feedback(plan, rows, first, found)
        blank = ("",) * len(plan.source.headers)
        wanted = {key: blank if cells is None else cells for key, cells in found.items()}
        values = ranges.changes(layout, first, rows, wanted, plan.keys)
        expected = {one.row: ranges.key_of(rows[one.row - first][layout.key]) for one in values}
        for part in split(values, ranges.MOST_BYTES):
            await self._write(part)
        await self._check(plan, first, expected)
        return len(expected)

    async def _keep_feedback(
        self, plan: _Plan, rows: Sequence[ranges.Cells], first: int, found: Mapping[str, Any]
    ) -> None:
        """What people wrote goes to the ledger where it is another than before; of what was erased nothing is kept."""
        said = ranges.spoken(rows, plan.layout, first, plan.keys, found)
        said = {key: "" if found[key] is None else text for key, text in said.items()}
        kind, now = plan.source.kind, self._io.now()
        self.counts.feedback += await self._io.ledger(lambda ledger: keep_feedback(ledger, kind, said, now))

    async def _add(self, plan: _Plan) -> None:
        """Add the rows that are not there, some hundreds at a time. The keys were read a while ago: they are again."""
        plan.doubt()
        while plan.new:
            keys = plan.new[: ranges.MOST_ROWS]
            found = await self._io.ledger(lambda ledger: plan.source.rows(ledger, keys))  # noqa: B023 - awaited here
            rows = [(key, cells) for key in keys if (cells := found.get(key)) is not None]
            for part in ranges.portions(rows):
                self.counts.added += await self.calls.settle(partial(self._add_rows, plan, part), plan.doubt)
            del plan.new[: len(keys)]

    async def _add_rows(self, plan: _Plan, rows: Sequence[tuple[str, Sequence[Any]]]) -> int:
        """Add those that are still not there: after an answer that was lost they may be."""
        await self._refresh(plan)
        missing = [one for one in rows if one[0] not in plan.keys.first]
        if not missing:
            return len(rows)
        first = await self._first_free(plan)
        if (short := first + len(missing) - 1 - plan.tab.rows) > 0:
            plan.stale = True
            await self._grow(plan.tab, rows=max(short, _MORE_ROWS, len(plan.new)))
            return await self._add_rows(plan, rows)
        for part in split(ranges.additions(plan.layout, first, missing), ranges.MOST_BYTES):
            await self._write(part)
        expected = {first + place: key for place, (key, _) in enumerate(missing)}
        await self._check(plan, first, expected)
        plan.keys.first.update({key: row for row, key in expected.items()})
        plan.keys.last = max(expected)
        return len(rows)

    async def _first_free(self, plan: _Plan) -> int:
        """The row below the last that has anything in it, ours or not."""
        last, tab = plan.keys.last, plan.tab
        if last >= tab.rows:
            return last + 1
        (rows,) = await self._read_checked(plan, [Area(tab.title, last + 1, 1, tab.rows, tab.columns)])
        return last + len(rows) + 1

    async def _refresh(self, plan: _Plan) -> None:
        """Look at the tab again where nobody knows whether it is still as it was."""
        if plan.stale:
            found = await self._look_at(plan.source)
            plan.tab, plan.header, plan.layout, plan.keys = found.tab, found.header, found.layout, found.keys
            plan.stale = False

    async def _check(self, plan: _Plan, first: int, expected: Mapping[int, str]) -> None:
        """Read the keys back. Raises Moved where a row that was written has another key now."""
        if not expected:
            return
        area = Area(plan.layout.tab, first, plan.layout.key, max(expected), plan.layout.key)
        (keys,) = await self._read_checked(plan, [area])
        if not ranges.in_place(keys, first, expected):
            raise Moved(f"rows of the tab {plan.layout.tab!r} were moved while they were written")

    async def _read_checked(self, plan: _Plan, areas: Sequence[Area]) -> list[list[list[Any]]]:
        """Read areas together with the header. Raises Moved where that is another than it was."""
        header, *found = await self._read([Area(plan.tab.title, 1, 1, 1, plan.tab.columns), *areas])
        if (header[0] if header else []) != plan.header:
            raise Moved(f"columns of the tab {plan.tab.title!r} were moved while it was written")
        return found

    async def _read(self, areas: Sequence[Area]) -> list[list[list[Any]]]:
        return await self.calls.read(lambda: self._sheet.read(self._id, areas))

    async def _write(self, values: Sequence[Values]) -> None:
        await self.calls.write(lambda: self._sheet.write(self._id, values))

    async def _grow(self, tab: Tab, *, rows: int = 0, columns: int = 0) -> None:
        await self.calls.write(lambda: self._sheet.grow(self._id, tab.sheet_id, rows=rows, columns=columns))

    def _warn(self, plan: _Plan) -> None:
        """Keys that are there twice: the first counts, and the others are left as they are."""
        doubled = sorted(plan.keys.doubled)
        if not doubled:
            return
        named = ", ".join(doubled[:_NAMED]) + (f" and {len(doubled) - _NAMED:,} more" if len(doubled) > _NAMED else "")
        reason = (
            f"the tab {plan.tab.title!r} has some keys more than once: {named};"
            " the first row of each counts, the others are left alone"
        )
        digest = hashlib.sha256("\n".join(doubled).encode()).hexdigest()[:12]
        told = {"spreadsheet": self._id, "tab": plan.tab.title, "reason": readable(reason)}
        self.warnings.append(Event(f"{DOUBLED}:{self._id}:{plan.source.kind}:{digest}", DOUBLED, told, "warning"))


def keep_feedback(ledger: Ledger, kind: str, said: Mapping[str, str], now: datetime) -> int:
    """Keep what is another than before; how much that is. Twice comes to the same."""
    import msgspec

    sql = f"SELECT key, text FROM feedback WHERE kind = :kind AND key IN ({ledger.database.sql.listed('keys')})"
    keys = msgspec.json.encode(list(said)).decode()
    before = dict(ledger.read(lambda cursor: [tuple(row) for row in cursor.rows(sql, kind=kind, keys=keys)]))
    rows = [[kind, key, text, now, now] for key, text in said.items() if text != before.get(key, "")]
    if rows:
        columns = ("kind", "key", "text", "read_at", "changed_at")
        ledger.write([Write(feedback, rows, columns=columns, first=("read_at",))])
    return len(rows)

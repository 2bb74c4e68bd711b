"""Stage: more rows than ride on one outcome, committed chunk by chunk and made visible at once.

The rows of a batch carry its `stage_id`, and whoever reads them joins on the unit's pointer column: a batch is visible
from the commit that points at it until the commit that points elsewhere. Each chunk is a transaction of its own that
first asks whether the claim still holds, and leaves its mark on the batch's row in `stage`. That row is there with the
first chunk, so that whatever a crash leaves behind is known, and swept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import sqlalchemy as sa

from penstock.ledger.commit import statements_of
from penstock.ledger.rows import Block, block_of, plain_rows, size_of
from penstock.ledger.schema.columns import python_type
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database
from penstock.model.clock import instant_text, parse_instant
from penstock.model.errors import BrokenFlow, ClaimLost, MachineError
from penstock.model.machine import Machine
from penstock.model.outcome import MAX_BYTES, MAX_ROWS, Write
from penstock.model.unit import DRIVEN_COLUMNS, Unit, field_types

GRACE = timedelta(hours=1)
"""How long a batch that is no longer pointed at stays, for readers that took its id and read on page by page."""
AT_MOST = 100_000
"""How many rows one sweep removes."""
_BATCHES_AT_ONCE = 1_000
_Chunk = list[dict[str, Any]] | Block


@dataclass(frozen=True, eq=False)
class Staged:
    """A data table that is filled in batches. Raises MachineError when the declaration is wrong.

    The first column of the table's primary key is the text `stage_id`. `pointer` is the column of the machine's units
    that holds the visible batch; `keeps` names further columns whose batches are not to be swept.
    """

    table: sa.Table
    machine: Machine
    pointer: str
    keeps: Sequence[str] = ()
    on_conflict: Literal["update", "ignore", "error"] = "update"

    def __post_init__(self) -> None:
        problems = []
        keys = [c.name for c in self.table.primary_key]
        if keys[:1] != ["stage_id"] or not isinstance(self.table.c.stage_id.type, sa.Text):
            problems.append("the primary key must begin with the text column stage_id")
        if not self.machine.driven:
            problems.append(f"{self.machine.name} is not driven, so nobody could load it")
        types = field_types(self.machine.unit)
        for name in (self.pointer, *self.keeps):
            own = name in types and name not in DRIVEN_COLUMNS and name not in self.machine.lasting
            if not own or python_type(types[name]) != (str, True):
                problems.append(f"{self.machine.name} has no column {name}: str | None to point with")
        if problems:
            raise MachineError(f"staged table {self.table.name!r}: " + "; ".join(problems))

    @property
    def visible(self) -> str:
        """What to select from, or to make a view of: the visible rows as `r`, each beside its unit as `u`."""
        return f"{self.table.name} AS r JOIN {self.machine.table} AS u ON u.{self.pointer} = r.stage_id"


class StageWriter:
    """One batch under one claim. Its methods block; after LedgerUnavailable call `write` or `seal` again."""

    def __init__(self, database: Database, staged: Staged, unit: Unit, stage_id: str) -> None:
        if type(unit) is not staged.machine.unit or unit.claimed_by is None:
            msg = f"{staged.table.name} is filled by a claimed unit of {staged.machine.name}, not by {unit!r:.200}"
            raise BrokenFlow(msg)
        self.stage_id = stage_id
        self.rows = 0
        self.sealed = False
        self._database = database
        self._staged = staged
        self._ref = f"{staged.machine.name}:{unit.unit_id}"
        self._claim = {"unit_id": unit.unit_id, "version": unit.version, "worker": unit.claimed_by}
        self._waiting: deque[_Chunk] = deque([[]])
        self._size = 0
        self._written = 0

    def take(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Check rows and put them into chunks. Raises BrokenFlow that names what cannot be stored."""
        table = self._staged.table
        for row in plain_rows(self._ref, table, rows):
            if "stage_id" in row:
                raise BrokenFlow(f"{self._ref}: stage_id of {table.name} is filled by the stage, not by its rows")
            size = size_of(row)
            if size > MAX_BYTES:
                raise BrokenFlow(f"{self._ref}: a row of {table.name} has {size:,} bytes; a chunk carries at most 4 MB")
            chunk = self._waiting[-1]
            if isinstance(chunk, Block) or len(chunk) >= MAX_ROWS or self._size + size > MAX_BYTES:
                chunk = []
                self._waiting.append(chunk)
                self._size = 0
            chunk.append({"stage_id": self.stage_id, **row})
            self._size += size
            self.rows += 1

    def take_block(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Check rows that are lists of values, and put them into chunks. Raises BrokenFlow as `take` does.

        There are at most as many of them as a chunk has: 5,000 rows and 4 MB.
        """
        table = self._staged.table
        if "stage_id" in columns:
            raise BrokenFlow(f"{self._ref}: stage_id of {table.name} is filled by the stage, not by its rows")
        if not rows:
            return
        block = block_of(self._ref, table, columns, rows)
        if not _fits(block):
            size = f"{len(rows):,} rows and {len(block.lines):,} bytes"
            raise BrokenFlow(f"{self._ref}: a block of {table.name} has at most {MAX_ROWS:,} rows or 4 MB, not {size}")
        self.rows += len(rows)
        chunk = self._waiting[-1]
        if isinstance(chunk, Block) and chunk.columns == block.columns and _fits(both := chunk.joined(block)):
            self._waiting[-1] = both
        elif chunk == []:
            self._waiting[-1] = block
        else:
            self._waiting.append(block)

    @property
    def full(self) -> bool:
        """Whether a chunk is complete and wants to be written."""
        return len(self._waiting) > 1

    def write(self) -> None:
        """Commit the oldest chunk. Raises ClaimLost when the unit was taken away."""
        self._commit(self._waiting[0], last=False)
        self._waiting.popleft()

    def seal(self) -> None:
        """Commit what is left; the batch is complete and takes no more rows. One without rows is a batch too."""
        while self.full:
            self.write()
        self._commit(self._waiting[0], last=True)
        self._waiting = deque([[]])
        self.sealed = True

    def _commit(self, chunk: _Chunk, *, last: bool) -> None:
        insert = self._filling(chunk) if isinstance(chunk, Block) else self._writing(chunk)
        count = chunk.count if isinstance(chunk, Block) else len(chunk)

        def work(cursor: Cursor) -> None:
            if not last:
                # The last one takes the others to the disk; and if the server loses one, its mark is missing.
                self._database.sql.commit_lazily(cursor)
            self._fence(cursor)
            if self._note(cursor, count, last=last):
                insert(cursor)

        self._database.write(work)
        self._written += 1

    def _writing(self, rows: list[dict[str, Any]]) -> Callable[[Cursor], None]:
        groups = statements_of([Write(self._staged.table, rows, self._staged.on_conflict)])
        prepared = [statements.upsert(self._database, *statement) for statement in groups]

        def insert(cursor: Cursor) -> None:
            for sql, given in prepared:
                cursor.run(sql, **given)

        return insert

    def _filling(self, block: Block) -> Callable[[Cursor], None]:
        table = self._staged.table
        if self._staged.on_conflict == "error":
            return lambda cursor: cursor.fill(table.name, block.columns, block.lines, stage_id=self.stage_id)
        return self._writing([{"stage_id": self.stage_id, **row} for row in block.rows()])

    def _fence(self, cursor: Cursor) -> None:
        """No lock: what slips in beside the loss of the claim is in a batch that nobody will ever point at."""
        held = cursor.rows(
            f"SELECT 1 FROM {self._staged.machine.table}"
            " WHERE unit_id = :unit_id AND version = :version AND claimed_by = :worker",
            **self._claim,
        )
        if not held:
            raise self._lost()

    def _note(self, cursor: Cursor, count: int, *, last: bool) -> bool:
        """Leave the chunk's mark on the batch. False: it is there already, from a COMMIT whose answer was lost.

        The row lock waits out a COMMIT still under way, and it keeps the sweep off until the chunk is there.
        """
        now = self._database.now_sql
        batch = {"stage_id": self.stage_id, "count": count, **self._database.bind_now()}
        sealed = now if last else "NULL"
        if self._written == 0:
            touched = cursor.run(
                "INSERT INTO stage (stage_id, machine, unit_id, version, claimed_by, table_name, row_count, chunks,"
                f" opened_at, sealed_at) VALUES (:stage_id, :machine, :unit_id, :version, :worker, :table, :count, 1,"
                f" {now}, {sealed}) ON CONFLICT DO NOTHING",
                machine=self._staged.machine.name,
                table=self._staged.table.name,
                **self._claim,
                **batch,
            )
        else:
            touched = cursor.run(
                f"UPDATE stage SET row_count = row_count + :count, chunks = chunks + 1, sealed_at = {sealed}"
                " WHERE stage_id = :stage_id AND chunks = :written AND loose_at IS NULL",
                written=self._written,
                **batch,
            )
        if touched == 0:
            found = cursor.rows("SELECT chunks FROM stage WHERE stage_id = :stage_id", stage_id=self.stage_id)
            if not found or found[0][0] != self._written + 1:
                raise self._lost()
        return touched == 1

    def _lost(self) -> ClaimLost:
        return ClaimLost(f"{self._ref} was taken away while {self._staged.table.name} was being filled for it")


def _fits(block: Block) -> bool:
    """Whether it is no more than one transaction is to write."""
    return block.count <= MAX_ROWS and len(block.lines) <= MAX_BYTES


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep removed; `more`: it stopped at its limit, and there is more to remove."""

    batches: int
    rows: int
    more: bool


def sweep(database: Database, staged: Iterable[Staged], *, grace: timedelta = GRACE, at_most: int = AT_MOST) -> Swept:
    """Remove batches that nobody can point at any more, a chunk of rows per transaction.

    A batch is loose when its unit neither points at it nor is still claimed as it was when the batch was opened. Both
    are columns of one row that a commit changes together, so a COMMIT under way is seen whole or not at all: before it
    the claim protects the batch, after it the pointer does. A loose batch takes no more chunks. One that was never
    sealed was never visible and goes at once; the others go when the grace is over.
    """
    batches = rows = 0
    for each in staged:
        _loosen(database, each)
        for stage_id in _ripe(database, each, grace):
            done = 0
            while not done:
                if rows >= at_most:
                    return Swept(batches, rows, more=True)
                gone, done = database.write(_remover(database, each, stage_id, min(MAX_ROWS, at_most - rows)))
                rows += gone
                batches += done
                if gone == 0:
                    break
    return Swept(batches, rows, more=False)


def _unreferenced(staged: Staged) -> str:
    """Of a row `s` of `stage`: its unit has moved on without it, or is gone."""
    pointers = ", ".join(f"u.{name}" for name in (staged.pointer, *staged.keeps))
    return (
        f"NOT EXISTS (SELECT 1 FROM {staged.machine.table} AS u WHERE u.unit_id = s.unit_id"
        f" AND (u.version = s.version OR s.stage_id IN ({pointers})))"
    )


def _loosen(database: Database, staged: Staged) -> None:
    """Mark batches as loose, from when on their grace runs."""
    names = {"table": staged.table.name, "machine": staged.machine.name}
    mine = f"s.table_name = :table AND s.machine = :machine AND s.loose_at IS NULL AND {_unreferenced(staged)}"
    # Looked for on a connection that reads: where batches are many and loose ones few, no writer waits for it.
    sql = f"SELECT s.stage_id FROM stage AS s WHERE {mine} LIMIT {_BATCHES_AT_ONCE}"
    found = database.read(lambda cursor: cursor.rows(sql, **names))
    if not found:
        return
    source = statements.batch(database, {"stage_id": statements.TEXT})
    # A chunk under way holds the batch's row: that batch is marked the next time.
    skip = database.sql.for_update("s", skip=True)
    text = statements.batch_text([[r[0]] for r in found])
    mark = (
        f"UPDATE stage SET loose_at = {database.now_sql} WHERE stage_id IN (SELECT s.stage_id FROM stage AS s"
        f" WHERE s.stage_id IN (SELECT n_stage_id FROM {source}) AND {mine}{skip})"
    )
    database.write(lambda cursor: cursor.run(mark, batch=text, **names, **database.bind_now()))


def _ripe(database: Database, staged: Staged, grace: timedelta) -> list[str]:
    """The loose batches that may go now."""
    cast = database.sql.instant("cutoff")
    sql = (
        "SELECT s.stage_id FROM stage AS s WHERE s.table_name = :table AND s.machine = :machine"
        f" AND s.loose_at IS NOT NULL AND (s.sealed_at IS NULL OR s.loose_at <= {cast})"
        f" ORDER BY s.loose_at, s.stage_id LIMIT {_BATCHES_AT_ONCE}"
    )

    def work(cursor: Cursor) -> list[str]:
        (now,) = cursor.rows(f"SELECT {database.now_sql}", **database.bind_now())[0]
        cutoff = (parse_instant(now) if isinstance(now, str) else now) - grace
        names = {"table": staged.table.name, "machine": staged.machine.name}
        return [str(r[0]) for r in cursor.rows(sql, cutoff=instant_text(cutoff), **names)]

    return database.read(work)


def _remover(database: Database, staged: Staged, stage_id: str, limit: int) -> Callable[[Cursor], tuple[int, int]]:
    """One chunk of a removal, as a transaction; it gives (rows removed, 1 when the batch is gone)."""
    table = staged.table.name
    # Asked again in every transaction: if somebody pointed back at the batch by hand, it stays.
    check = (
        f"SELECT 1 FROM stage AS s WHERE s.stage_id = :stage_id AND s.loose_at IS NOT NULL AND {_unreferenced(staged)}"
        f"{database.sql.for_update('s', skip=True)}"
    )
    key = [column.name for column in staged.table.primary_key]
    some = database.sql.some_rows(table, key, "stage_id = :stage_id", limit)

    def work(cursor: Cursor) -> tuple[int, int]:
        if not cursor.rows(check, stage_id=stage_id):
            return 0, 0
        gone = cursor.run(f"DELETE FROM {table} WHERE {some}", stage_id=stage_id)
        if gone == limit:
            return gone, 0
        return gone, cursor.run("DELETE FROM stage WHERE stage_id = :stage_id", stage_id=stage_id)

    return work

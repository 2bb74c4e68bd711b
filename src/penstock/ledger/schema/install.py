"""Making a ledger and bringing it up to this program: tables, revisions, definitions, and every generated trigger.

All of it happens in one transaction: whoever dies on the way leaves the ledger as it was, and running it again is all there is
to do. Tables of a fresh ledger are made from their declaration and stamped with the newest revision; an older
ledger runs the revisions it lacks, and a test keeps the two equal. A ledger made by another program, or by a newer one,
is refused untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from penstock.ledger.schema import (
    definitions,
    expand,
    left,
    migrate,
    seals,
)
from penstock.ledger.schema import views as views_of
from penstock.ledger.schema.migrate import KERNEL, Track
from penstock.ledger.schema.tables import kernel_tables, machine_table
from penstock.ledger.schema.triggers import make_triggers
from penstock.ledger.store.database import AlterCursor, Cursor, Database, table_names
from penstock.model.errors import LedgerBroken, LedgerMismatch
from penstock.model.machine import Machine
from penstock.model.unit import NO_GATE

_PAGES_CHECKED = 8_000  # 32 MB: about half a second


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a program wants the ledger to be. `migrations` are its own tracks of revisions, as package:folder."""

    machines: tuple[Machine, ...]
    data_tables: tuple[sa.Table, ...] = ()
    migrations: tuple[str, ...] = ()
    kernel: Track = KERNEL
    #: Name to the SELECT that it stands for, in the order of creation.
    views: Mapping[str, str] = field(default_factory=dict)

    def tables(self, dialect: str) -> list[sa.Table]:
        """The program's own tables, in the order of creation: one that others refer to comes before them."""
        return [*(machine_table(m, dialect) for m in _referred_first(self.machines)), *self.data_tables]


def _referred_first(machines: Sequence[Machine]) -> list[Machine]:
    found: list[Machine] = []
    for machine in machines:
        others = _referred_first([m for m in machine.references.values() if m in machines])
        found += [m for m in (*others, machine) if m not in found]
    return found


def install(
    database: Database,
    machines: Iterable[Machine],
    data_tables: Iterable[sa.Table] = (),
    *,
    migrations: Sequence[str] = (),
    kernel: Track = KERNEL,
    take_back: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    views: Mapping[str, str] | None = None,
) -> None:
    """Create what is missing and bring the rest up to this program, in one transaction.

    `take_back` lets a program replace definitions that replaced its own.
    """
    wanted = Wanted(tuple(machines), tuple(data_tables), tuple(migrations), kernel, dict(views or {}))
    seals.check(wanted.machines)
    if database.dialect != "sqlite" or Path(database.url.removeprefix("sqlite:///")).exists():
        # Asked before anything is touched, and again under the lock: a refusal leaves not even a lock file.
        database.read(lambda cursor: _refuse_strangers(database, cursor, wanted, take_back=take_back))
    database.alter(lambda cursor: _install(database, cursor, wanted, progress, take_back=take_back))


def _install(
    database: Database, cursor: AlterCursor, wanted: Wanted, progress: Callable[[str], None], *, take_back: bool
) -> None:
    present = _refuse_strangers(database, cursor, wanted, take_back=take_back)
    if present:
        views_of.clear(database, cursor, wanted.views)  # a revision may take away what an old view reads
    migrated = _kernel(database, cursor, wanted.kernel, present, progress)
    for place in wanted.migrations:
        track = migrate.app_track(place)
        migrated |= _own_revisions(database, cursor, wanted, track, present, progress, take_back=take_back)
    _own_tables(database, cursor, wanted, take_back=take_back)
    cursor.run("INSERT INTO gate (gate_id) VALUES (:gate) ON CONFLICT DO NOTHING", gate=NO_GATE)
    changed = definitions.changed(cursor, wanted.machines)
    for machine in wanted.machines:
        definitions.refuse_other_shape(database, cursor, machine, migrated=migrated)
        definitions.record(database, cursor, machine)
    seals.refuse_broken(database, cursor, [f for f in seals.families(wanted.machines) if f.child.name in changed])
    progress("triggers")
    make_triggers(database, cursor, wanted.machines)
    views_of.make(database, cursor, wanted.views)


def _refuse_strangers(database: Database, cursor: Cursor, wanted: Wanted, *, take_back: bool) -> set[str]:
    """Refuse a database of somebody else's, and a ledger of a newer program; the names of the tables that are there."""
    present = table_names(database, cursor)
    if present and "penstock_meta" not in present:
        msg = "that database holds other tables and is not a Penstock ledger; use an empty one"
        raise LedgerMismatch(msg)
    if present:
        migrate.refuse_newer(database, wanted.kernel, migrate.stamped(cursor, wanted.kernel) or 0)
        if not take_back:
            definitions.refuse_older(database, cursor, wanted.machines)
    return present


def _kernel(
    database: Database, cursor: AlterCursor, track: Track, present: set[str], progress: Callable[[str], None]
) -> bool:
    """Bring the kernel's tables up to this program; whether any revision ran."""
    migrated = False
    if present:
        migrated = migrate.upgrade(database, cursor, track, migrate.stamped(cursor, track) or 0, progress)
    tables = kernel_tables(database.dialect)
    for difference in expand.differences(database, cursor, tables, table_names(database, cursor)):
        if difference.subject == difference.table:
            _apply(cursor, difference)
        elif track == KERNEL:  # the declaration is that of the kernel's newest revision
            _refuse(database, difference)
    if not present:
        migrate.stamp(cursor, KERNEL, KERNEL.head())
        migrate.upgrade(database, cursor, track, KERNEL.head(), progress)
    return migrated


def _own_revisions(  # noqa: PLR0917 - all that an upgrade works with
    database: Database,
    cursor: AlterCursor,
    wanted: Wanted,
    track: Track,
    present: set[str],
    progress: Callable[[str], None],
    *,
    take_back: bool,
) -> bool:
    """Run the revisions of one track of the program, unless none of its tables is there yet; whether any ran."""
    there = migrate.stamped(cursor, track)
    if there is None and not present & {table.name for table in wanted.tables(database.dialect)}:
        migrate.stamp(cursor, track, track.head())
        return False
    ahead = (there or 0) > track.head()
    if ahead and (take_back or left.revision(cursor, track) == there):
        migrate.refuse_distant(database, track, there or 0)  # one ahead will do, if the tables still fit
    else:
        migrate.refuse_newer(database, track, there or 0)
    left.note_revision(cursor, track, there or 0)
    return migrate.upgrade(database, cursor, track, there or 0, progress)


def _own_tables(database: Database, cursor: Cursor, wanted: Wanted, *, take_back: bool) -> None:
    """Add what is missing of the program's own tables; what adding cannot make good needs a migration.

    Going back, columns that a newer program added are left where they are.
    """
    tables = wanted.tables(database.dialect)
    found = expand.differences(database, cursor, tables, table_names(database, cursor))
    for difference in found:
        if not difference.statements and not (take_back and difference.unminded):
            _refuse(database, difference)
    for difference in found:
        _apply(cursor, difference)
    left.leave(cursor, [(d.table, d.subject) for d in found if d.unminded])
    left.take_up(cursor, tables)


def _apply(cursor: Cursor, difference: expand.Difference) -> None:
    for sql in difference.statements:
        cursor.run(sql)


def _refuse(database: Database, difference: expand.Difference) -> None:
    msg = (
        f"{database.url}: table {difference.table} and this program differ in {difference.subject}:"
        f" {difference.message}; the table needs a migration first"
        + (", or, if a newer program added it, go back with --take-back" if difference.unminded else "")
    )
    raise LedgerMismatch(msg)


def check_definitions(
    database: Database,
    machines: Mapping[str, Machine],
    *,
    migrations: Sequence[str] = (),
    kernel: Track = KERNEL,
) -> None:
    """Refuse to work on a ledger whose schema or definitions this program cannot work with."""

    def work(cursor: Cursor) -> None:
        if database.dialect == "sqlite":
            _check_file(database, cursor)
        if "penstock_meta" not in table_names(database, cursor):
            msg = f"{database.url} is not a Penstock ledger yet; run 'penstock db upgrade'"
            raise LedgerMismatch(msg)
        migrate.refuse_distant(database, kernel, migrate.stamped(cursor, kernel) or 0)
        for track in map(migrate.app_track, migrations):
            migrate.refuse_distant(database, track, migrate.stamped(cursor, track) or 0)
        definitions.refuse_stale(database, cursor, machines.values())

    database.read(work)


def _check_file(database: Database, cursor: Cursor) -> None:
    """Find damage before the first write, which would change the file further; too large a file is not read through."""
    if cursor.rows("PRAGMA page_count")[0][0] > _PAGES_CHECKED:
        return
    found = [str(line) for (line,) in cursor.rows("PRAGMA quick_check")]
    # A row that somebody typed past a CHECK damages nothing else; the doctor names it.
    problem = next((line for line in found if not line.startswith("CHECK constraint failed")), "ok")
    if problem != "ok":
        msg = f"{database.url.removeprefix('sqlite:///')}: {problem}; restore it from a backup; Penstock changes nothing in it"
        raise LedgerBroken(msg)

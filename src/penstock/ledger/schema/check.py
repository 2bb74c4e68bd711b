"""Whether a ledger is this program's: schema, tables, definitions, triggers and views. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.ledger.care.doctor import changed_views
from penstock.ledger.care.doctor_guards import triggers
from penstock.ledger.care.finding import Finding
from penstock.ledger.history import require_ledger
from penstock.ledger.schema import definitions, expand, migrate
from penstock.ledger.schema.install import Wanted
from penstock.ledger.schema.tables import kernel_tables
from penstock.ledger.store.database import Cursor, Database, table_names


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found. `program` and `ledger` are revisions of the kernel; `tracks` those of the program."""

    url: str
    program: int
    ledger: int
    #: By place: what the program knows, and what the ledger has.
    tracks: dict[str, tuple[int, int]]
    findings: list[Finding]


def check(database: Database, wanted: Wanted) -> Checked:
    """Compare the ledger with what this program would make of it."""

    def work(cursor: Cursor) -> Checked:
        require_ledger(database, cursor)
        own = {place: migrate.app_track(place) for place in wanted.migrations}
        return Checked(
            database.url,
            wanted.kernel.head(),
            migrate.stamped(cursor, wanted.kernel) or 0,
            {place: (track.head(), migrate.stamped(cursor, track) or 0) for place, track in own.items()},
            list(_findings(database, cursor, wanted)),
        )

    return database.read(work)


def _findings(database: Database, cursor: Cursor, wanted: Wanted) -> Iterator[Finding]:
    tracks = [wanted.kernel, *map(migrate.app_track, wanted.migrations)]
    for track in tracks:
        yield from _revision(cursor, track)
    tables = [*kernel_tables(database.dialect), *wanted.tables(database.dialect)]
    for difference in expand.differences(database, cursor, tables, table_names(database, cursor)):
        remedy = "run 'penstock db upgrade'" if difference.statements else "it needs a migration"
        yield Finding("tables", f"{difference.table}.{difference.subject}", f"{difference.message}; {remedy}")
    known = definitions.stored(cursor)
    stale = definitions.stale(cursor, wanted.machines)
    for machine in wanted.machines:
        if machine.name in stale:
            yield Finding("definitions", machine.name, f"the ledger's definition {stale[machine.name]}")
        elif known[machine.name]["digest"] != machine.digest():
            yield Finding(
                "definitions", machine.name, "the ledger's definition is newer; this program can work with it"
            )
    same = {m.name: m for m in wanted.machines if known.get(m.name, {}).get("digest") == m.digest()}
    yield from triggers(database, cursor, same)
    yield from changed_views(database, cursor, wanted.views)


def _revision(cursor: Cursor, track: migrate.Track) -> Iterator[Finding]:
    there, head = migrate.stamped(cursor, track) or 0, track.head()
    if there == head:
        return
    works = "this program can work with it" if abs(there - head) <= 1 else "this program refuses to work with it"
    remedy = "run 'penstock db upgrade'" if there < head else "use a newer program"
    subject = "kernel" if track.key == migrate.KERNEL.key else track.places[0]
    yield Finding("schema", subject, f"the ledger has revision {there}, this program knows {head}; {works}; {remedy}")

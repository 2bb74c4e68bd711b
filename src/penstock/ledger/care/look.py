"""How much the doctor looks at: everything, or what the history tells has changed since its last clean look.

A clean look is remembered, machine by machine: the number of the history's row up to which all was well. A look that
begins there reads the rows after it and the units, parents and hours that they tell of. It cannot see a change that
left no trace in the history. So a whole look comes round from time to time, and one that finds something wrong makes
the next ones whole, until one is clean again.

On PostgreSQL the order of numbers is not that of commits. A look is remembered up to a number below which no row can
appear any more: that of the newest row where nobody was writing, else that up to which `roll_up` has counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec import Struct, json

from penstock.ledger.care.finding import Finding
from penstock.ledger.roll_up import bookmark, newest
from penstock.ledger.store.database import Cursor, Database, present
from penstock.model.clock import instant, instant_text
from penstock.model.errors import LedgerError
from penstock.model.machine import Machine

MEMORY = "doctor"
"""The name in `penstock_meta` under which the last clean looks are kept."""
WHOLE_EVERY = timedelta(days=7)
"""How often the doctor looks at everything who looks by a schedule."""


class Remembered(Struct, frozen=True):
    """Up to `seq` all was well with a machine of that digest: when it was looked at, and when at everything."""

    seq: int
    at: str
    whole_at: str
    digest: str


@dataclass(frozen=True, slots=True)
class Scope:
    """The rows of the history after a number, and what they tell of; without a number, everything."""

    after: int | None = None
    since: datetime | None = None

    @property
    def whole(self) -> bool:
        """Whether everything is looked at."""
        return self.after is None

    def rows(self, row: str = "") -> str:
        """A condition on rows of the history."""
        return "1 = 1" if self.after is None else f"{row}seq > {self.after}"

    def of(self, machine: str) -> str:
        """A condition on the rows of a machine in the history: by their keys if all, else by their numbers."""
        return f"machine = '{machine}'" if self.whole else f"COALESCE(machine, machine) = '{machine}' AND {self.rows()}"

    def units(self, machine: str, unit: str) -> str:
        """A condition on units of a machine; `unit` is the column of their ids."""
        if self.whole:
            return "1 = 1"
        return f"{unit} IN (SELECT unit_id FROM transition_log WHERE {self.of(machine)})"

    def parents(self, child: Machine, parent: Machine, same: str) -> str:
        """A condition on parents `p`: those that changed, and those of children that did.

        `same` is the condition that `c` is a child of `p`.
        """
        if self.whole:
            return "1 = 1"
        return (
            f"p.unit_id IN (SELECT unit_id FROM transition_log WHERE {self.of(parent.name)} UNION SELECT p.unit_id"
            f" FROM {child.table} c JOIN {parent.table} p ON {same} WHERE {self.units(child.name, 'c.unit_id')})"
        )


WHOLE = Scope()


@dataclass(frozen=True, slots=True)
class Beginning:
    """When a look began, and the number of the row below which no other can appear any more."""

    at: datetime
    seq: int


def look(
    database: Database,
    machines: Mapping[str, Machine],
    examine: Callable[[Scope], list[Finding]],
    *,
    since_last: bool,
    whole_every: timedelta | None = None,
    remember: bool = True,
) -> tuple[list[Finding], Scope]:
    """Have `examine` look at everything, or at what changed since the last clean look; `remember` what came of it.

    It looks at everything where nothing is remembered of a machine, where its definition is another one since, and,
    with `whole_every`, where that was not done for so long.
    """
    begun = database.read(lambda cursor: _begin(database, cursor))
    scope = database.read(lambda cursor: _last(cursor, machines, begun.at, whole_every)) if since_last else WHOLE
    found = examine(scope)
    clean = all(one.severity != "error" for one in found)
    if remember and (clean or scope.whole):
        _remember(database, machines, scope, begun, clean=clean)
    return found, scope


def _begin(database: Database, cursor: Cursor) -> Beginning:
    counted = bookmark(cursor).seq
    # In this order, as `roll_up` does: whoever drew a lower number is among the writers, or the checks see it.
    last = newest(cursor, counted)
    return Beginning(present(database, cursor), counted if database.sql.writers(cursor) else last)


def _recalled(cursor: Cursor, lock: str = "") -> dict[str, Remembered]:
    rows = cursor.rows(f"SELECT value FROM penstock_meta WHERE name = '{MEMORY}'{lock}")
    return json.decode(rows[0][0], type=dict[str, Remembered]) if rows else {}


def _last(cursor: Cursor, machines: Mapping[str, Machine], now: datetime, whole_every: timedelta | None) -> Scope:
    known = _recalled(cursor)
    looks = [known[name] for name, machine in machines.items() if _same(known.get(name), machine)]
    if not looks or len(looks) < len(machines):
        return WHOLE
    if whole_every is not None and min(instant(one.whole_at) for one in looks) <= now - whole_every:
        return WHOLE
    first = min(looks, key=lambda one: one.seq)
    return Scope(first.seq, instant(first.at))


def _same(found: Remembered | None, machine: Machine) -> bool:
    return found is not None and found.digest == machine.digest()


def _remember(
    database: Database, machines: Mapping[str, Machine], scope: Scope, begun: Beginning, *, clean: bool
) -> None:
    """Who may not write, or cannot now, looks all the same."""

    def work(cursor: Cursor) -> None:
        cursor.run(f"INSERT INTO penstock_meta (name, value) VALUES ('{MEMORY}', '{{}}') ON CONFLICT (name) DO NOTHING")
        known = _recalled(cursor, database.sql.for_update())
        cursor.run(
            f"UPDATE penstock_meta SET value = :value WHERE name = '{MEMORY}'",
            value=json.encode(_after(known, machines.values(), scope, begun, clean=clean)).decode(),
        )

    try:
        database.write(work)
    except LedgerError:
        return


def _after(
    known: Mapping[str, Remembered], machines: Iterable[Machine], scope: Scope, begun: Beginning, *, clean: bool
) -> dict[str, Remembered]:
    found, at = dict(known), instant_text(begun.at)
    for machine in machines:
        before = found.pop(machine.name, None)
        if clean:
            whole_at = at if scope.whole or before is None else before.whole_at
            found[machine.name] = Remembered(begun.seq, at, whole_at, machine.digest())
    return found

"""Group commit: many outcomes in one transaction, each of them whole or not at all.

The order inside is what keeps committers from deadlocking and parents from sleeping: (1) units by compare-and-set, (2)
moves, births, writes and events of the winners only, (3) parents last, their increments summed, locked in one order,
(4) where the counters are complete, a statement that compares them with the set of children and wakes the parent, (5)
`commit_seq`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from penstock.ledger.parents import Parents
from penstock.ledger.prepare import Change, Newborn, PreparedOutcome
from penstock.ledger.schema.columns import UNREADABLE, decoder_of
from penstock.ledger.schema.seals import sealed_states
from penstock.ledger.schema.tables import event_log, table_of
from penstock.ledger.sets import PreparedSet, SetMover
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database
from penstock.ledger.units import lock
from penstock.model.errors import LedgerBroken, LedgerBusy, LedgerError, LedgerRefused, LedgerUnavailable
from penstock.model.machine import Machine
from penstock.model.outcome import Write
from penstock.model.unit import NO_GATE, GuardedUnit
from penstock.settings.redaction import PATTERNS, redact


class _Uncounted(Exception):
    """Fewer units matched than were to be changed, and it was not asked which."""


class OthersMissed(LedgerRefused):
    """Another unit that the outcome moves had changed meanwhile, or a row is there that must not be."""


@dataclass(frozen=True, slots=True)
class Won:
    """The outcome is durable; `unit` is the unit as it now is, when the claim was kept."""

    unit: Any = None


@dataclass(frozen=True, slots=True)
class Lost:
    """The claim was lost: someone else changed the unit, and nothing of the outcome was written."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The database refused this outcome on its own; nothing of it was written."""

    error: LedgerRefused


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody's lock or a time limit was in the way of this one; it can be tried again."""

    error: LedgerBusy


Result = Won | Lost | Refused | Busy
_Key = tuple[str, str]


def _key(change: Change) -> _Key:
    return change.machine.name, change.row[0]


@dataclass(frozen=True, slots=True)
class _Group:
    """Changes that one statement makes: of one machine, in the same columns. `given` are its parameters."""

    machine: str
    changed: tuple[str, ...]
    keep_claim: bool
    changes: list[Change]
    alike: tuple[int, ...]
    given: dict[str, Any]


def _groups(database: Database, changes: Iterable[Change]) -> list[_Group]:
    found: dict[tuple[str, tuple[str, ...], bool], list[Change]] = {}
    for change in changes:
        found.setdefault((change.machine.name, change.changed, change.keep_claim), []).append(change)
    groups = []
    for key, group in found.items():
        rows = [change.row for change in group]
        alike = statements.alike_in(rows, after=statements.FENCE)
        groups.append(_Group(*key, group, tuple(alike), statements.batch_given(database, rows, alike)))
    return groups


class _Batch:
    """Entries taken apart before their transaction begins: what holds a SQLite ledger's one writer holds everybody."""

    def __init__(self, database: Database, entries: Sequence[PreparedOutcome]) -> None:
        self.entries = entries
        # Of two changes of a unit in a batch one is lost: that of an older claim, which was taken away, or the second
        # of the same, which rests on what the first has just replaced.
        self.first: dict[_Key, PreparedOutcome] = {_key(e.change): e for e in entries}
        if len(self.first) < len(entries):
            falling = sorted(entries, key=lambda e: -e.change.version)
            self.first |= {_key(e.change): e for e in reversed(falling)}
        self.groups = _groups(database, [e.change for e in self.first.values()])
        self.rich = [e for e in self.first.values() if e.more]
        self.gates = {gate for e in self.rich for gate in e.gates}

    def winners(self, lost: set[_Key]) -> list[PreparedOutcome]:
        """Those of the entries with more than a change of their unit whose unit was changed."""
        return [e for e in self.rich if _key(e.change) not in lost] if lost else self.rich

    def results(self, lost: set[_Key], kept: Mapping[_Key, GuardedUnit]) -> list[Result]:
        plain = Won()
        if not lost and not kept and len(self.first) == len(self.entries):
            return [plain] * len(self.entries)
        found: list[Result] = []
        for e in self.entries:
            key = _key(e.change)
            won = key not in lost and self.first[key] is e
            found.append((Won(kept[key]) if key in kept else plain) if won else Lost())
        return found


class Committer:
    """Writes batches of entries. It holds no state but statements made once."""

    def __init__(
        self,
        database: Database,
        machines: dict[str, Machine],
        make_gates: Callable[[Cursor, Iterable[str]], None],
    ) -> None:
        self._database = database
        self._machines = machines
        self._make_gates = make_gates
        self._known_gates = {NO_GATE}
        self._statement = functools.cache(self._make_statement)
        self._sets = SetMover(database, machines)
        self._parents = Parents(database, machines)
        self._sealed = sealed_states(machines.values()) if database.sql.locks_rows else {}
        self._decoders = {m.unit: decoder_of(database, m.unit) for m in machines.values()}

    def attempt(
        self, entries: Sequence[PreparedOutcome], finish: Callable[[Cursor, list[Result]], None] = lambda *_: None
    ) -> list[Result] | None:
        """One transaction over all entries; `finish` runs last in it, with what they came to.

        None: the batch must be split, for the part that is refused or in the way.
        """
        batch = _Batch(self._database, entries)

        def work(cursor: Cursor, *, exact: bool = False, around_locks: bool = False) -> list[Result]:
            results = self._around_locks(cursor, batch) if around_locks else self._apply(cursor, batch, exact=exact)
            finish(cursor, results)
            return results

        try:
            try:
                results = self._database.write(work)
            except _Uncounted:
                results = self._database.write(functools.partial(work, exact=True))
            except LedgerBusy:
                # By halves every half that holds the locked row would wait for it again.
                if len(entries) == 1 or not self._database.sql.locks_rows:
                    raise
                results = self._database.write(functools.partial(work, around_locks=True))
        except LedgerBusy as error:
            return [Busy(error)] if len(entries) == 1 else None
        except (LedgerUnavailable, LedgerBroken):
            raise
        except LedgerError as error:
            # A statement that the database cannot make sense of is as hopeless as one that it refuses.
            refused = error if isinstance(error, LedgerRefused) else LedgerRefused(str(error))
            return [Refused(refused)] if len(entries) == 1 else None
        self._known_gates |= batch.gates
        return results

    def commit(self, entries: Sequence[PreparedOutcome]) -> list[Result]:
        """Commit for somebody who is not a worker; a refusal splits the batch until the refused stands alone."""
        results = self.attempt(entries)
        if results is not None:
            return results
        middle = len(entries) // 2
        return self.commit(entries[:middle]) + self.commit(entries[middle:])

    def births(self, newborns: Sequence[Newborn], gates: set[str]) -> list[str]:
        """Bulk births in one transaction; the ids of those that were not there before."""

        def work(cursor: Cursor) -> list[str]:
            self._ensure_gates(cursor, gates)
            return self._insert(cursor, newborns)

        return self._database.write(work)

    def move_set(self, given: PreparedSet) -> int:
        """A move of many units in a transaction of its own; how many moved."""

        def work(cursor: Cursor) -> int:
            self._ensure_gates(cursor, set(given.gates))
            moved, counted = self._sets.apply(cursor, [given])
            self._parents.count(cursor, counted)
            return moved

        return self._database.write(work)

    def together(self, moves: list[Change], births: Sequence[Newborn], rows: PreparedOutcome) -> None:
        """Moves and births of units, with the writes and events of an entry, in one transaction or not at all."""

        def work(cursor: Cursor) -> None:
            self._ensure_gates(cursor, set(rows.gates))
            self._moves(cursor, moves)
            self._insert(cursor, births)
            self._write(cursor, [rows])
            self._events(cursor, [rows])
            self._parents.count(cursor, rows.tallies)

        self._database.write(work)

    def _around_locks(self, cursor: Cursor, batch: _Batch) -> list[Result]:
        """Everything of a batch but what somebody else holds a lock on."""
        free = self._unlocked(cursor, batch.entries)
        some = [e for e in batch.entries if _key(e.change) in free]
        done = {
            id(e): r for e, r in zip(some, self._apply(cursor, _Batch(self._database, some), exact=True), strict=True)
        }
        return [done.get(id(e)) or Busy(LedgerBusy(f"{e.change.unit_id} is locked by somebody")) for e in batch.entries]

    def _apply(self, cursor: Cursor, batch: _Batch, *, exact: bool) -> list[Result]:
        """Everything of a batch, inside one transaction."""
        self._ensure_gates(cursor, batch.gates)
        self._lock_parents(cursor, batch)
        lost, kept = self._update(cursor, batch.groups, exact=exact)
        winners = batch.winners(lost)
        if winners:
            self._require(cursor, winners)
            self._moves(cursor, [m for e in winners for m in e.moves])
            self._insert(cursor, [b for e in winners for b in e.births])
            self._write(cursor, winners)
            _, counted = self._sets.apply(cursor, [s for e in winners for s in e.sets])
            self._events(cursor, winners)
            self._parents.count(cursor, [*(t for e in winners for t in e.tallies), *counted])
        return batch.results(lost, kept)

    def _lock_parents(self, cursor: Cursor, batch: _Batch) -> None:
        """Lock the parents that a batch steps before anything of them is held, where others may come to wait for them.

        Where a batch also counts on some, both kinds together, in one order: two batches that step each other's parents
        would otherwise wait for one another.
        """
        counted: dict[str, set[str]] = {}
        for entry in batch.rich:
            for tally in entry.tallies:
                counted.setdefault(tally.parent.name, set()).add(tally.unit_id)
        sealing = self._sealing(batch.groups)
        for name in sorted({*counted, *sealing}, key=lambda n: self._machines[n].table):
            stepped = {e.change.unit_id for e in batch.entries if e.change.machine.name == name}
            if stepped:
                ids = stepped | counted.get(name, set())
                lock(self._database, cursor, self._machines[name].table, ids, keys=name in sealing)

    def _sealing(self, groups: Iterable[_Group]) -> set[str]:
        """The machines of which a unit enters a sealed state: its row is taken whole, and at once.

        Its guard does so too, but half of the row is taken by then: a child that has its key, and comes to count on the
        other half, would wait for it in turn.
        """
        return {
            group.machine
            for group in groups
            if group.machine in self._sealed
            and any(c.row[2] != c.row[3] and c.row[3] in self._sealed[group.machine] for c in group.changes)
        }

    def _update(
        self, cursor: Cursor, groups: Iterable[_Group], *, exact: bool = True
    ) -> tuple[set[_Key], dict[_Key, GuardedUnit]]:
        """Compare and set: the units that did not match, and those whose claim was kept as they now are.

        Not `exact`: raises _Uncounted where some did not match and it must be asked which.
        """
        lost: set[_Key] = set()
        kept: dict[_Key, GuardedUnit] = {}
        for group in groups:
            sql = self._statement("update", group.machine, group.changed, group.keep_claim, group.alike)
            given = {**group.given, **self._database.bind_now()}
            if group.keep_claim:
                found = self._kept(cursor, sql, group, given)
                kept |= found
            elif exact:
                found = dict.fromkeys([(group.machine, r[0]) for r in cursor.rows(f"{sql} RETURNING unit_id", **given)])
            elif cursor.run(sql, **given) == len(group.changes):
                continue  # a count costs nothing; a row that comes back is made, carried and read
            else:
                raise _Uncounted
            if len(found) != len(group.changes):
                lost.update(key for c in group.changes if (key := _key(c)) not in found)
        return lost, kept

    def _kept(self, cursor: Cursor, sql: str, group: _Group, given: Mapping[str, Any]) -> dict[_Key, Any]:
        machine = self._machines[group.machine]
        names = ", ".join(machine.column(c) for c in machine.columns)
        rows = cursor.rows(f"{sql} RETURNING {names}", **given)
        try:
            return {(machine.name, unit.unit_id): unit for unit in map(self._decoders[machine.unit], rows)}
        except UNREADABLE as error:  # somebody's SQL, since the unit was claimed
            raise LedgerRefused(f"a column cannot be read: {error}") from error

    def _moves(self, cursor: Cursor, moves: list[Change]) -> None:
        if not moves:
            return
        groups = _groups(self._database, moves)
        sealing = self._sealing(groups)
        for name, table in sorted({(m.machine.name, m.machine.table) for m in moves}, key=lambda pair: pair[1]):
            ids = [m.unit_id for m in moves if m.machine.name == name]
            lock(self._database, cursor, table, ids, keys=name in sealing)
        lost, _ = self._update(cursor, groups)
        missed = [m for m in moves if _key(m) in lost]
        if missed or len({_key(m) for m in moves}) != len(moves):
            names = ", ".join(f"{m.machine.name}:{m.unit_id}" for m in (missed or moves)[:3])
            msg = f"{names} changed since it was read"
            raise OthersMissed(msg)

    def _insert(self, cursor: Cursor, newborns: Sequence[Newborn]) -> list[str]:
        groups: dict[tuple[str, bool], list[Newborn]] = {}
        for newborn in newborns:
            groups.setdefault((newborn.machine.name, newborn.if_absent), []).append(newborn)
        born: list[str] = []
        for (name, if_absent), group in groups.items():
            sql = self._statement("insert", name, (), if_absent)
            text = statements.batch_text([n.row for n in group])
            born += [row[0] for row in cursor.rows(sql, batch=text, **self._database.bind_now())]
        return born

    def _write(self, cursor: Cursor, winners: Sequence[PreparedOutcome]) -> None:
        for statement in statements_of(w for e in winners for w in e.writes):
            sql, given = statements.upsert(self._database, *statement)
            cursor.run(sql, **given)
        for amend in [a for e in winners for a in e.updates]:
            sql, given = statements.update_rows(self._database, amend.rows, amend.values)
            cursor.run(sql, **given)

    def _require(self, cursor: Cursor, winners: Sequence[PreparedOutcome]) -> None:
        """Nobody holds these rows still: what another is about to change counts as it was before."""
        for entry in winners:
            for rows in entry.only_if_absent:
                sql, given = statements.any_row(self._database, rows)
                if cursor.rows(sql, **given):
                    named = ", ".join(f"{name} = {value}" for name, value in rows.where.items())
                    unit = f"{entry.change.machine.name}:{entry.change.unit_id}"
                    raise OthersMissed(f"{unit}: {rows.table.name} has a row with {named}")

    def _events(self, cursor: Cursor, winners: Sequence[PreparedOutcome]) -> None:
        rows = [row for e in winners for row in e.events]
        if rows:
            insert_events(self._database, cursor, rows)

    def _unlocked(self, cursor: Cursor, entries: Sequence[PreparedOutcome]) -> set[tuple[str, str]]:
        """The units of the batch that nobody else holds a lock on; they are locked now."""
        free: set[tuple[str, str]] = set()
        for machine in sorted({e.change.machine.name for e in entries}, key=lambda n: self._machines[n].table):
            ids = [[e.change.unit_id] for e in entries if e.change.machine.name == machine]
            sql = statements.lock_units(self._database, self._machines[machine].table) + " SKIP LOCKED"
            free.update((machine, row[0]) for row in cursor.rows(sql, batch=statements.batch_text(ids)))
        return free

    def _ensure_gates(self, cursor: Cursor, gates: set[str]) -> None:
        fresh = sorted(gates - self._known_gates)
        if fresh:
            self._make_gates(cursor, fresh)

    def _make_statement(
        self, kind: str, name: str, changed: tuple[str, ...], flag: bool, alike: tuple[int, ...] = ()
    ) -> str:
        machine = self._machines[name]
        table = table_of(self._database, machine)
        if kind == "insert":
            return statements.insert_units(self._database, machine, table, if_absent=flag)
        return statements.update_units(self._database, machine, table, changed, keep_claim=flag, alike=alike)


Statement = tuple[sa.Table, tuple[str, ...], statements.Mode, list[Sequence[Any]] | statements.Columns]


def statements_of(writes: Iterable[Write]) -> Iterator[Statement]:
    """Table, columns, mode and rows of as few statements as come to the same as writing row by row.

    One statement cannot touch a key twice: the last row of a key wins, or the first where conflicts are ignored. A key
    that comes again with other columns or in another mode, or where the newer wins, begins a new round of its table.
    Rows that are lists come after the others: many are a statement of their own, few share one, as the pages of a
    batch do.
    """
    lists = []
    groups: dict[Any, tuple[sa.Table, dict[Any, Sequence[Any]]]] = {}
    rounds: dict[tuple[bool, str], list[dict[Any, Any]]] = {}
    apart: set[str] = set()
    for write in writes:
        table, mode = write.table, (write.on_conflict, write.newer, tuple(write.first))
        settled = write.newer is None and not write.first
        keys = [c.name for c in table.primary_key]
        if write.columns is not None and (table.name in apart or not (settled and _is_page(write, keys))):
            apart.add(table.name)
            given: Any = write.rows
            lists.append((table, tuple(write.columns), mode, given))
            continue
        listed = write.columns is not None
        shapes = rounds.setdefault((listed, table.name), [{}])
        shape: Any = (None, mode)
        rows: dict[Any, Sequence[Any]] | None = None
        for names, key, values in _keyed(write, keys):
            # Made anew only where it differs: rows of one write mostly have one shape, and are many.
            if names != shape[0]:
                shape, rows = (names, mode), None
            if (not settled and key in shapes[-1]) or shapes[-1].setdefault(key, shape) != shape:
                shapes.append({key: shape})
                rows = None
            if rows is None:
                _, rows = groups.setdefault((listed, table.name, len(shapes), shape), (table, {}))
            place: Any = len(rows) if mode[0] == "error" else key
            if mode[0] == "update" or place not in rows:
                rows[place] = values
    for (_, _, _, (columns, how)), (table, found) in sorted(groups.items(), key=lambda group: group[0][0]):
        yield table, columns, how, [*found.values()]
    yield from lists


def _is_page(write: Write, keys: Sequence[str]) -> bool:
    """Whether rows that are lists are so few that a statement of their own would cost more than looking at each."""
    named = write.columns or ()
    return len(write.rows) < statements.ALIKE_FROM and write.on_conflict != "error" and all(k in named for k in keys)


def _keyed(write: Write, keys: Sequence[str]) -> Iterator[tuple[tuple[str, ...], tuple[Any, ...], Sequence[Any]]]:
    """Columns, key and values of each row."""
    rows: Any = write.rows
    if write.columns is None:
        return ((tuple(row), tuple([row.get(k) for k in keys]), [*row.values()]) for row in rows)
    names = tuple(write.columns)
    places = [names.index(k) for k in keys]
    return ((names, tuple([row[place] for place in places]), row) for row in rows)


_EVENT_COLUMNS = ("tenant_id", "event_key", "event_type", "severity", "payload", "machine", "unit_id", "correlation_id")


def insert_events(database: Database, cursor: Cursor, rows: Sequence[Sequence[Any]]) -> None:
    """Append events; one whose (key, tenant) is there already changes nothing. Rows may leave the correlation out."""
    if PATTERNS:
        rows = [[redact(value) if type(value) is str else value for value in row] for row in rows]
    columns = _EVENT_COLUMNS[: len(rows[0])]
    source = statements.batch(database, {n: event_log.c[n].type for n in columns})
    names = ", ".join(columns)
    picks = ", ".join(f"n_{n}" for n in columns)
    cursor.run(
        f"INSERT INTO event_log ({names}, created_at) SELECT {picks}, {database.now_sql} FROM {source}"
        " WHERE true ON CONFLICT DO NOTHING",
        batch=statements.batch_text(rows),
        **database.bind_now(),
    )

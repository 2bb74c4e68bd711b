"""The kernel's set-based statements, written once for both databases.

A batch is one JSON parameter, an array of arrays. `batch(columns)` makes it a row source whose columns are named
`n_<column>`, so that they never collide with the table's. Identifiers come from validated machines only.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from penstock.ledger.store.database import Database
from penstock.model.machine import Actor, Machine
from penstock.model.outcome import Where
from penstock.model.state import Meaning
from penstock.model.unit import FORGIVEN, NO_GATE

if TYPE_CHECKING:
    import sqlalchemy as sa

SqlType: TypeAlias = "str | sa.types.TypeEngine[Any]"
"""The type of a column: its own, or by its name in SQL, so that who reads a few units does without SQLAlchemy."""
TEXT = "TEXT"
INTEGER = "INTEGER"
BIGINT = "BIGINT"
INSTANT = "TIMESTAMP WITH TIME ZONE"
_encode = msgspec.json.Encoder().encode


def postgres_type(kind: SqlType) -> str:
    """What PostgreSQL calls a type."""
    return kind if isinstance(kind, str) else str(kind.compile(_postgres()))


@functools.cache
def _postgres() -> sa.Dialect:
    from sqlalchemy.dialects import postgresql

    return postgresql.dialect()  # type: ignore[no-untyped-call]


def batch(
    database: Database,
    columns: Mapping[str, SqlType],
    *,
    parameter: str = "batch",
    alike: Collection[int] = (),
    encoded: bool = False,
) -> str:
    """The rows of the parameter `:batch` (made by `batch_text`), as `j`; the `alike` are parameters of their own.

    `encoded`: the parameter is the same as bytes, as `batch_given` makes it where it may be large.
    """
    places = itertools.count()
    if database.dialect == "postgresql":
        picks = ", ".join(
            f"CAST({_alike_name(i) if i in alike else f'e ->> {next(places)}'} AS {postgres_type(k)}) AS n_{name}"
            for i, (name, k) in enumerate(columns.items())
        )
        return f"(SELECT {picks} FROM jsonb_array_elements(CAST(:{parameter} AS jsonb)) AS e) AS j"
    picks = ", ".join(
        f"{_alike_name(i) if i in alike else f'value ->> {next(places)}'} AS n_{name}" for i, name in enumerate(columns)
    )
    # As JSONB a row is parsed once; as text, once for every column.
    text = f"CAST(:{parameter} AS TEXT)" if encoded else f":{parameter}"
    return f"(SELECT {picks} FROM jsonb_each({text})) AS j"


def batch_text(rows: Iterable[Sequence[Any]]) -> str:
    """Rows of plain values as the `:batch` parameter, each in the order of the batch's columns."""
    return _encode(list(rows)).decode()


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows of plain values, column by column."""

    columns: Sequence[Sequence[Any]]

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    def __iter__(self) -> Iterator[Sequence[Any]]:
        return zip(*self.columns, strict=True)

    def rows(self, but: Collection[int] = ()) -> list[Sequence[Any]]:
        """The rows, without some columns."""
        return [*zip(*[column for i, column in enumerate(self.columns) if i not in but], strict=True)]


def batch_given(
    database: Database, given: Sequence[Sequence[Any]] | Columns, alike: Mapping[int, Any], *, encoded: bool = False
) -> dict[str, Any]:
    """The parameters of a batch whose `alike` places are the same in every row; `encoded`: see `batch`."""
    rows = given
    if isinstance(rows, Columns) or alike:
        columns = rows if isinstance(rows, Columns) else Columns([*zip(*rows, strict=True)])
        rows = columns.rows(but=alike)
    as_given = _as_text if database.dialect == "postgresql" else lambda value: value
    text = database.sql.encoded(_encode(rows)) if encoded else batch_text(rows)
    return {"batch": text, **{_alike_name(i)[1:]: as_given(value) for i, value in alike.items()}}


ALIKE_FROM = 200
"""So many rows are looked through for columns that are alike; of fewer, chance would make ever other statements."""


def alike_in(rows: Sequence[Sequence[Any]] | Columns, *, after: int = 0) -> dict[int, Any]:
    """The places, from `after` on, at which all of many rows have the same value, but not all places of a row.

    What they have alike travels once: to take it apart anew for each row is much of what a wide one costs.
    """
    found: dict[int, Any] = {}
    if len(rows) < ALIKE_FROM:
        return found
    columns = rows.columns if isinstance(rows, Columns) else [*zip(*rows, strict=True)]
    for i, column in enumerate(columns):
        value = column[0]
        # Equal is not always the same: True and 1, 0.0 and -0.0.
        if (
            i < after
            or column[-1] != value
            or column.count(value) < len(column)
            or {*map(type, column)} - {type(value)}
        ):
            continue
        if type(value) is not float and not (type(value) is str and "\0" in value):
            found[i] = value
    return found if len(found) < len(columns) else {}


def _alike_name(place: int) -> str:
    return f":alike_{chr(97 + place // 26)}{chr(97 + place % 26)}"


def _as_text(value: Any) -> str | None:
    """As `->>` would give it."""
    return value if value is None or type(value) is str else str(value).lower()


def least_due(due: str, now: str) -> str:
    """A wake-up: now, unless the unit is due before."""
    return f"CASE WHEN {due} IS NULL OR {due} > {now} THEN {now} ELSE {due} END"


def _when_ended(machine: Machine) -> str:
    # Nobody has anything to do with a unit that has ended, whoever asked for it meanwhile.
    return f"WHEN n_status IN ({state_list(machine.terminal)}) THEN NULL " if machine.terminal else ""


def unless_ended(machine: Machine) -> str:
    """The condition, to be added to others, that the unit has not ended."""
    return f" AND t.status NOT IN ({state_list(machine.terminal)})" if machine.terminal else ""


def dead_letters(machine: Machine) -> str:
    """The condition under which a unit is a dead letter. In other words the index of dead letters would not be used."""
    return f"status IN ({state_list(machine.dead)})"


def listed_states(machine: Machine) -> list[str]:
    """The states by which units are listed with an index: few are in them beside all that are done.

    Dead letters have an index of their own. Where workers only pass through, as from queued to sent, an index would cost
    every birth and every claim more than it is worth.
    """
    passed = {str(e.source) for e in machine.edges if Actor.WORKER in e.actors} if machine.driven else set()
    return [
        str(state)
        for state in machine.status
        if state not in machine.terminal
        and state not in machine.dead
        and state.meaning is not Meaning.DONE
        and (state.meaning is Meaning.HOLD or state not in passed)
    ]


def in_listed_states(machine: Machine) -> str:
    """The condition of that index. In other words SQLite would not use it."""
    return f"status IN ({state_list(listed_states(machine))})"


def state_list(states: Iterable[str]) -> str:
    return ", ".join(f"'{s}'" for s in sorted(states))


FENCE = 3
"""By their first columns, id, version and status, rows of a batch find their units: in each row, alike or not."""


def update_units(
    database: Database,
    machine: Machine,
    table: sa.Table,
    changed: Sequence[str],
    *,
    keep_claim: bool,
    alike: Collection[int] = (),
) -> str:
    """Compare-and-set of units: id, version, status and the counters that it changes must match.

    Batch columns: see `entries.Change.row`. The caller appends what it wants to know of those that matched.
    """
    types: dict[str, SqlType] = {
        "unit_id": TEXT,
        "version": BIGINT,
        "_was": TEXT,  # no column of a unit begins like this
        "status": TEXT,
        "changed_by": TEXT,
        "change_reason": TEXT,
    }
    driven = machine.driven
    if driven:
        types |= {"wakes": BIGINT, "due_at": table.c[machine.due].type}
    counted = [name for name in machine.counters if name in changed]
    types |= {f"_was_{name}": table.c[name].type for name in counted}
    types |= {name: table.c[name].type for name in changed}
    sets = [
        "status = n_status",
        "version = t.version + 1",
        "changed_by = n_changed_by",
        "change_reason = n_change_reason",
        f"changed_at = {database.now_sql}",
        *(f"{name} = n_{name}" for name in changed),
    ]
    if driven:
        due = f"t.{machine.due}"
        # A wake-up that came while the unit was claimed is not lost: the earlier of the two moments stands.
        sets.append(
            f"{machine.due} = CASE {_when_ended(machine)}WHEN t.wakes <> n_wakes AND {due} IS NOT NULL AND (n_due_at IS NULL OR {due} < n_due_at)"
            f" THEN {due} ELSE n_due_at END"
        )
        if not keep_claim:
            sets.append("claimed_by = NULL")
        sets += [f"{name} = 0" for name in FORGIVEN if name not in changed]
        kept = "CASE WHEN n_suspicion > 0 THEN t.suspected_in END" if "suspicion" in changed else "NULL"
        sets.append(f"suspected_in = {kept}")
    # A tally leaves the version alone: a counter that a step sets anew is compared by itself.
    uncounted = "".join(f" AND t.{name} IS NOT DISTINCT FROM n__was_{name}" for name in counted)
    return (
        f"UPDATE {machine.table} AS t SET {', '.join(sets)} FROM {batch(database, types, alike=alike)}"
        f" WHERE t.unit_id = n_unit_id AND t.version = n_version AND t.status = n__was{uncounted}"
    )


def insert_units(database: Database, machine: Machine, table: sa.Table, *, if_absent: bool) -> str:
    """Births. Batch columns: every column that is not generated, in table order."""
    names = [machine.column(c) for c in machine.columns if c not in machine.generated()]
    source = batch(database, {n: table.c[n].type for n in names if n != "changed_at"})
    picks = ", ".join(database.now_sql if n == "changed_at" else f"n_{n}" for n in names)
    tail = " ON CONFLICT DO NOTHING" if if_absent else ""
    return f"INSERT INTO {machine.table} ({', '.join(names)}) SELECT {picks} FROM {source} WHERE true{tail} RETURNING unit_id"


Mode = tuple[str, str | None, tuple[str, ...]]
"""What becomes of a row whose key is there: `on_conflict`, `newer` and `first` of `Write`."""


def upsert(
    database: Database, table: sa.Table, names: Sequence[str], mode: Mode, rows: Sequence[Sequence[Any]] | Columns
) -> tuple[str, dict[str, Any]]:
    """Rows of a data table, by its primary key; the statement and its parameters, of plain values."""
    alike = alike_in(rows)
    source = batch(database, {name: table.c[name].type for name in names}, alike=alike, encoded=True)
    picks = ", ".join(f"n_{name}" for name in names)
    into = f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {picks} FROM {source}"
    return f"{into} WHERE true{_on_conflict(table, names, mode)}", batch_given(database, rows, alike, encoded=True)


def _on_conflict(table: sa.Table, names: Sequence[str], mode: Mode) -> str:
    on_conflict, newer, first = mode
    key = [c.name for c in table.primary_key]
    tail = ""
    if on_conflict == "ignore":
        tail = " ON CONFLICT DO NOTHING"
    elif on_conflict == "update":
        sets = ", ".join(f"{n} = excluded.{n}" for n in names if n not in key and n not in first)
        tail = f" ON CONFLICT ({', '.join(key)}) DO " + (f"UPDATE SET {sets}" if sets else "NOTHING")
        if sets and newer is not None:
            there = f"{table.name}.{newer}"
            tail += f" WHERE {there} IS NULL OR excluded.{newer} >= {there}"
    return tail


def update_rows(database: Database, rows: Where, values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Change rows of a data table; the statement and its parameters, of plain values."""
    condition, source, given = _rows(database, rows, values)
    sets = ", ".join(f"{name} = n_set_{name}" for name in values)
    return f"UPDATE {rows.table.name} AS t SET {sets} FROM {source} WHERE {condition}", given


def any_row(database: Database, rows: Where) -> tuple[str, dict[str, Any]]:
    """One row of those, if there is any; the statement and its parameters, of plain values."""
    condition, source, given = _rows(database, rows, {})
    return f"SELECT 1 FROM {rows.table.name} AS t, {source} WHERE {condition} LIMIT 1", given


def _rows(database: Database, rows: Where, values: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Which rows: the condition on `t`, and a batch with what it compares and the values, as source and parameters.

    Values of a list are rows of the batch, each with all that is compared. Compared apart, what is the same in all of
    them looks as if it left few rows, where a planner knows little of a table: it then takes every one of these.
    """
    condition, _, types, row = which(database, Where(rows.table, rows.where, rows.span))
    compared, batched = len(row), [row]
    if rows.among is not None:
        name, listed = rows.among
        types["listed"] = rows.table.c[name].type
        condition = " AND ".join([*filter(None, [condition]), f"t.{name} = n_listed"])
        compared, batched = compared + 1, [[*row, value] for value in listed]
    alike = dict(enumerate(values.values(), start=compared)) if rows.among is not None else {}
    types |= {f"set_{name}": rows.table.c[name].type for name in values}
    given = batch_given(database, [[*one, *values.values()] for one in batched], alike)
    return condition, batch(database, types, alike=alike), given


def which(database: Database, rows: Where) -> tuple[str, dict[str, str], dict[str, SqlType], list[Any]]:
    """Which rows: the condition on `t`, its list of values as a parameter, and a batch of one row with the others."""
    columns = rows.table.c
    parts, given, row = [], {}, []
    types: dict[str, SqlType] = {}
    for name, value in rows.where.items():
        parts.append(f"t.{name} IS NULL" if value is None else f"t.{name} = n_is_{name}")
        if value is not None:
            types[f"is_{name}"] = columns[name].type
            row.append(value)
    if rows.span is not None:
        name, first, last = rows.span
        parts.append(f"t.{name} >= n_from_{name} AND t.{name} < n_to_{name}")
        types |= {f"from_{name}": columns[name].type, f"to_{name}": columns[name].type}
        row += [first, last]
    if rows.among is not None:
        name, listed = rows.among
        source = batch(database, {"value": columns[name].type}, parameter="among")
        parts.append(f"t.{name} IN (SELECT n_value FROM {source})")
        given["among"] = batch_text([[value] for value in listed])
    return " AND ".join(parts), given, types, row


def lock_units(database: Database, table: str, *, keys: bool = False) -> str:
    """Take the row locks of a batch of units in one order, so that committers never deadlock over parents.

    `keys`: also wait for whoever refers to them, and let nobody begin to.
    """
    source = batch(database, {"unit_id": TEXT})
    tail = database.sql.for_update(keys=keys)
    return f"SELECT unit_id FROM {table} WHERE unit_id IN (SELECT n_unit_id FROM {source}) ORDER BY unit_id{tail}"


def wake_units(database: Database, machine: Machine, *, also: str = "") -> str:
    """Bring units' attention forward to now, touching neither their version nor their claim; not those that ended."""
    source = batch(database, {"unit_id": TEXT})
    due = least_due("t." + machine.due, database.now_sql)
    return (
        f"UPDATE {machine.table} AS t SET {machine.due} = {due}, wakes = t.wakes + 1{also}"
        f" WHERE t.unit_id IN (SELECT n_unit_id FROM {source}){unless_ended(machine)} RETURNING unit_id"
    )


def is_open(now: str, gate: str = "g") -> str:
    """The condition under which a gate lets anybody through.

    One whose time was noticed to be over stays open where the clock is then set back, as claims find it (`gate_walk`).
    """
    return f"{gate}.held_by IS NULL AND COALESCE({gate}.shut_until <= {now}, true)"


def under(prefix: str) -> tuple[str, Mapping[str, Any]]:
    """The condition for a gate of that name or below it, and its parameters."""
    sql = f"gate_id <> '{NO_GATE}' AND (gate_id = :prefix OR substr(gate_id, 1, {len(prefix) + 1}) = :below)"
    return sql, {"prefix": prefix, "below": f"{prefix}/"}


def waiting(due: str, alias: str = "", *, suspects: bool = False) -> str:
    """The condition under which a unit waits for its claim. Suspects wait apart, and have an index of their own."""
    dot = f"{alias}." if alias else ""
    free = f"{dot}{due} IS NOT NULL AND {dot}claimed_by IS NULL AND {dot}parked_at IS NULL"
    return f"{free} AND {dot}suspicion {'> 0' if suspects else '= 0'}"


def waiting_by_moment(due: str, alias: str = "") -> str:
    """The same, of all gates in the order of their moments.

    In other words, so that a planner takes the index for nothing else: gate by gate it would read all that waits.
    """
    dot = f"{alias}." if alias else ""
    return f"{dot}{due} IS NOT NULL AND {dot}claimed_by IS NULL AND {dot}parked_at IS NULL AND {dot}suspicion + 0 = 0"


def accused(due: str, alias: str = "") -> str:
    """The suspects of one claim: those whose suspicion lies between `:low` and `:high`."""
    return f"{waiting(due, alias, suspects=True)} AND {alias and alias + '.'}suspicion BETWEEN :low AND :high"


def least_due_of_suspects(machine: Machine) -> str:
    """The earliest schedule of the machine's suspects, whatever their gates."""
    return f"(SELECT min({machine.due}) FROM {machine.table} WHERE {waiting(machine.due, suspects=True)})"


def release(database: Database, machine: Machine) -> str:
    """Give claimed units back; those whose step had begun are in doubt.

    One version further the claim is still the same: an intent was committed whose answer nobody waited for.
    """
    types: dict[str, SqlType] = {
        "unit_id": TEXT,
        "version": BIGINT,
        "begun": BIGINT,
    }
    # COALESCE keeps the planners from the index on `claimed_by`: they would read the whole batch for every unit held.
    return (
        f"UPDATE {machine.table} AS t SET claimed_by = NULL, version = t.version + 1, doubts = t.doubts + n_begun"
        f" FROM {batch(database, types)} WHERE t.unit_id = n_unit_id AND t.version BETWEEN n_version AND n_version + 1"
        " AND COALESCE(t.claimed_by, '') = :worker"
    )


def begins_sql(database: Database, column: str, prefix: str) -> str:
    """The condition that a text begins with these ASCII characters. Raises ValueError for others."""
    if not prefix or not prefix.isascii() or "'" in prefix:
        msg = f"{prefix!r} cannot be looked for as a beginning; give ASCII characters without a quote"
        raise ValueError(msg)
    if database.dialect == "postgresql":
        return f"substr({column}, 1, {len(prefix)}) = '{prefix}'"
    # A range, which SQLite finds in an index: it compares texts byte by byte.
    after = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    return f"{column} >= '{prefix}' AND {column} < '{after}'"

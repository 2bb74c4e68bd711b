"""Which unit killed a worker: whatever a dead worker held is under suspicion, and only what it held alone is convicted.

A worker that dies says nothing. Each unit it held gains a `suspicion` and a doubt. Suspects are claimed apart from the
others and a few at a time, the fewer the more deaths they have seen (see `runtime.quarantine`), and a step that ends
clears its unit. The only suspect of a dead worker, or the only unit that it held, is charged a crash. At the third in a
row it is parked, and what had died with it is cleared. Where workers die meanwhile and nobody knows why, that proves
nothing: half of those deaths at least must be its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from typing import NamedTuple

from penstock.ledger.commit import insert_events
from penstock.ledger.parking import parked_alert
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database, present
from penstock.model.clock import instant_text
from penstock.model.machine import Actor

CRASH_LIMIT = 3
#: `suspected_in` names the last of the deaths, by the ids of the workers, which are all of this length.
_ID = 20
_KILLED = "its step killed"
_KEPT = 8


class Table(NamedTuple):
    """The table of a driven machine, and its column of the schedule."""

    machine: str
    name: str
    due: str


class Suspect(NamedTuple):
    """A unit that a dead worker held, as it is now."""

    machine: str
    table: str
    due: str
    unit_id: str
    version: int
    crashes: int
    suspicion: int
    deaths: list[str]


def free(database: Database, cursor: Cursor, tables: Iterable[Table], gone: Collection[str]) -> int:
    """Free what workers held that the machine's restart ended: in doubt, but under no suspicion; how many units."""
    source = statements.batch(database, {"unit_id": statements.TEXT})
    sets = "claimed_by = NULL, version = version + 1, doubts = doubts + 1"
    which = f"claimed_by IN (SELECT n_unit_id FROM {source})"
    given = statements.batch_text([[worker] for worker in gone])
    if not gone:
        return 0
    return sum(cursor.run(f"UPDATE {table} SET {sets} WHERE {which}", batch=given) for _, table, _ in tables)


def accuse(
    database: Database,
    cursor: Cursor,
    tables: Sequence[Table],
    dead: Collection[str],
    *,
    settle: timedelta = timedelta(),
) -> int:
    """Free what dead workers held, and put it under suspicion; how many units. None is due before `settle` is over."""
    died: dict[str, list[Suspect]] = {}
    given = {"batch": statements.batch_text([[d] for d in dead])}
    if settle:
        given["settled"] = instant_text(present(database, cursor) + settle)
    for name, table, due in tables if dead else ():
        rows = cursor.rows(_accuse(database, table, due if settle else None), **given)
        for unit_id, version, crashes, suspicion, deaths in rows:
            suspect = Suspect(name, table, due, unit_id, version, crashes, suspicion, str(deaths).split())
            died.setdefault(suspect.deaths[-1], []).append(suspect)
    for held in died.values():
        known = [suspect for suspect in held if suspect.suspicion > 1] or held
        if len(known) == 1:
            _charge(database, cursor, tables, known[0])
    return sum(map(len, died.values()))


def _accuse(database: Database, table: str, due: str | None = None) -> str:
    settled = database.sql.instant("settled")
    later = f", {due} = CASE WHEN {due} < {settled} THEN {settled} ELSE {due} END" if due else ""
    source = statements.batch(database, {"unit_id": statements.TEXT})
    deaths = "CASE WHEN suspicion = 0 THEN claimed_by ELSE COALESCE(suspected_in || ' ', '') || claimed_by END"
    length = (_ID + 1) * _KEPT - 1
    last = database.sql.last_characters(deaths, length)
    return (
        f"UPDATE {table} SET claimed_by = NULL, version = version + 1, doubts = doubts + 1, suspicion = suspicion + 1,"
        f" suspected_in = {last}{later} WHERE claimed_by IN (SELECT n_unit_id FROM {source})"
        " RETURNING unit_id, version, crashes, suspicion, suspected_in"
    )


def _charge(database: Database, cursor: Cursor, tables: Sequence[Table], suspect: Suspect) -> None:
    """The worker's only suspect: one more crash is its own.

    A known suspect goes to the end of the line. Where workers die of something else, the next death is another's.
    """
    ref = f"{suspect.machine}:{suspect.unit_id}"
    suspect = _without_survivors(cursor, suspect, ref)
    cursor.run("UPDATE worker SET charged = :ref WHERE id = :worker", ref=ref, worker=suspect.deaths[-1])
    crashes = suspect.crashes + 1
    if crashes >= CRASH_LIMIT and _others_die_too(cursor, tables, suspect):
        crashes = CRASH_LIMIT - 1
    given = {"crashes": crashes, "unit_id": suspect.unit_id, "version": suspect.version, **database.bind_now()}
    change = f"UPDATE {suspect.table} SET crashes = :crashes, version = version + 1"
    if suspect.suspicion > 1:
        due, now = suspect.due, database.now_sql
        change += f", {due} = CASE WHEN {due} < {now} THEN {now} ELSE {due} END"
    which = "WHERE unit_id = :unit_id AND version = :version"
    if crashes < CRASH_LIMIT:
        still = {"suspicion": suspect.suspicion, "deaths": " ".join(suspect.deaths)}
        cursor.run(f"{change}, suspicion = :suspicion, suspected_in = :deaths {which}", **given, **still)
        return
    reason = f"{_KILLED} {crashes} workers in a row"
    parked = f"parked_at = {database.now_sql}, parked_reason = :reason, suspicion = 0, suspected_in = NULL"
    cursor.run(f"{change}, {parked} {which}", reason=reason, **given)
    insert_events(database, cursor, [parked_alert(suspect.machine, suspect.unit_id, suspect.version + 1, reason)])
    for _, table, _ in tables:
        clear = f"UPDATE {table} SET suspicion = 0, suspected_in = NULL, version = version + 1 WHERE {_FREE}"
        cursor.run(f"{clear} AND ({_any_of(suspect.deaths)})", **_named(suspect.deaths))


def _without_survivors(cursor: Cursor, suspect: Suspect, ref: str) -> Suspect:
    """The suspect without the deaths of workers that said later that they live, when others held the unit already."""
    sql = (
        f"SELECT id, charged FROM worker WHERE stopped_at IS NOT NULL AND id IN ({', '.join(_places(suspect.deaths))})"
    )
    alive = {str(worker): charged == ref for worker, charged in cursor.rows(sql, **_named(suspect.deaths))}
    return suspect._replace(
        crashes=max(0, suspect.crashes - sum(alive.values())),
        suspicion=max(1, suspect.suspicion - len(alive)),
        deaths=[death for death in suspect.deaths if death not in alive],
    )


def _others_die_too(cursor: Cursor, tables: Sequence[Table], suspect: Suspect) -> bool:
    """Whether more workers than its own three have died since, of which nobody knows why.

    While others get something done, a death is known to be another unit's that was charged with two in a row.
    """
    own = suspect.deaths[-CRASH_LIMIT:]
    first = f"(SELECT min(reaped_at) FROM worker WHERE id IN ({', '.join(_places(own))}))"
    others = f"SELECT id, charged FROM worker WHERE stopped_at IS NULL AND reaped_at >= {first}"
    died = [charged for worker, charged in cursor.rows(others, **_named(own)) if worker not in own]
    at_work = f"SELECT 1 FROM worker WHERE commit_seq > 0 AND (reaped_at IS NULL OR reaped_at >= {first}) LIMIT 1"
    if len(died) > CRASH_LIMIT and cursor.rows(at_work, **_named(own)):
        guilty = _charged_twice(cursor, tables, {str(charged) for charged in died if charged is not None})
        died = [charged for charged in died if charged not in guilty]
    return len(died) > CRASH_LIMIT


def _charged_twice(cursor: Cursor, tables: Sequence[Table], refs: Collection[str]) -> set[str]:
    """Those of the units that were charged with two deaths or more, and that no step has cleared since."""
    known = {table.machine: table.name for table in tables}
    found = set()
    for ref in refs:
        machine, _, unit_id = ref.partition(":")
        crashed = f"unit_id = :unit_id AND crashes >= {CRASH_LIMIT - 1}"
        if machine in known and cursor.rows(f"SELECT 1 FROM {known[machine]} WHERE {crashed}", unit_id=unit_id):
            found.add(ref)
    return found


def clear_survivor(database: Database, cursor: Cursor, tables: Iterable[Table], worker: str) -> None:
    """The worker lost its lease and lives: what it held is under no suspicion for that, and none of it is charged."""
    ((charged,),) = cursor.rows("SELECT charged FROM worker WHERE id = :worker", worker=worker) or [(None,)]
    machine, _, unit_id = (charged or "").partition(":")
    for name, table, _ in tables:
        without = "NULLIF(trim(replace(replace(suspected_in, :death_a, ''), '  ', ' ')), '')"
        cursor.run(
            f"UPDATE {table} SET suspicion = suspicion - 1, suspected_in = {without}, version = version + 1"
            f" WHERE {_FREE} AND {_any_of([worker])}",
            **_named([worker]),
        )
        if name == machine:
            blamed = f"parked_reason LIKE '{_KILLED} %'"
            freed = {
                "parked_at": "NULL",
                "parked_reason": "NULL",
                # Without its moment it would count as never parked.
                "changed_at": database.now_sql,
                "changed_by": ":by",
                "change_reason": ":says",
            }
            sets = [f"{column} = CASE WHEN {blamed} THEN {value} ELSE {column} END" for column, value in freed.items()]
            cursor.run(
                f"UPDATE {table} SET crashes = crashes - 1, version = version + 1, {', '.join(sets)}"
                " WHERE unit_id = :unit_id AND crashes > 0 AND claimed_by IS NULL",
                unit_id=unit_id,
                by=f"{Actor.WORKER}:{worker}",
                says="taken up again: the worker that held it lives",
                **database.bind_now(),
            )


# Of a unit that is claimed the holder's commit decides.
_FREE = "suspicion > 0 AND claimed_by IS NULL"


def _places(deaths: Sequence[str]) -> list[str]:
    return [f":death_{chr(97 + i)}" for i in range(len(deaths))]


def _named(deaths: Sequence[str]) -> dict[str, str]:
    return {place[1:]: death for place, death in zip(_places(deaths), deaths, strict=True)}


def _any_of(deaths: Sequence[str]) -> str:
    return " OR ".join(f"suspected_in LIKE '%' || CAST({place} AS TEXT) || '%'" for place in _places(deaths))

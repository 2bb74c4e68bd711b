"""The outbox: which events are to be delivered to whom, and how far that has come.

`subscription` says who wants which events. A trigger of `event_log` gives birth to one unit of the machine `delivery`
for each subscriber that wants the event, in the transaction that writes it: whoever writes, an older program or a
person at a SQL prompt included, no event can be committed without its deliveries. The trigger comes with the machine; a
ledger without subscribers has neither.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.ledger.delivery import D, Delivery, gate_of, machine
from penstock.ledger.schema.triggers_postgres import PLANNER, function
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database
from penstock.model.clock import instant_text, parse_instant
from penstock.model.errors import UsageError
from penstock.model.unit import unit_id_of

ANY = "*"
SEVERITIES = ("info", "warning", "critical")
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,62}\Z")
_REPLAY_AT_ONCE = 5_000


def installed(cursor: Cursor) -> bool:
    """Whether the ledger has the machine: a program with subscribers has been there."""
    return bool(cursor.rows("SELECT 1 FROM machine_definition WHERE name = :name", name=machine.name))


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event as subscribers and commands see it; `(tenant_id, event_key)` names it for ever."""

    tenant_id: str
    event_key: str
    event_type: str
    severity: str | None
    payload: Any
    machine: str | None
    unit_id: str | None
    correlation_id: str | None
    created_at: datetime


_EVENT = "tenant_id, event_key, event_type, severity, payload, machine, unit_id, correlation_id, created_at"


def _event(row: Sequence[Any]) -> EventRow:
    payload = json.loads(row[4]) if isinstance(row[4], str) else row[4]
    created = parse_instant(row[8]) if isinstance(row[8], str) else row[8]
    return EventRow(row[0], row[1], row[2], row[3], payload, row[5], row[6], row[7], created)


def read_event(database: Database, tenant_id: str, event_key: str) -> EventRow | None:
    """The event of that name; None when there is none any more."""
    sql = f"SELECT {_EVENT} FROM event_log WHERE tenant_id = :tenant AND event_key = :key"
    rows = database.read(lambda cursor: cursor.rows(sql, tenant=tenant_id, key=event_key))
    return _event(rows[0]) if rows else None


@dataclass(frozen=True, slots=True)
class Listed:
    """An event and what became of it: subscriber to status."""

    event: EventRow
    deliveries: Mapping[str, str]


def list_events(
    database: Database,
    *,
    most: int = 50,
    alerts: bool = False,
    after: tuple[datetime, str] | None = None,
) -> list[Listed]:
    """The newest events, or the newest alerts, with their deliveries; those that follow `after` (moment and key)."""
    parts, values = ["severity IS NOT NULL"] if alerts else [], dict[str, str]()
    if after is not None:
        moment = database.sql.instant("moment")
        parts.append(f"(created_at < {moment} OR created_at = {moment} AND event_key > :key)")
        values |= {"moment": instant_text(after[0]), "key": after[1]}
    which = f" WHERE {' AND '.join(parts)}" if parts else ""

    def work(cursor: Cursor) -> list[Listed]:
        rows = cursor.rows(
            f"SELECT {_EVENT} FROM event_log{which} ORDER BY created_at DESC, event_key LIMIT :most",
            most=most,
            **values,
        )
        events = [_event(row) for row in rows]
        found: dict[tuple[str, str], dict[str, str]] = {}
        if events and installed(cursor):
            for subscriber, tenant, key, status in _deliveries(database, cursor, events):
                found.setdefault((tenant, key), {})[subscriber] = status
        return [Listed(e, found.get((e.tenant_id, e.event_key), {})) for e in events]

    return database.read(work)


def _deliveries(database: Database, cursor: Cursor, events: Iterable[EventRow]) -> list[Sequence[Any]]:
    # Of everybody who ever subscribed: each has a gate, and what they were told stays.
    own = gate_of("")
    gates = cursor.rows("SELECT gate_id FROM gate WHERE substr(gate_id, 1, :size) = :own", size=len(own), own=own)
    names = [str(row[0]).removeprefix(own) for row in gates]
    wanted = [[_unit_id(name, e)] for e in events for name in names]
    source = statements.batch(database, {"unit_id": statements.TEXT})
    return cursor.rows(
        f"SELECT subscriber, tenant_id, event_key, status FROM {machine.table}"
        f" WHERE unit_id IN (SELECT n_unit_id FROM {source}) ORDER BY subscriber",
        batch=statements.batch_text(wanted),
    )


def _unit_id(subscriber: str, event: EventRow) -> str:
    return unit_id_of(Delivery(subscriber=subscriber, tenant_id=event.tenant_id, event_key=event.event_key))


def subscribers(database: Database) -> list[str]:
    """Everybody who subscribes to events of this ledger, or did and has deliveries left."""

    def work(cursor: Cursor) -> list[str]:
        sql = "SELECT subscriber FROM subscription"
        if installed(cursor):
            sql += f" UNION SELECT subscriber FROM {machine.table} WHERE status IN ('{D.PENDING}', '{D.DEAD}')"
        return sorted({str(r[0]) for r in cursor.rows(sql)})

    return database.read(work)


def subscribed(database: Database) -> list[str]:
    """Everybody who subscribes now."""
    sql = "SELECT DISTINCT subscriber FROM subscription ORDER BY 1"
    return [str(row[0]) for row in database.read(lambda cursor: cursor.rows(sql))]


def dead_letters(database: Database, subscriber: str | None = None) -> list[str]:
    """The ids of the deliveries that are dead, oldest first."""
    which = "" if subscriber is None else " AND subscriber = :subscriber"
    names = {} if subscriber is None else {"subscriber": subscriber}
    sql = f"SELECT unit_id FROM {machine.table} WHERE status = 'dead'{which} ORDER BY changed_at, unit_id"
    return [str(r[0]) for r in database.read(lambda cursor: cursor.rows(sql, **names))]


def check_wish(subscriber: str, kinds: Collection[str], severities: Collection[str]) -> None:
    """Raise UsageError unless somebody of that name can want these events."""
    if not _NAME.match(subscriber):
        msg = f"subscriber {subscriber!r} must be lower case letters, digits, '_', '-' and '.', at most 63 characters"
        raise UsageError(msg)
    if isinstance(kinds, str) or not kinds or not all(isinstance(k, str) and k for k in kinds):
        msg = f"subscriber {subscriber!r} names no kinds of events; name them, or write '*' for all"
        raise UsageError(msg)
    unknown = sorted(set(severities) - set(SEVERITIES))
    if unknown:
        msg = f"subscriber {subscriber!r} wants the severity {unknown[0]!r}; severities are {', '.join(SEVERITIES)}"
        raise UsageError(msg)


def subscribe(database: Database, subscriber: str, kinds: Collection[str], severities: Collection[str] = ()) -> bool:
    """From now on the subscriber gets events of these kinds (`*` is any) and severities (none named is any).

    Every event that is committed after this returns is delivered; earlier ones are not, but see `replay`. Any number
    of processes may say the same at once. Returns whether anything changed.
    """
    check_wish(subscriber, kinds, severities)
    wanted = {(kind, severity) for kind in kinds for severity in (severities or (ANY,))}
    return _change(database, subscriber, wanted)


def unsubscribe(database: Database, subscriber: str) -> bool:
    """No further events for the subscriber; what is pending stays."""
    return _change(database, subscriber, set())


def _change(database: Database, subscriber: str, wanted: set[tuple[str, str]]) -> bool:
    sql = "SELECT event_type, severity FROM subscription WHERE subscriber = :subscriber"

    def there(cursor: Cursor) -> set[tuple[str, str]]:
        return {(str(k), str(s)) for k, s in cursor.rows(sql, subscriber=subscriber)}

    def work(cursor: Cursor) -> bool:
        # Waits for transactions that have written events without having seen the change, and keeps others off.
        database.sql.lock_events(cursor)
        found = there(cursor)
        cursor.run("INSERT INTO gate (gate_id) VALUES (:gate) ON CONFLICT DO NOTHING", gate=gate_of(subscriber))
        for kind, severity in sorted(found - wanted):
            cursor.run(
                "DELETE FROM subscription"
                " WHERE subscriber = :subscriber AND event_type = :kind AND severity = :severity",
                subscriber=subscriber,
                kind=kind,
                severity=severity,
            )
        for kind, severity in sorted(wanted - found):
            cursor.run(
                "INSERT INTO subscription (subscriber, event_type, severity, since)"
                f" VALUES (:subscriber, :kind, :severity, {database.now_sql})",
                subscriber=subscriber,
                kind=kind,
                severity=severity,
                **database.bind_now(),
            )
        return found != wanted

    return database.read(there) != wanted and database.write(work)


def replay(database: Database, subscriber: str, since: datetime) -> int:
    """Deliver older events, from that instant on, to a subscriber that came later; how many deliveries were born.

    What was delivered, or waits, is left as it is: saying it twice is harmless.
    """
    cast = database.sql.instant("since")
    sql = _born(f"event_log AS e JOIN subscription AS s ON {_matches('e')}") + (
        f" AND s.subscriber = :subscriber AND e.created_at >= {cast} AND {_unborn('e')}"
        f" LIMIT {_REPLAY_AT_ONCE} ON CONFLICT DO NOTHING"
    )
    born = 0
    while True:
        some = database.write(lambda c: c.run(sql, subscriber=subscriber, since=instant_text(since)))
        born += some
        if some < _REPLAY_AT_ONCE:
            return born


def _matches(event: str) -> str:
    """Whether the subscription `s` wants the event.

    What the outbox says of itself is never delivered: a dead letter would bring forth the next one, for ever.
    """
    own = f"COALESCE({event}.machine, '') <> '{machine.name}'"
    return (
        f"s.event_type IN ({event}.event_type, '{ANY}') AND s.severity IN (COALESCE({event}.severity, ''), '{ANY}')"
        f" AND {own}"
    )


def _key(event: str) -> str:
    """The id of the delivery of an event to the subscriber `s`, whose name needs no encoding."""
    parts = (f"replace(replace({event}.{name}, '%', '%25'), '/', '%2F')" for name in ("tenant_id", "event_key"))
    return " || '/' || ".join(("s.subscriber", *parts))


def _unborn(event: str) -> str:
    return f"NOT EXISTS (SELECT 1 FROM {machine.table} AS d WHERE d.unit_id = {_key(event)})"


def _born(source: str, event: str = "e", *, table: str = machine.table) -> str:
    """The births of deliveries, from events and the subscriptions `s` that want them."""
    # A subscriber may want an event by two of its subscriptions, hence DISTINCT.
    return (
        f"INSERT INTO {table} (unit_id, subscriber, tenant_id, event_key, status, changed_by, change_reason,"
        f" changed_at, due_at, gate_id) SELECT DISTINCT {_key(event)}, s.subscriber, {event}.tenant_id,"
        f" {event}.event_key, '{D.PENDING}', 'scheduler:outbox', {event}.event_type, {event}.created_at,"
        f" {event}.created_at, '{gate_of('')}' || s.subscriber FROM {source} WHERE true"
    )


_TRIGGER = "penstock_event_deliver"


def sqlite_triggers() -> dict[str, str]:
    """Name to statement of the trigger that comes with the machine."""
    return {
        _TRIGGER: f"""CREATE TRIGGER {_TRIGGER} AFTER INSERT ON event_log
WHEN EXISTS (SELECT 1 FROM subscription AS s WHERE {_matches("NEW")})
BEGIN
  {_born("subscription AS s", "NEW")} AND {_matches("NEW")} AND {_unborn("NEW")};
END"""
    }


def postgres_functions(schema: str) -> dict[str, str]:
    """Name to statement of the function behind the trigger."""
    source = f"written AS e JOIN {schema}.subscription AS s ON {_matches('e')}"
    body = f"""
BEGIN
  IF EXISTS (SELECT 1 FROM {schema}.subscription) THEN
    {_born(source, table=f"{schema}.{machine.table}")} ON CONFLICT DO NOTHING;
  END IF;
  RETURN NULL;
END """
    return {_TRIGGER: function(schema, _TRIGGER, body, settings=PLANNER)}


def postgres_triggers(schema: str) -> dict[str, tuple[str, str]]:
    """Name to (table, statement) of the trigger that comes with the machine."""
    return {
        _TRIGGER: (
            "event_log",
            f"""AFTER INSERT ON {schema}.event_log REFERENCING NEW TABLE AS written
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.{_TRIGGER}()""",
        )
    }

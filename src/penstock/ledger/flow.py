"""How units flow: which edges were taken how often, how many units stood where at an instant, how long they stay.

Whole hours are read from `flow_hour`, the rest of a window from the history, and what `roll_up` has not counted yet
from the history's newest rows. Where the history of the hour that an instant lies in was pruned, counts at that instant
are those at the beginning of the hour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from msgspec import Struct

from penstock.ledger.roll_up import COUNTED, bookmark, newest
from penstock.ledger.store.database import Cursor, Database
from penstock.model.clock import instant, instant_text
from penstock.model.machine import Machine
from penstock.model.state import Meaning

HOUR = timedelta(hours=1)
SAMPLE = 200
"""So many of the newest departures from a state tell how long units stay in it."""
_SCANNED = 3_000
_TICK = timedelta(milliseconds=1)  # instants are whole milliseconds
_EDGE = ("machine", "from_status", "to_status", "trigger")
# Not by the index of moments, which SQLite would take: few rows are not yet counted, and many are of the same hours.
_AT = "COALESCE(at, at)"


class Window(Struct, frozen=True):
    """From an instant (None: from the beginning) up to and without another (None: until now), of one machine or all."""

    start: datetime | None = None
    end: datetime | None = None
    machine: str | None = None


class EdgeFlow(Struct, frozen=True):
    """So often an edge was taken. A birth has no `source`, a death no `target`; SQL pulls no `trigger`."""

    machine: str
    source: str | None
    target: str | None
    trigger: str | None
    n: int


class HourFlow(Struct, frozen=True):
    """So many units came into a state within an hour; those that died have no `target`."""

    hour: datetime
    machine: str
    target: str | None
    n: int


class Dwell(Struct, frozen=True):
    """How long units stayed in a state that they left: half of `n` at most `median`."""

    machine: str
    state: str
    n: int
    median: timedelta
    longest: timedelta


class Outcome(Struct, frozen=True):
    """So many units came into a state that is done, and so many into one that is a fault."""

    done: int
    failed: int

    @property
    def rate(self) -> float | None:
        """The share of those that ended well; None where none ended."""
        return self.done / (self.done + self.failed) if self.done + self.failed else None


def at_instant(at: datetime | None, machine: str | None = None) -> Window:
    """All that happened up to and with an instant; None: until now."""
    return Window(None, None if at is None else at + _TICK, machine)


def after(at: datetime, machine: str | None = None) -> Window:
    """All that has happened since an instant, and not at it."""
    return Window(at + _TICK, None, machine)


def edges(database: Database, cursor: Cursor, window: Window) -> list[EdgeFlow]:
    """How often each edge was taken, births and deaths among them."""
    found = _sums(database, cursor, window, _EDGE)
    return [
        EdgeFlow(machine, source or None, target or None, trigger or None, n)
        for (machine, source, target, trigger), n in sorted(found.items())
    ]


def counts_at(
    database: Database, cursor: Cursor, at: datetime | None = None, machine: str | None = None
) -> dict[str, dict[str, int]]:
    """How many units were in each state at an instant, or are now, by machine. A state without units is left out."""
    found: dict[str, Counter[str]] = {}
    for (name, source, target), n in _sums(database, cursor, at_instant(at, machine), _EDGE[:3]).items():
        states = found.setdefault(name, Counter())
        states[target] += n
        states[source] -= n
    return {name: {s: n for s, n in sorted(states.items()) if s and n} for name, states in sorted(found.items())}


def activity(database: Database, cursor: Cursor, window: Window) -> list[HourFlow]:
    """How many units came into which state, hour by hour. Changes that keep the state are not counted."""
    found: Counter[tuple[str, ...]] = Counter()
    for (hour, name, source, target), n in _sums(database, cursor, window, ("hour", *_EDGE[:3])).items():
        if source != target:
            found[hour, name, target] += n
    return [HourFlow(instant(h), name, target or None, n) for (h, name, target), n in sorted(found.items())]


def births(database: Database, cursor: Cursor, window: Window) -> dict[tuple[str, str, datetime], int]:
    """How many units were born, by machine, state and hour."""
    found: Counter[tuple[str, str, datetime]] = Counter()
    for (hour, name, source, target), n in _sums(database, cursor, window, ("hour", *_EDGE[:3])).items():
        if not source and target:
            found[name, target, instant(hour)] += n
    return dict(found)


def outcome(machine: Machine, flows: Iterable[EdgeFlow]) -> Outcome:
    """How the units of a machine ended, by the meaning of the states that they came into."""
    ended = Counter[Meaning]()
    meanings = {str(state): state.meaning for state in machine.status}
    for one in flows:
        if one.machine == machine.name and one.target in meanings and one.source != one.target:
            ended[meanings[one.target]] += one.n
    return Outcome(ended[Meaning.DONE], ended[Meaning.FAULT])


def pruned_before(cursor: Cursor, machine: str) -> datetime | None:
    """From when on the history of a machine's units is whole; None: it always was."""
    sql = "SELECT max(hour) FROM flow_hour WHERE machine = :machine AND pruned > 0"
    ((last,),) = cursor.rows(sql, machine=machine)
    return None if last is None else instant(last) + HOUR


def dwell(database: Database, cursor: Cursor, window: Window, *, sample: int = SAMPLE) -> list[Dwell]:
    """How long units stayed in the states that they left in a window, from the newest rows of the history.

    So many rows are looked at, whatever the window: a state that is left far less often than others may be missing.
    """
    where, values = _sampled(database, cursor, window)
    only, named = bounds(database, "at", None, None, window.machine)
    rows = cursor.rows(
        f"""WITH recent AS (
              SELECT seq, machine, unit_id, from_status, to_status, at, since FROM transition_log WHERE {where}),
            numbered AS (SELECT r.*, row_number() OVER (PARTITION BY machine, from_status ORDER BY seq DESC) AS place
                           FROM recent r WHERE {only} AND from_status IS NOT NULL
                            AND (to_status IS NULL OR to_status <> from_status))
            SELECT n.machine, n.from_status, n.at,
                   COALESCE((SELECT p.at FROM transition_log p WHERE p.machine = n.machine AND p.unit_id = n.unit_id
                       AND p.seq < n.seq AND (p.from_status IS NULL OR p.from_status <> p.to_status)
                     ORDER BY p.seq DESC LIMIT 1), n.since)
              FROM numbered n WHERE n.place <= :sample""",
        sample=sample,
        **values,
        **named,
    )
    spans: dict[tuple[str, str], list[float]] = {}
    for machine, state, left, came in rows:
        if came is not None:
            spans.setdefault((machine, state), []).append(max(0.0, (instant(left) - instant(came)).total_seconds()))
    return [
        Dwell(*key, len(found), timedelta(seconds=median(found)), timedelta(seconds=max(found)))
        for key, found in sorted(spans.items())
    ]


def newest_rows(cursor: Cursor, most: int) -> int:
    """The number after which the newest rows of the history lie, so many at most.

    PostgreSQL finds the end of the history only from a number that is near to it: that of the last row counted.
    """
    return newest(cursor, bookmark(cursor).seq) - most


def _sampled(database: Database, cursor: Cursor, window: Window) -> tuple[str, dict[str, Any]]:
    """The condition for the newest rows of a window. Of one machine: of the newest hour in which its units moved."""
    where, values = bounds(database, "hour", _floor(window.start), window.end, None)
    own = "" if window.machine is None else " AND machine = :machine"
    sums = f"SELECT hour, sum(n), sum(CASE WHEN from_status <> ''{own} THEN n ELSE 0 END) FROM flow_hour"
    named = {} if window.machine is None else {"machine": window.machine}
    hours = cursor.rows(f"{sums} WHERE {where} GROUP BY hour ORDER BY hour DESC", **values, **named)
    moved = [place for place, (_, _, left) in enumerate(hours) if left]
    if window.end is None and (not moved or moved[0] == 0):
        where, values = bounds(database, _AT, window.start, None, None)
        return f"seq > :after AND {where}", {**values, "after": newest_rows(cursor, _SCANNED)}
    begun, ends, total = window.start, window.end, 0
    for hour, n, _ in hours[moved[0] if moved else 0 :]:
        ends = min(filter(None, (ends, instant(hour) + HOUR))) if not total else ends
        begun, total = instant(hour), total + n
        if total >= _SCANNED:
            break
    begun = begun if window.start is None or begun is None else max(window.start, begun)
    where, values = bounds(database, "at", begun, ends, None)
    return f"{where} ORDER BY at DESC LIMIT {_SCANNED}", values


def sampled_from(database: Database, cursor: Cursor, window: Window, most: int = _SCANNED) -> datetime | None:
    """Where the sample begins: as many hours back as hold enough rows, so that no window is read through."""
    where, values = bounds(database, "hour", _floor(window.start), window.end, None)
    rows = cursor.rows(f"SELECT hour, sum(n) FROM flow_hour WHERE {where} GROUP BY hour ORDER BY hour DESC", **values)
    total = 0
    for hour, n in rows:
        total += n
        if total >= most:
            begun: datetime = instant(hour)
            return begun if window.start is None else max(window.start, begun)
    return window.start


def _sums(database: Database, cursor: Cursor, window: Window, columns: Sequence[str]) -> Counter[tuple[str, ...]]:
    """Rows of the history within a window, counted by columns of `flow_hour`."""
    found: Counter[tuple[str, ...]] = Counter()
    told = {name: f"COALESCE({name}, '')" for name in _EDGE[1:]} | {"hour": database.sql.hour("at")}
    places = ", ".join(str(place + 1) for place in range(len(columns)))
    for table, where, values in _parts(database, window, bookmark(cursor).seq):
        picks = ", ".join(columns if table == "flow_hour" else (told.get(name, name) for name in columns))
        many = "sum(n)" if table == "flow_hour" else "count(*)"
        sql = f"SELECT {picks}, {many} FROM {table} WHERE {where} GROUP BY {places}"
        for *key, n in cursor.rows(sql, **values):
            found[tuple(map(_text, key))] += int(n)
    return found


def _parts(database: Database, window: Window, counted: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What a window is made of: table, condition and its values."""
    first, last = _ceiling(window.start), _floor(window.end)
    if first is not None and last is not None and first >= last:
        yield _log(database, "at", window.start, window.end, window.machine)
        return
    where, values = bounds(database, "hour", first, last, window.machine)
    yield "flow_hour", where, values
    table, where, values = _log(database, _AT, first, last, window.machine)
    yield table, f"seq > :counted AND {where}", {**values, "counted": counted}
    if first != window.start:
        yield _log(database, "at", window.start, first, window.machine)
    if last != window.end:
        yield _log(database, "at", last, window.end, window.machine)


def _log(
    database: Database, moment: str, start: datetime | None, end: datetime | None, machine: str | None
) -> tuple[str, str, dict[str, Any]]:
    where, values = bounds(database, moment, start, end, machine)
    return "transition_log", f"{where} AND {COUNTED}", values


def bounds(
    database: Database, moment: str, start: datetime | None, end: datetime | None, machine: str | None
) -> tuple[str, dict[str, Any]]:
    parts, values = ["1 = 1"], {}
    for name, sign, bound in (("low", ">=", start), ("high", "<", end)):
        if bound is not None:
            parts.append(f"{moment} {sign} {database.sql.instant(name)}")
            values[name] = instant_text(bound)
    if machine is not None:
        # Of the history not by the index of units, which would be taken, and has every row of the machine.
        parts.append(f"{'machine' if moment == 'hour' else 'COALESCE(machine, machine)'} = :machine")
        values["machine"] = machine
    return " AND ".join(parts), values


def _floor(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(minute=0, second=0, microsecond=0)


def _ceiling(moment: datetime | None) -> datetime | None:
    low = _floor(moment)
    return low if low is None or low == moment else low + HOUR


def _text(value: Any) -> str:
    if type(value) is str:
        return value
    return instant_text(value) if isinstance(value, datetime) else str(value)

"""Which units are meant: by reference, or by machine and filters. The conditions are SQL, their values are bound."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from penstock.model.clock import instant_text, parse_instant
from penstock.model.errors import BadInstant, UnknownMachine, UnknownUnit, UsageError
from penstock.model.machine import Machine
from penstock.model.near import near
from penstock.model.unit import NO_GATE, Ref, parse_key
from penstock.operations.declare import Ask
from penstock.operations.fields import Parameters, argument, option

if TYPE_CHECKING:
    from penstock.ledger.store.database import Cursor, Database

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_AT_ONCE = 5_000
NOW = "now"


class Filter(Parameters, frozen=True):
    """Units by what is true of them; every filter that is given holds."""

    machine: Annotated[str | None, option("Only units of this machine.", example="report")] = None
    status: Annotated[tuple[str, ...], option("Only units in this state.")] = ()
    gate: Annotated[
        str | None, option("Only units behind this gate or one below it; 'none': without a gate.", example="shop/acme")
    ] = None
    parked: Annotated[bool, option("Only units that are parked.")] = False
    due: Annotated[
        str | None, option("Only units that are due at this instant or before; 'now' is the present.", example=NOW)
    ] = None
    older_than: Annotated[
        timedelta | None, option("Only units that last changed longer ago than this.", example="6h")
    ] = None
    younger_than: Annotated[timedelta | None, option("Only units that changed within this time.", example="30m")] = None
    because: Annotated[
        str | None, option("Only units whose reason contains this text; upper and lower case are alike.")
    ] = None


class Selected(Filter, frozen=True):
    """Units by reference, or by machine and filters."""

    units: Annotated[tuple[str, ...], argument("Units, as machine:key; or none, with --machine and filters.")] = ()


class Condition(NamedTuple):
    """A condition on the table of a machine, and its values."""

    sql: str
    values: Mapping[str, Any]


class Moment(NamedTuple):
    """Where a condition is asked."""

    database: Database
    now: datetime


def filters_of(wanted: Filter) -> dict[str, Any]:
    """The filters that were given, the machine apart."""
    given = {name: getattr(wanted, name) for name in Filter.__struct_fields__ if name != "machine"}
    return {name: value for name, value in given.items() if value not in (None, False, ())}


def machines_of(ask: Ask[Any], wanted: Filter) -> list[Machine]:
    """The machines to look at, in order. Raises UsageError for a filter that fits none of them."""
    if wanted.machine is not None:
        machine = named_machine(ask, wanted.machine)
        if not ask.reader.keeps(machine):
            raise UsageError(f"the ledger has no units of {machine.name} yet; run 'penstock db upgrade'")
        _refuse_unfit(machine, wanted)
        return [machine]
    kept = ask.reader.kept()
    found = [machine for machine in kept if _unfit(machine, wanted) is None]
    if not found and wanted.status:
        states = sorted({state for machine in kept for state in machine.states})
        raise _unknown("state", wanted.status[0], states)
    return found


def named_machine(ask: Ask[Any], name: str) -> Machine:
    """The machine of that name. Raises UnknownMachine with the nearest names."""
    if name not in ask.reader.machines:
        raise UnknownMachine(str(_unknown("machine", name, sorted(ask.reader.machines))))
    return ask.reader.machines[name]


def _unknown(what: str, name: str, known: Sequence[str]) -> UsageError:
    close = near(name, known)
    hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known) or 'none'}"
    return UsageError(f"no {what} is called {name!r}; {hint}")


def _unfit(machine: Machine, wanted: Filter) -> str | None:
    """The filter that this machine's units cannot have."""
    if not machine.driven and (wanted.gate is not None or wanted.parked or wanted.due is not None):
        return "driven"
    if wanted.status and not set(wanted.status) & set(machine.states):
        return "status"
    return None


def _refuse_unfit(machine: Machine, wanted: Filter) -> None:
    unknown = [state for state in wanted.status if state not in machine.states]
    if unknown:
        raise _unknown(f"state of {machine.name}", unknown[0], machine.states)
    if _unfit(machine, wanted) is not None:
        raise UsageError(
            f"{machine.name} is not driven by workers: its units have no gate, and are never due or parked"
        )


def condition(at: Moment, machine: Machine, wanted: Filter) -> Condition:
    """The filters as SQL. Raises UsageError for an instant, a span or a text that cannot be read."""
    from penstock.ledger.store.statements import dead_letters, in_listed_states, listed_states, under

    parts: list[str] = []
    values: dict[str, Any] = {}
    if wanted.status:
        one_of, names = states_sql(wanted.status)
        parts.append(f"status IN ({one_of})")
        if set(wanted.status) <= set(machine.dead):
            parts.append(f"unit_id IN (SELECT unit_id FROM {machine.table} WHERE {dead_letters(machine)})")
        elif set(wanted.status) <= set(listed_states(machine)):
            parts.append(in_listed_states(machine))
        values |= names
    if wanted.gate == NO_GATE:
        parts.append(f"gate_id = '{NO_GATE}'")
    elif wanted.gate is not None:
        sql, given = under(_storable(wanted.gate))
        # The gates are few, and the units behind each are found by an index.
        parts.append(f"gate_id IN (SELECT gate_id FROM gate WHERE {sql})")
        values |= given
    if wanted.parked:
        # By the index of what is parked, which is little: read in the order of keys it would be a scan.
        parts.append(f"unit_id IN (SELECT unit_id FROM {machine.table} WHERE parked_at IS NOT NULL)")
    for name, column, sign, moment in _moments(at.now, machine, wanted):
        parts.append(f"{column} {sign} {at.database.sql.instant(name)}")
        values[name] = instant_text(moment)
    if wanted.because is not None:
        said = "change_reason || ' ' || COALESCE(parked_reason, '')" if machine.driven else "change_reason"
        parts.append(f"lower({said}) LIKE :because ESCAPE '!'")
        values["because"] = f"%{_like(_storable(wanted.because).lower())}%"
    return Condition(" AND ".join(parts) or "1 = 1", values)


def states_sql(states: Sequence[str]) -> tuple[str, dict[str, str]]:
    """States as parameters of a list, and their values; the names of parameters are letters alone."""
    names = {f"state_{chr(97 + place // 26)}{chr(97 + place % 26)}": state for place, state in enumerate(states)}
    return ", ".join(f":{name}" for name in names), names


def _moments(now: datetime, machine: Machine, wanted: Filter) -> Iterator[tuple[str, str, str, datetime]]:
    if wanted.due is not None:
        yield "due", machine.due, "<=", now if wanted.due == NOW else read_instant(wanted.due)
    for name, sign, span in (("older", "<", wanted.older_than), ("younger", ">=", wanted.younger_than)):
        if span is not None:
            try:
                before = now - span
            except OverflowError:
                raise UsageError(f"{name} than that reaches back beyond the year 1") from None
            yield name, "changed_at", sign, before


def read_instant(text: str) -> datetime:
    """An instant as a person writes it, with its offset from UTC. Raises UsageError."""
    try:
        return parse_instant(text)
    except BadInstant:
        msg = f"{text!r} is not an instant; write date, time and offset, for example 2026-11-15T19:31:00Z"
        raise UsageError(msg) from None


def _storable(text: str) -> str:
    if _UNSTORABLE.search(text):
        raise UsageError(f"{text!r} has a character that no ledger can store, so no unit has it")
    return text


def _like(text: str) -> str:
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def read_refs(ask: Ask[Any], texts: Iterable[str]) -> list[Ref]:
    """References as people write them, each once. Raises BadReference or UnknownMachine."""
    found = dict.fromkeys(Ref.parse(_storable(text)) for text in texts)
    for ref in found:
        parse_key(named_machine(ask, ref.machine).unit, ref.unit_id)
    return list(found)


def select_ids(ask: Ask[Any], wanted: Selected) -> Iterator[tuple[Machine, list[str]]]:
    """The units that are meant, by machine. Raises UsageError where it is not clear which."""
    if not wanted.units:
        if wanted.machine is None:
            raise UsageError("which units? name them as machine:key, or a machine and filters")
        (machine,) = machines_of(ask, wanted)
        yield machine, all_ids(ask, machine, wanted)
        return
    if wanted.machine is not None or filters_of(wanted):
        raise UsageError("name units or filter them, not both")
    by_machine: dict[str, list[str]] = {}
    for ref in read_refs(ask, wanted.units):
        by_machine.setdefault(ref.machine, []).append(ref.unit_id)
    for name, ids in by_machine.items():
        machine = ask.reader.machine(name)
        there = {unit.unit_id for unit in ask.reader.get_many(machine, ids)} if ask.reader.keeps(machine) else set()
        for unit_id in ids:
            if unit_id not in there:
                raise UnknownUnit(f"no unit {name}:{unit_id} in the ledger")
        yield machine, ids


def all_ids(ask: Ask[Any], machine: Machine, wanted: Filter) -> list[str]:
    """The ids of every unit that the filters match, in order."""
    sql, values = condition(Moment(ask.reader.database, ask.now), machine, wanted)
    query = f"SELECT unit_id FROM {machine.table} WHERE {sql} ORDER BY unit_id"
    return [str(row[0]) for row in ask.reader.database.read(lambda c: c.gather(query, **values), patient=True)]


def select_units(ask: Ask[Any], wanted: Selected) -> tuple[Machine, Iterator[Any]]:
    """The units that are meant, of one machine. Raises UsageError where they are of several."""
    found = list(select_ids(ask, wanted))
    if len(found) > 1:
        names = ", ".join(machine.name for machine, _ in found)
        raise UsageError(f"these units are of several machines ({names}); name those of one machine at a time")
    machine, ids = found[0]
    return machine, units_of(ask, machine, ids)


def units_of(ask: Ask[Any], machine: Machine, ids: Sequence[str]) -> Iterator[Any]:
    """Units by their ids, a few thousand at a time."""
    for start in range(0, len(ids), _AT_ONCE):
        ask.progress(start, len(ids))
        yield from ask.reader.get_many(machine, ids[start : start + _AT_ONCE])


def counts_of(cursor: Cursor, machine: Machine, where: Condition) -> dict[str, int]:
    """How many units match, by state."""
    sql = f"SELECT status, count(*) FROM {machine.table} WHERE {where.sql} GROUP BY status"
    found = {str(state): int(count) for state, count in cursor.rows(sql, **where.values)}
    return {state: found[state] for state in (*machine.states, *found) if state in found}

"""Making units of any machine by hand: values are read by the types of the columns, and all is checked before."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

import msgspec

from penstock.model.errors import IllegalMove, PenstockError, UsageError
from penstock.model.machine import Actor, Machine
from penstock.model.near import near
from penstock.model.spoken import counted
from penstock.model.unit import DRIVEN_COLUMNS, GuardedUnit, field_types, replace, unit_id_of
from penstock.operations.declare import Ask, operation
from penstock.operations.fields import Parameters, argument, option, standard_input
from penstock.operations.plan import Births
from penstock.operations.selection import named_machine
from penstock.settings.kernel import KernelSettings

#: What may be said beside the columns of the machine's own.
_GIVEN = frozenset({"status", "due_at", "gate_id"})
_AT_ONCE = 5_000


class NewUnits(Parameters, frozen=True):
    machine: Annotated[str, argument("The machine.", example="invoice")]
    set: Annotated[tuple[str, ...], option("A column and its value.", example="tenant=acme")] = ()
    rows: Annotated[
        tuple[dict[str, Any], ...], standard_input("Units as JSON objects, one a line, columns by name.")
    ] = ()


@operation("units create", "Make units by hand, due at once.")
def create(ask: Ask[KernelSettings], wanted: NewUnits) -> Births:
    """One unit by --set column=value, or many as JSON lines on standard input. Either all can be made, or none is."""
    machine = named_machine(ask, wanted.machine)
    if bool(wanted.set) == bool(wanted.rows):
        raise UsageError("say what to create: values as column=value, or whole units as JSON, not both")
    if not ask.reader.keeps(machine):
        raise UsageError(f"the ledger has no table for {machine.name} yet; run 'penstock db upgrade'")
    rows: Sequence[Mapping[str, Any]] = [_pairs(wanted.set)] if wanted.set else wanted.rows
    made: dict[str, GuardedUnit] = {}
    for number, row in enumerate(rows, start=1):
        where = "" if wanted.set else f"row {number}: "
        try:
            unit = _unit(ask, machine, row, texts=bool(wanted.set))
        except PenstockError as error:
            raise UsageError(f"{where}{error}") from error
        if unit.unit_id in made:
            raise UsageError(f"{where}repeats {machine.name}:{unit.unit_id}")
        made[unit.unit_id] = unit
    _refuse_present(ask, machine, list(made))
    says = f"create {counted(len(made), f'{machine.name} unit')}"
    return Births(machine, says, units=list(made.values()))


OPERATIONS = [create]


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{text!r:.100} must be column=value")
        if name in found:
            raise UsageError(f"the column {name!r:.100} is given twice")
        found[name] = value
    return found


def _unit(ask: Ask[Any], machine: Machine, row: Mapping[str, Any], *, texts: bool) -> GuardedUnit:
    """One unit of what was said. Raises UsageError with the first thing that is wrong."""
    types = _columns(machine)
    values = {}
    for name, value in row.items():
        if name not in types:
            close = near(name, types)
            hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(types)}"
            raise UsageError(f"{machine.name} has no column {str(name)[:100]!r} that can be set; {hint}")
        values[name] = _value(name, types[name], value, texts=texts)
    if machine.driven:
        values.setdefault("due_at", ask.now)
    if missing := [name for name in _required(machine) if name not in values]:
        raise UsageError(f"{', '.join(missing)} must be set for a new {machine.name}")
    unit = machine.unit(**values)
    if machine.create is not None:
        unit = machine.create(unit, ask.now)
    try:
        machine.check_birth(str(unit.status), Actor.OPERATOR)
    except IllegalMove as error:
        raise UsageError(f"this cannot be created by hand: {error}") from error
    _refuse_unstorable(values)
    return replace(unit, unit_id=unit_id_of(unit))


def _refuse_unstorable(values: Mapping[str, Any]) -> None:
    """Raise UsageError for a value that no ledger keeps as it is: a number too large, a text with half a character."""
    from penstock.ledger.schema.columns import plain

    for name, value in values.items():
        try:
            made = plain(value)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise UsageError(f"{name} cannot be stored: {error}") from None
        if isinstance(made, str) and ("\0" in made or (not isinstance(value, str) and "\\u0000" in made)):
            raise UsageError(f"{name} cannot be stored: it has a NUL character")


@functools.cache  # asked for every row
def _columns(machine: Machine) -> dict[str, Any]:
    """The columns that a person may set, and their types."""
    hidden = (set(DRIVEN_COLUMNS) - _GIVEN) | machine.generated() | set(machine.counters)
    return {name: kind for name, kind in field_types(machine.unit).items() if name not in hidden}


@functools.cache
def _required(machine: Machine) -> list[str]:
    fields = msgspec.structs.fields(machine.unit)
    return [field.name for field in fields if field.required and field.name in _columns(machine)]


def _value(name: str, kind: Any, value: Any, *, texts: bool) -> Any:
    """A value of the column's type. A text from the command line is read as one; documents are JSON."""
    plain = {get_origin(one) or one for one in (get_args(kind) if _optional(kind) else (kind,))}
    if texts and plain & {dict, list}:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise UsageError(f"{name}: {value!r:.100} is not JSON") from None
    try:
        made = msgspec.convert(value, kind, strict=not texts)
    except (msgspec.ValidationError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{name}: {value!r:.100} {_wanted(kind, str(error))}") from None
    if getattr(made, "tzinfo", False) is None and hasattr(made, "hour"):
        raise UsageError(f"{name}: {value!r:.100} has no time zone; write it with an offset, 2026-11-15T19:31:00Z")
    return made


def _optional(kind: Any) -> bool:
    return type(None) in get_args(kind)


def _wanted(kind: Any, error: str) -> str:
    named = [one for one in (get_args(kind) if _optional(kind) else (kind,)) if one is not type(None)]
    states = getattr(named[0], "__members__", None)
    if states is not None:
        return f"must be one of {', '.join(str(member.value) for member in states.values())}"
    words = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false", "UUID": "a UUID"}
    words |= {"datetime": "an instant such as 2026-11-15T19:31:00Z", "date": "a date such as 2026-11-15"}
    words |= {"Decimal": "a number", "dict": "a JSON object", "list": "a JSON list"}
    name = getattr(get_origin(named[0]) or named[0], "__name__", "")
    return f"must be {words[name]}" if name in words else f"cannot be read: {error}"


def _refuse_present(ask: Ask[Any], machine: Machine, ids: Sequence[str]) -> None:
    for start in range(0, len(ids), _AT_ONCE):
        for unit in ask.reader.get_many(machine, ids[start : start + _AT_ONCE]):
            raise UsageError(f"{machine.name}:{unit.unit_id} exists already; nothing was created")

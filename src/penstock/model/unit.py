"""Units: rows with a state. A unit class is a frozen dataclass whose fields are columns.

`GuardedUnit` carries what every machine's row has; `Unit` adds the schedule and the claim of a driven machine.
A unit's key has one canonical, reversible text form, its `unit_id`; `machine:unit_id` names it everywhere.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, get_type_hints
from urllib.parse import unquote
from uuid import UUID

from penstock.model.clock import instant_text, parse_instant
from penstock.model.errors import BadReference

NO_GATE = "none"
NOW = "now"
"""A default in the database: the moment at which a row is inserted without one."""
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_KEY_TYPES = (str, int, date, datetime, UUID)


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """What a field's column needs beyond the Python type."""

    sql_type: str | None = None
    generated: str | None = None
    server_default: str | None = None


def column(
    default: Any = dataclasses.MISSING,
    *,
    sql_type: str | None = None,
    generated: str | None = None,
    server_default: str | None = None,
) -> Any:
    """A field whose column is special: another SQL type, a generated value, a default in the database.

    The default is a constant, or `NOW`. It is for whoever inserts by hand: the kernel always gives a value.
    """
    spec = ColumnSpec(sql_type, generated, server_default)
    return field(default=default, kw_only=True, metadata={"penstock": spec})


@dataclass(frozen=True, kw_only=True)
class GuardedUnit:
    """A row whose state is guarded and whose history is kept; nobody claims it."""

    key: ClassVar[tuple[str, ...]] = ()

    status: Any
    unit_id: str = ""
    version: int = 0
    changed_by: str = ""
    change_reason: str | None = None
    changed_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Unit(GuardedUnit):
    """A row that workers move: it also has a schedule, a claim and a door."""

    due_at: datetime | None = None
    wakes: int = 0
    claimed_by: str | None = None
    attempts: int = 0
    #: Steps in a row that broke by the unit's own fault; at the third it is parked.
    crashes: int = 0
    #: Claims in a row that ended without anybody knowing what the step had done: look before acting again.
    doubts: int = 0
    #: Workers in a row that died while they held the unit, whoever killed them.
    suspicion: int = 0
    parked_at: datetime | None = None
    parked_reason: str | None = None
    gate_id: str = NO_GATE


FORGIVEN = ("crashes", "doubts", "suspicion")
"""What every commit of a step sets to zero, unless its outcome says otherwise: the step has ended, and is known."""

if TYPE_CHECKING:
    # To the type checker it is the standard one, so that a misspelt column is an error.
    from dataclasses import replace as replace  # noqa: PLC0414 - exported
else:

    def replace(unit, /, **changes):  # noqa: ANN001, ANN003, ANN201 - declared above
        """The unit with other values: `dataclasses.replace`, eight times faster, because every step makes one."""
        values = unit.__dict__ | changes
        if len(values) != len(unit.__dict__):
            unknown = ", ".join(sorted(values.keys() - unit.__dict__.keys()))
            msg = f"{type(unit).__name__} has no column {unknown}"
            raise TypeError(msg)
        other = object.__new__(type(unit))
        object.__setattr__(other, "__dict__", values)
        return other


DRIVEN_COLUMNS = tuple(f.name for f in dataclasses.fields(Unit))
_FIELD_TYPES: dict[type[GuardedUnit], dict[str, Any]] = {}


def field_types(unit_type: type[GuardedUnit]) -> dict[str, Any]:
    """Field name to resolved type, in column order: key, status, the unit's own, the kernel's."""
    found = _FIELD_TYPES.get(unit_type)
    if found is None:
        found = _FIELD_TYPES[unit_type] = _field_types(unit_type)
    return found


def _field_types(unit_type: type[GuardedUnit]) -> dict[str, Any]:
    hints = get_type_hints(unit_type)
    names = [f.name for f in dataclasses.fields(unit_type)]
    own = [n for n in names if n not in DRIVEN_COLUMNS and n not in unit_type.key]
    kernel = [n for n in DRIVEN_COLUMNS if n in names and n not in {"unit_id", "status"}]
    return {n: hints[n] for n in ("unit_id", *unit_type.key, "status", *own, *kernel)}


class Ref(NamedTuple):
    """The name of one unit: `report:acme/2026-11-01/daily/target`."""

    machine: str
    unit_id: str

    def __str__(self) -> str:
        return f"{self.machine}:{self.unit_id}"

    @classmethod
    def parse(cls, text: str) -> Ref:
        """Read `machine:key`; raises BadReference with the form that is wanted."""
        machine, colon, unit_id = text.partition(":")
        if not colon or not machine or not unit_id:
            msg = f"{text!r} is not a unit reference; write machine:key, for example invoice:acme/17"
            raise BadReference(msg)
        return cls(machine, unit_id)


def is_key_type(annotation: Any) -> bool:
    """Whether a field of this type can be part of a key."""
    return annotation in _KEY_TYPES or (isinstance(annotation, type) and issubclass(annotation, StrEnum))


def key_part(value: object) -> str:
    """One part of a key as text: dates ISO, instants UTC with milliseconds, '/' and '%' percent-encoded."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, datetime):
        if value.tzinfo is None:
            msg = f"{value!r} has no time zone and cannot be part of a key"
            raise BadReference(msg)
        text = instant_text(value)
    elif isinstance(value, date):
        text = value.isoformat()
    elif isinstance(value, bool) or not isinstance(value, (str, int, UUID)):
        msg = f"{value!r} cannot be part of a key; use text, an integer, a date, an instant or a UUID"
        raise BadReference(msg)
    else:
        text = str(value)
    if _UNSTORABLE.search(text):
        msg = f"{text!r} has a NUL character or half a surrogate pair and cannot be part of a key"
        raise BadReference(msg)
    return text.replace("%", "%25").replace("/", "%2F")


def unit_id_of(unit: GuardedUnit) -> str:
    """The canonical text of the unit's key."""
    text = "/".join([key_part(getattr(unit, name)) for name in unit.key])
    if not text:
        msg = f"{type(unit).__name__} has an empty key"
        raise BadReference(msg)
    return text


def parse_key(unit_type: type[GuardedUnit], unit_id: str) -> dict[str, Any]:
    """The key columns of a `unit_id`; the inverse of `unit_id_of`."""
    parts = unit_id.split("/")
    if len(parts) != len(unit_type.key):
        msg = f"{unit_id!r} has {len(parts)} parts; {unit_type.__name__} is {'/'.join(unit_type.key)}"
        raise BadReference(msg)
    types = field_types(unit_type)
    values = {}
    for name, part in zip(unit_type.key, parts, strict=True):
        try:
            values[name] = _read_part(types[name], unquote(part, errors="strict"))
        except ValueError as error:
            msg = f"{part!r} is not a valid {name} ({types[name].__name__}) in {unit_id!r}"
            raise BadReference(msg) from error
        if key_part(values[name]) != part:
            msg = f"{part!r} is not the canonical form of {name}; it is {key_part(values[name])!r}"
            raise BadReference(msg)
    return values


def _read_part(kind: Any, text: str) -> Any:
    if kind is datetime:
        return parse_instant(text)
    if kind is date:
        return date.fromisoformat(text)
    return kind(text)

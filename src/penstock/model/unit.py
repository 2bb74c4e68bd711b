"""Units: rows with a state. A unit class is a frozen struct whose fields are columns.

`GuardedUnit` carries what every machine's row has; `Unit` adds the schedule and the claim of a driven machine.
A unit's key has one canonical, reversible text form, its `unit_id`; `machine:unit_id` names it everywhere.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, get_args, get_origin, get_type_hints
from urllib.parse import unquote
from uuid import UUID

from penstock.model.clock import instant_text, parse_instant
from penstock.model.errors import BadReference
from penstock.model.spoken import counted
from penstock.model.struct import FrozenStruct

if TYPE_CHECKING:
    # To the type checker it is the standard one, so that a misspelt column is an error.
    from dataclasses import replace as replace  # noqa: PLC0414 - exported
else:
    from msgspec.structs import replace as replace  # noqa: PLC0414 - exported

NO_GATE = "none"
NOW = "now"
"""A default in the database: the moment at which a row is inserted without one."""
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_KEY_TYPES = (str, int, date, datetime, UUID)


class Column(FrozenStruct):
    """What a field's column needs beyond the Python type: `Annotated[int, Column(sql_type="Integer")] = 0`.

    `server_default` is a constant, or `NOW`. It is for whoever inserts by hand: the kernel always gives a value.
    """

    #: The name of a type of SQLAlchemy's.
    sql_type: str | None = None
    #: The SQL from which the database computes the value.
    generated: str | None = None
    server_default: str | None = None


class GuardedUnit(FrozenStruct):
    """A row whose state is guarded and whose history is kept; nobody claims it."""

    key: ClassVar[tuple[str, ...]] = ()

    status: Any
    unit_id: str = ""
    version: int = 0
    changed_by: str = ""
    change_reason: str | None = None
    changed_at: datetime | None = None


class Unit(GuardedUnit):
    """A row that workers move: it also has a schedule, a claim and a gate."""

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

DRIVEN_COLUMNS = Unit.__struct_fields__
_FIELDS: dict[type[GuardedUnit], tuple[dict[str, Any], dict[str, Column]]] = {}


def field_types(unit_type: type[GuardedUnit]) -> dict[str, Any]:
    """Field name to resolved type, in column order: key, status, the unit's own, the kernel's."""
    return _fields(unit_type)[0]


def special_columns(unit_type: type[GuardedUnit]) -> dict[str, Column]:
    """Field name to what its column needs beyond the type, for the fields that say so."""
    return _fields(unit_type)[1]


def _fields(unit_type: type[GuardedUnit]) -> tuple[dict[str, Any], dict[str, Column]]:
    found = _FIELDS.get(unit_type)
    if found is None:
        hints = get_type_hints(unit_type, include_extras=True)
        names = unit_type.__struct_fields__
        own = [n for n in names if n not in DRIVEN_COLUMNS and n not in unit_type.key]
        kernel = [n for n in DRIVEN_COLUMNS if n in names and n not in {"unit_id", "status"}]
        parts = {n: _parts(hints[n]) for n in ("unit_id", *unit_type.key, "status", *own, *kernel)}
        types = {name: kind for name, (kind, _) in parts.items()}
        found = _FIELDS[unit_type] = types, {name: column for name, (_, column) in parts.items() if column}
    return found


def _parts(hint: Any) -> tuple[Any, Column | None]:
    if get_origin(hint) is not Annotated:
        return hint, None
    kind, *extras = get_args(hint)
    return kind, next((extra for extra in extras if isinstance(extra, Column)), None)


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
        many = counted(len(parts), "part")
        msg = f"{unit_id!r} has {many}; the key of {unit_type.__name__} is {'/'.join(unit_type.key)}"
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
            msg = f"{part!r} is not the canonical form of {name}; write {key_part(values[name])!r}"
            raise BadReference(msg)
    return values


def _read_part(kind: Any, text: str) -> Any:
    if kind is datetime:
        return parse_instant(text)
    if kind is date:
        return date.fromisoformat(text)
    return kind(text)

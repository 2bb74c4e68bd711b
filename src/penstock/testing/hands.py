"""Whether every move by hand leaves a unit that the machine's CHECKs allow."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Self
from uuid import UUID

from penstock.model.errors import PenstockError
from penstock.model.machine import Edge, Machine
from penstock.model.unit import DRIVEN_COLUMNS, GuardedUnit, field_types, replace, unit_id_of

_NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
_MOST = 4_096
_SAMPLES: dict[type, tuple[Any, ...]] = {
    bool: (False, True),
    int: (1, 0),
    float: (1.0,),
    str: ("x",),
    bytes: (b"x",),
    datetime: (_NOW,),
    date: (_NOW.date(),),
    Decimal: (Decimal(1),),
    UUID: (UUID(int=1),),
    list: ([],),
    dict: ({},),
}


class HandRefused(PenstockError):
    """A move by hand comes to a unit that a CHECK refuses, or none could be made to try it on."""


def check_hands(machine: Machine, units: Iterable[GuardedUnit] = ()) -> int:
    """Try every `by_hand` of the machine against its CHECKs; how many units were tried.

    The units are made up: in each state all that the CHECKs allow, with the columns they speak of filled or empty.
    `units` take their place in the states that they are in, where made-up values will not do. Raises HandRefused with
    the move, the unit and the CHECK.
    """
    given = list(units)
    tried = 0
    with _Checks(machine) as checks:
        for edge in machine.edges:
            if edge.by_hand is None:
                continue
            own = [unit for unit in given if unit.status == edge.source]
            found = [unit for unit in own or _made_up(machine, edge) if checks.refusal(unit) is None]
            if not found:
                msg = f"{_named(machine, edge)}: no unit in {edge.source} meets the CHECKs; give one in `units`"
                raise HandRefused(msg)
            for unit in found:
                _try(machine, edge, unit, checks)
            tried += len(found)
    return tried


def _try(machine: Machine, edge: Edge, unit: GuardedUnit, checks: _Checks) -> None:
    assert edge.by_hand is not None  # noqa: S101 - asked for before
    after = replace(edge.by_hand(unit, _NOW), status=machine.status(edge.target))
    refusal = checks.refusal(after)
    if refusal is not None:
        raise HandRefused(f"{_named(machine, edge)}: {refusal}, for {after!r}")


def _named(machine: Machine, edge: Edge) -> str:
    return f"{machine.name}: {edge.trigger} ({edge.source} -> {edge.target})"


class _Checks:
    """The machine's table with its CHECKs, in memory and without triggers."""

    def __init__(self, machine: Machine) -> None:
        import sqlalchemy as sa
        from pysqlite3 import dbapi2

        from penstock.ledger.schema.expand import ddl
        from penstock.ledger.schema.tables import machine_table

        self._machine = machine
        self._connection = dbapi2.connect(":memory:")
        self._refused = dbapi2.IntegrityError
        table = machine_table(machine, "sqlite")
        # References lead to tables that are not there.
        self._connection.execute(
            ddl(sa.schema.CreateTable(table, include_foreign_key_constraints=[]), "sqlite", strict=True)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def refusal(self, unit: GuardedUnit) -> str | None:
        """What the database says against the unit."""
        from penstock.ledger.schema.columns import plain

        generated = self._machine.generated()
        names = [name for name in self._machine.columns if name not in generated]
        values = [plain(getattr(unit, name)) for name in names]
        columns = ", ".join(self._machine.column(name) for name in names)
        marks = ", ".join("?" for _ in names)
        sql = f"INSERT INTO {self._machine.table} ({columns}) VALUES ({marks})"
        try:
            self._connection.execute(sql, values)
        except self._refused as error:
            return str(error)
        finally:
            self._connection.rollback()
        return None


def _made_up(machine: Machine, edge: Edge) -> Iterator[GuardedUnit]:
    """Units in the edge's source: the columns that CHECKs speak of in all combinations, the rest as plain as can be."""
    spoken = set(re.findall(r"\w+", " ".join(machine.checks.values())))
    choices = {name: _values(kind, full=name in spoken) for name, kind in _own(machine).items()}
    for values in itertools.islice(itertools.product(*choices.values()), _MOST):
        fields = dict(zip(choices, values, strict=True))
        unit = machine.unit(**fields, status=machine.status(edge.source), changed_by="worker:test", changed_at=_NOW)
        yield replace(unit, unit_id=unit_id_of(unit))


def _own(machine: Machine) -> dict[str, Any]:
    generated = machine.generated()
    types = field_types(machine.unit)
    return {name: kind for name, kind in types.items() if name not in DRIVEN_COLUMNS and name not in generated}


def _values(annotation: Any, *, full: bool) -> tuple[Any, ...]:
    from penstock.ledger.schema.columns import python_type

    kind, nullable = python_type(annotation)
    filled = tuple(kind) if isinstance(kind, type) and issubclass(kind, Enum) else _SAMPLES.get(kind, ("x",))
    if not full:
        return (None,) if nullable else filled[:1]
    return (*filled, None) if nullable else filled

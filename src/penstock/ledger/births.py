"""Births by the hundred thousand: every one of these with every one of those, made by the database itself.

A row per unit through Python would take most of a minute for what one statement does in seconds. Guards and history
are the triggers', as for any birth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from penstock.ledger.commit import statements_of
from penstock.ledger.ledger import Ledger
from penstock.ledger.prepare import UNCLAIMED
from penstock.ledger.rows import plain_writes
from penstock.ledger.schema.columns import plain, readable
from penstock.ledger.schema.tables import table_of
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor
from penstock.model.errors import BrokenFlow
from penstock.model.machine import Actor, Machine
from penstock.model.outcome import Write
from penstock.model.unit import GuardedUnit, key_part

AT_ONCE = 20_000
"""How many units one transaction should bear: about half a second during which nobody else writes."""
_MADE = ("unit_id", "version", "changed_by", "change_reason", "changed_at")
_LEFT = frozenset({*_MADE, *UNCLAIMED})


class Side:
    """Rows that name the same columns in the same order; written as JSON once, in however many products they stand."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows = rows
        self.columns = list(rows[0]) if rows else []
        if any(list(row) != self.columns for row in rows):
            raise BrokenFlow("rows of a product must name the same columns in the same order")
        self._text: dict[tuple[str, ...], str] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def text(self, key: Sequence[str]) -> str:
        """Every row as a list: its values, then those of them that are part of a unit's key as the key writes them."""
        own = tuple(name for name in key if name in self.columns)
        if own not in self._text:
            values = [[*map(plain, row.values()), *(key_part(row[n]) for n in own)] for row in self.rows]
            self._text[own] = statements.batch_text(values)
        return self._text[own]


@dataclass(frozen=True, slots=True)
class Product:
    """Units of one machine: columns of `these`, columns of `those`, and everything else as in `like`.

    Together they name the whole key.
    """

    machine: Machine
    like: GuardedUnit
    these: Side
    those: Side

    def __len__(self) -> int:
        return len(self.these) * len(self.those)


def birth_products(
    ledger: Ledger,
    products: Sequence[Product],
    *,
    actor: Actor,
    who: str,
    reason: str = "born",
    writes: Sequence[Write] = (),
) -> int:
    """Give birth to those units that are not there yet, in one transaction with `writes`; returns how many were new.

    Raises IllegalMove unless the actor may give birth to every one of them.
    """
    for product in products:
        product.machine.check_birth(str(product.like.status), actor)
    made = {
        "version": ledger.rng.version(),  # the same for all of them; a unit is only ever compared with itself
        "changed_by": f"{actor}:{who}",
        "change_reason": readable(reason),
    }
    births = [_statement(ledger, product, made) for product in products if len(product)]
    rows = plain_writes("births", writes)
    beside = [statements.upsert(ledger.database, *statement) for statement in statements_of(rows)]
    sides = [side for product in products for side in (product.these, product.those)]
    gates = {str(row["gate_id"]) for side in sides if "gate_id" in side.columns for row in side.rows}

    def work(cursor: Cursor) -> int:
        ledger.gates.ensure(cursor, sorted(gates))
        born = sum(cursor.run(sql, **given, **ledger.database.bind_now()) for sql, given in births)
        for sql, given in beside:
            cursor.run(sql, **given)
        return born

    return ledger.rousing.write(work)


def _statement(ledger: Ledger, product: Product, made: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    machine, database = product.machine, ledger.database
    table = table_of(database, machine)
    sides = {"these": product.these, "those": product.those}
    named = [name for side in sides.values() for name in side.columns]
    if "status" in named:
        raise BrokenFlow(f"{machine.name}: units of a product take their state from `like`")
    if sealed := ", ".join(sorted(_LEFT & {*named})):
        raise BrokenFlow(f"{machine.name}: a product cannot set {sealed}")
    if len(set(named)) != len(named) or not set(machine.unit.key) <= set(named) <= set(machine.columns):
        raise BrokenFlow(f"{machine.name}: {', '.join(named)} do not make up its key, or name a column twice")
    parameters: dict[str, Any] = {}
    sources = []
    for name, side in sides.items():
        types: dict[str, statements.SqlType] = {n: table.c[machine.column(n)].type for n in side.columns}
        types |= {f"key_{n}": sa.Text() for n in machine.unit.key if n in side.columns}
        parameters[name] = side.text(machine.unit.key)
        # Materialised: the JSON is read once, not once for every unit.
        sources.append(f"{name} AS MATERIALIZED (SELECT * FROM {statements.batch(database, types, parameter=name)})")
    picks: dict[str, str] = {"unit_id": " || '/' || ".join(f"n_key_{n}" for n in machine.unit.key)}
    picks["changed_at"] = database.now_sql
    picks |= {machine.column(n): f"n_{n}" for n in named}
    for name in machine.columns:
        value = made.get(name, UNCLAIMED.get(name) if name in _LEFT else getattr(product.like, name))
        if name in machine.generated() or machine.column(name) in picks or value is None:
            continue
        parameters[f"like_{name}"] = plain(value)
        column = machine.column(name)
        picks[column] = database.sql.parameter(f"like_{name}", table.c[column].type)
    sql = (
        f"WITH {', '.join(sources)} INSERT INTO {machine.table} ({', '.join(picks)})"
        f" SELECT {', '.join(picks.values())} FROM these CROSS JOIN those WHERE true ON CONFLICT DO NOTHING"
    )
    return sql, parameters

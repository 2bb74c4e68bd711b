"""The doctor and the guards: that every trigger is there and on, that nothing else is, and that no row slipped past.

Constraints can be switched off for a connection or a table, and on again without a look at what came in meanwhile; so
they are asked of every row here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from penstock.ledger.care.doctor_history import LARGEST
from penstock.ledger.care.finding import Finding
from penstock.ledger.care.look import Scope
from penstock.ledger.schema import seals
from penstock.ledger.schema.definitions import stored
from penstock.ledger.schema.guards import guards_of
from penstock.ledger.schema.triggers import KERNEL_TABLES
from penstock.ledger.store.database import Cursor, Database
from penstock.model.machine import Machine

if TYPE_CHECKING:
    import sqlalchemy as sa

_KINDS = ("birth", "guard", "key", "history", "death", "truncate", *seals.KINDS)


def triggers(database: Database, cursor: Cursor, machines: Mapping[str, Machine]) -> Iterator[Finding]:
    """Every generated trigger is there, as generated and switched on; nothing else stands between a table and SQL."""
    guards, known = guards_of(database), stored(cursor)
    installed = [machines[name] for name in known if name in machines]
    tables = KERNEL_TABLES | {str(d["table"]) for d in known.values()}
    others = {f"penstock_{name}_{kind}" for name in known if name not in machines for kind in _KINDS}
    apart = [m for m in installed if m.parent and m.parent.machine not in machines]
    others |= {*seals.names(apart)}
    yield from guards.triggers(cursor, installed, tables, others)


def constraints(database: Database, cursor: Cursor, machines: Mapping[str, Machine], scope: Scope) -> Iterator[Finding]:
    """Every row keeps the CHECKs of its table. On SQLite, in a whole look, keys and the file too."""
    guards, known = guards_of(database), stored(cursor)
    own = [m for name, m in machines.items() if name in known and known[name]["digest"] == m.digest()]
    broken = set()
    tables = guards.tables(own)
    scoped = {m.table: scope.units(m.name, "unit_id") for m in own} | {"transition_log": scope.rows()}
    for table in tables:
        checks = guards.checks(table) | _can_rise(table)
        if not checks:
            continue
        key = next(iter(table.primary_key.columns)).name if "unit_id" not in table.columns else "unit_id"
        cases = " ".join(f"WHEN NOT ({text}) THEN '{name}'" for name, text in checks.items())
        looked_at = scoped.get(table.name, "1 = 1")
        rows = cursor.rows(
            f"SELECT wrong, count(*), CAST(min({key}) AS text) FROM (SELECT {key}, CASE {cases} END AS wrong"
            f" FROM {table.name} WHERE {looked_at}) AS s WHERE wrong IS NOT NULL GROUP BY wrong ORDER BY wrong"
        )
        for check, count, which in rows:
            broken.add(table.name)
            text = f"{count:,} row{'s break' if count > 1 else ' breaks'} the check {check}, the first is {which}"
            yield Finding("constraints", table.name, text)
    if scope.whole:
        yield from guards.file(cursor, tables, broken)


def _can_rise(table: sa.Table) -> dict[str, str]:
    """What no constraint says: counts of changes can rise."""
    counts = [name for name in ("version", "wakes", "tallies") if name in table.columns]
    return {f"{name}_can_rise": f"{name} < {LARGEST}" for name in counts}

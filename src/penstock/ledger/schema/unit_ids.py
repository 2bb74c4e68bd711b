"""The id of a unit as SQL, of the columns of its key."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ledger.schema.columns import python_type
from penstock.model.machine import Machine
from penstock.model.unit import field_types


def unit_id_text(machine: Machine, columns: Sequence[str], dialect: str) -> str:
    """SQL for the id of a unit whose key is in these columns."""
    unit_types = field_types(machine.unit)
    parts = []
    for name, column in zip(machine.unit.key, columns, strict=True):
        type_name = python_type(unit_types[name])[0].__name__
        if dialect == "postgresql":
            text = {
                "date": f"pg_catalog.to_char({column}, 'YYYY-MM-DD')",
                "datetime": f"""pg_catalog.to_char({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')""",
            }.get(type_name, f"CAST({column} AS TEXT)")
        else:
            text = f"CAST({column} AS TEXT)"
        parts.append(f"replace(replace({text}, '%', '%25'), '/', '%2F')")
    return " || '/' || ".join(parts)

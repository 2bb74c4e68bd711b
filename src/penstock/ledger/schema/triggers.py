"""Every trigger that a ledger is to have: those of the kernel's tables, of machines, and of seals.

They are text: whoever only compares them loads no table.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ledger import outbox
from penstock.ledger.schema import (
    definitions,
    seals,
    seals_postgres,
    seals_sqlite,
    triggers_postgres,
    triggers_sqlite,
)
from penstock.ledger.store.database import Cursor
from penstock.model.machine import Machine

KERNEL_TABLES = frozenset(
    {
        *("event_log", "flow_hour", "gate", "gate_limit", "gate_log", "machine_definition", "penstock_meta"),
        *("prune_permit", "prune_probe", "stage", "subscription", "transition_log", "worker"),
    }
)
"""The names of the kernel's own tables."""


def schema_of(cursor: Cursor) -> str:
    """The schema of a ledger on PostgreSQL, quoted where it must be."""
    return str(cursor.rows("SELECT quote_ident(current_schema())")[0][0])


def expected_sqlite(cursor: Cursor, machines: Sequence[Machine]) -> dict[str, str]:
    """Name to statement of every trigger that must be there."""
    expected = triggers_sqlite.kernel_triggers(definitions.stored(cursor))
    if outbox.installed(cursor):  # whoever's program brought it: event_log is everybody's
        expected |= outbox.sqlite_triggers()
    for machine in machines:
        expected |= triggers_sqlite.machine_triggers(machine)
    for family in seals.families(machines):
        expected |= seals_sqlite.triggers(family)
    return expected


def expected_postgres(
    cursor: Cursor, machines: Sequence[Machine], schema: str
) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Functions by name, and triggers by name with their table."""
    functions, triggers = triggers_postgres.kernel_functions(schema), triggers_postgres.kernel_triggers(schema)
    if outbox.installed(cursor):
        functions |= outbox.postgres_functions(schema)
        triggers |= outbox.postgres_triggers(schema)
    for machine in machines:
        functions |= triggers_postgres.machine_functions(machine, schema)
        triggers |= triggers_postgres.machine_triggers(machine, schema)
    for family in seals.families(machines):
        functions |= seals_postgres.functions(family, schema)
        triggers |= seals_postgres.triggers(family, schema)
    return functions, triggers

"""Making a ledger: the kernel's tables, the machines' tables, and every generated trigger.

Installing is idempotent: it creates what is missing and recreates all triggers. A ledger made by another program, or by
a newer one, is refused untouched.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from penstock.errors import LedgerMismatch
from penstock.ledger import triggers_postgres, triggers_sqlite
from penstock.ledger.database import Cursor, Database
from penstock.ledger.tables import SCHEMA_VERSION, kernel_tables, machine_table
from penstock.machine import Machine
from penstock.unit import NO_GATE

# The parameter style of psycopg would double every '%' in the CHECKs.
_DIALECTS = {"sqlite": sqlite.dialect(), "postgresql": postgresql.dialect(paramstyle="named")}  # type: ignore[no-untyped-call]


def install(database: Database, machines: Iterable[Machine], data_tables: Iterable[sa.Table] = ()) -> None:
    """Create what is missing, in one transaction."""
    found = list(machines)
    database.write(lambda cursor: _install(database, cursor, found, list(data_tables)))


def _install(database: Database, cursor: Cursor, machines: list[Machine], data_tables: list[sa.Table]) -> None:
    dialect = database.dialect
    if dialect == "postgresql":
        cursor.run("SET LOCAL statement_timeout = 0")
        cursor.run("SELECT pg_advisory_xact_lock(8025314)")  # one installer at a time
    present = table_names(database, cursor)
    _refuse_strangers(cursor, present)
    for table in [*kernel_tables(dialect), *(machine_table(m, dialect) for m in machines), *data_tables]:
        if table.name not in present:
            cursor.run(_ddl(CreateTable(table), dialect))
            for index in sorted(table.indexes, key=lambda i: str(i.name)):
                cursor.run(_ddl(CreateIndex(index), dialect))
    cursor.run(
        "INSERT INTO penstock_meta (name, value) VALUES ('schema_version', :version) ON CONFLICT (name) DO NOTHING",
        version=str(SCHEMA_VERSION),
    )
    cursor.run("INSERT INTO gate (gate_id) VALUES (:gate) ON CONFLICT DO NOTHING", gate=NO_GATE)
    _definitions(database, cursor, machines)
    create_triggers(database, cursor, machines)


def _refuse_strangers(cursor: Cursor, present: set[str]) -> None:
    if not present:
        return
    if "penstock_meta" not in present:
        msg = "that database holds other tables and is not a Penstock ledger; give it an empty one"
        raise LedgerMismatch(msg)
    rows = cursor.rows("SELECT value FROM penstock_meta WHERE name = 'schema_version'")
    if rows and int(rows[0][0]) > SCHEMA_VERSION:
        msg = f"the ledger has schema {rows[0][0]}, this program knows {SCHEMA_VERSION}; use a newer Penstock"
        raise LedgerMismatch(msg)


def _definitions(database: Database, cursor: Cursor, machines: list[Machine]) -> None:
    for machine in machines:
        cursor.run(
            "INSERT INTO machine_definition (name, table_name, driven, due_column, digest, definition, installed_at)"
            f" VALUES (:name, :table, :driven, :due, :digest, :definition, {database.now_sql})"
            " ON CONFLICT (name) DO UPDATE SET table_name = excluded.table_name, driven = excluded.driven,"
            " due_column = excluded.due_column, digest = excluded.digest, definition = excluded.definition,"
            " installed_at = excluded.installed_at WHERE machine_definition.digest <> excluded.digest",
            name=machine.name,
            table=machine.table,
            driven=machine.driven,
            due=machine.due,
            digest=machine.digest(),
            definition=json.dumps(machine.definition()),
            **database.bind_now(),
        )


def check_definitions(database: Database, machines: Mapping[str, Machine]) -> None:
    """Refuse to work on a ledger whose triggers were made from other definitions than this program's."""

    def work(cursor: Cursor) -> dict[str, str]:
        if "penstock_meta" not in table_names(database, cursor):
            msg = f"{database.url} is not a Penstock ledger yet; run 'penstock db upgrade'"
            raise LedgerMismatch(msg)
        return {str(n): str(d) for n, d in cursor.rows("SELECT name, digest FROM machine_definition")}

    known = database.read(work)
    stale = sorted(n for n, m in machines.items() if known.get(n) != m.digest())
    if stale:
        msg = f"{database.url}: the ledger's definition of {', '.join(stale)} is not this program's; run 'penstock db upgrade'"
        raise LedgerMismatch(msg)


def create_triggers(database: Database, cursor: Cursor, machines: Iterable[Machine]) -> None:
    """Drop and create every generated trigger."""
    if database.dialect == "sqlite":
        for name, sql in expected_sqlite(machines).items():
            cursor.run(f"DROP TRIGGER IF EXISTS {name}")
            cursor.run(sql)
        return
    functions, triggers = expected_postgres(machines)
    # The functions take this path over. Unless pg_temp is named last it comes first, and anybody's temporary
    # transition_log would swallow the history.
    cursor.run("SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true)")
    for sql in functions.values():
        cursor.run(sql)
    for name, (table, sql) in triggers.items():
        cursor.run(f"DROP TRIGGER IF EXISTS {name} ON {table}")
        cursor.run(f"CREATE TRIGGER {name} {sql}")
        cursor.run(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}")


def expected_sqlite(machines: Iterable[Machine]) -> dict[str, str]:
    """Name to statement of every trigger that must be there."""
    expected = triggers_sqlite.kernel_triggers()
    for machine in machines:
        expected |= triggers_sqlite.machine_triggers(machine)
    return expected


def expected_postgres(machines: Iterable[Machine]) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Functions by name, and triggers by name with their table."""
    functions, triggers = triggers_postgres.kernel_functions(), triggers_postgres.kernel_triggers()
    for machine in machines:
        functions |= triggers_postgres.machine_functions(machine)
        triggers |= triggers_postgres.machine_triggers(machine)
    return functions, triggers


def table_names(database: Database, cursor: Cursor) -> set[str]:
    """The tables of the ledger's schema."""
    if database.dialect == "sqlite":
        rows = cursor.rows("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    else:
        rows = cursor.rows("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    return {str(r[0]) for r in rows}


def _ddl(element: sa.schema.ExecutableDDLElement, dialect: str) -> str:
    return str(element.compile(dialect=_DIALECTS[dialect])).strip()

"""Making a ledger: the kernel's tables, the machines' tables, and every generated trigger.

Installing is idempotent: it creates what is missing and recreates all triggers. A ledger made by another program, or by
a newer one, is refused untouched.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from penstock.errors import LedgerBroken, LedgerMismatch
from penstock.ledger import triggers_postgres, triggers_sqlite
from penstock.ledger.database import Cursor, Database
from penstock.ledger.tables import SCHEMA_VERSION, kernel_tables, machine_table
from penstock.machine import Machine
from penstock.unit import NO_GATE

# The parameter style of psycopg would double every '%' in the CHECKs.
_PAGES_CHECKED = 8_000  # 32 MB: about half a second
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
        else:
            _refuse_other_columns(database, cursor, table)
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
    _refuse_newer(cursor)


def _refuse_newer(cursor: Cursor) -> None:
    rows = cursor.rows("SELECT value FROM penstock_meta WHERE name = 'schema_version'")
    if rows and int(rows[0][0]) > SCHEMA_VERSION:
        msg = f"the ledger has schema {rows[0][0]}, this program knows {SCHEMA_VERSION}; use a newer Penstock"
        raise LedgerMismatch(msg)


def _refuse_other_columns(database: Database, cursor: Cursor, table: sa.Table) -> None:
    """A table is never altered in passing: other columns than the declared ones need a migration."""
    if database.dialect == "sqlite":
        rows = cursor.rows("SELECT name FROM pragma_table_xinfo(:name)", name=table.name)
    else:
        rows = cursor.rows(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = :name",
            name=table.name,
        )
    there, wanted = {str(r[0]) for r in rows}, {c.name for c in table.columns}
    if there != wanted:
        differ = ", ".join(sorted(there ^ wanted))
        msg = (
            f"{database.url}: table {table.name} and this program differ in {differ}; the table needs a migration first"
        )
        raise LedgerMismatch(msg)


def _refuse_other_shape(database: Database, cursor: Cursor, machine: Machine, known: dict[str, Any]) -> None:
    """Edges and new states come with the triggers; a changed table, or a state taken from under its units, does not."""
    there, wanted = known.get("shape", {}), json.loads(json.dumps(machine.shape()))
    changed = sorted(part for part in wanted if there.get(part) != wanted[part])
    if changed:
        msg = f"{database.url}: table {machine.table} was made with other {', '.join(changed)}; it needs a migration first"
        raise LedgerMismatch(msg)
    for (status,) in cursor.rows(f"SELECT DISTINCT status FROM {machine.table}"):
        if status not in machine.states:
            msg = (
                f"{database.url}: {machine.name} no longer has the state {status}, and units are in it; move them first"
            )
            raise LedgerMismatch(msg)


def _definitions(database: Database, cursor: Cursor, machines: list[Machine]) -> None:
    rows = cursor.rows("SELECT name, definition FROM machine_definition")
    known = {str(n): json.loads(d) if isinstance(d, str) else d for n, d in rows}
    for machine in machines:
        if machine.name in known:
            _refuse_other_shape(database, cursor, machine, known[machine.name])
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
            definition=json.dumps({**machine.definition(), "shape": machine.shape()}),
            **database.bind_now(),
        )


def check_definitions(database: Database, machines: Mapping[str, Machine]) -> None:
    """Refuse to work on a ledger whose triggers were made from other definitions than this program's."""

    def work(cursor: Cursor) -> dict[str, str]:
        if database.dialect == "sqlite":
            _check_file(database, cursor)
        if "penstock_meta" not in table_names(database, cursor):
            msg = f"{database.url} is not a Penstock ledger yet; run 'penstock db upgrade'"
            raise LedgerMismatch(msg)
        _refuse_newer(cursor)
        return {str(n): str(d) for n, d in cursor.rows("SELECT name, digest FROM machine_definition")}

    known = database.read(work)
    stale = sorted(n for n, m in machines.items() if known.get(n) != m.digest())
    if stale:
        msg = f"{database.url}: the ledger's definition of {', '.join(stale)} is not this program's; run 'penstock db upgrade'"
        raise LedgerMismatch(msg)


def _check_file(database: Database, cursor: Cursor) -> None:
    """Find damage before the first write, which would change the file further; too large a file is not read through."""
    if cursor.rows("PRAGMA page_count")[0][0] > _PAGES_CHECKED:
        return
    problem = cursor.rows("PRAGMA quick_check(1)")[0][0]
    if problem != "ok":
        msg = f"{database.url.removeprefix('sqlite:///')}: {problem}; restore it from a backup, Penstock changes nothing in it"
        raise LedgerBroken(msg)


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
        # PostgreSQL keeps a trigger in words of its own; they are remembered, for the doctor to compare.
        cursor.run(
            "INSERT INTO penstock_meta (name, value) SELECT 'trigger ' || tgname, md5(pg_get_triggerdef(oid)) FROM pg_trigger"
            " WHERE tgname = :name AND tgrelid = CAST(:table AS regclass)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            name=name,
            table=table,
        )


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

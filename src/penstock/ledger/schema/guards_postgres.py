"""What the doctor finds wrong with the guards of a ledger in PostgreSQL (see `guards`).

Only the ledger's own schema and tables are looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.ledger.care.finding import Finding
from penstock.ledger.schema.triggers import HERE, expected_postgres, schema_of, wrong_functions, wrong_triggers
from penstock.ledger.store.database import Cursor
from penstock.model.machine import Machine

if TYPE_CHECKING:
    import sqlalchemy as sa

_AGAIN = "run 'penstock db upgrade'"


def tables(machines: Iterable[Machine]) -> list[sa.Table]:
    """The kernel's tables and those of machines."""
    from penstock.ledger.schema.tables import kernel_tables, machine_table

    return [*kernel_tables("postgresql"), *(machine_table(m, "postgresql") for m in machines)]


def checks(table: sa.Table) -> dict[str, str]:
    """The CHECKs of a table by name."""
    from penstock.ledger.schema import expand

    return expand.checks_of(table, "postgresql")


def triggers(
    cursor: Cursor, machines: list[Machine], tables: Collection[str], others: Collection[str]
) -> Iterator[Finding]:
    """Every generated trigger is there, as generated and switched on; nothing else stands between a table and SQL."""
    for name, what in _triggers(cursor, machines, tables, others):
        yield Finding("triggers", name, what)
    yield from _creators(cursor)


def _triggers(
    cursor: Cursor, machines: list[Machine], tables: Collection[str], others: Collection[str]
) -> Iterator[tuple[str, str]]:
    functions, expected = expected_postgres(cursor, machines, schema_of(cursor))
    yield from wrong_triggers(cursor, expected)
    rows = cursor.rows(
        "SELECT c.relname, t.tgname, t.tgenabled::text, t.tgisinternal FROM pg_trigger t"
        f" JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = {HERE}"
    )
    ours = {(table, name) for name, (table, _) in expected.items()}
    for table, name, _, internal in rows:
        if not internal and (table, name) not in ours and table in tables and name not in others:
            yield str(name), f"is a trigger of {table} that Penstock did not make; drop it"
    for table in sorted(
        {str(table) for table, _, enabled, internal in rows if internal and enabled != "O"} & {*tables}
    ):
        yield table, f"its foreign keys are switched off; ALTER TABLE {table} ENABLE TRIGGER ALL, then {_AGAIN}"
    yield from wrong_functions(cursor, functions)
    yield from _in_between(cursor, tables)


def _in_between(cursor: Cursor, tables: Collection[str]) -> Iterator[tuple[str, str]]:
    """What else can change or hide what a statement does to a table."""
    for table, rule in cursor.rows(
        "SELECT c.relname, r.rulename FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class"
        f" WHERE c.relnamespace = {HERE} AND c.relkind IN ('r', 'p')"
    ):
        if table in tables:
            yield str(table), f"the rule {rule} rewrites statements on it; drop it"
    for table, child in cursor.rows(
        "SELECT c.relname, i.inhrelid::regclass::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent"
        f" WHERE c.relnamespace = {HERE}"
    ):
        if table in tables:
            yield (
                str(table),
                f"{child} inherits from it: rows there count as its own and have no guards; use NO INHERIT",
            )
    for (table,) in cursor.rows(f"SELECT relname FROM pg_class WHERE relnamespace = {HERE} AND relrowsecurity"):
        if table in tables:
            yield str(table), "row security hides some of its rows; switch it off"


def _creators(cursor: Cursor) -> Iterator[Finding]:
    """Who else may create in the ledger's schema."""
    rows = cursor.rows(
        "SELECT quote_ident(n.nspname), CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END"
        " FROM pg_namespace n CROSS JOIN aclexplode(n.nspacl) a"
        f" WHERE n.oid = {HERE} AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner AND a.grantee <>"
        f" (SELECT relowner FROM pg_class WHERE relname = 'transition_log' AND relnamespace = {HERE}) ORDER BY 2"
    )
    for schema, role in rows:
        who = "anybody" if role == "PUBLIC" else role
        text = f"{who} may create what stands in for something else; REVOKE CREATE ON SCHEMA {schema} FROM {role}"
        yield Finding("triggers", schema, text, "warning")


def file(cursor: Cursor, tables: Iterable[sa.Table], broken: Iterable[str]) -> Iterator[Finding]:  # noqa: ARG001 - none
    """The server looks after its files."""
    yield from ()


def untold(cursor: Cursor, table: str, columns: list[str]) -> list[tuple[str, str]]:
    """Column to the condition under which the history tells another value. What it does not tell is left alone."""
    rows = cursor.rows(
        "SELECT attname FROM pg_attribute WHERE attrelid = CAST(quote_ident(:name) AS regclass)"
        " AND format_type(atttypid, atttypmod) = 'timestamp with time zone'",
        name=table,
    )
    moments = {str(row[0]) for row in rows}  # written down in whatever time zone the writer's session had
    return [
        (c, f"told.data ? '{c}' AND told.data -> '{c}' IS DISTINCT FROM COALESCE(to_jsonb(u.{c}), 'null')")
        for c in columns
        if c not in moments
    ]

"""What the doctor finds wrong with the guards of a ledger in PostgreSQL (see `guards`).

Only the ledger's own schema and tables are looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from penstock.ledger.care.finding import Finding
from penstock.ledger.schema.triggers import expected_postgres, schema_of
from penstock.ledger.schema.triggers_postgres import settings_of
from penstock.ledger.store.database import Cursor
from penstock.model.machine import Machine

if TYPE_CHECKING:
    import sqlalchemy as sa

_AGAIN = "run 'penstock db upgrade'"
_HERE = "current_schema()::regnamespace"


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
    rows = cursor.rows(
        "SELECT c.relname, t.tgname, t.tgenabled::text, t.tgisinternal, md5(pg_get_triggerdef(t.oid)) ="
        " (SELECT value FROM penstock_meta WHERE name = 'trigger ' || tgname) FROM pg_trigger t"
        f" JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = {_HERE}"
    )
    there = {(str(table), str(name)): (enabled, same) for table, name, enabled, internal, same in rows if not internal}
    for name, (table, _) in expected.items():
        enabled, same = there.pop((table, name), (None, None))
        if enabled is None:
            yield name, f"is missing; {_AGAIN}"
        elif enabled != "A":
            yield name, f"is switched off; {_AGAIN}"
        elif not same:
            yield name, f"was changed; {_AGAIN}"
    for table, name in there:
        if table in tables and name not in others:
            yield name, f"is a trigger of {table} that Penstock did not make; drop it"
    for table in sorted(
        {str(table) for table, _, enabled, internal, _ in rows if internal and enabled != "O"}.intersection(tables)
    ):
        yield table, f"its foreign keys are switched off; ALTER TABLE {table} ENABLE TRIGGER ALL, then {_AGAIN}"
    yield from _functions(cursor, functions)
    yield from _in_between(cursor, tables)


def _functions(cursor: Cursor, expected: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Bodies, settings and owners of the functions that triggers call."""
    rows = cursor.rows(
        "SELECT p.proname, p.prosrc, p.proconfig, p.prosecdef AND p.proowner = (SELECT relowner FROM pg_class"
        f" WHERE relname = 'transition_log' AND relnamespace = {_HERE}),"
        " has_function_privilege('public', p.oid, 'EXECUTE') FROM pg_proc p"
        f" WHERE p.pronamespace = {_HERE} AND p.pronargs = 0 AND p.proname LIKE 'penstock%'"
    )
    there = {str(name): rest for name, *rest in rows}
    for name, sql in expected.items():
        body, settings, owned, public = there.get(name, (None, None, None, None))
        if body != sql.split("$body$")[1]:
            yield name, f"has a function that is missing or was changed; {_AGAIN}"
        elif sorted(settings or ()) != sorted(settings_of(sql)):
            yield name, f"has a function with other settings; {_AGAIN}"
        elif not owned:
            yield name, f"has a function that does not run with the rights of the ledger's owner; {_AGAIN} as that role"
        elif public:
            yield name, f"has a function that anybody may call; {_AGAIN}"


def _in_between(cursor: Cursor, tables: Collection[str]) -> Iterator[tuple[str, str]]:
    """What else can change or hide what a statement does to a table."""
    for table, rule in cursor.rows(
        "SELECT c.relname, r.rulename FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class"
        f" WHERE c.relnamespace = {_HERE} AND c.relkind IN ('r', 'p')"
    ):
        if table in tables:
            yield str(table), f"the rule {rule} rewrites statements on it; drop it"
    for table, child in cursor.rows(
        "SELECT c.relname, i.inhrelid::regclass::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent"
        f" WHERE c.relnamespace = {_HERE}"
    ):
        if table in tables:
            yield (
                str(table),
                f"{child} inherits from it: rows there count as its own and have no guards; use NO INHERIT",
            )
    for (table,) in cursor.rows(f"SELECT relname FROM pg_class WHERE relnamespace = {_HERE} AND relrowsecurity"):
        if table in tables:
            yield str(table), "row security hides some of its rows; switch it off"


def _creators(cursor: Cursor) -> Iterator[Finding]:
    """Who else may create in the ledger's schema."""
    rows = cursor.rows(
        "SELECT quote_ident(n.nspname), CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END"
        " FROM pg_namespace n CROSS JOIN aclexplode(n.nspacl) a"
        f" WHERE n.oid = {_HERE} AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner AND a.grantee <>"
        f" (SELECT relowner FROM pg_class WHERE relname = 'transition_log' AND relnamespace = {_HERE}) ORDER BY 2"
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

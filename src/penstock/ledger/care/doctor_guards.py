"""The doctor and the guards: that every trigger is there and on, that nothing else is, and that no row slipped past.

Constraints can be switched off for a connection or a table, and on again without a look at what came in meanwhile; so
they are asked of every row here. On PostgreSQL only the ledger's own schema and tables are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import sqlalchemy as sa

from penstock.ledger.care.doctor_history import LARGEST
from penstock.ledger.care.finding import Finding
from penstock.ledger.schema import expand
from penstock.ledger.schema.definitions import stored
from penstock.ledger.schema.install import expected_postgres, expected_sqlite, schema_of
from penstock.ledger.schema.tables import kernel_tables, machine_table
from penstock.ledger.schema.triggers_postgres import settings_of
from penstock.ledger.store.database import Cursor, Database
from penstock.model.machine import Machine

_AGAIN = "run 'penstock db upgrade'"
_KINDS = ("birth", "guard", "key", "history", "death", "truncate")
_MOST = 20
_HERE = "current_schema()::regnamespace"


def triggers(database: Database, cursor: Cursor, machines: Mapping[str, Machine]) -> Iterator[Finding]:
    """Every generated trigger is there, as generated and switched on; nothing else stands between a table and SQL."""
    known = stored(cursor)
    installed = [machines[name] for name in known if name in machines]
    tables = {*(t.name for t in kernel_tables(database.dialect)), *(d["table"] for d in known.values())}
    others = {f"penstock_{name}_{kind}" for name in known if name not in machines for kind in _KINDS}
    find = _triggers_sqlite if database.dialect == "sqlite" else _triggers_postgres
    for name, what in find(cursor, installed, tables, others):
        yield Finding("triggers", name, what)
    if database.dialect == "postgresql":
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


def _triggers_sqlite(
    cursor: Cursor, machines: list[Machine], tables: set[str], others: set[str]
) -> Iterator[tuple[str, str]]:
    rows = cursor.rows("SELECT name, sql, tbl_name FROM sqlite_master WHERE type = 'trigger'")
    there = {str(name): str(sql) for name, sql, _ in rows}
    expected = expected_sqlite(cursor, machines)
    for name, sql in expected.items():
        if name not in there:
            yield name, f"is missing; {_AGAIN}"
        elif there[name] != sql:
            yield name, f"was changed; {_AGAIN}"
    for name, _, table in rows:
        # SQLite keeps the table's name as it was typed, in whatever case.
        if str(table).lower() in tables and name not in expected and name not in others:
            yield str(name), f"is a trigger of {table} that Penstock did not make; drop it"


def _triggers_postgres(
    cursor: Cursor, machines: list[Machine], tables: set[str], others: set[str]
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
        {str(table) for table, _, enabled, internal, _ in rows if internal and enabled != "O"} & tables
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


def _in_between(cursor: Cursor, tables: set[str]) -> Iterator[tuple[str, str]]:
    """What else can change or hide what a statement does to a table."""
    for table, rule in cursor.rows(
        "SELECT c.relname, r.rulename FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class"
        f" WHERE c.relnamespace = {_HERE} AND c.relkind IN ('r', 'p')"
    ):
        if table in tables:
            yield str(table), f"the rule {rule} stands between it and its statements; drop it"
    for table, child in cursor.rows(
        "SELECT c.relname, i.inhrelid::regclass::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent"
        f" WHERE c.relnamespace = {_HERE}"
    ):
        if table in tables:
            yield str(table), f"rows of {child}, which inherits it, are read as its own and have no guards; part them"
    for (table,) in cursor.rows(f"SELECT relname FROM pg_class WHERE relnamespace = {_HERE} AND relrowsecurity"):
        if table in tables:
            yield str(table), "row security hides rows of it from some; switch it off"


def constraints(database: Database, cursor: Cursor, machines: Mapping[str, Machine]) -> Iterator[Finding]:
    """Every row keeps the CHECKs of its table. On SQLite, keys and the file too."""
    known = stored(cursor)
    own = [m for name, m in machines.items() if name in known and known[name]["digest"] == m.digest()]
    broken = set()
    for table in (*kernel_tables(database.dialect), *(machine_table(m, database.dialect) for m in own)):
        checks = {**expand.checks_of(table, database.dialect), **_numbers(table, database.dialect)}
        if not checks:
            continue
        key = next(iter(table.primary_key.columns)).name if "unit_id" not in table.columns else "unit_id"
        cases = " ".join(f"WHEN NOT ({text}) THEN '{name}'" for name, text in checks.items())
        rows = cursor.rows(
            f"SELECT wrong, count(*), CAST(min({key}) AS text) FROM (SELECT {key}, CASE {cases} END AS wrong"
            f" FROM {table.name}) AS s WHERE wrong IS NOT NULL GROUP BY wrong ORDER BY wrong"
        )
        for check, count, which in rows:
            broken.add(table.name)
            text = f"{count:,} row{'s break' if count > 1 else ' breaks'} the check {check}, the first is {which}"
            yield Finding("constraints", table.name, text)
    if database.dialect == "sqlite":
        yield from _unstrict(cursor, [*kernel_tables(database.dialect), *(machine_table(m, "sqlite") for m in own)])
        yield from _sqlite_file(cursor, broken)


def _numbers(table: sa.Table, dialect: str) -> dict[str, str]:
    """What no constraint says: whole numbers are that, where SQLite keeps any value, and counts of changes can rise."""
    checks = {}
    if dialect == "sqlite":
        whole = [c.name for c in table.columns if isinstance(c.type, sa.Integer)]
        checks = {f"{name}_is_whole": f"typeof({name}) IN ('integer', 'null')" for name in whole}
    counts = [name for name in ("version", "wakes", "tallies") if name in table.columns]
    return checks | {f"{name}_can_rise": f"{name} < {LARGEST}" for name in counts}


def _unstrict(cursor: Cursor, tables: Iterable[sa.Table]) -> Iterator[Finding]:
    """Tables that somebody made anew without the word that keeps text out of numbers."""
    rows = cursor.rows("SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND NOT strict")
    loose = {str(row[0]) for row in rows}
    for table in tables:
        if table.name in loose:
            text = "its table is not STRICT: SQLite keeps any value in any of its columns; restore it from a backup"
            yield Finding("constraints", table.name, text)


def _sqlite_file(cursor: Cursor, broken: Iterable[str]) -> Iterator[Finding]:
    told = {f"CHECK constraint failed in {table}" for table in broken}
    for (line,) in cursor.rows(f"PRAGMA quick_check({_MOST})"):
        if line != "ok" and line not in told:
            yield Finding("constraints", "the file", str(line))
    dangling: dict[tuple[str, str], int] = {}
    for table, _, parent, _ in cursor.rows("PRAGMA foreign_key_check"):
        dangling[table, parent] = dangling.get((table, parent), 0) + 1
    for (table, parent), count in sorted(dangling.items()):
        yield Finding("constraints", table, f"{count:,} rows point to nothing in {parent}")

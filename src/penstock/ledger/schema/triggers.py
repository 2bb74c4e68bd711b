"""Every trigger that a ledger is to have, of the kernel's tables, of machines and of seals: told, compared, and made.

They are text: whoever only compares them loads no table.

A start makes only what is missing or was changed: on PostgreSQL, making a trigger locks its table against everybody who
works.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from penstock.ledger import outbox
from penstock.ledger.schema import (
    definitions,
    seals,
    seals_postgres,
    seals_sqlite,
    triggers_postgres,
    triggers_sqlite,
)
from penstock.ledger.schema.triggers_postgres import settings_of
from penstock.ledger.store.database import Cursor, Database
from penstock.model.machine import Machine

KERNEL_TABLES = frozenset(
    {
        *("event_log", "flow_hour", "gate", "gate_limit", "gate_log", "machine_definition", "penstock_meta"),
        *("prune_permit", "prune_probe", "stage", "subscription", "transition_log", "worker"),
    }
)
"""The names of the kernel's own tables."""
HERE = "current_schema()::regnamespace"
"""The schema of a ledger on PostgreSQL, to SQL."""
Wrong = Iterator[tuple[str, str]]
"""Name to what is wrong with it, and what to do."""
_AGAIN = "run 'penstock db upgrade'"


def make_triggers(database: Database, cursor: Cursor, machines: Iterable[Machine]) -> None:
    """Make each generated trigger that is missing or was changed, and drop those of seals that are declared no more."""
    (_make_sqlite if database.dialect == "sqlite" else _make_postgres)(cursor, list(machines))


def _make_sqlite(cursor: Cursor, machines: list[Machine]) -> None:
    rows = cursor.rows("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
    there = {str(name): str(sql) for name, sql in rows}
    expected = expected_sqlite(cursor, machines)
    for name in {*seals.names(machines)} & there.keys() - expected.keys():
        cursor.run(f"DROP TRIGGER {name}")
    for name, sql in expected.items():
        if there.get(name) != sql:
            cursor.run(f"DROP TRIGGER IF EXISTS {name}")
            cursor.run(sql)


def _make_postgres(cursor: Cursor, machines: list[Machine]) -> None:
    schema = schema_of(cursor)
    functions, triggers = expected_postgres(cursor, machines, schema)
    for name in {*seals.names(machines)} - functions.keys():
        cursor.run(f"DROP FUNCTION IF EXISTS {schema}.{name}() CASCADE")
    changed = {name for name, _ in wrong_functions(cursor, functions)}
    made = {name for name, _ in wrong_triggers(cursor, triggers)}
    if not changed | made:
        return
    ((path,),) = cursor.rows("SELECT current_setting('search_path')")
    # What a trigger's condition calls is looked up now, and must not be somebody's who may create in the schema.
    cursor.run("SET LOCAL search_path = pg_catalog, pg_temp")
    for name, sql in functions.items():
        if name in changed:
            cursor.run(sql)
            # It runs with its owner's rights: nobody else may make it the trigger of a table of theirs.
            cursor.run(f"REVOKE ALL ON FUNCTION {schema}.{name}() FROM PUBLIC")
    for name, (table, sql) in triggers.items():
        if name in made:
            cursor.run(f"DROP TRIGGER IF EXISTS {name} ON {schema}.{table}")
            cursor.run(f"CREATE TRIGGER {name} {sql}")
            cursor.run(f"ALTER TABLE {schema}.{table} ENABLE ALWAYS TRIGGER {name}")
    cursor.run("SELECT set_config('search_path', :path, true)", path=path)
    for name in made:
        # PostgreSQL keeps a trigger in words of its own; they are remembered beside ours, to compare it with.
        table, sql = triggers[name]
        cursor.run(
            "INSERT INTO penstock_meta (name, value)"
            " SELECT 'trigger ' || tgname, md5(pg_get_triggerdef(oid)) || ' ' || md5(CAST(:words AS text))"
            " FROM pg_trigger WHERE tgname = :name AND tgrelid = CAST(:table AS regclass)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            name=name,
            table=f"{schema}.{table}",
            words=sql,
        )


def wrong_functions(cursor: Cursor, expected: Mapping[str, str]) -> Wrong:
    """What is wrong with bodies, settings, owners and rights of the functions that triggers call on PostgreSQL."""
    rows = cursor.rows(
        "SELECT p.proname, p.prosrc, p.proconfig, p.prosecdef AND p.proowner = (SELECT relowner FROM pg_class"
        f" WHERE relname = 'transition_log' AND relnamespace = {HERE}),"
        " has_function_privilege('public', p.oid, 'EXECUTE') FROM pg_proc p"
        f" WHERE p.pronamespace = {HERE} AND p.pronargs = 0 AND p.proname LIKE 'penstock%'"
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


def wrong_triggers(cursor: Cursor, expected: Mapping[str, tuple[str, str]]) -> Wrong:
    """What is wrong with triggers on PostgreSQL: each is there, on its table, made of our words, and switched on."""
    rows = cursor.rows(
        "SELECT c.relname, t.tgname, t.tgenabled::text, md5(pg_get_triggerdef(t.oid)), m.value FROM pg_trigger t"
        " JOIN pg_class c ON c.oid = t.tgrelid LEFT JOIN penstock_meta m ON m.name = 'trigger ' || t.tgname"
        f" WHERE c.relnamespace = {HERE} AND NOT t.tgisinternal"
    )
    there = {(str(table), str(name)): (enabled, f"{now} ", made) for table, name, enabled, now, made in rows}
    for name, (table, sql) in expected.items():
        enabled, now, made = there.get((table, name), (None, "", None))
        if enabled is None:
            yield name, f"is missing; {_AGAIN}"
        elif enabled != "A":
            yield name, f"is switched off; {_AGAIN}"
        elif made != now + hashlib.md5(sql.encode(), usedforsecurity=False).hexdigest():
            yield name, f"was changed; {_AGAIN}"


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

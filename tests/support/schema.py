"""Everything a database says about its schema, one line per object, to compare two ledgers by."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.support.hand import Hand

_POSTGRES = """
SELECT 'table ' || relname, COALESCE(array_to_string(reloptions, ' '), '') || ' ' || relpersistence::text
  FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
UNION ALL
SELECT 'column ' || c.relname || '.' || a.attname, concat_ws(' ', format_type(a.atttypid, a.atttypmod),
       CASE WHEN a.attnotnull THEN 'NOT NULL' END, 'identity=' || a.attidentity::text,
       'generated=' || a.attgenerated::text, pg_get_expr(d.adbin, d.adrelid))
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT 'constraint ' || conrelid::regclass::text || ' ' || conname, pg_get_constraintdef(oid)
  FROM pg_constraint WHERE connamespace = current_schema()::regnamespace AND contype <> 'n'
UNION ALL SELECT 'index ' || indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()
UNION ALL
SELECT 'trigger ' || t.tgname, t.tgenabled::text || ' ' || pg_get_triggerdef(t.oid)
  FROM pg_trigger t WHERE NOT t.tgisinternal
UNION ALL SELECT 'function ' || proname, pg_get_functiondef(oid) FROM pg_proc
 WHERE pronamespace = current_schema()::regnamespace
UNION ALL SELECT 'view ' || viewname, definition FROM pg_views WHERE schemaname = current_schema()
"""


def describe(url: str) -> dict[str, str]:
    """Tables, columns with types and defaults, CHECKs, keys, indexes, triggers, functions and views, by name."""
    with Hand(url) as hand:
        rows = _sqlite(hand) if hand.dialect == "sqlite" else hand.type(_POSTGRES)
        return {str(name): str(text) for name, text in rows}


def compare(declared: dict[str, str], migrated: dict[str, str]) -> str:
    """What differs, one line each; empty when nothing does."""
    lines = []
    for name in sorted(declared.keys() | migrated.keys()):
        if declared.get(name) != migrated.get(name):
            lines += [f"{name}", f"    declared: {declared.get(name)}", f"    migrated: {migrated.get(name)}"]
    return "\n".join(lines)


def _sqlite(hand: Hand) -> Iterator[tuple[str, str]]:
    for table, without_rowid, strict in hand.type(
        "SELECT name, wr, strict FROM pragma_table_list WHERE schema = 'main' AND type = 'table'"
    ):
        if table.startswith("sqlite_"):
            continue
        ((sql,),) = hand.type(f"SELECT sql FROM sqlite_master WHERE type = 'table' AND name = '{table}'")
        yield f"table {table}", f"without_rowid={without_rowid} strict={strict} auto={'AUTOINCREMENT' in sql.upper()}"
        for _, name, kind, *rest in hand.type(f"SELECT * FROM pragma_table_xinfo('{table}')"):
            yield f"column {table}.{name}", f"{kind} {rest}"
        for name, text in _checks(sql):
            yield f"constraint {table} {name}", text
        for _, _, target, source, column, *rest in hand.type(f"SELECT * FROM pragma_foreign_key_list('{table}')"):
            yield f"foreign key {table}.{source}", f"{target}.{column} {rest}"
        for index in hand.type(f"SELECT name, \"unique\", origin, partial FROM pragma_index_list('{table}')"):
            columns = hand.type(f"SELECT name, desc, coll FROM pragma_index_xinfo('{index[0]}') WHERE key")
            yield f"index {table} {index[0] if index[2] == 'c' else index[2]}", f"{index[1:]} {columns}"
    for kind, name, sql in hand.type("SELECT type, name, sql FROM sqlite_master WHERE type <> 'table' AND sql <> ''"):
        yield f"{kind} {name}", " ".join(sql.split())


def _checks(sql: str) -> Iterator[tuple[str, str]]:
    for found in re.finditer(r"(?:CONSTRAINT\s+\"?(\w+)\"?\s+)?CHECK\s*(?=\()", sql, re.IGNORECASE):
        depth, end = 0, found.end()
        while depth or end == found.end():
            depth += {"(": 1, ")": -1}.get(sql[end], 0)
            end += 1
        text = " ".join(sql[found.end() : end].split())
        yield found[1] or f"unnamed {text}", text

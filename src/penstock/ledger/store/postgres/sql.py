"""What PostgreSQL writes in its own way (see `store.sql`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from psycopg.types.json import Jsonb

from penstock.ledger.store.postgres.connection import BY_INDEX

if TYPE_CHECKING:
    from penstock.ledger.store.database import Cursor
    from penstock.ledger.store.statements import SqlType


class PostgresSql:
    """Parameters are cast to the type of what they are compared with; rows are locked one by one."""

    transaction = "CAST(pg_current_xact_id() AS text)"
    history_key = "l.machine, l.unit_id, l.seq"
    locks_rows = True
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"

    def schema(self, cursor: Cursor) -> str:
        return str(cursor.rows("SELECT quote_ident(current_schema())")[0][0])

    def told(self, document: str, table: str, column: str) -> str:
        return f"(jsonb_populate_record(NULL::{table}, {document})).{column}"

    def with_last(self, rows: str, log: str, last: str) -> str:
        return f"{rows} CROSS JOIN LATERAL (SELECT h.* FROM {log} h {last}) l"

    def parameter(self, name: str, kind: SqlType) -> str:
        from penstock.ledger.store.statements import postgres_type

        return f"CAST(:{name} AS {postgres_type(kind)})"

    def instant(self, name: str) -> str:
        return f"CAST(:{name} AS timestamptz)"

    def day(self, name: str) -> str:
        return f"CAST(:{name} AS date)"

    def identifier(self, name: str) -> str:
        return f"CAST(:{name} AS uuid)"

    def decimal(self, name: str) -> str:
        return f"CAST(:{name} AS numeric)"

    def first_key(self, value: str) -> tuple[str, dict[str, str]]:  # noqa: ARG002 - see below
        # Text is sorted by a collation, in which the range would be another.
        return "true", {}

    def listed(self, name: str) -> str:
        return f"SELECT jsonb_array_elements_text(CAST(:{name} AS jsonb))"

    def gathered(self, column: str) -> str:
        return f"CAST(jsonb_agg({column}) AS text)"

    def earliest(self, moments: Sequence[str]) -> str:
        return f"LEAST({', '.join(moments)})" if moments else "NULL"  # which ignores NULL

    def latest(self, one: str, other: str) -> str:
        return f"GREATEST({one}, {other})"  # which ignores NULL

    def last_characters(self, text: str, count: int) -> str:
        return f"right({text}, {count})"

    def before_colon(self, text: str) -> str:
        return f"split_part({text}, ':', 1)"

    def hour(self, moment: str) -> str:
        return f"date_trunc('hour', {moment}, 'UTC')"

    def for_update(self, of: str = "", *, keys: bool = True, skip: bool = False) -> str:
        what = "UPDATE" if keys else "NO KEY UPDATE"
        return f" FOR {what}{f' OF {of}' if of else ''}{' SKIP LOCKED' if skip else ''}"

    def lock(self, cursor: Cursor, number: int, *, shared: bool = False) -> None:
        cursor.run(f"SELECT pg_advisory_xact_lock{'_shared' if shared else ''}({number})")

    def lock_events(self, cursor: Cursor) -> None:
        cursor.run("LOCK TABLE event_log IN SHARE ROW EXCLUSIVE MODE")

    def encoded(self, document: bytes) -> Jsonb:
        return Jsonb(document, dumps=bytes)

    def wait_for_locks(self, cursor: Cursor, milliseconds: int) -> None:
        cursor.run(f"SET LOCAL lock_timeout = {milliseconds}")

    def commit_lazily(self, cursor: Cursor) -> None:
        cursor.run("SET LOCAL synchronous_commit = off")

    def by_index(self, cursor: Cursor) -> None:
        settings = ", ".join(f"set_config('{name}', 'off', true)" for name in BY_INDEX)
        # Planned anew each time: a plan kept since its table was empty goes by any index whose first column fits.
        cursor.run(f"SELECT {settings}, set_config('plan_cache_mode', 'force_custom_plan', true)")

    def some_rows(self, table: str, key: Sequence[str], condition: str, limit: int) -> str:  # noqa: ARG002 - by place
        return f"ctid = ANY (ARRAY (SELECT ctid FROM {table} WHERE {condition} LIMIT {limit}))"

    def units_of_items(self, items: str, wanted: str, table: str, unit: str) -> str:
        # LATERAL with a lock: the planner goes item by item, whatever it believes of how many there are.
        return (
            f"WITH t AS MATERIALIZED (SELECT t.unit_id, t.version FROM {items} WHERE {wanted})"
            f" SELECT found.unit_id FROM t CROSS JOIN LATERAL (SELECT u.unit_id FROM {table} AS u WHERE {unit} LIMIT 1"
            " FOR NO KEY UPDATE SKIP LOCKED) AS found"
        )

    def writers(self, cursor: Cursor) -> list[str]:
        # Whoever inserts holds this lock until the transaction is over and seen by others; everybody may look at locks.
        rows = cursor.rows(
            "SELECT DISTINCT virtualtransaction FROM pg_locks WHERE granted AND mode = 'RowExclusiveLock'"
            " AND relation = CAST('transition_log' AS regclass) AND pid IS DISTINCT FROM pg_backend_pid()"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) ORDER BY 1"
        )
        return [str(row[0]) for row in rows]

    def home(self, cursor: Cursor) -> str | None:
        sql = "SELECT (SELECT system_identifier FROM pg_control_system()) || '/' || oid FROM pg_database"
        return str(cursor.rows(f"{sql} WHERE datname = current_database()")[0][0])

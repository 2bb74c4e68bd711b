"""What SQLite writes in its own way (see `store.sql`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.model.unit import key_part

if TYPE_CHECKING:
    from penstock.ledger.store.database import Cursor
    from penstock.ledger.store.statements import SqlType


class SqliteSql:
    """Instants, dates, identifiers and decimals are text that compares as they do; there is one writer at a time."""

    transaction = "'open'"
    history_key = "l.seq"
    locks_rows = False
    tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"

    def schema(self, cursor: Cursor) -> str:  # noqa: ARG002 - it is always called so
        return "main"

    def told(self, document: str, table: str, column: str) -> str:  # noqa: ARG002 - a value has the type that it had
        return f"{document} ->> '{column}'"

    def with_last(self, rows: str, log: str, last: str) -> str:
        return f"{rows} CROSS JOIN {log} l ON l.seq = (SELECT h.seq FROM {log} h {last})"

    def parameter(self, name: str, kind: SqlType) -> str:  # noqa: ARG002 - columns are text or numbers, as given
        return f":{name}"

    def instant(self, name: str) -> str:
        return f":{name}"

    def day(self, name: str) -> str:
        return f":{name}"

    def identifier(self, name: str) -> str:
        return f":{name}"

    def decimal(self, name: str) -> str:
        return f":{name}"

    def first_key(self, value: str) -> tuple[str, dict[str, str]]:
        # They are found by the primary key. '0' is what follows '/'.
        given = {"key_low": f"{key_part(value)}/", "key_high": f"{key_part(value)}0"}
        return "unit_id > :key_low AND unit_id < :key_high", given

    def listed(self, name: str) -> str:
        return f"SELECT value FROM json_each(:{name})"

    def gathered(self, column: str) -> str:
        return f"json_group_array({column})"

    def earliest(self, moments: Sequence[str]) -> str:
        if not moments:
            return "NULL"
        return f"(SELECT min(column1) FROM (VALUES {', '.join(f'({moment})' for moment in moments)}))"

    def latest(self, one: str, other: str) -> str:
        return f"max(COALESCE({one}, {other}), COALESCE({other}, {one}))"

    def last_characters(self, text: str, count: int) -> str:
        return f"substr({text}, -{count})"

    def before_colon(self, text: str) -> str:
        return f"substr({text}, 1, instr({text} || ':', ':') - 1)"

    def hour(self, moment: str) -> str:
        return f"substr({moment}, 1, 13) || ':00:00.000Z'"

    def for_update(self, of: str = "", *, keys: bool = True, skip: bool = False) -> str:  # noqa: ARG002 - one writer
        return ""

    def lock(self, cursor: Cursor, number: int, *, shared: bool = False) -> None:
        """There is one writer at a time."""

    def lock_events(self, cursor: Cursor) -> None:
        """There is one writer at a time."""

    def encoded(self, document: bytes) -> bytes:
        return document

    def wait_for_locks(self, cursor: Cursor, milliseconds: int) -> None:
        """Whoever writes has waited already."""

    def commit_lazily(self, cursor: Cursor) -> None:
        """It is a connection's setting, and cannot be changed in a transaction."""

    def by_index(self, cursor: Cursor) -> None:
        """It does."""

    def some_rows(self, table: str, key: Sequence[str], condition: str, limit: int) -> str:
        columns = ", ".join(key)
        return f"({columns}) IN (SELECT {columns} FROM {table} WHERE {condition} LIMIT {limit})"

    def units_of_items(self, items: str, wanted: str, table: str, unit: str) -> str:
        # It goes from left to right: from what bounds the items to the items to their units.
        return f"SELECT u.unit_id FROM {items} CROSS JOIN {table} AS u WHERE {wanted} AND {unit}"

    def writers(self, cursor: Cursor) -> list[str]:  # noqa: ARG002 - one writer at a time, who asks
        return []

    def home(self, cursor: Cursor) -> str | None:  # noqa: ARG002 - a file may be copied to anywhere
        return None

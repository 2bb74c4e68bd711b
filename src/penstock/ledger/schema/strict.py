"""STRICT tables of SQLite: a column keeps values of its own type, and nothing else.

SQLite keeps any value in any column unless its table is STRICT; then it knows five words for types and refuses every
other. So the words that SQLAlchemy has for whole numbers, truth values and floating-point numbers are put into these.
The kernel's tables and those of machines are STRICT; a data table is where it says so (`sqlite_strict=True`).
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite.base import SQLiteTypeCompiler

STRICT: dict[str, Any] = {"sqlite_strict": True}
"""What a table's declaration says to be STRICT on SQLite."""
# Words of the same kind: a ledger's column of one is as good as a program's of the other.
_SAME = {
    **dict.fromkeys(("bigint", "smallint", "int", "boolean"), "integer"),
    **dict.fromkeys(("double", "float", "double precision"), "real"),
}


class _Types(SQLiteTypeCompiler):
    def visit_BIGINT(self, type_: Any, **kw: Any) -> str:  # noqa: ARG002, N802 - the compiler's own names
        return "INTEGER"

    def visit_REAL(self, type_: Any, **kw: Any) -> str:  # noqa: ARG002, N802
        return "REAL"

    visit_SMALLINT = visit_BOOLEAN = visit_BIGINT  # noqa: N815
    visit_DOUBLE = visit_DOUBLE_PRECISION = visit_FLOAT = visit_REAL  # noqa: N815


def strict_types(dialect: sa.Dialect) -> sa.Dialect:
    """Have a dialect of SQLite write the types of STRICT tables. Returns it."""
    dialect.type_compiler_instance = _Types(dialect)
    return dialect


def is_strict(table: sa.Table) -> bool:
    """Whether the table is declared to be STRICT on SQLite."""
    return bool(table.dialect_options["sqlite"]["strict"])


def same_kind(word: str) -> str:
    """One word, in small letters, for all that mean the same kind of value to SQLite."""
    return _SAME.get(word, word)

"""The types of columns, the same for both databases: what each calls them, and which one a Python type has."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from penstock.model.errors import MachineError
from penstock.model.unit import Column


class Instant(sa.types.TypeDecorator[datetime]):
    """An aware UTC instant: TIMESTAMPTZ on PostgreSQL, sortable ISO text with milliseconds on SQLite."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(sa.DateTime(timezone=True) if dialect.name == "postgresql" else sa.Text())


class Day(sa.types.TypeDecorator[date]):
    """A date: DATE on PostgreSQL, ISO text on SQLite."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(sa.Date() if dialect.name == "postgresql" else sa.Text())


class Exact(sa.types.TypeDecorator[Decimal]):
    """An exact decimal: NUMERIC on PostgreSQL, text on SQLite (which has no exact decimals)."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(sa.Numeric() if dialect.name == "postgresql" else sa.Text())


class Identifier(sa.types.TypeDecorator[UUID]):
    """A UUID: UUID on PostgreSQL, text on SQLite."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(postgresql.UUID() if dialect.name == "postgresql" else sa.Text())


class Document(sa.types.TypeDecorator[Any]):
    """JSON: JSONB on PostgreSQL, text on SQLite."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(postgresql.JSONB() if dialect.name == "postgresql" else sa.Text())


class Payload(sa.types.TypeDecorator[str]):
    """A document kept as the text that came: JSON on PostgreSQL, which JSONB would take apart, and text on SQLite."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(postgresql.JSON() if dialect.name == "postgresql" else sa.Text())


_SQL_TYPES: dict[type, sa.types.TypeEngine[Any]] = {
    bool: sa.Boolean(create_constraint=False),
    int: sa.BigInteger(),
    float: sa.Double(),
    datetime: Instant(),
    date: Day(),
    Decimal: Exact(),
    UUID: Identifier(),
    dict: Document(),
    list: Document(),
    str: sa.Text(),
}


def sql_type(kind: type, spec: Column | None = None) -> sa.types.TypeEngine[Any]:
    """The column type of a Python type."""
    if spec is not None and spec.sql_type:
        return getattr(sa, spec.sql_type)()  # type: ignore[no-any-return]
    for known, type_ in _SQL_TYPES.items():
        if kind is known:
            return type_
    if isinstance(kind, type) and issubclass(kind, Enum):
        return sa.Text()
    msg = f"{kind!r} cannot be a column"
    raise MachineError(msg)

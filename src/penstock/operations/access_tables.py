"""Who may come in from afar: tokens, the sessions of browsers that signed in with one, and what was asked already."""

from __future__ import annotations

import sqlalchemy as sa

from penstock.ledger.schema.column_types import Instant

_metadata = sa.MetaData()

token = sa.Table(
    "token",
    _metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    # SHA-256 of its secret part, which is 256 random bits.
    sa.Column("hash", sa.Text, nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("expires_at", Instant, nullable=False),
    sa.Column("revoked_at", Instant),
    sa.Column("revoked_by", sa.Text),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

web_session = sa.Table(
    "web_session",
    _metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("token_id", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("expires_at", Instant, nullable=False),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

api_request = sa.Table(
    "api_request",
    _metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("who", sa.Text, primary_key=True),
    sa.Column("operation", sa.Text, nullable=False),
    # SHA-256 of all that was asked.
    sa.Column("digest", sa.Text, nullable=False),
    # What was answered; none while it is under way.
    sa.Column("answer", sa.Text),
    sa.Column("at", Instant, nullable=False),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

TABLES = (token, web_session, api_request)

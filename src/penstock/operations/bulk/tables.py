"""The items of bulk actions: which units were seen, in which version, and what became of each."""

from __future__ import annotations

import sqlalchemy as sa

from penstock.ledger.schema.column_types import Instant

bulk_item = sa.Table(
    "bulk_item",
    sa.MetaData(),
    sa.Column("action_id", sa.Text, primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("unit_id", sa.Text, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("part", sa.Integer, nullable=False),
    # NULL until its turn; then "moved", or why not.
    sa.Column("result", sa.Text),
    # When it was laid down: items whose action was never born are swept after a day.
    sa.Column("laid_at", Instant, nullable=False),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

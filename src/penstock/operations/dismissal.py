"""Dead letters that somebody has looked at and lets lie. A dismissal holds as long as the unit stays as it was."""

from __future__ import annotations

import sqlalchemy as sa

from penstock.ledger.schema.column_types import Instant

dismissal = sa.Table(
    "dismissal",
    sa.MetaData(),
    sa.Column("machine", sa.Text, primary_key=True),
    sa.Column("unit_id", sa.Text, primary_key=True),
    # The unit's version when it was dismissed: once it has changed, it is listed again.
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("changed_by", sa.Text, nullable=False),
    sa.Column("change_reason", sa.Text, nullable=False),
    sa.Column("changed_at", Instant, nullable=False),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

"""What the watch remembers of a policy and a subject between two looks."""

from __future__ import annotations

import sqlalchemy as sa

from penstock.ledger.schema.column_types import Instant

alert_memory = sa.Table(
    "alert_memory",
    sa.MetaData(),
    sa.Column("policy", sa.Text, primary_key=True),
    # Empty: of the policy itself, when it was last looked at.
    sa.Column("subject", sa.Text, primary_key=True),
    # Since when it has been true, since when it has not been, and when it was last seen.
    sa.Column("since", Instant, nullable=False),
    sa.Column("over_since", Instant),
    sa.Column("seen_at", Instant, nullable=False),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

"""What the ledger keeps of the spreadsheet: people's feedback, and how the synchronisation goes."""

from __future__ import annotations

import sqlalchemy as sa

from penstock.ledger.schema.column_types import Instant

_data = sa.MetaData()

#: What people wrote beside a company or an offer; an empty text where they took it back.
feedback = sa.Table(
    "feedback",
    _data,
    #: 'company' or 'offer'.
    sa.Column("kind", sa.Text, primary_key=True),
    #: The key of its row in the sheet: see `sheet_rows`.
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("text", sa.Text, nullable=False),
    #: When something was first read here, and when it was last seen to be another.
    sa.Column("read_at", Instant, nullable=False),
    sa.Column("changed_at", Instant, nullable=False),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

#: One row for each spreadsheet.
sheet_state = sa.Table(
    "sheet_state",
    _data,
    sa.Column("spreadsheet_id", sa.Text, primary_key=True),
    #: When it was last in step with the ledger.
    sa.Column("synced_at", Instant),
    #: Since when it fails, and why; NULL while it works.
    sa.Column("failing_since", Instant),
    sa.Column("last_error", sa.Text),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

SHEET_TABLES = (feedback, sheet_state)

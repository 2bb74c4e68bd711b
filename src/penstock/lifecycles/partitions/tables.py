"""The tables and views beside the machines': every evaluation of a run, and what is safe to read."""

from __future__ import annotations

import sqlalchemy as sa

from penstock.ledger.schema.column_types import Day, Instant
from penstock.raw.paths import ATTEMPT_TABLE, PARTITION_TABLE, PARTS

#: What became of an evaluated run: it became authoritative, it was rejected, it was rejected and the last good run
#: kept, or it was good and older than the authoritative one.
VERDICTS = ("success", "failed", "kept", "older")

partition_attempt = sa.Table(
    ATTEMPT_TABLE,
    sa.MetaData(),
    *(sa.Column(name, Day if name == "logical_date" else sa.Text, primary_key=True) for name in PARTS),
    sa.Column("run_id", sa.Text, primary_key=True),
    # The version of the state that it was judged on: two evaluations of a run never share it.
    sa.Column("state_version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at", Instant, nullable=False),
    sa.Column("verdict", sa.Text, nullable=False),
    sa.Column("error", sa.Text),
    sa.Column("record_count", sa.BigInteger),
    sa.Column("schema_version", sa.Text),
    sa.Column("judged_by", sa.Text, nullable=False),
    #: The offset that the run was extracted for, in seconds; NULL for one that a person had judged.
    sa.Column("serving_offset", sa.BigInteger),
    sa.Column("digest", sa.Text),
    #: Whether its rows differ from those of the good run before; NULL for the first.
    sa.Column("changed", sa.Boolean(create_constraint=False)),
    sa.CheckConstraint(f"verdict IN ({', '.join(repr(v) for v in VERDICTS)})", name="partition_attempt_verdict"),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

safe_partitions = (
    f"SELECT {', '.join(PARTS)}, current_run_id, schema_version, record_count, updated_at"
    f" FROM {PARTITION_TABLE} WHERE status = 'success'"
)

DATA_TABLES = (partition_attempt,)
VIEWS = {"safe_partitions": safe_partitions}

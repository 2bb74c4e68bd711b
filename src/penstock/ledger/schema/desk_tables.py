"""The kernel's tables that only people and pages read: what became of gates, and how many units took which edge."""

from __future__ import annotations

import sqlalchemy as sa

from penstock.ledger.schema.column_types import Instant
from penstock.ledger.schema.strict import STRICT

desk_tables = sa.MetaData()
GATE_CHANGES = ("closed", "opened", "probe", "paused", "resumed", "stopped", "budget")

# Append-only: a trigger sees to it. Written with the change of the gate, never for a call.
gate_log = sa.Table(
    "gate_log",
    desk_tables,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), sa.Identity(always=True), primary_key=True),
    sa.Column("gate_id", sa.Text, nullable=False),
    sa.Column("what", sa.Text, nullable=False),
    sa.Column("at", Instant, nullable=False),
    # Until when it is closed or its probe is out; NULL: until somebody or something opens it.
    sa.Column("until", Instant),
    sa.Column("by", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.CheckConstraint(f"what IN ({', '.join(map(repr, GATE_CHANGES))})", name="gate_log_what"),
    # As in transition_log: a number not yet drawn is seen as -1.
    sa.CheckConstraint("seq > 0", name="gate_log_seq").ddl_if(dialect="sqlite"),
    **STRICT,
)
sa.Index("gate_log_gate", gate_log.c.gate_id, gate_log.c.seq)
sa.Index("gate_log_at", gate_log.c.at)

# How many rows of the history tell of an edge within an hour. '' stands for NULL: a birth, a death, no trigger.
flow_hour = sa.Table(
    "flow_hour",
    desk_tables,
    sa.Column("machine", sa.Text, primary_key=True),
    sa.Column("hour", Instant, primary_key=True),
    sa.Column("from_status", sa.Text, primary_key=True),
    sa.Column("to_status", sa.Text, primary_key=True),
    sa.Column("trigger", sa.Text, primary_key=True),
    sa.Column("n", sa.BigInteger, nullable=False),
    # As many of them are no longer in the history: they were pruned.
    sa.Column("pruned", sa.BigInteger, nullable=False, server_default="0"),
    sqlite_with_rowid=False,
    **STRICT,
)

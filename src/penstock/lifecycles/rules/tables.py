"""What rules keep beside their units: versions of rules, the catalogue, locked SKUs, and what comparisons found.

Amounts are whole numbers of the currency's minor units, in columns that say so by the currency beside them.
"""

from __future__ import annotations

import sqlalchemy as sa

from penstock.ledger.schema.column_types import Document, Identifier, Instant

_data = sa.MetaData()
_FLAG = sa.Boolean(create_constraint=False)

#: Versions of rules. A version never changes; `current` is the one that a preview uses.
rule = sa.Table(
    "rule",
    _data,
    sa.Column("tenant_id", sa.Text, primary_key=True, server_default="default"),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("project_id", sa.Text, nullable=False, server_default="default"),
    sa.Column("account", sa.Text, nullable=False),
    sa.Column("currency", sa.Text, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("active", _FLAG, nullable=False, server_default=sa.true()),
    sa.Column("description", sa.Text, nullable=False, server_default=""),
    #: The rule as it was written, and its digest: the same digest is the same rule.
    sa.Column("definition", Document, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    #: Where it came from: the configuration, or a file.
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("current", _FLAG, nullable=False, server_default=sa.true()),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    #: When another took its place, or it was retired. NULL too where that was before this was kept.
    sa.Column("ended_at", Instant),
    sa.Index(
        "rule_in_force",
        "tenant_id",
        "name",
        unique=True,
        postgresql_where=sa.text("current"),
        sqlite_where=sa.text("current"),
    ),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

#: The prices of a rule that sets each SKU's own, for the version that they came with.
rule_price = sa.Table(
    "rule_price",
    _data,
    sa.Column("tenant_id", sa.Text, primary_key=True, server_default="default"),
    sa.Column("rule_name", sa.Text, primary_key=True),
    sa.Column("rule_version", sa.Integer, primary_key=True),
    sa.Column("sku", sa.Text, primary_key=True),
    sa.Column("unit_amount", sa.BigInteger, nullable=False),
    sa.Column("compare_at_amount", sa.BigInteger),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

#: The canonical catalogue: every variant of every account, as it was last read.
catalogue = sa.Table(
    "catalogue",
    _data,
    sa.Column("account", sa.Text, primary_key=True),
    sa.Column("variant_id", sa.Text, primary_key=True),
    sa.Column("product_id", sa.Text, nullable=False),
    sa.Column("sku", sa.Text, nullable=False),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("vendor", sa.Text, nullable=False),
    sa.Column("tags", Document, nullable=False),
    sa.Column("currency", sa.Text, nullable=False),
    sa.Column("unit_amount", sa.BigInteger, nullable=False),
    sa.Column("compare_at_amount", sa.BigInteger),
    sa.Column("cost_amount", sa.BigInteger),
    sa.Column("reference_amount", sa.BigInteger),
    sa.Column("source_updated_at", Instant),
    #: The reading of the catalogue that saw it last. What the last whole reading did not see is not there any more.
    sa.Column("seen_in", sa.BigInteger, nullable=False),
    sa.Column("seen_at", Instant, nullable=False),
    sa.Index("catalogue_sku", "account", "sku"),
    sqlite_strict=True,
)

#: The last whole reading of each account's catalogue.
catalogue_reading = sa.Table(
    "catalogue_reading",
    _data,
    sa.Column("account", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("variants", sa.BigInteger, nullable=False),
    sa.Column("read_at", Instant, nullable=False),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

#: SKUs that no rule touches; a row stays when it is unlocked, and says who did what.
locked_sku = sa.Table(
    "locked_sku",
    _data,
    sa.Column("account", sa.Text, primary_key=True),
    sa.Column("sku", sa.Text, primary_key=True),
    sa.Column("locked", _FLAG, nullable=False),
    sa.Column("changed_by", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("changed_at", Instant, nullable=False),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

#: Every lock and unlock; `locked_sku` has the last of each SKU.
locked_sku_log = sa.Table(
    "locked_sku_log",
    _data,
    sa.Column("account", sa.Text, primary_key=True),
    sa.Column("sku", sa.Text, primary_key=True),
    sa.Column("changed_at", Instant, primary_key=True),
    sa.Column("locked", _FLAG, nullable=False),
    sa.Column("changed_by", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

#: A comparison of a run's applied targets with the live prices.
reconciliation_report = sa.Table(
    "reconciliation_report",
    _data,
    sa.Column("id", Identifier, primary_key=True),
    sa.Column("rule_run_id", Identifier, nullable=False),
    sa.Column("tenant_id", sa.Text, nullable=False, server_default="default"),
    #: 'immediate', 'delayed', 'periodic', or 'by hand'.
    sa.Column("occasion", sa.Text, nullable=False),
    sa.Column("started_at", Instant, nullable=False),
    sa.Column("finished_at", Instant),
    sa.Column("total_checked", sa.BigInteger, nullable=False),
    sa.Column("mismatches", sa.BigInteger, nullable=False),
    #: Targets that a later run has set again.
    sa.Column("superseded", sa.BigInteger, nullable=False),
    #: Targets that could not be compared: their variant is gone.
    sa.Column("missing", sa.BigInteger, nullable=False),
    sa.Index("reconciliation_report_run", "rule_run_id", "started_at"),
    sqlite_strict=True,
)

reconciliation_mismatch = sa.Table(
    "reconciliation_mismatch",
    _data,
    sa.Column("report_id", Identifier, primary_key=True),
    sa.Column("target_id", sa.Text, primary_key=True),
    sa.Column("rule_run_id", Identifier, nullable=False),
    sa.Column("sku", sa.Text, nullable=False),
    #: In minor units; `actual` is NULL where the variant is gone, and the difference with it.
    sa.Column("expected", sa.BigInteger, nullable=False),
    sa.Column("actual", sa.BigInteger),
    sa.Column("difference", sa.BigInteger),
    sa.Column("expected_compare_at", sa.BigInteger),
    sa.Column("actual_compare_at", sa.BigInteger),
    sa.Column("currency", sa.Text, nullable=False),
    sa.Column("at", Instant, nullable=False),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

DATA_TABLES = (
    rule,
    rule_price,
    catalogue,
    catalogue_reading,
    locked_sku,
    locked_sku_log,
    reconciliation_report,
    reconciliation_mismatch,
)

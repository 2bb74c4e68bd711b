"""Data of the reports: the rows that were loaded, what every load changed, how far each account's window reaches."""

from __future__ import annotations

import sqlalchemy as sa

from penstock.ledger.schema.column_types import Day, Exact, Instant
from penstock.ledger.stage import Staged
from penstock.lifecycles.reports.machine import machine

_data = sa.MetaData()

performance_row = sa.Table(
    "performance_row",
    _data,
    sa.Column("stage_id", sa.Text, primary_key=True),
    sa.Column("campaign_id", sa.Text, primary_key=True),
    sa.Column("ad_group_id", sa.Text, primary_key=True),
    #: The target, or the advertised product.
    sa.Column("entity_id", sa.Text, primary_key=True),
    sa.Column("entity", sa.Text),
    #: The match type of a target, the SKU of a product.
    sa.Column("variant", sa.Text),
    sa.Column("impressions", sa.BigInteger, nullable=False),
    sa.Column("clicks", sa.BigInteger, nullable=False),
    sa.Column("cost", Exact, nullable=False),
    sa.Column("sales", Exact, nullable=False),
    sa.Column("purchases", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

#: One row per load of a dataset: what `penstock reports cadence` is made of.
report_load = sa.Table(
    "report_load",
    _data,
    sa.Column("unit_id", sa.Text, primary_key=True),
    sa.Column("report_id", sa.Text, primary_key=True),
    sa.Column("aggregation", sa.Text, nullable=False),
    sa.Column("entity_type", sa.Text, nullable=False),
    sa.Column("serving_offset", sa.BigInteger, nullable=False),
    sa.Column("loaded_at", Instant, nullable=False),
    sa.Column("row_count", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("impressions", sa.BigInteger, nullable=False),
    sa.Column("clicks", sa.BigInteger, nullable=False),
    sa.Column("cost", sa.Double, nullable=False),
    sa.Column("sales", sa.Double, nullable=False),
    #: Against the load before; NULL for the first.
    sa.Column("changed", sa.Boolean(create_constraint=False)),
    sa.Column("rows_difference", sa.BigInteger),
    sa.Column("cost_difference", sa.Double),
    sa.Column("sales_difference", sa.Double),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

#: How far back and how far ahead the datasets of an account have been made.
report_account = sa.Table(
    "report_account",
    _data,
    sa.Column("account", sa.Text, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("time_zone", sa.Text, nullable=False),
    sa.Column("country", sa.Text, nullable=False),
    sa.Column("daily_from", Day),
    sa.Column("daily_through", Day),
    sa.Column("hourly_from", Instant),
    sa.Column("hourly_through", Instant),
    sa.Column("changed_at", Instant, nullable=False),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

DATA_TABLES = (performance_row, report_load, report_account)
PERFORMANCE = Staged(performance_row, machine, pointer="loaded_stage", on_conflict="error")

_MEASURES = (
    "r.campaign_id, r.ad_group_id, r.entity_id, r.entity, r.variant,"
    " r.impressions, r.clicks, r.cost, r.sales, r.purchases, u.loaded_report_id AS report_id, u.loaded_at"
)

VIEWS = {
    "performance_daily": (
        f"SELECT u.account, u.country, u.report_date, u.entity_type, {_MEASURES} FROM {PERFORMANCE.visible}"
        " WHERE u.aggregation = 'daily'"
    ),
    "performance_hourly": (
        f"SELECT u.account, u.country, u.report_date, u.timestamp, u.entity_type, {_MEASURES}"
        f" FROM {PERFORMANCE.visible} WHERE u.aggregation = 'hourly'"
    ),
}
"""Half a report is never visible: a dataset shows the rows of the report that it points at, and no other (P9)."""

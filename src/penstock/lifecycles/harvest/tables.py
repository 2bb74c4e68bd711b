"""The data of a harvest: raw records as they came, the canonical ones, prices' rules, watermarks, what was set aside.

Prices are exact: NUMERIC on PostgreSQL, decimal text on SQLite. Text, because SQLite's own numbers are binary, and
minor units in an integer would have to know every currency's; nothing on SQLite computes with a price in SQL.
"""

from __future__ import annotations

import sqlalchemy as sa

from penstock.ledger.schema.column_types import Document, Exact, Identifier, Instant, Payload

_data = sa.MetaData()
_FLAG = sa.Boolean(create_constraint=False)
POSITIONS = 1_000_000_000
"""How many positions each partition of a run has: a raw row's is `ordinal * POSITIONS` plus its offset."""


raw_diamonds_nivoda = sa.Table(
    "raw_diamonds_nivoda",
    _data,
    sa.Column("run_id", Identifier, primary_key=True),
    sa.Column("supplier_stone_id", sa.Text, primary_key=True),
    sa.Column("partition_id", sa.Text, nullable=False),
    #: Where it was found: the order in which chunks take it.
    sa.Column("position", sa.BigInteger, nullable=False),
    sa.Column("offer_id", sa.Text, nullable=False),
    sa.Column("payload", Payload, nullable=False),
    sa.Column("payload_hash", sa.Text, nullable=False),
    sa.Column("source_updated_at", Instant),
    sa.Column("fetched_at", Instant, nullable=False),
    sa.Column("consolidated", _FLAG, nullable=False, server_default=sa.false()),
    sa.Index("raw_diamonds_nivoda_position", "run_id", "position"),
    # Marking a row consolidated writes it anew: with room for that on its page no index learns of it.
    postgresql_with={"fillfactor": 50},
    sqlite_strict=True,
)

diamonds = sa.Table(
    "diamonds",
    _data,
    sa.Column("feed", sa.Text, primary_key=True),
    sa.Column("supplier_stone_id", sa.Text, primary_key=True),
    sa.Column("offer_id", sa.Text, nullable=False),
    sa.Column("shape", sa.Text),
    sa.Column("carat", Exact),
    sa.Column("color", sa.Text),
    sa.Column("clarity", sa.Text),
    sa.Column("cut", sa.Text),
    sa.Column("lab", sa.Text),
    sa.Column("certificate_number", sa.Text),
    sa.Column("availability", sa.Text),
    sa.Column("currency", sa.Text, nullable=False),
    sa.Column("supplier_price", Exact, nullable=False),
    sa.Column("price", Exact, nullable=False),
    sa.Column("pricing_rule_id", sa.BigInteger),
    #: The rules that priced it, as `harvest_pricing` has their digest; of those in force, or it is priced again.
    sa.Column("pricing_digest", sa.Text, nullable=False, server_default=""),
    sa.Column("source_updated_at", Instant),
    sa.Column("payload_hash", sa.Text, nullable=False),
    sa.Column("first_seen_run_id", Identifier, nullable=False),
    sa.Column("last_seen_run_id", Identifier, nullable=False),
    sa.Column("updated_at", Instant, nullable=False),
    #: The full run that was the first not to see it since it was last seen.
    sa.Column("missed_by_run_id", Identifier),
    sa.Column("deleted_at", Instant),
    sa.Index("diamonds_pricing", "feed", "pricing_digest"),
    # With a rowid on SQLite: keys come in no order, and each dirties a page of a small index instead of a page of rows.
    sqlite_strict=True,
)

#: A rule's NULL matches anything. The lowest priority number wins, ties by id.
pricing_rules = sa.Table(
    "pricing_rules",
    _data,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("active", _FLAG, nullable=False, server_default=sa.true()),
    sa.Column("feed", sa.Text),
    sa.Column("shape", sa.Text),
    sa.Column("color", sa.Text),
    sa.Column("clarity", sa.Text),
    sa.Column("lab", sa.Text),
    sa.Column("carat_from", Exact),
    sa.Column("carat_to", Exact),
    sa.Column("price_from", Exact),
    sa.Column("price_to", Exact),
    #: A share of the supplier's price on top of it, or an amount; one of the two.
    sa.Column("margin", Exact),
    sa.Column("absolute", Exact),
    #: The price is rounded to a multiple of this, in that way.
    sa.Column("rounding", Exact),
    sa.Column("rounding_mode", sa.Text, nullable=False, server_default="half_up"),
    sa.CheckConstraint("(margin IS NULL) <> (absolute IS NULL)", name="pricing_rules_one_kind"),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

watermark = sa.Table(
    "watermark",
    _data,
    sa.Column("feed", sa.Text, primary_key=True),
    sa.Column("last_updated_at", Instant, nullable=False),
    sa.Column("last_run_id", Identifier),
    sa.Column("last_run_completed_at", Instant),
    #: 'published', 'unpublished' or 'conflict': somebody else wrote the blob.
    sa.Column("publication", sa.Text, nullable=False),
    sa.Column("published_at", Instant),
    sa.Column("etag", sa.Text),
    #: Who set it by hand, and why; NULL when a run did.
    sa.Column("set_by", sa.Text),
    sa.Column("set_reason", sa.Text),
    sa.CheckConstraint("publication IN ('published', 'unpublished', 'conflict')", name="watermark_publication"),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

#: The rules that a run was priced by: its chunks all use these, whatever becomes of the table meanwhile.
harvest_pricing = sa.Table(
    "harvest_pricing",
    _data,
    sa.Column("run_id", Identifier, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("rules", Document, nullable=False),
    sa.Column("loaded_at", Instant, nullable=False),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

#: When records were priced again because the rules had changed, and what came of it. A feed has one under way at most.
harvest_reprice = sa.Table(
    "harvest_reprice",
    _data,
    sa.Column("feed", sa.Text, primary_key=True),
    sa.Column("begun_at", Instant, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False),
    #: 'running', 'completed', or 'superseded': the rules changed once more before it was done.
    sa.Column("status", sa.Text, nullable=False),
    #: Records to be priced when it began, priced so far, and those of them whose price is another.
    sa.Column("expected", sa.BigInteger, nullable=False),
    sa.Column("records", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("changed", sa.BigInteger, nullable=False, server_default="0"),
    #: Records that the rules make no price of; they keep the one that they had.
    sa.Column("unpriced", sa.BigInteger, nullable=False, server_default="0"),
    #: Who asked for it, and why; NULL: nobody, a rule had changed.
    sa.Column("requested_by", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("finished_at", Instant),
    sa.CheckConstraint("status IN ('running', 'completed', 'superseded')", name="harvest_reprice_status"),
    sa.Index(
        "harvest_reprice_running",
        "feed",
        unique=True,
        postgresql_where=sa.text("status = 'running'"),
        sqlite_where=sa.text("status = 'running'"),
    ),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

#: Raw rows that could not be mapped, each with its reason; the payload is in the raw row of the same key.
harvest_rejected = sa.Table(
    "harvest_rejected",
    _data,
    sa.Column("run_id", Identifier, primary_key=True),
    sa.Column("identity", sa.Text, primary_key=True),
    sa.Column("feed", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("at", Instant, nullable=False),
    #: When a later consolidation of the run could map it after all.
    sa.Column("resolved_at", Instant),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

#: What the last scan of each kind counted, for the next one: a list of [low, high, count].
harvest_density = sa.Table(
    "harvest_density",
    _data,
    sa.Column("feed", sa.Text, primary_key=True),
    sa.Column("run_type", sa.Text, primary_key=True),
    sa.Column("spans", Document, nullable=False),
    sa.Column("calls", sa.Integer, nullable=False),
    sa.Column("at", Instant, nullable=False),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

#: The last run that somebody asked for, and the one it came to; NULL while nobody has taken it up.
harvest_request = sa.Table(
    "harvest_request",
    _data,
    sa.Column("feed", sa.Text, primary_key=True),
    sa.Column("run_type", sa.Text),
    sa.Column("requested_at", Instant, nullable=False),
    sa.Column("requested_by", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("run_id", Identifier),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

DATA_TABLES = (
    raw_diamonds_nivoda,
    diamonds,
    pricing_rules,
    watermark,
    harvest_pricing,
    harvest_reprice,
    harvest_rejected,
    harvest_density,
    harvest_request,
)

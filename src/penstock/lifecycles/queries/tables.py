"""What queries keep beside their units: runs, offers, who lists them, companies, what was set aside, and own tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from penstock.ledger.schema.column_types import Day, Document, Exact, Identifier, Instant, Payload
from penstock.lifecycles.queries.settings import RUN_GATE, QueriesSettings

_data = sa.MetaData()
_FLAG = sa.Boolean(create_constraint=False)
# Rows of two to four kilobytes, as most offers are, stay as they are: PostgreSQL would compress the longest text of
# each, which saves a tenth and takes a third of the insertion.
_WHOLE: dict[str, Any] = {"postgresql_with": {"toast_tuple_target": 4080}}


_ERASED = sa.text("erased_at IS NOT NULL")


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


#: One row per execution. `status` is the state that it left its query in, `stopped_by` why it stopped.
ingestion_runs = sa.Table(
    "ingestion_runs",
    _data,
    sa.Column("id", Identifier, primary_key=True),
    sa.Column("query_key", sa.Text, nullable=False),
    sa.Column("client", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    _count("pages_fetched"),
    _count("offers_fetched"),
    _count("requests_count"),
    _count("http_429_count"),
    _count("errors_count"),
    _count("companies_aggregated"),
    _count("companies_failed"),
    _count("new"),
    _count("changed"),
    _count("closed"),
    sa.Column("stopped_by", sa.Text),
    sa.Column("error", sa.Text),
    sa.Column("started_at", Instant, nullable=False),
    sa.Column("finished_at", Instant),
    sa.Index("ingestion_runs_query", "query_key", "started_at"),
    sa.Index("ingestion_runs_started", "started_at"),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

#: Job offers of all clients. One that is like an earlier one is linked to it: `link_kind` repost or duplicate.
offers = sa.Table(
    "offers",
    _data,
    sa.Column("client", sa.Text, primary_key=True),
    sa.Column("offer_id", sa.Text, primary_key=True),
    sa.Column("title", sa.Text),
    sa.Column("company", sa.Text),
    sa.Column("company_ref", sa.Text),
    sa.Column("city", sa.Text),
    sa.Column("province", sa.Text),
    sa.Column("country", sa.Text),
    sa.Column("url", sa.Text),
    sa.Column("category", sa.Text),
    sa.Column("contract_type", sa.Text),
    sa.Column("salary_min", Exact),
    sa.Column("salary_max", Exact),
    sa.Column("salary_period", sa.Text),
    sa.Column("published_at", Instant),
    sa.Column("updated_at", Instant, nullable=False),
    sa.Column("company_key", sa.Text),
    sa.Column("likeness", sa.Text),
    sa.Column("linked_client", sa.Text),
    sa.Column("linked_offer_id", sa.Text),
    sa.Column("link_kind", sa.Text),
    #: The digest of what it says; another one is a change.
    sa.Column("content_hash", sa.Text, nullable=False),
    sa.Column("first_seen_at", Instant, nullable=False),
    sa.Column("last_seen_at", Instant, nullable=False),
    #: When every query that listed it had been read without it.
    sa.Column("closed_at", Instant),
    sa.Column("erased_at", Instant),
    # What is long comes last: whoever reads the others does not read through it.
    sa.Column("description", sa.Text),
    sa.Column("payload", Payload),
    sa.Index("offers_likeness", "likeness"),
    sa.Index("offers_company", "company_key"),
    # With a rowid on SQLite: rows are long, and a tree of them by their key would be deep, a few to a page.
    sqlite_strict=True,
    **_WHOLE,
)

#: Which query lists which offer. `seen_in` is the reading that saw it last, `gone_at` when one did without it.
query_offers = sa.Table(
    "query_offers",
    _data,
    sa.Column("query_key", sa.Text, primary_key=True),
    sa.Column("offer_id", sa.Text, primary_key=True),
    sa.Column("client", sa.Text, nullable=False),
    sa.Column("record_at", Instant, nullable=False),
    sa.Column("seen_in", sa.BigInteger, nullable=False),
    sa.Column("gone_at", Instant),
    sa.Index("query_offers_date", "query_key", "record_at"),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

#: Companies, aggregated from their offers; `stale` until that is done again.
companies = sa.Table(
    "companies",
    _data,
    sa.Column("company_key", sa.Text, primary_key=True),
    sa.Column("name", sa.Text),
    sa.Column("cities", Document),
    _count("offers_total"),
    _count("offers_open"),
    sa.Column("first_seen_at", Instant, nullable=False),
    sa.Column("last_seen_at", Instant, nullable=False),
    sa.Column("aggregated_at", Instant),
    sa.Column("stale", _FLAG, nullable=False, server_default=sa.true()),
    #: Why it could not be aggregated.
    sa.Column("failed", sa.Text),
    sa.Column("erased_at", Instant),
    sa.Index("companies_stale", "company_key", postgresql_where=sa.text("stale"), sqlite_where=sa.text("stale")),
    sa.Index("companies_erased", "company_key", postgresql_where=_ERASED, sqlite_where=_ERASED),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

#: Records that could not be used, as they came, and why. A record that is set aside again has one row.
rejected_records = sa.Table(
    "rejected_records",
    _data,
    sa.Column("query_key", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("run_id", Identifier, nullable=False),
    sa.Column("record_id", sa.Text),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("payload", sa.Text),
    sa.Column("first_seen_at", Instant, nullable=False),
    sa.Column("last_seen_at", Instant, nullable=False),
    sa.Index("rejected_records_seen", "last_seen_at"),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

#: Pages that were landed in the raw sink, for records that have a table of their own.
landed_pages = sa.Table(
    "landed_pages",
    _data,
    sa.Column("partition", sa.Text, primary_key=True),
    sa.Column("raw_run_id", sa.Text, primary_key=True),
    sa.Column("query_key", sa.Text, nullable=False),
    sa.Column("run_id", Identifier, nullable=False),
    sa.Column("records", sa.BigInteger, nullable=False),
    #: The copy that took its place when a record was erased from it.
    sa.Column("replaced_by", sa.Text),
    sa.Column("landed_at", Instant, nullable=False),
    sa.Index("landed_pages_query", "query_key", "landed_at"),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

#: Records that were erased, by their client: whatever a provider lists later, nothing of them is kept again.
erased_records = sa.Table(
    "erased_records",
    _data,
    sa.Column("client", sa.Text, primary_key=True),
    sa.Column("record_id", sa.Text, primary_key=True),
    sa.Column("erased_at", Instant, nullable=False),
    sqlite_with_rowid=False,
    sqlite_strict=True,
)

DATA_TABLES = (ingestion_runs, offers, query_offers, companies, rejected_records, landed_pages, erased_records)

VIEWS: Mapping[str, str] = {
    # The run lock is the claim itself: who holds it, with what, and since when.
    "run_lock": (
        f"SELECT '{RUN_GATE}' AS name, q.claimed_by AS held_by, w.host, w.pid, q.query_key, q.status, q.claimed_at"
        " AS held_since, q.version AS fence FROM query_state q JOIN worker w ON w.id = q.claimed_by"
        " WHERE q.claimed_by IS NOT NULL"
        f" UNION ALL SELECT '{RUN_GATE}', e.claimed_by, w.host, w.pid, 'erasure ' || e.unit_id, e.status, e.claimed_at,"
        " e.version FROM erasure e JOIN worker w ON w.id = e.claimed_by WHERE e.claimed_by IS NOT NULL"
    ),
}

_TYPES: Mapping[str, sa.types.TypeEngine[Any]] = {
    "text": sa.Text(),
    "integer": sa.BigInteger(),
    "number": sa.Double(),
    "boolean": _FLAG,
    "instant": Instant(),
    "date": Day(),
    "json": Document(),
}


def own_tables(settings: QueriesSettings) -> list[sa.Table]:
    """The tables that sources with a shape of their own declare."""
    return [
        own_table(own.table, {name: field.type for name, field in own.fields.items()})
        for own in settings.rest_json.values()
        if own.table is not None
    ]


def own_table(name: str, fields: Mapping[str, str]) -> sa.Table:
    """A table of records: one row for each query that lists a record."""
    return sa.Table(
        name,
        sa.MetaData(),
        sa.Column("query_key", sa.Text, primary_key=True),
        sa.Column("record_id", sa.Text, primary_key=True),
        sa.Column("record_at", Instant, nullable=False),
        sa.Column("content_hash", sa.Text, nullable=False),
        sa.Column("seen_in", sa.BigInteger, nullable=False),
        sa.Column("first_seen_at", Instant, nullable=False),
        sa.Column("last_seen_at", Instant, nullable=False),
        sa.Column("gone_at", Instant),
        sa.Column("erased_at", Instant),
        # What may be long comes last; with a rowid on SQLite, as `offers`.
        *(sa.Column(field, _TYPES[kind]) for field, kind in fields.items()),
        sa.Column("payload", Payload),
        sa.Index(f"{name}_date", "query_key", "record_at"),
        sqlite_strict=True,
        **_WHOLE,
    )

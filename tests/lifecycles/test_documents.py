"""Our tables against those of the specifications, as PostgreSQL understands both: columns, defaults, constraints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.ledger.ledger import Ledger
from penstock.lifecycles.harvest import MACHINES as HARVEST
from penstock.lifecycles.partitions.machine import MACHINES as PARTITIONS
from penstock.lifecycles.reports.machine import machine as report
from penstock.lifecycles.rules import MACHINES as RULES
from tests.support.databases import temporary_database

HERE = Path(__file__).parent
_NAMED = re.compile(r"^-- name: (?:ddl_)?(\w+)\n(.*?;)$", re.DOTALL | re.MULTILINE)
_FILES = (HERE / "harvest" / "seed.sql", HERE / "documents.sql")
DDL = {
    name: sql for file in _FILES for name, sql in _NAMED.findall(file.read_text()) if f"CREATE TABLE {name} (" in sql
}
#: In the order of creation.
TABLES = (
    *("run_metadata", "worker_runs", "partition_progress"),
    *("partition_state", "report_dataset_metadata", "rule_run", "rule_target"),
)
#: Of these no key is printed: ours is the unit's.
KEYLESS = ("report_dataset_metadata", "rule_target")

_NEVER_UNKNOWN = "the document allows NULL, and nothing would know what to make of one"
#: Where ours is NOT NULL and the document's is not.
STRICTER = {
    ("run_metadata", "completed_workers"): _NEVER_UNKNOWN,
    ("run_metadata", "failed_workers"): _NEVER_UNKNOWN,
    ("run_metadata", "started_at"): _NEVER_UNKNOWN,
    ("worker_runs", "records_processed"): _NEVER_UNKNOWN,
    ("worker_runs", "started_at"): _NEVER_UNKNOWN,
    ("partition_progress", "created_at"): _NEVER_UNKNOWN,
    ("partition_progress", "updated_at"): _NEVER_UNKNOWN,
    ("partition_state", "status"): "a partition without a row is pending; one with a row says what it is",
    ("partition_state", "attempt_count"): _NEVER_UNKNOWN,
}

pytestmark = pytest.mark.by_day


class Catalogue:
    """What PostgreSQL knows of the tables of two schemas: the document's and ours."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def columns(self, schema: str, table: str) -> dict[str, tuple[Any, ...]]:
        """Type, whether it may be NULL, and default."""
        found = self._connection.execute(
            "SELECT column_name, data_type, is_nullable, column_default FROM information_schema.columns"
            " WHERE table_schema = %s AND table_name = %s",
            [schema, table],
        )
        return {row[0]: tuple(row[1:]) for row in found.fetchall()}

    def constraints(self, schema: str, table: str, kinds: str) -> set[str]:
        """Constraints as PostgreSQL words them, without the schema; listed words in one order."""
        found = self._connection.execute(
            "SELECT pg_get_constraintdef(k.oid) FROM pg_constraint k WHERE k.contype = ANY (%s)"
            " AND k.conrelid = to_regclass(%s)",
            [list(kinds), f"{schema}.{table}"],
        )
        return {_sorted(str(row[0]).replace(f"{schema}.", "")) for row in found.fetchall()}

    def unique(self, schema: str, table: str) -> set[tuple[str, ...]]:
        """Columns that are unique together, by a constraint or by an index: one does as well as the other."""
        found = self._connection.execute(
            "SELECT array_agg(a.attname::text ORDER BY part.place) FROM pg_index i"
            " CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS part(attnum, place)"
            " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = part.attnum"
            " WHERE i.indisunique AND i.indpred IS NULL AND i.indrelid = to_regclass(%s) GROUP BY i.indexrelid",
            [f"{schema}.{table}"],
        )
        return {tuple(row[0]) for row in found.fetchall()}


def _sorted(definition: str) -> str:
    words = iter(sorted(re.findall(r"'[^']*'", definition)))
    return re.sub(r"'[^']*'", lambda _: next(words), definition)


@pytest.fixture(scope="module")
def catalogue(postgres_server) -> Iterator[Catalogue]:
    with temporary_database(postgres_server) as url:
        Ledger.open(url, [*HARVEST, *PARTITIONS, *RULES, report], create=True).close()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA document")
            connection.execute("SET search_path = document")
            for name in TABLES:
                connection.execute(DDL[name])
            yield Catalogue(connection)


def test_every_table_of_the_documents_is_compared():
    assert set(DDL) == set(TABLES)


@pytest.mark.parametrize("table", TABLES)
def test_columns(catalogue, table):
    wanted, ours = catalogue.columns("document", table), catalogue.columns("public", table)
    assert wanted
    assert set(wanted) <= set(ours)
    for name, (kind, nullable, default) in wanted.items():
        assert ours[name][0] == kind, name
        assert ours[name][2] == default, name
        stricter = nullable == "YES" and ours[name][1] == "NO"
        assert stricter == ((table, name) in STRICTER), name
        assert stricter or ours[name][1] == nullable, name


@pytest.mark.parametrize("table", TABLES)
def test_primary_keys(catalogue, table):
    wanted = catalogue.constraints("document", table, "p")
    assert wanted == (set() if table in KEYLESS else catalogue.constraints("public", table, "p"))


@pytest.mark.parametrize("table", TABLES)
def test_unique_keys(catalogue, table):
    assert catalogue.unique("document", table) <= catalogue.unique("public", table)


@pytest.mark.parametrize("table", TABLES)
def test_checks(catalogue, table):
    assert catalogue.constraints("document", table, "c") <= catalogue.constraints("public", table, "c")


@pytest.mark.parametrize("table", TABLES)
def test_foreign_keys(catalogue, table):
    wanted, ours = (catalogue.constraints(schema, table, "f") for schema in ("document", "public"))
    # The kernel's own, to the gate that a unit stands behind.
    assert {key for key in ours if "REFERENCES gate" not in key} == wanted

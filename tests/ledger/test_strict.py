"""SQLite refuses a value of another type in every column of the kernel and of machines, before and after migrations."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.ledger.care.doctor import examine
from penstock.ledger.ledger import Ledger
from penstock.ledger.schema.migrate import KERNEL, Track
from penstock.ledger.store.database import open_database
from penstock.lifecycles.harvest.tables import DATA_TABLES as HARVEST
from penstock.lifecycles.partitions.tables import DATA_TABLES as PARTITIONS
from penstock.lifecycles.reports.tables import DATA_TABLES as REPORTS
from penstock.model.clock import SystemClock
from penstock.model.machine import Actor
from tests.ledger.test_migrate import Grown, invoices_of
from tests.support.hand import Hand, typed_insert
from tests.support.machines import INVOICE, MACHINES, invoice
from tests.support.more_machines import PARCEL, parcel
from tests.support.rolling import NEW


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'penstock.db'}"


def made(url: str, *machines: Any, data_tables: Any = (), kernel: Track = KERNEL) -> str:
    Ledger.open(url, machines, create=True, data_tables=data_tables, kernel=kernel).close()
    return url


def loose(url: str) -> set[str]:
    """The tables that keep any value."""
    with Hand(url) as hand:
        rows = hand.type("SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND NOT strict")
        return {name for (name,) in rows if not name.startswith("sqlite_")}


def test_every_table_that_the_kernel_makes_is_strict(url):
    data = [*HARVEST, *PARTITIONS, *REPORTS]
    made(url, *MACHINES, PARCEL, data_tables=data)
    assert loose(url) == set()


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE parcel SET wakes = 'often'", "TEXT value in INTEGER column parcel.wakes"),
        ("UPDATE parcel SET attempts = 1.5", "REAL value in INTEGER column parcel.attempts"),
        ("UPDATE parcel SET weight = 'heavy'", "TEXT value in REAL column parcel.weight"),
        ("UPDATE parcel SET sealed_up = 'maybe'", "TEXT value in INTEGER column parcel.sealed_up"),
        ("UPDATE parcel SET change_reason = x'00ff'", "BLOB value in TEXT column parcel.change_reason"),
        ("UPDATE parcel SET price = x'35'", "BLOB value in TEXT column parcel.price"),
        ("UPDATE gate SET epoch = 'x'", "TEXT value in INTEGER column gate.epoch"),
        ("UPDATE gate SET metered = 'x'", "TEXT value in INTEGER column gate.metered"),
        ("INSERT INTO penstock_meta VALUES ('x', x'00')", "BLOB value in TEXT column penstock_meta.value"),
        ("INSERT INTO gate_limit VALUES ('none', 'x', 'fast', 1, 1, 1, '2026-01-01T00:00:00.000Z')", "gate_limit.rate"),
    ],
)
def test_a_value_of_another_type_is_refused_and_named(url, statement, words):
    with Ledger.open(url, [*MACHINES, PARCEL], create=True) as ledger:
        ledger.birth([parcel("a")], actor=Actor.API, who="test")
    with Hand(url) as hand:
        assert words in hand.refused(statement)


def test_a_table_stays_strict_when_columns_are_added_and_when_it_is_built_anew(url):
    made(url, INVOICE)
    with Hand(url) as hand:
        hand.type(typed_insert(INVOICE, invoice()))
    made(url, invoices_of(Grown))
    made(url, invoices_of(Grown), kernel=NEW)  # builds event_log anew, and adds to gate
    assert loose(url) == {"synthetic"}, "a revision's own table is what the revision says"
    with Hand(url) as hand, pytest.raises(hand.error, match=r"INTEGER column invoice\.copies"):
        hand.type("UPDATE invoice SET copies = 'many'")
    database = open_database(url, SystemClock())
    assert examine(database, {"invoice": invoices_of(Grown)}) == []
    database.close()


def test_a_data_table_is_strict_where_it_says_so_and_else_keeps_its_types(url):
    def table(name: str, **options: Any) -> sa.Table:
        columns = [sa.Column("count", sa.BigInteger), sa.Column("share", sa.Double), sa.Column("on", sa.Boolean)]
        return sa.Table(name, sa.MetaData(), sa.Column("id", sa.BigInteger, primary_key=True), *columns, **options)

    made(url, data_tables=[table("exact", sqlite_strict=True), table("loose")])
    assert loose(url) == {"loose"}
    with Hand(url) as hand:
        types = {t: [row[2] for row in hand.type(f"PRAGMA table_info({t})")] for t in ("exact", "loose")}
        assert types == {
            "exact": ["INTEGER", "INTEGER", "REAL", "INTEGER"],
            "loose": ["BIGINT", "BIGINT", "DOUBLE", "BOOLEAN"],
        }
    made(url, data_tables=[table("exact", sqlite_strict=True), table("loose")])


def test_the_distributions_sqlite_reads_such_a_ledger(url, tmp_path):
    made(url, *MACHINES)
    with closing(sqlite3.connect(tmp_path / "penstock.db")) as old:
        assert old.execute("SELECT count(*) FROM invoice").fetchall() == [(0,)]
        assert old.execute("PRAGMA quick_check").fetchall() == [("ok",)]

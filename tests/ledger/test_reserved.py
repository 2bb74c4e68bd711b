"""The words that cannot name a table or a column are those that the databases refuse."""

from __future__ import annotations

import psycopg
from pysqlite3 import dbapi2 as sqlite3

from penstock.model.reserved import RESERVED


def test_postgres_reserves_no_other(postgres_server):
    with psycopg.connect(postgres_server) as connection:
        rows = connection.execute("SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'T')").fetchall()
    assert {word for (word,) in rows} - RESERVED == set()


def test_each_is_refused_by_one_of_them(postgres_server):
    with psycopg.connect(postgres_server) as connection:
        rows = connection.execute("SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'T')").fetchall()
    assert {word for word in RESERVED - {word for (word,) in rows} if not refused_by_sqlite(word)} == set()


def refused_by_sqlite(word: str) -> bool:
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute(f"CREATE TABLE {word} ({word} TEXT)")
        connection.execute(f"SELECT {word} FROM {word}")
    except sqlite3.Error:
        return True
    finally:
        connection.close()
    return False

"""What a description of an API may say: everything that contradicts itself is told at once."""

from __future__ import annotations

import sqlite3
import tomllib
from contextlib import closing
from typing import Any

import hypothesis
import psycopg
import pytest
from hypothesis import strategies as st
from sqlalchemy.dialects.sqlite.base import SQLiteIdentifierPreparer

from penstock.connectors.rest_json.settings import RESERVED, REST_EXAMPLE, RestSettings
from penstock.connectors.rest_json.words import SQL_WORDS
from penstock.connectors.searches import OFFER_COLUMNS
from penstock.lifecycles.queries.settings import QueriesSettings
from penstock.lifecycles.queries.tables import own_table
from penstock.settings.reader import read_section
from penstock.settings.sample import sample
from penstock.settings.secret import ConfigError
from tests.support.paged import described, rest

SECRET = {"env": "KEY"}
FIELD = {"path": "a"}


def refused(**changes: Any) -> list[str]:
    with pytest.raises(ConfigError) as told:
        rest(described("page", **changes))
    begin = "p.toml: queries.rest_json.api"
    lines = str(told.value).splitlines()
    assert all(line.startswith(begin) for line in lines)
    return [line.removeprefix(begin).lstrip(":. ") for line in lines]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"url": "http://api.example.com"}, "https"),
        ({"url": "https://api.example.com/?a=1"}, "url: has parameters"),
        ({"path": "jobs"}, "must begin with /"),
        ({"path": "/jobs?a=1"}, "must begin with / and be a plain path"),
        ({"path": "/jobs/{"}, "in each pair of braces"),
        ({"path": "/jobs/{}"}, "in each pair of braces"),
        ({"parameters": {"a": {"b": 1}}}, "parameters.a: must be text"),
        ({"parameters": {"a": [[1]]}}, "parameters.a: must be text"),
        ({"parameters": {"page": 1}}, "'page' is set by 'paging' or 'since'"),
        ({"send_as": {"p": "per_page"}}, "'per_page' is set by 'paging' or 'since'"),
        ({"send_as": {"a": "q", "b": "q"}}, "2 parameters are sent as 'q'"),
        ({"headers": {"Authorization": "Bearer x"}}, "'auth' says who asks"),
        ({"headers": {"A B": "x"}}, "that no header can have"),
        ({"headers": {"A": "x\ny"}}, "that no header can have"),
        ({"lists": "both"}, "must be one of repeat, comma"),
        ({"auth": {"bearer": {"secret": SECRET}, "basic": {"user": "a", "secret": SECRET}}}, "give one of them"),
        ({"auth": {"bearer": {"secret": "abc"}}}, "(not shown) must be a reference to a secret"),
        ({"auth": {"basic": {"user": "a:b", "secret": SECRET}}}, "has a colon"),
        ({"auth": {"header": {"name": "a b", "secret": SECRET}}}, "not the name of a header"),
        ({"auth": {"header": {"name": "X-A", "secret": SECRET}}, "headers": {"x-a": "1"}}, "of 'auth' already"),
        ({"auth": {"oauth": {"token_url": "http://a.example", "client_id": "a", "secret": SECRET}}}, "https"),
        ({"paging": {"link": {}, "cursor": {"next": "a"}}}, "has 'cursor' and 'link'; give one of them"),
        ({"paging": {"page": {"size": 0}}}, "from 1 to 10,000"),
        ({"paging": {"page": {}}}, "size is missing"),
        ({"paging": {"page": {"size": 5, "size_parameter": "page"}}}, "the page's number already"),
        ({"paging": {"page": {"size": 5, "last": 0}}}, "comes before the first page"),
        ({"paging": {"offset": {"size": 5, "size_parameter": "offset"}}}, "the place already"),
        ({"paging": {"cursor": {"next": "a..b"}}}, "next: 'a..b' is not a path"),
        ({"since": {"parameter": "page"}}, "a parameter of the paging already"),
        ({"since": {"parameter": "s", "value": "x"}}, "must have {} in it once"),
        ({"records": "a. b"}, "records: 'a. b' is not a path"),
        ({"date": None}, "date is missing"),
        ({"date_format": "rfc822"}, "must be one of iso, date, unix, unix_ms"),
        ({"offer": None}, "has neither 'offer' nor 'table'"),
        ({"table": "t", "fields": {"a": FIELD}}, "has both 'offer' and 'table'"),
        ({"fields": {"a": FIELD}}, "has 'fields' and no 'table'"),
        ({"offer": {"title": "a", "titel": "a"}}, "offer.titel: is not a column of offers"),
        ({"offer": {"company": "a"}}, "has no 'title'"),
        ({"offer": {"title": ".a"}}, "offer.title: '.a' is not a path"),
        ({"offer": None, "table": "t"}, "has no 'fields'"),
        ({"offer": None, "table": "Bad Name", "fields": {"a": FIELD}}, "must be small letters"),
        ({"offer": None, "table": "sqlite_x", "fields": {"a": FIELD}}, "a database's own tables"),
        ({"offer": None, "table": "t", "fields": {"payload": FIELD}}, "every table has this column already"),
        ({"offer": None, "table": "t", "fields": {"Name": FIELD}}, "fields.Name: 'Name' must be small letters"),
        ({"offer": None, "table": "t", "fields": {"a" * 51: FIELD}}, "at most 50 long"),
        ({"offer": None, "table": "t", "fields": {f"a{n}": FIELD for n in range(201)}}, "200 is the most"),
        ({"offer": None, "table": "order", "fields": {"a": FIELD}}, "table: 'order' means something to databases"),
        ({"offer": None, "table": "t", "fields": {"user": FIELD}}, "fields.user: 'user' means something to databases"),
        ({"offer": None, "table": "t", "fields": {"a": {"path": "a", "type": "blob"}}}, "one of text, integer"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(changes, said):
    (line,) = refused(**changes)
    assert said in line
    assert len(line) < 400


def test_everything_is_told_at_once():
    lines = refused(url="https://a.example?x=1", path="x", records="a..b", offer={"titel": "a", "company": ".b"})
    assert [line.partition(":")[0] for line in lines] == [
        "url",
        "path",
        "records",
        "offer.company",
        "offer.titel",
        "offer",
    ]


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_the_engines_columns_are_its_own(name):
    (line,) = refused(offer=None, table="t", fields={name: FIELD})
    assert f"fields.{name}" in line


def test_every_column_of_the_engines_is_reserved():
    assert {column.name for column in own_table("t", {}).columns} == RESERVED


def test_every_word_that_sqlite_reserves_is_refused():
    with closing(sqlite3.connect(":memory:")) as database:
        for word in SQLiteIdentifierPreparer.reserved_words - SQL_WORDS:
            database.execute(f'CREATE TABLE a ("{word}" TEXT PRIMARY KEY)')
            database.execute(
                f"INSERT INTO a ({word}) SELECT 1 WHERE 1 ON CONFLICT DO UPDATE SET {word} = excluded.{word}"
            )
            assert database.execute(f"SELECT {word} FROM a AS {word} WHERE {word} = '1'").fetchall() == [("1",)]
            database.execute("DROP TABLE a")


def test_every_word_that_postgresql_reserves_is_refused(postgres_server):
    with psycopg.connect(postgres_server) as database:
        reserved = database.execute("SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'T')").fetchall()
        system = database.execute("SELECT attname FROM pg_attribute WHERE attnum < 0").fetchall()
    assert {word for (word,) in reserved + system} <= SQL_WORDS


def test_what_is_left_out_has_sensible_defaults():
    found = rest({"url": "https://api.example.com", "date": "updated", "offer": {"title": "t"}})
    assert (found.path, found.order, found.id, found.records, found.lists) == ("/", "none", "id", None, "repeat")
    assert found.columns == OFFER_COLUMNS
    own = rest({"url": "https://a.example", "date": "d", "table": "t", "fields": {"b": FIELD, "a": FIELD}})
    assert own.columns == ("b", "a")


def test_the_sample_is_valid_as_it_is():
    assert rest(REST_EXAMPLE).order == "newest_first"
    text = sample(kinds={"queries": QueriesSettings}, on=["queries"])
    begin = text.index("#[queries.rest_json.jobs_api]")
    lines = text[begin : text.index("#[queries.queries.")].splitlines()
    shown = tomllib.loads("\n".join(line[1:] for line in lines if line.startswith("#") and not line.startswith("# ")))
    errors: list[str] = []
    found = read_section(QueriesSettings, shown["queries"], at=("queries",), folder=None, errors=errors, path_text="p")
    assert errors == []
    assert found is not None
    assert found.rest_json["jobs_api"] == rest(REST_EXAMPLE)


JSONLIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@hypothesis.settings(max_examples=100)
@hypothesis.given(st.dictionaries(st.sampled_from(RestSettings.__struct_fields__), JSONLIKE, max_size=5))
def test_whatever_is_written_is_read_or_refused(changes):
    said = ""
    try:
        found = rest(described("page") | changes)
    except ConfigError as error:
        said = str(error)
    assert said or found.columns

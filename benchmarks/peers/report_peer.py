"""A report's file into a table, by whoever a user would pick instead: a plain script, dlt by rows or by Arrow, DuckDB.

The file lies on the disk: nobody downloads it. The clock starts in an interpreter that has imported everything, and
stops when the rows are committed; the program then counts them. None of them keeps the file or says which record is
wrong; none checks more than its types do; dlt alone can tell that it was loaded before.

Tried: the plain script is fastest with `decode` of the whole text, at the price of holding it in memory; dlt with files
in CSV, which it loads by COPY (its default inserts, at twice the cost); DuckDB by a CSV file that COPY reads, since its
own connection to PostgreSQL is an extension that has to be downloaded.
"""

from __future__ import annotations

import argparse
import gzip
import os
import resource
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from benchmarks.peers import common

os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"

SQLITE = "sqlite:///"
COLUMNS = (
    *("stage_id", "campaign_id", "ad_group_id", "entity_id", "entity", "variant"),
    *("impressions", "clicks", "cost", "sales", "purchases"),
)
TYPES = dict.fromkeys(("impressions", "clicks", "purchases"), "bigint") | {"cost": "numeric", "sales": "numeric"}
DECLARED = ", ".join(f"{name} {TYPES.get(name, 'text')}" for name in COLUMNS)
KEY = "stage_id, campaign_id, ad_group_id, entity_id"
AT_ONCE = 5_000


class Record(msgspec.Struct, gc=False):
    """What a record of a report is."""

    campaignId: int  # noqa: N815 - the provider's names
    adGroupId: int  # noqa: N815
    keywordId: int  # noqa: N815
    keyword: str | None
    matchType: str | None  # noqa: N815
    impressions: int
    clicks: int
    cost: float
    sales7d: float
    purchases7d: int


def decoded(file: Path) -> list[Record]:
    """Every record of the file."""
    return msgspec.json.decode(gzip.decompress(file.read_bytes()), type=list[Record])


def plain_postgres(url: str, file: Path) -> None:
    """One transaction, one COPY."""
    with psycopg.connect(url) as connection:
        connection.execute(f"CREATE TABLE report ({DECLARED}, PRIMARY KEY ({KEY}))".encode())
        with connection.cursor().copy(f"COPY report ({', '.join(COLUMNS)}) FROM STDIN".encode()) as copy:
            records = decoded(file)
            for start in range(0, len(records), AT_ONCE):
                copy.write("".join([_text(record) for record in records[start : start + AT_ONCE]]))


def _text(r: Record) -> str:
    # Neither texts with a tab nor with a backslash are in the file: a script that is written for one file knows.
    return (
        f"one\t{r.campaignId}\t{r.adGroupId}\t{r.keywordId}\t{r.keyword}\t{r.matchType}\t{r.impressions}\t{r.clicks}"
        f"\t{r.cost}\t{r.sales7d}\t{r.purchases7d}\n"
    )


def plain_sqlite(url: str, file: Path) -> None:
    """One transaction, one `executemany`, at the durability of a ledger."""
    connection = sqlite3.connect(url.removeprefix(SQLITE), isolation_level=None)
    connection.execute("PRAGMA journal_mode = wal")
    connection.execute("PRAGMA synchronous = full")
    connection.execute(f"CREATE TABLE report ({DECLARED}, PRIMARY KEY ({KEY})) WITHOUT ROWID")
    connection.execute("BEGIN")
    places = ", ".join("?" * len(COLUMNS))
    connection.executemany(f"INSERT INTO report VALUES ({places})", map(_values, decoded(file)))
    connection.execute("COMMIT")
    connection.close()


def _values(r: Record) -> tuple[Any, ...]:
    ids = (str(r.campaignId), str(r.adGroupId), str(r.keywordId))
    return ("one", *ids, r.keyword, r.matchType, r.impressions, r.clicks, str(r.cost), str(r.sales7d), r.purchases7d)


def by_dlt(url: str, resource: Any) -> None:
    """A pipeline of one resource."""
    import dlt  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory(prefix="dlt-") as folder:
        if url.startswith(SQLITE):
            destination, given = dlt.destinations.sqlalchemy(url), {}
        else:
            # It wants a password, also where the server does not.
            where = url if ":" in url.partition("@")[0].partition("//")[2] else url.replace("@", ":none@", 1)
            destination, given = dlt.destinations.postgres(where), {"loader_file_format": "csv"}
        pipeline = dlt.pipeline("report", destination=destination, dataset_name="bench", pipelines_dir=folder)
        pipeline.run(resource, table_name="report", **given).raise_on_failed_jobs()


def dlt_rows(url: str, file: Path) -> None:
    """Its rows are dicts."""

    def rows() -> Iterator[list[dict[str, Any]]]:
        found = msgspec.json.decode(gzip.decompress(file.read_bytes()))
        for start in range(0, len(found), AT_ONCE):
            yield found[start : start + AT_ONCE]

    by_dlt(url, rows())


def dlt_arrow(url: str, file: Path) -> None:
    """Its rows are tables of Arrow, which it does not look at one by one."""
    import pyarrow as pa  # type: ignore[import-not-found]

    def tables() -> Iterator[Any]:
        found = msgspec.json.decode(gzip.decompress(file.read_bytes()))
        for start in range(0, len(found), 50_000):
            yield pa.Table.from_pylist(found[start : start + 50_000])

    by_dlt(url, tables())


def duckdb_copy(url: str, file: Path) -> None:
    """DuckDB reads the file and writes CSV, COPY reads that."""
    import duckdb  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory(prefix="duckdb-") as folder, psycopg.connect(url) as connection:
        made = Path(folder) / "report.csv"
        picks = "'one', campaignId, adGroupId, keywordId, keyword, matchType, impressions, clicks, cost, sales7d"
        read = f"read_json('{file}', format = 'array', maximum_object_size = 1000000)"
        duckdb.sql(f"COPY (SELECT {picks}, purchases7d FROM {read}) TO '{made}' (FORMAT csv, HEADER false)")
        connection.execute(f"CREATE TABLE report ({DECLARED}, PRIMARY KEY ({KEY}))".encode())
        into = f"COPY report ({', '.join(COLUMNS)}) FROM STDIN (FORMAT csv)".encode()
        with connection.cursor().copy(into) as copy, made.open("rb") as lines:
            while part := lines.read(1 << 20):
                copy.write(part)


def ready_rows(url: str, file: Path) -> Callable[[], None]:
    """The limit: rows that are COPY's text already. What makes them does not count."""
    text = "".join(map(_text, decoded(file))).encode()

    def run() -> None:
        with psycopg.connect(url) as connection:
            connection.execute(f"CREATE TABLE report ({DECLARED}, PRIMARY KEY ({KEY}))".encode())
            with connection.cursor().copy(f"COPY report ({', '.join(COLUMNS)}) FROM STDIN".encode()) as copy:
                for start in range(0, len(text), 1 << 20):
                    copy.write(text[start : start + (1 << 20)])

    return run


WAYS: dict[str, Callable[[str, Path], Any]] = {
    "plain": lambda url, file: (plain_sqlite if url.startswith(SQLITE) else plain_postgres)(url, file),
    "dlt-rows": dlt_rows,
    "dlt-arrow": dlt_arrow,
    "duckdb": duckdb_copy,
    "ready": ready_rows,
}


def counted(url: str, way: str) -> int:
    """How many rows are in the table."""
    table = "bench.report" if way.startswith("dlt") else "report"
    if not url.startswith(SQLITE):
        return common.count(url, f"SELECT count(*) FROM {table}")  # type: ignore[arg-type]
    path = Path(url.removeprefix(SQLITE))
    if way.startswith("dlt"):  # which keeps a dataset in a file of its own, beside the one it is given
        path = path.with_name(f"{path.stem}__bench{path.suffix}")
    with sqlite3.connect(path) as connection:
        return int(connection.execute("SELECT count(*) FROM report").fetchone()[0])


def main() -> None:
    """Run once and print the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.report_peer", description=__doc__)
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--url", required=True, help="postgresql://… of an empty database, or sqlite:///path")
    parser.add_argument("--file", type=Path, required=True, help="a JSON array in gzip")
    parser.add_argument("--rows", type=int, required=True, help="how many records it has")
    options = parser.parse_args()
    peer = {"dlt-rows": "dlt", "dlt-arrow": "dlt", "duckdb": "duckdb"}.get(options.way, "msgspec")
    if peer != "msgspec":
        __import__(peer)
    run = WAYS[options.way]
    if options.way == "ready":
        ready = run(options.url, options.file)
        run = lambda *_: ready()  # noqa: E731 - made ready before the clock starts
    began, used = time.perf_counter(), time.process_time()
    run(options.url, options.file)
    seconds, used = time.perf_counter() - began, time.process_time() - used
    common.require(counted(options.url, options.way), options.rows)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    common.report(peer, options.rows, seconds, {"way": options.way}, cpu_seconds=round(used, 2), peak_mb=round(most, 1))


if __name__ == "__main__":
    main()

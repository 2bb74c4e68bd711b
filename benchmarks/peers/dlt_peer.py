"""dlt: its `rest_api` source, loading the same pages into a database of the same kind.

The clock starts when the pipeline is run, in an interpreter that has imported everything, and stops when the run has
returned: extracted, normalised and loaded. The program then counts the rows.

dlt keeps a staged copy of what it extracts as files, loads them when all are there, and has no history of states, no
claim and no place to go on from within a load; a list that is read again with ``merge`` replaces the rows of the same
ids. Nested objects become columns; no child tables are made. The destinations are its own: PostgreSQL by psycopg2,
SQLite by SQLAlchemy.

Tried, with 20,000 offers on two cores: on PostgreSQL files in CSV, loaded by COPY, are twice as fast as the default,
which inserts; normalising in two processes costs more than it gives at this size; a larger write buffer makes no
difference.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from typing import Any
from urllib.parse import urlsplit, urlunsplit

os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"

import dlt  # type: ignore[import-not-found]
from dlt.sources.rest_api import rest_api_source  # type: ignore[import-not-found]

from benchmarks.peers import common

SQLITE = "sqlite:///"


def source(api_url: str, disposition: str) -> Any:
    """The list of offers, as dlt describes a REST API."""
    paginator = {"type": "cursor", "cursor_path": "meta.next", "cursor_param": "cursor"}
    offers = {
        "name": "offers",
        "endpoint": {"path": "offers", "params": {"list": 0}, "data_selector": "data", "paginator": paginator},
        "primary_key": "id",
        "write_disposition": disposition,
        "max_table_nesting": 0,
    }
    return rest_api_source({"client": {"base_url": api_url}, "resources": [offers]})


def run(url: str, api_url: str, folder: str, disposition: str) -> tuple[int, float, float]:
    """Load everything; how many rows there are then, seconds, and processor seconds."""
    if url.startswith(SQLITE):
        destination, given = dlt.destinations.sqlalchemy(f"{SQLITE}{folder}/offers.db"), {}
    else:
        # It wants a password, also where the server does not.
        where = urlsplit(url)
        with_password = where._replace(netloc=where.netloc.replace("@", ":none@")) if not where.password else where
        destination, given = dlt.destinations.postgres(urlunsplit(with_password)), {"loader_file_format": "csv"}
    pipeline = dlt.pipeline("offers", destination=destination, dataset_name="bench", pipelines_dir=folder)
    began, used = time.perf_counter(), time.process_time()
    pipeline.run(source(api_url, disposition), **given).raise_on_failed_jobs()
    seconds, used = time.perf_counter() - began, time.process_time() - used
    with pipeline.sql_client() as client:
        rows, ids = client.execute_sql("SELECT count(*), count(DISTINCT id) FROM offers")[0]
    return rows if rows == ids else -1, seconds, used


def main() -> None:
    """Run once and print the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.dlt_peer")
    parser.add_argument(
        "--url", required=True, help="postgresql://… of an empty database, or sqlite:///, for a file of its own"
    )
    parser.add_argument("--api-url", required=True, help="where the offers are served")
    parser.add_argument("--offers", type=int, required=True, help="how many there are")
    parser.add_argument("--disposition", choices=("merge", "append", "replace"), default="merge")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dlt-") as folder:
        rows, seconds, used = run(options.url, options.api_url, folder, options.disposition)
    common.require(rows, options.offers)
    common.report(
        "dlt",
        options.offers,
        seconds,
        {"disposition": options.disposition},
        cpu_seconds=round(used, 1),
        peak_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, 1),
    )


if __name__ == "__main__":
    main()

"""What the peer programs share: arguments, a scratch database, and the one JSON line.

Every peer measures the same thing: ``items`` no-op work items are enqueued and
durable before the clock starts; the clock starts when the worker's run loop is
started in an interpreter that has imported everything and is connected; it stops
when the last item is finished and that is committed. Each program then checks in
the database that every item is finished, and fails if one is not.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import LiteralString
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

# A run that is not finished after so many seconds is given up.
GIVE_UP_SECONDS = 600.0

Settings = Mapping[str, str | int | float | bool | None]

DURABLE_SERVER: Mapping[str, str] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
}


def arguments(peer: str, items: int) -> argparse.ArgumentParser:
    """The parser of a peer program; a peer adds its own settings to it."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.peers.{peer}_peer")
    parser.add_argument("--items", type=int, default=items, help="work items (default %(default)s)")
    return parser


def postgres_arguments(peer: str, items: int) -> argparse.ArgumentParser:
    """The parser of a peer that runs on PostgreSQL."""
    parser = arguments(peer, items)
    parser.add_argument(
        "--url",
        required=True,
        help="postgresql://… of a role that may create databases; a scratch database is used",
    )
    return parser


def report(peer: str, items: int, seconds: float, settings: Settings, **more: float) -> None:
    """Print the one JSON line of a run."""
    line = {
        "peer": peer,
        "version": version(peer),
        "items": items,
        "seconds": round(seconds, 4),
        "per_second": round(items / seconds, 1),
        "settings": dict(settings),
        **more,
    }
    print(json.dumps(line), flush=True)


def require(finished: int, items: int) -> None:
    """Fail unless the database says that every item is finished."""
    if finished != items:
        raise SystemExit(f"{finished} of {items} items are finished in the database")


def count(url: str, query: LiteralString) -> int:
    """The single number that ``query`` returns."""
    with psycopg.connect(url) as connection:
        row = connection.execute(query).fetchone()
    if row is None:
        raise SystemExit(f"no row from: {query}")
    return int(row[0])


@contextmanager
def scratch_database(url: str, peer: str) -> Iterator[str]:
    """A new empty database on the server of ``url``, dropped afterwards.

    Refuses a server on which a commit is not durable.
    """
    name = f"penstock_bench_{peer}"
    drop = sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
    with psycopg.connect(url, autocommit=True) as connection:
        for setting, wanted in DURABLE_SERVER.items():
            row = connection.execute("select current_setting(%s)", (setting,)).fetchone()
            if row is None or row[0] != wanted:
                raise SystemExit(f"the server must run with {setting} = {wanted}")
        connection.execute(drop)
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        try:
            yield urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
        finally:
            connection.execute(drop)


def settle(url: str) -> None:
    """Vacuum, analyse and checkpoint, so that enqueueing does not weigh on the run.

    Autovacuum would do the first two in time; done here, every run starts alike.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("vacuum (analyze)")
        connection.execute("checkpoint")

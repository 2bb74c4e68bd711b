"""Ledgers that are there for one test."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from penstock.app.app import App
from penstock.app.lifecycle import AnyLifecycle
from penstock.ledger.ledger import Ledger
from penstock.model.clock import Clock, Rng, VirtualClock


@contextlib.contextmanager
def temporary_ledger(
    *lifecycles: AnyLifecycle, postgres: str | None = None, clock: Clock | None = None, rng: Rng | None = None
) -> Iterator[Ledger]:
    """A fresh ledger for these lifecycles: a SQLite file, or a database of its own on the server at `postgres`.

    It is removed at the end. Time is a `VirtualClock` and chance is seeded, unless others are given.
    """
    app = App(*lifecycles)
    rng = rng or Rng(1)
    with _database(postgres) as url:
        ledger = Ledger.open(
            url,
            app.machines,
            clock=clock or VirtualClock(),
            rng=rng,
            create=True,
            data_tables=app.data.tables,
            migrations=app.migrations,
            views=app.data.views,
        )
        with ledger:
            yield ledger


@contextlib.contextmanager
def _database(server: str | None) -> Iterator[str]:
    if server is None:
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
            yield f"sqlite:///{Path(folder) / 'penstock.db'}"
        return
    import psycopg
    from psycopg import sql

    # From the system, whatever the test's own chance is seeded with: tests run side by side.
    name = f"penstock_{Rng().token()}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
    try:
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    finally:
        with psycopg.connect(server, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

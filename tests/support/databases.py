"""Databases on the test server that live as long as somebody needs them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql


@contextmanager
def temporary_database(server: str, template: str = "template0") -> Iterator[str]:
    """URL of a database that is a copy of the template and is dropped at the end of the context."""
    name = f"penstock_{uuid.uuid4().hex}"
    quoted = sql.Identifier(name)
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(quoted, sql.Identifier(template)))
    try:
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    finally:
        with psycopg.connect(server, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(quoted))

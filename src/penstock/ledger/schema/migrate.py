"""Numbered revisions, written for Alembic and run inside the ledger's own transactions.

A track is one history of revisions: the kernel's, or an App's own beside it. Where the ledger stands in each is a row
of `penstock_meta`, so that opening a ledger costs no more than reading it. There is no `env.py` and no version table:
a revision runs through the ledger's own connection, under its lock, and its number is committed with it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.ledger.store.database import AlterCursor, Cursor, Database
from penstock.model.errors import LedgerMismatch, UsageError

_FILE = re.compile(r"r(\d{4})_\w+\.py\Z")
_MOST_BROKEN = 3


@dataclass(frozen=True, slots=True)
class Track:
    """One history of revisions: `key` is its row of `penstock_meta`, `places` are folders as `package:folder`."""

    key: str
    places: tuple[str, ...]

    def folders(self) -> list[Path]:
        """Where the revisions are. Raises UsageError for a place that is not there."""
        return [_folder(place) for place in self.places]

    def head(self) -> int:
        """The number of the newest revision; the program was written for it."""
        numbers = sorted(int(m[1]) for f in self.folders() for p in f.iterdir() if (m := _FILE.match(p.name)))
        if numbers != list(range(1, len(numbers) + 1)):
            msg = f"the revisions in {', '.join(self.places)} are not numbered r0001_, r0002_ and so on without a gap"
            raise UsageError(msg)
        return len(numbers)


KERNEL = Track("schema_version", ("penstock.ledger.schema:migrations",))


def app_track(place: str) -> Track:
    """The track of an App that keeps its revisions at `package:folder`."""
    return Track(f"schema_version {place}", (place,))


def _folder(place: str) -> Path:
    package, colon, folder = place.partition(":")
    try:
        found = importlib.util.find_spec(package) if colon and folder else None
    except (ImportError, ValueError):
        found = None
    locations = list(found.submodule_search_locations or ()) if found is not None else []
    path = Path(locations[0]) / folder if locations else None
    if path is None or not path.is_dir():
        msg = f"{place!r} is not a place for migrations; write package:folder, as in penstock.ledger.schema:migrations"
        raise UsageError(msg)
    return path


def stamped(cursor: Cursor, track: Track) -> int | None:
    """The number of the last revision that the ledger has of this track; None when it never had any."""
    rows = cursor.rows("SELECT value FROM penstock_meta WHERE name = :name", name=track.key)
    return int(rows[0][0]) if rows else None


def stamp(cursor: Cursor, track: Track, number: int) -> None:
    """Note that the ledger stands at this revision."""
    cursor.run(
        "INSERT INTO penstock_meta (name, value) VALUES (:name, :value)"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        name=track.key,
        value=str(number),
    )


def refuse_distant(database: Database, track: Track, there: int) -> None:
    """A program works one revision behind and one ahead of its own; outside that range it refuses."""
    if abs(there - track.head()) > 1:
        raise LedgerMismatch(_distance(database, track, there))


def refuse_newer(database: Database, track: Track, there: int) -> None:
    """Only the newest program changes the schema."""
    if there > track.head():
        raise LedgerMismatch(_distance(database, track, there))


def _distance(database: Database, track: Track, there: int) -> str:
    kernel, head = track.key == KERNEL.key, track.head()
    what = "schema" if kernel else f"revision of {track.places[0]}"
    remedy = f"use a newer {'Penstock' if kernel else 'program'}" if there > head else "run 'penstock db upgrade'"
    return f"{database.url}: the ledger has {what} {there}, this program knows {head}; {remedy}"


def upgrade(
    database: Database,
    cursor: AlterCursor,
    track: Track,
    there: int,
    progress: Callable[[str], None] = lambda _: None,
) -> bool:
    """Run the revisions after `there`, in the cursor's transaction; returns whether there were any.

    Triggers and views stand aside meanwhile: SQLite rebuilds a table by dropping it, and then refuses to rename the
    new one while a trigger elsewhere names it; PostgreSQL alters no column that a trigger or a view names.
    """
    if there >= track.head():
        return False
    with _set_aside(database, cursor), _operations(database, cursor) as operations:
        for number, title, module in _revisions(track, there):
            progress(title)
            with operations():
                module.upgrade()
            stamp(cursor, track, number)
    _check_foreign_keys(database, cursor)
    return True


def _revisions(track: Track, there: int) -> Iterator[tuple[int, str, Any]]:
    from alembic.script import ScriptDirectory

    folders = track.folders()
    script = ScriptDirectory(folders[0], version_locations=folders)
    known = {r.revision: r for r in script.walk_revisions("base", "heads")}
    for number in range(there + 1, track.head() + 1):
        revision = known.get(f"{number:04}")
        before = f"{number - 1:04}" if number > 1 else None
        if revision is None or revision.down_revision != before:
            where = ", ".join(track.places)
            msg = f"revision {number:04} of {where} must follow {before}; each follows the one before it"
            raise UsageError(msg)
        yield number, f"{number:04} {revision.doc}", revision.module


@contextlib.contextmanager
def _operations(database: Database, cursor: AlterCursor) -> Iterator[Callable[[], Any]]:
    """Alembic's `op`, over the transaction that is open."""
    import sqlalchemy as sa
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from sqlalchemy.pool import StaticPool

    from penstock.ledger.schema.strict import strict_types

    lent = _Lent(cursor.connection)
    if database.dialect == "sqlite":
        from pysqlite3 import dbapi2 as driver

        engine = sa.create_engine("sqlite://", module=driver, creator=lambda: lent, poolclass=StaticPool)
        strict_types(engine.dialect)  # a STRICT table knows no others, and a revision may speak of any table
    else:
        engine = sa.create_engine(
            "postgresql+psycopg://", creator=lambda: lent, poolclass=StaticPool, use_native_hstore=False
        )
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"render_as_batch": database.dialect == "sqlite"})
        try:
            yield lambda: Operations.context(context)
        except sa.exc.DBAPIError as error:
            raise (error.orig or error) from error  # the ledger explains its driver's errors itself


class _Lent:
    """A connection whose transaction belongs to somebody else: it cannot be ended from here."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        """Left to the owner."""

    rollback = close = commit


@contextlib.contextmanager
def _set_aside(database: Database, cursor: Cursor) -> Iterator[None]:
    """Drop every trigger and view of the ledger, and bring them back as they were."""
    take = _sqlite_aside if database.dialect == "sqlite" else _postgres_aside
    back = take(cursor)
    yield
    for sql in back:
        cursor.run(sql)


def _sqlite_aside(cursor: Cursor) -> Sequence[str]:
    rows = cursor.rows(
        "SELECT type, name, sql FROM sqlite_master WHERE type IN ('trigger', 'view') ORDER BY type = 'trigger', rowid"
    )
    for kind, name, _ in reversed(rows):
        cursor.run(f'DROP {kind} IF EXISTS "{name}"')
    return [str(sql) for *_, sql in rows]


def _postgres_aside(cursor: Cursor) -> Sequence[str]:
    views = cursor.rows(
        "SELECT quote_ident(c.relname), pg_get_viewdef(c.oid) FROM pg_class c"
        " WHERE c.relkind = 'v' AND c.relnamespace = current_schema()::regnamespace ORDER BY c.oid"
    )
    triggers = cursor.rows(
        "SELECT quote_ident(t.tgname), t.tgrelid::regclass::text, pg_get_triggerdef(t.oid), t.tgenabled::text"
        " FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid"
        " WHERE NOT t.tgisinternal AND c.relnamespace = current_schema()::regnamespace ORDER BY t.oid"
    )
    for name, table, *_ in triggers:
        cursor.run(f"DROP TRIGGER {name} ON {table}")
    for name, _ in reversed(views):
        cursor.run(f"DROP VIEW {name}")
    back = [f"CREATE VIEW {name} AS {definition}" for name, definition in views]
    for name, table, definition, enabled in triggers:
        back.append(str(definition))
        if enabled == "A":
            back.append(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}")
    return back


def _check_foreign_keys(database: Database, cursor: Cursor) -> None:
    if database.dialect != "sqlite":
        return  # enforced all along
    broken = cursor.rows("PRAGMA foreign_key_check")[:_MOST_BROKEN]
    if broken:
        tables = ", ".join(sorted({f"{row[0]} (to {row[2]})" for row in broken}))
        msg = f"{database.url}: after the migration, rows point to nothing in {tables}; nothing was changed"
        raise LedgerMismatch(msg)

"""A SQL prompt: a small one over the SQLite that Penstock brings, or PostgreSQL's own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from penstock.ledger.store.postgres import client
from penstock.model.inert import inert

_AT_ONCE = 1_000
_WIDEST = 60
_PROMPT, _MORE = "penstock> ", "     ...> "
_HELP = """Statements end with a semicolon.
.tables         list tables and views
.schema [NAME]  show how everything, or one thing, was made
.help           this text
.quit           leave"""


def open_psql(url: str) -> NoReturn:
    """Become psql. Raises UsageError where there is none."""
    program = client.program("psql", "this command")
    address, environment = client.address(url)
    sys.stdout.flush()
    os.execve(program, ["psql", f"--dbname={address}"], environment)  # noqa: S606 - found on the PATH


def sqlite_shell(path: Path, source: TextIO, out: TextIO) -> bool:
    """Read statements until the end; False when one from a pipe failed, which ends it."""
    from pysqlite3 import dbapi2 as driver

    interactive = source.isatty()
    with contextlib.closing(driver.connect(str(path), isolation_level=None)) as connection:
        for pragma in ("foreign_keys = ON", "busy_timeout = 30000", "trusted_schema = OFF", "synchronous = FULL"):
            connection.execute(f"PRAGMA {pragma}")
        if interactive:
            out.write(f"SQLite {driver.sqlite_version}, {path}; .help for help\n")
        for statement in _statements(source, out, driver.complete_statement, interactive=interactive):
            if statement.startswith(".quit"):
                break
            try:
                _run(connection, statement, out)
            except driver.Error as error:
                sys.stderr.write(f"penstock: {inert(str(error).removeprefix('penstock: '))}\n")
                if not interactive:
                    return False
            except KeyboardInterrupt:
                out.write("\ninterrupted\n")
    return True


def _statements(source: TextIO, out: TextIO, complete: Any, *, interactive: bool) -> Iterator[str]:
    """One statement or one dot command after the other."""
    waiting = ""
    if interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - makes `input` editable
    while True:
        try:
            line = input(_MORE if waiting else _PROMPT) + "\n" if interactive else source.readline()
        except EOFError:
            line = ""
        except KeyboardInterrupt:
            waiting = ""
            out.write("\n")
            continue
        if not line:
            break
        if not waiting and line.startswith("."):
            yield line.strip()
            continue
        waiting += line
        if waiting.strip() and complete(waiting):
            yield waiting.strip()
            waiting = ""
    if waiting.strip():
        yield waiting.strip()


def _run(connection: Any, statement: str, out: TextIO) -> None:
    command, _, name = statement.partition(" ")
    if command == ".tables":
        _select(
            connection,
            "SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
            " ORDER BY name",
            out,
        )
    elif command == ".schema":
        rows = connection.execute("SELECT name, tbl_name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")
        for made, table, sql in rows:
            if not name.strip() or name.strip() in (made, table):
                out.write(f"{sql};\n")
    elif command.startswith("."):
        out.write(f"{_HELP}\n")
    else:
        _select(connection, statement, out)
    out.flush()


def _select(connection: Any, statement: str, out: TextIO) -> None:
    cursor = connection.execute(statement)
    if cursor.description is None:
        if cursor.rowcount >= 0:
            out.write(f"{cursor.rowcount} rows\n")
        return
    names = [column[0] for column in cursor.description]
    widths: list[int] = []
    while rows := cursor.fetchmany(_AT_ONCE):
        texts = [[_text(value) for value in row] for row in rows]
        if not widths:
            widths = [min(max(len(cell) for cell in column), _WIDEST) for column in zip(names, *texts, strict=True)]
            _line(names, widths, out)
            _line(["-" * width for width in widths], widths, out)
        for row in texts:
            _line(row, widths, out)


def _text(value: Any) -> str:
    if value is None:
        return "NULL"
    return value.hex() if isinstance(value, bytes) else inert(str(value))


def _line(cells: Sequence[str], widths: Sequence[int], out: TextIO) -> None:
    out.write("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() + "\n")

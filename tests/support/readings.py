"""Every reading as it is typed, each of something that the ledger has; and what it loads to answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.cli.declared import DeclaredCommand
from penstock.operations.declare import Lines, Reading
from penstock.operations.fields import fields_of
from tests.support.commands import commands

READS_WITHOUT = (
    *("aiohttp", "alembic", "asyncio", "email", "psycopg", "rich", "sqlalchemy", "ssl", "structlog"),
    *("penstock.ledger.ledger", "penstock.ledger.schema.tables", "penstock.simulators", "penstock.worker.flow"),
)
"""What a reading does without."""
LOADS_MORE = {"doctor"}
"""It compares what the ledger has with the tables as they are declared."""
NOTHING = "nothing"
"""What is asked for where a ledger has nothing to ask for."""
_FOUND = {
    "text": ("reports datasets", "unit_id"),
    "cause": ("dead list", "cause"),
    "action": ("bulk list", "action"),
    "gate": ("gates list", "gate"),
    "alert": ("alerts list", "alert"),
    "reports show dataset": ("reports datasets", "unit_id"),
    "harvest show run": ("harvest runs", "run"),
    "feed": ("harvest feeds", "feed"),
    "query": ("queries list", "query"),
    "rules show run": ("rules runs", "run"),
    "rules targets run": ("rules runs", "run"),
    "report": ("rules reports", "report"),
    "sku": ("rules targets", "sku"),
    "source": ("partitions calendar", "series"),
    "from": ("partitions calendar", "first"),
    "partition": ("partitions calendar", "series"),
    "partitions": ("partitions calendar", "series"),
}
"""Parameter, or reading and parameter, to the reading that knows some and the column."""

Ask = Callable[[list[str]], Any]
"""Gives the answer to a command, read from JSON; None where it was refused."""


def asked(ask: Ask, units: Sequence[str]) -> Iterator[list[str]]:
    """The words of every reading, but of those that wait; those of a unit once for each of these."""
    found = _Found(ask)
    for name, command in commands().items():
        if not isinstance(command, DeclaredCommand) or not isinstance(command.declared, Reading):
            continue
        given, declared = name.removeprefix("penstock "), command.declared
        needed = [one for one in fields_of(declared.parameters) if one.required]
        if declared.stays:
            continue
        for unit in units if any(one.name == "unit" for one in needed) else [""]:
            words = [*given.split()]
            for one in needed:
                words += [] if one.extra("argument") else [f"--{one.name}"]
                words.append(unit or found.value(given, one.name))
            yield [*words, *([] if declared.answer is Lines else ["--json"])]


def name_of(given: Sequence[str]) -> str:
    """What a command is called, without what it is given."""
    named = [n for n in (" ".join(given[: n + 1]) for n in range(len(given))) if f"penstock {n}" in commands()]
    return named[-1] if named else " ".join(given)


def units_of(ask: Ask) -> list[str]:
    """A unit of each machine that has any."""
    found = []
    for machine in sorted({row["machine"] for row in ask(["machines", "--json"])["rows"]}):
        found += ask(["units", "list", "--machine", machine, "--limit", "1", "--json"])["rows"]
    return [str(row["unit"]) for row in found]


class _Found:
    """What a ledger has of what readings need, as other readings tell it."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._rows: dict[str, list[dict[str, Any]]] = {}

    def value(self, given: str, name: str) -> str:
        """What a parameter of a reading is given."""
        listing, column = _FOUND.get(f"{given} {name}") or _FOUND[name]
        found = self._first(listing, column)
        if name in {"partition", "partitions"}:
            return f"{found}/{self._first(listing, 'first')}"
        return found.partition("/")[0] if name == "source" else found

    def _first(self, listing: str, column: str) -> str:
        if listing not in self._rows:
            of = [self._first("rules runs", "run")] if listing == "rules targets" else []
            self._rows[listing] = (self._ask([*listing.split(), *of, "--json"]) or {}).get("rows", [])
        # Of rules' runs one that has targets.
        rows = sorted(self._rows[listing], key=lambda row: -row["targets"] if listing == "rules runs" else 0)
        return str(rows[0][column]) if rows else NOTHING


_ASKED = """import contextlib, io, json, sys
import penstock.cli.main as m
said = sys.stdout
for given in json.loads(sys.argv[1]):
    sys.argv = ["penstock", *given]
    code = None
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            m.main()
        except SystemExit as stopped:
            code = stopped.code
    loaded = [one for one in {without!r} if one in sys.modules]
    said.write(json.dumps([given, code or 0, loaded]) + chr(10))
"""


def loading(folder: Path, given: Sequence[Sequence[str]]) -> Iterator[tuple[str, int, list[str]]]:
    """What is loaded once each of the commands was asked, one after the other in one process; and its exit code."""
    code = _ASKED.replace("{without!r}", repr(READS_WITHOUT))
    command = [sys.executable, "-c", code, json.dumps(given)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        words, exit_code, loaded = json.loads(line)
        yield " ".join(words), exit_code, loaded

"""What a command works with: the program of the configuration, and its ledger."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.app.person import user
from penstock.operations.reader import Reader

__all__ = ["LedgerReader", "load_configuration", "load_program", "open_ledger", "reading", "require_on", "user"]

if TYPE_CHECKING:
    from penstock.app.lifecycle import AnyLifecycle
    from penstock.app.program import Program
    from penstock.ledger.ledger import Ledger
    from penstock.ledger.store.database import Database
    from penstock.settings.file import Configuration

_SQLITE = "sqlite:///"


def load_program(config: Path | None, ledger: str | None = None, *, required: bool = False) -> Program:
    """The program of the configuration. Raises ConfigError with every error at once."""
    from penstock.app import discover

    return discover.load(config, {"ledger.url": ledger}, os.environ, required=required)


def load_configuration(config: Path | None, ledger: str | None = None) -> Configuration:
    """The settings of the kernel, whatever lifecycles there are: for the care of a ledger. Raises ConfigError."""
    from penstock.settings import file

    return file.load(file.find(config), {}, {"ledger.url": ledger}, os.environ, strangers=True)


def require_on(program: Program, lifecycle: AnyLifecycle) -> None:
    """Raises UsageError where the configuration does not switch the lifecycle on."""
    from penstock.model.errors import UsageError

    if lifecycle not in program.app.lifecycles:
        path = program.configuration.path
        where = str(path) if path is not None else "penstock.toml ('penstock init' writes one)"
        msg = f"{lifecycle.name} is not switched on here; add [{lifecycle.name}] to {where}"
        raise UsageError(msg)


class LedgerReader(Reader):
    """Opens the ledger at the first question: an answer that needs none is given without one."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._open = contextlib.ExitStack()
        self.machines = {machine.name: machine for machine in program.app.machines}
        self.past = program.app.past

    def __getattr__(self, name: str) -> Any:
        if name != "database":
            raise AttributeError(name)
        configuration = self._program.configuration
        opening = reading(configuration.ledger_url(), configuration.kernel.ledger.connections)
        self.database = self._open.enter_context(opening)
        return self.database

    def close(self) -> None:
        """Close the ledger, where it was opened."""
        self._open.close()


@contextlib.contextmanager
def reading(url: str, connections: int | None = None) -> Iterator[Database]:
    """A ledger opened to be read; a SQLite file that does not exist is an error, not created.

    A database that is no ledger, or one that this program cannot read, is refused.
    """
    from penstock.ledger.history import require_ledger
    from penstock.ledger.schema import migrate
    from penstock.ledger.store.database import CONNECTIONS, Cursor, open_database
    from penstock.model.clock import SystemClock

    def check(cursor: Cursor) -> None:
        require_ledger(database, cursor)
        migrate.refuse_distant(database, migrate.KERNEL, migrate.stamped(cursor, migrate.KERNEL) or 0)

    _require_file(url)
    database = open_database(url, SystemClock(), connections=connections or CONNECTIONS)
    try:
        database.read(check)
        yield database
    finally:
        database.close()


def _require_file(url: str) -> None:
    """Raises UsageError for a SQLite file that does not exist: opening it would make an empty one."""
    from penstock.model.errors import UsageError

    if url.startswith(_SQLITE) and not Path(url.removeprefix(_SQLITE)).exists():
        msg = f"{url.removeprefix(_SQLITE)} does not exist; 'penstock db upgrade' makes it, --ledger names another"
        raise UsageError(msg)


def open_ledger(program: Program) -> Ledger:
    """The program's ledger, to be worked on. Raises LedgerMismatch for one of another program."""
    from penstock.ledger.ledger import Ledger

    configuration, app = program.configuration, program.app
    url = configuration.ledger_url()
    _require_file(url)
    return Ledger.open(
        url,
        app.machines,
        clock=program.clock,
        migrations=app.migrations,
        connections=configuration.kernel.ledger.connections,
    )

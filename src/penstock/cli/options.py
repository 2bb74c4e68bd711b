"""Options that several commands share, and what they come to together with the environment and the file."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.model.inert import inert

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.settings.config import Config

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="The configuration; else PENSTOCK_CONFIG, else penstock.toml here.", metavar="FILE"),
]
LedgerOption = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        help="sqlite:///FILE or postgresql://user@host/name; else PENSTOCK_LEDGER, else the configuration.",
        metavar="URL",
    ),
]
AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        help="The program's App, as module:attribute; else PENSTOCK_APP, else the configuration.",
        metavar="MODULE:ATTRIBUTE",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print exact JSON instead of tables.")]


def _said(reason: str) -> str:
    """A reason that says something: the history keeps it. Raises UsageError."""
    from penstock.model.errors import UsageError

    if not reason.strip():
        raise UsageError("--reason is empty; the history keeps why something was done by hand")
    return reason


ReasonOption = Annotated[str, typer.Option("--reason", help="Why, for the history.", callback=_said)]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say how many, and change nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@dataclass(frozen=True, slots=True)
class Setup:
    """What a command works with: the settings in force, and the program where the command asked for it."""

    config: Config
    program: App | None = None

    @property
    def url(self) -> str:
        """The ledger's address."""
        return self.config.ledger_url()

    @property
    def app(self) -> App:
        """The program, of a command that asked for it."""
        assert self.program is not None  # noqa: S101 - `settle` was asked for it
        return self.program


def settle(
    file: Path | None, given: Mapping[str, Any], *, program: bool = False, required: bool = False, secrets: bool = False
) -> Setup:
    """Read and validate everything that was wished. Raises ConfigError with every error at once.

    `given` are options by the key of their setting. `program` loads the App, whose settings are then known too;
    `required` insists on a file; `secrets` on secrets that can be read.
    """
    from penstock.settings import config
    from penstock.settings.setting import ConfigError

    path = config.find(file)
    if path is None and required:
        msg = f"there is no {config.FILE} here; 'penstock init' writes one, --config names another"
        raise ConfigError(msg)
    raw = config.read(path)
    if not program:
        return Setup(config.validate(raw, path, given=given, environment=os.environ, strangers=True))
    from penstock.app.app import kernel_app, load_app
    from penstock.model.errors import UsageError

    look_for_programs(path)
    named = given.get("app") or os.environ.get("PENSTOCK_APP") or raw.get("app")
    errors: list[str] = []
    app = kernel_app() if named is None else None
    try:
        app = load_app(named) if isinstance(named, str) and named.strip() else app
    except UsageError as error:
        errors.append(f"{path or 'the configuration'}: {error}" if named == raw.get("app") else str(error))
    found = config.validate(
        raw,
        path,
        (*config.SETTINGS, *(app.settings if app else ())),
        given=given,
        environment=os.environ,
        jobs=app.all_jobs() if app else None,
        prunable=app.prunable() if app else None,
        strangers=app is None,
        errors=errors,
    )
    if secrets:
        config.check_secrets(found)
    return Setup(found, app)


def look_for_programs(file: Path | None = None) -> None:
    """A program may stand in the present folder or beside its configuration.

    These places come last: a file that lies there never takes the place of an installed module.
    """
    for folder in (Path.cwd(), *([file.absolute().parent] if file is not None else [])):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def user() -> str:
    """Who types the command, for the history."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in a container
        return "unknown"


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text that may have come from anywhere."""
    typer.echo(inert(text, lines=True), err=err, nl=nl)


def agree(what: str, *, yes: bool) -> None:
    """Say what is about to be done, and ask. Raises UsageError where nobody can answer."""
    from penstock.model.errors import UsageError

    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"this would {what}; say --yes, or --dry-run to count alone")
    typer.confirm(inert(f"{what}?"), abort=True)

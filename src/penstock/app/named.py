"""Lifecycles that `penstock.toml` names by their modules. Root help asks for them too: nothing more is loaded here."""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path

from penstock.app.lifecycle import AnyLifecycle, Lifecycle
from penstock.model.errors import UsageError


def look_for_modules(path: Path | None = None) -> None:
    """A module of one's own may stand in the present folder or beside the configuration.

    These places come last: a file that lies there never takes the place of an installed module.
    """
    for folder in (Path.cwd(), *([path.absolute().parent] if path is not None else [])):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def import_lifecycle(place: str) -> AnyLifecycle:
    """The lifecycle at `module:attribute`. Raises UsageError that says what is wrong."""
    module, _, attribute = place.partition(":")
    try:
        # Standard output is for answers: what a module prints when it is imported may not spoil them.
        with contextlib.redirect_stdout(sys.stderr):
            imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever a module does when it is imported
        raise UsageError(f"{module!r} cannot be imported: {type(error).__name__}: {error}{_place(error)}") from error
    try:
        found = getattr(imported, attribute)
    except AttributeError:
        raise UsageError(f"module {module!r} has no attribute {attribute!r}") from None
    if not isinstance(found, Lifecycle):
        raise UsageError(f"{place} is a {type(found).__name__}, not a penstock.Lifecycle")
    return found


def _place(error: BaseException) -> str:
    """Where in the module the error was raised; a SyntaxError says so itself."""
    import traceback

    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.name == "<module>"]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""

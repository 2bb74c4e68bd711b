"""`penstock init`: write a configuration that works as it is."""

from __future__ import annotations

import shlex
from pathlib import Path

from penstock.model.errors import UsageError
from penstock.settings.config import FILE, SETTINGS
from penstock.settings.declarations import SHIPPED, sample


def write_sample(folder: Path, app: str | None, *, force: bool) -> Path:
    """Write the commented file. Raises UsageError where one is there already, unless forced."""
    path = folder / FILE
    content = sample()
    if app is not None:
        from penstock.app.app import load_app
        from penstock.cli.options import look_for_programs

        look_for_programs()
        content = sample((*SETTINGS, *load_app(app).settings), app=app)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("w" if force else "x") as file:
            file.write(content)
    except FileExistsError:
        if folder.is_dir():
            msg = f"{path} is there already, and was left as it is; --force writes it anew"
        else:
            msg = f"{folder} is not a folder; name another with --dir"
        raise UsageError(msg) from None
    except OSError as error:
        msg = f"{path} cannot be written: {error.strerror}; name another folder with --dir"
        raise UsageError(msg) from error
    return path


def next_steps(path: Path, app: str | None) -> list[str]:
    """What to do with the file, line by line."""
    here = "" if path.parent == Path() else f" --config {shlex.quote(str(path))}"
    choose = [
        "choose a program: set app in it to your own, as module:attribute, or to one of",
        *(f"  {shipped}" for shipped in SHIPPED),
    ]
    return [
        f"wrote {path}; every setting is in it, at its default",
        *(choose if app is None else ()),
        f"next: penstock up{here}      # makes the ledger, and works until Ctrl-C",
        f"      penstock status{here}  # how everything stands, from another terminal",
    ]

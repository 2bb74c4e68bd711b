"""`penstock new NAME`: a small project with a lifecycle of one's own, which runs and passes its tests as it is.

The template is a project too, called `outgoing`; its name is all that is replaced.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
import tempfile
from pathlib import Path

import click

from penstock.cli.lazy import SETTINGS
from penstock.cli.terminal import echo
from penstock.model.errors import UsageError

_TEMPLATE = Path(__file__).parent / "templates" / "outgoing"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}\Z")


@click.command("new", context_settings=SETTINGS)
@click.argument("name", help="The lifecycle, in lower-case letters, digits and _.")
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=Path(), help="Where to make the folder NAME.")
def command(name: str, folder: Path) -> None:
    """Write a small lifecycle of your own, with tests.

    NAME becomes a folder with a Python package of that name: a machine, a decision, a flow, settings, operations, a
    fake of the API that it calls, tests, and a penstock.toml.
    """
    _check(name)
    target = folder / name
    write(name, target)
    echo(f"{target} is a lifecycle that sends items to an API. It works as it is:")
    for line, says in _next(name, target):
        echo(f"  {line:{_WIDTH}}  {says}".rstrip())


_WIDTH = 34


def _next(name: str, target: Path) -> list[tuple[str, str]]:
    return [
        (f"cd {target}", ""),
        ("python -m pytest", "run its tests"),
        (f"python -m {name}.fake", "serve a fake of the API, in another terminal"),
        ("penstock up", "make the ledger, and work until Ctrl-C"),
    ]


def write(name: str, target: Path) -> None:
    """Write the project, whole or not at all. Raises UsageError where the folder is there already."""
    if target.exists() or target.is_symlink():
        raise UsageError(f"{target} exists already; choose another name, or another folder with --dir")
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent} is not a folder; make it first")
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".penstock-new-") as made:
            project = Path(made) / name
            for source in sorted(_TEMPLATE.rglob("*")):
                if source.is_file() and "__pycache__" not in source.parts:
                    path = project / _renamed(source.relative_to(_TEMPLATE).as_posix(), name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(_renamed(source.read_text("utf-8"), name), "utf-8")
            project.rename(target)
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from error


def _renamed(text: str, name: str) -> str:
    classes = "".join(part.capitalize() for part in name.split("_"))
    return text.replace("Outgoing", classes).replace("outgoing", name)


def _check(name: str) -> None:
    """Raise UsageError for what cannot name a lifecycle and a package."""
    from penstock.app.app import TAKEN
    from penstock.app.shipped import SHIPPED

    if not _NAME.match(name):
        raise UsageError(f"{name!r} cannot name a lifecycle; write lower-case letters, digits and _, 31 at most")
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise UsageError(f"{name!r} is a Python keyword; choose another name")
    if name in SHIPPED:
        raise UsageError(f"{name!r} is a lifecycle that Penstock brings; choose another name")
    if name in TAKEN or name in _OWN:
        raise UsageError(f"{name!r} is Penstock's own word; choose another name")
    if name in sys.stdlib_module_names or _installed(name):
        raise UsageError(f"Python has a module {name!r} already; choose another name")


# A machine is called like its lifecycle, and the kernel has machines of its own.
_OWN = frozenset({"tests", "penstock", "schedule", "delivery", "bulk_action", "alert"})


def _installed(name: str) -> bool:
    """Whether a module of that name can be imported; a folder of that name, which is none yet, is no module."""
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is not None

"""`penstock init`: write a configuration that works as it is."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.terminal import echo
from penstock.model.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.lifecycle import AnyLifecycle

_FILE = "penstock.toml"


@click.command()
@click.argument("lifecycles", nargs=-1, metavar="[LIFECYCLE]...", help="Switch these on; all others are comments.")
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=Path(), help="Where to write penstock.toml.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def command(lifecycles: tuple[str, ...], folder: Path, *, force: bool) -> None:
    """Write a commented penstock.toml that works as it is.

    Every setting is in it, at its default. Name a lifecycle that Penstock ships (reports), or your own
    by its place (shop.contacts:lifecycle).
    """
    own, on = _chosen(lifecycles)
    path = _write(folder, _content(own, on), force=force)
    for line in _next_steps(path, chosen=bool(own or on)):
        echo(line)


def _chosen(names: tuple[str, ...]) -> tuple[dict[str, AnyLifecycle], list[str]]:
    """One's own by their places, and the shipped ones by name. Raises UsageError with the names that exist."""
    from penstock.app.named import import_lifecycle, look_for_modules
    from penstock.app.shipped import SHIPPED

    look_for_modules()
    own: dict[str, AnyLifecycle] = {}
    on = []
    for name in names:
        if ":" in name:
            own[name] = import_lifecycle(name)
        elif name in SHIPPED:
            on.append(name)
        else:
            raise UsageError(
                f"{name!r} must be one of {', '.join(SHIPPED)}, or a place such as shop.contacts:lifecycle"
            )
    return own, on


def _content(own: dict[str, AnyLifecycle], on: list[str]) -> str:
    from penstock.app.shipped import SHIPPED, shipped
    from penstock.settings.sample import sample, toml

    every = {name: shipped(name) for name in SHIPPED} | {one.name: one for one in own.values()}
    text = sample(
        kinds={name: one.settings for name, one in every.items()},
        on=[*on, *(one.name for one in own.values())],
        about={name: one.says for name, one in every.items()},
    )
    return text.replace("#lifecycles = ", f"lifecycles = {toml(list(own))}\n#lifecycles = ", 1) if own else text


def _write(folder: Path, content: str, *, force: bool) -> Path:
    """Write the file. Raises UsageError where one is there already, unless forced."""
    path = folder / _FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("w" if force else "x") as file:
            file.write(content)
    except FileExistsError:
        if folder.is_dir():
            msg = f"{path} exists already and was left as it is; --force replaces it"
        else:
            msg = f"{folder} is not a folder; name another with --dir"
        raise UsageError(msg) from None
    except OSError as error:
        msg = f"{path} cannot be written: {error.strerror}; name another folder with --dir"
        raise UsageError(msg) from error
    return path


def _next_steps(path: Path, *, chosen: bool) -> list[str]:
    """What to do with the file, line by line."""
    from penstock.app.shipped import SHIPPED

    here = "" if path.parent == Path() else f" --config {shlex.quote(str(path))}"
    choose = [
        "switch a lifecycle on: uncomment its section,",
        *(f"  [{name}]".ljust(16) + one.says.removesuffix(".") for name, one in SHIPPED.items()),
        'or name your own: lifecycles = ["module:attribute"]',
    ]
    return [
        f"wrote {path}; every setting is in it, at its default",
        *(choose if not chosen else ()),
        f"next: penstock up{here}      # makes the ledger, and works until Ctrl-C",
        f"      penstock status{here}  # how everything stands, from another terminal",
    ]

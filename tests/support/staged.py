"""A ledger as an operator finds it: the first days of the demonstration, with something left for a person to do."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.app.discover import load
from penstock.examples.demonstration.part import Check, Table, Told, World
from penstock.examples.demonstration.play import Demonstration
from penstock.examples.demonstration.rules import EVERYTHING
from penstock.examples.invoices import Invoice
from penstock.ledger.ledger import Ledger
from penstock.lifecycles import rules
from penstock.lifecycles.rules import operations
from penstock.model.clock import Clock, SystemClock
from penstock.model.machine import Actor
from penstock.observe.logs import configure_logs
from penstock.settings.file import FILE
from tests.support.fleet import COMMAND, ROOT, Member, until

DAYS = 4
RTL = "\u202eevil.exe"
HOSTILE = f"<script>document.title='owned'</script><img src=x onerror=document.title='owned'>{RTL}\x1b[31m \"&"

LONG = "long" * 60
"""A name without a place to break it at."""


class LeftOver:
    """A part that leaves work behind: a price change that waits to be approved, a gate that is held."""

    leaves = ()

    @contextlib.contextmanager
    def serving(self, folder: Path, start: datetime, clock: Clock) -> Iterator[str]:
        yield ""

    def now_by(self, clock: Clock) -> None:
        """It serves nothing."""

    async def happen(self, world: World) -> None:
        await world.until(world.start + timedelta(days=1, hours=12))
        wanted = operations.PreviewParameters(rule=EVERYTHING)
        world.do(rules.lifecycle, operations.preview, wanted, "the next step", "ana")
        world.ledger.gates.pause("demo/held", "operator:ana", HOSTILE)
        world.ledger.gates.pause(f"demo/{LONG[:100]}", "operator:ana", LONG * 8)

    def told(self, world: World, since: datetime, until: datetime) -> Iterator[Told]:
        return iter(())

    def checks(self, world: World) -> Iterator[Check]:
        return iter(())

    def tables(self, world: World) -> Iterator[Table]:
        return iter(())

    def next(self, world: World) -> Iterator[str]:
        return iter(())


def stage(folder: Path, url: str, days: int = DAYS) -> None:
    """Let the days pass on a new ledger; what goes wrong in them stays wrong.

    In a process of its own: beside a browser that Playwright drives, no other event loop may run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.support.staged", str(folder), url, str(days)]
    done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]


def _stage(folder: Path, url: str, days: int) -> None:
    shown = Demonstration(folder, lambda _: None, days=days)
    shown.parts.append(LeftOver())
    with shown.serving(url) as program, opened(program, url, shown.clock) as ledger:
        shown.run(ledger, program)
        born = [Invoice(tenant="hostile", number=text, amount_minor=-1) for text in (HOSTILE, LONG)]
        ledger.birth(born, actor=Actor.API, who=HOSTILE.replace("\x1b", ""))


def fill(folder: Path, count: int, tenants: str = "tenant") -> None:
    """That many invoices more, of tenants whose names begin so."""
    program = load(folder / FILE, environment={})
    made = [Invoice(tenant=f"{tenants}{n % 7}", number=f"{n:05}", amount_minor=n + 1) for n in range(count)]
    with opened(program, program.configuration.ledger_url(), SystemClock()) as ledger:
        for first in range(0, count, 1_000):
            ledger.birth(made[first : first + 1_000], actor=Actor.API, who="test")


def opened(program: Any, url: str, clock: Clock) -> Ledger:
    """The ledger of a program, made where it is new."""
    app = program.app
    return Ledger.open(url, app.machines, clock=clock, create=True, data_tables=program.tables, views=app.data.views)


@contextlib.contextmanager
def serving(folder: Path, *command: str, web: str = "", name: str = "web") -> Iterator[str]:
    """The address of a real `penstock web`, or of another command, over the folder's ledger."""
    file = folder / f"{name}.toml"
    file.write_text(f'{(folder / FILE).read_text()}\n[web]\naddress = "127.0.0.1:0"\n{web}\n')
    run = [*COMMAND, *(command or ("web",))]
    member = Member([*run, "--config", str(file)], _environment(), folder / f"{name}.log", cwd=folder)
    try:
        said = until(lambda: member.said("web.serving") or not member.alive, "it serves")
        assert said is not True, member.text()
        yield str(said[0]["address"]).rstrip("/")
    finally:
        if member.alive:
            member.kill()
    assert "web.failed" not in member.text(), [json.dumps(one) for one in member.said("web.failed")]


def _environment() -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    return clean | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}


if __name__ == "__main__":
    configure_logs("error")
    _stage(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))

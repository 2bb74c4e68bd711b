"""How the command line shows things: aligned tables for people, exact JSON for programs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.clock import SystemClock, instant_text
from penstock.ledger.database import Database, open_database
from penstock.ledger.doctor import Finding
from penstock.ledger.inspect import Status, Transition
from penstock.machine import Machine
from penstock.unit import Ref

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
console = Console(highlight=False)


@contextlib.contextmanager
def reading(url: str) -> Iterator[Database]:
    """A ledger opened to be read; a SQLite file that does not exist is an error, not created."""
    from pathlib import Path

    from penstock.errors import UsageError

    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        msg = f"{url.removeprefix('sqlite:///')} does not exist; name the ledger with --ledger or PENSTOCK_LEDGER"
        raise UsageError(msg)
    database = open_database(url, SystemClock())
    try:
        yield database
    finally:
        database.close()


@contextlib.contextmanager
def progress(total: int, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A progress bar on a terminal; nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda name: bar.update(task, advance=1, description=name)


def print_json(value: Any) -> None:
    """Exact JSON on standard output."""
    json.dump(value, sys.stdout, indent=2, default=_plain)
    sys.stdout.write("\n")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return instant_text(value)
    return str(value)


def when(moment: datetime, now: datetime) -> str:
    """Local time and how long ago: `19:31:02 (4 min ago)`."""
    local = moment.astimezone()
    seconds = (now - moment).total_seconds()
    clock = f"{local:%H:%M:%S}" if abs(seconds) < _DAY else f"{local:%Y-%m-%d %H:%M}"
    size = abs(seconds)
    if size < _MINUTE:
        span = f"{size:.0f} s"
    elif size < _HOUR:
        span = f"{size / _MINUTE:.0f} min"
    elif size < 2 * _DAY:
        span = f"{size / _HOUR:.0f} h"
    else:
        span = f"{size / _DAY:.0f} d"
    return f"{clock} ({span} ago)" if seconds >= 0 else f"{clock} (in {span})"


def _table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for header in headers:
        table.add_column(header.lstrip(">"), justify="right" if header.startswith(">") else "left", overflow="fold")
    return table


def machines(found: Sequence[Machine]) -> None:
    """Machines with their edges."""
    for machine in found:
        kind = "driven by workers" if machine.driven else "guarded"
        console.print(f"[bold]{machine.name}[/] on table {machine.table}, {kind}; born as {', '.join(machine.births)}")
        table = _table("from", "to", "trigger", "who")
        for edge in machine.edges:
            claim = " (on claim)" if edge.on_claim else ""
            table.add_row(edge.source, edge.target, edge.trigger + claim, ", ".join(sorted(edge.actors)))
        console.print(table)
        console.print()


def status(found: Status) -> None:
    """The whole ledger at a glance."""
    console.print(f"[bold]{escape(found.url)}[/]")
    table = _table("machine", "states", ">due", ">claimed", ">parked")
    for m in found.machines:
        states = "  ".join(f"{s} {n:,}" for s, n in m.states.items() if n) or "no units yet"
        table.add_row(m.name, states, *(f"{n:,}" if m.driven else "-" for n in (m.due, m.claimed, m.parked)))
    console.print(table)
    console.print()
    if found.workers:
        table = _table("worker", "host", ">pid", "since", ">lease", "machines")
        for w in found.workers:
            lease = f"{w.lease_seconds:.0f} s" if w.lease_seconds > 0 else "expired"
            table.add_row(w.id, w.host, str(w.pid), when(w.started_at, found.now), lease, ", ".join(w.machines))
        console.print(table)
    else:
        console.print("no worker is running")
    if found.closed_gates:
        console.print()
        table = _table("closed gate", "until", "why")
        for g in found.closed_gates:
            table.add_row(g.gate_id, when(g.closed_until, found.now), escape(g.closed_reason or ""))
        console.print(table)
    if found.alerts:
        console.print()
        table = _table("alert", "when", "what", "unit", "detail")
        for a in found.alerts:
            detail = escape(json.dumps(a.payload, default=str))
            table.add_row(a.severity, when(a.at, found.now), a.kind, escape(a.unit or ""), detail)
        console.print(table)


def history(ref: Ref, found: Sequence[Transition]) -> None:
    """One unit's transitions."""
    now = SystemClock().now()
    console.print(f"[bold]{escape(str(ref))}[/]")
    table = _table("when", "from", "to", "who", "why")
    for t in found:
        table.add_row(
            when(t.at, now), t.from_status or "(born)", t.to_status or "(gone)", escape(t.actor), escape(t.reason or "")
        )
    console.print(table)


def findings(found: Sequence[Finding], checks: Sequence[str]) -> None:
    """What the doctor found."""
    if not found:
        console.print(f"all is well: {', '.join(checks)}")
        return
    table = _table("check", "subject", "finding")
    for finding in found:
        table.add_row(finding.check, escape(finding.subject), escape(finding.message))
    console.print(table)
    console.print(f"{len(found)} finding{'s' if len(found) != 1 else ''}")

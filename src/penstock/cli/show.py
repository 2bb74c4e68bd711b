"""How the command line shows things: aligned tables for people, exact JSON for programs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.ledger.care.finding import Finding
from penstock.ledger.care.prune import Count
from penstock.ledger.gates.status import GateStatus
from penstock.ledger.history import AsOf, Status, Transition
from penstock.ledger.outbox import Listed
from penstock.ledger.store.database import CONNECTIONS, Cursor, Database, open_database
from penstock.model.clock import SystemClock, instant_text
from penstock.model.inert import inert
from penstock.model.machine import Machine
from penstock.model.unit import Ref

if TYPE_CHECKING:
    from penstock.lifecycles.refreshes import Cadence
    from penstock.operations.why import Why
    from penstock.worker.schedule import Schedule

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_PIPE_COLUMNS = 400
_BAR = 20


class _Console(Console):
    """What is printed is inert, wherever it came from; colours are markup, which holds no control character."""

    def print(self, *objects: Any, **wishes: Any) -> None:
        super().print(*(inert(o, lines=True) if isinstance(o, str) else o for o in objects), **wishes)


class _Table(Table):
    """Likewise the cells of a table, each of them on a line."""

    def add_row(self, *cells: Any, **wishes: Any) -> None:
        super().add_row(*(inert(c) if isinstance(c, str) else c for c in cells), **wishes)


console = _Console(highlight=False)
if not console.is_terminal and "COLUMNS" not in os.environ:
    # In a pipe or a file a row of a table is one line, for `grep` and `awk`.
    console.width = _PIPE_COLUMNS


@contextlib.contextmanager
def reading(url: str, connections: int = CONNECTIONS) -> Iterator[Database]:
    """A ledger opened to be read; a SQLite file that does not exist is an error, not created.

    A database that is no ledger, or one that this program cannot read, is refused.
    """
    from pathlib import Path

    from penstock.ledger.history import require_ledger
    from penstock.ledger.schema import migrate
    from penstock.model.errors import UsageError

    def check(cursor: Cursor) -> None:
        require_ledger(database, cursor)
        migrate.refuse_distant(database, migrate.KERNEL, migrate.stamped(cursor, migrate.KERNEL) or 0)

    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        msg = f"{url.removeprefix('sqlite:///')} does not exist; 'penstock db upgrade' makes it, --ledger names another"
        raise UsageError(msg)
    database = open_database(url, SystemClock(), connections=connections)
    try:
        database.read(check)
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


@contextlib.contextmanager
def amount(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A progress bar of so much of so much, on a terminal; a total of nothing is not known."""
    if quiet or not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


@contextlib.contextmanager
def watching(*, quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Say how much of how much is done, and a sentence about it; a total of nothing is not known.

    On a terminal it is one line that changes, with a bar; elsewhere a line for each new sentence.
    """
    if quiet or not sys.stderr.isatty():
        yield (lambda _done, _total, _says: None) if quiet else _each_line()
        return
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    # Only the bar's own console may write while it is shown: whatever else does lands in the middle of it.
    # In a narrow one the sentence goes on in a second line, and does not squeeze the bar away.
    columns = (
        BarColumn(_BAR, table_column=Column(min_width=_BAR)),
        TextColumn("{task.percentage:>3.0f}%", table_column=Column(min_width=4)),
        TextColumn("{task.description}", markup=False, table_column=Column()),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, says: bar.update(task, completed=done, total=total or None, description=inert(says))


def _each_line() -> Callable[[int, int, str], None]:
    said: list[str] = []

    def tell(_done: int, _total: int, says: str) -> None:
        if said != [says]:
            said[:] = [says]
            sys.stderr.write(f"{inert(says)}\n")
            sys.stderr.flush()

    return tell


def moment(text: str) -> datetime:
    """An instant as a person writes it, with its offset from UTC. Raises UsageError."""
    from penstock.model.clock import parse_instant
    from penstock.model.errors import UsageError

    try:
        return parse_instant(text)
    except ValueError:
        msg = f"{text!r} is not an instant; write date, time and offset, for example 2026-11-15T19:31:00Z"
        raise UsageError(msg) from None


def print_json(value: Any) -> None:
    """Exact JSON on standard output."""
    json.dump(value, sys.stdout, indent=2, default=_plain)
    sys.stdout.write("\n")


def _plain(value: Any) -> Any:
    if not isinstance(value, type) and (dataclasses.is_dataclass(value) or hasattr(value, "__struct_fields__")):
        return fields(value)
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
    table = _Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for header in headers:
        table.add_column(header.lstrip(">"), justify="right" if header.startswith(">") else "left", overflow="fold")
    return table


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Aligned rows; a header that begins with `>` has its column to the right."""
    made = _table(*headers)
    for row in rows:
        made.add_row(*(escape(cell) for cell in row))
    console.print(made)


def fields(value: Any) -> dict[str, Any]:
    """The fields of a struct or a dataclass, by name."""
    names = getattr(value, "__struct_fields__", None) or [field.name for field in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in names}


def cadence(found: Sequence[Cadence], *, json: bool) -> None:
    """What the refreshes at each offset came to."""
    if json:
        print_json([one.document() for one in found])
        return
    if not found:
        console.print("nothing has been loaded yet")
        return
    measures = list(found[0].percents)
    rows = [
        (*one.of.values(), one.offset, f"{one.loads:,}", *map(_percent, (one.changed_percent, *one.percents.values())))
        for one in found
    ]
    table([*found[0].of, "offset", ">loads", ">changed", *(f">of {name}" for name in measures)], rows)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def machines(found: Sequence[Machine]) -> None:
    """Machines with their edges."""
    for machine in found:
        kind = "driven by workers" if machine.driven else "guarded"
        console.print(f"[bold]{machine.name}[/] on table {machine.table}, {kind}")
        table = _table("from", "to", "trigger", "who")
        for state, actors in machine.born_by.items():
            table.add_row("", state, "born", ", ".join(sorted(actors)))
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
        table = _table("worker", "host", ">pid", "since", ">lease", "configuration", "machines")
        for w in found.workers:
            lease = f"{w.lease_seconds:.0f} s" if w.lease_seconds > 0 else "expired"
            version = w.config_version or "-"
            since, machines = when(w.started_at, found.now), ", ".join(w.machines)
            table.add_row(w.id, w.host, str(w.pid), since, lease, version, machines)
        console.print(table)
    else:
        console.print("no worker is running")
    if found.closed_gates:
        console.print()
        table = _table("gate", "state", "until", "why")
        for g in found.closed_gates:
            table.add_row(escape(g.gate_id), g.state, _until(g, found.now), escape(g.reason or ""))
        console.print(table)
    if found.alerts:
        console.print()
        table = _table("alert", "when", "what", "unit", "detail")
        for a in found.alerts:
            detail = escape(json.dumps(a.payload, default=str))
            table.add_row(a.severity, when(a.at, found.now), a.kind, escape(a.unit or ""), detail)
        console.print(table)


def _until(gate: GateStatus, now: datetime) -> str:
    if gate.until is not None:
        return when(gate.until, now)
    return "resumed" if gate.state in {"paused", "stopped"} else ""


def gates(found: Sequence[GateStatus], now: datetime) -> None:
    """Gates with their budgets."""
    if not found:
        console.print("no gate yet: they are made when a unit first needs one")
        return
    table = _table("gate", "state", "until", ">waiting", ">inside", "budget", "why")
    for g in found:
        places = f"{g.in_flight:,}" + (f" of {g.max_in_flight:,}" if g.max_in_flight is not None else "")
        budget = "  ".join(f"{x.name} {x.left:,.4g} of {x.burst:,.4g} (+{x.rate:,.4g}/s)" for x in g.limits)
        why = escape(g.reason or "") + (f" [by {escape(g.by)}]" if g.by and g.state == "paused" else "")
        table.add_row(escape(g.gate_id), g.state, _until(g, now), f"{g.waiting:,}", places, budget, why)
    console.print(table)


def schedules(found: Sequence[Schedule], now: datetime) -> None:
    """Periodic jobs."""
    if not found:
        console.print("no schedules: 'penstock up' keeps those of the configuration")
        return
    table = _table("schedule", "state", "job", "cadence", "last", "next", "last error")
    for s in found:
        often = f"every {s.every}" if s.every else f"at {', '.join(s.at or [])}"
        hours = f" between {s.hours}" if s.hours else ""
        last = when(s.last_tick_at, now) if s.last_tick_at is not None else "never"
        due = "running" if s.claimed_by else when(s.due_at, now) if s.due_at is not None else "-"
        row = (s.name, s.status, s.job, f"{often}{hours} {s.time_zone}", last, due, escape(s.last_error or ""))
        table.add_row(*map(str, row))
    console.print(table)


def why(found: Why) -> None:
    """The chain that decides what happens to a unit."""
    console.print(f"[bold]{escape(found.unit)}[/] {escape(found.verdict)}")
    table = _table("", "what", "says", "until")
    for link in found.links:
        until = when(link.until, found.now) if link.until is not None else ""
        mark = "[red]✗[/]" if link.blocks else "…" if link.holds else "[green]✓[/]"
        table.add_row(mark, link.topic, escape(link.says), until)
    console.print(table)
    following = when(found.next_at, found.now) if found.next_at is not None else "none by itself"
    console.print(f"next change: {following}")


def events(found: Sequence[Listed]) -> None:
    """Events with what became of their deliveries."""
    now = SystemClock().now()
    table = _table("when", "severity", "what", "key", "delivered to", "detail")
    for listed in found:
        e = listed.event
        told = ", ".join(name if s == "delivered" else f"{name} ({s})" for name, s in listed.deliveries.items())
        detail = escape(json.dumps(e.payload, default=str))
        table.add_row(
            when(e.created_at, now), e.severity or "", escape(e.event_type), escape(e.event_key), escape(told), detail
        )
    console.print(table if found else "no events yet")


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


def as_of(found: AsOf) -> None:
    """How a unit stood at one moment."""
    at = instant_text(found.at)
    if found.since is None:
        console.print(f"{escape(found.unit)} was not born at {at}")
        return
    data = f", {escape(json.dumps(found.data))}" if found.data is not None else ""
    status = found.status or "gone"
    console.print(f"{escape(found.unit)} was {status} at {at}, since {instant_text(found.since)}{data}", soft_wrap=True)


def prunable(found: Sequence[Count]) -> None:
    """What pruning would remove."""
    if not found:
        console.print("nothing is old enough to be pruned")
        return
    table = _table("what", "table", "machine", "before", "rows")
    table.columns[-1].justify = "right"
    for count in found:
        table.add_row(count.what, count.table, count.machine or "", instant_text(count.before), f"{count.rows:,}")
    console.print(table)


def findings(found: Sequence[Finding], checks: Sequence[str]) -> None:
    """What the doctor found."""
    if not found:
        console.print(f"all is well: {', '.join(checks)}")
        return
    table = _table("", "check", "subject", "finding")
    for finding in sorted(found, key=lambda f: f.severity):
        mark = "[red]error[/]" if finding.severity == "error" else "[yellow]warning[/]"
        table.add_row(mark, finding.check, escape(finding.subject), escape(finding.message))
    console.print(table)
    errors = sum(f.severity == "error" for f in found)
    console.print(f"{errors} error{'s' if errors != 1 else ''}, {len(found) - errors} warnings")

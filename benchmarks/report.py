"""The results as tables, on the terminal and in docs/benchmarks.md."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import rich.table
from rich.console import Console

from benchmarks.contenders import GUARANTEES
from benchmarks.results import Check, Line, Results, checks, values

Row = Sequence[str]

INTRODUCTION = """Durable no-op work items, from all due to all finished. Every item is enqueued and durable before
the clock starts; the clock starts when the worker's run loop starts in a process that has imported everything and is
connected; it stops when the last item's completion is committed. Every program then checks in the database that all
items are finished. Ours include the guard, the history row and the fence of every unit. Contenders take turns, round
after round, on one machine and one server; a ratio compares the best round of each, and beside it the medians."""

CLAIMS = """The median time to claim {claimed} units: as a worker does it, commit included, and the statement alone,
rolled back. The check takes the worse ratio of the two. All rows are due, and in the third ledger {gates} gates are
closed."""

MEMORY = """Resident memory of the worker process, sampled ten times a second; the first tenth of the units is
warm-up. Drift is the largest distance from the first sample after it."""

WAITS = """Each step waits as a network call would. The bare loop does the same waits in as many tasks and keeps no
record."""

HOW = """`make bench` measures everything and writes this file. `.venv/bin/python -m benchmarks.run --help` lists how
to measure a part, or all of it quickly with small counts. The first run makes `.venv-bench` for the peers from
`benchmarks/requirements.txt`; the PostgreSQL is the one of the tests. `benchmarks/peers/` has each peer's program,
with the settings that were tried to find its best."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns after the first `text` ones are numbers."""

    columns: Row
    rows: Sequence[Row]
    text: int = 1

    def markdown(self) -> str:
        rule = ["---" if n < self.text else "---:" for n in range(len(self.columns))]
        return "\n".join(f"| {' | '.join(row)} |" for row in (self.columns, rule, *self.rows))

    def rich(self, title: str) -> rich.table.Table:
        table = rich.table.Table(title=title, title_justify="left")
        for number, name in enumerate(self.columns):
            table.add_column(name, justify="left" if number < self.text else "right")
        for row in self.rows:
            style = {"miss": "red", "pass": "green"}.get(row[-1].split(",")[0])
            table.add_row(*row, style=style)
        return table


def show(console: Console, results: Results) -> None:
    """Print every table."""
    for title, _, table in sections(results):
        console.print(table.rich(title))
        console.print()
    for failure in results.failures:
        console.print(f"[red]failed:[/] {failure}")


def markdown(results: Results, facts: Mapping[str, str], day: date, how: str) -> str:
    """The whole document."""
    parts = [
        "# Benchmarks",
        f"Measured on {day.isoformat()} by `make bench`, which writes this file; {how}.",
        Table(["Machine", ""], [[name, value] for name, value in facts.items()], text=2).markdown(),
        *(f"Failed: {failure}" for failure in results.failures),
    ]
    for title, words, table in sections(results):
        parts += [f"## {title}", *([words] if words else []), table.markdown()]
    parts += [
        "## Settings",
        "Each peer at the best settings that were found for it, Penstock at its defaults.",
        _settings(results).markdown(),
        "## What differs in guarantees",
        *(f"**{name}.** {text}" for name, text in GUARANTEES.items()),
        "## How to run it",
        HOW,
    ]
    return "\n\n".join(parts) + "\n"


def sections(results: Results) -> list[tuple[str, str, Table]]:
    """Title, words and table of each part that was measured."""
    found = []
    if verdicts := checks(results):
        found.append(("Floors", "", _checks(verdicts)))
    if results.rates:
        found.append(("Work items per second", INTRODUCTION, _rates(results)))
    if results.waits:
        found.append(("Steps that wait", WAITS, _waits(results)))
    if results.claims:
        first = next(iter(results.claims.values()))
        found.append(("Claim latency", CLAIMS.format(**first), _claims(results)))
    if results.memory:
        found.append(("Memory", MEMORY, _memory(results)))
    return found


def _checks(verdicts: Sequence[Check]) -> Table:
    rows = [
        [
            check.what,
            check.wanted,
            check.measured,
            "-" if check.medians is None else f"{check.medians:.2f} {check.unit}",
            check.verdict,
        ]
        for check in verdicts
    ]
    return Table(["", "wanted", "measured", "by medians", "verdict"], rows)


def _rates(results: Results) -> Table:
    rows = [
        [
            contender.database,
            contender.name,
            lines[0]["version"],
            f"{lines[0]['items']:,}",
            f"{max(values(lines)):,.0f}",
            f"{statistics.median(values(lines)):,.0f}",
        ]
        for contender, lines in sorted(results.rates.items(), key=lambda pair: pair[0].database)
    ]
    return Table(["database", "contender", "version", "items", "best /s", "median /s"], rows, text=3)


def _waits(results: Results) -> Table:
    rows = [
        [
            database,
            f"{lines[0]['items']:,}",
            f"{max(values(lines)):,.0f}",
            f"{statistics.median(values(lines)):,.0f}",
            f"{max(values(lines, 'bare_per_second')):,.0f}",
            f"{statistics.median(values(lines, 'bare_per_second')):,.0f}",
        ]
        for database, lines in results.waits.items()
    ]
    return Table(["database", "units", "ours best /s", "median", "bare best /s", "median"], rows)


def _claims(results: Results) -> Table:
    rows = []
    for database, line in results.claims.items():
        sizes = line["rows"]
        for what, state in (
            (f"{sizes['small']:,} rows", "small"),
            (f"{sizes['large']:,} rows", "large"),
            (f"{sizes['small']:,} rows and {sizes['closed']:,} behind closed gates", "closed"),
        ):
            rows.append([database, what, f"{line[state]['claim_ms']:.2f}", f"{line[state]['statement_ms']:.2f}"])
    return Table(["database", "in the table", "claim, ms", "statement alone, ms"], rows, text=2)


def _memory(results: Results) -> Table:
    rows = [
        [
            database,
            f"{line['items']:,}",
            f"{line['per_second']:,.0f}",
            *(f"{line[name]:.1f}" for name in ("first_mb", "min_mb", "max_mb", "drift_mb")),
        ]
        for database, line in results.memory.items()
    ]
    return Table(["database", "units", "units/s", "first MB", "least MB", "most MB", "drift MB"], rows)


def _settings(results: Results) -> Table:
    rows = [
        [f"{contender.name} ({contender.database})", _plain(lines[0]["settings"])]
        for contender, lines in results.rates.items()
    ]
    return Table(["contender", "settings"], rows, text=2)


def _plain(settings: Line) -> str:
    words = {None: "unlimited", True: "on", False: "off"}
    return ", ".join(f"{n} {words[v] if v is None or isinstance(v, bool) else v}" for n, v in settings.items())

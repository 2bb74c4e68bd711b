"""docs/reliability.md, made of the kept figures alone: a run of some scenarios changes their rows, and no others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from chaos import rows
from chaos.rows import Row
from chaos.scenarios import SCENARIOS

_COLUMNS = (
    "fault", "database", "units", "workers", "lease", "made", "lost", "twice", "stuck", "parked wrongly", "p50", "p99",
    "worst", "doctor", "before", "verdict",
)  # fmt: skip
_NUMBERS = (2, 3, 4, 6, 7, 8, 9, 10, 11, 12)
_BEGINNING = """\
# Reliability

What happens when something breaks is measured, not argued. `make chaos` makes the faults of this page on purpose,
counts what they cost, and writes this page; `make nightly` does so every night.

It shares nothing with the tests: a lifecycle of its own (`parcel`: `QUEUED` → `SENDING` → `SENT`, or `FAILED` as a
dead letter), a provider in a process of its own that writes down every effect before it answers and does it again
when it is asked again, a proxy that freezes and cuts, PostgreSQL servers of its own, and its own SQL. Workers are
real processes of the command line under a supervisor that replaces at once whatever has gone.

## Figures

"""
_MEANING = """\

What the columns mean:

- **lost**: units that are `SENT` although the provider has no effect of theirs, or that are gone from the ledger.
- **twice**: units of which the provider has more than one effect.
- **stuck**: units that were neither ended nor parked when the patience of the run was over, which is minutes; and,
  where clocks jump, a schedule that did not tick.
- **parked wrongly**: units that were parked or became dead letters although nothing is wrong with them.
- **p50**, **p99**, **worst**: seconds from a fault to progress. Where a worker is struck, there is a figure for
  each unit that it held: from the last fault that hit the unit to its end elsewhere, as the history has it. Where
  the ledger is struck (outages, stalls, drops, the disk), there is one for each fault: from the moment at which the
  ledger is back to the first commit after it, and with a promotion from the end of the primary. Where clocks
  jump: from the jump to the next tick. With fifty workers: from a worker's launch to its registration.
- **doctor**: what `penstock doctor` said at the end, with the workers still running.
- **before**: what was measured on the kernel before doubt and suspicion were two things.
- **verdict**: `pass`, or every target that was missed. Targets: none lost, twice (but see stops), stuck or parked
  wrongly, every history one legal path, and after kills p99 at most the lease and five seconds. Some rows want
  more, and say so.
"""
_RUNNING = """\
## Running it

```sh
make chaos                                                  # all of it, in about forty minutes on two cores
.venv/bin/python -m chaos.run --only kills,stops --database sqlite
.venv/bin/python -m chaos.run --only poison                 # every scenario whose name begins so
.venv/bin/python -m chaos.run --quick                       # a few, in small, in about a minute; writes nothing
.venv/bin/python -m chaos.run --quick --only all --jobs 2   # every scenario in small
.venv/bin/python -m chaos.run --only storm --seed 7 --keep /tmp/storm   # with its logs and its ledger to look at
```

A run of some scenarios changes their rows and leaves the others as they were; [reliability.json](reliability.json)
has the figures. With `--strict` a missed target is an error, as it is in `make nightly`. A full disk takes root,
since a small one is mounted for it; without, its row says that it was not run. All traffic stays on this machine.
"""


def table(found: Sequence[Row]) -> str:
    """The rows as a table in Markdown."""
    lines = ["| " + " | ".join(_COLUMNS) + " |"]
    lines.append("| " + " | ".join("---:" if n in _NUMBERS else "---" for n in range(len(_COLUMNS))) + " |")
    lines += ["| " + " | ".join(cell.replace("|", "/") for cell in _cells(row)) + " |" for row in found]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> list[str]:
    scenario = SCENARIOS.get(row.scenario)
    title = scenario.title if scenario else row.scenario
    before = scenario.before if scenario else ""
    if row.not_run:
        return [title, row.database, *[""] * 12, before, row.verdict]
    counts = (row.lost, row.twice, row.stuck, row.parked_wrongly)
    note = f"; {row.note}" if row.note else ""
    return [
        title,
        row.database,
        f"{row.units:,}",
        str(row.workers),
        f"{row.lease} s",
        row.faults,
        *(f"{count:,}" for count in counts),
        *("" if value is None else f"{value:.1f}" for value in (row.p50, row.p99, row.worst)),
        row.doctor,
        before,
        f"**{row.verdict}**{note}" if row.missed() else f"{row.verdict}{note}",
    ]


def keep(document: Path, found: Sequence[Row]) -> None:
    """Put these rows in the place of the kept ones, and write the page anew."""
    file = document.with_suffix(".json")
    kept = {row.key: row for row in _kept(file)} | {row.key: row for row in found}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([row.plain() for row in _ordered(list(kept.values()))], indent=1) + "\n")
    write(document)


def write(document: Path) -> None:
    """The page, of the figures that lie beside it."""
    document.write_text(markdown(_kept(document.with_suffix(".json"))))


def _kept(file: Path) -> list[Row]:
    return [rows.read(plain) for plain in json.loads(file.read_text())] if file.exists() else []


def _ordered(found: list[Row]) -> list[Row]:
    """In the order of the scenarios; one that is no longer there falls out."""
    names = list(SCENARIOS)
    return sorted((r for r in found if r.scenario in SCENARIOS), key=lambda r: (names.index(r.scenario), r.database))


def markdown(found: list[Row]) -> str:
    """The whole page."""
    ordered = _ordered(found)
    parts = [
        _BEGINNING,
        table(ordered) if ordered else "Nothing has been measured yet.\n",
        _MEANING,
        _faults(),
        _RUNNING,
    ]
    if ordered:
        parts.append(_stamps(ordered))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _faults() -> str:
    lines = ["## The faults", ""]
    for name, scenario in SCENARIOS.items():
        lines += [f"**{scenario.title}** (`{name}`). {scenario.fault} *What Penstock does:* {scenario.answer}", ""]
    return "\n".join(lines)


def _stamps(found: list[Row]) -> str:
    lines = ["## When each row was measured", "", "| fault | database | when | size | seed | seconds | versions |"]
    lines.append("| --- | --- | --- | --- | ---: | ---: | --- |")
    for row in found:
        size = "small" if row.quick else "full"
        cells = [SCENARIOS[row.scenario].title, row.database, row.when, size, str(row.seed), f"{row.seconds:.0f}"]
        lines.append("| " + " | ".join([*cells, row.versions]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    from chaos.parts import ROOT

    write(ROOT / "docs" / "reliability.md")

"""What was measured, and what the floors say to it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import contenders
from benchmarks.contenders import Contender

Line = dict[str, Any]
Pick = Callable[[Sequence[float]], float]


@dataclass(slots=True)
class Results:
    """The JSON lines of all programs."""

    rates: dict[Contender, list[Line]] = field(default_factory=dict)
    waits: dict[str, list[Line]] = field(default_factory=dict)
    pickup: dict[str, Line] = field(default_factory=dict)
    memory: dict[str, Line] = field(default_factory=dict)
    claims: dict[str, Line] = field(default_factory=dict)
    gates: dict[str, Line] = field(default_factory=dict)
    reports: dict[str, Line] = field(default_factory=dict)
    big_report: dict[str, Line] = field(default_factory=dict)
    report_load: dict[str, Line] = field(default_factory=dict)
    partitions: dict[str, Line] = field(default_factory=dict)
    harvest: dict[str, Line] = field(default_factory=dict)
    harvest_consolidation: dict[str, Line] = field(default_factory=dict)
    rules: dict[str, Line] = field(default_factory=dict)
    queries: dict[str, Line] = field(default_factory=dict)
    commands: dict[str, Line] = field(default_factory=dict)
    desk: dict[str, Line] = field(default_factory=dict)
    prune: dict[str, Line] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Check:
    """One figure against its floor or, where `at_most`, its ceiling. No limit: shown for orientation."""

    what: str
    value: float
    unit: str = "x"
    medians: float | None = None
    limit: float | None = None
    at_most: bool = False
    goal: float | None = None

    @property
    def wanted(self) -> str:
        if self.limit is None:
            return "-"
        text = f"{'≤' if self.at_most else '≥'} {_figure(self.limit)} {self.unit}"
        return f"{text} (goal {_figure(self.goal)})" if self.goal else text

    @property
    def measured(self) -> str:
        """Rounded against us, so that a miss never reads like a pass."""
        rounded = (math.ceil if self.at_most else math.floor)(self.value * 100) / 100
        return f"{rounded:.2f} {self.unit}"

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return "-"
        if not self._reaches(self.limit):
            return "miss"
        return "pass, goal reached" if self.goal and self._reaches(self.goal) else "pass"

    def _reaches(self, wanted: float) -> bool:
        return self.value <= wanted if self.at_most else self.value >= wanted


def _figure(value: float) -> str:
    return f"{value:g}"


def values(lines: Sequence[Line], name: str = "per_second") -> list[float]:
    return [float(line[name]) for line in lines]


def checks(results: Results) -> list[Check]:
    """Every floor of which both sides were measured."""
    found = [
        *_rate_checks(results),
        *_waits_checks(results),
        *_pickup_checks(results),
        *_claims_checks(results),
        *_gates_checks(results),
        *_lifecycle_checks(results),
        *_harvest_checks(results),
        *_rules_checks(results),
        *_queries_checks(results),
        *_commands_checks(results),
        *_desk_checks(results),
        *_prune_checks(results),
    ]
    for database, line in results.memory.items():
        what = f"{database}: worker's memory, drift over {line['items']:,} units"
        found.append(Check(what, line["drift_mb"], "MB", limit=20, at_most=True))
    return found


def _rate_checks(results: Results) -> list[Check]:
    known = contenders
    pairs: list[tuple[Contender, Contender, float | None, float | None]] = [
        (known.OURS_POSTGRES, known.PGQUEUER, 1.2, 1.5),
        (known.OURS_POSTGRES, known.PROCRASTINATE_EIGHT, 30, None),
        (known.OURS_POSTGRES, known.PROCRASTINATE, 30, None),
        (known.OURS_POSTGRES, known.DBOS, 30, None),
        (known.OURS_POSTGRES_TWO, known.OURS_POSTGRES, 1, None),
        (known.OURS_SQLITE, known.HUEY, 12, None),
        (known.OURS_SQLITE, known.HUEY_RESULTS, None, None),
    ]
    found = []
    for ours, other, limit, goal in pairs:
        if results.rates.get(ours) and results.rates.get(other):
            mine, theirs = values(results.rates[ours]), values(results.rates[other])
            what = f"{ours.database}: {ours.name} / {'one' if other.ours else other.name}"
            medians = _ratio(statistics.median, mine, theirs)
            found.append(Check(what, _ratio(max, mine, theirs), "x", medians, limit, goal=goal))
    return found


def _waits_checks(results: Results) -> list[Check]:
    found = []
    for database, lines in results.waits.items():
        mine, bare = values(lines), values(lines, "bare_per_second")
        what = f"{database}: {lines[0]['concurrency']:,} waits of {lines[0]['wait_ms']} ms / bare asyncio"
        found.append(Check(what, _ratio(max, mine, bare), "x", _ratio(statistics.median, mine, bare), 0.9))
    return found


def _pickup_checks(results: Results) -> list[Check]:
    found = []
    for database, line in results.pickup.items():
        for where in ("same process", "another process"):
            waits = line["waits"][where]
            for name, limit in (("p50", 15), ("p99", 60)):
                what = f"{database}: {name} until a unit born in {where.replace('same', 'the same')} is begun"
                found.append(Check(what, waits[f"{name}_ms"], "ms", limit=limit, at_most=True))
            # What an idle worker used before it could be woken, with room for a coarse clock.
            idle = f"{database}: an idle worker, units born in {where.replace('same', 'the same')}"
            found.append(Check(idle, waits["idle_percent"], "% of a core", limit=1, at_most=True))
    return found


def _claims_checks(results: Results) -> list[Check]:
    found = []
    for database, line in results.claims.items():
        rows = line["rows"]
        for what, state in (
            (f"{rows['large']:,} rows / {rows['small']:,}", "large"),
            (f"{rows['closed']:,} due behind closed gates / none", "closed"),
        ):
            worse = max(line[state][m] / line["small"][m] for m in ("claim_ms", "statement_ms"))
            found.append(Check(f"{database}: claim latency, {what}", worse, limit=2, at_most=True))
    return found


def _gates_checks(results: Results) -> list[Check]:
    found = []
    for database, line in results.gates.items():
        for situation, by_count in line["situations"].items():
            few, many = min(by_count, key=int), max(by_count, key=int)
            for what, measures in (("claim", ("claim_ms", "within_ms")), ("idle question", ("idle_ms",))):
                worse = max(by_count[many][m] / by_count[few][m] for m in measures)
                name = f"{database}: {what}, {int(many):,} gates / {int(few):,}, {situation}"
                found.append(Check(name, worse, limit=1.5, at_most=True))
    return found


def _lifecycle_checks(results: Results) -> list[Check]:
    found = []
    for database, line in results.reports.items():
        what = f"{database}: {line['first']['rows']:,} datasets of {line['items']:,} accounts made"
        limit = 30 if database == contenders.SQLITE else None
        found.append(Check(what, line["first"]["seconds"], "s", limit=limit, at_most=True))
        again = f"{database}: the same again, with nothing to make"
        found.append(Check(again, line["second"]["seconds"], "s", limit=2, at_most=True))
    for database, line in results.big_report.items():
        what = f"{database}: worker's memory, loading a report of {line['megabytes']:,.0f} MB"
        found.append(Check(what, line["peak_mb"], "MB", limit=120, at_most=True))
    for database, line in results.report_load.items():
        found += _report_load_checks(database, line)
    for database, line in results.partitions.items():
        what = f"{database}: how {line['partitions']:,} partitions stand"
        found.append(Check(what, line["year"]["median_ms"] / 1000, "s", limit=1, at_most=True))
    return found


LOADERS = {
    "plain": "a plain script",
    "ready": "COPY of ready rows",
    "duckdb": "DuckDB and COPY",
    "dlt-arrow": "dlt by Arrow",
    "dlt-rows": "dlt by rows",
}
"""Who else loads a report."""


def _report_load_checks(database: str, line: Line) -> list[Check]:
    found = []
    ours = line["ours"]
    script = {"processor time": 2.0 if database == contenders.POSTGRES else 2.5, "time": 2.5}
    for way, other in line["others"].items():
        limits = script if way == "plain" else dict.fromkeys(script, 1.0) if way.startswith("dlt") else {}
        for what, ratio in (
            ("processor time", sum(ours["cpu_seconds"].values()) / sum(other["cpu_seconds"].values())),
            ("time", ours["seconds"] / other["seconds"]),
        ):
            name = f"{database}: {what} to load a report of {line['megabytes']:,.0f} MB / {LOADERS[way]}"
            found.append(Check(name, ratio, limit=limits.get(what), at_most=True))
    return found


#: Milliseconds of processor time at most.
HELP_MS, READING_MS = 120, 300


def _commands_checks(results: Results) -> list[Check]:
    found = []
    for database, line in results.commands.items():
        help_ms, others = commands_apart(line)
        slow = [name for name, ms in others.items() if ms > READING_MS]
        name, slowest = max(help_ms.items(), key=lambda one: one[1])
        found.append(Check(f"{database}: processor time of `{name}`", slowest, "ms", limit=HELP_MS, at_most=True))
        name, slowest = max(others.items(), key=lambda one: one[1])
        what = f"{database}: processor time of the slowest reading, `{name}`"
        found.append(Check(what, slowest, "ms", limit=READING_MS, at_most=True))
        above = f"{database}: readings above {READING_MS} ms, of {len(others)}"
        found.append(Check(above, len(slow), "", limit=0, at_most=True))
    return found


def commands_apart(line: Line) -> tuple[dict[str, float], dict[str, float]]:
    """Help, and everything else that is a command, by its milliseconds."""
    commands = {name: ms for name, ms in line["milliseconds"].items() if name.startswith("penstock")}
    helped = {name: ms for name, ms in commands.items() if name.endswith("--help")}
    return helped, {name: ms for name, ms in commands.items() if name not in helped}


def _harvest_checks(results: Results) -> list[Check]:
    found = []
    for database, line in results.harvest.items():
        what = f"{database}: a harvest of {line['stones']:,} records"
        found.append(Check(what, line["seconds"], "s", limit=60, at_most=True))
        bare = f"{database}: its pages fetched / a bare client that throws them away"
        found.append(Check(bare, line["phases"]["fetch"] / line["bare"]["seconds"], limit=4, at_most=True))
        memory = f"{database}: worker's memory, harvesting"
        found.append(Check(memory, line["peak_mb"], "MB", limit=250, at_most=True))
    for database, line in results.harvest_consolidation.items():
        # The floors are PostgreSQL's: SQLite has one writer, whatever the number of replicas.
        floored = database == contenders.POSTGRES
        for other, words, limit in (
            ("one statement", "one INSERT … SELECT … ON CONFLICT", 0.4),
            ("one statement, mapped beforehand", "the same of rows mapped beforehand", None),
            ("the plain plan", "the plain plan", 3),
        ):
            what = f"{database}: {line['rows']:,} raw rows consolidated / {words}"
            found.append(Check(what, _worse(line["rates"], "ours", other), limit=limit if floored else None))
        two = _worse(line["rates"], "ours, 2 replicas", "ours")
        found.append(Check(f"{database}: consolidation by two replicas / by one", two, limit=1 if floored else None))
        most = max(rates.get("mb", 0) for rates in line["rates"].values())
        found.append(Check(f"{database}: worker's memory, consolidating", most, "MB", limit=250, at_most=True))
    return found


def _rules_checks(results: Results) -> list[Check]:
    found = []
    for database, line in results.rules.items():
        what = f"{database}: {line['targets']:,} prices of {line['products']:,} products set"
        found.append(Check(what, line["seconds"], "s", limit=60, at_most=True, goal=40))
        bare = f"{database}: the same / a bare client that reads and writes them"
        found.append(Check(bare, line["of_bare"], at_most=True))
        queued = f"{database}: their preview and queueing"
        found.append(Check(queued, line["preview_and_queue"], "s", limit=15, at_most=True))
        memory = f"{database}: worker's memory, setting prices"
        found.append(Check(memory, line["peak_mb"], "MB", limit=200, at_most=True))
        for one in line["metered"]:
            workers = "one worker" if one["workers"] == 1 else f"{one['workers']} workers"
            used = f"{database}: what the bucket gives, used by {workers}"
            found.append(Check(used, 100 * one["used"], "%", limit=97))
            throttled = f"{database}: throttles of {workers} at the bucket"
            found.append(Check(throttled, one["throttled"], "calls", limit=0, at_most=True))
            calls = f"{database}: calls of {workers} for each product"
            found.append(Check(calls, one["updates"] / one["products"], limit=1, at_most=True))
    return found


def _queries_checks(results: Results) -> list[Check]:
    found = []
    for database, line in results.queries.items():
        first = line["first"]
        for what, name in (
            (f"{first['offers']:,} offers of a paged API ingested", "first"),
            ("the same offers again, unchanged", "again"),
            (f"as many beside {line['filling']['offers'] + first['offers']:,}", "full"),
        ):
            found.append(Check(f"{database}: {what}", line[name]["per_second"], "/s", limit=10_000))
        found.append(
            Check(f"{database}: worker's memory, ingesting offers", first["peak_mb"], "MB", limit=150, at_most=True)
        )
        big = line["big_page"]
        what = f"{database}: worker's memory, with a page of {big['megabytes']:.0f} MB"
        found.append(Check(what, big["peak_mb"], "MB", at_most=True))
        for name, peer in line["peers"].items():
            found.append(Check(f"{database}: offers ingested / dlt, {name}", first["per_second"] / peer["per_second"]))
        bare = f"{database}: offers ingested / a bare client that decodes the pages"
        found.append(Check(bare, first["per_second"] / line["bare"]["per_second"]))
    return found


def _desk_checks(results: Results) -> list[Check]:
    found = []
    for database, line in results.desk.items():
        readers = f"{line['readers']:,} readers of {line['units']:,} units"
        found.append(Check(f"{database}: p99 of {readers}", line["p99_ms"], "ms", limit=250, at_most=True))
        beside = line["worker_beside"] / line["worker_alone"]
        found.append(Check(f"{database}: a worker beside them / alone", beside, limit=0.9))
        pages = f"{database}: the desk, with {line['pages']:,} open pages"
        found.append(Check(pages, line["pages_cores"], "cores", limit=0.1, at_most=True))
    return found


def _prune_checks(results: Results) -> list[Check]:
    found = []
    for database, line in results.prune.items():
        pruned, ended = line["prune"], f"{line['items']:,} ended units"
        rows = pruned["after"]["rows"] / pruned["before"]["rows"]
        found.append(
            Check(f"{database}: rows of history after {ended} were pruned / before", rows, limit=1.01, at_most=True)
        )
        size = "mb" if database == contenders.POSTGRES else "used_mb"
        grown = pruned["after"][size] / pruned["before"][size]
        found.append(Check(f"{database}: space in use after it / before", grown, at_most=True))
        looks = line["doctor"]
        part = looks["since_last"]["seconds"] / looks["whole"]["seconds"]
        what = f"{database}: the doctor since its last look, {line['changed']:,} changes / whole"
        found.append(Check(what, part, limit=0.2, at_most=True))
    return found


def _worse(rates: Line, ours: str, other: str) -> float:
    """Inserting or updating, whichever ratio is the worse."""
    return float(min(rates[ours][what] / rates[other][what] for what in ("inserting", "updating")))


def _ratio(pick: Pick, mine: Sequence[float], theirs: Sequence[float]) -> float:
    return pick(mine) / pick(theirs)

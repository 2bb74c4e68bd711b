"""The results as tables, on the terminal and in docs/benchmarks.md."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import rich.table
from rich.console import Console

from benchmarks.contenders import GUARANTEES
from benchmarks.results import HELP_MS, LOADERS, READING_MS, Check, Line, Results, checks, commands_apart, values

Row = Sequence[str]

INTRODUCTION = """Durable no-op work items, from all due to all finished. Every item is enqueued and durable before
the clock starts; the clock starts when the worker's run loop starts in a process that has imported everything and is
connected; it stops when the last item's completion is committed. Every program then checks in the database that all
items are finished. Ours include the guard, the history row and the fence of every unit. Contenders take turns, round
after round, on one machine and one server; a ratio compares the best round of each, and beside it the medians."""

CLAIMS = """The median time to claim {claimed} units: as a worker does it, commit included, and the statement alone,
rolled back. The check takes the worse ratio of the two. All rows are due, and in the third ledger {gates} gates are
closed."""

GATES = """The median time to claim {claimed} units: as a worker does it, commit included; all but the commit;
and then to ask when something is next to do. *Open*: every gate has units that are due. *Metered*: so it has, and a
budget. *Closed*: five are open, and {closed:,} units are due behind the others. *Empty*: units are due behind five, and
nobody waits behind the others. *Later*: the same, but behind each of the others a unit waits for tomorrow."""

MEMORY = """Resident memory of the worker process, sampled ten times a second; the first tenth of the units is
warm-up. Drift is the largest distance from the first sample after it."""

WAITS = """Each step waits as a network call would. The bare loop does the same waits in as many tasks and keeps no
record."""

PICKUP = """From the call that brings an item, its commit included, to the first line of its step: one item at a time,
each some time after the last was begun, so that the worker sleeps. Idle is the processor time of the worker's process
in ten seconds without work, the server's not included. Everybody is at the defaults."""

REPORTS = """`update-report-datasets` on an empty ledger, an hour later, and when there is nothing to make. Every
dataset is born with its guards and its history."""

BIG_REPORT = """One report from its being ready to its last row: downloaded, landed, checked, loaded. Memory is the most
that the worker process ever had."""

REPORT_LOAD = """A report of {megabytes:.0f} MB and {rows:,} rows, every value of which differs. Ours is downloaded,
landed, checked, digested and loaded by fenced chunks, by a worker in its own process; the others read the file from the
disk and load it, and hold all of it in memory. The limit is COPY of rows that are ready. Processor seconds are of
whoever loads and of the server."""

PARTITIONS = """What the consumer gate takes to answer for five queries of 1,000 customers, in milliseconds: the median,
and the worst."""

HARVEST = """A whole catalogue from the start of its run to the last row, by `penstock up` in its own process: scanned,
fetched in pages of 30, consolidated, in a new database that nobody has analysed. The simulator adds no latency, and its
work is done on the same cores. The bare client fetches the same pages and throws them away. Processor seconds are of
worker, server and simulator; others are the cores that something else on the machine had meanwhile."""

CONSOLIDATION = """{rows:,} raw rows that lie there become canonical ones: inserting them all, then updating them all.
*One statement* is `INSERT … SELECT … ON CONFLICT` of the same raw rows, mapped and priced in SQL; *mapped beforehand*,
it copies them from a table. Neither marks anything or can be resumed. *The plain plan* is: 2,000 rows
fetched, mapped and priced, upserted by 100, marked."""

RULES = """Every price of a shop changed by one rule, by `penstock up` in its own process: from the start of the run to
its end, with a read before every write, one call for each product, and the history of every target. The simulator adds
no latency, and its work is done on the same cores. The bare client makes the same reads and writes and keeps nothing.
Preview and queueing are the two commands, from their start to their end. Then a smaller shop behind the standard bucket
of 100 points a second and 2,000 at once: what was charged by the shop's own count, reads included, of what the bucket
gave meanwhile. Processor seconds are of worker, server and simulator."""

QUERIES = """Job offers of {kilobytes} KB from a paged JSON API, 1,000 to a page, by `penstock up` in its own process:
every offer mapped to its columns, compared with what is there, linked where it is a repost, upserted with its payload
and with the query that lists it; companies aggregated; a commit for each page. From the beginning of the run to its
last commit. dlt loads the same pages in the same run with its `rest_api` source: extracted, normalised and loaded into
one table, by primary key (merge) or without looking (append). The bare client decodes the pages. The API adds no
latency, and its work is done on the same cores. Processor seconds are of worker, server and API."""

COMMANDS = """Milliseconds of processor time, user and system, from the start of the process to its end: the least of
{times} runs, in the folder of a demonstration that has run to its end. Every reading, and help, of what its ledger has.
What Python compiles is there already."""

DESK = """`penstock web` beside `penstock up`, on a ledger of {units:,} units. {readers} readers ask once a second
each, in turn for lists, units, histories, counts and pages; a wait counts from when its question was due. The worker's
steps wait half a second, a thousand at once; alone is the mean of before and after. Then {pages} pages are held open,
and each fetches itself when it is told of a change. Cores are processor time of the desk."""

PRUNE = """Units that ended long ago, each with a baseline as its history: pruned in batches of 500, to a grave each.
Space is the history's with its indexes on PostgreSQL; on SQLite what is used of the file, which does not shrink. The
doctor looks at all of it before that, and then at what {changed:,} births have changed. Processor seconds are of the
process and of the server."""

HOW = """`make bench` measures everything and writes this file. `.venv/bin/python -m benchmarks.run --help` lists how
to measure a part, which then takes its place among the others, or all of it quickly with small counts. The first run
makes `.venv-bench` for the peers from `benchmarks/requirements.txt`; the PostgreSQL is the one of the tests.
`benchmarks/peers/` has each peer's program, with the settings that were tried to find its best."""


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


def markdown(results: Results, facts: Mapping[str, str], measured: Mapping[str, str]) -> str:
    """The whole document; `measured` says of each part when."""
    when = "; ".join(f"{part} on {day}" for part, day in measured.items())
    parts = [
        "# Benchmarks",
        f"Measured by `make bench`, which writes this file: {when}.",
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
    verdicts = checks(results)
    found = [("Floors", "", _checks(verdicts))] if verdicts else []
    for title, words, part, table in (
        ("Work items per second", INTRODUCTION, "rates", _rates),
        ("Steps that wait", WAITS, "waits", _waits),
        ("Until a step begins", PICKUP, "pickup", _pickup),
        ("Claim latency", CLAIMS, "claims", _claims),
        ("Claims and gates", GATES, "gates", _gates),
        ("Memory", MEMORY, "memory", _memory),
        ("Report datasets", REPORTS, "reports", _reports),
        ("A large report", BIG_REPORT, "big_report", _big_report),
        ("A report beside those who only load", REPORT_LOAD, "report_load", _report_load),
        ("How partitions stand", PARTITIONS, "partitions", _partitions),
        ("A harvest", HARVEST, "harvest", _harvest),
        ("Consolidation", CONSOLIDATION, "harvest_consolidation", _consolidation),
        ("Prices set by rules", RULES, "rules", _rules),
        ("Offers from a paged API", QUERIES, "queries", _queries),
        ("Commands", COMMANDS, "commands", _commands),
        ("The desk", DESK, "desk", _desk),
        ("Pruning, and the doctor", PRUNE, "prune", _prune),
    ):
        lines = [*getattr(results, part).values()]
        if lines:
            # What is measured in rounds has words without figures.
            found.append((title, words.format(**lines[0]) if isinstance(lines[0], dict) else words, table(results)))
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


def _pickup(results: Results) -> Table:
    rows = [
        [
            database,
            f"{who} {waits['version']}" if "version" in waits else f"Penstock, {who}",
            f"{line['items']:,}",
            f"{waits['p50_ms']:,.1f}",
            f"{waits['p99_ms']:,.1f}",
            f"{waits['idle_percent']:.2f}",
        ]
        for database, line in results.pickup.items()
        for who, waits in line["waits"].items()
    ]
    return Table(["database", "contender", "items", "p50 ms", "p99 ms", "idle, % of a core"], rows, text=2)


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


def _gates(results: Results) -> Table:
    rows = [
        [database, situation, f"{int(count):,}", *(f"{one[m]:.2f}" for m in ("claim_ms", "within_ms", "idle_ms"))]
        for database, line in results.gates.items()
        for situation, by_count in line["situations"].items()
        for count, one in by_count.items()
    ]
    return Table(
        ["database", "gates", "how many", "claim, ms", "without commit, ms", "idle question, ms"], rows, text=2
    )


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


def _reports(results: Results) -> Table:
    rows = [
        [
            database,
            f"{line['items']:,}",
            *(text for name in ("first", "later") for text in (f"{line[name]['rows']:,}", _seconds(line[name]))),
            _seconds(line["second"]),
        ]
        for database, line in results.reports.items()
    ]
    columns = ["database", "accounts", "datasets", "made in s", "an hour later", "made in s", "nothing to make, s"]
    return Table(columns, rows)


def _seconds(line: Line) -> str:
    return f"{line['seconds']:.2f}"


def _big_report(results: Results) -> Table:
    rows = [
        [
            database,
            f"{line['megabytes']:,.0f}",
            f"{line['rows']:,}",
            f"{line['seconds']:,.0f}",
            f"{line['peak_mb']:.1f}",
        ]
        for database, line in results.big_report.items()
    ]
    return Table(["database", "MB of JSON", "rows", "seconds", "most MB of memory"], rows)


def _report_load(results: Results) -> Table:
    rows = []
    for database, line in results.report_load.items():
        for name, one in (("Penstock", line["ours"]), *((LOADERS[way], one) for way, one in line["others"].items())):
            used = one["cpu_seconds"]
            whole = sum(used.values())
            rows.append(
                [
                    database,
                    name,
                    f"{one['seconds']:.1f}",
                    f"{used['worker']:.1f} + {used['server']:.1f}",
                    f"{1e6 * whole / line['rows']:.1f}",
                    f"{one['peak_mb']:.0f}",
                ]
            )
    columns = ["database", "who", "s", "processor s", "the same for a million rows", "most MB"]
    return Table(columns, rows, text=2)


def _partitions(results: Results) -> Table:
    asked = ("one", "year", "month", "customer", "each")
    rows = [
        [
            database,
            f"{line['partitions']:,}",
            *(f"{line[name]['median_ms']:,.1f} ({line[name]['worst_ms']:,.1f})" for name in asked),
        ]
        for database, line in results.partitions.items()
    ]
    return Table(
        ["database", "partitions", "one", "a year", "a month", "a year of one customer", "each of these"], rows
    )


def _processor(line: Line) -> str:
    """By their names: figures that were kept in a file come back in the order of the alphabet."""
    used = line["cpu_seconds"]
    return " + ".join(f"{used[name]:.0f}" for name in ("worker", "server", "simulator", "api") if name in used)


def _harvest(results: Results) -> Table:
    rows = [
        [
            database,
            f"{line['stones']:,}",
            f"{line['seconds']:.1f}",
            f"{line['per_second']:,.0f}",
            *(f"{line['phases'][name]:.1f}" for name in ("scan", "fetch", "consolidate")),
            f"{line['bare']['seconds']:.1f}",
            f"{line['peak_mb']:.0f}",
            _processor(line),
            f"{line['cores_of_others']:.1f}",
        ]
        for database, line in results.harvest.items()
    ]
    columns = ["database", "records", "s", "records/s", "scan, s", "fetch, s", "consolidate, s", "bare client, s"]
    return Table([*columns, "most MB", "processor s", "others"], rows)


def _consolidation(results: Results) -> Table:
    rows = [
        [
            database,
            name,
            *(f"{rates[what]:,.0f}" for what in ("inserting", "updating")),
            f"{rates['mb']:.0f}" if "mb" in rates else "-",
        ]
        for database, line in results.harvest_consolidation.items()
        for name, rates in line["rates"].items()
    ]
    return Table(["database", "contender", "inserting /s", "updating /s", "most MB"], rows, text=2)


def _rules(results: Results) -> Table:
    rows = [
        [
            database,
            f"{line['targets']:,}",
            f"{line['seconds']:.1f}",
            f"{line['preview_and_queue']:.1f}",
            f"{line['bare']['seconds']:.1f}",
            f"{line['reads']:,} + {line['updates']:,}",
            f"{line['peak_mb']:.0f}",
            _processor(line),
            f"{line['bare']['cpu_seconds']:.0f}",
            " / ".join(f"{one['used']:.1%}" for one in line["metered"]),
            f"{line['cores_of_others']:.1f}",
        ]
        for database, line in results.rules.items()
    ]
    columns = ["database", "targets", "s", "preview and queue, s", "bare client, s", "reads + calls", "most MB"]
    return Table([*columns, "processor s", "bare, processor s", "bucket, one / two workers", "others"], rows)


def _queries(results: Results) -> Table:
    rows = []
    for database, line in results.queries.items():
        there = f"beside {line['filling']['offers'] + line['first']['offers']:,}"
        named = [
            ("Penstock", line["first"]),
            ("Penstock, the same again", line["again"]),
            ("Penstock, filling the table", line["filling"]),
            (f"Penstock, {there}", line["full"]),
            (f"Penstock, one page of {line['big_page']['megabytes']:.0f} MB", line["big_page"]),
            *((f"dlt {peer['version']}, {name}", peer) for name, peer in line["peers"].items()),
            ("bare client", line["bare"]),
        ]
        rows += [[database, name, *_ingested(one)] for name, one in named]
    columns = ["database", "who", "offers", "s", "offers /s", "most MB", "processor s", "others"]
    return Table(columns, rows, text=2)


def _ingested(line: Line) -> Row:
    used = line["cpu_seconds"]
    return [
        f"{line['offers']:,}",
        f"{line['seconds']:.1f}",
        f"{line['per_second']:,.0f}",
        f"{line['peak_mb']:.0f}" if "peak_mb" in line else "-",
        _processor(line) if isinstance(used, dict) else f"{used:.0f}",
        f"{line['cores_of_others']:.1f}" if "cores_of_others" in line else "-",
    ]


def _commands(results: Results) -> Table:
    databases = list(results.commands)
    line = next(iter(results.commands.values()))
    helped, readings = commands_apart(line)
    floors = {**dict.fromkeys(helped, f"≤ {HELP_MS}"), **dict.fromkeys(readings, f"≤ {READING_MS}")}
    rows = [
        [f"`{name}`", floors.get(name, "-"), *(f"{results.commands[d]['milliseconds'][name]:.0f}" for d in databases)]
        for name in line["milliseconds"]
    ]
    return Table(["command", "wanted", *(f"{database}, ms" for database in databases)], rows)


def _desk(results: Results) -> Table:
    rows = [
        [
            database,
            f"{line['asked']:,}",
            *(f"{line[name]:,.1f}" for name in ("p50_ms", "p99_ms")),
            f"{line['desk_cores']:.2f}",
            *(f"{line[name]:,.0f}" for name in ("worker_alone", "worker_beside")),
            f"{line['pages_fetched']:,}",
            f"{line['pages_cores']:.2f}",
        ]
        for database, line in results.desk.items()
    ]
    columns = ["database", "answers", "p50, ms", "p99, ms", "cores", "worker alone /s", "beside /s"]
    return Table([*columns, "pages fetched", "cores"], rows)


def _prune(results: Results) -> Table:
    rows = []
    for database, line in results.prune.items():
        pruned, looks = line["prune"], line["doctor"]
        for what, took in (
            ("the doctor, whole", looks["whole"]),
            ("the doctor, since its last look", looks["since_last"]),
            ("pruning", pruned),
        ):
            cpu = took["cpu_seconds"]
            sizes = [pruned[when] for when in ("before", "after")] if took is pruned else []
            space = " → ".join(f"{size.get('used_mb', size['mb']):,.0f}" for size in sizes)
            history = " → ".join(f"{size['rows']:,}" for size in sizes)
            spent = f"{cpu['own']:.1f} + {cpu['server']:.1f}"
            rows.append([database, what, f"{line['items']:,}", f"{took['seconds']:.1f}", spent, history, space])
    columns = ["database", "what", "units", "seconds", "processor s", "rows of history", "MB in use"]
    return Table(columns, rows, text=2)


def _settings(results: Results) -> Table:
    rows = [
        [f"{contender.name} ({contender.database})", _plain(lines[0]["settings"])]
        for contender, lines in results.rates.items()
    ]
    return Table(["contender", "settings"], rows, text=2)


def _plain(settings: Line) -> str:
    words = {None: "unlimited", True: "on", False: "off"}
    return ", ".join(f"{n} {words[v] if v is None or isinstance(v, bool) else v}" for n, v in settings.items())

"""A report of 100 MB into the ledger's database, beside those who only load it.

Ours is what a worker does in its own process: download, land, check, digest, and load by fenced chunks. The others read
the same file from the disk (`peers/report_peer.py`). Processor time is of whoever loads and of the server.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import big_report, environment, noop
from benchmarks.processes import cpu_seconds, server_pids

PEER = ("-m", "benchmarks.peers.report_peer")
DLT = ("dlt-arrow", "dlt-rows")
WAYS = {"postgresql": ("plain", "ready", "duckdb", *DLT), "sqlite": ("plain", *DLT)}


def pieces(file: Path) -> Iterator[bytes]:
    """The file, as a server sends it."""
    with file.open("rb") as opened:
        while piece := opened.read(1 << 16):
            yield piece


def peer(url: str, way: str, file: Path, rows: int) -> dict[str, Any]:
    """One of the others; what it says of itself, and what its server used."""
    before = cpu_seconds(*server_pids(url))
    given = ["--way", way, "--url", url, "--file", str(file), "--rows", str(rows)]
    command = [str(environment.PEERS_PYTHON), *PEER, *given]
    done = subprocess.run(command, cwd=environment.ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{way}: exit {done.returncode}\n{done.stderr[-2000:]}")
    line: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    used = {"worker": line.pop("cpu_seconds"), "server": round(cpu_seconds(*server_pids(url)) - before, 2)}
    return {**line, "cpu_seconds": used}


def main() -> None:
    """Run once and print the result; `--items` are megabytes."""
    parser = noop.arguments("report_load", 100)
    parser.add_argument("--ways", nargs="*", help="measure these of the others alone")
    options = parser.parse_args()
    database = noop.database_of(options.url)
    ways = WAYS[database] if options.ways is None else options.ways
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        file, body = Path(folder) / "report.json.gz", big_report.Body(big_report.day(), options.items)
        with file.open("wb") as out:
            out.writelines(body())
        others = {}
        for way in ways:
            with noop.scratch(options.url, f"report_{way.replace('-', '_')}") as url:
                others[way] = peer(url, way, file, body.rows)
        with noop.scratch(options.url, "report_load") as url:
            ours = big_report.run(url, lambda: pieces(file), Path(folder))
    if ours["rows"] != body.rows:
        raise SystemExit(f"{ours['rows']:,} rows of {body.rows:,} were loaded")
    about = {"database": database, "megabytes": round(body.size / big_report.MEGABYTE, 1), "rows": body.rows}
    print(json.dumps({**about, "ours": ours, "others": others}), flush=True)


if __name__ == "__main__":
    main()

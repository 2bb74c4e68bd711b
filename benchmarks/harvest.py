"""A whole harvest, from `penstock harvest start` to the last row in `diamonds`, by `penstock up` in its own process.

The simulator has a process too, and adds no latency. Beside it, in the same run, a bare client fetches the same pages
from the same simulator and throws them away. What is counted is counted in the database, when the run is over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import noop
from benchmarks.harvest_fetch import LOGIN, fetched
from benchmarks.processes import cpu_seconds, machine_seconds, peak, server_pids
from penstock.app.running import tune_interpreter
from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import Cursor
from penstock.lifecycles.harvest import MACHINES
from penstock.lifecycles.harvest.run.machine import R, Run, harvest_run
from penstock.lifecycles.harvest.settings import schedule_of
from penstock.model.clock import instant
from penstock.model.unit import Ref
from penstock.simulators.nivoda_process import control, in_process
from penstock.worker import schedule_unit

FEED = "diamonds"
LONGEST_SECONDS = 800.0
POLL_SECONDS = 0.1
CONFIG = """[ledger]
url = "{url}"

[harvest.feeds.diamonds]
url = "{api_url}"
username = "{username}"
password = {{ env = "{login}" }}
requests_per_second = 0
at = ["02:00"]
watermark = "watermark.json"
"""
PENSTOCK = (sys.executable, "-c", "from penstock.cli.main import main; main()")


@contextmanager
def working(config: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`penstock up`; it has the ledger and its schedule when this is entered."""
    log = config.with_name("up.log")
    with log.open("wb") as out:
        command = [*PENSTOCK, "up", "--config", str(config)]
        process = subprocess.Popen(command, cwd=config.parent, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        until = time.perf_counter() + 60
        while b"worker.started" not in log.read_bytes():
            if process.poll() is not None or time.perf_counter() > until:
                raise SystemExit(f"penstock up did not start: {log.read_text()[-500:]}")
            time.sleep(POLL_SECONDS)
        yield process
        process.terminate()
        process.wait(60)
    finally:
        process.kill()
        process.wait()


def completed(ledger: Ledger, process: subprocess.Popen[bytes]) -> Run:
    """The run, when it is over."""
    until = time.perf_counter() + LONGEST_SECONDS
    while time.perf_counter() < until:
        time.sleep(POLL_SECONDS)
        ids = [str(row[0]) for row in ledger.read(lambda cursor: cursor.rows("SELECT unit_id FROM run_metadata"))]
        run: Run | None = next(iter(ledger.get_many(harvest_run, ids)), None) if ids else None
        if run is not None and run.status is R.COMPLETED:
            return run
        if (run is not None and run.status is R.FAILED) or process.poll() is not None:
            raise SystemExit(f"not harvested: {run.error if run is not None else 'the worker is gone'}")
    raise SystemExit(f"not completed after {LONGEST_SECONDS:.0f} s")


def counted(ledger: Ledger, run: Run, stones: int) -> dict[str, int]:
    """What is in the database. Ends the program where anything is missing."""
    postgres = ledger.database.dialect == "postgresql"
    mine = "CAST(:run_id AS uuid)" if postgres else ":run_id"

    def work(cursor: Cursor) -> dict[str, int]:
        if postgres:
            cursor.run("SET LOCAL statement_timeout = 0")

        def number(sql: str, **given: Any) -> int:
            return int(cursor.rows(f"SELECT count(*) FROM {sql}", **given)[0][0])

        of_run = {"run_id": str(run.run_id)}
        return {
            "diamonds": number(f"diamonds WHERE deleted_at IS NULL AND last_seen_run_id = {mine}", **of_run),
            "raw": number(f"raw_diamonds_nivoda WHERE run_id = {mine} AND consolidated", **of_run),
            "unconsolidated": number("raw_diamonds_nivoda WHERE NOT consolidated"),
            "rejected": number("harvest_rejected"),
            "open_partitions": number("partition_progress WHERE NOT completed OR verified_at IS NULL"),
            "open_chunks": number("harvest_chunk WHERE status <> 'done'"),
            "watermarks": number("watermark WHERE feed = :feed", feed=FEED),
        }

    found = ledger.database.write(work)
    wanted = {**dict.fromkeys(found, 0), "diamonds": stones, "raw": stones, "watermarks": 1}
    if found != wanted:
        raise SystemExit(f"the database has {found}; it should have {wanted}")
    return found


def phases(ledger: Ledger, run: Run, started: float) -> dict[str, float]:
    """How long each part took, by the run's own history; the scan from the moment it was asked for."""
    sql = "SELECT to_status, at FROM transition_log WHERE machine = 'harvest_run' AND unit_id = :unit_id ORDER BY seq"
    rows = ledger.read(lambda cursor: cursor.rows(sql, unit_id=str(run.run_id)))
    at = {str(status): instant(moment).timestamp() for status, moment in rows}
    fetching, consolidating = at[R.WORKERS_RUNNING], at[R.CONSOLIDATION_TRIGGERED]
    return {
        "scan": round(fetching - started, 2),
        "fetch": round(consolidating - fetching, 2),
        "consolidate": round(at[R.COMPLETED] - consolidating, 2),
    }


def doctor(config: Path) -> None:
    """What `penstock doctor` says to what is left; it must find nothing wrong."""
    done = subprocess.run(
        [*PENSTOCK, "doctor", "--config", str(config)], cwd=config.parent, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"doctor: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-500:]}")


def run(url: str, stones: int, about: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One harvest; what it took."""
    config = folder / "penstock.toml"
    config.write_text(CONFIG.format(url=url, login=LOGIN, **about))
    with working(config) as process, Ledger.open(url, [*MACHINES, schedule_unit.machine]) as ledger:
        # A backend that ends leaves its seconds with the first process of the server.
        server = server_pids(url)
        own, theirs, others = cpu_seconds(process.pid), cpu_seconds(*server), machine_seconds()
        simulator = control(about)["cpu_seconds"]
        started, began = time.time(), time.perf_counter()
        ledger.wake([Ref("schedule", schedule_of(FEED))], who="benchmark", reason="measured").all()
        made = completed(ledger, process)
        seconds = time.perf_counter() - began
        others = machine_seconds() - others
        own, theirs = cpu_seconds(process.pid) - own, cpu_seconds(*server_pids(url)) - theirs
        simulator = control(about)["cpu_seconds"] - simulator
        line = {
            "seconds": round(seconds, 1),
            "per_second": round(stones / seconds, 1),
            "phases": phases(ledger, made, started),
            "peak_mb": round(peak(process.pid), 1),
            "cpu_seconds": {"worker": round(own, 1), "server": round(theirs, 1), "simulator": round(simulator, 1)},
            "cores_of_others": round((others - own - theirs - simulator) / seconds, 2),
            "counted": counted(ledger, made, stones),
            "scan_calls": made.scan_calls,
            "partitions": made.expected_workers,
        }
    doctor(config)
    return line


def main() -> None:
    """Run once and print the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.harvest", description=__doc__)
    parser.add_argument("--stones", type=int, default=500_000, help="records of the catalogue (default %(default)s)")
    parser.add_argument("--url", required=True, help="as for the other programs")
    options = parser.parse_args()
    tune_interpreter()
    with (
        noop.scratch(options.url, "harvest") as url,
        tempfile.TemporaryDirectory(prefix="penstock-") as folder,
        in_process(options.stones) as about,
    ):
        bare = asyncio.run(fetched(about))
        line = run(url, options.stones, about, Path(folder))
    line = {
        "database": noop.database_of(url),
        "stones": options.stones,
        **line,
        "bare": bare,
        "of_bare": round(line["seconds"] / bare["seconds"], 2),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

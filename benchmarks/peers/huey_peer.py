"""huey: ``SqliteHuey`` with its own consumer, WAL and synchronous = FULL.

The clock starts before the consumer starts its worker and stops at the completion signal
of the last task.

huey's ``SqliteStorage`` sets ``pragma synchronous=2`` (FULL) on each connection when
``fsync=True``, 0 (OFF) when ``fsync=False`` and leaves SQLite's default when it is not
given; ``journal_mode`` is ``wal`` unless told otherwise. The program reads both pragmas
back and refuses anything else.

A task is removed from the queue in one synced transaction before it runs, and nothing is
written when it is done: a crash in between loses the task. A durable trace of completion
needs a stored result (``--results``), which is a second synced transaction.

Tried, with 5 000 items on two cores shared with other work, two to four runs each:

- Worker processes 1 and 2, threads 1, 2 and 4: each dequeue takes an exclusive lock and
  waits for the disk, so one worker is best. One process is level with one thread or a
  little faster, two and four threads are up to a third slower, two processes no faster
  than one.
- Results off (as the default, a task that returns ``None`` stores nothing) is about twice
  as fast as ``--results``.
- ``cache_mb`` 64 instead of 8 makes no difference.
"""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

from huey import SqliteHuey  # type: ignore[import-untyped]
from huey.signals import SIGNAL_COMPLETE  # type: ignore[import-untyped]

from benchmarks.peers import common

FULL = 2


def run(path: Path, items: int, *, workers: int, worker_type: str, results: bool, cache_mb: int) -> float:
    """Enqueue all tasks, then start the consumer; the seconds until the last task is done."""
    huey = SqliteHuey(
        "bench",
        filename=str(path),
        results=results,
        store_none=results,
        journal_mode="wal",
        fsync=True,
        cache_mb=cache_mb,
    )
    connection = huey.storage.conn
    mode = connection.execute("pragma journal_mode").fetchone()[0]
    synchronous = connection.execute("pragma synchronous").fetchone()[0]
    if (mode, synchronous) != ("wal", FULL):
        raise SystemExit(f"journal_mode is {mode}, synchronous is {synchronous}")

    done = multiprocessing.get_context("fork").Value("q", 0)

    @huey.task()  # type: ignore[untyped-decorator]
    def noop() -> None:
        """Do nothing."""

    @huey.signal(SIGNAL_COMPLETE)  # type: ignore[untyped-decorator]
    def completed(_signal: str, _task: object) -> None:
        with done.get_lock():
            done.value += 1

    # Each enqueue is a synced transaction of its own; unsynced here, as this is not timed,
    # and then checkpointed, which syncs the file.
    connection.execute("pragma synchronous=off")
    for _ in range(items):
        noop()
    connection.execute(f"pragma synchronous={FULL}")
    connection.execute("pragma wal_checkpoint(truncate)")

    consumer = huey.create_consumer(workers=workers, worker_type=worker_type, periodic=False, scheduler_interval=60)
    started = time.perf_counter()
    consumer.start()
    while done.value < items and time.perf_counter() - started < common.GIVE_UP_SECONDS:
        time.sleep(0.001)
    seconds = time.perf_counter() - started
    consumer.stop(graceful=True)
    common.require(done.value, items)
    common.require(items - huey.storage.queue_size(), items)
    if results:
        common.require(huey.storage.result_store_size(), items)
    huey.storage.close()
    return seconds


def main() -> None:
    """Run once and print the result."""
    parser = common.arguments("huey", 10000)
    parser.add_argument("--path", type=Path, required=True, help="a new file; removed afterwards")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--worker-type", choices=("thread", "process"), default="process")
    parser.add_argument("--results", action="store_true", help="store the result of each task")
    parser.add_argument("--cache-mb", type=int, default=8)
    options = parser.parse_args()
    if options.path.exists():
        raise SystemExit(f"{options.path} exists")
    try:
        seconds = run(
            options.path,
            options.items,
            workers=options.workers,
            worker_type=options.worker_type,
            results=options.results,
            cache_mb=options.cache_mb,
        )
    finally:
        for suffix in ("", "-wal", "-shm"):
            options.path.with_name(options.path.name + suffix).unlink(missing_ok=True)
    common.report(
        "huey",
        options.items,
        seconds,
        {
            "storage": "SqliteHuey",
            "journal_mode": "wal",
            "synchronous": "full",
            "workers": options.workers,
            "worker_type": options.worker_type,
            "results": options.results,
            "cache_mb": options.cache_mb,
        },
    )


if __name__ == "__main__":
    main()

"""The waits of idle peers on PostgreSQL, each at its defaults: see `benchmarks.peers.pickup`."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from importlib.metadata import version

import asyncpg  # type: ignore[import-untyped]
from dbos import DBOS, DBOSClient
from pgqueuer import PgQueuer
from pgqueuer.adapters.drivers.asyncpg import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from procrastinate import App, PsycopgConnector

from benchmarks.peers import common, pickup
from benchmarks.peers.pickup import Board

Waits = dict[str, float]


def _pgqueuer_worker(url: str, board: Board) -> None:
    async def work() -> None:
        connection = await asyncpg.connect(url)
        queuer = PgQueuer(AsyncpgDriver(connection))

        @queuer.entrypoint("noop")
        async def noop(job: Job) -> None:
            board.begin(int(job.payload or b"0"))

        await queuer.run()

    asyncio.run(work())


async def _pgqueuer(url: str, board: Board, items: int) -> Waits:
    connection = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    worker = pickup.started(_pgqueuer_worker, url, board)
    try:
        return await pickup.measure(
            worker.pid or 0, board, lambda number: queries.enqueue("noop", str(number).encode()), items
        )
    finally:
        worker.kill()
        await connection.close()


def _procrastinate_app(url: str) -> App:
    return App(connector=PsycopgConnector(conninfo=url))


def _procrastinate_worker(url: str, board: Board) -> None:
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    app = _procrastinate_app(url)

    @app.task(name="noop")
    async def noop(number: int) -> None:
        board.begin(number)

    async def work() -> None:
        async with app.open_async():
            await app.run_worker_async(install_signal_handlers=False)

    asyncio.run(work())


async def _procrastinate(url: str, board: Board, items: int) -> Waits:
    app = _procrastinate_app(url)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        task = app.configure_task("noop")
        worker = pickup.started(_procrastinate_worker, url, board)
        try:
            return await pickup.measure(worker.pid or 0, board, lambda number: task.defer_async(number=number), items)
        finally:
            worker.kill()


def _dbos_worker(url: str, board: Board) -> None:
    DBOS(config={"name": "pickup", "system_database_url": url, "log_level": "ERROR", "enable_otlp": False})

    @DBOS.workflow(name="noop")
    def noop(number: int) -> None:
        board.begin(number)

    DBOS.launch()
    DBOS.register_queue("pickup")
    while True:
        asyncio.run(asyncio.sleep(3_600))


async def _dbos(url: str, board: Board, items: int) -> Waits:
    worker = pickup.started(_dbos_worker, url, board)
    client = None
    try:
        while client is None:
            await asyncio.sleep(1)
            if common.count(url, "select count(*) from pg_tables where tablename = 'workflow_status'"):
                client = DBOSClient(system_database_url=url)
        made = client

        async def birth(number: int) -> None:
            await made.enqueue_async({"queue_name": "pickup", "workflow_name": "noop"}, number)

        return await pickup.measure(worker.pid or 0, board, birth, items)
    finally:
        worker.kill()


PEERS: dict[str, Callable[[str, Board, int], Awaitable[Waits]]] = {
    "procrastinate": _procrastinate,
    "pgqueuer": _pgqueuer,
    "dbos": _dbos,
}


def main() -> None:
    """Run one of them and print the result."""
    parser = common.postgres_arguments("pickup", 100)
    parser.add_argument("--peer", choices=PEERS, required=True)
    options = parser.parse_args()

    async def run(url: str) -> Waits:
        return await PEERS[options.peer](url, Board(options.items), options.items)

    with common.scratch_database(options.url, f"pickup_{options.peer}") as url:
        waits = asyncio.run(run(url))
    print(json.dumps({"peer": options.peer, "version": version(options.peer), **waits}), flush=True)


if __name__ == "__main__":
    main()

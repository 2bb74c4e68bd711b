"""How long a unit waits until its step starts: born in the worker's process or in another, beside the peers.

See `benchmarks.peers.pickup` for what is measured.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
from datetime import datetime
from typing import Any

import structlog

from benchmarks import environment, noop
from benchmarks.peers import pickup
from benchmarks.peers.pickup import Board
from penstock.app.running import tune_interpreter
from penstock.ledger.ledger import Ledger
from penstock.model.machine import Actor
from penstock.model.outcome import Act, Outcome
from penstock.model.unit import replace
from penstock.worker.flow import Flow, Io
from penstock.worker.worker import Worker

PEERS = ("procrastinate", "pgqueuer", "dbos")
Waits = dict[str, Any]


class Noted(Flow[noop.Noop, Board, None]):
    """Notes when a step begins; its setting is where."""

    machine = noop.MACHINE

    @staticmethod
    def decide(_unit: noop.Noop, _now: datetime, _board: Board, _seen: None) -> Act:
        return Act("finish", "it is due")

    async def act(self, _what: str, unit: noop.Noop, _seen: None, _io: Io) -> Outcome[noop.Noop]:
        self.settings.begin(unit.number)
        return Outcome(unit, replace(unit, status=noop.Status.DONE), "done")


def _birth(ledger: Ledger) -> pickup.Birth:
    def born(number: int) -> None:
        ledger.birth([noop.Noop(number=number, due_at=ledger.clock.now())], actor=Actor.API, who="benchmark")

    return lambda number: asyncio.to_thread(born, number)


def _quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


def _worker(url: str, board: Board) -> None:
    _quiet()
    tune_interpreter()
    with Ledger.open(url, [noop.MACHINE]) as ledger:
        asyncio.run(Worker(ledger, [Noted(board)]).run())


async def _same_process(url: str, items: int) -> Waits:
    board = Board(items)
    with Ledger.open(url, [noop.MACHINE], create=True) as ledger:
        worker = Worker(ledger, [Noted(board)])
        running = asyncio.create_task(worker.run())
        waits = await pickup.measure(os.getpid(), board, _birth(ledger), items)
        worker.stop()
        await running
    return waits


async def _other_process(url: str, items: int) -> Waits:
    board = Board(items)
    with Ledger.open(url, [noop.MACHINE], create=True) as ledger:
        worker = pickup.started(_worker, url, board)
        try:
            return await pickup.measure(worker.pid or 0, board, _birth(ledger), items)
        finally:
            worker.kill()


def _peer(url: str, peer: str, items: int) -> Waits:
    command = [str(environment.PEERS_PYTHON), "-m", "benchmarks.peers.pickup_peer"]
    said = subprocess.run(
        [*command, "--peer", peer, "--url", url, "--items", str(items)],
        cwd=environment.ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    found: Waits = json.loads(said.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Run each and print the result."""
    options = noop.arguments("pickup", 100).parse_args()
    _quiet()
    found: dict[str, Waits] = {}
    for name, measured in (("same process", _same_process), ("another process", _other_process)):
        with noop.scratch(options.url, "pickup") as url:
            found[name] = asyncio.run(measured(url, options.items))
    database = noop.database_of(options.url)
    if database == "postgresql":
        found |= {peer: _peer(options.url, peer, options.items) for peer in PEERS}
    print(json.dumps({"database": database, "items": options.items, "waits": found}), flush=True)


if __name__ == "__main__":
    main()

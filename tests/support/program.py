"""A worker process of a test's own: `main(machines, flows)` works on the ledger of the command line until SIGTERM.

`Program` starts and ends such processes.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from penstock.ledger.ledger import Ledger
from penstock.model.machine import Machine
from penstock.worker.outbox import Subscriber, keep_subscriptions
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.fleet import Member, until

SETTINGS = {"lease_ms": 2_000, "renew_seconds": 0.5, "watch_seconds": 0.2, "idle_seconds": 0.2, "concurrency": 50}


def main(
    machines: Sequence[Machine], flows: Callable[[], Sequence[Any]], subscribers: Sequence[Subscriber] = ()
) -> None:
    url, settings = sys.argv[1], WorkerSettings(**json.loads(sys.argv[2]))

    async def work() -> None:
        with Ledger.open(url, machines) as ledger:
            keep_subscriptions(ledger, subscribers)
            worker = Worker(ledger, flows(), settings)
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
            await worker.run()

    asyncio.run(work())
    os._exit(0)


class Program:
    """Processes of one module over one ledger. Leaving it ends every process it started."""

    def __init__(self, module: str, url: str, folder: Path, **environment: str) -> None:
        self._command = [sys.executable, "-m", module, url, json.dumps(SETTINGS)]
        self._environment = os.environ | environment
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self.members: list[Member] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            if member.alive:
                member.kill()

    def start(self) -> Member:
        member = Member(self._command, dict(self._environment), self._folder / f"worker-{len(self.members)}.log")
        self.members.append(member)
        return member

    def stop(self) -> None:
        """SIGTERM to all that live; each must go in peace."""
        living = [member for member in self.members if member.alive]
        for member in living:
            # Before that it has no handler yet, and would simply die.
            until(functools.partial(_started, member), "the worker has started")
            member.signal(signal.SIGTERM)
        for member in living:
            assert member.wait() == 0, member.text()


def _started(member: Member) -> bool:
    return "worker.started" in member.text()

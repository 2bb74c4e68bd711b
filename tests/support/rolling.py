"""`python -m tests.support.rolling PROGRAM upgrade|work URL`: an old, a new or a later program on one ledger.

The old one is the present kernel. The new one knows a revision more (`synthetic`) and has a machine with one more edge;
the later one knows two more.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import structlog

from penstock.ledger.ledger import Ledger
from penstock.ledger.schema.install import install
from penstock.ledger.schema.migrate import KERNEL, Track
from penstock.ledger.store.database import open_database
from penstock.model.clock import SystemClock
from penstock.model.errors import LedgerError, UsageError
from penstock.model.machine import Actor, Edge, Machine
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.crash_app import JOB, SETTINGS, Job, S, flows

NEW = Track(KERNEL.key, (*KERNEL.places, "tests.support:synthetic"))
LATER = Track(KERNEL.key, (*NEW.places, "tests.support:synthetic_later"))
NEW_JOB = Machine(
    "job",
    Job,
    births=JOB.births,
    edges=[*JOB.edges, Edge(S.QUEUED, S.FAILED, "cancel", {Actor.OPERATOR})],
    terminal=JOB.terminal,
    on_error=JOB.on_error,
)
PROGRAMS = {"old": (KERNEL, JOB), "new": (NEW, NEW_JOB), "later": (LATER, NEW_JOB)}


def upgrade(url: str, program: str) -> None:
    track, machine = PROGRAMS[program]
    database = open_database(url, SystemClock())
    try:
        install(database, [machine], kernel=track)
    finally:
        database.close()


async def work(url: str, program: str) -> None:
    track, machine = PROGRAMS[program]
    settings = WorkerSettings(**json.loads(os.environ[SETTINGS]))
    with Ledger.open(url, [machine], kernel=track) as ledger:
        made = flows()
        for flow in made:
            flow.machine = machine
        worker = Worker(ledger, made, settings)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()


def main(program: str, what: str, url: str) -> None:
    structlog.configure(processors=[structlog.processors.JSONRenderer()])
    try:
        if what == "upgrade":
            upgrade(url, program)
        else:
            asyncio.run(work(url, program))
    except (UsageError, LedgerError) as error:
        sys.stderr.write(f"penstock: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main(*sys.argv[1:])

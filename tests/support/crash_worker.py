"""`python -m tests.support.crash_worker URL`: the command line's worker, with settings that a test can wait for."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from penstock.app.app import App
from penstock.app.process import InForce, Process
from penstock.app.running import configured, tune_interpreter
from penstock.model.errors import LedgerError, UsageError
from penstock.observe.logs import configure_logs
from penstock.worker.worker import WorkerSettings
from tests.support.crash_app import SETTINGS, lifecycle


async def _work(ready: InForce) -> None:
    await Process(ready).run()


def main(url: str) -> None:
    configure_logs()
    tune_interpreter()
    settings = WorkerSettings(**json.loads(os.environ[SETTINGS]))
    try:
        program = configured(App(lifecycle), {"ledger": {"url": url}})
        asyncio.run(_work(InForce(program, program.flows(), settings)))
    except (UsageError, LedgerError) as error:
        sys.stderr.write(f"penstock: {error}\n")
        sys.exit(2)
    sys.stderr.flush()
    os._exit(0)  # as the command does: a thread may still wait for somebody's lock


if __name__ == "__main__":
    main(sys.argv[1])

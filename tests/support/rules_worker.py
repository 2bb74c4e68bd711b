"""`python -m tests.support.rules_worker URL SETTINGS`: a worker of the configuration in RULES_CONFIG."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from penstock.app.discover import load
from penstock.app.process import InForce, Process
from penstock.observe.logs import configure_logs
from penstock.worker.worker import WorkerSettings

CONFIG = "RULES_CONFIG"


async def _work(ready: InForce) -> None:
    await Process(ready).run()


def main() -> None:
    url, settings = sys.argv[1], WorkerSettings(**json.loads(sys.argv[2]))
    configure_logs()
    made = load(Path(os.environ[CONFIG]), {"ledger.url": url})
    asyncio.run(_work(InForce(made, made.flows(), settings)))
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

"""Commands that run: a worker, and everything at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from penstock.cli.kinds import Kind
from penstock.cli.options import config_option, ledger_option


def _options() -> list[click.Parameter]:
    return [
        config_option(),
        ledger_option(),
        click.Option(
            ["--concurrency"],
            type=Kind("N", "a whole number", int),
            help="How many steps run at once; else PENSTOCK_CONCURRENCY, else 1000.",
        ),
        click.Option(
            ["--log-level"], metavar="LEVEL", help="debug, info, warning or error; else PENSTOCK_LOG, else info."
        ),
    ]


def _run(*, scheduler: bool, **given: Any) -> None:
    from penstock.app.running import run_worker

    config: Path | None = given["_config"]
    wishes = {
        "ledger.url": given["_ledger"],
        "worker.concurrency": given["concurrency"],
        "log.level": given["log_level"],
    }
    run_worker(config, wishes, scheduler=scheduler)


up = click.Command(
    "up",
    params=_options(),
    callback=lambda **given: _run(scheduler=True, **given),
    help="Run everything in one process: keep the schedules of the configuration, and work until stopped.",
)
worker = click.Command(
    "worker",
    params=_options(),
    callback=lambda **given: _run(scheduler=False, **given),
    help="Work until stopped: claim due units, step them, commit.\n\n"
    "SIGTERM and Ctrl-C finish or give back what is held. SIGHUP reads the configuration again.",
)

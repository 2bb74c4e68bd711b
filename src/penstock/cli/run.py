"""Commands that run: a worker, everything at once, and the demonstration."""

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
            help="How many steps run at once; by default PENSTOCK_CONCURRENCY, else 1000.",
        ),
        click.Option(
            ["--log-level"], metavar="LEVEL", help="debug, info, warning or error; by default PENSTOCK_LOG, else info."
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


def _demo(**given: Any) -> None:
    from penstock.cli.demo import run_demo

    run_demo(given["dir"], given["ledger"], once=given["once"])


demo = click.Command(
    "demo",
    params=[
        click.Option(
            ["--dir"],
            type=click.Path(path_type=Path),
            default=Path("demo"),
            metavar="DIR",
            show_default=True,
            help="Where its ledger and its data are kept.",
        ),
        click.Option(["--once"], is_flag=True, help="Stop when the days are over."),
        click.Option(["--ledger"], metavar="URL", help="A ledger other than DIR/penstock.db."),
    ],
    callback=_demo,
    help="Run the lifecycles against simulated APIs over sixty days that pass in seconds, and show what happened.",
)

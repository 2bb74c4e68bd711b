"""Commands that run: a worker, everything at once, and the demonstration."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import click

from penstock.cli.kinds import Kind
from penstock.cli.options import config_option, ledger_option


def _options() -> list[click.Parameter]:
    concurrency = click.Option(
        ["--concurrency"],
        type=Kind("N", "a whole number", int),
        help="How many steps run at once; by default PENSTOCK_CONCURRENCY, else 1000.",
    )
    return [config_option(), ledger_option(), concurrency, _log_level()]


def _log_level() -> click.Option:
    return click.Option(
        ["--log-level"], metavar="LEVEL", help="debug, info, warning or error; by default PENSTOCK_LOG, else info."
    )


def _address() -> click.Option:
    return click.Option(
        ["--address"],
        metavar="HOST:PORT",
        help="Where the desk and the API are served; by default PENSTOCK_WEB, else 127.0.0.1:8642.",
    )


def _run(*, scheduler: bool, **given: Any) -> None:
    # Before anything slow: until it has a handler, the signal that asks for another configuration ends the process.
    early: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, _: early.append(number))
    from penstock.app.running import run_worker

    config: Path | None = given["_config"]
    wishes = {
        "ledger.url": given["_ledger"],
        "worker.concurrency": given["concurrency"],
        "log.level": given["log_level"],
        "web.address": given["address"],
    }
    if not scheduler and not given["web"]:
        run_worker(config, wishes, scheduler=False, early=early)
        return
    from penstock.cli.web import beside

    run_worker(config, wishes, scheduler=scheduler, beside=beside, early=early)


up = click.Command(
    "up",
    params=[*_options(), _address()],
    callback=lambda **given: _run(scheduler=True, **given),
    help="Run everything in one process: keep the schedules, work until stopped, and serve the desk and the API.",
)


def _web(**given: Any) -> None:
    from penstock.cli.web import run_web

    wishes = {"ledger.url": given["_ledger"], "log.level": given["log_level"], "web.address": given["address"]}
    run_web(given["_config"], wishes)


web = click.Command(
    "web",
    params=[config_option(), ledger_option(), _log_level(), _address()],
    callback=_web,
    help="Serve the desk and the API until stopped; no work is done.\n\n"
    "On an address other than loopback it needs a token first: 'penstock token create'.",
)
worker = click.Command(
    "worker",
    params=[
        *_options(),
        click.Option(["--web"], is_flag=True, help="Serve the desk and the API too, as 'penstock up' does."),
        _address(),
    ],
    callback=lambda **given: _run(scheduler=False, **given),
    help="Work until stopped: claim due units, step them, commit.\n\n"
    "SIGTERM and Ctrl-C finish or give back what is held. SIGHUP reads the configuration again.",
)


def _demo(**given: Any) -> None:
    from penstock.cli.demo import run_demo

    run_demo(given["dir"], given["ledger"], once=given["once"], address=given["address"])


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
        click.Option(["--once"], is_flag=True, help="Serve no desk, and stop when the days are over."),
        click.Option(
            ["--address"],
            metavar="HOST:PORT",
            help="Where the desk is served; by default 127.0.0.1:8642, or a free port.",
        ),
        click.Option(["--ledger"], metavar="URL", help="A ledger other than DIR/penstock.db."),
    ],
    callback=_demo,
    help="Run the lifecycles against simulated APIs over sixty days that pass in seconds, and show what happened.\n\n"
    "The desk shows it as it happens. After the days a worker goes on until Ctrl-C.",
)

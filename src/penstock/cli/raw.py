"""`penstock raw`: landed data, whichever lifecycle landed it."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import (
    AppOption,
    ConfigOption,
    DryRunOption,
    JsonOption,
    LedgerOption,
    YesOption,
    agree,
    echo,
    settle,
)

_MOST_SHOWN = 50

raw = typer.Typer(help="Landed data.", no_args_is_help=True)


@raw.command()
def collect(
    superseded: Annotated[
        str | None,
        typer.Option("--superseded", metavar="SPAN", help="Runs of that age too, if a newer one is authoritative."),
    ] = None,
    *,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    app: AppOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Remove attempts that were never finalised, a day after they were last written; what cannot be read is named."""
    from functools import partial

    from penstock.cli import show
    from penstock.ledger.ledger import Ledger
    from penstock.lifecycles.collection import collect_all
    from penstock.model.errors import UsageError
    from penstock.raw.settings import RAW_URL
    from penstock.raw.sink import RawSink

    setup = settle(config, {"ledger.url": ledger, "app": app}, program=True)
    if RAW_URL not in setup.app.settings:
        raise UsageError("this program lands no data; --app, PENSTOCK_APP or the configuration name one that does")
    with Ledger.open(setup.url, setup.app.machines, migrations=setup.app.migrations) as opened:
        sink, now = RawSink(setup.config["raw.url"]), opened.clock.now()
        work = partial(collect_all, opened, sink, now, superseded=superseded)
        done = work(dry_run=True)
        if not dry_run and (done.unfinished or done.superseded):
            agree(f"remove {done.unfinished:,} unfinished attempts and {done.superseded:,} superseded runs", yes=yes)
            done = work(dry_run=False)
    if json:
        show.print_json({**show.fields(done), "dry_run": dry_run})
        return
    echo(f"{'would collect' if dry_run else 'collected'} {done.counts()}")
    for name, why in list(done.skipped.items())[:_MOST_SHOWN]:
        echo(f"skipped {name}: {why}", err=True)
    if len(done.skipped) > _MOST_SHOWN:
        echo(f"and {len(done.skipped) - _MOST_SHOWN:,} more; --json names all", err=True)

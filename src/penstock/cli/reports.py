"""`penstock reports`: the datasets, what their refreshes bring, and fetching some anew."""

from __future__ import annotations

from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import (
    AppOption,
    ConfigOption,
    DryRunOption,
    JsonOption,
    LedgerOption,
    ReasonOption,
    YesOption,
    agree,
    echo,
    settle,
    user,
)

if TYPE_CHECKING:
    from penstock.cli.options import Setup
    from penstock.ledger.ledger import Ledger
    from penstock.lifecycles.reports.decide import Settings
    from penstock.lifecycles.reports.operate import Changed, Filter

reports = typer.Typer(help="Report datasets, refreshed at their offsets.", no_args_is_help=True)

AccountOption = Annotated[str | None, typer.Option("--account", help="Only of this account.")]
AccountsOption = Annotated[list[str] | None, typer.Option("--account", help="Only this account; may be repeated.")]
StatusOption = Annotated[str | None, typer.Option("--status", help="missing, fetching, parsing, completed or error.")]
AggregationOption = Annotated[str | None, typer.Option("--aggregation", help="daily or hourly.")]
EntityOption = Annotated[str | None, typer.Option("--entity", help="target or product.")]
FromOption = Annotated[str | None, typer.Option("--from", metavar="DATE", help="The first date, YYYY-MM-DD.")]
ToOption = Annotated[str | None, typer.Option("--to", metavar="DATE", help="The last date.")]
_MOST_SHOWN = 20


@reports.command("datasets")
def datasets(
    *,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    account: AccountOption = None,
    status: StatusOption = None,
    aggregation: AggregationOption = None,
    entity: EntityOption = None,
    start: FromOption = None,
    end: ToOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most so many.")] = 20,
    json: JsonOption = False,
) -> None:
    """List datasets, those that are next due first, and count them by status."""
    from penstock.cli import show
    from penstock.ledger.store.database import present
    from penstock.lifecycles.reports.operate import list_datasets, require_account

    wanted = _filter(account, status, aggregation, entity, start, end)
    with show.reading(settle(config, {"ledger.url": ledger}).url) as database:
        found = list_datasets(database, wanted, limit)
        if account is not None and not found.counts:
            require_account(database, account)
        now = database.read(lambda cursor: present(database, cursor))
    if json:
        show.print_json(found)
        return
    echo("  ".join(f"{state} {count:,}" for state, count in found.counts.items()) or "no datasets")
    rows = [
        (
            row["unit_id"],
            row["status"] + (", refreshing" if row["refreshing"] else ""),
            "-" if row["next_refresh_at"] is None else show.when(row["next_refresh_at"], now),
            "-" if row["loaded_rows"] is None else f"{row['loaded_rows']:,}",
            row["error"] or row["parked_reason"] or "",
        )
        for row in found.datasets
    ]
    if rows:
        show.table(["dataset", "status", "next refresh", ">rows", "error"], rows)


@reports.command("show")
def show_(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="account/period/aggregation/entity, or the whole reference.")
    ],
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Show one dataset: every column that matters, and each load with what it changed."""
    from penstock.cli import show
    from penstock.ledger.store.database import present
    from penstock.lifecycles.reports.decide import offset_name
    from penstock.lifecycles.reports.operate import dataset_id, show_dataset

    with show.reading(settle(config, {"ledger.url": ledger}).url) as database:
        found, loads = show_dataset(database, dataset_id(dataset))
        now = database.read(lambda cursor: present(database, cursor))
    if json:
        show.print_json({**found, "loads": loads})
        return
    for name, value in found.items():
        shown = show.when(value, now) if name.endswith("_at") and value is not None else value
        if shown is not None and value is not False:
            echo(f"{name:24}  {shown}")
    if loads:
        echo("")
        show.table(
            ["offset", "report", "loaded", ">rows", ">cost", ">sales", "changed"],
            [
                (
                    offset_name(found["aggregation"], load["serving_offset"]),
                    load["report_id"],
                    show.when(load["loaded_at"], now),
                    f"{load['row_count']:,}",
                    f"{load['cost']:,.2f}",
                    f"{load['sales']:,.2f}",
                    {None: "first", True: "yes", False: "no"}[load["changed"]],
                )
                for load in loads
            ],
        )


@reports.command("cadence")
def cadence(
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    aggregation: AggregationOption = None,
    json: JsonOption = False,
) -> None:
    """Show, per offset, how often the data still changed and by how much."""
    from penstock.cli import show
    from penstock.lifecycles.reports import operate

    _filter(None, None, aggregation, None, None, None)
    with show.reading(settle(config, {"ledger.url": ledger}).url) as database:
        found = operate.cadence(database, aggregation)
    show.cadence(found, json=json)


@reports.command("refresh")
def refresh(
    dataset: Annotated[
        list[str] | None, typer.Argument(metavar="[DATASET]...", help="These datasets; else those of the options.")
    ] = None,
    *,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    app: AppOption = None,
    account: AccountOption = None,
    status: StatusOption = None,
    aggregation: AggregationOption = None,
    entity: EntityOption = None,
    start: FromOption = None,
    end: ToOption = None,
    reason: ReasonOption = "refreshed by hand",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Fetch datasets anew, now, whatever their offsets say; also those that rest in error."""
    from penstock.lifecycles.reports import operate
    from penstock.model.errors import UsageError

    wanted = _filter(account, status, aggregation, entity, start, end, [operate.dataset_id(d) for d in dataset or ()])
    if wanted == operate.Filter():
        raise UsageError("name datasets, or narrow them down with --account, --status, --from or --to")
    setup, settings = _program(config, ledger, app)
    with _open(setup) as opened:
        refresh_ = partial(operate.refresh, opened, settings, wanted, who=user(), reason=reason)
        done = refresh_(dry_run=True)
        _refuse_nothing(opened, settings, wanted, done)
        if not dry_run and done.changed:
            agree(f"refresh {len(done.changed):,} of {done.meant:,} datasets", yes=yes or bool(wanted.unit_ids))
            done = refresh_(dry_run=False)
    _print_changed("refreshed", wanted, done, dry_run=dry_run, json=json)


@reports.command("reset")
def reset(
    dataset: Annotated[
        list[str] | None, typer.Argument(metavar="[DATASET]...", help="These datasets; else those of the options.")
    ] = None,
    *,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    app: AppOption = None,
    account: AccountOption = None,
    aggregation: AggregationOption = None,
    entity: EntityOption = None,
    start: FromOption = None,
    end: ToOption = None,
    reason: ReasonOption = "reset by hand",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Put datasets in error back to missing, as on the day they were made; what they show is no longer shown."""
    from penstock.lifecycles.reports import operate
    from penstock.model.errors import UsageError

    ids = [operate.dataset_id(d) for d in dataset or ()]
    wanted = _filter(account, None if ids else "error", aggregation, entity, start, end, ids)
    if wanted == operate.Filter(status="error"):
        raise UsageError("name datasets, or narrow them down with --account, --aggregation, --from or --to")
    setup, settings = _program(config, ledger, app)
    with _open(setup) as opened:
        reset_ = partial(operate.reset, opened, settings, wanted, who=user(), reason=reason)
        done = reset_(dry_run=True)
        _refuse_nothing(opened, settings, wanted, done)
        if not dry_run and done.changed:
            loaded = f", {done.loaded:,} of them with rows that are then shown no more" if done.loaded else ""
            what = f"reset {len(done.changed):,} of {done.meant:,} datasets{loaded}"
            agree(what, yes=yes or (bool(wanted.unit_ids) and not done.loaded))
            done = reset_(dry_run=False)
    _print_changed("reset", wanted, done, dry_run=dry_run, json=json)


def _refuse_nothing(opened: Ledger, settings: Settings, wanted: Filter, done: Changed) -> None:
    """Refuse an operation on nothing where what was named is not there. Raises UsageError."""
    from penstock.lifecycles.reports import operate
    from penstock.model.errors import UsageError

    if not done.meant and wanted.unit_ids:
        raise UsageError(operate.no_dataset(wanted.unit_ids[0]))
    if not done.meant and wanted.account is not None and wanted.account not in settings.accounts:
        operate.require_account(opened.database, wanted.account)


def _print_changed(what: str, wanted: Filter, done: Changed, *, dry_run: bool, json: bool) -> None:
    from penstock.cli import show

    missing = sorted(set(wanted.unit_ids) - set(done.changed) - set(done.skipped))
    skipped = {**done.skipped, **dict.fromkeys(missing, "no such dataset")}
    if json:
        loaded = {"loaded": done.loaded} if what == "reset" else {}
        show.print_json({"meant": done.meant, what: done.changed, **loaded, "skipped": skipped, "dry_run": dry_run})
        return
    echo(f"{len(done.changed):,} of {done.meant:,} datasets {'would be ' if dry_run else ''}{what}")
    for name, why in list(skipped.items())[:_MOST_SHOWN]:
        echo(f"{name}: {why}", err=True)


@reports.command("backfill")
def backfill(
    *,
    start: Annotated[str, typer.Option("--from", metavar="DATE", help="The first date, YYYY-MM-DD.")],
    end: Annotated[str, typer.Option("--to", metavar="DATE", help="The last date.")],
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    app: AppOption = None,
    account: AccountsOption = None,
    aggregation: Annotated[str, typer.Option("--aggregation", help="daily or hourly.")] = "daily",
    entity: EntityOption = None,
    per_hour: Annotated[
        int, typer.Option("--per-hour", min=1, max=3_600, help="So many of an account fall due in an hour.")
    ] = 60,
    reason: ReasonOption = "backfilled by hand",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Make datasets of older dates, for some accounts or all; they are fetched behind the daily work."""
    from penstock.cli import show
    from penstock.lifecycles.reports.hours import sourceless, told
    from penstock.lifecycles.reports.machine import Aggregation, EntityType
    from penstock.lifecycles.reports.operate import Backfill
    from penstock.lifecycles.reports.operate import backfill as make
    from penstock.lifecycles.reports.settings import read_accounts
    from penstock.model.errors import UsageError

    checked = _filter(None, None, aggregation, entity, start, end)
    setup, settings = _program(config, ledger, app)
    known = read_accounts(setup.config)
    if strangers := [name for name in account or () if name not in known]:
        raise UsageError(f"no account is called {strangers[0]!r}; configured are {', '.join(known) or 'none'}")
    off = sourceless(setup.config) if aggregation == Aggregation.HOURLY else {}
    asked_for = [name for name in account or known if not known[name].paused]
    chosen = [known[name] for name in asked_for if name not in off]
    if off and (account or not chosen) and len(chosen) < len(asked_for):
        raise UsageError(told({name: off[name] for name in asked_for if name in off}))
    entities = [EntityType(entity)] if entity else list(EntityType)
    assert checked.first is not None and checked.last is not None  # noqa: S101, PT018 - both options are required
    wanted = Backfill(checked.first, checked.last, chosen, Aggregation(aggregation), entities, per_hour)
    with _open(setup) as opened:
        make_ = partial(make, opened, settings, wanted, who=user(), reason=reason)
        done = make_(dry_run=True)
        if not dry_run:
            agree(f"make {done.asked:,} datasets of {len(chosen):,} accounts", yes=yes)
            done = make_(dry_run=False)
        now = opened.clock.now()
    if json:
        show.print_json({**show.fields(done), "dry_run": dry_run})
        return
    if dry_run:
        echo(f"{done.asked:,} datasets of {len(chosen):,} accounts would be made, those that are there aside")
    else:
        echo(f"{done.born:,} of {done.asked:,} datasets made; the others are there already")
    echo(f"the last falls due {show.when(done.until, now)}; each waits while its account has daily work")


@reports.command("accounts")
def accounts(
    config: ConfigOption = None, ledger: LedgerOption = None, app: AppOption = None, json: JsonOption = False
) -> None:
    """Say how each account stands under a configuration, and what becomes of its datasets; nothing is changed.

    With --config of a file that is not in force yet, this says it before it happens.
    """
    from penstock.cli import show
    from penstock.lifecycles.reports.hours import sourceless
    from penstock.lifecycles.reports.operate import standings
    from penstock.lifecycles.reports.settings import read_accounts

    setup, settings = _program(config, ledger, app)
    with show.reading(setup.url) as database:
        found = standings(database, read_accounts(setup.config), settings, sourceless(setup.config))
    if json:
        show.print_json(found)
        return
    rows = [(s.account, s.state, f"{s.datasets:,}", f"{s.under_way:,}", s.says) for s in found]
    show.table(["account", "state", ">datasets", ">under way", "what becomes of it"], rows)


def _filter(  # noqa: PLR0917 - one argument for each option
    account: str | None,
    status: str | None,
    aggregation: str | None,
    entity: str | None,
    start: str | None,
    end: str | None,
    unit_ids: list[str] | None = None,
) -> Filter:
    from penstock.lifecycles.reports.machine import Aggregation, EntityType, S
    from penstock.lifecycles.reports.operate import Filter
    from penstock.model.errors import UsageError

    for name, value, known in (
        ("--status", status, S),
        ("--aggregation", aggregation, Aggregation),
        ("--entity", entity, EntityType),
    ):
        _refuse_unknown(name, value, [str(member) for member in known])
    first, last = _day("--from", start), _day("--to", end)
    if first is not None and last is not None and last < first:
        raise UsageError(f"the range from {first} to {last} ends before it starts")
    return Filter(account, status, aggregation, entity, first, last, unit_ids or ())


def _refuse_unknown(name: str, value: str | None, known: list[str]) -> None:
    from penstock.model.errors import UsageError

    if value is not None and value not in known:
        raise UsageError(f"{name} {value!r} is not known; it is one of {', '.join(known)}")


def _day(name: str, text: str | None) -> date | None:
    from penstock.model.errors import UsageError

    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{name} {text!r} is not a date; write it as 2026-11-01") from None


def _program(config: Path | None, ledger: str | None, app: str | None) -> tuple[Setup, Settings]:
    """The configured program and its reports. Raises UsageError when it has none."""
    from penstock.lifecycles.reports.machine import machine
    from penstock.lifecycles.reports.settings import read_settings
    from penstock.model.errors import UsageError

    setup = settle(config, {"ledger.url": ledger, "app": app}, program=True)
    if machine not in setup.app.machines:
        msg = "this program keeps no reports; --app, PENSTOCK_APP or the configuration name one that does"
        raise UsageError(msg)
    return setup, read_settings(setup.config)


def _open(setup: Setup) -> Ledger:
    from penstock.ledger.ledger import Ledger

    return Ledger.open(setup.url, setup.app.machines, migrations=setup.app.migrations)

"""`penstock harvest`: runs over whole catalogues, how far they have come, and what to do when one has failed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from datetime import datetime

    from penstock.cli.options import Setup
    from penstock.ledger.ledger import Ledger
    from penstock.lifecycles.harvest.operate import Done
    from penstock.lifecycles.harvest.progress import Shown

harvest = typer.Typer(help="Whole catalogues, fetched in partitions and consolidated.", no_args_is_help=True)
watermark = typer.Typer(help="How far each feed has been read, and whether that is published.")
harvest.add_typer(watermark, name="watermark")

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, or the beginning of it.")]
FeedOption = Annotated[str | None, typer.Option("--feed", help="Only of this feed.")]
_WATCH_SECONDS = 1.0
#: The kernel's own columns, which `history` and `why` speak of.
_KERNEL = frozenset(
    [
        "unit_id",
        "version",
        "changed_by",
        "change_reason",
        "changed_at",
        "due_at",
        "wakes",
        "claimed_by",
        "attempts",
        "crashes",
        "doubts",
        "suspicion",
        "gate_id",
    ]
)


@harvest.command("start")
def start(
    feed: Annotated[str, typer.Argument(metavar="FEED", help="The feed, as the configuration names it.")],
    *,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    full: Annotated[bool, typer.Option("--full", help="Read everything, whatever the watermark says.")] = False,
    reason: ReasonOption = "started by hand",
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Have a run started now, by the worker that keeps the feed's schedule."""
    from penstock.lifecycles.harvest import operate

    with open_ledger(config, ledger) as opened:
        say(operate.start(opened, feed, full=full, who=user(), reason=reason, dry_run=dry_run), json=json)


@harvest.command("runs")
def runs(
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    feed: FeedOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most so many.")] = 20,
    json: JsonOption = False,
) -> None:
    """List the latest runs, the newest first."""
    from penstock.cli import show
    from penstock.lifecycles.harvest.progress import list_runs

    with open_ledger(config, ledger) as opened:
        found = list_runs(opened, feed, limit)
        now = opened.clock.now()
    if json:
        show.print_json([_exact(one) for one in found])
        return
    if not found:
        echo("no runs yet; a feed's schedule starts them, or 'penstock harvest start FEED'")
        return
    show.table(
        ["run", "feed", "type", "status", ">parts", ">records", ">unseen", "started", "ends"],
        [
            (
                str(one.run.run_id)[:8],
                one.run.feed,
                one.run.run_type,
                _status(one),
                _partitions(one),
                f"{one.progress.fetched:,}",
                "-" if one.run.unseen is None else f"{one.run.unseen:,}",
                show.when(one.run.started_at, now),
                _end(one, now),
            )
            for one in found
        ],
    )


@harvest.command("show")
def show_(
    run: RunArgument,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay, and show the progress until the run ends.")] = False,
    json: JsonOption = False,
) -> None:
    """Show one run: its window, its counts, how fast it goes and when it will be done."""
    from penstock.cli import show
    from penstock.lifecycles.harvest import progress
    from penstock.lifecycles.harvest.operate import find_run

    with open_ledger(config, ledger) as opened:
        found = progress.show(opened, find_run(opened, run))
        if watch:
            found = _watch(opened, found, quiet=json)
        now = opened.clock.now()
    if json:
        show.print_json(_exact(found))
        return
    for name, value in show.fields(found.run).items():
        if value is not None and name not in _KERNEL:
            echo(f"{name:24}  {_readable(value, now)}")
    echo(f"{'progress':24}  {_pace(found, now)}")
    if found.run.status == "failed":
        echo(f"'penstock harvest partitions {run} --failed' says what went wrong, 'retry' fetches it again")


@harvest.command("partitions")
def partitions(
    run: RunArgument,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only those that have failed.")] = False,
    json: JsonOption = False,
) -> None:
    """List the partitions of a run: their ranges, how far each has come, and what went wrong."""
    from penstock.cli import show
    from penstock.lifecycles.harvest.machine import P
    from penstock.lifecycles.harvest.operate import find_run
    from penstock.lifecycles.harvest.runs import partitions_of

    with open_ledger(config, ledger) as opened:
        found = [p for p in partitions_of(opened, find_run(opened, run).run_id) if not failed or p.status is P.FAILED]
    if json:
        show.print_json([show.fields(p) for p in found])
        return
    if not found:
        echo("no partition has failed" if failed else "the run has no partitions: there was nothing to fetch")
        return
    show.table(
        ["partition", "from", "to", "status", ">records", ">of", ">pages", ">rescans", "error or doubt"],
        [
            (
                p.partition_id,
                f"{p.low:,}",
                "-" if p.high is None else f"{p.high:,}",
                p.status,
                f"{p.records if p.found_records is None else p.found_records:,}",
                f"{p.expected_records:,}",
                f"{p.pages:,}",
                f"{p.rescans:,}",
                p.error or p.parked_reason or p.doubt or "",
            )
            for p in found
        ],
    )


@harvest.command("retry")
def retry(
    run: RunArgument,
    *,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    reason: ReasonOption = "retried by hand",
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Fetch the failed partitions of a run again, and nothing else; then it is consolidated."""
    from penstock.lifecycles.harvest import operate

    with open_ledger(config, ledger) as opened:
        say(operate.retry(opened, run, who=user(), reason=reason, dry_run=dry_run), json=json)


@harvest.command("cancel")
def cancel(
    run: RunArgument,
    *,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    reason: ReasonOption = "cancelled by hand",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """End a run that is under way. What it fetched stays, the watermark too; 'retry' goes on from there."""
    from penstock.lifecycles.harvest import operate

    with open_ledger(config, ledger) as opened:
        done = operate.cancel(opened, run, who=user(), reason=reason, dry_run=True)
        if not dry_run:
            agree(f"cancel run {done.run_id} with {done.partitions} partitions that have not ended", yes=yes)
            done = operate.cancel(opened, run, who=user(), reason=reason)
        say(done, json=json)


@harvest.command("consolidate")
def consolidate(
    run: RunArgument,
    *,
    reason: ReasonOption,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    force: Annotated[bool, typer.Option("--force", help="Without the partitions that have failed.")] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Consolidate what a failed run has fetched. The watermark stays where it was, and nothing is deleted."""
    from penstock.lifecycles.harvest import operate
    from penstock.model.errors import UsageError

    with open_ledger(config, ledger) as opened:
        if not force:
            found = operate.find_run(opened, run)
            hint = f"'penstock harvest retry {found.run_id}' fetches them again, --force consolidates without them"
            if found.failed_workers:
                raise UsageError(f"{found.failed_workers} partitions of run {found.run_id} have failed; {hint}")
            say(operate.retry(opened, run, who=user(), reason=reason, dry_run=dry_run), json=json)
            return
        done = operate.force(opened, run, who=user(), reason=reason, dry_run=True)
        if not dry_run:
            agree(f"consolidate run {done.run_id} without {done.partitions} of its partitions", yes=yes)
            done = operate.force(opened, run, who=user(), reason=reason)
        say(done, json=json)


@watermark.callback(invoke_without_command=True)
def watermarks(
    context: typer.Context, config: ConfigOption = None, ledger: LedgerOption = None, json: JsonOption = False
) -> None:
    """Show how far each feed has been read, and whether that is published."""
    from penstock.cli import show
    from penstock.lifecycles.harvest.progress import list_watermarks

    if context.invoked_subcommand is not None:
        return
    with open_ledger(config, ledger) as opened:
        found = list_watermarks(opened)
        now = opened.clock.now()
    if json:
        show.print_json(found)
        return
    if not found:
        echo("no feed has a watermark yet; the first run that completes sets one")
        return
    show.table(
        ["feed", "read up to", "run", "completed", "publication", "set by"],
        [
            (
                m.feed,
                show.when(m.last_updated_at, now),
                (m.last_run_id or "-")[:8],
                "-" if m.last_run_completed_at is None else show.when(m.last_run_completed_at, now),
                m.publication if m.published_at is None else f"{m.publication} {show.when(m.published_at, now)}",
                "its run" if m.set_by is None else f"{m.set_by}: {m.set_reason}",
            )
            for m in found
        ],
    )


@watermark.command("set")
def set_(
    feed: Annotated[str, typer.Argument(metavar="FEED", help="The feed.")],
    moment: Annotated[str, typer.Argument(metavar="INSTANT", help="As far back, e.g. 2026-11-15T02:00:00Z.")],
    *,
    reason: ReasonOption,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Set a feed's watermark back, so that its next run reads again what was updated since."""
    from penstock.cli import show
    from penstock.lifecycles.harvest import operate
    from penstock.model.clock import instant_text

    wanted = show.moment(moment)
    with open_ledger(config, ledger) as opened:
        done = operate.set_watermark(opened, feed, wanted, who=user(), reason=reason, dry_run=True)
        if not dry_run:
            what = f"set the watermark of {feed} from {instant_text(done.before)} back to {instant_text(wanted)}"
            agree(f"{what}, and read {done.records:,} known records again", yes=yes)
            done = operate.set_watermark(opened, feed, wanted, who=user(), reason=reason)
    if json:
        show.print_json(done)
        return
    echo(
        f"the watermark of {feed} {'would go' if dry_run else 'went'} from {instant_text(done.before)} back to"
        f" {instant_text(done.after)}; {done.records:,} known records were updated since and are read again"
    )


@watermark.command("publish")
def publish_(
    feed: Annotated[str, typer.Argument(metavar="FEED", help="The feed.")],
    *,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    app: AppOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="Also what somebody else wrote there.")] = False,
    reason: ReasonOption = "published by hand",
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Publish a feed's watermark now, without waiting for the outbox or the feed's next run."""
    from penstock.cli import show
    from penstock.lifecycles.harvest import operate, watermark
    from penstock.lifecycles.harvest.program import make_blobs
    from penstock.model.errors import UsageError

    setup = _program(config, ledger, app)
    with open_ledger(config, ledger) as opened:
        operate.require_feed(opened, feed)
        blob = make_blobs(setup.config).get(feed)
        if blob is None:
            raise UsageError(f"{feed} is published nowhere; feeds.{feed}.watermark says where")
        row = watermark.read_row(opened, feed)
        if row is not None and row.publication == watermark.CONFLICT and not replace:
            msg = f"{blob.address} was written by somebody else; look at it, and say --replace to have ours there"
            raise UsageError(msg)
        if row is not None and replace:
            agree(f"replace what lies at {blob.address}", yes=yes)
            row = watermark.adopt(opened, feed, blob, who=user(), reason=reason)
        else:
            row = watermark.publish(opened, feed, blob)
    if row is None:
        raise UsageError(f"{feed} has no watermark yet; the first run that completes sets one")
    if json:
        show.print_json(row)
    else:
        echo(f"the watermark of {feed} is {row.publication} at {blob.address}")


@harvest.command("feeds")
def feeds(
    config: ConfigOption = None, ledger: LedgerOption = None, app: AppOption = None, json: JsonOption = False
) -> None:
    """Say how each feed stands under a configuration, and what becomes of its records; nothing is changed.

    With --config of a file that is not in force yet, this says it before it happens.
    """
    from penstock.cli import show
    from penstock.lifecycles.harvest.progress import standings

    setup = _program(config, ledger, app)
    paused = {name: own["paused"] for name, own in setup.config.section("feeds").items()}
    with open_ledger(config, ledger) as opened:
        found = standings(opened, paused)
    if json:
        show.print_json(found)
        return
    rows = [(s.feed, s.state, f"{s.runs:,}", (s.open_run or "-")[:8], s.prices or "-", s.says) for s in found]
    show.table(["feed", "state", ">runs", "under way", "prices", "what becomes of it"], rows)


def _program(config: Path | None, ledger: str | None, app: str | None) -> Setup:
    """The configuration with the program's settings, of a program that keeps harvests. Raises UsageError."""
    from penstock.lifecycles.harvest.machine import harvest_run
    from penstock.model.errors import UsageError

    setup = settle(config, {"ledger.url": ledger, "app": app}, program=True)
    if harvest_run not in setup.app.machines:
        msg = "this program keeps no harvests; --app, PENSTOCK_APP or the configuration name one that does"
        raise UsageError(msg)
    return setup


def open_ledger(config: Path | None, ledger: str | None) -> Ledger:
    """The ledger with the machines of harvests; whatever else it keeps is left alone."""
    from penstock.cli import show
    from penstock.ledger.ledger import Ledger
    from penstock.lifecycles.harvest.machine import MACHINES
    from penstock.lifecycles.harvest.operate import require_harvest
    from penstock.worker import schedule

    url = settle(config, {"ledger.url": ledger}).url
    with show.reading(url) as database:
        database.read(require_harvest)
    return Ledger.open(url, [*MACHINES, schedule.machine])


def say(done: Done, *, json: bool) -> None:
    from penstock.cli import show

    if json:
        show.print_json(done)
    else:
        echo(done.says)


def _exact(one: Shown) -> dict[str, Any]:
    from penstock.cli import show

    return {**show.fields(one.run), **show.fields(one.progress), "share": one.progress.share}


def _readable(value: Any, now: datetime) -> str:
    from datetime import datetime

    from penstock.cli import show

    if isinstance(value, datetime):
        return show.when(value, now)
    return f"{value:,}" if type(value) is int else str(value)


def _status(one: Shown) -> str:
    forced = ", forced" if one.run.forced_by is not None else ""
    under_way = one.run.phase is not None and one.run.completed_at is None and one.run.error is None
    return f"{one.run.status}{f', {one.run.phase}' if under_way else ''}{forced}"


def _partitions(one: Shown) -> str:
    failed = f", {one.run.failed_workers} failed" if one.run.failed_workers else ""
    return f"{one.run.completed_workers}/{one.run.expected_workers}{failed}"


def _end(one: Shown, now: datetime) -> str:
    from penstock.cli import show

    if one.run.completed_at is not None:
        return show.when(one.run.completed_at, now)
    if one.run.error is not None:
        return one.run.error
    return "-" if one.progress.eta is None else show.when(one.progress.eta, now)


def _pace(one: Shown, now: datetime) -> str:
    from penstock.cli import show

    parts = [f"{one.progress.fetched:,} of {one.progress.expected:,} records ({one.progress.share:.0%})"]
    if one.progress.rate is not None:
        parts.append(f"{one.progress.rate:,.0f} records/s")
    if one.progress.eta is not None:
        parts.append(f"done {show.when(one.progress.eta, now)}")
    return ", ".join(parts)


def _watch(ledger: Ledger, one: Shown, *, quiet: bool) -> Shown:
    """Show how far the run has come until it ends; Ctrl-C stops the watching alone."""
    from penstock.cli import show
    from penstock.lifecycles.harvest import progress
    from penstock.lifecycles.harvest.operate import find_run
    from penstock.lifecycles.harvest.runs import OPEN

    nobody = threading.Event()
    with show.watching(quiet=quiet) as tell:
        while one.run.status in OPEN:
            consolidating = one.run.consolidation_started_at is not None
            done = one.progress.consolidated if consolidating else one.progress.fetched
            tell(done, one.progress.expected, f"{_status(one)}: {_pace(one, ledger.clock.now())}")
            nobody.wait(_WATCH_SECONDS)
            one = progress.show(ledger, find_run(ledger, str(one.run.run_id)))
    return one

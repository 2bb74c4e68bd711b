"""`penstock partitions`: what is safe to consume, reading it, and what operators do about what is not."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
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
    from penstock.cli.options import Setup
    from penstock.ledger.ledger import Ledger
    from penstock.lifecycles.partitions.judgement import Validators
    from penstock.lifecycles.partitions.operate import Done
    from penstock.raw.reader import PartitionReader, PartitionStatus, Range, RangeStatus

_MOST_SHOWN = 50
_MOST_DAYS = 3_660

partitions = typer.Typer(help="Which landed data is safe to consume.", no_args_is_help=True)

KeyArgument = Annotated[
    str,
    typer.Argument(
        metavar="PARTITION",
        help="source/customer/query/date, for example google_ads/1234567890/campaign_daily/2026-11-01.",
    ),
]
SourceArgument = Annotated[str, typer.Argument(help="A source of the configuration, for example google_ads.")]
FromOption = Annotated[str, typer.Option("--from", metavar="DATE", help="The first day, YYYY-MM-DD.")]
ToOption = Annotated[str | None, typer.Option("--to", metavar="DATE", help="The last day; else the first alone.")]
CustomerOption = Annotated[list[str] | None, typer.Option("--customer", help="Only this customer; may be repeated.")]
QueryOption = Annotated[list[str] | None, typer.Option("--query", help="Only this query; may be repeated.")]
AsOfOption = Annotated[
    str | None, typer.Option("--as-of", metavar="INSTANT", help="As it stood then, from the history.")
]


@dataclasses.dataclass(frozen=True, slots=True)
class _Work:
    """What a command works with."""

    setup: Setup
    validators: Validators

    @contextlib.contextmanager
    def gate(self, as_of: str | None = None) -> Iterator[PartitionReader]:
        from penstock.cli import show
        from penstock.raw.reader import PartitionReader

        moment = None if as_of is None else show.moment(as_of)
        with show.reading(self.setup.url) as database:
            gate = PartitionReader(database, self.validators.sink)
            yield gate if moment is None else gate.as_of(moment)

    def ledger(self) -> Ledger:
        from penstock.ledger.ledger import Ledger

        return Ledger.open(self.setup.url, self.setup.app.machines, migrations=self.setup.app.migrations)

    def range(
        self,
        source: str,
        start: str,
        end: str | None,
        customers: list[str] | None,
        queries: list[str] | None,
        *,
        by_now: bool = False,
    ) -> Range:
        """What the options of a range come to; with `by_now`, every day of it is over. Raises UsageError."""
        from penstock.model.clock import SystemClock
        from penstock.model.errors import UsageError
        from penstock.raw.reader import Range, days_of

        found = self.validators.settings.source(source)
        first, last = days_of(start, end)
        if (last - first).days >= _MOST_DAYS:
            raise UsageError(f"{first} to {last} is more than {_MOST_DAYS:,} days; ask for fewer at once")
        who = tuple(dict.fromkeys(map(found.customer, customers))) if customers else found.customers
        what = tuple(dict.fromkeys(map(found.query, queries))) if queries else tuple(found.queries)
        if by_now:
            found.refuse_unfinished(who, last, SystemClock().now())
        return Range(source, who, what, first, last)


def _work(config: Path | None, ledger: str | None, app: str | None) -> _Work:
    """The program's partitions. Raises UsageError when it has none."""
    from penstock.lifecycles.partitions.flow import Extractions
    from penstock.model.errors import UsageError

    setup = settle(config, {"ledger.url": ledger, "app": app}, program=True)
    for flow in setup.app.make_flows(setup.config):
        if isinstance(flow, Extractions):
            return _Work(setup, flow.validators)
    msg = "this program keeps no partitions; --app, PENSTOCK_APP or the configuration name one that does"
    raise UsageError(msg)


@partitions.command()
def status(
    partition: KeyArgument,
    *,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    app: AppOption = None,
    as_of: AsOfOption = None,
    json: JsonOption = False,
) -> None:
    """Say how one partition stands: its status, its authoritative run, and why."""
    from penstock.cli import show

    work = _work(config, ledger, app)
    with work.gate(as_of) as gate:
        found = gate.status(work.validators.settings.key(partition))
    if json:
        show.print_json(_plain(found))
    else:
        echo(f"{found.key} is {found.status}: {found.reason}")


@partitions.command("range")
def range_(
    source: SourceArgument,
    start: FromOption,
    end: ToOption = None,
    customer: CustomerOption = None,
    query: QueryOption = None,
    *,
    only: Annotated[
        list[str] | None, typer.Option("--status", help="List the partitions that are so: pending, success or failed.")
    ] = None,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    app: AppOption = None,
    as_of: AsOfOption = None,
    json: JsonOption = False,
) -> None:
    """Count the partitions of customers and days by status; those that nobody has judged are pending."""
    from penstock.cli import show
    from penstock.model.errors import UsageError
    from penstock.raw.reader import FAILED, PENDING, SUCCESS

    unknown = sorted(set(only or ()) - {PENDING, SUCCESS, FAILED})
    if unknown:
        msg = f"--status {unknown[0]!r} is not a status; it is pending, success or failed"
        raise UsageError(msg)
    work = _work(config, ledger, app)
    wanted = work.range(source, start, end, customer, query)
    with work.gate(as_of) as gate:
        found = gate.range(wanted)
        listed = [_plain(one) for one in gate.each(wanted, only)] if only else None
    if json:
        shown = {name: getattr(found, name) for name in ("total", "success", "failed", "pending")}
        show.print_json({**shown, "series": list(found.series)} if listed is None else {**shown, "partitions": listed})
        return
    echo(f"{found.total:,} partitions: {found.success:,} success, {found.failed:,} failed, {found.pending:,} pending")
    for one in listed or ():
        echo(f"{one['partition']} {one['status']}: {one['reason']}")
    if listed is None:
        for text in _unready(found):
            echo(text)


@partitions.command()
def cadence(
    source: Annotated[str | None, typer.Argument(help="Only of this source.")] = None,
    *,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    json: JsonOption = False,
) -> None:
    """Show, per offset, how often the data still changed: a refresh that changes nothing any more can be dropped."""
    from penstock.cli import show
    from penstock.lifecycles.partitions import operate

    with show.reading(settle(config, {"ledger.url": ledger}).url) as database:
        found = operate.cadence(database, source)
    show.cadence(found, json=json)


@partitions.command()
def wait(
    partition: Annotated[list[str], typer.Argument(metavar="PARTITION...", help="source/customer/query/date.")],
    *,
    timeout: Annotated[str, typer.Option("--timeout", metavar="SPAN", help="For how long, for example 30m.")] = "1h",
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Wait until partitions are safe to consume. Exit code 1 when one is not in time."""
    from penstock.cli import show
    from penstock.model.cadence import parse_span

    work = _work(config, ledger, app)
    keys = [work.validators.settings.key(text) for text in partition]
    with work.gate() as gate, show.amount("waiting", quiet=json) as step:
        found = gate.wait(
            keys, timeout=parse_span(timeout).total_seconds(), progress=lambda left: step(len(keys) - left, len(keys))
        )
    if json:
        show.print_json([_plain(one) for one in found])
    else:
        for one in found:
            echo(f"{one.key} is {one.status}: {one.reason}")


@partitions.command()
def read(
    partition: KeyArgument,
    *,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    app: AppOption = None,
    as_of: AsOfOption = None,
    path: Annotated[bool, typer.Option("--path", help="Print where the rows lie, instead of the rows.")] = False,
    json: JsonOption = False,
) -> None:
    """Print the rows of the authoritative run, as JSON lines. Exit code 1 when the partition is not safe to consume."""
    import sys

    from penstock.cli import show

    work = _work(config, ledger, app)
    with work.gate(as_of) as gate:
        opened = gate.open(work.validators.settings.key(partition))
        if path or json:
            landed = opened.metadata
            show.print_json({**landed.document(), "path": opened.address}) if json else echo(opened.address)
            return
        for line in opened.lines():
            sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()


@partitions.command()
def validate(
    partition: KeyArgument,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Which run; else the newest.")] = None,
    *,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    app: AppOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what the validators find, and write nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Have the validators inspect a run and write what they find. Exit code 1 when it is rejected."""
    from penstock.cli import show
    from penstock.model.errors import UsageError
    from penstock.raw.paths import check_run_id

    work = _work(config, ledger, app)
    key = work.validators.settings.key(partition)
    runs = work.validators.sink.runs(key)
    chosen = (runs[-1] if runs else None) if run is None else check_run_id(run)
    if chosen is None or chosen not in runs:
        which = f"run {run}" if run else "run at all"
        msg = f"{key} has no finalised {which} in {work.validators.sink.url}; there is nothing to validate"
        raise UsageError(msg)
    if dry_run:
        verdict = work.validators.inspect(key, chosen)
        good, told = verdict.good, verdict.error or f"run {chosen} is good: {verdict.record_count:,} records"
        word = "success" if good else "failed"
    else:
        with work.ledger() as opened:
            judged = work.validators.validate(opened, key, chosen, who=user())
        good, told, word = judged.verdict in ("success", "older"), judged.reason, str(judged.verdict)
    if json:
        show.print_json({"partition": str(key), "run_id": chosen, "verdict": word, "reason": told, "dry_run": dry_run})
    else:
        echo(f"{key} {word}: {told}")
    if not good:
        raise typer.Exit(1)


@partitions.command()
def point(
    partition: KeyArgument,
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run that is to be authoritative, an older one too.")],
    reason: ReasonOption,
    *,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Make a run authoritative by hand. It must be there, and the validators must find it good."""
    from penstock.cli import show
    from penstock.lifecycles.partitions import operate

    work = _work(config, ledger, app)
    key = work.validators.settings.key(partition)
    with work.ledger() as opened:
        judged = operate.point(work.validators, opened, key, run, who=user(), reason=reason)
    if json:
        show.print_json({"partition": str(key), "run_id": run, "verdict": judged.verdict, "reason": judged.reason})
    else:
        echo(f"{key}: {judged.reason}")


@partitions.command()
def reset(
    partition: KeyArgument,
    reason: ReasonOption,
    *,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Make a partition pending, so that nobody reads it until a run of it is validated."""
    from penstock.cli import show
    from penstock.lifecycles.partitions import operate

    work = _work(config, ledger, app)
    key = work.validators.settings.key(partition)
    with work.ledger() as opened:
        operate.reset_partition(opened, key, who=user(), reason=reason)
    show.print_json({"partition": str(key), "status": "pending"}) if json else echo(f"{key} is pending")


@partitions.command()
def reprocess(
    source: SourceArgument,
    start: FromOption,
    reason: ReasonOption,
    end: ToOption = None,
    *,
    customer: CustomerOption = None,
    query: QueryOption = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only partitions that are failed.")] = False,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    app: AppOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Extract and judge partitions anew, now. Consumers read the present run until the new one is judged."""
    from penstock.lifecycles.partitions import operate
    from penstock.raw.reader import FAILED

    work = _work(config, ledger, app)
    wanted = work.range(source, start, end, customer, query, by_now=True)
    with work.gate() as gate, work.ledger() as opened:
        keys = [one.key for one in gate.each(wanted, [FAILED])] if failed else None

        def act(*, dry_run: bool, progress: Callable[[int], None]) -> Done:
            chosen = wanted.keys() if keys is None else keys
            return operate.reprocess(opened, chosen, who=user(), reason=reason, dry_run=dry_run, progress=progress)

        _bulk("reprocess", "reprocessed", act, dry_run=dry_run, yes=yes, json=json)


@partitions.command()
def backfill(
    source: SourceArgument,
    start: FromOption,
    reason: ReasonOption,
    end: ToOption = None,
    *,
    customer: CustomerOption = None,
    query: QueryOption = None,
    config: ConfigOption = None,
    ledger: LedgerOption = None,
    app: AppOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Want the partitions of a range that nobody has wanted yet, newest first, spread out behind the daily work."""
    from penstock.lifecycles.partitions import operate

    work = _work(config, ledger, app)
    wanted = work.range(source, start, end, customer, query, by_now=True)
    with work.ledger() as opened:

        def act(*, dry_run: bool, progress: Callable[[int], None]) -> Done:
            return operate.backfill(
                opened, work.validators.settings, wanted, who=user(), reason=reason, dry_run=dry_run, progress=progress
            )

        _bulk("backfill", "wanted", act, dry_run=dry_run, yes=yes, json=json)


def _bulk(verb: str, past: str, act: Callable[..., Done], *, dry_run: bool, yes: bool, json: bool) -> None:
    """Count, ask, act: what a bulk action does is said before it happens."""
    from penstock.cli import show

    found = act(dry_run=True, progress=lambda _: None)
    if not dry_run and found.wanted:
        agree(f"{verb} {found.wanted:,} of {found.total:,} partitions", yes=yes)
        with show.amount(verb, quiet=json) as step:
            total = found.total
            found = act(dry_run=False, progress=lambda done: step(done, total))
    if json:
        show.print_json(
            {"total": found.total, "wanted": found.wanted, "skipped": dict(found.skipped), "dry_run": dry_run}
        )
        return
    would = f"would be {past}" if dry_run else past
    echo(f"{found.wanted:,} of {found.total:,} partitions {would}")
    for why, count in found.skipped.items():
        echo(f"{count:,} left alone: {why}")


def _unready(found: RangeStatus) -> Iterator[str]:
    """The customers and queries of which some day is not safe to consume."""
    rest = [one for one in found.series if one.failed or one.pending]
    for one in rest[:_MOST_SHOWN]:
        days = f"{one.success:,} success, {one.failed:,} failed, {one.pending:,} pending"
        yield f"  {one.customer_id}  {one.query_name}  {days}"
    if len(rest) > _MOST_SHOWN:
        yield f"  and {len(rest) - _MOST_SHOWN:,} more; --json lists all"


def _plain(status: PartitionStatus) -> dict[str, Any]:
    facts = {f.name: getattr(status, f.name) for f in dataclasses.fields(status) if f.name != "key"}
    return {"partition": str(status.key), **facts, "reason": status.reason}

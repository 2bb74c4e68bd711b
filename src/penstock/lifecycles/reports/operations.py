"""What people ask of reports and do to them: lists, cadence, accounts; refresh, reset, backfill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import msgspec

from penstock.lifecycles.reports.decide import last_due_offset, offset_name
from penstock.lifecycles.reports.machine import NO_FAILURES, UNBORN, Aggregation, EntityType, Report, S, machine
from penstock.lifecycles.reports.settings import HOUR, Account, ReportSettings, switched_off
from penstock.model.errors import UsageError
from penstock.model.spoken import counted
from penstock.model.unit import Ref
from penstock.operations.declare import Ask, Page, operation, reading
from penstock.operations.fields import Parameters, Row, argument, column, option
from penstock.operations.named import excused, not_there
from penstock.operations.past import At, Then, lacking
from penstock.operations.plan import NOW, Births, Moves, Plan

if TYPE_CHECKING:
    from penstock.lifecycles.reports.datasets import Window

PROVIDER_DAYS = 95
"""How far back the provider makes daily reports."""
_AT_ONCE = 5_000
_FORM = "write account/period/aggregation/entity, for example acme/2026-11-01/daily/target"

ReportAsk = Ask[ReportSettings]


class Scope(Parameters, frozen=True):
    """Which datasets are meant; what is not given matches all."""

    account: Annotated[str | None, option("Only of this account.")] = None
    aggregation: Annotated[Aggregation | None, option("Only daily or only hourly datasets.")] = None
    entity: Annotated[EntityType | None, option("Only datasets about targets, or about products.")] = None
    first: Annotated[date | None, option("The first date, as 2026-11-01.")] = msgspec.field(default=None, name="from")
    last: Annotated[date | None, option("The last date, itself included.")] = msgspec.field(default=None, name="to")

    def check(self) -> None:
        """Raise UsageError for dates that end before they start."""
        if self.first is not None and self.last is not None and self.last < self.first:
            raise UsageError(f"the range from {self.first} to {self.last} ends before it starts")


class DatasetFilter(Scope, frozen=True):
    """The same, and by status."""

    status: Annotated[S | None, option("Only datasets in this status.")] = None


class DatasetPage(DatasetFilter, frozen=True):
    """Which datasets to list, and how many."""

    limit: Annotated[int, option("How many at most.", ge=1, le=100_000)] = 20
    after: Annotated[str | None, option("Continue after an earlier page: the cursor that it ended with.")] = None
    at: At = None


_Named = Annotated[
    tuple[str, ...],
    argument("These datasets; by default all that match the options.", example="acme/2026-11-01/daily/target"),
]


class RefreshWanted(DatasetFilter, frozen=True):
    """Datasets by name, or by a filter."""

    datasets: _Named = ()


class ResetWanted(Scope, frozen=True):
    """Datasets by name, or by a filter."""

    datasets: _Named = ()


class OneDataset(Parameters, frozen=True):
    """One dataset by name."""

    dataset: Annotated[
        str,
        argument("account/period/aggregation/entity, or the whole reference.", example="acme/2026-11-01/daily/target"),
    ]
    at: At = None


class Dataset(Row, frozen=True):
    """A dataset in a list."""

    unit_id: Annotated[str, column("Its name.", show="reference", heading="dataset", leads="show", gives="dataset")]
    status: Annotated[S, column("How far it is.", show="state")]
    refreshing: Annotated[bool | None, column("Whether a worker holds it; empty of the past.", show="detail")]
    next_refresh_at: Annotated[
        datetime | None,
        column("When it is next looked at; of the past, if nobody has touched it since.", heading="next refresh"),
    ]
    loaded_rows: Annotated[int | None, column("How many rows it shows.", heading="rows")]
    error: Annotated[str | None, column("What went wrong last.", show="text")]
    parked_reason: Annotated[str | None, column("Why it was set aside.", show="detail")]
    account: Annotated[str, column("Whose it is.", show="detail")]
    country: Annotated[str, column("The country of the account's profile.", show="detail")]
    report_date: Annotated[date, column("Its date in the account's time zone.", show="detail")]
    aggregation: Annotated[Aggregation, column("Its span.", show="detail")]
    entity_type: Annotated[EntityType, column("What its rows are about.", show="detail")]
    report_id: Annotated[str | None, column("The report under way.", show="detail")]
    last_processed_report_id: Annotated[str | None, column("The report that was loaded last.", show="detail")]
    last_report_created_at: Annotated[datetime | None, column("When its last report was created.", show="detail")]
    serving_offset: Annotated[int | None, column("The offset being served, in seconds.", show="detail")]
    loaded_at: Annotated[datetime | None, column("When it was loaded last.", show="detail")]
    backfill: Annotated[bool, column("Whether a backfill asked for it.", show="detail")]


class Load(Row, frozen=True):
    """One load of a dataset."""

    offset: Annotated[str, column("The offset that it served.")]
    report_id: Annotated[str, column("The report that was loaded.", show="reference", heading="report")]
    loaded_at: Annotated[datetime, column("When.", heading="loaded")]
    row_count: Annotated[int, column("How many rows it had.", heading="rows")]
    cost: Annotated[float, column("The sum of its costs.")]
    sales: Annotated[float, column("The sum of its sales.")]
    changed: Annotated[bool | None, column("Whether it differs from the load before; empty for the first.")]
    digest: Annotated[str, column("A digest of its rows; equal rows have the same.", show="detail")]


class DatasetShown(Dataset, frozen=True):
    """One dataset with its loads, oldest first."""

    loads: Annotated[list[Load], column("Every load, oldest first.")]


class CadenceWanted(Parameters, frozen=True):
    """Which datasets to sum up."""

    aggregation: Annotated[Aggregation | None, option("Only daily or only hourly datasets.")] = None
    at: At = None


class OffsetRow(Row, frozen=True):
    """What the refreshes at one offset brought."""

    aggregation: Annotated[str, column("The span of the datasets.")]
    entity_type: Annotated[str, column("What their rows are about.", heading="entity")]
    offset: Annotated[str, column("How long after the beginning of the dataset.")]
    loads: Annotated[int, column("How many refreshes were loaded.")]
    compared: Annotated[int, column("How many had an earlier load to compare with.", show="detail")]
    changed: Annotated[int, column("How many of these had changed.", show="detail")]
    changed_percent: Annotated[float | None, column("The share that had changed.", heading="changed %")]
    cost_percent: Annotated[float | None, column("By how much costs changed on average.", heading="cost %")]
    sales_percent: Annotated[float | None, column("By how much sales changed on average.", heading="sales %")]


class Standing(Row, frozen=True):
    """How an account stands under the configuration, and what becomes of its datasets."""

    account: Annotated[str, column("Its name.", show="reference", leads="datasets")]
    state: Annotated[str, column("new, active, paused or gone.")]
    datasets: Annotated[int, column("How many datasets it has.")]
    under_way: Annotated[int, column("How many reports are under way.")]
    says: Annotated[str, column("What becomes of its datasets.", show="text", heading="what happens")]


class BackfillWanted(Parameters, frozen=True):
    """Dates, both included, times accounts."""

    first: Annotated[date, option("The first date, as 2026-11-01.")] = msgspec.field(name="from")
    last: Annotated[date, option("The last date, itself included.")] = msgspec.field(name="to")
    account: Annotated[tuple[str, ...], option("Only this account; may be repeated.")] = ()
    aggregation: Annotated[Aggregation, option("Daily or hourly datasets.")] = Aggregation.DAILY
    entity: Annotated[EntityType | None, option("Only datasets about targets, or about products.")] = None
    per_hour: Annotated[int, option("How many fall due in an hour, for each account.", ge=1, le=3_600)] = 60


@reading("datasets", "Datasets, those that are due next first.")
def datasets(ask: ReportAsk, wanted: DatasetPage) -> Page[Dataset]:
    """Counts them by status, too."""
    from penstock.lifecycles.reports import listing

    _require(ask)
    wanted.check()
    lacks, ask = lacking(ask, [machine], wanted.at), ask.then(wanted.at)
    where = listing.condition(ask.reader.database, wanted, status=wanted.status)
    found = listing.page(ask.reader, where, wanted.limit, wanted.after)
    if wanted.account is not None and not found.counts and wanted.account not in ask.settings.accounts:
        listing.require_account(ask.reader, wanted.account)
    return msgspec.structs.replace(found, note=lacks)


@reading("show", "One dataset, and each load with what it changed.")
def show(ask: ReportAsk, wanted: OneDataset) -> DatasetShown:
    from penstock.lifecycles.reports import listing

    _require(ask)
    unit_id = _dataset_id(wanted.dataset)
    found = listing.shown(ask.then(wanted.at).reader, unit_id)
    if found is None and wanted.at is not None:
        with excused(lacking(ask, [machine], wanted.at)):
            raise not_there(f"dataset {unit_id!r}", wanted.at, "reports datasets")
    if found is None:
        raise UsageError(_no_dataset(unit_id))
    return found


@reading("cadence", "Per offset, how often the data still changed and by how much.")
def cadence(ask: ReportAsk, wanted: CadenceWanted) -> Page[OffsetRow]:
    """Offsets at which nothing changes any more are not worth their reports."""
    from penstock.lifecycles import refreshes

    _require(ask)
    loads = refreshes.Refreshes(
        "report_load",
        ("aggregation", "entity_type"),
        lambda of, seconds: offset_name(of["aggregation"], seconds),
        measures=("cost", "sales"),
    )
    found = refreshes.cadence(ask.then(wanted.at).reader.database, loads, aggregation=wanted.aggregation)
    note = None if found else "nothing has been loaded yet"
    return Page(rows=[OffsetRow(**one.document()) for one in found], note=note)


@reading("accounts", "How each account stands, and what becomes of its datasets.")
def accounts(ask: ReportAsk, wanted: Then) -> Page[Standing]:
    """With --config of a file that is not in force yet, this says it before it happens.

    Of the past it has the datasets of then, under the configuration of now.
    """
    from penstock.lifecycles.reports import listing

    _require(ask)
    lacks, ask = lacking(ask, [machine], wanted.at), ask.then(wanted.at)
    return Page(rows=listing.standings(ask.reader, ask.settings), note=lacks)


@operation("refresh", "Fetch datasets again now, whatever their offsets say.")
def refresh(ask: ReportAsk, wanted: RefreshWanted) -> Plan:
    """Each gets a report for its latest offset, even if that was served or given up before; also those in error."""
    if wanted == RefreshWanted():
        raise UsageError("this would be every dataset; name some, or give an account, a status, a kind or dates")
    moves = Moves(machine)
    for report in _free(ask, moves, wanted, wanted.datasets, wanted.status):
        offset = last_due_offset(report, ask.now, ask.settings) or timedelta()
        seconds = int(offset.total_seconds())
        moves.add(report, serving_offset=seconds, create_requested_at=None, attempts=0, due_at=NOW, **NO_FAILURES)
    return moves.plan(f"fetch {counted(len(moves), 'dataset')} again")


@operation("reset", "Put datasets in error back to missing.")
def reset(ask: ReportAsk, wanted: ResetWanted) -> Plan:
    """They are as on the day they were made, and due at once. What they had loaded is hidden until the next load."""
    if wanted == ResetWanted():
        raise UsageError("this would be every dataset in error; name some, or give an account, a kind or dates")
    moves, loaded = Moves(machine), 0
    for report in _free(ask, moves, wanted, wanted.datasets, None if wanted.datasets else S.ERROR):
        if report.status is not S.ERROR:
            moves.skip(report.unit_id, f"it is {report.status}; only datasets in error are reset")
            continue
        moves.add(report, S.MISSING, due_at=NOW, **UNBORN)
        loaded += report.loaded_rows is not None
    hidden = [f"the loaded rows of {counted(loaded, 'dataset')} are hidden until the next load"] if loaded else []
    return moves.plan(f"reset {counted(len(moves), 'dataset')}", hidden)


@operation("backfill", "Make datasets of older dates, for some accounts or all.")
def backfill(ask: ReportAsk, wanted: BackfillWanted) -> Plan:
    """They fall due one after another, the newest first, and each waits while its account has daily work to do."""
    from penstock.ledger.births import AT_ONCE, Product, Side
    from penstock.lifecycles.reports.datasets import LIKE, columns_of
    from penstock.lifecycles.reports.datasets import datasets as made_of
    from penstock.model.unit import replace

    _require(ask)
    _refuse_dates(ask, wanted)
    chosen, warnings = _chosen(ask.settings, wanted)
    gap, entities = HOUR / wanted.per_hour, list(EntityType) if wanted.entity is None else [wanted.entity]
    zones: dict[str, dict[str, Account]] = {}
    for name, account in chosen.items():
        zones.setdefault(account.time_zone, {})[name] = account
    products = []
    for zone, own in zones.items():
        made = made_of(_window(wanted), wanted.aggregation, zone, ask.settings, entities)
        # The newest first: the provider forgets the oldest, but people ask for the newest.
        those = Side([{**row, "due_at": ask.now + n * gap} for n, row in enumerate(reversed(made))])
        like, these = replace(LIKE, time_zone=zone, backfill=True), columns_of(own, wanted.aggregation)
        share = max(1, AT_ONCE // len(those))
        products += [Product(machine, like, Side(these[at : at + share]), those) for at in range(0, len(these), share)]
    until = ask.now + max(len(product.those) for product in products) * gap
    warnings.append(f"the last falls due at {until:%Y-%m-%d %H:%M} UTC; each waits while its account has daily work")
    count = sum(len(product) for product in products)
    says = f"make {counted(count, 'dataset')} of {counted(len(chosen), 'account')}"
    return Births(machine, f"{says}, unless they exist", products=products, warnings=warnings)


def _chosen(settings: ReportSettings, wanted: BackfillWanted) -> tuple[dict[str, Account], list[str]]:
    """The accounts of a backfill, and which are left out. Raises UsageError where one that was named cannot be."""
    from penstock.lifecycles.reports import hourly

    known = settings.accounts
    if not known:
        raise UsageError("no account is configured; add [reports.accounts.NAME] to the configuration")
    if strangers := [name for name in wanted.account if name not in known]:
        raise UsageError(f"no account is called {strangers[0]!r}; configured are {', '.join(known)}")
    asked = dict.fromkeys(wanted.account or known)
    if paused := sorted(name for name in asked if known[name].paused):
        if wanted.account or len(paused) == len(asked):
            raise UsageError(f"account {paused[0]!r} is paused in the configuration")
        asked = {name: None for name in asked if name not in paused}
    lacking = hourly.sourceless(settings) if wanted.aggregation is Aggregation.HOURLY else {}
    off = {name: lacking[name] for name in asked if name in lacking}
    chosen = {name: known[name] for name in asked if name not in off}
    if off and (wanted.account or not chosen):
        raise UsageError(hourly.told(off))
    left = [f"paused accounts are left out: {hourly.some_of(paused)}"] if paused else []
    return chosen, [*left, *([hourly.told(off)] if off else [])]


def _refuse_dates(ask: ReportAsk, wanted: BackfillWanted) -> None:
    oldest = (ask.now - timedelta(days=PROVIDER_DAYS)).date()
    if not ask.settings.offsets(wanted.aggregation):
        raise UsageError(switched_off(wanted.aggregation))
    if wanted.last < wanted.first:
        raise UsageError(f"a backfill from {wanted.first} to {wanted.last} ends before it starts")
    if wanted.last >= ask.now.date():
        raise UsageError(f"{wanted.last} is not over yet; a backfill ends yesterday at the latest")
    if wanted.aggregation is Aggregation.DAILY and wanted.first < oldest:
        msg = f"the provider keeps {PROVIDER_DAYS} days; a backfill of daily datasets starts on {oldest} or later"
        raise UsageError(msg)


def _window(wanted: BackfillWanted) -> Window:
    from penstock.lifecycles.reports.datasets import Window

    if wanted.aggregation is Aggregation.DAILY:
        return Window(wanted.first, wanted.last)
    first = datetime(wanted.first.year, wanted.first.month, wanted.first.day, tzinfo=UTC)
    last = datetime(wanted.last.year, wanted.last.month, wanted.last.day, tzinfo=UTC)
    return Window(first, last + 23 * HOUR)


def _free(ask: ReportAsk, moves: Moves, scope: Scope, named: Sequence[str], status: S | None) -> Iterator[Report]:
    """The datasets that are meant and that a person may change now; the others are skipped with their reason."""
    from penstock.lifecycles.reports import listing

    _require(ask)
    scope.check()
    names = [_dataset_id(text) for text in named]
    ids = listing.ids(ask.reader, listing.condition(ask.reader.database, scope, status=status, unit_ids=names))
    if not ids and names:
        raise UsageError(_no_dataset(names[0]))
    if not ids and scope.account is not None and scope.account not in ask.settings.accounts:
        listing.require_account(ask.reader, scope.account)
    moves.skip_all(sorted(set(names) - set(ids)), "no such dataset")
    for start in range(0, len(ids), _AT_ONCE):
        ask.progress(start, len(ids))
        for report in ask.reader.get_many(machine, ids[start : start + _AT_ONCE]):
            if refused := _refused(report, ask.settings):
                moves.skip(report.unit_id, refused)
            else:
                yield report


def _refused(report: Report, settings: ReportSettings) -> str | None:
    """Why a dataset cannot be changed by hand now."""
    if report.account not in settings.accounts:
        return f"account {report.account!r} is not configured"
    if not settings.offsets(report.aggregation):
        return switched_off(report.aggregation)
    if report.report_id is not None:
        return f"report {report.report_id} is under way"
    if report.claimed_by is not None:
        return "a worker holds it"
    if report.parked_at is not None:
        return f"it is parked: {report.parked_reason}"
    return None


def _require(ask: ReportAsk) -> None:
    if not ask.reader.keeps(machine):
        raise UsageError("this ledger keeps no reports yet; 'penstock db upgrade' adds them")


def _no_dataset(unit_id: str) -> str:
    return f"no dataset {unit_id!r}; {_FORM}"


def _dataset_id(text: str) -> str:
    """The unit id in a reference or a key as a person writes it."""
    return Ref.parse(text).unit_id if text.startswith(f"{machine.name}:") else text

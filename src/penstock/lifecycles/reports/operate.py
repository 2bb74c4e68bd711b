"""What people ask of reports and do to them: lists, cadence, refresh, reset, backfill, what becomes of accounts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

from penstock.ledger.births import AT_ONCE, Product, Side, birth_products
from penstock.ledger.hands import Moved
from penstock.ledger.ledger import Ledger
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database
from penstock.lifecycles import refreshes
from penstock.lifecycles.refreshes import Cadence, Refreshes
from penstock.lifecycles.reports import failure
from penstock.lifecycles.reports.decide import HOUR, Settings, last_due_offset, offset_name
from penstock.lifecycles.reports.job import JOB, LIKE, Window, columns_of, datasets
from penstock.lifecycles.reports.machine import Aggregation, EntityType, Report, S, machine
from penstock.lifecycles.reports.settings import Account, gate_of
from penstock.model.clock import parse_instant
from penstock.model.errors import UsageError
from penstock.model.machine import Actor
from penstock.model.unit import Ref, key_part, replace

PROVIDER_DAYS = 95
"""How far back the provider makes daily reports."""
_MOST_ACCOUNTS = 10
_TABLE = machine.table
_SHOWN = (
    *("unit_id", "status", "account", "country", "report_date", "aggregation", "entity_type", "report_id"),
    *("last_processed_report_id", "last_report_created_at", "next_refresh_at", "refreshing", "serving_offset"),
    *("loaded_at", "loaded_rows", "backfill", "error", "parked_reason"),
)
_INSTANTS = frozenset({"last_report_created_at", "next_refresh_at", "loaded_at"})


@dataclass(frozen=True, slots=True)
class Filter:
    """Which datasets are meant; what is not given matches all."""

    account: str | None = None
    status: str | None = None
    aggregation: str | None = None
    entity_type: str | None = None
    first: date | None = None
    last: date | None = None
    unit_ids: Sequence[str] = ()

    def sql(self, database: Database) -> tuple[str, dict[str, Any]]:
        """A condition on the table, and its parameters."""
        parts, given = ["true"], {}
        for name in ("account", "status", "aggregation", "entity_type"):
            if (value := getattr(self, name)) is not None:
                parts.append(f"{name} = :{name}")
                given[name] = value
        if self.account is not None and database.dialect == "sqlite":
            # By its primary key, which begins with the account; '0' is what follows '/'.
            parts.append("unit_id > :low AND unit_id < :high")
            given |= {"low": f"{key_part(self.account)}/", "high": f"{key_part(self.account)}0"}
        day = "CAST(:{} AS date)" if database.dialect == "postgresql" else ":{}"
        for name, sign, value in (("first", ">=", self.first), ("last", "<=", self.last)):
            if value is not None:
                parts.append(f"report_date {sign} {day.format(name)}")
                given[name] = value.isoformat()
        if self.unit_ids:
            source = statements.batch(database, {"unit_id": statements.TEXT})
            parts.append(f"unit_id IN (SELECT n_unit_id FROM {source})")
            given["batch"] = statements.batch_text([[unit_id] for unit_id in self.unit_ids])
        return " AND ".join(parts), given


@dataclass(frozen=True, slots=True)
class Listed:
    """Datasets, those that want attention first; and how many there are, by status."""

    counts: Mapping[str, int]
    datasets: Sequence[Mapping[str, Any]]


def require_reports(cursor: Cursor) -> None:
    """Refuse a ledger that has no reports. Raises UsageError."""
    if not cursor.rows("SELECT 1 FROM machine_definition WHERE name = :name", name=machine.name):
        msg = "this ledger keeps no reports; 'penstock db upgrade --app penstock.lifecycles.reports:app' adds them"
        raise UsageError(msg)


def list_datasets(database: Database, wanted: Filter, limit: int) -> Listed:
    """The datasets that are meant."""
    where, given = wanted.sql(database)

    def work(cursor: Cursor) -> Listed:
        require_reports(cursor)
        counts = cursor.rows(f"SELECT status, count(*) FROM {_TABLE} WHERE {where} GROUP BY status", **given)
        rows = cursor.rows(
            f"SELECT {', '.join(_SHOWN)} FROM {_TABLE} WHERE {where}"
            f" ORDER BY next_refresh_at IS NULL, next_refresh_at, unit_id LIMIT {int(limit)}",
            **given,
        )
        by_status = {str(status): int(count) for status, count in counts}
        return Listed(dict(sorted(by_status.items())), [_shown(row) for row in rows])

    return database.read(work)


def no_dataset(unit_id: str) -> str:
    """What to say of a dataset that is not there."""
    return f"no dataset {unit_id!r}; it is account/period/aggregation/entity, for example acme/2026-11-01/daily/target"


def require_account(database: Database, account: str) -> None:
    """Refuse an account of which the ledger has nothing. Raises UsageError with some that it has."""

    def work(cursor: Cursor) -> list[str] | None:
        if cursor.rows(f"SELECT 1 FROM {_TABLE} WHERE account = :account LIMIT 1", account=account):
            return None
        rows = cursor.rows(f"SELECT account FROM report_account ORDER BY account LIMIT {_MOST_ACCOUNTS}")
        return [str(row[0]) for row in rows]

    known = database.read(work)
    if known is not None:
        raise UsageError(f"no account is called {account!r}; the ledger has {', '.join(known) or 'none'}")


def show_dataset(database: Database, unit_id: str) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    """One dataset and its loads, oldest first. Raises UsageError when there is none."""
    found = list_datasets(database, Filter(unit_ids=[unit_id]), 1).datasets
    if not found:
        raise UsageError(no_dataset(unit_id))
    names = ("report_id", "serving_offset", "loaded_at", "row_count", "cost", "sales", "changed", "digest")
    sql = f"SELECT {', '.join(names)} FROM report_load WHERE unit_id = :unit_id ORDER BY loaded_at"
    rows = database.read(lambda cursor: cursor.rows(sql, unit_id=unit_id))
    return found[0], [_shown(row, names) for row in rows]


def _shown(row: Sequence[Any], names: Sequence[str] = _SHOWN) -> dict[str, Any]:
    made = dict(zip(names, row, strict=True))
    for name in names:
        value = made[name]
        if name in _INSTANTS and isinstance(value, str):
            made[name] = parse_instant(value)
        elif name in ("refreshing", "backfill", "changed") and value is not None:
            made[name] = bool(value)
        elif isinstance(value, date) and not isinstance(value, datetime):
            made[name] = value.isoformat()
    return made


LOADS = Refreshes(
    "report_load",
    ("aggregation", "entity_type"),
    lambda of, seconds: offset_name(of["aggregation"], seconds),
    measures=("cost", "sales"),
)


def cadence(database: Database, aggregation: str | None = None) -> list[Cadence]:
    """Per offset, how often the data still changed and by how much."""
    return refreshes.cadence(database, LOADS, require_reports, aggregation=aggregation)


@dataclass(slots=True)
class Changed:
    """What a refresh or a reset came to; `skipped` maps a dataset to the reason."""

    meant: int = 0
    #: Of those that are changed, how many have rows loaded.
    loaded: int = 0
    changed: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def refresh(ledger: Ledger, settings: Settings, wanted: Filter, *, who: str, reason: str, dry_run: bool) -> Changed:
    """Fetch datasets anew, now: each gets a report for its latest offset, whatever served or gave that up before."""
    done, now = Changed(), ledger.clock.now()
    groups: dict[tuple[str, int], list[str]] = {}
    for report in _free(ledger, settings, wanted, done):
        offset = last_due_offset(report, now, settings) or timedelta()
        groups.setdefault((str(report.status), int(offset.total_seconds())), []).append(report.unit_id)
    for (status, seconds), unit_ids in groups.items():
        if dry_run:
            done.changed += unit_ids
            continue
        fresh = {"serving_offset": seconds, "create_requested_at": None, "attempts": 0, "due_at": now, **failure.NONE}
        moved = ledger.move_many(machine.name, unit_ids, status, actor=Actor.OPERATOR, who=who, reason=reason, **fresh)
        _note(done, moved)
    return done


_UNBORN: Mapping[str, Any] = {
    **dict.fromkeys(("serving_offset", "create_requested_at", "last_report_created_at", "last_processed_report_id")),
    **dict.fromkeys(("loaded_stage", "loaded_report_id", "loaded_at", "loaded_rows", "loaded_digest", "raw_run_id")),
    **failure.NONE,
    "error": None,
    "attempts": 0,
}
"""A dataset of which nothing is known yet."""


def reset(ledger: Ledger, settings: Settings, wanted: Filter, *, who: str, reason: str, dry_run: bool) -> Changed:
    """Put datasets that are in error back to `missing`, as on the day they were made, and due.

    What was loaded of them is shown no more until the next load. Those in another status are skipped.
    """
    done, now = Changed(), ledger.clock.now()
    for report in _free(ledger, settings, wanted, done):
        if report.status is not S.ERROR:
            done.skipped[report.unit_id] = f"it is {report.status}; only datasets in error are reset"
            continue
        done.changed.append(report.unit_id)
        done.loaded += report.loaded_rows is not None
    if done.changed and not dry_run:
        moved = ledger.move_many(
            machine.name,
            done.changed,
            S.MISSING,
            actor=Actor.OPERATOR,
            who=who,
            reason=reason,
            due_at=now,
            **_UNBORN,
        )
        done.changed = []
        _note(done, moved)
    return done


def _free(ledger: Ledger, settings: Settings, wanted: Filter, done: Changed) -> Iterator[Report]:
    """The datasets that are meant and that a person may change now; the others are noted as skipped."""
    where, given = wanted.sql(ledger.database)
    sql = f"SELECT unit_id FROM {_TABLE} WHERE {where} ORDER BY unit_id"
    ids = [row[0] for row in ledger.read(lambda cursor: cursor.rows(sql, **given))]
    done.meant = len(ids)
    for start in range(0, len(ids), AT_ONCE):
        for report in ledger.get_many(machine, ids[start : start + AT_ONCE]):
            if refused := _refused(report, settings):
                done.skipped[report.unit_id] = refused
            else:
                yield report


def _note(done: Changed, moved: Moved) -> None:
    done.changed += [ref.unit_id for ref in moved.moved]
    done.skipped |= {ref.unit_id: why for ref, why in moved.skipped.items()}


def _refused(report: Report, settings: Settings) -> str | None:
    """Why a dataset cannot be changed by hand now."""
    if report.account not in settings.accounts:
        return f"account {report.account!r} is not configured"
    if not settings.offsets(report.aggregation):
        return f"{report.aggregation} is switched off: reports.{report.aggregation}_offsets is empty"
    if report.report_id is not None:
        return f"report {report.report_id} is under way"
    if report.claimed_by is not None:
        return "it is being worked on"
    if report.parked_at is not None:
        return f"it is parked: {report.parked_reason}"
    return None


@dataclass(frozen=True, slots=True)
class Backfill:
    """What to fetch from before the retention window: dates (both included) times accounts."""

    first: date
    last: date
    accounts: Sequence[Account]
    aggregation: Aggregation = Aggregation.DAILY
    entities: Sequence[EntityType] = tuple(EntityType)
    per_hour: int = 60


@dataclass(frozen=True, slots=True)
class Backfilled:
    """How many datasets were asked for, how many were new, and when the last of them falls due."""

    asked: int
    born: int
    until: datetime


def backfill(
    ledger: Ledger, settings: Settings, wanted: Backfill, *, who: str, reason: str, dry_run: bool
) -> Backfilled:
    """Make datasets of older dates. They fall due one after the other, and each waits for its account's daily work."""
    now = ledger.clock.now()
    if not settings.offsets(wanted.aggregation):
        raise UsageError(f"{wanted.aggregation} is switched off: reports.{wanted.aggregation}_offsets is empty")
    _refuse_dates(wanted, now)
    gap = timedelta(hours=1) / wanted.per_hour
    zones: dict[str, list[Account]] = {}
    for account in wanted.accounts:
        zones.setdefault(account.time_zone, []).append(account)
    products = []
    for zone, accounts in zones.items():
        made = datasets(_window(wanted), wanted.aggregation, zone, settings, wanted.entities)
        # The newest first: the provider forgets the oldest, but people ask for the newest.
        those = Side([{**row, "due_at": now + n * gap} for n, row in enumerate(reversed(made))])
        like = replace(LIKE, time_zone=zone, backfill=True)
        share = max(1, AT_ONCE // len(those))
        products += [
            Product(machine, like, Side(columns_of(accounts[start : start + share], wanted.aggregation)), those)
            for start in range(0, len(accounts), share)
        ]
    asked = sum(len(product) for product in products)
    born = 0
    for product in products if not dry_run else ():
        born += birth_products(ledger, [product], actor=Actor.OPERATOR, who=who, reason=reason)
    longest = max((len(product.those) for product in products), default=0)
    return Backfilled(asked, born, now + longest * gap)


def _window(wanted: Backfill) -> Window:
    if wanted.aggregation is Aggregation.DAILY:
        return Window(wanted.first, wanted.last)
    first = datetime(wanted.first.year, wanted.first.month, wanted.first.day, tzinfo=UTC)
    last = datetime(wanted.last.year, wanted.last.month, wanted.last.day, tzinfo=UTC)
    return Window(first, last + 23 * HOUR)


def _refuse_dates(wanted: Backfill, now: datetime) -> None:
    oldest = (now - timedelta(days=PROVIDER_DAYS)).date()
    if wanted.last < wanted.first:
        raise UsageError(f"a backfill from {wanted.first} to {wanted.last} ends before it starts")
    if wanted.last >= now.date():
        raise UsageError(f"{wanted.last} is not over yet; a backfill ends yesterday at the latest")
    if wanted.aggregation is Aggregation.DAILY and wanted.first < oldest:
        msg = (
            f"the provider keeps {PROVIDER_DAYS} days; a backfill of daily datasets starts on {oldest} at the earliest"
        )
        raise UsageError(msg)
    if not wanted.accounts:
        raise UsageError("no account is configured; add [accounts.NAME] to the configuration")


@dataclass(frozen=True, slots=True)
class Standing:
    """How an account stands in a configuration, and what becomes of its datasets under it."""

    account: str
    state: str
    datasets: int
    under_way: int
    says: str


def standings(
    database: Database, accounts: Mapping[str, Account], settings: Settings, sourceless: Mapping[str, str]
) -> list[Standing]:
    """Every account of the configuration or of the ledger; nothing is changed.

    `sourceless` says of accounts why they have no hours.
    """
    sql = (
        f"SELECT account, count(*), sum(CASE WHEN status IN ('fetching', 'parsing') THEN 1 ELSE 0 END) FROM {_TABLE}"
        " GROUP BY account"
    )

    def work(cursor: Cursor) -> dict[str, tuple[int, int]]:
        require_reports(cursor)
        return {str(name): (int(n), int(busy)) for name, n, busy in cursor.rows(sql)}

    there = database.read(work)
    longest = max(kept.days for aggregation in Aggregation if (kept := settings.retention(aggregation)) is not None)
    return [
        _standing(name, accounts.get(name), *there.get(name, (0, 0)), longest, sourceless.get(name))
        for name in _names(there, accounts)
    ]


def _names(*sources: Iterable[str]) -> list[str]:
    return sorted({name for source in sources for name in source})


def _standing(  # noqa: PLR0917 - one argument for each fact
    name: str, account: Account | None, count: int, busy: int, longest: int, hourly_lacks: str | None
) -> Standing:
    if account is None:
        says = (
            f"not configured: nothing is created or refreshed any more; its {count:,} datasets stay readable and are"
            f" pruned {longest} days after their date at the latest; {busy:,} reports under way are given up. Adding"
            " the account again takes them up"
        )
        return Standing(name, "gone", count, busy, says)
    if account.paused:
        says = (
            f"paused: no dataset is made and none refreshed; {busy:,} reports under way wait. Offsets that pass"
            " meanwhile come to one report each when it goes on"
        )
        return Standing(name, "paused", count, busy, says)
    off = f"; hourly is off: {hourly_lacks}" if hourly_lacks else ""
    if count == 0:
        says = f"new: the next run of {JOB} makes the datasets of {longest} days, most of them due at once{off}"
        return Standing(name, "new", count, busy, says)
    return Standing(name, "active", count, busy, f"refreshed at its offsets, through the gate {gate_of(name)}{off}")


def dataset_id(text: str) -> str:
    """The unit id in a reference or a key as a person writes it."""
    return Ref.parse(text).unit_id if text.startswith(f"{machine.name}:") else text

"""Datasets, made and pruned by the set: those of every account's retention window.

The job is `update-report-datasets`; what it makes for one account is `update-report-dataset-for-account`, in the log
and in the history. Accounts of one time zone have the same periods, so a window is a product: these accounts, those
periods. How far an account's window has been made is kept in `report_account`, in the transaction that made it; a pass
with nothing to make reads that table and no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import structlog

from penstock.connectors.amazon_ads.stream import AmazonStream, StreamGone
from penstock.ledger.births import AT_ONCE, Product, Side, birth_products
from penstock.ledger.care.prune import Ages, Pruner
from penstock.ledger.care.prune_rules import Finished
from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import Cursor
from penstock.lifecycles.reports.hourly import Streams
from penstock.lifecycles.reports.machine import Aggregation, EntityType, Report, machine
from penstock.lifecycles.reports.settings import HOUR, Account, ReportSettings, gate_of
from penstock.lifecycles.reports.tables import report_account
from penstock.model.cadence import local_instant, parse_zone
from penstock.model.clock import Rng, instant, instant_text
from penstock.model.machine import Actor
from penstock.model.outcome import Write
from penstock.model.unit import replace

FOR_ACCOUNT = "update-report-dataset-for-account"
ACTIVE, PAUSED, GONE = "active", "paused", "gone"
_REASON = f"{FOR_ACCOUNT}: within its retention window"
log = structlog.get_logger()
LIKE = Report(
    account="",
    period="",
    aggregation=Aggregation.DAILY,
    entity_type=EntityType.TARGET,
    timestamp=datetime(1, 1, 1, tzinfo=UTC),
    report_date=date(1, 1, 1),
    time_zone="",
    country="",
)


@dataclass(frozen=True, slots=True)
class Window:
    """Periods of one kind, both ends included: local dates, or UTC hours."""

    first: Any
    last: Any

    @property
    def step(self) -> timedelta:
        return HOUR if isinstance(self.first, datetime) else timedelta(days=1)

    def lacks(self, there: Window | None) -> list[Window]:
        """What of this window lies outside of the one that is there."""
        if there is None:
            return [self]
        before = Window(self.first, min(self.last, there.first - self.step))
        after = Window(max(self.first, there.last + self.step), self.last)
        return [part for part in (before, after) if part.first <= part.last]

    def trusted(self, there: Window | None) -> Window | None:
        """The one that is there, unless a clock that was far ahead made it: then nobody knows what lies between."""
        return None if there is None or there.last > self.last + self.step else there

    def joined(self, there: Window | None) -> Window:
        """Both, as one; a gap between them counts as made, as nothing in it is wanted any more."""
        if there is None:
            return self
        return Window(min(self.first, there.first), max(self.last, there.last))


NO_WINDOW = Window(None, None)


@dataclass(frozen=True, slots=True)
class Made:
    """How far the datasets of an account have been made."""

    account: str
    state: str
    time_zone: str
    country: str
    daily: Window | None = None
    hourly: Window | None = None


@dataclass(slots=True)
class Updated:
    """What a pass came to."""

    born: int = 0
    accounts: int = 0
    woken: int = 0


def window(settings: ReportSettings, aggregation: Aggregation, time_zone: str, now: datetime) -> Window | None:
    """The periods that are wanted now: those that have begun and are not beyond their retention; None when off."""
    retention = settings.retention(aggregation)
    if retention is None:
        return None
    oldest = now - retention
    if aggregation is Aggregation.HOURLY:
        return Window(_hour(oldest) + HOUR, _hour(now))
    zone = parse_zone(time_zone)
    return Window(oldest.astimezone(zone).date() + timedelta(days=1), now.astimezone(zone).date())


def periods(within: Window, time_zone: str, aggregation: Aggregation) -> list[dict[str, Any]]:
    """The columns of a period, for each in the window."""
    zone = parse_zone(time_zone)
    found: list[dict[str, Any]] = []
    at = within.first
    while at <= within.last:
        if aggregation is Aggregation.HOURLY:
            found.append({"period": f"{at:%Y-%m-%dT%HZ}", "timestamp": at, "report_date": at.astimezone(zone).date()})
            at += HOUR
        else:
            begins = local_instant(at, time(), zone)
            found.append({"period": at.isoformat(), "timestamp": begins, "report_date": at})
            at += timedelta(days=1)
    return found


def columns_of(accounts: Mapping[str, Account], aggregation: Aggregation) -> list[dict[str, Any]]:
    """The columns of an account's datasets that are the account's."""
    return [{"account": n, "country": a.country or "", "gate_id": gate_of(n, aggregation)} for n, a in accounts.items()]


def datasets(
    within: Window,
    aggregation: Aggregation,
    time_zone: str,
    settings: ReportSettings,
    entities: Sequence[EntityType] = tuple(EntityType),
) -> list[dict[str, Any]]:
    """The columns of datasets that are not the account's. Each is due at its first offset, be that past."""
    first = settings.offsets(aggregation)[0]
    return [
        {**period, "aggregation": aggregation, "entity_type": entity, "due_at": period["timestamp"] + first}
        for period in periods(within, time_zone, aggregation)
        for entity in entities
    ]


def update_report_datasets(
    ledger: Ledger, settings: ReportSettings, now: datetime, *, who: str, streams: Streams
) -> Updated:
    """Make the datasets that are missing. It can be interrupted at any point, and may run beside itself.

    Hours are made for accounts whose stream is there. It looks at folders: run it where blocking work runs.
    """
    accounts = settings.accounts
    there = ledger.read(_made)
    done = Updated(accounts=len(accounts), woken=_note_states(ledger, accounts, there, now))
    lacks = Lacks(settings, now)
    lacking = [
        (name, lack)
        for name, account in sorted(accounts.items())  # in order of the table, so that its pages are written once
        if not account.paused and (lack := lacks.of(account, there.get(name), streams.get(name))).those
    ]
    while lacking:
        some, lacking = _some(lacking)
        born, marks = [], []
        for lack in dict.fromkeys(lack for _, lack in some):
            group = {name: accounts[name] for name, own in some if own is lack}
            born += [Product(machine, lack.like, Side(columns_of(group, a)), those) for a, those in lack.those]
            marks += [_mark(name, account, lack, now) for name, account in group.items()]
        writes = [Write(report_account, marks)]
        done.born += birth_products(ledger, born, actor=Actor.SCHEDULER, who=who, reason=_REASON, writes=writes)
        for name, lack in some:
            log.info("report.datasets", job=FOR_ACCOUNT, account=name, datasets=lack.size)
    return done


@dataclass(frozen=True, slots=True, eq=False)
class Lack:
    """What accounts lack that have the same time zone and the same windows."""

    like: Report
    daily: Window | None
    hourly: Window | None
    those: tuple[tuple[Aggregation, Side], ...]
    size: int


class Lacks:
    """What accounts lack, each made once."""

    def __init__(self, settings: ReportSettings, now: datetime) -> None:
        self._settings = settings
        self._now = now
        self._hours = window(settings, Aggregation.HOURLY, "UTC", now)
        self._made: dict[tuple[str, Window | None, Window | None, Window | None], Lack] = {}

    def of(self, account: Account, made: Made | None, stream: AmazonStream | None) -> Lack:
        """What the account lacks; after a change of its time zone, everything again."""
        if made is not None and made.time_zone != account.time_zone:
            made = None
        daily, hourly = (made.daily, made.hourly) if made is not None else (None, None)
        key = (account.time_zone, daily, hourly, self._hours_of(stream, hourly))
        if key not in self._made:
            self._made[key] = self._make(*key)
        return self._made[key]

    def _hours_of(self, stream: AmazonStream | None, made: Window | None) -> Window | None:
        """The hours that are wanted of an account, from the first that its stream has on; None while it has none."""
        wanted = self._hours
        if wanted is None or stream is None:
            return None
        try:
            if made is not None and wanted.trusted(made) is not None and made.first <= wanted.first:
                stream.require()  # which hour was the first no longer matters, and need not be looked for
                return wanted
            first = stream.first_hour() or wanted.last
        except StreamGone:
            return None
        return Window(min(max(first, wanted.first), wanted.last), wanted.last)

    def _make(self, time_zone: str, daily: Window | None, hourly: Window | None, hours: Window | None) -> Lack:
        days = window(self._settings, Aggregation.DAILY, time_zone, self._now)
        those: list[tuple[Aggregation, Side]] = []
        joined: dict[Aggregation, Window | None] = {}
        for a, wanted, made in ((Aggregation.DAILY, days, daily), (Aggregation.HOURLY, hours, hourly)):
            if wanted is None:
                joined[a] = made
                continue
            known = wanted.trusted(made)
            those += [(a, Side(datasets(part, a, time_zone, self._settings))) for part in wanted.lacks(known)]
            joined[a] = wanted.joined(known)
        return Lack(
            replace(LIKE, time_zone=time_zone),
            joined[Aggregation.DAILY],
            joined[Aggregation.HOURLY],
            tuple(those),
            sum(len(part) for _, part in those),
        )


def _some(lacking: Sequence[tuple[str, Lack]]) -> tuple[list[tuple[str, Lack]], list[tuple[str, Lack]]]:
    """As many accounts as one transaction should bear, and the rest."""
    size = count = 0
    while count < len(lacking) and (count == 0 or size + lacking[count][1].size <= AT_ONCE):
        size += lacking[count][1].size
        count += 1
    return list(lacking[:count]), list(lacking[count:])


def _mark(name: str, account: Account, lack: Lack, now: datetime) -> dict[str, Any]:
    daily, hourly = lack.daily or NO_WINDOW, lack.hourly or NO_WINDOW
    return {
        "account": name,
        "state": ACTIVE,
        "time_zone": account.time_zone,
        "country": account.country or "",
        "daily_from": daily.first,
        "daily_through": daily.last,
        "hourly_from": hourly.first,
        "hourly_through": hourly.last,
        "changed_at": now,
    }


def _note_states(ledger: Ledger, accounts: Mapping[str, Account], there: Mapping[str, Made], now: datetime) -> int:
    """Keep who is paused and who is gone; the datasets of those that are back want attention again."""
    changed = []
    for name, made in there.items():
        account = accounts.get(name)
        state = GONE if account is None else PAUSED if account.paused else ACTIVE
        if state != made.state:
            changed.append((name, state, made.state == GONE))
    return ledger.rousing.write(lambda cursor: _change_states(ledger, cursor, changed, now)) if changed else 0


def _change_states(ledger: Ledger, cursor: Cursor, changed: Iterable[tuple[str, str, bool]], now: datetime) -> int:
    cast = ledger.database.sql.instant("at")
    woken = 0
    for name, state, back in changed:
        cursor.run(
            f"UPDATE report_account SET state = :state, changed_at = {cast} WHERE account = :account",
            state=state,
            account=name,
            at=instant_text(now),
        )
        if back:  # those that came to rest because their account was not configured
            woken += cursor.run(
                f"UPDATE report_dataset_metadata SET next_refresh_at = {ledger.database.now_sql}, wakes = wakes + 1"
                " WHERE account = :account AND status = 'error' AND next_refresh_at IS NULL",
                account=name,
                **ledger.database.bind_now(),
            )
    return woken


def _made(cursor: Cursor) -> dict[str, Made]:
    rows = cursor.gather(
        "SELECT account, state, time_zone, country, daily_from, daily_through, hourly_from, hourly_through"
        " FROM report_account"
    )
    return {
        str(name): Made(
            name,
            state,
            time_zone,
            country,
            None if daily_from is None else Window(_day(daily_from), _day(daily_through)),
            None if hourly_from is None else Window(instant(hourly_from), instant(hourly_through)),
        )
        for name, state, time_zone, country, daily_from, daily_through, hourly_from, hourly_through in rows
    }


def prune_report_datasets(ledger: Ledger, settings: ReportSettings, now: datetime, *, who: str, rng: Rng) -> int:
    """Prune datasets beyond their retention, with history and rows; returns how many went.

    Interrupted, it has done a part, and the next run does the rest. A dataset that was asked for by a backfill is as
    old as its last change: it would otherwise go at once. The rows go when the stages are swept, as nothing points at
    them any more. What landed in the raw sink stays.
    """
    pruner = Pruner(ledger.database, Ages(), who=who, rng=rng)
    at = ledger.database.sql.instant("before")
    gone = 0
    for aggregation in Aggregation:
        retention = settings.retention(aggregation)
        if retention is None:
            continue
        old = f"u.aggregation = :aggregation AND u.timestamp < {at} AND (NOT u.backfill OR u.changed_at < {at})"
        before = instant_text(now - retention)
        gone += pruner.prune_where(machine.name, Finished(old, {"aggregation": str(aggregation), "before": before}))
    if gone:
        ledger.database.write(
            lambda cursor: cursor.run(
                "DELETE FROM report_load WHERE NOT EXISTS"
                " (SELECT 1 FROM report_dataset_metadata u WHERE u.unit_id = report_load.unit_id)"
            )
        )
    return gone


def _hour(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _day(value: Any) -> date:
    return date.fromisoformat(value) if isinstance(value, str) else value

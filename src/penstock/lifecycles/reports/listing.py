"""The SQL behind the readings of reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, NamedTuple

from penstock.ledger.store import statements
from penstock.ledger.store.database import Database, Row
from penstock.lifecycles.reports import hourly
from penstock.lifecycles.reports.decide import offset_name
from penstock.lifecycles.reports.jobs import UPDATE
from penstock.lifecycles.reports.machine import Aggregation, EntityType, S, machine
from penstock.lifecycles.reports.operations import Dataset, DatasetShown, Load, Scope, Standing
from penstock.lifecycles.reports.settings import Account, ReportSettings, gate_of
from penstock.model.clock import instant, instant_text, parse_instant
from penstock.model.errors import BadInstant, UsageError
from penstock.operations.declare import Page
from penstock.operations.reader import Reader

_MOST_ACCOUNTS = 10
_TABLE = machine.table
_COLUMNS = tuple(Dataset.__struct_fields__)


class Condition(NamedTuple):
    """A condition on the table, and its parameters."""

    sql: str
    given: Mapping[str, Any]


def condition(database: Database, scope: Scope, *, status: S | None = None, unit_ids: Sequence[str] = ()) -> Condition:
    """Which datasets are meant."""
    parts, given = ["true"], {}
    values = {
        "account": scope.account,
        "status": status,
        "aggregation": scope.aggregation,
        "entity_type": scope.entity,
    }
    for name, value in values.items():
        if value is not None:
            parts.append(f"{name} = :{name}")
            given[name] = str(value)
    if scope.account is not None:
        sql, more = database.sql.first_key(scope.account)
        parts.append(sql)
        given |= more
    for name, sign, day in (("first", ">=", scope.first), ("last", "<=", scope.last)):
        if day is not None:
            parts.append(f"report_date {sign} {database.sql.day(name)}")
            given[name] = day.isoformat()
    if unit_ids:
        source = statements.batch(database, {"unit_id": statements.TEXT})
        parts.append(f"unit_id IN (SELECT n_unit_id FROM {source})")
        given["batch"] = statements.batch_text([[unit_id] for unit_id in unit_ids])
    return Condition(" AND ".join(parts), given)


def ids(reader: Reader, where: Condition) -> list[str]:
    """The datasets that are meant, in order."""
    sql = f"SELECT unit_id FROM {_TABLE} WHERE {where.sql} ORDER BY unit_id"
    return [str(row[0]) for row in reader.read(lambda cursor: cursor.rows(sql, **where.given))]


def page(reader: Reader, where: Condition, limit: int, after: str | None) -> Page[Dataset]:
    """Those that are due next first; and how many there are, by status."""
    further, given = _after(reader.database, after)
    counting = f"SELECT status, count(*) FROM {_TABLE} WHERE {where.sql} GROUP BY status ORDER BY status"
    counts = reader.read(lambda cursor: cursor.rows(counting, **where.given))
    sql = (
        f"SELECT {', '.join(_COLUMNS)} FROM {_TABLE} WHERE {where.sql} AND {further}"
        f" ORDER BY next_refresh_at IS NULL, next_refresh_at, unit_id LIMIT {int(limit) + 1}"
    )
    found = [_dataset(row) for row in reader.read(lambda cursor: cursor.rows(sql, **where.given, **given))]
    rows = found[:limit]
    return Page(
        rows=rows,
        next=_mark(rows[-1]) if len(found) > limit else None,
        counts={str(status): int(count) for status, count in counts},
    )


def _mark(last: Dataset) -> str:
    """Where a list ended: `2026-11-03T00:00:00.000Z acme/2026-11-01/daily/target`."""
    return f"{'-' if last.next_refresh_at is None else instant_text(last.next_refresh_at)} {last.unit_id}"


def _after(database: Database, mark: str | None) -> tuple[str, dict[str, Any]]:
    if mark is None:
        return "true", {}
    due, _, unit_id = mark.partition(" ")
    if due == "-":
        return "next_refresh_at IS NULL AND unit_id > :after_id", {"after_id": unit_id}
    try:
        given = {"after_due": instant_text(parse_instant(due)), "after_id": unit_id}
    except BadInstant:
        raise UsageError(f"{mark!r} is not a cursor; take it from the end of the list before") from None
    at = database.sql.instant("after_due")
    later = f"next_refresh_at > {at} OR (next_refresh_at = {at} AND unit_id > :after_id)"
    return f"(next_refresh_at IS NULL OR {later})", given


def shown(reader: Reader, unit_id: str) -> DatasetShown | None:
    """One dataset and its loads, oldest first."""
    where = condition(reader.database, Scope(), unit_ids=[unit_id])
    sql = f"SELECT {', '.join(_COLUMNS)} FROM {_TABLE} WHERE {where.sql}"
    loading = (
        "SELECT serving_offset, report_id, loaded_at, row_count, cost, sales, changed, digest FROM report_load"
        " WHERE unit_id = :unit_id ORDER BY loaded_at"
    )
    rows = reader.read(lambda cursor: cursor.rows(sql, **where.given))
    if not rows:
        return None
    dataset = _values(rows[0])
    loads = [_load(dataset["aggregation"], row) for row in reader.read(lambda c: c.rows(loading, unit_id=unit_id))]
    return DatasetShown(**dataset, loads=loads)


def _dataset(row: Row) -> Dataset:
    return Dataset(**_values(row))


def _values(row: Row) -> dict[str, Any]:
    made = dict(zip(_COLUMNS, row, strict=True))
    for name in ("last_report_created_at", "next_refresh_at", "loaded_at"):
        made[name] = instant(made[name])
    for name in ("refreshing", "backfill"):
        made[name] = None if made[name] is None else bool(made[name])
    if isinstance(made["report_date"], str):
        made["report_date"] = date.fromisoformat(made["report_date"])
    kinds = {"status": S, "aggregation": Aggregation, "entity_type": EntityType}
    return {**made, **{name: kind(made[name]) for name, kind in kinds.items()}}


def _load(aggregation: Aggregation, row: Row) -> Load:
    seconds, report_id, loaded_at, rows, cost, sales, changed, digest = row
    return Load(
        offset=offset_name(aggregation, seconds),
        report_id=report_id,
        loaded_at=instant(loaded_at),
        row_count=rows,
        cost=cost,
        sales=sales,
        changed=None if changed is None else bool(changed),
        digest=digest,
    )


def require_account(reader: Reader, account: str) -> None:
    """Refuse an account of which the ledger has nothing. Raises UsageError with some that it has."""
    there = f"SELECT 1 FROM {_TABLE} WHERE account = :account LIMIT 1"
    if reader.read(lambda cursor: cursor.rows(there, account=account)):
        return
    some = f"SELECT account FROM report_account ORDER BY account LIMIT {_MOST_ACCOUNTS}"
    known = ", ".join(str(row[0]) for row in reader.read(lambda cursor: cursor.rows(some)))
    raise UsageError(f"no account is called {account!r}; the ledger has {known or 'none'}")


def standings(reader: Reader, settings: ReportSettings) -> list[Standing]:
    """Every account of the configuration or of the ledger."""
    sql = (
        f"SELECT account, count(*), sum(CASE WHEN status IN ('fetching', 'parsing') THEN 1 ELSE 0 END) FROM {_TABLE}"
        " GROUP BY account"
    )
    there = {str(name): (int(n), int(busy)) for name, n, busy in reader.read(lambda cursor: cursor.rows(sql))}
    longest = max(kept.days for aggregation in Aggregation if (kept := settings.retention(aggregation)) is not None)
    lacking = hourly.sourceless(settings)
    found = []
    for name in sorted({*there, *settings.accounts}):
        count, busy = there.get(name, (0, 0))
        account = settings.accounts.get(name)
        state, says = _standing(name, account, count, busy, longest)
        off = f"; hourly is off: {lacking[name]}" if name in lacking else ""
        found.append(Standing(account=name, state=state, datasets=count, under_way=busy, says=says + off))
    return found


def _standing(name: str, account: Account | None, count: int, busy: int, longest: int) -> tuple[str, str]:
    if account is None:
        return "gone", (
            f"not configured: nothing is created or refreshed any more; its {count:,} datasets stay readable and are"
            f" pruned {longest} days after their date at the latest; {busy:,} reports under way are given up. Adding"
            " the account again takes them up"
        )
    if account.paused:
        return "paused", (
            f"paused: no dataset is made or refreshed, and {busy:,} reports under way wait. Offsets that pass"
            " meanwhile are served together when it goes on"
        )
    if count == 0:
        return "new", f"the next run of {UPDATE} makes the datasets of {longest} days, most of them due at once"
    return "active", f"refreshed at its offsets, through the gate {gate_of(name)}"

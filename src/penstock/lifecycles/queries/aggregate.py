"""Companies, aggregated from their offers once a run has read its pages.

Some hundreds at a time. Where that fails, one by one, each with retries of its own: one company that cannot be
aggregated is told and left behind, and the others are not kept waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import structlog

from penstock.ledger.ledger import Ledger
from penstock.ledger.store import statements
from penstock.lifecycles.queries.tables import companies, offers
from penstock.model.clock import instant
from penstock.model.errors import LedgerUnavailable
from penstock.model.outcome import Write

AT_ONCE = 500
_TRIES = 4
_MOST_CITIES = 20
COLUMNS = (
    *("company_key", "cities", "offers_total", "offers_open", "first_seen_at", "last_seen_at"),
    *("aggregated_at", "stale", "failed"),
)
_FAILED = ("company_key", "first_seen_at", "last_seen_at", "stale", "failed")

log = structlog.get_logger()
Compute = Callable[[Ledger, Sequence[str], datetime], list[list[Any]]]


class Aggregated(NamedTuple):
    """Rows of companies, how many were aggregated, how many could not be, and whether there are more."""

    writes: list[Write]
    done: int
    failed: int
    more: bool


def aggregate(ledger: Ledger, now: datetime, compute: Compute | None = None) -> Aggregated:
    """The next companies that are to be aggregated."""
    compute = compute or summed
    sql = f"SELECT company_key FROM {companies.name} WHERE stale ORDER BY company_key LIMIT :most"
    found = [str(row[0]) for row in ledger.read(lambda cursor: cursor.rows(sql, most=AT_ONCE + 1))]
    keys, more = found[:AT_ONCE], len(found) > AT_ONCE
    failed: list[list[Any]] = []
    try:
        rows = compute(ledger, keys, now)
    except LedgerUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 - whatever one company does, the others are aggregated
        log.warning("queries.companies", reason="aggregated one by one", error=repr(error))
        rows, failed = _one_by_one(ledger, keys, now, compute)
    writes = [Write(companies, rows, columns=COLUMNS)] if rows else []
    if failed:
        writes.append(Write(companies, failed, first=("first_seen_at", "last_seen_at"), columns=_FAILED))
    return Aggregated(writes, len(rows), len(failed), more)


def _one_by_one(
    ledger: Ledger, keys: Sequence[str], now: datetime, compute: Compute
) -> tuple[list[list[Any]], list[list[Any]]]:
    rows: list[list[Any]] = []
    failed: list[list[Any]] = []
    for key in keys:
        for left in reversed(range(_TRIES)):
            try:
                rows += compute(ledger, [key], now)
                break
            except LedgerUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - told, counted and left behind
                if not left:
                    log.warning("queries.company_failed", company=key, error=repr(error))
                    failed.append([key, now, now, False, f"{type(error).__name__}: {error}"[:500]])
    return rows, failed


def summed(ledger: Ledger, keys: Sequence[str], now: datetime) -> list[list[Any]]:
    """The rows of these companies. Reposts and duplicates of an offer count once."""
    source = statements.batch(ledger.database, {"key": statements.TEXT})
    batch = statements.batch_text([[key] for key in keys])
    head, live = "o.link_kind IS NULL", "o.link_kind IS NULL AND o.closed_at IS NULL"
    sql = (
        f"SELECT n_key, o.city, count(CASE WHEN {head} THEN 1 END), count(CASE WHEN {live} THEN 1 END),"
        f" min(CASE WHEN {head} THEN o.first_seen_at END), max(CASE WHEN {head} THEN o.last_seen_at END)"
        f" FROM {source} JOIN {offers.name} o ON o.company_key = n_key GROUP BY n_key, o.city ORDER BY n_key, o.city"
    )
    found: dict[str, list[Sequence[Any]]] = {key: [] for key in keys}
    for key, *place in ledger.read(lambda cursor: cursor.rows(sql, batch=batch)):
        found[key].append(place)
    return [_row(key, places, now) for key, places in found.items()]


def _row(key: str, places: Sequence[Sequence[Any]], now: datetime) -> list[Any]:
    """The row of a company, of what it has in each city."""
    cities = sorted(city for city, *_ in places if city is not None)[:_MOST_CITIES]
    total, live = (sum(place[which] for place in places) for which in (1, 2))
    first = min((instant(place[3]) for place in places if place[3] is not None), default=now)
    last = max((instant(place[4]) for place in places if place[4] is not None), default=now)
    return [key, cities, total, live, first, last, now, False, None]

"""The rows that the spreadsheet shows: companies and offers of the ledger, by keys that cells keep as they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from penstock.ledger.schema.columns import document
from penstock.lifecycles.queries.sheet_ranges import cell
from penstock.model.clock import instant, instant_text

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger

_TYPED = frozenset("=+-@'")
"""With these begins what a sheet takes for something else when somebody types it anew."""

Rows = Mapping[str, tuple[Any, ...] | None]
"""By key what stands in our columns; None for what was erased."""


class Source(Struct, frozen=True):
    """Where the rows of a tab come from. `page` lists keys that belong into the sheet, in order, after one of them."""

    kind: str
    tab: str
    headers: tuple[str, ...]
    rows: Callable[[Ledger, Sequence[str]], Rows]
    page: Callable[[Ledger, str | None, int], list[str]]


def key_text(*parts: str) -> str:
    """A key as it stands in a cell: what a sheet might change is percent-encoded, and so is `/` but in the last."""
    *before, last = parts
    return "/".join([*(_encoded(part, "%/") for part in before), _encoded(last, "%")])


def key_parts(text: str, count: int) -> tuple[str, ...] | None:
    """The parts of a key; None for what is none of ours."""
    parts = tuple(unquote(part) for part in text.split("/", count - 1))
    ours = len(parts) == count and "\0" not in text + "".join(parts) and key_text(*parts) == text
    return parts if ours else None


def _encoded(text: str, also: str) -> str:
    as_it_is = text.isprintable() and text.strip(" ") == text and text[:1] not in _TYPED
    if as_it_is and not any(map(text.__contains__, also)):
        return text
    last = len(text) - 1
    return "".join(
        character
        if character.isprintable()
        and character not in also
        and not (place == 0 and character in _TYPED)
        and not (character == " " and place in (0, last))
        else "".join(f"%{byte:02X}" for byte in character.encode())  # `quote` would leave "-" as it is
        for place, character in enumerate(text)
    )


def companies(tab: str) -> Source:
    """Every company that is not erased."""
    headers = ("Company", "Cities", "Open offers", "All offers", "First seen", "Last seen")
    return Source("company", tab, headers, _companies, _company_keys)


def offers(tab: str, offers_for: timedelta, now: datetime) -> Source:
    """Offers that were seen lately, but for reposts and duplicates: they belong to the offer that they repeat."""
    headers = (
        *("Title", "Company", "City", "Province", "Link", "Published", "Updated"),
        *("First seen", "Last seen", "Closed"),
    )
    since = instant_text(now - offers_for)
    return Source("offer", tab, headers, _offers, lambda ledger, after, limit: _offer_keys(ledger, since, after, limit))


def _companies(ledger: Ledger, keys: Sequence[str]) -> Rows:
    wanted = {parts[0]: key for key in keys if (parts := key_parts(key, 1)) is not None}
    sql = (
        "SELECT company_key, name, cities, offers_open, offers_total, first_seen_at, last_seen_at, erased_at"
        f" FROM companies WHERE company_key IN ({ledger.database.sql.listed('keys')})"
    )
    found: dict[str, tuple[Any, ...] | None] = {}
    for key, name, cities, open_, total, first, last, erased in _listed(ledger, sql, list(wanted)):
        cells = (name, _cities(cities), open_, total, instant(first), instant(last))
        found[wanted[key]] = None if erased is not None else tuple(map(cell, cells))
    return found


def _company_keys(ledger: Ledger, after: str | None, limit: int) -> list[str]:
    start = "" if after is None else unquote(after)
    sql = (
        "SELECT company_key FROM companies WHERE erased_at IS NULL AND company_key > :after"
        " ORDER BY company_key LIMIT :n"
    )
    return [key_text(row[0]) for row in ledger.read(lambda cursor: cursor.rows(sql, after=start, n=limit))]


def _offers(ledger: Ledger, keys: Sequence[str]) -> Rows:
    by_client: dict[str, dict[str, str]] = defaultdict(dict)
    for key in keys:
        if (parts := key_parts(key, 2)) is not None:
            by_client[parts[0]][parts[1]] = key
    sql = (
        "SELECT offer_id, title, company, city, province, url, published_at, updated_at, first_seen_at, last_seen_at,"
        " closed_at, erased_at FROM offers WHERE client = :client"
        f" AND offer_id IN ({ledger.database.sql.listed('keys')})"
    )
    found: dict[str, tuple[Any, ...] | None] = {}
    for client, wanted in by_client.items():
        for offer, *rest, erased in _listed(ledger, sql, list(wanted), client=client):
            cells = (*rest[:5], *map(instant, rest[5:]))
            found[wanted[offer]] = None if erased is not None else tuple(map(cell, cells))
    return found


def _offer_keys(ledger: Ledger, since: str, after: str | None, limit: int) -> list[str]:
    client, offer = ("", "") if after is None else map(unquote, after.split("/", 1))
    sql = (
        "SELECT client, offer_id FROM offers WHERE erased_at IS NULL AND link_kind IS NULL"
        f" AND last_seen_at >= {ledger.database.sql.instant('since')} AND (client, offer_id) > (:client, :offer)"
        " ORDER BY client, offer_id LIMIT :n"
    )
    given = {"since": since, "client": client, "offer": offer, "n": limit}
    return [key_text(*row) for row in ledger.read(lambda cursor: cursor.rows(sql, **given))]


def _listed(ledger: Ledger, sql: str, keys: list[str], **given: Any) -> list[Any]:
    texts = msgspec.json.encode(keys).decode()
    return ledger.read(lambda cursor: cursor.rows(sql, keys=texts, **given))


def _cities(value: Any) -> Any:
    return document(value) if isinstance(value, str) and value.startswith("[") else value

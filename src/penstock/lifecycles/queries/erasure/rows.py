"""What an erasure blanks in the ledger, some hundreds of rows in a transaction. Done twice, it comes to the same.

A row stays, with its key, its dates and its links: the counts of offers and the history of states are as they were.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.connectors.searches import OFFER_COLUMNS
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.queries.aggregate import COLUMNS as AGGREGATED
from penstock.lifecycles.queries.aggregate import summed
from penstock.lifecycles.queries.erasure.guard import texts_of
from penstock.lifecycles.queries.erasure.machine import Erasure, Kind
from penstock.lifecycles.queries.offer_store import company_id
from penstock.lifecycles.queries.sheet_rows import key_text
from penstock.lifecycles.queries.sheet_tables import feedback
from penstock.lifecycles.queries.store import ERASED
from penstock.lifecycles.queries.tables import companies, erased_records, offers, rejected_records
from penstock.model.outcome import Update, Where, Write

if TYPE_CHECKING:
    import sqlalchemy as sa

AT_ONCE = 500
_LOOKED_AT = 1_000
_SAID = [name for name in OFFER_COLUMNS if name != "published_at"]
_BLANK_OFFER = {**dict.fromkeys(_SAID), "likeness": None, "payload": None, "content_hash": ERASED}
_BLANK_REJECTED = {"payload": None, "reason": "it was erased"}


class Blanked(msgspec.Struct, frozen=True):
    """Rows that are blank afterwards, how many, and where to go on (None: there are no more)."""

    writes: Sequence[Write] = ()
    updates: Sequence[Update] = ()
    rows: int = 0
    place: str | None = None


def mark(unit: Erasure, now: datetime) -> Blanked:
    """From this commit on, pages and stores keep nothing more of it."""
    if unit.kind is Kind.COMPANY:
        return Blanked(updates=[Update(Where(companies, {"company_key": unit.record}), {"erased_at": now})])
    return Blanked([_never_again(unit.client, [unit.record], now)])


def query_keys(ledger: Ledger, client: str) -> list[str]:
    """Every query that ever asked a client."""
    sql = "SELECT query_key FROM query_state WHERE client = :client ORDER BY query_key"
    return [str(row[0]) for row in ledger.read(lambda cursor: cursor.rows(sql, client=client))]


def set_aside(ledger: Ledger, unit: Erasure) -> Blanked:
    """Records that could not be used: those of its id, or those in which the company is named."""
    if unit.kind is Kind.COMPANY:
        return _set_aside_of_company(ledger, unit)
    keys = query_keys(ledger, unit.client)
    sql = f"SELECT query_key, digest FROM {rejected_records.name} WHERE record_id = :id AND payload IS NOT NULL"
    found = ledger.read(lambda cursor: cursor.rows(sql, id=unit.record))
    mine = [(str(key), str(digest)) for key, digest in found if key in keys]
    return Blanked(updates=list(_rejected(mine)), rows=len(mine))


def _set_aside_of_company(ledger: Ledger, unit: Erasure) -> Blanked:
    """They are looked through one by one: what could not be read has no company of its own."""
    names = [name.casefold() for name in names_of(ledger, unit.record)]
    after = ["", ""] if unit.place is None else msgspec.json.decode(unit.place)
    sql = (
        f"SELECT query_key, digest, payload FROM {rejected_records.name} WHERE payload IS NOT NULL AND"
        " (query_key, digest) > (:key, :digest) ORDER BY query_key, digest LIMIT :most"
    )
    while True:
        given = {"key": after[0], "digest": after[1], "most": _LOOKED_AT}
        found = ledger.read(lambda cursor: cursor.rows(sql, **given))  # noqa: B023 - read here
        mine = [(key, digest) for key, digest, payload in found if _mentions(payload, unit.record, names)]
        more = len(found) == _LOOKED_AT
        if more:
            after = [str(found[-1][0]), str(found[-1][1])]
        if mine or not more:
            place = msgspec.json.encode(after).decode() if more else None
            return Blanked(updates=list(_rejected(mine)), rows=len(mine), place=place)


def names_of(ledger: Ledger, company: str) -> list[str]:
    """Every name that a company is known by."""
    sql = (
        f"SELECT name FROM {companies.name} WHERE company_key = :key AND name IS NOT NULL"
        f" UNION SELECT company FROM {offers.name} WHERE company_key = :key AND company IS NOT NULL ORDER BY 1"
    )
    return [str(row[0]) for row in ledger.read(lambda cursor: cursor.rows(sql, key=company))]


def _mentions(payload: str, company: str, names: Sequence[str]) -> bool:
    text = payload.casefold()
    forms = {form for name in names for form in (name, msgspec.json.encode(name)[1:-1].decode())}
    written = (re.search(rf"(?<!\w){re.escape(form)}(?!\w)", text) is not None for form in forms)
    return any(written) or any(company_id(one) == company for one in texts_of(payload))


def _rejected(found: Sequence[tuple[str, str]]) -> Iterator[Update]:
    by_query: dict[str, list[str]] = {}
    for key, digest in found:
        by_query.setdefault(key, []).append(digest)
    for key, digests in by_query.items():
        yield Update(Where(rejected_records, {"query_key": key}, among=("digest", digests)), _BLANK_REJECTED)


def offer_rows(ledger: Ledger, unit: Erasure, now: datetime) -> Blanked:
    """Its row, or the next rows of a company."""
    mine = "company_key = :record" if unit.kind is Kind.COMPANY else "client = :client AND offer_id = :record"
    given = {"record": unit.record} | ({} if unit.kind is Kind.COMPANY else {"client": unit.client})
    sql = f"SELECT client, offer_id FROM {offers.name} WHERE {mine} AND erased_at IS NULL ORDER BY 1, 2 LIMIT :most"
    found = ledger.read(lambda cursor: cursor.rows(sql, most=AT_ONCE, **given))
    by_client: dict[str, list[str]] = {}
    for client, offer in found:
        by_client.setdefault(str(client), []).append(str(offer))
    if unit.kind is Kind.OFFER:
        by_client.setdefault(unit.client, [unit.record])  # what people wrote of it goes in any case
    writes = [_never_again(client, ids, now) for client, ids in by_client.items()]
    updates = []
    for client, ids in by_client.items():
        blank = {**_BLANK_OFFER, "erased_at": now}
        updates += [
            Update(Where(offers, {"client": client, "erased_at": None}, among=("offer_id", ids)), blank),
            _feedback("offer", [key_text(client, one) for one in ids], now),
        ]
    return Blanked(writes, updates, len(found), "more" if len(found) == AT_ONCE else None)


def company_row(ledger: Ledger, unit: Erasure, now: datetime) -> Blanked:
    """The company itself; or that of an offer, aggregated again without what the offer said."""
    if unit.kind is Kind.COMPANY:
        blank = {"name": None, "cities": None, "failed": None, "erased_at": now}
        updates = [
            Update(Where(companies, {"company_key": unit.record}), blank),
            _feedback("company", [unit.record], now),
        ]
        return Blanked(updates=updates, rows=1)
    sql = (
        f"SELECT c.company_key FROM {offers.name} o JOIN {companies.name} c ON c.company_key = o.company_key"
        " WHERE o.client = :client AND o.offer_id = :id"
    )
    given = {"client": unit.client, "id": unit.record}
    keys = [str(row[0]) for row in ledger.read(lambda cursor: cursor.rows(sql, **given))]
    rows = summed(ledger, keys, now) if keys else []
    return Blanked([Write(companies, rows, columns=AGGREGATED)] if rows else ())


def own_rows(ledger: Ledger, unit: Erasure, table: sa.Table, fields: Sequence[str], now: datetime) -> Blanked:
    """Its rows in a table of its own, one for each query that lists it."""
    keys = listing(ledger, table, unit.client, unit.record)
    blank: Mapping[str, Any] = {**dict.fromkeys(fields), "payload": None, "content_hash": ERASED, "erased_at": now}
    where = Where(table, {"record_id": unit.record}, among=("query_key", keys))
    return Blanked(updates=[Update(where, blank)] if keys else (), rows=len(keys))


def listing(ledger: Ledger, table: sa.Table, client: str, record: str) -> list[str]:
    """The queries of a client in whose rows a record is and is not erased."""
    sql = (
        f"SELECT t.query_key FROM query_state q JOIN {table.name} t ON t.query_key = q.query_key"
        " AND t.record_id = :record WHERE q.client = :client AND t.erased_at IS NULL ORDER BY 1"
    )
    given = {"client": client, "record": record}
    return [str(row[0]) for row in ledger.read(lambda cursor: cursor.rows(sql, **given))]


def _never_again(client: str, ids: Sequence[str], now: datetime) -> Write:
    rows = [{"client": client, "record_id": one, "erased_at": now} for one in ids]
    return Write(erased_records, rows, first=("erased_at",))


def _feedback(kind: str, keys: Sequence[str], now: datetime) -> Update:
    return Update(Where(feedback, {"kind": kind}, among=("key", keys)), {"text": "", "changed_at": now})

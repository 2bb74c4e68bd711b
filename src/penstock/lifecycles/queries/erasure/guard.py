"""What was erased stays erased, whatever a provider lists later: its records are blank before anything is kept.

A record is known by its client and id, a company by the digest of its name. An offer of an erased company is erased
whole under any id: its title, its description and its address may hold the name as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from penstock.connectors.searches import OFFER_COLUMNS, Bad, Batch, Item
from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import Cursor
from penstock.lifecycles.queries.likeness import LONGEST_COMPANY
from penstock.lifecycles.queries.offer_store import COMPANY, company_id
from penstock.lifecycles.queries.store import found_by, keyed
from penstock.lifecycles.queries.tables import companies, erased_records
from penstock.model.clock import instant_text

_MOST_TEXTS = 2_000
_REASON = "it was erased"
_KEYS = frozenset({"id", "date", "erased"})


def erased_line(record_id: str, at: datetime | None) -> bytes:
    """What stands for an erased record among landed ones: a line of JSON."""
    return msgspec.json.encode({"id": record_id, "date": None if at is None else instant_text(at), "erased": True})


def is_erased_line(record: Any) -> bool:
    """Whether a landed record is one of these already."""
    return type(record) is dict and record.keys() == _KEYS and record["erased"] is True


def without_erased(ledger: Ledger, client: str, columns: Sequence[str], batch: Batch) -> Batch:
    """The page, with nothing of what was erased but that it is there: places and dates are as they were."""
    offers = batch.records if tuple(columns) == OFFER_COLUMNS else ()
    of_records, of_companies = _ever(ledger)
    gone = _erased(ledger, client, {one.id for one in batch.records if one.id is not None}) if of_records else set()
    forgotten = _forgotten(ledger, _named_keys(offers)) if of_companies else set()
    if not gone and not forgotten:
        return batch
    named = {place: found for place, one in enumerate(offers) if (found := _company_keys(one))}
    records = [
        blank(one) if one.id in gone or not forgotten.isdisjoint(named.get(place, ())) else one
        for place, one in enumerate(batch.records)
    ]
    return msgspec.structs.replace(batch, records=records)


def blank(one: Item | Bad) -> Item | Bad:
    """A record that may not be kept."""
    if isinstance(one, Bad):
        return Bad(_REASON, "", one.id, one.at)
    return Item(one.id, one.at, (None,) * len(one.values), erased_line(one.id, one.at).decode(), erased=True)


def texts_of(payload: str) -> Iterator[str]:
    """Every text in a document that may be the name of a company; none where it is no document."""
    try:
        todo: list[Any] = [msgspec.json.decode(payload)]
    except (msgspec.DecodeError, RecursionError):
        return
    left = _MOST_TEXTS
    while todo and left:
        found = todo.pop()
        if type(found) is dict:
            todo.extend(found.values())
        elif type(found) is list:
            todo.extend(found)
        elif type(found) is str and 0 < len(found) <= LONGEST_COMPANY:
            left -= 1
            yield found


def _names(offers: Sequence[Item | Bad]) -> set[str | None]:
    """The companies that a page names; many offers are of few."""
    return {one.values[COMPANY] for one in offers if isinstance(one, Item)}


def _company_keys(one: Item | Bad) -> Collection[str]:
    """The keys of the companies that a record may be of."""
    if isinstance(one, Bad):
        return {key for text in texts_of(one.payload) if (key := company_id(text)) is not None}
    key = company_id(one.values[COMPANY])
    return () if key is None else (key,)


def _named_keys(offers: Sequence[Item | Bad]) -> set[str]:
    keys = {key for one in offers if isinstance(one, Bad) for key in _company_keys(one)}
    return keys | {key for name in _names(offers) if (key := company_id(name)) is not None}


def _ever(ledger: Ledger) -> tuple[bool, bool]:
    """Whether any record, and any company, was ever erased: mostly none was, and no page needs a closer look."""
    sql = (
        f"SELECT EXISTS (SELECT 1 FROM {erased_records.name}),"
        f" EXISTS (SELECT 1 FROM {companies.name} WHERE erased_at IS NOT NULL)"
    )

    def read(cursor: Cursor) -> Sequence[Sequence[Any]]:
        ledger.database.sql.by_index(cursor)
        return cursor.rows(sql)

    ((records, names),) = ledger.read(read)
    return bool(records), bool(names)


def _erased(ledger: Ledger, client: str, ids: Collection[str]) -> set[str]:
    source = keyed(ledger.database, "id", "client")
    sql = f"SELECT n_id FROM {source} JOIN {erased_records.name} e ON e.client = n_client AND e.record_id = n_id"
    return _found(ledger, sql, [[one, client] for one in sorted(ids)])


def _forgotten(ledger: Ledger, keys: Collection[str]) -> set[str]:
    source = keyed(ledger.database, "id")
    sql = f"SELECT n_id FROM {source} JOIN {companies.name} c ON c.company_key = n_id WHERE c.erased_at IS NOT NULL"
    return _found(ledger, sql, [[key] for key in sorted(keys)])


def _found(ledger: Ledger, sql: str, rows: Sequence[Sequence[str]]) -> set[str]:
    return {str(row[0]) for row in found_by(ledger, rows, sql)} if rows else set()

"""What a person means by a key such as `offer:infojobs/17`, and what the ledger has of it. Nothing is written here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from penstock.lifecycles.queries.erasure.decide import own_settings
from penstock.lifecycles.queries.erasure.machine import ANY_CLIENT, Kind
from penstock.model.errors import UsageError
from penstock.model.unit import key_part

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.ledger.store.database import Cursor
    from penstock.lifecycles.queries.settings import QueriesSettings

FORMS = "offer:CLIENT/ID, company:KEY_OR_NAME or record:CLIENT/ID"
_DIGEST = re.compile(r"[0-9a-f]{16}")
_GIVE_ID = "give the id as the provider has it: it is kept"
_LIKE = 5
_SHORTEST = 3
"""A name of fewer characters is in many a reason by chance."""


class Subject(Struct, frozen=True):
    """What is to be erased. `rows`: how many are not blank yet, by table. `said`: texts that no reason may repeat."""

    kind: Kind
    client: str
    record: str
    rows: dict[str, int] = {}
    pages: int = 0
    said: Sequence[str] = ()

    @property
    def unit_id(self) -> str:
        return "/".join(map(key_part, (self.kind, self.client, self.record)))


def subject(ledger: Ledger, settings: QueriesSettings, key: str) -> Subject:
    """What a key means. Raises UsageError for one that nothing is known of, with how to find the right one."""
    kind, _, rest = key.partition(":")
    if kind not in set(Kind) or not rest.strip():
        raise UsageError(f"{key!r} names nothing that can be erased; write {FORMS}")
    if kind == Kind.COMPANY:
        return _company(ledger, rest)
    client, slash, record = rest.partition("/")
    if not client or not slash or not record:
        raise UsageError(f"{key!r} has no client and id; write {kind}:CLIENT/ID")
    return _offer(ledger, settings, client, record) if kind == Kind.OFFER else _record(ledger, settings, client, record)


def _company(ledger: Ledger, text: str) -> Subject:
    from penstock.lifecycles.queries.erasure.rows import names_of
    from penstock.lifecycles.queries.offer_store import company_id

    keys = [text] if _DIGEST.fullmatch(text) else []
    keys += filter(None, [company_id(text)])
    sql = "SELECT count(*) FROM companies WHERE company_key = :key"
    known = [key for key in keys if _count(ledger, sql, key=key)]
    if not known:
        raise UsageError(f"no company is known as {text!r}; {_similar(ledger, text)}")
    key = known[0]
    offers = "SELECT count(*) FROM offers WHERE company_key = :key AND erased_at IS NULL"
    names = "SELECT count(*) FROM companies WHERE company_key = :key AND (name IS NOT NULL OR erased_at IS NULL)"
    rows = {"companies": _count(ledger, names, key=key), "offers": _count(ledger, offers, key=key)}
    return Subject(Kind.COMPANY, ANY_CLIENT, key, rows, said=names_of(ledger, key))


def _similar(ledger: Ledger, text: str) -> str:
    sql = (
        "SELECT name, company_key FROM companies WHERE name IS NOT NULL AND lower(name) LIKE :like ESCAPE '!'"
        " ORDER BY name LIMIT :most"
    )
    like = re.sub(r"([!%_])", r"!\1", text.lower())
    found = ledger.read(lambda cursor: cursor.rows(sql, like=f"%{like}%", most=_LIKE))
    if found:
        return "similar: " + "; ".join(f"{name} (company:{key})" for name, key in found)
    return "give its name as an offer has it, or its key in the table companies"


def _offer(ledger: Ledger, settings: QueriesSettings, client: str, record: str) -> Subject:
    if own_settings(settings, client) is not None:
        raise UsageError(f"the records of {client} have a table of their own; write record:{client}/{record}")
    sql = "SELECT company, title, erased_at FROM offers WHERE client = :client AND offer_id = :id"
    found = ledger.read(lambda cursor: cursor.rows(sql, client=client, id=record))
    aside = _set_aside(ledger, client, record)
    if not found and not aside:
        _refuse_client(ledger, settings, client)
        raise UsageError(f"{client} has no offer {record!r}; {_GIVE_ID} in offers.offer_id")
    rows = {"offers": sum(row[2] is None for row in found), "rejected_records": aside}
    return Subject(Kind.OFFER, client, record, rows, said=[text for row in found for text in row[:2] if text])


def _record(ledger: Ledger, settings: QueriesSettings, client: str, record: str) -> Subject:
    own = own_settings(settings, client)
    if own is None:
        if client in settings.clients():
            raise UsageError(f"{client} lists offers; write offer:{client}/{record}")
        raise UsageError(f"no client {client!r} with a table of its own is configured; configure it again to erase")
    columns = ", ".join(f"t.{name}" for name in own.fields)
    sql = (
        f"SELECT t.erased_at, {columns} FROM query_state q JOIN {own.table} t ON t.query_key = q.query_key"
        " AND t.record_id = :record WHERE q.client = :client"
    )
    found = ledger.read(lambda cursor: cursor.rows(sql, record=record, client=client))
    aside = _set_aside(ledger, client, record)
    if not found and not aside:
        raise UsageError(f"{client} has no record {record!r}; {_GIVE_ID} in {own.table}.record_id")
    pages = (
        "SELECT count(*) FROM query_state q JOIN landed_pages l ON l.query_key = q.query_key"
        " WHERE q.client = :client AND l.replaced_by IS NULL"
    )
    rows = {str(own.table): sum(row[0] is None for row in found), "rejected_records": aside}
    said = {text for row in found for text in row[1:] if isinstance(text, str)}
    return Subject(Kind.RECORD, client, record, rows, _count(ledger, pages, client=client), sorted(said))


def _set_aside(ledger: Ledger, client: str, record: str) -> int:
    sql = (
        "SELECT count(*) FROM query_state q JOIN rejected_records r ON r.query_key = q.query_key AND r.record_id = :id"
        " WHERE q.client = :client AND r.payload IS NOT NULL"
    )
    return _count(ledger, sql, client=client, id=record)


def _refuse_client(ledger: Ledger, settings: QueriesSettings, client: str) -> None:
    """Raises UsageError for a client that nobody knows, with those that there are."""
    found = ledger.read(lambda cursor: cursor.rows("SELECT DISTINCT client FROM query_state"))
    known = {str(row[0]) for row in found} | {*settings.clients()}
    if client not in known:
        raise UsageError(f"there is no client {client!r}; there are: {', '.join(sorted(known)) or 'none'}")


def refuse_reason(reason: str, subjects: Sequence[Subject]) -> None:
    """The history keeps the reason for good. Raises UsageError for one that says what is to be erased."""
    told = " ".join(reason.casefold().split())
    for one in subjects:
        for text in one.said:
            name = " ".join(text.casefold().split())
            if len(name) >= _SHORTEST and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", told):
                msg = "the reason repeats what is to be erased, and the history keeps it; give the number of a request"
                raise UsageError(msg)


def _count(ledger: Ledger, sql: str, **given: Any) -> int:
    def read(cursor: Cursor) -> int:
        return int(cursor.rows(sql, **given)[0][0])

    return ledger.read(read)

"""Publishing the watermark: the ledger's row is the truth, the blob follows it.

A run that completes moves the row and says so in the event log; the outbox hands that event to `publish`, as often as
it takes. Whatever event it was, the row is what is published, so that late or doubled deliveries change nothing. A blob
that somebody else wrote is left alone: publication stops until a person has looked and asked for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.connectors.watermark import Blob, ForeignBlob, Watermark
from penstock.ledger.commit import insert_events
from penstock.ledger.ledger import Ledger
from penstock.ledger.outbox import EventRow
from penstock.ledger.schema.columns import readable
from penstock.ledger.store.database import Cursor, Database
from penstock.lifecycles.harvest.events import (
    ADOPTED,
    ADVANCED,
    ALERT,
    CONFLICT,
    PUBLISHED,
    PUBLISHED_EVENT,
    REQUESTED,
    UNPUBLISHED,
)
from penstock.model.clock import instant, instant_text
from penstock.model.errors import StepError
from penstock.model.outcome import Event
from penstock.worker.flow import Io
from penstock.worker.outbox import Subscriber

if TYPE_CHECKING:
    from penstock.operations.reader import Reader

_KEPT = 1_000
SUBSCRIBER = "harvest-watermark"


@dataclass(frozen=True, slots=True)
class Row:
    """The ledger's watermark of a feed, and how far its publication has come."""

    feed: str
    last_updated_at: datetime
    last_run_id: UUID | None
    last_run_completed_at: datetime | None
    publication: str
    published_at: datetime | None
    etag: str | None

    def blob(self) -> Watermark:
        """As it is published; one that was set by hand before any run names none."""
        run_id = "" if self.last_run_id is None else str(self.last_run_id)
        return Watermark(self.last_updated_at, run_id, self.last_run_completed_at or self.last_updated_at)


def advanced(feed: str, run_id: str, to: datetime) -> Event:
    """The event that has the blob published."""
    payload = {"feed": feed, "run_id": run_id, "last_updated_at": instant_text(to)}
    return Event(f"{ADVANCED}:{feed}:{run_id}", ADVANCED, payload)


def read_row(ledger: Ledger | Reader, feed: str) -> Row | None:
    """The watermark of a feed; None before its first run has completed."""
    columns = "feed, last_updated_at, last_run_id, last_run_completed_at, publication, published_at, etag"
    sql = f"SELECT {columns} FROM watermark WHERE feed = :feed"
    found = ledger.read(lambda cursor: cursor.rows(sql, feed=feed))
    if not found:
        return None
    name, updated, run_id, completed, publication, published, etag = found[0]
    run = run_id if run_id is None or isinstance(run_id, UUID) else UUID(run_id)
    return Row(str(name), instant(updated), run, instant(completed), str(publication), instant(published), etag)


def requested(row: Row, who: str, reason: str, at: datetime, *, replaces: bool) -> Event:
    """The event by which a person has the blob published; `replaces`: also over what somebody else wrote there."""
    moment = instant_text(row.last_updated_at)
    payload = {"feed": row.feed, "last_updated_at": moment, "by": who, "reason": reason, "replaces": replaces}
    return Event(f"{REQUESTED}:{row.feed}:{moment}:{instant_text(at)}", REQUESTED, payload)


def publish(ledger: Ledger, feed: str, blob: Blob) -> Row | None:
    """Make the blob what the ledger's row says; the row as it then is. It blocks.

    Raises the StepError of the store, after an alert: ForeignBlob where a person must decide.
    """
    row = read_row(ledger, feed)
    if row is None or row.publication == PUBLISHED:
        return row
    if row.publication == CONFLICT:
        raise ForeignBlob(f"{blob.address} was written by somebody else, and nobody has decided yet which one counts")
    try:
        etag = blob.swap(row.blob().encode(), row.etag)
    except StepError as error:
        state = CONFLICT if isinstance(error, ForeignBlob) else UNPUBLISHED
        reason = readable(f"{type(error).__name__}: {error}")
        ledger.database.write(lambda cursor: _unpublished(ledger.database, cursor, row, state, reason))
        raise
    ledger.database.write(lambda cursor: _published(ledger.database, cursor, row, etag))
    return read_row(ledger, feed)


def publish_pending(ledger: Ledger, blobs: Mapping[str, Blob]) -> dict[str, str]:
    """Repair what an earlier program left unpublished, before a feed's next run; feed to how it stands now.

    A store that is away stops nothing: the alert stands, and the next start tries again.
    """
    found = {}
    for feed, blob in blobs.items():
        try:
            row = publish(ledger, feed, blob)
        except StepError:
            row = read_row(ledger, feed)
        if row is not None:
            found[feed] = row.publication
    return found


def adopt(ledger: Ledger, feed: str, blob: Blob, *, who: str, reason: str) -> Row | None:
    """A person has looked at a foreign blob and wants ours there: take its tag, so that `publish` may replace it.

    What lay there is kept in the event log, with who replaced it and why.
    """
    row = read_row(ledger, feed)
    if row is None:
        return None
    there = blob.read()
    database = ledger.database
    etag = there.etag if there else None
    lay = there.content[:_KEPT].decode(errors="replace") if there else ""
    facts = _facts(row, by=who, reason=readable(reason), replaced=readable(lay))

    def work(cursor: Cursor) -> None:
        sql = f"UPDATE watermark SET publication = :state, etag = :etag WHERE {_same(database)}"
        moment = instant_text(row.last_updated_at)
        if cursor.run(sql, state=UNPUBLISHED, etag=etag, feed=feed, moment=moment):
            key = f"{ADOPTED}:{feed}:{moment}:{etag}"
            insert_events(database, cursor, [["default", key, ADOPTED, None, facts, *_about(row)]])

    database.write(work)
    return publish(ledger, feed, blob)


def publisher(blobs: Callable[[str], Blob | None]) -> Subscriber:
    """The subscriber that publishes; `blobs` gives the blob of a feed, None where it has none."""

    async def deliver(event: EventRow, io: Io) -> None:
        feed = str(event.payload["feed"])
        blob = blobs(feed)
        if blob is None:
            return
        if event.payload.get("replaces"):
            await io.ledger(lambda ledger: _replace(ledger, feed, blob, event))
        else:
            await io.ledger(lambda ledger: publish(ledger, feed, blob))

    return Subscriber(SUBSCRIBER, [ADVANCED, REQUESTED], with_io=deliver)


def _replace(ledger: Ledger, feed: str, blob: Blob, event: EventRow) -> Row | None:
    """What a person asked for, unless the watermark has moved since, or the event was delivered before."""
    row = read_row(ledger, feed)
    if row is None or instant_text(row.last_updated_at) != event.payload["last_updated_at"]:
        return row
    if row.published_at is not None and row.published_at > event.created_at:
        return row
    return adopt(ledger, feed, blob, who=str(event.payload["by"]), reason=str(event.payload["reason"]))


def _same(database: Database) -> str:
    """The row as it was read: another run may have moved it since."""
    return f"feed = :feed AND last_updated_at = {database.sql.instant('moment')}"


def _published(database: Database, cursor: Cursor, row: Row, etag: str) -> None:
    moment = instant_text(row.last_updated_at)
    given = {"feed": row.feed, "moment": moment, "etag": etag, "state": PUBLISHED, **database.bind_now()}
    touched = cursor.run(
        f"UPDATE watermark SET publication = :state, etag = :etag, published_at = {database.now_sql}"
        f" WHERE {_same(database)}",
        **given,
    )
    if not touched:
        # It moved on while we published: what lies there is ours, and is to be replaced again.
        cursor.run("UPDATE watermark SET etag = :etag WHERE feed = :feed", feed=row.feed, etag=etag)
        return
    payload = _facts(row)
    event = ["default", f"{PUBLISHED_EVENT}:{row.feed}:{moment}", PUBLISHED_EVENT, None, payload, *_about(row)]
    insert_events(database, cursor, [event])


def _unpublished(database: Database, cursor: Cursor, row: Row, state: str, reason: str) -> None:
    moment = instant_text(row.last_updated_at)
    sql = f"UPDATE watermark SET publication = :state WHERE {_same(database)} AND publication <> :published"
    cursor.run(sql, state=state, published=PUBLISHED, feed=row.feed, moment=moment)
    key = f"{ALERT}:{row.feed}:{moment}:{state}"
    insert_events(database, cursor, [["default", key, ALERT, "critical", _facts(row, reason=reason), *_about(row)]])


def _facts(row: Row, **more: str) -> str:
    about = {"feed": row.feed, "run_id": str(row.last_run_id), "last_updated_at": instant_text(row.last_updated_at)}
    return json.dumps({**about, **more})


def _about(row: Row) -> list[str | None]:
    return ["harvest_run", str(row.last_run_id)] if row.last_run_id else [None, None]

"""Publication of the watermark: the blob follows the ledger's row, with retries, and never over somebody else's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.connectors.watermark import FileBlob, ForeignBlob, Watermark
from penstock.ledger import delivery
from penstock.ledger.ledger import Ledger
from penstock.ledger.outbox import EventRow
from penstock.lifecycles.harvest import MACHINES, operations
from penstock.lifecycles.harvest.events import ADOPTED, ADVANCED, ALERT
from penstock.lifecycles.harvest.tables import DATA_TABLES
from penstock.lifecycles.harvest.watermark import (
    adopt,
    advanced,
    publish,
    publish_pending,
    publisher,
    read_row,
    requested,
)
from penstock.model.clock import Rng, VirtualClock, instant, instant_text
from penstock.model.errors import Transient, UsageError
from penstock.model.outcome import Event
from penstock.worker.executor import InlineExecutor
from penstock.worker.flow import Io
from penstock.worker.outbox import Deliveries, keep_subscriptions
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.consolidation import Site, a_run, run_id
from tests.support.harvest import FEED, START, done, small

HOUR = timedelta(hours=1)


class Broken(FileBlob):
    """A store that is away until it is mended; `between` happens while it is being asked."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.away = True
        self.between: Any = None

    def swap(self, content: bytes, etag: str | None) -> str:
        if self.away:
            raise Transient(f"{self.address}: no answer")
        found = super().swap(content, etag)
        if self.between is not None:
            self.between()
        return found


@pytest.fixture
def site(ledger_url) -> Iterator[Site]:
    made = Site(ledger_url)
    made.raw({"a": 1})
    made.birth(a_run())
    made.consolidate()
    yield made
    made.close()


@pytest.fixture
def blob(tmp_path) -> FileBlob:
    return FileBlob(tmp_path / "watermark.json")


def published(site: Site, blob: FileBlob) -> Any:
    """The row after a publication."""
    return publish(site.ledger, FEED, blob)


def there(blob: FileBlob) -> Any:
    return blob.read()


def again(site: Site, number: int) -> None:
    site.raw({"a": number}, number)
    site.birth(a_run(number))
    site.consolidate(number)


def test_the_blob_says_what_the_ledger_says(site, blob):
    row = published(site, blob)
    assert (row.publication, row.etag, row.published_at is not None) == ("published", there(blob).etag, True)
    run = site.run()
    assert json.loads(there(blob).content) == {
        "lastUpdatedAt": instant_text(run.window_to),
        "lastRunId": str(run_id(1)),
        "lastRunCompletedAt": instant_text(run.completed_at),
    }


def test_the_next_watermark_replaces_our_own(site, blob):
    publish(site.ledger, FEED, blob)
    again(site, 2)
    assert site.rows("SELECT publication FROM watermark") == [("unpublished",)]
    publish(site.ledger, FEED, blob)
    assert Watermark.decode(there(blob).content).last_run_id == str(run_id(2))


def test_a_publication_whose_note_was_lost_is_not_a_conflict(site, blob):
    publish(site.ledger, FEED, blob)
    site.sql("UPDATE watermark SET publication = 'unpublished', etag = NULL")
    assert published(site, blob).publication == "published"


def test_somebody_elses_blob_is_left_alone_until_a_person_has_looked(site, blob):
    foreign = Watermark(START, "theirs", START).encode()
    blob.swap(foreign, None)
    with pytest.raises(ForeignBlob, match="theirs"):
        publish(site.ledger, FEED, blob)
    assert site.rows("SELECT publication FROM watermark") == [("conflict",)]
    assert [severity for severity, _ in site.events(ALERT)] == ["critical"]
    with pytest.raises(ForeignBlob, match="nobody has decided"):
        publish(site.ledger, FEED, blob)
    assert there(blob).content == foreign
    adopted = adopt(site.ledger, FEED, blob, who="ada", reason="theirs was a test")
    assert adopted is not None
    ((_, told),) = site.events(ADOPTED)
    assert "ada" in str(told)
    assert "theirs was a test" in str(told)
    assert adopted.publication == "published"
    assert Watermark.decode(there(blob).content).last_run_id == str(run_id(1))


def test_a_store_that_is_away_is_an_alert_and_the_next_start_repairs_it(site, tmp_path):
    blob = Broken(tmp_path / "watermark.json")
    assert publish_pending(site.ledger, {FEED: blob, "other": blob}) == {FEED: "unpublished"}
    assert publish_pending(site.ledger, {FEED: blob}) == {FEED: "unpublished"}
    ((severity, payload),) = site.events(ALERT)
    assert severity == "critical"
    assert "no answer" in (payload if isinstance(payload, str) else json.dumps(payload))
    blob.away = False
    assert publish_pending(site.ledger, {FEED: blob}) == {FEED: "published"}
    assert len(site.events("harvest.watermark_published")) == 1


def test_a_watermark_that_moves_on_while_it_is_published_is_published_again(site, tmp_path):
    blob = Broken(tmp_path / "watermark.json")
    blob.away = False

    def meanwhile() -> None:
        blob.between = None
        again(site, 2)

    blob.between = meanwhile
    assert published(site, blob).publication == "unpublished"
    assert published(site, blob).publication == "published"
    assert Watermark.decode(there(blob).content).last_run_id == str(run_id(2))


def test_the_outbox_publishes_with_retries(ledger_url, tmp_path):
    clock = VirtualClock(START)
    blob = Broken(tmp_path / "watermark.json")
    subscriber = publisher({FEED: blob}.get)
    machines = [*MACHINES, delivery.machine]
    with Ledger.open(ledger_url, machines, clock=clock, rng=Rng(3), create=True, data_tables=DATA_TABLES) as ledger:
        keep_subscriptions(ledger, [subscriber])
        worker = Worker(
            ledger,
            [Deliveries([subscriber])],
            WorkerSettings(idle_seconds=0.01, place_seconds=None, lease_ms=400 * 86_400_000),
            executor=InlineExecutor(),
        )
        _advance(ledger)

        async def main() -> None:
            running = asyncio.create_task(worker.run())
            async with asyncio.timeout(60):
                await _until(lambda: _count(ledger, f"event_log WHERE event_type = '{ALERT}'") > 0)
                blob.away = False
                while not _count(ledger, "watermark WHERE publication = 'published'"):
                    clock.advance(1)
                    await asyncio.sleep(0.01)
                await _until(lambda: not _count(ledger, "event_delivery WHERE status = 'pending'"))
            worker.stop()
            await running

        asyncio.run(main())
        assert _count(ledger, "event_delivery WHERE status = 'delivered'") == 1
        assert Watermark.decode(there(blob).content).last_updated_at == START + HOUR


def delivered(site: Site, blob: FileBlob) -> None:
    """A worker until every event has been taken."""
    subscriber = publisher({FEED: blob}.get)
    quick = WorkerSettings(idle_seconds=0.01, place_seconds=None)

    async def main() -> None:
        worker = Worker(site.ledger, [Deliveries([subscriber])], quick, executor=InlineExecutor())
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(60):
            await _until(lambda: not _count(site.ledger, "event_delivery WHERE status = 'pending'"))
        worker.stop()
        await running

    asyncio.run(main())


def test_a_person_has_it_published_and_somebody_elses_replaced(site, tmp_path):
    blob = FileBlob(tmp_path / "watermark.json")
    known = small()
    with pytest.raises(UsageError, match=r"not published; set harvest\.feeds\.stones\.watermark"):
        done(site.ledger, known, operations.watermark_publish, feed=FEED)
    own = msgspec.structs.replace(known.feeds[FEED], watermark=blob.address)
    known = msgspec.structs.replace(known, feeds={FEED: own})
    keep_subscriptions(site.ledger, [publisher({FEED: blob}.get)])
    asked = done(site.ledger, known, operations.watermark_publish, feed=FEED)
    assert (asked.count, asked.says) == (
        1,
        f"publish at {blob.address} the watermark of {FEED}, {instant_text(site.run().window_to)}",
    )
    assert there(blob) is None, "a worker does it"
    delivered(site, blob)
    assert Watermark.decode(there(blob).content).last_run_id == str(run_id(1))
    with pytest.raises(UsageError, match="is published already"):
        done(site.ledger, known, operations.watermark_publish, feed=FEED)
    again(site, 2)
    foreign = Watermark(START, "theirs", START).encode()
    Path(blob.address).write_bytes(foreign)
    delivered(site, blob)
    assert site.rows("SELECT publication FROM watermark") == [("conflict",)]
    with pytest.raises(UsageError, match="publish with 'replace' to put ours there"):
        done(site.ledger, known, operations.watermark_publish, feed=FEED)
    assert there(blob).content == foreign
    done(site.ledger, known, operations.watermark_publish, feed=FEED, replace=True, reason="theirs was a test")
    delivered(site, blob)
    assert Watermark.decode(there(blob).content).last_run_id == str(run_id(2))
    ((_, told),) = site.events(ADOPTED)
    assert "ada" in str(told)
    assert "theirs was a test" in str(told)


def test_a_wish_to_replace_is_fulfilled_once(site, blob):
    """Delivered again, or after the watermark has moved, it replaces nothing that nobody has looked at."""
    publish(site.ledger, FEED, blob)
    row = read_row(site.ledger, FEED)
    assert row is not None
    subscriber = publisher({FEED: blob}.get)
    keep_subscriptions(site.ledger, [subscriber])
    event = requested(row, "ada", "because", START, replaces=True)
    site.clock.advance(1)
    site.ledger.write([], [event])
    site.clock.advance(1)
    delivered(site, blob)
    assert len(site.events(ADOPTED)) == 1
    foreign = Watermark(START, "theirs", START).encode()
    Path(blob.address).write_bytes(foreign)
    (taken,) = site.rows("SELECT created_at FROM event_log WHERE event_key = :key", key=event.key)
    late = EventRow("default", event.key, event.kind, None, dict(event.payload), None, None, None, instant(taken[0]))
    asyncio.run(subscriber.take(late, Asked(site.ledger)))
    assert there(blob).content == foreign
    site.sql("UPDATE watermark SET published_at = NULL, last_updated_at = :m", m=instant_text(START + 9 * HOUR))
    asyncio.run(subscriber.take(late, Asked(site.ledger)))
    assert there(blob).content == foreign


class Asked(Io):
    """The ledger, asked at once."""

    def __init__(self, ledger: Ledger) -> None:
        self._own = ledger

    async def ledger(self, work: Callable[[Ledger], Any]) -> Any:
        return work(self._own)


async def _until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110 - the ledger tells nobody
        await asyncio.sleep(0.01)


def _count(ledger: Ledger, of: str) -> int:
    return int(ledger.read(lambda cursor: cursor.rows(f"SELECT count(*) FROM {of}"))[0][0])


def _advance(ledger: Ledger) -> None:
    """What a completing run commits, as somebody at a SQL prompt would write it."""
    event: Event = advanced(FEED, str(run_id(1)), START + HOUR)
    moment = instant_text(START + HOUR)
    ledger.database.write(
        lambda cursor: cursor.run(
            f"INSERT INTO watermark (feed, last_updated_at, last_run_id, publication)"
            f" VALUES ('{FEED}', '{moment}', '{run_id(1)}', 'unpublished')"
        )
    )
    payload = json.dumps(dict(event.payload))
    ledger.database.write(
        lambda cursor: cursor.run(
            "INSERT INTO event_log (tenant_id, event_key, event_type, payload, created_at)"
            f" VALUES ('default', '{event.key}', '{ADVANCED}', '{payload}', '{instant_text(START)}')"
        )
    )

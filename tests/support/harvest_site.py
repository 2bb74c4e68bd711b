"""A ledger whose one feed is a simulator in another process, workers that may die on it, and what came of a run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from penstock.connectors.watermark import FileBlob, Watermark
from penstock.ledger.births import birth_products
from penstock.ledger.care.doctor import examine
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.harvest import lifecycle, operations
from penstock.lifecycles.harvest.events import PUBLISHED
from penstock.lifecycles.harvest.partition.machine import P
from penstock.lifecycles.harvest.queries import partitions_of
from penstock.lifecycles.harvest.run.machine import R, harvest_run
from penstock.lifecycles.harvest.tables import diamonds, pricing_rules, watermark
from penstock.lifecycles.harvest.watermark import read_row
from penstock.model.clock import instant, instant_text
from penstock.model.machine import Actor
from penstock.model.outcome import Write
from penstock.operations.carry import Done
from penstock.operations.declare import Operation
from penstock.worker.outbox import keep_subscriptions
from penstock.worker.schedule import keep_schedules
from tests.support.fleet import Member, until
from tests.support.harvest import done
from tests.support.harvest_worker import CONFIG, POINT, program, write_config
from tests.support.program import Program

FEED = "stones"
EARLIER = datetime(2026, 1, 1, 2, tzinfo=UTC)
"""Where the watermark was before."""
NOBODY = UUID(int=9, version=4)
GONE = 12
_RUN = (
    *("run_type", "status", "phase", "expected_workers", "completed_workers", "failed_workers", "verified_workers"),
    *("expected_records", "scan_calls", "expected_chunks", "completed_chunks", "failed_chunks"),
    *("records_consolidated", "records_rejected", "records_deleted", "unseen"),
    *("forced_by", "error", "attempts", "claimed_by"),
)
_PARTITION = (
    *("partition_id", "ordinal", "low", "high", "status", "next_offset", "completed", "expected_records"),
    *("found_records", "records", "pages", "duplicate_pages", "rescans", "ended", "coming", "steps_back", "doubt"),
    *("error", "claimed_by", "parked_at"),
)
_STONE = (
    *("supplier_stone_id", "offer_id", "shape", "carat", "color", "clarity", "cut", "lab", "certificate_number"),
    *("availability", "currency", "supplier_price", "price", "pricing_rule_id", "payload_hash"),
)


@dataclass(frozen=True)
class Come:
    """All that a run came to, apart from its ids and moments."""

    parts: Mapping[str, Any]

    def unlike(self, other: Come) -> list[str]:
        """The parts in which two differ."""
        return [name for name, part in self.parts.items() if other.parts[name] != part]


class Site:
    """The ledger is made, the watermark lies in the past, and a full run has been asked for."""

    def __init__(self, url: str, folder: Path, about: dict[str, Any], **feed: Any) -> None:
        self.url, self.folder = url, folder
        self.path = write_config(folder, url, about, **feed)
        made = program(self.path, url)
        self.app, self.settings = made.app, made.settings(lifecycle)
        self.ledger = Ledger.open(url, made.app.machines, create=True, data_tables=made.app.data.tables)
        keep_subscriptions(self.ledger, made.subscribers())
        keep_schedules(self.ledger, made.schedules(), "test")
        self.blob = FileBlob(folder / "watermark.json")
        self.programs: list[Program] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.programs:
            one.__exit__()
        self.ledger.close()

    def prepare(self) -> None:
        """Stones that are gone and were missed once already, a rule for prices, and a watermark that is published."""
        first = Watermark(EARLIER, str(NOBODY), EARLIER)
        mark = {
            "feed": FEED,
            "last_updated_at": EARLIER,
            "last_run_id": NOBODY,
            "last_run_completed_at": EARLIER,
            "publication": PUBLISHED,
            "published_at": EARLIER,
            "etag": self.blob.swap(first.encode(), None),
        }
        rule = {"id": 1, "priority": 5, "margin": "0.25", "rounding": "1"}
        writes = [
            Write(watermark, [mark]),
            Write(pricing_rules, [rule]),
            Write(diamonds, list(map(_gone, range(GONE)))),
        ]
        birth_products(self.ledger, [], actor=Actor.SCHEDULER, who="test", writes=writes)

    def ask(self, *, full: bool = True) -> None:
        self.do(operations.start, feed=FEED, full=full, who="test", reason="a test")

    def do(self, operation: Operation[Any], **asked: Any) -> Done:
        return done(self.ledger, self.settings, operation, **asked)

    def start(self, point: str = "") -> Member:
        """A worker process; at the point it dies."""
        environment: dict[str, str] = {CONFIG: str(self.path), POINT: point}
        folder = self.folder / f"workers-{len(self.programs)}"
        made = Program("tests.support.harvest_worker", self.url, folder, **environment)
        self.programs.append(made)
        return made.start()

    def stop(self) -> None:
        for one in self.programs:
            one.stop()

    def rows(self, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
        return self.ledger.read(lambda cursor: [tuple(row) for row in cursor.rows(sql, **parameters)])

    def run(self) -> Any:
        """The last run; None before there is one."""
        ids = [row[0] for row in self.rows("SELECT unit_id FROM run_metadata ORDER BY started_at DESC")]
        return self.ledger.get_many(harvest_run, ids[:1])[0] if ids else None

    def partitions(self) -> list[Any]:
        run = self.run()
        return [] if run is None else partitions_of(self.ledger, run.run_id)

    def published(self) -> bool:
        """Whether the run is completed and its watermark published; on the way nothing may be promised too early."""
        self.check_watermark()
        run, row = self.run(), read_row(self.ledger, FEED)
        if run is None or row is None or run.status is not R.COMPLETED:
            assert run is None or run.status is not R.FAILED, run
            return False
        waiting = self.rows("SELECT 1 FROM event_delivery WHERE status <> 'delivered'")
        return row.publication == PUBLISHED and row.last_run_id == run.run_id and not waiting

    def check_watermark(self) -> None:
        """The watermark is where it was, or where a run that is whole has moved it; and the blob never ahead of it."""
        there = self.blob.read()
        said = EARLIER if there is None else Watermark.decode(there.content).last_updated_at
        row = read_row(self.ledger, FEED)
        if row is None:
            assert there is None
            return
        assert row.last_updated_at >= EARLIER
        assert said <= row.last_updated_at
        if row.last_updated_at > EARLIER:
            run = next(r for r in self.runs() if r.run_id == row.last_run_id)
            assert (run.status, run.window_to, run.watermark_after) == (R.COMPLETED, *[row.last_updated_at] * 2)
            assert all(p.status is P.COMPLETED and p.verified_at for p in partitions_of(self.ledger, run.run_id))
            open_rows = "SELECT count(*) FROM raw_diamonds_nivoda WHERE NOT consolidated"
            assert self.rows(open_rows) == [(0,)]

    def runs(self) -> list[Any]:
        ids = [row[0] for row in self.rows("SELECT unit_id FROM run_metadata")]
        return self.ledger.get_many(harvest_run, ids) if ids else []

    def finish(self, member: Member, patience: float = 90.0) -> None:
        """Wait until the run is completed and published."""

        def over() -> bool:
            assert member.alive, member.text()[-3_000:]
            return self.published()

        until(over, "the run is completed and published", patience)

    def come(self) -> Come:
        """What the only run came to."""
        (run,) = self.runs()
        row = read_row(self.ledger, FEED)
        assert row is not None
        found = self.blob.read()
        assert found is not None
        assert found.content == row.blob().encode()
        assert (row.last_run_id, row.last_updated_at, row.etag) == (run.run_id, run.window_to, found.etag)
        assert (row.last_run_completed_at, run.watermark_before) == (run.completed_at, EARLIER)
        return Come(
            {
                "run": _fields(run, _RUN),
                "partitions": [_fields(p, _PARTITION) for p in partitions_of(self.ledger, run.run_id)],
                "workers": self._workers(),
                "chunks": sorted(self.rows("SELECT number, first, last, status, records, rejected FROM harvest_chunk")),
                "raw": self._raw(),
                "diamonds": self._diamonds(run.run_id),
                "rejected": sorted(self.rows("SELECT identity, reason, resolved_at FROM harvest_rejected")),
                "publication": row.publication,
                "events": Counter(self.rows("SELECT event_type, severity FROM event_log")),
                "edges": self._edges(str(run.run_id)),
                "findings": [f for f in examine(self.ledger.database, _machines(self.app)) if f.severity == "error"],
            }
        )

    def _workers(self) -> list[tuple[Any, ...]]:
        columns = "partition_id, status, records_processed, error_message, work_item_payload"
        rows = self.rows(f"SELECT {columns} FROM worker_runs ORDER BY partition_id")
        return [(*row[:-1], _document(row[-1])) for row in rows]

    def _raw(self) -> list[tuple[str, ...]]:
        done = "CASE WHEN consolidated THEN 'consolidated' END"
        columns = f"supplier_stone_id, partition_id, position, offer_id, payload_hash, {done}"
        sql = f"SELECT {columns}, CAST(payload AS text), source_updated_at FROM raw_diamonds_nivoda"
        return sorted((*map(str, row[:-1]), _moment(row[-1])) for row in self.rows(sql))

    def _diamonds(self, run_id: UUID) -> list[tuple[str, ...]]:
        sql = f"SELECT {', '.join(_STONE)}, source_updated_at, last_seen_run_id, deleted_at FROM diamonds"
        return sorted(
            (*map(str, row[:-3]), _moment(row[-3]), str(str(row[-2]) == str(run_id)), str(row[-1] is not None))
            for row in self.rows(sql)
        )

    def _edges(self, run_id: str) -> dict[str, list[str]]:
        """The states that every unit of the run went through: none twice, none left out."""
        sql = "SELECT machine, unit_id, from_status, to_status, data FROM transition_log ORDER BY seq"
        found: dict[str, list[str]] = {}
        for machine, unit_id, source, target, _ in self.rows(sql):
            if machine.startswith("harvest_") and machine != "harvest_worker" and source != target:
                found.setdefault(f"{machine}:{unit_id.replace(run_id, 'RUN')}", []).append(target)
        return found


def _machines(app: Any) -> dict[str, Any]:
    return {machine.name: machine for machine in app.machines}


def _gone(number: int) -> dict[str, Any]:
    moment = EARLIER - timedelta(days=1)
    return {
        "feed": FEED,
        "supplier_stone_id": f"gone-{number}",
        "offer_id": f"offer-{number}",
        "currency": "USD",
        "supplier_price": "1.00",
        "price": "2.00",
        "payload_hash": "h",
        "source_updated_at": moment,
        "first_seen_run_id": NOBODY,
        "last_seen_run_id": NOBODY,
        "missed_by_run_id": NOBODY,
        "updated_at": moment,
    }


def _fields(unit: Any, names: tuple[str, ...]) -> dict[str, str]:
    return {name: str(getattr(unit, name)) for name in names}


def _moment(value: Any) -> str:
    return "-" if value is None else instant_text(instant(value))


def _document(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value

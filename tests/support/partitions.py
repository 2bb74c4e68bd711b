"""A ledger and a raw sink with partitions, on a clock that tests own, and the short words that tests speak of them."""

from __future__ import annotations

import asyncio
import time
import tomllib
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.app.app import App
from penstock.app.program import Program
from penstock.lifecycles.partitions import lifecycle
from penstock.lifecycles.partitions.flow import Extractions, Extractor, Landing
from penstock.lifecycles.partitions.judgement import Validators
from penstock.lifecycles.partitions.machine import MACHINES, Extraction, PartitionState, extraction, partition
from penstock.lifecycles.partitions.operations import CadenceWanted, OffsetRow, cadence
from penstock.lifecycles.partitions.past import PAST
from penstock.lifecycles.partitions.settings import PartitionSettings, Source, SourceQuery
from penstock.lifecycles.partitions.tables import DATA_TABLES, VIEWS
from penstock.lifecycles.partitions.validate import Rules
from penstock.lifecycles.partitions.validations import Validations
from penstock.model.clock import Rng, SystemClock, VirtualClock, instant
from penstock.model.simulation import simulate
from penstock.operations.carry import Done, Planned, carry_out, make_plan
from penstock.operations.declare import Ask, Operation, Page, Reading
from penstock.operations.fields import Parameters
from penstock.operations.reader import Reader
from penstock.raw.paths import PartitionKey, run_id_at
from penstock.raw.reader import PartitionReader
from penstock.raw.sink import RawSink
from penstock.settings.file import Configuration, load
from penstock.settings.kernel import KernelSettings, RawSettings
from penstock.settings.typed import Place
from penstock.worker import schedule_unit
from penstock.worker.executor import InlineExecutor
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.ad_source import CUSTOMERS, good_rows
from tests.support.copies import opened

ALL_MACHINES = (*MACHINES, schedule_unit.machine)
START = datetime(2026, 11, 3, 6, tzinfo=UTC)
DAY = date(2026, 11, 1)
KEY = PartitionKey("google_ads", CUSTOMERS[0], "campaign_daily", DAY)
QUERY = SourceQuery(
    schema_version="1",
    fields={"campaign.id": "whole", "metrics.clicks": "whole", "segments.date": "date", "note": "text?"},
    unique=("campaign.id",),
    date_field="segments.date",
)


def rows(count: int = 3, note: str = "", key: PartitionKey = KEY) -> list[dict[str, Any]]:
    return good_rows(key.logical_date.isoformat(), count, note)


def read_settings(text: str) -> PartitionSettings:
    """`[partitions]` of a configuration. Raises ConfigError."""
    found = load(None, {"partitions": PartitionSettings}, raw=tomllib.loads(text)).sections["partitions"]
    assert isinstance(found, PartitionSettings)
    return found


class Said:
    """An extractor that gives what it was told to, one answer after the other; the last stays."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers) or [rows()]
        self.asked: list[tuple[PartitionKey, str]] = []

    async def extract(self, key: PartitionKey, run_id: str, sink: Landing) -> None:
        self.asked.append((key, run_id))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            answer = answer(key)
        if isinstance(answer, BaseException):
            raise answer
        await sink.write(answer)

    async def close(self) -> None:
        """Nothing to close."""


class Partitions:
    """One ledger, one sink, one source with two customers."""

    def __init__(
        self, url: str, folder: Path, *, real: bool = False, rules: Rules | None = None, **source: Any
    ) -> None:
        self.time = VirtualClock(START)
        clock = SystemClock() if real else self.time
        self.ledger = opened(url, ALL_MACHINES, clock=clock, rng=Rng(3), data_tables=DATA_TABLES, views=VIEWS)
        self.url = url
        self.sink = RawSink(folder / "raw")
        zones = source.pop("time_zones", dict.fromkeys(CUSTOMERS, "UTC"))
        chosen: dict[str, Any] = {"queries": {"campaign_daily": QUERY}, "days": 2, **source}
        own = Source(customers=tuple(zones), time_zones=zones, **chosen)
        self.settings = PartitionSettings(sources={"google_ads": own})
        self.validators = Validators(self.sink, self.settings, rules)
        self.reader = PartitionReader(self.ledger, self.sink)
        kernel = KernelSettings(raw=RawSettings(url=Place(str(folder / "raw"))))
        self.program = Program(App(lifecycle), Configuration(kernel, {"partitions": self.settings}), clock)

    def close(self) -> None:
        self.ledger.close()

    def land(self, records: Any = None, key: PartitionKey = KEY, version: str = "1") -> str:
        """A finalised run, a second after the last one; its id."""
        self.time.advance(1)
        run_id = run_id_at(self.time.now())
        found = rows(key=key) if records is None else records
        self.sink.write_partition(key, run_id, found, schema_version=version, created_at=self.time.now())
        return run_id

    def ask(self, reason: str = "a test") -> Ask[PartitionSettings]:
        reader = Reader(self.ledger.database, ALL_MACHINES, PAST)
        return self.program.ask(lifecycle, reader, self.ledger.clock.now(), who="anna", reason=reason)

    def read(self, reading: Reading[Any], parameters: Parameters) -> Any:
        return reading(self.ask(), parameters)

    def plan(self, operation: Operation[Any], parameters: Parameters, reason: str = "a test") -> Planned:
        return make_plan(operation, self.ask(reason), parameters, owner="partitions", version="v1")

    def do(self, operation: Operation[Any], parameters: Parameters, reason: str = "a test") -> Done:
        """Plan an operation, and carry it out."""
        return carry_out(self.ledger, self.ask(reason), self.plan(operation, parameters, reason))

    def cadence(self, source: str | None = None) -> list[OffsetRow]:
        found: Page[OffsetRow] = self.read(cadence, CadenceWanted(source=source))
        return list(found.rows)

    def validations(self) -> Validations:
        return Validations(self.validators)

    def validate(self, run_id: str, key: PartitionKey = KEY) -> Any:
        return self.validators.validate(self.ledger, key, run_id, who="test")

    def judge(self, records: Any = None, key: PartitionKey = KEY, version: str = "1") -> str:
        """Land a run and have it judged; its id."""
        run_id = self.land(records, key, version)
        self.validate(run_id, key)
        return run_id

    def state(self, key: PartitionKey = KEY) -> PartitionState | None:
        found = self.ledger.get_many(partition, [str(key)])
        return found[0] if found else None

    def extraction(self, key: PartitionKey = KEY) -> Extraction:
        (found,) = self.ledger.get_many(extraction, [str(key)])
        assert isinstance(found, Extraction)
        return found

    def flow(self, extractor: Extractor) -> Extractions:
        return Extractions({"google_ads": extractor}, self.validators)

    def work(self, *flows: Any, seconds: float = 60, settings: WorkerSettings | None = None) -> None:
        """Let a worker run for so much virtual time."""

        async def main() -> None:
            chosen = settings or WorkerSettings(place_seconds=None)
            worker = Worker(self.ledger, list(flows), chosen, executor=InlineExecutor(), rng=Rng(5))
            running = asyncio.create_task(worker.run())
            done, _ = await asyncio.wait([running], timeout=seconds)
            worker.stop()
            await running
            assert not done, "the worker stopped by itself"

        simulate(self.time, main)

    def live(self, *flows: Any, days: float) -> None:
        """Let so many days pass, from one due moment to the next."""
        end = self.time.now() + timedelta(days=days)
        sql = " UNION ALL ".join(f"SELECT min(due_at) FROM {table}" for table in ("extraction", "schedule"))
        while True:
            self.work(*flows, seconds=5)
            coming = [instant(row[0]) for row in self.rows(sql) if row[0] is not None]
            moment = min([*coming, end])
            self.time.advance(max(0.0, (min(moment, end) - self.time.now()).total_seconds()))
            if moment >= end:
                return

    def work_until(self, condition: Callable[[], Any], *flows: Any, patience: float = 60) -> None:
        """Let a worker run in real time until a condition holds."""

        async def main() -> None:
            worker = Worker(self.ledger, list(flows), WorkerSettings(place_seconds=None))
            running = asyncio.create_task(worker.run())
            deadline = time.monotonic() + patience
            while not condition():
                assert time.monotonic() < deadline, "waited in vain"
                await asyncio.wait([running], timeout=0.05)
                assert not running.done(), "the worker stopped by itself"
            worker.stop()
            await running

        asyncio.run(main())

    def rows(self, sql: str, **given: Any) -> list[tuple[Any, ...]]:
        return self.ledger.read(lambda c: [tuple(r) for r in c.rows(sql, **given)])

    def history(self, machine: str = "partition", key: PartitionKey | str = KEY) -> list[tuple[Any, ...]]:
        """(from, to, who, reason) of every logged change."""
        found = self.rows(
            "SELECT from_status, to_status, actor, reason FROM transition_log WHERE machine = :m AND unit_id = :u"
            " ORDER BY seq",
            m=machine,
            u=str(key),
        )
        return [(a, b, str(c).partition(":")[0], d) for a, b, c, d in found]

    def attempts(self, key: PartitionKey = KEY) -> list[tuple[Any, ...]]:
        sql = "SELECT run_id, verdict, error FROM partition_attempt WHERE customer_id = :c ORDER BY at, state_version"
        return self.rows(sql, c=key.customer_id)

    def alerts(self) -> list[str]:
        return [
            r[0] for r in self.rows("SELECT event_type FROM event_log WHERE severity IS NOT NULL ORDER BY created_at")
        ]

"""The flow of `extraction`: ask the source, land what it gives, have it judged.

It is the same for every source. What differs is the `Extractor`, which speaks to the source and writes what it is given
to a `Landing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Protocol, Self

from penstock.ledger.gates.budget import Pass
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.ladder import offset_name
from penstock.lifecycles.partitions.decide import Landed, decide, gate, next_attention
from penstock.lifecycles.partitions.judgement import Validators
from penstock.lifecycles.partitions.machine import Extraction, X, extraction, gate_of, key_of, partition
from penstock.lifecycles.partitions.past import landed_reason
from penstock.lifecycles.partitions.settings import PartitionSettings
from penstock.model.clock import MILLISECOND, Rng, parse_instant
from penstock.model.errors import MustWait, Rejected, StepError, UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Outcome
from penstock.model.unit import replace
from penstock.raw.paths import PartitionKey, run_id_at
from penstock.raw.sink import RawWriter, Record
from penstock.raw.store import AlreadyFinalised, RawUnavailable
from penstock.worker import failure
from penstock.worker.flow import Flow, Gate, Io

STORE_AWAY = timedelta(minutes=1)
"""How long what needs the raw sink waits while it is away."""


class Landing:
    """Where an extractor writes: `await sink.write(rows)`, any number of times. It is finalised when it returns."""

    def __init__(self, io: Io, run: RawWriter) -> None:
        self._io = io
        self._run = run

    @property
    def facts(self) -> dict[str, Any]:
        """What the source told of the data, for `metadata.json`; it may be added to."""
        return self._run.facts

    def gate(self, gate_id: str) -> AbstractAsyncContextManager[Pass]:
        """The gate of a call that counts beyond the account's own: `async with sink.gate(shared): …`."""
        return self._io.gate(gate_id)

    async def write(self, records: Iterable[Record]) -> None:
        """Append records, off the event loop. Raises Rejected for one that JSON cannot keep."""
        await self._io.run(self._write, records)

    def _write(self, records: Iterable[Record]) -> None:
        try:
            for record in records:
                self._run.write(record)
        except UsageError as error:
            raise Rejected(f"record {self._run.count + 1:,}: {error}") from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if kind is not None:
            self._run.abandon()
        else:
            await self._io.run(self._run.finalise)


class Extractor(Protocol):
    """Speaks to one source. It raises a StepError when the source fails, and never writes to the ledger."""

    async def extract(self, key: PartitionKey, run_id: str, sink: Landing) -> None:
        """Write every record of the partition to the sink."""

    async def close(self) -> None:
        """Close its connections."""


class Extractions(Flow[Extraction, PartitionSettings, Landed]):
    """Extracts what is wanted and judges what has landed."""

    machine = extraction
    decide = staticmethod(decide)
    deadline = timedelta(hours=1)
    charges_outages = False

    def __init__(self, extractors: Mapping[str, Extractor], validators: Validators) -> None:
        super().__init__(validators.settings)
        self.validators = validators
        self._extractors = extractors
        self._sink = validators.sink

    def gate(self, unit: Extraction) -> Gate:
        return Gate(gate(unit, self.settings))

    async def look(self, unit: Extraction, io: Io) -> Landed:
        found = await self._stored(io, self._sink.find, key_of(unit), str(unit.run_id))
        return Landed(None) if found is None else Landed(found.record_count, found.created_at)

    async def act(self, what: str, unit: Extraction, seen: Landed | None, io: Io) -> Outcome[Extraction]:
        if what == "judge":
            return await self._judge(unit, io)
        if what == "refresh":
            return self._refresh(unit, io)
        if what == "begin":
            run_id = await io.ledger(lambda ledger: self._fresh_run(ledger, unit, io))
            after = replace(unit, run_id=run_id, serving_offset=self._due_offset(unit, io.now()))
            return Outcome(unit, after, f"run {run_id} begins", keep_claim=True)
        if what == "record" and seen is not None:
            return self._landed(unit, seen.record_count or 0, seen.fetched_at, io)
        if unit.backfill:
            # Claimed behind the backfill's own gate; the account's budget and its pauses count all the same.
            async with io.gate(gate_of(key_of(unit))):
                return await self._extract(unit, io)
        return await self._extract(unit, io)

    def failed(self, unit: Extraction, error: StepError, now: datetime, rng: Rng) -> Outcome[Extraction]:
        """As the machine declares it; but one that is given up has a next offset."""
        outcome = failure.failed(self.machine, unit, error, now, rng)
        if outcome.after.status is X.FAILED:
            after = replace(outcome.after, due_at=next_attention(outcome.after, now, self.settings))
            return replace(outcome, after=after)
        return outcome

    def _refresh(self, unit: Extraction, io: Io) -> Outcome[Extraction]:
        """The schedule's own move. It is daily work, whoever wanted the partition first."""
        now = io.now()
        after = replace(unit, status=X.WANTED, run_id=None, verdict=None, attempts=0, backfill=False, due_at=now)
        reason = f"{offset_name(self._due_offset(unit, now) or 0)} is due"
        return Outcome(unit, after, reason, actor=Actor.SCHEDULER)

    def _due_offset(self, unit: Extraction, moment: datetime) -> int | None:
        """The offset that a run begun at that moment serves, in seconds; None where nothing is configured."""
        ladder = self.settings.ladder(key_of(unit))
        return None if ladder is None else int((ladder.due(moment) or timedelta()).total_seconds())

    def _fresh_run(self, ledger: Ledger, unit: Extraction, io: Io) -> str:
        """An id after that of the authoritative run, whatever the clocks of two machines say."""
        found = ledger.get_many(partition, [unit.unit_id])
        run_id = run_id_at(io.now())
        if found and found[0].current_run_id is not None and found[0].current_run_id >= run_id:
            return run_id_at(parse_instant(found[0].current_run_id) + MILLISECOND)
        return run_id

    async def _extract(self, unit: Extraction, io: Io) -> Outcome[Extraction]:
        key, run_id = key_of(unit), str(unit.run_id)
        try:
            query = self.settings.query(key.source, key.query_name)
            self.settings.customer(key.source, key.customer_id)
            extractor = self._extractors[key.source]
        except (UsageError, KeyError) as error:
            reason = error if isinstance(error, UsageError) else f"this program has no extractor for {key.source}"
            raise Rejected(str(reason)) from error
        begun = io.now()
        try:
            run = await self._stored(
                io, lambda: self._sink.writer(key, run_id, schema_version=query.schema_version, created_at=begun)
            )
            async with Landing(io, run) as landing:
                await extractor.extract(key, run_id, landing)
        except AlreadyFinalised:
            found = await self.look(unit, io)
            return self._landed(unit, found.record_count or 0, found.fetched_at, io)
        except RawUnavailable as error:
            raise MustWait(str(error)) from error
        return self._landed(unit, run.count, begun, io)

    async def _judge(self, unit: Extraction, io: Io) -> Outcome[Extraction]:
        key, run_id = key_of(unit), str(unit.run_id)
        try:
            verdict = await io.run(self.validators.inspect, key, run_id)
        except (RawUnavailable, UsageError) as error:
            # Nothing can be said of the run: it waits for its store, or for its configuration.
            return Outcome(unit, replace(unit, due_at=io.now() + STORE_AWAY), str(error), keep_crashes=True)
        now, serving = io.now(), unit.serving_offset
        made = await io.ledger(
            lambda ledger: self.validators.judgement(ledger, key, verdict, now, by="worker", serving_offset=serving)
        )
        after = replace(unit, status=X.DONE, verdict=made.judged.verdict)
        if verdict.good:
            after = replace(after, serving_offset=None, served_at=verdict.fetched_at)
        after = replace(after, due_at=next_attention(after, now, self.settings))
        return Outcome(
            unit,
            after,
            made.judged.reason,
            writes=made.writes,
            others=made.others,
            events=made.events,
            actor=Actor.VALIDATOR,
        )

    def _landed(self, unit: Extraction, records: int, begun: datetime | None, io: Io) -> Outcome[Extraction]:
        now = io.now()
        # A run that waited long for its source serves the offset that had come when it was asked.
        serving = self._due_offset(unit, begun or now)
        after = replace(unit, status=X.LANDED, record_count=records, serving_offset=serving, attempts=0, due_at=now)
        return Outcome(unit, after, landed_reason(unit.run_id, records))

    async def _stored(self, io: Io, work: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await io.run(work, *arguments)
        except RawUnavailable as error:
            raise MustWait(str(error)) from error

    async def stop(self) -> None:
        for extractor in self._extractors.values():
            await extractor.close()

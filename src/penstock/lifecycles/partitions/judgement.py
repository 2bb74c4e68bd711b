"""How a verdict is written: the partition's move, the record of the attempt and the alert, in one transaction."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.ledger.ledger import Ledger
from penstock.ledger.schema.columns import readable
from penstock.lifecycles.partitions.decide import Judged, judge
from penstock.lifecycles.partitions.machine import P, partition
from penstock.lifecycles.partitions.settings import Settings
from penstock.lifecycles.partitions.tables import partition_attempt
from penstock.lifecycles.partitions.validate import Rules, Verdict, inspect
from penstock.model.errors import LedgerRefused, UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Birth, Event, Move, Write
from penstock.raw.paths import PARTS, PartitionKey
from penstock.raw.sink import RawSink
from penstock.raw.store import RawCorrupt, RawMissing

_TRIES = 50


@dataclass(frozen=True, slots=True)
class Judgement:
    """Everything that a verdict writes."""

    judged: Judged
    others: Sequence[Birth | Move]
    writes: Sequence[Write]
    events: Sequence[Event]


class Validators:
    """Inspect runs of a sink by the settings in force, and write what comes of it. Nobody else writes state."""

    def __init__(self, sink: RawSink, settings: Settings, rules: Rules | None = None) -> None:
        self.sink = sink
        self.settings = settings
        self._rules = rules or Rules()

    def inspect(self, key: PartitionKey, run_id: str) -> Verdict:
        """Judge a run. Raises UsageError for a source or a query that is not configured."""
        source = self.settings.source(key.source)
        schema = source.queries[source.query(key.query_name)]
        try:
            known = key.customer_id in source.time_zones
            ends = source.ends(key.customer_id, key.logical_date) if known else None
            return inspect(self.sink.open_partition(key, run_id), schema, self._rules, source.customers, ends)
        except (RawCorrupt, RawMissing) as error:
            return Verdict(run_id, schema.version, 0, (readable(str(error)),))

    def judgement(
        self,
        ledger: Ledger,
        key: PartitionKey,
        verdict: Verdict,
        now: datetime,
        *,
        by: str,
        pointed_by: str | None = None,
        serving_offset: int | None = None,
    ) -> Judgement:
        """What a verdict would write, on the state as it is now. `serving_offset` is what the run was extracted for."""
        found = ledger.get_many(partition, [str(key)])
        judged = judge(
            key,
            found[0] if found else None,
            replace_error(verdict),
            now,
            keep_last_good=self.settings.source(key.source).keep_last_good,
            evaluated=_evaluated(ledger, key, verdict.run_id),
            pointed_by=pointed_by,
        )
        attempt = _attempt(key, verdict, judged, now, by) | {"serving_offset": serving_offset}
        if judged.verdict == "success":
            attempt["changed"] = _differs(ledger, key, verdict)
        writes = [Write(partition_attempt, [attempt])]
        return Judgement(judged, [_change(judged, pointed_by)], writes, _alerts(key, judged))

    def validate(
        self, ledger: Ledger, key: PartitionKey, run_id: str, *, who: str, pointed_by: str | None = None
    ) -> Judged:
        """Inspect a run and write the verdict, from outside any worker. Raises LedgerRefused if others are faster."""
        verdict = self.inspect(key, run_id)
        if pointed_by is not None and not verdict.good:
            msg = f"{key} cannot point at run {run_id}: {verdict.error}"
            raise UsageError(msg)
        for _ in range(_TRIES):
            made = self.judgement(ledger, key, verdict, ledger.clock.now(), by=who, pointed_by=pointed_by)
            try:
                ledger.together(made.others, who=who, writes=made.writes, events=made.events)
            except LedgerRefused:
                if not _changed(ledger, key, made.judged):
                    raise
                continue  # somebody else has judged it since it was read
            return made.judged
        msg = f"{key} is judged by others faster than it can be read; try again"
        raise LedgerRefused(msg)


def replace_error(verdict: Verdict) -> Verdict:
    """The same verdict, its errors made such that any database keeps them."""
    return dataclasses.replace(verdict, errors=tuple(map(readable, verdict.errors)))


def _changed(ledger: Ledger, key: PartitionKey, judged: Judged) -> bool:
    """Whether the state is another than the one that was judged."""
    found = ledger.get_many(partition, [str(key)])
    return (found[0].version if found else None) != (judged.before.version if judged.before else None)


def _change(judged: Judged, pointed_by: str | None) -> Birth | Move:
    if judged.before is None:
        return Birth(judged.after, judged.reason, actor=Actor.VALIDATOR)
    # Between two good runs it is the operator who chooses; anywhere else the validator has the word.
    chosen = pointed_by is not None and judged.before.status is judged.after.status is P.SUCCESS
    return Move(judged.before, judged.after, judged.reason, Actor.OPERATOR if chosen else Actor.VALIDATOR)


def _attempt(key: PartitionKey, verdict: Verdict, judged: Judged, now: datetime, by: str) -> dict[str, Any]:
    return {
        **{name: getattr(key, name) for name in PARTS},
        "run_id": verdict.run_id,
        "state_version": judged.before.version if judged.before else 0,
        "at": now,
        "verdict": judged.verdict,
        "error": readable(verdict.error) if verdict.error else None,
        "record_count": verdict.record_count,
        "schema_version": verdict.schema_version,
        "judged_by": by,
        "digest": verdict.digest,
        "changed": None,
    }


def _alerts(key: PartitionKey, judged: Judged) -> list[Event]:
    if judged.verdict not in ("failed", "kept"):
        return []
    kind = f"partition.{judged.verdict}"
    facts = {"partition": str(key), "reason": judged.reason, "attempt": judged.after.attempt_count}
    return [Event(f"{kind}:{key}:{judged.after.attempt_count}:{judged.after.version}", kind, facts, "warning")]


def _evaluated(ledger: Ledger, key: PartitionKey, run_id: str) -> bool:
    """Whether the run was judged before, and so is counted."""
    return bool(_attempts(ledger, key, "SELECT 1", "AND run_id = :run_id LIMIT 1", run_id))


def _differs(ledger: Ledger, key: PartitionKey, verdict: Verdict) -> bool | None:
    """Whether the rows are others than those of the good run before; None where there is none."""
    which = "AND run_id <> :run_id AND verdict = 'success' ORDER BY at DESC, run_id DESC LIMIT 1"
    before = _attempts(ledger, key, "SELECT digest", which, verdict.run_id)
    return bool(before[0][0] != verdict.digest) if before else None


def _attempts(ledger: Ledger, key: PartitionKey, select: str, which: str, run_id: str) -> Sequence[Sequence[Any]]:
    day = "CAST(:logical_date AS date)" if ledger.database.dialect == "postgresql" else ":logical_date"
    sql = (
        f"{select} FROM partition_attempt WHERE source = :source AND customer_id = :customer_id"
        f" AND query_name = :query_name AND logical_date = {day} {which}"
    )
    given = {name: str(getattr(key, name)) for name in PARTS}
    return ledger.read(lambda cursor: cursor.rows(sql, run_id=run_id, **given))

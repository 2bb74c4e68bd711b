"""How a verdict is written: the partition's move, the record of the attempt and the alert, in one transaction."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.ledger.schema.columns import readable
from penstock.ledger.store.database import Database
from penstock.lifecycles.partitions.decide import Judged, judge
from penstock.lifecycles.partitions.machine import partition
from penstock.lifecycles.partitions.settings import PartitionSettings
from penstock.lifecycles.partitions.validate import Rules, Verdict, inspect
from penstock.lifecycles.refreshes import differ
from penstock.model.clock import instant
from penstock.model.errors import LedgerRefused
from penstock.model.machine import Actor
from penstock.model.outcome import Birth, Event, Move, Write
from penstock.raw.paths import ATTEMPT_TABLE, PARTS, PartitionKey
from penstock.raw.sink import RawSink
from penstock.raw.store import RawCorrupt, RawMissing

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger

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

    def __init__(self, sink: RawSink, settings: PartitionSettings, rules: Rules | None = None) -> None:
        self.sink = sink
        self.settings = settings
        self._rules = rules or Rules()

    def inspect(self, key: PartitionKey, run_id: str) -> Verdict:
        """Judge a run. Raises UsageError for a source or a query that is not configured."""
        query, source = self.settings.query(key.source, key.query_name), self.settings.source(key.source)
        try:
            known = key.customer_id in source.zones
            ends = source.ends(key.customer_id, key.logical_date) if known else None
            return inspect(self.sink.open_partition(key, run_id), query, self._rules, source.zones, ends)
        except (RawCorrupt, RawMissing) as error:
            return Verdict(run_id, query.schema_version, 0, (readable(str(error)),))

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
        from penstock.lifecycles.partitions.tables import partition_attempt

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
        return Judgement(judged, [_change(judged)], writes, _alerts(key, judged))

    def validate(self, ledger: Ledger, key: PartitionKey, run_id: str, *, who: str) -> Judged:
        """Inspect a run and write the verdict, from outside any worker. Raises LedgerRefused if others are faster."""
        verdict = self.inspect(key, run_id)
        for _ in range(_TRIES):
            made = self.judgement(ledger, key, verdict, ledger.clock.now(), by=who)
            try:
                ledger.together(made.others, who=who, writes=made.writes, events=made.events)
            except LedgerRefused:
                if not _changed(ledger, key, made.judged):
                    raise
                continue  # somebody else has judged it since it was read
            return made.judged
        msg = f"{key} changes faster than it can be judged; try again"
        raise LedgerRefused(msg)


def replace_error(verdict: Verdict) -> Verdict:
    """The same verdict, its errors made such that any database keeps them."""
    return dataclasses.replace(verdict, errors=tuple(map(readable, verdict.errors)))


def _changed(ledger: Ledger, key: PartitionKey, judged: Judged) -> bool:
    """Whether the state is another than the one that was judged."""
    found = ledger.get_many(partition, [str(key)])
    return (found[0].version if found else None) != (judged.before.version if judged.before else None)


def _change(judged: Judged) -> Birth | Move:
    if judged.before is None:
        return Birth(judged.after, judged.reason, actor=Actor.VALIDATOR)
    return Move(judged.before, judged.after, judged.reason, Actor.VALIDATOR)


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
    return bool(_attempts(ledger.database, key, "SELECT 1", "AND run_id = :run_id LIMIT 1", run_id=run_id))


def _differs(ledger: Ledger, key: PartitionKey, verdict: Verdict) -> bool | None:
    """Whether the rows are others than those of the good run before; None where there is none, or nobody can tell."""
    which = "AND run_id <> :run_id AND verdict = 'success' ORDER BY at DESC, run_id DESC LIMIT 1"
    before = _attempts(ledger.database, key, "SELECT digest", which, run_id=verdict.run_id)
    return differ(str(before[0][0]), str(verdict.digest)) if before else None


def _attempts(database: Database, key: PartitionKey, select: str, which: str, **given: Any) -> Sequence[Sequence[Any]]:
    sql = (
        f"{select} FROM {ATTEMPT_TABLE} WHERE source = :source AND customer_id = :customer_id"
        f" AND query_name = :query_name AND logical_date = {database.sql.day('logical_date')} {which}"
    )
    named = {name: str(getattr(key, name)) for name in PARTS}
    return database.read(lambda cursor: cursor.rows(sql, **named, **given))


def last_attempts(database: Database, key: PartitionKey) -> dict[str, dict[str, Any]]:
    """The last evaluation of every run of a partition."""
    select = "SELECT run_id, verdict, at, judged_by, record_count, error"
    return {
        run_id: {"verdict": verdict, "judged_at": instant(at), "judged_by": by, "record_count": count, "error": error}
        for run_id, verdict, at, by, count, error in _attempts(database, key, select, "ORDER BY at, state_version")
    }

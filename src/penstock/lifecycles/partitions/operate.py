"""What operators do with partitions, by name and reason: reprocess, backfill, point, reset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby, islice

from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import Cursor, Database
from penstock.lifecycles import refreshes
from penstock.lifecycles.ladder import offset_name
from penstock.lifecycles.partitions.decide import Judged
from penstock.lifecycles.partitions.jobs import AT_ONCE, missing, wanted_unit
from penstock.lifecycles.partitions.judgement import Validators
from penstock.lifecycles.partitions.machine import P, PartitionState, X, extraction, gate_of, key_of, partition, reset
from penstock.lifecycles.partitions.settings import Settings
from penstock.lifecycles.partitions.tables import partition_attempt
from penstock.lifecycles.refreshes import Cadence, Refreshes
from penstock.model.errors import UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Move
from penstock.raw.paths import PartitionKey, check_run_id
from penstock.raw.reader import Range

_MOST_SHOWN = 20


LOADS = Refreshes(
    partition_attempt.name,
    ("source", "query_name"),
    lambda _, seconds: offset_name(seconds),
    where="verdict = 'success' AND serving_offset IS NOT NULL",
)


def cadence(database: Database, source: str | None = None) -> list[Cadence]:
    """Per offset, how often the data still changed. Runs that people had judged by hand are not counted."""
    return refreshes.cadence(database, LOADS, require_partitions, source=source)


def require_partitions(cursor: Cursor) -> None:
    """Refuse a ledger that keeps no partitions. Raises UsageError."""
    if not cursor.rows("SELECT 1 FROM machine_definition WHERE name = :name", name=extraction.name):
        msg = "this ledger keeps no partitions; 'penstock db upgrade' with a program that does adds them"
        raise UsageError(msg)


@dataclass(slots=True)
class Done:
    """What a bulk action came to, or would come to."""

    total: int = 0
    wanted: int = 0
    skipped: Counter[str] = field(default_factory=Counter)


def reprocess(
    ledger: Ledger,
    keys: Iterable[PartitionKey],
    *,
    who: str,
    reason: str,
    dry_run: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Done:
    """Have partitions extracted and judged anew; one that is under way is left alone. A run that is there stays."""
    done, waiting = Done(), iter(keys)
    while chunk := list(islice(waiting, AT_ONCE)):
        done.total += len(chunk)
        fresh = missing(ledger, chunk)
        units = ledger.get_many(extraction, [str(key) for key in chunk])
        rested = [unit for unit in units if unit.status in (X.DONE, X.FAILED)]
        done.skipped.update(f"already {unit.status}" for unit in units if unit.status not in (X.DONE, X.FAILED))
        done.wanted += len(fresh) + len(rested)
        if dry_run:
            continue
        now = ledger.clock.now()
        ledger.birth((wanted_unit(k, now) for k in fresh), actor=Actor.OPERATOR, who=who, reason=reason, if_absent=True)
        for gate, group in groupby(sorted(rested, key=_gate), key=_gate):
            ids = [unit.unit_id for unit in group]
            moved = ledger.move_many(
                extraction.name,
                ids,
                X.WANTED,
                actor=Actor.OPERATOR,
                who=who,
                reason=reason,
                run_id=None,
                verdict=None,
                attempts=0,
                backfill=False,
                due_at=now,
                gate_id=gate,
            )
            done.wanted -= len(moved.skipped)
            done.skipped.update(moved.skipped.values())
        progress(done.total)
    return done


def _gate(unit: object) -> str:
    return gate_of(key_of(unit))  # type: ignore[arg-type]


def backfill(
    ledger: Ledger,
    settings: Settings,
    wanted: Range,
    *,
    who: str,
    reason: str,
    dry_run: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Done:
    """Want what nobody has wanted yet of a range, newest days first, each customer's so many an hour.

    Those units stand behind a door of their own, so that daily work is claimed beside them however many wait.
    """
    done = Done()
    spacing = timedelta(hours=1) / settings.source(wanted.source).backfill_per_hour
    now = ledger.clock.now()
    turns: Counter[str] = Counter()
    for offset in reversed(range(wanted.days)):
        day = wanted.start + timedelta(days=offset)
        for chunk in _chunks(Range(wanted.source, wanted.customers, wanted.queries, day, day).keys()):
            fresh = missing(ledger, chunk)
            done.total += len(chunk)
            done.wanted += len(fresh)
            done.skipped["wanted before"] += len(chunk) - len(fresh)
            if dry_run:
                continue
            units = []
            for key in fresh:
                units.append(wanted_unit(key, now + turns[key.customer_id] * spacing, backfill=True))
                turns[key.customer_id] += 1
            ledger.birth(units, actor=Actor.OPERATOR, who=who, reason=reason, if_absent=True)
            progress(done.total)
    done.skipped += Counter()  # what is nothing is not told
    return done


def _chunks(keys: Iterable[PartitionKey]) -> Iterable[Sequence[PartitionKey]]:
    waiting = iter(keys)
    while chunk := list(islice(waiting, AT_ONCE)):
        yield chunk


def point(validators: Validators, ledger: Ledger, key: PartitionKey, run_id: str, *, who: str, reason: str) -> Judged:
    """Make a run authoritative, an older one too. It must be there and be good. Raises UsageError."""
    check_run_id(run_id)
    if validators.sink.find(key, run_id) is None:
        known = validators.sink.runs(key)[-_MOST_SHOWN:]
        msg = f"{key} has no finalised run {run_id}; it has {', '.join(known) or 'none'}"
        raise UsageError(msg)
    return validators.validate(ledger, key, run_id, who=who, pointed_by=f"{who} ({reason})")


def reset_partition(ledger: Ledger, key: PartitionKey, *, who: str, reason: str) -> PartitionState:
    """Make a partition pending again, so that nobody reads it until a run is validated. Raises UsageError."""
    found = ledger.get_many(partition, [str(key)])
    if not found or found[0].status is P.PENDING:
        msg = f"{key} is pending already; there is nothing to reset"
        raise UsageError(msg)
    after = reset(found[0], ledger.clock.now())
    ledger.together([Move(found[0], after, reason, Actor.OPERATOR)], who=who)
    return after

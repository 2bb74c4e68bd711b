"""What is known of the past beside the history of partitions: every evaluation, and when runs had landed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from penstock.ledger.past import since
from penstock.lifecycles.partitions.machine import X, extraction
from penstock.model.clock import instant
from penstock.model.spoken import counted
from penstock.operations.reader import Reader
from penstock.raw.paths import ATTEMPT_TABLE, PartitionKey, run_id_at

PAST: Mapping[str, str] = {ATTEMPT_TABLE: since("at")}


def landed_by(
    reader: Reader, key: PartitionKey, moment: datetime, runs: Sequence[str], judged: Collection[str]
) -> tuple[list[str], str | None]:
    """Those of the runs that had landed by then, and a sentence on what is not in the sink any more.

    `judged`: the runs that had been evaluated by then. One that had not has landed when its extraction says so; where
    none does, it counts from when it was begun.
    """
    sql = (
        "SELECT reason, at FROM transition_log WHERE machine = :machine AND unit_id = :unit_id AND to_status = :landed"
        " ORDER BY seq"
    )
    given = {"machine": extraction.name, "unit_id": str(key), "landed": str(X.LANDED)}
    told = reader.read(lambda cursor: cursor.rows(sql, **given))
    later = {run_of(reason) for reason, at in told if instant(at) > moment}
    begun = run_id_at(moment)
    found = [one for one in runs if one in judged or (one <= begun and one not in later)]
    gone = len(set(judged) - set(runs))
    lacks = f"{counted(gone, 'run')} that had been judged by then are not in the sink any more"
    return found, lacks if gone else None


def landed_reason(run_id: str | None, records: int) -> str:
    """What the history says when a run has landed."""
    return f"run {run_id} landed with {records:,} records"


def run_of(reason: str | None) -> str:
    """The run of such a reason."""
    return (reason or "").removeprefix("run ").partition(" ")[0]

"""What is known of the past beside the history of runs, partitions and chunks: see `ledger.past`.

A run's and a partition's counters change without a row of the history. They are shown where they had their last value
by then, where nothing had been counted yet, and where units of then can be counted instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.ledger.past import BASELINE, ROWS
from penstock.lifecycles.harvest.chunk.machine import harvest_chunk
from penstock.lifecycles.harvest.partition.machine import harvest_partition
from penstock.lifecycles.harvest.run.machine import harvest_run

_SINCE, _BY_THEN = f"SELECT 1 {ROWS} AND h.seq > l.seq", f"SELECT 1 {ROWS} AND h.seq <= l.seq"
_GAVE_UP = "CASE WHEN l.trigger = 'gave_up' THEN l.reason END"
_PRUNED = f"h.actor LIKE '{BASELINE}%'"


def _never(what: str) -> str:
    """No row of the unit's history by then says so, and none was pruned."""
    return f"NOT EXISTS ({_BY_THEN} AND ({what} OR {_PRUNED}))"


def _of_runs() -> Mapping[str, str]:
    """Columns of a run. What a completed one came to is for good: no edge leads on, and its children have ended."""
    ended, begun = "l.to_status = 'completed'", "h.to_status = 'consolidating'"
    final = ("completed_workers", "failed_workers", "verified_workers", "completed_chunks", "failed_chunks", "unseen")
    counted = ("records_consolidated", "records_rejected", "records_deleted", "expected_chunks")
    forced = (
        f"SELECT CASE WHEN h.trigger = 'force' THEN {{what}} END {ROWS} AND h.seq <= l.seq"
        " AND h.trigger IN ('force', 'retry') ORDER BY h.seq DESC LIMIT 1"
    )
    cancelled = "'cancelled by ' || substr(l.actor, 10) || ': ' || l.reason"
    return {
        **{name: f"CASE WHEN {ended} THEN m.{name} END" for name in final},
        **{name: f"CASE WHEN {ended} THEN m.{name} WHEN {_never(begun)} THEN 0 END" for name in counted},
        "consolidation_started_at": f"CASE WHEN NOT EXISTS ({_SINCE} AND {begun}) THEN m.consolidation_started_at END",
        # As it says of itself in the step that ended it.
        "error": (
            "CASE WHEN l.trigger IN ('alerted', 'consolidation_failed') THEN l.reason"
            f" WHEN l.trigger = 'cancel' THEN {cancelled} END"
        ),
        "forced_by": f"CASE WHEN {ended} THEN m.forced_by ELSE ({forced.replace('{what}', 'substr(h.actor, 10)')}) END",
        "forced_reason": f"CASE WHEN {ended} THEN m.forced_reason ELSE ({forced.replace('{what}', 'h.reason')}) END",
    }


def _of_partitions() -> Mapping[str, str]:
    """Columns of a partition. From its end on pages add nothing, unless it is fetched again."""
    fresh = _never("h.to_status IN ('fetching_pages', 'completed', 'failed')")
    verified = "(m.duplicate_pages > 0 AND m.verified_at <= {at})"
    # So is what it found: it was verified, or had not been read a second time.
    once = _never("h.trigger = 'rescanned'")
    known = f"({verified} OR {once})"
    whole = f"l.to_status = 'completed' AND NOT EXISTS ({_SINCE}) AND {known}"
    read = f"CASE WHEN {fresh} THEN 0 WHEN {whole} THEN m.{{name}} END"
    return {
        **{name: read.replace("{name}", name) for name in ("records", "pages")},
        **{name: f"CASE WHEN {verified} THEN m.{name} END" for name in ("verified_at", "found_records", "doubt")},
        # They change with a row of the history.
        "rescans": f"CASE WHEN NOT EXISTS ({_SINCE}) THEN m.rescans WHEN {once} THEN 0 END",
        "expected_records": f"CASE WHEN NOT EXISTS ({_SINCE} AND h.trigger = 'rescanned') THEN m.expected_records END",
        "error": _GAVE_UP,
    }


def _repricings() -> str:
    """Each as it ended, if it had; of one that was under way nobody knows how far it had come."""
    ended = "finished_at <= {at}"
    counts = ", ".join(f"CASE WHEN {ended} THEN {name} END AS {name}" for name in ("records", "changed", "unpriced"))
    return (
        f"SELECT feed, begun_at, digest, CASE WHEN {ended} THEN status ELSE 'running' END AS status, expected,"
        f" {counts}, requested_by, reason, CASE WHEN {ended} THEN finished_at END AS finished_at FROM {{table}}"
        " WHERE begun_at <= {at}"
    )


PAST: Mapping[str, str] = {
    **{f"{harvest_run.table}.{name}": sql for name, sql in _of_runs().items()},
    **{f"{harvest_partition.table}.{name}": sql for name, sql in _of_partitions().items()},
    f"{harvest_chunk.table}.error": _GAVE_UP,
    "harvest_reprice": _repricings(),
}

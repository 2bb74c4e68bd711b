"""What is known of the past beside the history of runs, partitions and chunks: see `ledger.past`.

A run's and a partition's counters change without a row of the history. They are shown where they had their last value
by then, where nothing had been counted yet, and where units of then can be counted instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.lifecycles.harvest.chunk.machine import harvest_chunk
from penstock.lifecycles.harvest.partition.machine import harvest_partition
from penstock.lifecycles.harvest.run.machine import harvest_run

_UNTOUCHED = "m.changed_at <= {at}"
_ROWS = "SELECT 1 FROM {schema}.transition_log h WHERE h.machine = l.machine AND h.unit_id = l.unit_id"
_SINCE, _BY_THEN = f"{_ROWS} AND h.seq > l.seq", f"{_ROWS} AND h.seq <= l.seq"
_PRUNED = "substr(h.actor, 1, 6) = 'prune:'"


def _never(what: str) -> str:
    """No row of the unit's history by then says so, and none was pruned."""
    return f"NOT EXISTS ({_BY_THEN} AND ({what} OR {_PRUNED}))"


def _of_runs() -> Mapping[str, str]:
    """Columns of a run. What a completed one came to is for good: no edge leads on, and its children have ended."""
    ended, begun = "l.to_status = 'completed'", "h.to_status = 'consolidating'"
    final = ("completed_workers", "failed_workers", "verified_workers", "completed_chunks", "failed_chunks", "unseen")
    counted = ("records_consolidated", "records_rejected")
    alone = ("records_deleted", "expected_chunks")
    forced = (
        "SELECT CASE WHEN h.trigger = 'force' THEN {what} END FROM {{schema}}.transition_log h WHERE h.machine ="
        " l.machine AND h.unit_id = l.unit_id AND h.seq <= l.seq AND h.trigger IN ('force', 'retry')"
        " ORDER BY h.seq DESC LIMIT 1"
    )
    cancelled = "'cancelled by ' || substr(l.actor, 10) || ': ' || l.reason"
    return {
        **{name: f"CASE WHEN {ended} THEN m.{name} END" for name in final},
        **{name: f"CASE WHEN {ended} THEN m.{name} WHEN {_never(begun)} THEN 0 END" for name in counted},
        **{name: f"CASE WHEN {ended} OR {_UNTOUCHED} THEN m.{name} WHEN {_never(begun)} THEN 0 END" for name in alone},
        "consolidation_started_at": f"CASE WHEN NOT EXISTS ({_SINCE} AND {begun}) THEN m.consolidation_started_at END",
        # As it says of itself in the step that ended it.
        "error": (
            f"CASE WHEN {_UNTOUCHED} THEN m.error WHEN l.trigger IN ('alerted', 'consolidation_failed') THEN l.reason"
            f" WHEN l.trigger = 'cancel' THEN {cancelled} END"
        ),
        "forced_by": f"CASE WHEN {ended} THEN m.forced_by ELSE ({forced.format(what='substr(h.actor, 10)')}) END",
        "forced_reason": f"CASE WHEN {ended} THEN m.forced_reason ELSE ({forced.format(what='h.reason')}) END",
    }


def _of_partitions() -> Mapping[str, str]:
    """Columns of a partition. From its end on pages add nothing, unless it is fetched again."""
    fresh = _never("h.to_status IN ('fetching_pages', 'completed', 'failed')")
    verified = f"({_UNTOUCHED} OR (m.duplicate_pages > 0 AND m.verified_at <= {{at}}))"
    # So is what it found: it was verified, or had not been read a second time.
    once = _never("h.trigger = 'rescanned'")
    known = f"((m.duplicate_pages > 0 AND m.verified_at <= {{at}}) OR {once})"
    whole = f"l.to_status = 'completed' AND NOT EXISTS ({_SINCE}) AND {known}"
    read = f"CASE WHEN {_UNTOUCHED} THEN m.{{name}} WHEN {fresh} THEN 0 WHEN {whole} THEN m.{{name}} END"
    return {
        **{name: read.replace("{name}", name) for name in ("records", "pages")},
        **{name: f"CASE WHEN {verified} THEN m.{name} END" for name in ("verified_at", "found_records", "doubt")},
        # They change with a row of the history.
        "rescans": f"CASE WHEN NOT EXISTS ({_SINCE}) THEN m.rescans WHEN {once} THEN 0 END",
        "expected_records": f"CASE WHEN NOT EXISTS ({_SINCE} AND h.trigger = 'rescanned') THEN m.expected_records END",
        "error": f"CASE WHEN {_UNTOUCHED} THEN m.error WHEN l.trigger = 'gave_up' THEN l.reason END",
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
    f"{harvest_chunk.table}.error": (
        f"CASE WHEN {_UNTOUCHED} THEN m.error WHEN l.trigger = 'gave_up' THEN l.reason END"
    ),
    "harvest_reprice": _repricings(),
}

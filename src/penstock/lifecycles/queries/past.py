"""What is known of the past beside the history of queries and erasures: by rows of runs, and of what was set aside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.ledger.past import ROWS
from penstock.lifecycles.queries.erasure.machine import erasure
from penstock.lifecycles.queries.machine import S, query
from penstock.lifecycles.queries.runs import COUNTERS
from penstock.lifecycles.queries.settings import QueriesSettings
from penstock.model.clock import instant_text

if TYPE_CHECKING:
    from datetime import datetime

    from penstock.operations.declare import Ask

_OVER = "CASE WHEN finished_at <= {{at}} THEN {column} END AS {column}"
_LAST = (
    "CASE WHEN m.{name} IS NULL OR m.{name} <= {{at}} THEN m.{name} ELSE (SELECT r.{column} FROM"
    " {{schema}}.ingestion_runs r WHERE r.query_key = m.query_key AND r.started_at <= {{at}} AND r.{column} <= {{at}}"
    "{which} ORDER BY r.started_at DESC LIMIT 1) END"
)
_SEEN = "CASE WHEN last_seen_at <= {{at}} THEN {column} END AS {column}"
_SINCE_ASKED = "CASE WHEN m.asked_at <= {{at}} THEN m.{column} END"
_DONE = "CASE WHEN m.erased_at <= {{at}} THEN m.{column} END"


def _run_columns() -> str:
    over = ("stopped_by", "error", "finished_at", *COUNTERS)
    told = ", ".join(_OVER.format(column=column) for column in over)
    status = f"CASE WHEN finished_at <= {{at}} THEN status ELSE '{S.RUNNING}' END AS status"
    return f"id, query_key, client, started_at, {status}, {told}"


PAST: Mapping[str, str] = {
    # A row is written anew with each page, until its run is over.
    "ingestion_runs": f"SELECT {_run_columns()} FROM {{table}} WHERE started_at <= {{at}}",
    # A record that was set aside again since is the same record, found by another run. What was erased says nothing.
    "rejected_records": (
        "SELECT query_key, digest, record_id, payload, first_seen_at,"
        f" {_SEEN.format(column='last_seen_at')}, {_SEEN.format(column='run_id')},"
        " CASE WHEN last_seen_at <= {at} AND payload IS NOT NULL THEN reason END AS reason"
        " FROM {table} WHERE first_seen_at <= {at}"
    ),
    # The beginning of a run may change its name, and nothing else does.
    f"{query.table}.name": "CASE WHEN m.last_run_at IS NULL OR m.last_run_at <= {at} THEN m.name END",
    f"{query.table}.last_run_at": _LAST.format(name="last_run_at", column="started_at", which=""),
    f"{query.table}.last_success_at": _LAST.format(
        name="last_success_at", column="finished_at", which=f" AND r.status = '{S.SUCCESS}'"
    ),
    f"{query.table}.last_error_at": _LAST.format(
        name="last_error_at", column="finished_at", which=f" AND r.status = '{S.ERROR}'"
    ),
    # A run that stops early leaves it as it was.
    f"{query.table}.error": (
        f"(SELECT CASE WHEN h.to_status = '{S.ERROR}' THEN h.reason END {ROWS} AND h.seq <= l.seq"
        f" AND h.from_status = '{S.RUNNING}' AND h.to_status IN ('{S.SUCCESS}', '{S.ERROR}')"
        " ORDER BY h.seq DESC LIMIT 1)"
    ),
    **{f"{erasure.table}.{name}": _SINCE_ASKED.format(column=name) for name in ("asked_by", "asked_at")},
    # Whoever asks for it once more takes the moment away, and only then more rows are blanked.
    **{f"{erasure.table}.{name}": _DONE.format(column=name) for name in ("rows", "pages_replaced")},
    f"{erasure.table}.erased_at": "CASE WHEN m.erased_at <= {at} THEN m.erased_at END",
}


def pruned(ask: Ask[QueriesSettings], at: datetime | None) -> str | None:
    """A sentence on runs and records that are too old to be kept, where queries are older; `ask` is of now."""
    if at is None:
        return None
    before = ask.now - ask.settings.keep_runs
    sql = (
        f"SELECT 1 FROM {query.table} q WHERE (SELECT l.at FROM transition_log l WHERE l.machine = '{query.name}'"
        f" AND l.unit_id = q.unit_id ORDER BY l.seq LIMIT 1) < {ask.reader.database.sql.instant('before')} LIMIT 1"
    )
    if not ask.reader.read(lambda cursor: cursor.rows(sql, before=instant_text(before))):
        return None
    return f"runs, and records that were set aside, are kept from {instant_text(before)} on"

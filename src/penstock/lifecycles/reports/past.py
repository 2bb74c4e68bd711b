"""What is known of the past beside the history of datasets: their loads, and so what they showed."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.ledger.past import since
from penstock.lifecycles.reports.machine import machine

_LOADED = {"loaded_at": "loaded_at", "loaded_rows": "row_count", "loaded_digest": "digest"}
_THEN = (
    "(SELECT r.{column} FROM {{schema}}.report_load r WHERE r.unit_id = m.unit_id"
    " AND r.report_id = {{loaded_report_id}})"
)

PAST: Mapping[str, str] = {
    "report_load": since("loaded_at"),
    **{f"{machine.table}.{name}": _THEN.format(column=column) for name, column in _LOADED.items()},
    f"{machine.table}.last_processed_report_id": "{loaded_report_id}",
    # A baseline does not say why.
    f"{machine.table}.error": "CASE WHEN l.to_status = 'error' AND l.from_status IS NOT NULL THEN l.reason END",
}

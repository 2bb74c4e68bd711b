"""The doctor and the flow by the hour: it counts what the history tells, and comes to the units that there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.ledger.care.finding import Finding
from penstock.ledger.flow import counts_at
from penstock.ledger.roll_up import COUNTED, bookmark, cell
from penstock.ledger.schema.definitions import stored
from penstock.ledger.store.database import Cursor, Database
from penstock.model.clock import instant, instant_text
from penstock.model.machine import Machine

_MOST = 20
_MEND = "somebody has changed flow_hour or the history; 'penstock units recount' counts it anew from the history"


def flow(database: Database, cursor: Cursor, _: Mapping[str, Machine]) -> Iterator[Finding]:
    """Every count is what the history and pruning come to, and all of them come to the units' states."""
    yield from _counts(database, cursor)
    counted = counts_at(database, cursor)
    for name, definition in stored(cursor).items():
        rows = cursor.rows(f"SELECT status, count(*) FROM {definition['table']} GROUP BY status")
        there, told = {str(s): int(n) for s, n in rows}, counted.get(name, {})
        for state in sorted({*there, *told}):
            if there.get(state, 0) != told.get(state, 0):
                text = (
                    f"by flow_hour {told.get(state, 0):,} units are {state}, and {there.get(state, 0):,} are; {_MEND}"
                )
                yield Finding("flow", name, text)


def _counts(database: Database, cursor: Cursor) -> Iterator[Finding]:
    cells = "machine, hour, from_status, to_status, trigger"
    rows = cursor.rows(
        f"""SELECT {cells}, sum(n), sum(told) FROM (
              SELECT {cells}, n, pruned AS told FROM flow_hour
              UNION ALL
              SELECT {cell(database)}, 0, count(*) FROM transition_log
               WHERE seq <= :counted AND {COUNTED} GROUP BY 1, 2, 3, 4, 5) AS both_
             GROUP BY {cells} HAVING sum(n) <> sum(told) ORDER BY {cells} LIMIT {_MOST}""",
        counted=bookmark(cursor).seq,
    )
    for machine, hour, source, target, trigger, n, told in rows:
        edge = f"{source or 'born'} -> {target or 'gone'}" + (f" ({trigger})" if trigger else "")
        when = _hour(hour)
        yield Finding(
            "flow", machine, f"flow_hour says {n:,} times {edge} in {when}, and the history {told:,}; {_MEND}"
        )


def _hour(hour: Any) -> str:
    return instant_text(instant(hour))[:16] + "Z"

"""The doctor and the flow by the hour: it counts what the history tells, and comes to the units that there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from penstock.ledger.care.finding import Finding
from penstock.ledger.care.look import Scope
from penstock.ledger.flow import HOUR, bounds, counts_at
from penstock.ledger.roll_up import COUNTED, bookmark, cell
from penstock.ledger.schema.definitions import stored
from penstock.ledger.store.database import Cursor, Database
from penstock.model.clock import instant, instant_text
from penstock.model.machine import Machine

_MOST = 20
_MEND = "somebody has changed flow_hour or the history; 'penstock units recount' counts it anew from the history"


def flow(database: Database, cursor: Cursor, _: Mapping[str, Machine], scope: Scope) -> Iterator[Finding]:
    """Every count is what the history and pruning come to, and all of them come to the units' states.

    In a scope, the counts of the hours that its rows fall into.
    """
    if not scope.whole:
        for first, last in _spans(database, cursor, scope):
            yield from _counts(database, cursor, (first, last))
        return
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


def _spans(database: Database, cursor: Cursor, scope: Scope) -> list[tuple[datetime, datetime]]:
    """The hours of a scope's rows, those that follow each other as one span."""
    sql = f"SELECT DISTINCT {database.sql.hour('at')} FROM transition_log WHERE {scope.rows()}"
    found: list[tuple[datetime, datetime]] = []
    for hour in sorted(instant(row[0]) for row in cursor.rows(sql)):
        if found and found[-1][1] == hour:
            found[-1] = (found[-1][0], hour + HOUR)
        else:
            found.append((hour, hour + HOUR))
    return found


def _counts(database: Database, cursor: Cursor, span: tuple[datetime, datetime] | None = None) -> Iterator[Finding]:
    first, last = span or (None, None)
    hours, values = bounds(database, "hour", first, last, None)
    moments, _ = bounds(database, "at", first, last, None)
    cells = "machine, hour, from_status, to_status, trigger"
    rows = cursor.rows(
        f"""SELECT {cells}, sum(n), sum(told) FROM (
              SELECT {cells}, n, pruned AS told FROM flow_hour WHERE {hours}
              UNION ALL
              SELECT {cell(database)}, 0, count(*) FROM transition_log
               WHERE seq <= :counted AND {COUNTED} AND {moments} GROUP BY 1, 2, 3, 4, 5) AS both_
             GROUP BY {cells} HAVING sum(n) <> sum(told) ORDER BY {cells} LIMIT {_MOST}""",
        counted=bookmark(cursor).seq,
        **values,
    )
    for machine, hour, source, target, trigger, n, told in rows:
        edge = f"{source or 'born'} -> {target or 'gone'}" + (f" ({trigger})" if trigger else "")
        when = _hour(hour)
        yield Finding(
            "flow", machine, f"flow_hour says {n:,} times {edge} in {when}, and the history {told:,}; {_MEND}"
        )


def _hour(hour: Any) -> str:
    return instant_text(instant(hour))[:16] + "Z"

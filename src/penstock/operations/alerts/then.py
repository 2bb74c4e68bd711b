"""Alerts as they stood at a moment that is over.

The state, since when and why is told by their history. How bad an alert was, and in which words, is as it is now where
nobody has touched it since; else it is what the event said that told of it. A silenced alert tells nothing: where it
was touched since, that is not known, and None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock.ledger.past import UNTOUCHED
from penstock.model.clock import instant, instant_text
from penstock.model.unit import replace
from penstock.operations.alerts.book import KINDS
from penstock.operations.alerts.machine import A, Alert, machine

if TYPE_CHECKING:
    from penstock.ledger.store.database import Cursor
    from penstock.operations.declare import Ask

_TOLD = ("severity", "says", "facts", "times")
_MOMENT = timedelta(seconds=1)
"""A change and the event that tells of it are of one transaction, and yet not always of one moment."""


def alerts_then(ask: Ask[Any], at: datetime) -> list[Alert]:
    """Every alert that had fired by then."""
    if not ask.reader.keeps(machine):
        return []
    reader = ask.then(at).reader
    sql = f"SELECT unit_id, {UNTOUCHED} FROM {machine.table} ORDER BY unit_id"
    known = {str(row[0]): bool(row[1]) for row in reader.read(lambda cursor: cursor.rows(sql))}
    found: list[Alert] = reader.get_many(machine, list(known))
    touched = [one for one in found if not known[one.unit_id]]
    told = _told(ask, at, touched)
    return [one if known[one.unit_id] else _as_told(one, told.get(one.unit_id)) for one in found]


def _as_told(one: Alert, event: tuple[datetime, Mapping[str, Any]] | None) -> Alert:
    if one.status is A.SILENCED or event is None or event[1].get("status") != str(one.status):
        return one
    told, said = event
    later = one.changed_at is not None and told > one.changed_at + _MOMENT  # it had got worse
    known: dict[str, Any] = {name: said.get(name) for name in _TOLD}
    known |= {"example": said.get("unit"), "since": instant(said.get("since")), "by_whom": said.get("by")}
    known |= {"changed_at": told, "change_reason": said.get("says")} if later else {}
    return replace(one, **known)


def _told(ask: Ask[Any], at: datetime, alerts: Sequence[Alert]) -> dict[str, tuple[datetime, Mapping[str, Any]]]:
    """The last event by then that told of each, with its moment."""
    since = min((one.changed_at for one in alerts if one.changed_at is not None), default=None)
    if since is None:
        return {}
    instants = ask.reader.database.sql.instant
    kinds = ", ".join(f"'{kind}'" for kind in KINDS)
    sql = (
        f"SELECT created_at, payload FROM event_log WHERE created_at >= {instants('since')}"
        f" AND created_at <= {instants('until')} AND event_type IN ({kinds}) ORDER BY created_at"
    )

    def work(cursor: Cursor) -> list[Any]:
        return list(cursor.rows(sql, since=instant_text(since - _MOMENT), until=instant_text(at)))

    found: dict[str, tuple[datetime, Mapping[str, Any]]] = {}
    for created, payload in ask.reader.read(work):
        said = json.loads(payload) if isinstance(payload, str) else payload
        found[str(said["alert"]).partition(":")[2]] = instant(created), said
    return found

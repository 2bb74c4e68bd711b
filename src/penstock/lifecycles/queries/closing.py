"""Whether what a reading did not see is closed. Pure.

A provider that gives half a list would have the other half closed. So too much at once is held back and told, and is
closed when it is still missing as long afterwards as lies between two readings of everything.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from penstock.lifecycles.queries.machine import Query
from penstock.lifecycles.queries.runs import Unseen
from penstock.lifecycles.queries.settings import QueriesSettings
from penstock.model.clock import instant_text, parse_instant
from penstock.model.unit import replace

_FEW = 20
"""So few may vanish at once, whatever share they are."""
_USUAL_PATIENCE = timedelta(days=7)
_HELD = "held_back"


def too_many(missing: int, closed: int, live: int, settings: QueriesSettings) -> bool:
    """Whether so many are missing of those that were listed that it may be the provider's fault."""
    return missing + closed > _FEW and missing > live * settings.most_closed


def freed(query: Query, unseen: Unseen, now: datetime, settings: QueriesSettings) -> Unseen | None:
    """Of too many, those that were held back long ago, and were not seen since; None: none yet."""
    held = (query.metadata or {}).get(_HELD)
    if held is None:
        return None
    waited = now - parse_instant(held["since"])
    return Unseen(held["number"], unseen.until) if waited >= (settings.census_every or _USUAL_PATIENCE) else None


def held_back(query: Query, unseen: Unseen, now: datetime, *, anew: bool) -> Query:
    """The query that remembers since when too many are missing; `anew`: all that was held back before was seen to."""
    metadata: dict[str, Any] = dict(query.metadata or {})
    held = metadata.get(_HELD)
    # One in the future was made while the clock was wrong.
    if held is None or anew or parse_instant(held["since"]) > now:
        metadata[_HELD] = {"number": unseen.number, "since": instant_text(now)}
    return replace(query, metadata=metadata)

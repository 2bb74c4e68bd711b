"""What to do with a query now. Pure: the worker, `why` and the tests ask the same function."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from penstock.lifecycles.queries.machine import Query, S
from penstock.lifecycles.queries.passes import begin_of
from penstock.lifecycles.queries.registry import registry
from penstock.lifecycles.queries.runs import seed_day, what_next
from penstock.lifecycles.queries.settings import QueriesSettings
from penstock.model.outcome import Act, Decision, Look, Wait


class Seen(Struct, frozen=True):
    """Whether the query may run: why not, and until when (None: nobody knows). And what others have left behind."""

    closed: str | None = None
    until: datetime | None = None
    #: Other queries that say that they run, and do not: whoever runs them would hold the run lock.
    abandoned: Sequence[Query] = ()


def decide(query: Query, now: datetime, settings: QueriesSettings, seen: Seen | None) -> Decision:
    """Close a run that was abandoned, go on with one that is under way, or begin one where it is due and may run."""
    if query.status is S.RUNNING and query.version != query.run_version:
        return Act("abandon", "the worker that ran it is gone", counts_attempt=False)
    own = registry(settings).get(query.query_key)
    if own is None:
        return Wait(None, "it is no longer in the configuration; its state stays")
    if own.paused:
        return Wait(None, f"paused by the configuration: [queries.queries.{own.name}]")
    if query.status is S.RUNNING:
        what, why = what_next(query, now, own, settings)
        return Act(what, why, counts_attempt=what == "page")
    if query.due_at is not None and query.due_at > now:
        return Wait(query.due_at, "its next run is not due yet")
    begins = begin_of(seed_day(query, now, own), own.zone)
    if begins > now and query.seed_until is None:
        return Wait(begins, f"[queries.queries.{own.name}] seed_from lies in the future")
    if seen is None:
        return Look("whether its client may be asked", asks=False)
    if seen.closed is not None:
        # Gates that people hold open without telling: look again in the next cycle.
        return Wait(seen.until or now + settings.pause, seen.closed)
    return Act("begin", "its turn has come", counts_attempt=False)

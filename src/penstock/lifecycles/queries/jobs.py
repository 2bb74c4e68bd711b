"""The jobs of queries: keeping their units as the configuration has them, and pruning old records."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.app.lifecycle import job
from penstock.lifecycles.queries.key import normalise
from penstock.lifecycles.queries.machine import Query, query
from penstock.lifecycles.queries.registry import Configured, registry
from penstock.lifecycles.queries.settings import RUN_GATE, QueriesSettings
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.worker.schedule_unit import Schedule

if TYPE_CHECKING:
    from penstock.app.ports import Ports
    from penstock.ledger.ledger import Ledger
    from penstock.worker.flow import Io
    from penstock.worker.job import JobResult

UPDATE, PRUNE = "update-queries", "prune-queries"


@job(UPDATE, "Creates the queries that are new in the configuration, and wakes those that rest.")
async def update_queries(settings: QueriesSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:  # noqa: ARG001
    import structlog

    from penstock.worker.job import JobResult

    log = structlog.get_logger()
    born, woken = await io.ledger(lambda ledger: keep_queries(ledger, settings, io.now(), "schedule"))
    removed = await io.ledger(lambda ledger: removed_queries(ledger, settings))
    for name, key in removed:
        log.warning("queries.removed", query=name, key=key, next="it rests; put back into the file, it goes on")
    if removed:
        names = ", ".join(name for name, _ in removed)
        return JobResult(f"{born} created, {woken} woken; no longer in the configuration, and rest now: {names}")
    return JobResult(f"{born} created, {woken} woken" if born or woken else "all queries are there")


@job(PRUNE, "Removes the records of old runs, and old records that were set aside.")
async def prune_queries(settings: QueriesSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:  # noqa: ARG001
    from penstock.lifecycles.queries.prune import prune_records
    from penstock.worker.job import JobResult

    gone, more = await io.ledger(lambda ledger: prune_records(ledger, settings.keep_runs, io.now()))
    return JobResult(f"{gone:,} old records pruned", again=more)


def keep_queries(ledger: Ledger, settings: QueriesSettings, now: datetime, who: str) -> tuple[int, int]:
    """Make the ledger's queries those of the configuration; how many were made, and how many rested and go on.

    One that the configuration no longer has rests by itself, and its state stays.
    """
    wanted = [own for own in registry(settings).values() if not own.paused]
    units = [born(own, now) for own in wanted]
    made = ledger.birth(units, actor=Actor.SCHEDULER, who=who, reason="configured", if_absent=True)
    there: list[Query] = ledger.get_many(query, [own.key for own in wanted])
    late = [one for one in there if one.due_at is None or _planned_ahead(one, now, settings)]
    resting = [Ref(query.name, one.unit_id) for one in late if one.claimed_by is None]
    if resting:
        # One that somebody has just erased stays away.
        resting = ledger.wake(resting, who=who, reason="configured", actor=Actor.SCHEDULER).moved
    return made, len(resting)


def removed_queries(ledger: Ledger, settings: QueriesSettings) -> list[tuple[str, str]]:
    """Names and keys of queries that the configuration no longer has, and that do not rest yet: each is told once."""
    sql = f"SELECT name, query_key FROM {query.table} WHERE due_at IS NOT NULL ORDER BY name, query_key"
    rows = ledger.read(lambda cursor: cursor.rows(sql))
    return [(str(name), str(key)) for name, key in rows if key not in registry(settings)]


def _planned_ahead(one: Query, now: datetime, settings: QueriesSettings) -> bool:
    """Whether its next run was planned by one that began in the future: the clock was set back since."""
    began, due = one.last_run_at, one.due_at
    return began is not None and due is not None and now < began and now < due <= began + settings.pause


def born(own: Configured, now: datetime) -> Query:
    """A query as it is before its first run."""
    metadata: dict[str, Any] = {"parameters": normalise(own.parameters)}
    return Query(query_key=own.key, client=own.client, name=own.name, metadata=metadata, due_at=now, gate_id=RUN_GATE)


def schedules(settings: QueriesSettings) -> Sequence[Schedule]:
    """One that keeps the queries, and is of another version when they are others, and one for pruning."""
    wanted = "|".join(sorted(f"{own.key}={own.paused}" for own in registry(settings).values()))
    version = hashlib.sha256(wanted.encode()).hexdigest()[:12]
    return [
        Schedule(name=UPDATE, job=UPDATE, every="1m", settings_version=version),
        Schedule(name=PRUNE, job=PRUNE, every="1d", jitter="1h", settings_version="usual"),
    ]

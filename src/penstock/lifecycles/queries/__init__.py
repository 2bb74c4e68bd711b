"""Queries: recurring searches, one at a time over all processes, seeded backwards through history.

A query asks one client; a client is an account of a provider behind a connector, or an API that the configuration
describes. What it finds goes to `offers` and `companies`, or to a table of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.app.lifecycle import Data, Lifecycle
from penstock.lifecycles.queries import alerts, jobs, operations, readings, sheet_job
from penstock.lifecycles.queries.erasure import operations as erasing
from penstock.lifecycles.queries.erasure.machine import erasure as erasure_machine
from penstock.lifecycles.queries.expects import expects
from penstock.lifecycles.queries.machine import query
from penstock.lifecycles.queries.past import PAST
from penstock.lifecycles.queries.settings import RUN_GATE, QueriesSettings, client_gate
from penstock.model.decider import Decider
from penstock.model.limits import GateLimits, Limit
from penstock.operations.pictures import Cycle, Windows

if TYPE_CHECKING:
    from sqlalchemy import Table

    from penstock.app.ports import Ports
    from penstock.ledger.ledger import Ledger
    from penstock.lifecycles.queries.erasure.machine import Erasure
    from penstock.lifecycles.queries.machine import Query
    from penstock.operations.reader import Reader
    from penstock.raw.collect import Held
    from penstock.raw.paths import PartitionKey
    from penstock.worker.flow import AnyFlow
    from penstock.worker.schedule_unit import Schedule

MACHINES = (query, erasure_machine)


def data() -> Data:
    """Runs, offers, companies, what was set aside, and people's feedback."""
    from penstock.lifecycles.queries.sheet_tables import SHEET_TABLES
    from penstock.lifecycles.queries.tables import DATA_TABLES, VIEWS

    return Data((*DATA_TABLES, *SHEET_TABLES), VIEWS)


def tables(settings: QueriesSettings) -> Sequence[Table]:
    """The tables that sources with a shape of their own declare."""
    if all(own.table is None for own in settings.rest_json.values()):
        return ()
    from penstock.lifecycles.queries.tables import own_tables

    return own_tables(settings)


def build(settings: QueriesSettings, ports: Ports) -> Sequence[AnyFlow]:
    """The flow of queries, with connections for every client, and that of erasures."""
    from penstock.lifecycles.queries.erasure.flow import Erasures
    from penstock.lifecycles.queries.flow import Queries
    from penstock.lifecycles.queries.sources import make_source

    sources = {name: make_source(name, settings, ports) for name in settings.clients()}
    return [Queries(settings, sources), Erasures(settings, lambda: ports.raw)]


def decides() -> Mapping[str, Decider]:
    """What its flows decide, by machine."""
    from penstock.lifecycles.queries.decide import decide
    from penstock.lifecycles.queries.erasure.decide import decide as erase
    from penstock.lifecycles.queries.lock import peek

    return {
        query.name: Decider(decide, peek=peek, gate=_run_gate),
        erasure_machine.name: Decider(erase, gate=_run_gate),
    }


def _run_gate(unit: Query | Erasure, settings: QueriesSettings) -> str:  # noqa: ARG001 - the same for all
    return RUN_GATE


def gates(settings: QueriesSettings) -> Sequence[GateLimits]:
    """One query runs at a time; and how fast each client, and the spreadsheet, may be called."""
    from penstock.lifecycles.queries.sheet_calls import gates as sheet_gates

    rates = [(name, own.requests_per_second) for name, own in settings.infojobs.items()]
    rates += [(name, own.requests_per_second) for name, own in settings.rest_json.items()]
    limits = [
        GateLimits(client_gate(name), (Limit("requests", rate, max(rate, 1.0)),)) for name, rate in rates if rate > 0
    ]
    return [GateLimits(RUN_GATE, max_in_flight=1), *limits, *sheet_gates(settings)]


def schedules(settings: QueriesSettings) -> Sequence[Schedule]:
    """Those that keep queries and prune their records, and that of the spreadsheet."""
    sheet = sheet_job.schedule(settings)
    return [*jobs.schedules(settings), *([] if sheet is None else [sheet])]


def holds(ledger: Ledger | Reader, keys: Collection[PartitionKey]) -> Mapping[PartitionKey, Held]:
    """Which landed pages count."""
    from penstock.lifecycles.queries.keep import held

    return held(ledger, keys)


lifecycle = Lifecycle(
    "queries",
    "Recurring searches, one at a time, seeded backwards.",
    settings=QueriesSettings,
    machines=MACHINES,
    data=data,
    past=PAST,
    tables=tables,
    build=build,
    decides=decides,
    expects=expects,
    jobs=[jobs.update_queries, jobs.prune_queries, sheet_job.sync_sheet],
    gates=gates,
    schedules=schedules,
    policies=alerts.POLICIES,
    conditions=alerts.CONDITIONS,
    readings=[*readings.READINGS, *erasing.READINGS],
    operations=[*operations.OPERATIONS, *erasing.OPERATIONS],
    pictures=[
        Cycle(
            says="How far each query is from its last run to its next.",
            reading=readings.list_queries,
            name="query",
            since="last_run",
            until="next_run",
            state="state",
        ),
        Windows(
            says="The days that each query has read.",
            reading=readings.list_queries,
            name="query",
            start="seeded_back_to",
            end="covered_through",
            state="state",
        ),
    ],
    front=[readings.list_queries, readings.runs],
    holds=holds,
)

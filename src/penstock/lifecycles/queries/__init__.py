"""Queries: recurring searches, one at a time over all processes, seeded backwards through history.

A query asks one client; a client is an account of a provider behind a connector, or an API that the configuration
describes. What it finds goes to `offers` and `companies`, or to a table of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.app.lifecycle import Data, Lifecycle
from penstock.lifecycles.queries import alerts, jobs, operations, readings
from penstock.lifecycles.queries.machine import query
from penstock.lifecycles.queries.settings import RUN_GATE, QueriesSettings, client_gate
from penstock.model.limits import GateLimits, Limit

if TYPE_CHECKING:
    from sqlalchemy import Table

    from penstock.app.ports import Ports
    from penstock.worker.flow import AnyFlow

MACHINES = (query,)


def data() -> Data:
    """Runs, offers, companies, and what was set aside."""
    from penstock.lifecycles.queries.tables import DATA_TABLES, VIEWS

    return Data(DATA_TABLES, VIEWS)


def tables(settings: QueriesSettings) -> Sequence[Table]:
    """The tables that sources with a shape of their own declare."""
    if all(own.table is None for own in settings.rest_json.values()):
        return ()
    from penstock.lifecycles.queries.tables import own_tables

    return own_tables(settings)


def build(settings: QueriesSettings, ports: Ports) -> Sequence[AnyFlow]:
    """The flow of queries, with connections for every client."""
    from penstock.lifecycles.queries.flow import Queries
    from penstock.lifecycles.queries.sources import make_source

    return [Queries(settings, {name: make_source(name, settings, ports) for name in settings.clients()})]


def gates(settings: QueriesSettings) -> Sequence[GateLimits]:
    """One query runs at a time; and how fast each client may be called."""
    rates = [(name, own.requests_per_second) for name, own in settings.infojobs.items()]
    rates += [(name, own.requests_per_second) for name, own in settings.rest_json.items()]
    limits = [
        GateLimits(client_gate(name), (Limit("requests", rate, max(rate, 1.0)),)) for name, rate in rates if rate > 0
    ]
    return [GateLimits(RUN_GATE, max_in_flight=1), *limits]


lifecycle = Lifecycle(
    "queries",
    "Recurring searches, one at a time, seeded backwards.",
    settings=QueriesSettings,
    machines=MACHINES,
    data=data,
    tables=tables,
    build=build,
    jobs=[jobs.update_queries, jobs.prune_queries],
    gates=gates,
    schedules=jobs.schedules,
    policies=alerts.POLICIES,
    conditions=alerts.CONDITIONS,
    readings=readings.READINGS,
    operations=operations.OPERATIONS,
)

"""What the ledger and this process say of each metric now, and the text that Prometheus scrapes.

Gauges and counters of the ledger are computed from it, so that they are right with any number of workers: scrape one
process, or all of them and take the maximum. What a process counts itself is its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import structlog

from penstock.ledger.gates.status import gate_statuses
from penstock.ledger.history import workers_of
from penstock.ledger.store.database import Cursor, Database, present
from penstock.ledger.store.statements import dead_letters, is_open, waiting
from penstock.model.clock import instant
from penstock.model.errors import LedgerError
from penstock.model.machine import Machine
from penstock.model.unit import NO_GATE
from penstock.observe.catalogue import PROCESS, Distribution, Metric, Sample, prometheus_name

log = structlog.get_logger()


_COUNTS = ("claimed", "committed", "steps", "lost", "refused", "failed", "reaped")


def of_process(counts: Mapping[str, Mapping[str, int]]) -> Iterator[Sample]:
    """What a worker has counted for each flow, by the names that it counts under; under no flow, what is nobody's."""
    for metric, name in zip(PROCESS, _COUNTS, strict=True):
        for flow, own in counts.items():
            if name in own and bool(flow) == bool(metric.labels):
                yield Sample(metric.name, own[name], (flow,) if flow else ())


def of_ledger(database: Database, machines: Sequence[Machine]) -> list[Sample]:
    """What the ledger says, each part from a snapshot of its own; what takes too long is left out, and logged."""
    parts: list[Callable[[Cursor], list[Sample]]] = [
        lambda cursor: _gates(database, cursor),
        lambda cursor: [Sample("penstock.workers", sum(w.lease_seconds > 0 for w in workers_of(database, cursor)))],
        _schedules,
        _alerts,
    ]
    parts += [lambda cursor, machine=machine: _machine(database, cursor, machine) for machine in machines]  # type: ignore[misc]
    return list(itertools.chain.from_iterable(_asked(database, part) for part in parts))


def _asked(database: Database, part: Callable[[Cursor], list[Sample]]) -> list[Sample]:
    try:
        return database.read(part)
    except LedgerError as error:
        log.warning("metrics.unanswered", error=str(error))
        return []


def _machine(database: Database, cursor: Cursor, machine: Machine) -> list[Sample]:
    own = (machine.name,)
    counts = {str(s): int(n) for s, n in cursor.rows(f"SELECT status, count(*) FROM {machine.table} GROUP BY status")}
    found = [Sample("penstock.units", counts.get(state, 0), (machine.name, state)) for state in machine.states]
    if not machine.driven:
        return found

    def count(condition: str) -> int:
        return int(cursor.rows(f"SELECT count(*) FROM {machine.table} WHERE {condition}")[0][0])

    found.append(Sample("penstock.units.claimed", count("claimed_by IS NOT NULL"), own))
    found.append(Sample("penstock.units.parked", count("parked_at IS NOT NULL"), own))
    found.append(Sample("penstock.units.dead", count(dead_letters(machine)) if machine.dead else 0, own))
    due, oldest = _due(database, cursor, machine)
    age = 0.0 if oldest is None else max(0.0, (present(database, cursor) - oldest).total_seconds())
    return [*found, Sample("penstock.due", due, own), Sample("penstock.queue.age.seconds", age, own)]


def _due(database: Database, cursor: Cursor, machine: Machine) -> tuple[int, datetime | None]:
    """How many units a worker could take now, and since when the oldest waits."""
    count, oldest = 0, None
    for suspects in (False, True):
        rows = cursor.rows(
            f"SELECT count(*), min(u.{machine.due}) FROM {machine.table} u JOIN gate g ON g.gate_id = u.gate_id"
            f" WHERE {waiting(machine.due, 'u', suspects=suspects)} AND u.{machine.due} <= {database.now_sql}"
            f" AND {is_open(database.now_sql)}",
            **database.bind_now(),
        )
        count += int(rows[0][0])
        oldest = min(filter(None, (oldest, instant(rows[0][1]))), default=None)
    return count, oldest


def _gates(database: Database, cursor: Cursor) -> list[Sample]:
    found = []
    for gate in gate_statuses(database, cursor, counts=True):
        if gate.gate_id != NO_GATE:
            own = (gate.gate_id,)
            found += [
                Sample("penstock.gate.open", int(gate.state in {"open", "busy"}), own),
                Sample("penstock.gate.closures", gate.epoch, own),
                Sample("penstock.gate.waiting", gate.waiting, own),
                Sample("penstock.gate.in.flight", gate.in_flight, own),
            ]
    return found


def _schedules(cursor: Cursor) -> list[Sample]:
    rows = cursor.rows("SELECT name, failures FROM schedule WHERE status = 'active' ORDER BY name")
    return [Sample("penstock.schedule.failures", int(failures), (str(name),)) for name, failures in rows]


def _alerts(cursor: Cursor) -> list[Sample]:
    rows = cursor.rows("SELECT status, severity, count(*) FROM alert GROUP BY status, severity ORDER BY 1, 2")
    return [Sample("penstock.alerts", int(count), (str(state), str(severity))) for state, severity, count in rows]


def render(metrics: Iterable[Metric], samples: Iterable[Sample]) -> tuple[bytes, str]:
    """The text that Prometheus scrapes, and its content type."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.registry import Collector

    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    families = [_family(metric, by_name.get(metric.name, [])) for metric in metrics]

    class Collected(Collector):
        def collect(self) -> list[Any]:
            return families

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected())
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _family(metric: Metric, samples: Iterable[Sample]) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    family = kinds[metric.kind](prometheus_name(metric), metric.says, labels=metric.labels)
    scale = 1_000.0 if metric.name.endswith("_ms") else 1.0
    for sample in samples:
        value = sample.value
        if isinstance(value, Distribution):
            buckets = [("+Inf" if bound == float("inf") else f"{bound / scale:g}", n) for bound, n in value.bounds]
            family.add_metric(sample.labels, buckets, value.total / scale)
        else:
            family.add_metric(sample.labels, value / scale)
    return family

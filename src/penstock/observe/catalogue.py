"""The catalogue of metrics: what is measured, by name, kind and labels. It imports nothing heavy."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """One metric: its name, its kind, what it says, and what tells its samples apart."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    says: str
    labels: tuple[str, ...] = ()


class Distribution(NamedTuple):
    """The sample of a histogram: how many are at most as large as each bound (the last: all), and their sum."""

    bounds: tuple[tuple[float, int], ...]
    total: float


class Sample(NamedTuple):
    """A value of a metric now."""

    name: str
    value: float | Distribution
    labels: tuple[str, ...] = ()


PROCESS = (
    Metric("penstock.claims", "counter", "Units that this process has claimed.", ("flow",)),
    Metric("penstock.commits", "counter", "Outcomes that this process has committed.", ("flow",)),
    Metric(
        "penstock.steps", "counter", "Steps that this process has committed; siblings make one together.", ("flow",)
    ),
    Metric("penstock.claims.lost", "counter", "Claims that this process has lost.", ("flow",)),
    Metric("penstock.commits.refused", "counter", "Outcomes of this process that the ledger refused.", ("flow",)),
    Metric("penstock.steps.failed", "counter", "Steps of this process that failed.", ("flow",)),
    Metric("penstock.units.reaped", "counter", "Units that this process has freed of workers that were gone."),
)
"""What a process counts of itself."""

LEDGER = (
    Metric("penstock.units", "gauge", "Units by state.", ("machine", "state")),
    Metric("penstock.units.claimed", "gauge", "Units that workers hold.", ("machine",)),
    Metric("penstock.units.parked", "gauge", "Units that were set aside for a person.", ("machine",)),
    Metric("penstock.units.dead", "gauge", "Units in a state that means a fault.", ("machine",)),
    Metric("penstock.due", "gauge", "Units that a worker could take now: due, behind an open gate.", ("machine",)),
    Metric("penstock.queue.age.seconds", "gauge", "How long the oldest of these has been due.", ("machine",)),
    Metric("penstock.gate.open", "gauge", "1 where the gate lets calls through, 0 where not.", ("gate",)),
    Metric("penstock.gate.closures", "counter", "How often the gate was closed by its provider.", ("gate",)),
    Metric("penstock.gate.waiting", "gauge", "Units that are due behind the gate.", ("gate",)),
    Metric("penstock.gate.in.flight", "gauge", "Steps under way through the gate.", ("gate",)),
    Metric("penstock.workers", "gauge", "Workers that hold a lease."),
    Metric("penstock.schedule.failures", "gauge", "Runs in a row that failed.", ("schedule",)),
    Metric("penstock.alerts", "gauge", "Alerts by state and severity.", ("state", "severity")),
)
"""What the ledger says, whoever did it."""

CATALOGUE = (*PROCESS, *LEDGER)


def distribution(values: Iterable[float], bounds: Sequence[float]) -> Distribution:
    """How values lie between bounds."""
    ordered = sorted(values)
    counts = [(bound, bisect.bisect_right(ordered, bound)) for bound in bounds]
    return Distribution((*counts, (float("inf"), len(ordered))), float(sum(ordered)))


def prometheus_name(metric: Metric) -> str:
    """The name in Prometheus' style: with underscores, in seconds, a counter with `_total`."""
    name = metric.name.replace(".", "_").removesuffix("_ms")
    name = f"{name}_seconds" if metric.name.endswith("_ms") else name
    return f"{name}_total" if metric.kind == "counter" else name

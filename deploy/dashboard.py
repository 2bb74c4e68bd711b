"""Writes `deploy/grafana.json`: `python -m deploy.dashboard`. One panel for each metric, by subject."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.app.shipped import SHIPPED, shipped
from penstock.observe.catalogue import CATALOGUE, PROCESS, Metric, prometheus_name

FILE = Path(__file__).with_name("grafana.json")
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_WIDE, _HIGH, _COLUMNS = 8, 7, 3
#: Subject to the beginnings of the names that belong to it; the first that fits is taken.
_SUBJECTS = {
    "What needs somebody": ("penstock.alerts", "penstock.units.dead", "penstock.units.parked", "penstock.schedule"),
    "What waits": ("penstock.due", "penstock.queue", "penstock.units.claimed", "penstock.workers"),
    "Gates to providers": ("penstock.gate",),
    "Work done": ("penstock.claims", "penstock.commits", "penstock.steps", "penstock.units.reaped"),
    "Units": ("penstock.units",),
}


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, metrics in _subjects().items():
        panels.append(
            {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _place(0, top, 24, 1)}
        )
        for number, metric in enumerate(metrics):
            left, down = number % _COLUMNS * _WIDE, number // _COLUMNS * _HIGH
            panels.append(_panel(metric) | {"gridPos": _place(left, top + 1 + down, _WIDE, _HIGH)})
        top += 1 + -(-len(metrics) // _COLUMNS) * _HIGH
    return {
        "title": "Penstock",
        "uid": "penstock",
        "tags": ["penstock"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "panels": [{"id": number} | panel for number, panel in enumerate(panels, 1)],
    }


def _subjects() -> dict[str, list[Metric]]:
    found: dict[str, list[Metric]] = {title: [] for title in _SUBJECTS}
    for metric in CATALOGUE:
        found[_subject(metric)].append(metric)
    for one in map(shipped, SHIPPED):
        if one.metrics:
            found[one.name.capitalize()] = list(one.metrics)
    return found


def _subject(metric: Metric) -> str:
    return next(title for title, names in _SUBJECTS.items() if metric.name.startswith(names))


def _place(left: int, top: int, wide: int, high: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": wide, "h": high}


def _panel(metric: Metric) -> dict[str, Any]:
    unit = {"counter": "ops", "gauge": "short", "histogram": "s"}[metric.kind]
    unit = "s" if metric.name.endswith("seconds") else unit
    targets = [
        {"refId": letter, "datasource": _SOURCE, "expr": asked, "legendFormat": legend}
        for letter, (legend, asked) in zip("ABC", queries(metric).items(), strict=False)
    ]
    return {
        "type": "timeseries",
        "title": metric.says.rstrip("."),
        "description": f"`{prometheus_name(metric)}`",
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def queries(metric: Metric) -> Mapping[str, str]:
    """Legend to query. A process counts its own, which is added up; what the ledger says is the same in all."""
    name = prometheus_name(metric)
    by = f" by ({', '.join(metric.labels)})" if metric.labels else ""
    legend = " ".join(f"{{{{{label}}}}}" for label in metric.labels) or "all"
    if metric.kind == "histogram":
        rate = f"max by (le) (rate({name}_bucket[$__rate_interval]))"
        return {f"{share:.0%}": f"histogram_quantile({share}, {rate})" for share in (0.5, 0.95)}
    if metric.kind == "counter":
        whole = "sum" if metric in PROCESS else "max"
        return {legend: f"{whole}{by} (rate({name}[$__rate_interval]))"}
    return {legend: f"max{by} ({name})"}


def panels_of(made: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str]]]:
    """Title and queries of each panel that has any."""
    for panel in made["panels"]:
        if "targets" in panel:
            yield panel["title"], [target["expr"] for target in panel["targets"]]


def text() -> str:
    """What the file is to have."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())

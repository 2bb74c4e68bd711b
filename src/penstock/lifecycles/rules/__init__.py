"""Price rules: see what a rule would change, apply it, survive it, compare it with the shop, and undo it.

`run` and `target` are its driven machines, each with what it decides and how it acts; `lane` lets one run of an account
apply at a time. An account is a price list behind a connector: a shop, or a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.app.lifecycle import Data, Lifecycle
from penstock.lifecycles.rules import alerts, findings, jobs, metrics, operations, readings
from penstock.lifecycles.rules.expects import expects
from penstock.lifecycles.rules.lane import rule_lane
from penstock.lifecycles.rules.needs import needs
from penstock.lifecycles.rules.past import PAST
from penstock.lifecycles.rules.run.machine import rule_run
from penstock.lifecycles.rules.settings import RulesSettings, gate_of
from penstock.lifecycles.rules.target.machine import rule_target
from penstock.model.decider import Decider
from penstock.model.limits import GateLimits, Limit
from penstock.operations.pictures import Shares

if TYPE_CHECKING:
    from penstock.app.ports import Ports
    from penstock.worker.flow import AnyFlow

MACHINES = (rule_run, rule_target, rule_lane)


def data() -> Data:
    """Rules, catalogues, locked SKUs and what comparisons found."""
    from penstock.lifecycles.rules.tables import DATA_TABLES

    return Data(DATA_TABLES)


def build(settings: RulesSettings, ports: Ports) -> Sequence[AnyFlow]:
    """The flows of runs and targets, with connections for every account."""
    from penstock.lifecycles.rules.run.flow import Runs
    from penstock.lifecycles.rules.sources import make_account
    from penstock.lifecycles.rules.target.flow import Targets

    accounts = {name: make_account(name, settings, ports) for name, own in settings.accounts.items() if not own.paused}
    return [Runs(settings, accounts), Targets(settings, accounts)]


def decides() -> Mapping[str, Decider]:
    """What its flows decide, by machine."""
    from penstock.lifecycles.rules.run.decide import decide as run
    from penstock.lifecycles.rules.target.decide import decide as target
    from penstock.lifecycles.rules.target.decide import gate

    return {rule_run.name: Decider(run), rule_target.name: Decider(target, gate=gate)}


def gates(settings: RulesSettings) -> Sequence[GateLimits]:
    """How fast each shop may be called: points of query cost, and calls besides where they are limited."""
    found = []
    for name, own in settings.accounts.items():
        if own.connector != "shopify":
            continue
        limits = []
        if own.points_per_second > 0:
            limits.append(Limit("points", own.points_per_second, own.points_burst))
        if own.requests_per_second > 0:
            limits.append(Limit("requests", own.requests_per_second, own.requests_burst))
        if limits:
            found.append(GateLimits(gate_of(name), tuple(limits)))
    return found


lifecycle = Lifecycle(
    "rules",
    "Prices changed in bulk by rules: previewed, applied, undone.",
    settings=RulesSettings,
    machines=MACHINES,
    data=data,
    past=PAST,
    build=build,
    decides=decides,
    jobs=[jobs.read_catalogue],
    gates=gates,
    schedules=jobs.schedules,
    expects=expects,
    metrics=metrics.METRICS,
    measure=metrics.measure,
    policies=alerts.POLICIES,
    conditions=alerts.CONDITIONS,
    readings=readings.READINGS,
    operations=operations.OPERATIONS,
    pictures=[
        Shares(
            says="What became of the prices of each run.",
            reading=readings.runs,
            name="rule",
            whole="targets",
            parts={"applied": "done", "failed": "fault"},
            note="status",
        )
    ],
    front=[readings.runs, readings.rules, findings.dead, findings.reports],
    needs=needs,
)

"""What flows say that their steps cost, asked for where a claim takes places in budgets."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import structlog

from penstock.ledger.claim import Price
from penstock.ledger.gates.budget import USUAL, Costs
from penstock.model.errors import BrokenFlow
from penstock.worker.flow import AnyFlow, overrides

log = structlog.get_logger()


def prices_of(flows: Iterable[AnyFlow]) -> dict[str, Price]:
    """Of those flows that name costs, by their machines, what a step costs."""
    return {flow.machine.name: functools.partial(price, flow) for flow in flows if overrides(flow, "costs")}


def price(flow: AnyFlow, units: Sequence[Any]) -> Costs:
    """What a step of those units costs; where the flow cannot tell, as much as a usual call, and the log says so."""
    try:
        costs = flow.costs(units)
        wrong = {name: cost for name, cost in costs.items() if not (math.isfinite(cost) and cost >= 0)}
        if wrong:
            raise BrokenFlow(f"costs are numbers from 0 on, not {wrong}")  # noqa: TRY301
    except Exception as error:
        log.exception("flow.costs", job=flow.name, units=[unit.unit_id for unit in units], error=repr(error))
        return USUAL
    return costs

"""What is declared of flows, for `why` and the forecast, is what the flows do."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.app.discover import load
from penstock.app.program import Program
from penstock.app.shipped import SHIPPED
from penstock.ledger import delivery
from penstock.lifecycles.harvest.partition.machine import P, Partition
from penstock.lifecycles.partitions.machine import Extraction, X
from penstock.lifecycles.queries.erasure.machine import Erasure
from penstock.lifecycles.queries.machine import Query
from penstock.lifecycles.reports.machine import Aggregation, Report
from penstock.lifecycles.rules.target.machine import Target
from penstock.model.decider import Decider
from penstock.model.unit import NO_GATE, Unit
from penstock.worker.flow import Flow
from penstock.worker.schedule_unit import Schedule

FEED = '[harvest.feeds.stones]\nusername = "buyer@example.com"\npassword = { file = "password" }\n'


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Every shipped lifecycle, with a feed."""
    folder: Path = tmp_path_factory.mktemp("program")
    (folder / "password").write_text("secret")
    file = folder / "penstock.toml"
    raw = (folder / "raw").as_posix()
    file.write_text(f'[raw]\nurl = "{raw}"\n' + "".join(f"[{name}]\n" for name in SHIPPED) + FEED)
    return load(file, environment={})


def test_what_is_declared_of_the_flows_is_what_they_have(program):
    declared: dict[str, Decider] = {}
    seen = set()
    for lifecycle in program.app.lifecycles:
        declared |= lifecycle.decides()
        for flow in program.flows_of(lifecycle):
            machine = flow.machine.name
            seen.add(machine)
            assert (type(flow).gate is Flow.gate) == (declared[machine].gate is None)
            if declared[machine].decide is None:
                assert machine == delivery.machine.name, "what it decides depends on who subscribes: its flow is built"
                continue
            assert flow.decide is declared[machine].decide
            assert flow.name == (declared[machine].name or machine)
            assert flow.settings in (None, program.settings(lifecycle))
            assert (type(flow).peek is Flow.peek) == (declared[machine].peek is None)
    assert seen == set(declared)


def like(kind: type[Unit], **given: Any) -> Unit:
    """A unit of which only this is known."""
    unknown: dict[str, Any] = dict.fromkeys(one.name for one in msgspec.structs.fields(kind) if one.required)
    return kind(**(unknown | given))


WHEN = datetime(2026, 11, 1, tzinfo=UTC)
SLICE = {"source": "ads", "customer_id": "1", "query_name": "q", "logical_date": date(2026, 11, 1)}
UNITS = [
    like(Schedule, name="nightly"),
    like(delivery.Delivery, subscriber="mail"),
    *(like(Report, account="a/b", aggregation=one) for one in Aggregation),
    *(like(Extraction, status=one, **SLICE) for one in X),
    like(Extraction, backfill=True, **SLICE),
    *(like(Partition, feed=feed, error=error) for feed in ("stones", "gone") for error in (None, "refused")),
    like(Partition, feed="stones", status=P.FETCHING_PAGES, error="cancelled"),
    like(Target, account="shop"),
    like(Target, account="shop", halted=True),
    like(Target, account="shop", halted=True, in_doubt_since=WHEN),
    like(Target, account="shop", halted=True, doubts=1),
    like(Query),
    like(Erasure),
]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: type(unit).__name__)
def test_a_gate_that_is_declared_is_the_one_that_the_flow_asks_for(program, unit):
    for lifecycle in program.app.lifecycles:
        for flow in program.flows_of(lifecycle):
            if flow.machine.unit is type(unit):
                gate = lifecycle.decides()[flow.machine.name].gate
                declared = NO_GATE if gate is None else gate(unit, program.settings(lifecycle))
                assert declared == flow.gate(unit).gate_id
                return
    raise AssertionError("no flow drives it")

"""What `why` says a unit's flow would decide is what the flow decides."""

from __future__ import annotations

from penstock.app.discover import load
from penstock.app.shipped import SHIPPED
from penstock.ledger import delivery
from penstock.model.decider import Decider
from penstock.worker.flow import Flow


def test_what_is_declared_of_the_flows_is_what_they_have(tmp_path):
    file = tmp_path / "penstock.toml"
    raw = (tmp_path / "raw").as_posix()
    file.write_text(f'[raw]\nurl = "{raw}"\n' + "".join(f"[{name}]\n" for name in SHIPPED))
    program = load(file, environment={})
    declared: dict[str, Decider] = {}
    seen = set()
    for lifecycle in program.app.lifecycles:
        declared |= lifecycle.decides()
        for flow in program.flows_of(lifecycle):
            machine = flow.machine.name
            if machine == delivery.machine.name:
                continue  # depends on who subscribes: its flow is built
            seen.add(machine)
            assert flow.decide is declared[machine].decide
            assert flow.name == (declared[machine].name or machine)
            assert flow.settings in (None, program.settings(lifecycle))
            assert (type(flow).peek is Flow.peek) == (declared[machine].peek is None)
    assert seen == set(declared)

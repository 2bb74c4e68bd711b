"""The state machines of a program: their states with what each means, and who may move a unit where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from penstock.model.machine import Machine
from penstock.model.unit import field_types
from penstock.operations.declare import Ask, Lines, Page, reading
from penstock.operations.fields import Parameters, Row, argument, column, option
from penstock.operations.selection import named_machine
from penstock.settings.kernel import KernelSettings


class MachinesWanted(Parameters, frozen=True):
    machine: Annotated[str | None, argument("Only this machine.", example="report")] = None
    format: Annotated[Literal["table", "mermaid"], option("How to show them: as rows, or as diagrams.")] = "table"


class EdgeRow(Row, frozen=True):
    target: Annotated[str, column("Where it leads.", show="state")]
    trigger: Annotated[str, column("What happens.")]
    actors: Annotated[list[str], column("Who may do it.")]
    on_claim: Annotated[bool, column("Whether a claim does it by itself.")]
    by_hand: Annotated[bool, column("Whether 'units move' may do it.")]


class StateRow(Row, frozen=True):
    machine: Annotated[str, column("The machine.")]
    state: Annotated[str, column("The state.", show="state")]
    meaning: Annotated[str, column("rest, work, done, hold or fault.")]
    says: Annotated[str, column("What it means.", show="text")]
    leads_to: Annotated[str, column("Where units go from here, and what takes them there.", show="text")]
    final: Annotated[bool, column("Whether a unit ends here.", show="detail")]
    born_by: Annotated[list[str], column("Who may make a unit in this state.", show="detail")]
    edges: Annotated[list[EdgeRow], column("The ways out of it.", show="detail")]
    table: Annotated[str, column("The machine's table.", show="detail")]
    driven: Annotated[bool, column("Whether workers move its units.", show="detail")]


@reading("machines", "State machines: what each state means, and who moves units.", no_past="it shows what is declared")
def machines(ask: Ask[KernelSettings], wanted: MachinesWanted) -> Page[StateRow] | Lines:
    known = list(ask.reader.machines.values())
    found = known if wanted.machine is None else [named_machine(ask, wanted.machine)]
    if wanted.format == "mermaid":
        return Lines([line for machine in found for line in machine.mermaid().splitlines()])
    return Page(rows=[row for machine in found for row in _states(machine)])


READINGS = [machines]


def _states(machine: Machine) -> Iterator[StateRow]:
    states: Any = field_types(machine.unit)["status"]
    for state in states:
        edges = [
            EdgeRow(
                target=str(edge.target),
                trigger=edge.trigger,
                actors=sorted(map(str, edge.actors)),
                on_claim=edge.on_claim,
                by_hand=edge.by_hand is not None,
            )
            for edge in machine.edges
            if edge.source == state
        ]
        yield StateRow(
            machine=machine.name,
            state=str(state),
            meaning=str(state.meaning),
            says=state.says,
            leads_to=", ".join(f"{edge.trigger} → {edge.target}" for edge in edges),
            final=str(state) in machine.terminal,
            born_by=sorted(map(str, machine.born_by.get(str(state), ()))),
            edges=edges,
            table=machine.table,
            driven=machine.driven,
        )

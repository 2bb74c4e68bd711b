"""What an edge is called in the history: its trigger, as the databases' triggers derive it.

A row of the history knows where a unit came from, where it went and who moved it. That names the edge; where several
edges fit, all of them are named, in the order of their declaration.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.ledger.schema.foreign import Same
from penstock.model.machine import Machine


def edge_name(machine: Machine, source: str, target: str, who: str, same: Same) -> str:
    """SQL for the trigger of the edge that was pulled; NULL where none was.

    `source` and `target` are the states, `who` the word that begins `changed_by`.
    """
    sources: dict[str, dict[str, str]] = {}
    for (start, end), actors in _triggers(machine).items():
        named = _of_pair(machine, stays=start == end, actors=actors, who=who, same=same)
        if named is not None:
            sources.setdefault(start, {})[end] = named
    if not sources:
        return "NULL"
    cases = (f"WHEN '{start}' THEN {_case(target, ends)}" for start, ends in sources.items())
    return f"CASE {source} {' '.join(cases)} END"


def _case(value: str, choices: Mapping[str, str]) -> str:
    return f"CASE {value} " + " ".join(f"WHEN '{one}' THEN {then}" for one, then in choices.items()) + " END"


def _triggers(machine: Machine) -> dict[tuple[str, str], dict[str, str]]:
    """Pair of states to what the edge between them is called when this actor pulls it."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for edge in machine.edges:
        for actor in sorted(map(str, edge.actors)):
            found.setdefault((str(edge.source), str(edge.target)), {}).setdefault(actor, []).append(edge.trigger)
    return {pair: {actor: ", ".join(names) for actor, names in actors.items()} for pair, actors in found.items()}


def _of_pair(machine: Machine, *, stays: bool, actors: Mapping[str, str], who: str, same: Same) -> str | None:
    named = _case(who, {actor: f"'{triggers}'" for actor, triggers in actors.items()})
    if not stays or not machine.driven:
        return named
    # A driven unit that is woken or parked stays too, and nobody pulled anything: who changes a tracked column does.
    changed = " OR ".join(f"NOT {same(column)}" for column in machine.tracked)
    return f"CASE WHEN {changed} THEN {named} END" if changed else None

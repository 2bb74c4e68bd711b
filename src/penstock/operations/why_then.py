"""Why a unit stood as it did at a moment that is over: what is known of that still, link by link, and what is not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.ledger.past import DUE_KNOWN, UNTOUCHED
from penstock.model import spoken
from penstock.model.clock import instant_text
from penstock.model.errors import UnknownUnit
from penstock.model.unit import NO_GATE, Ref, Unit, parse_key
from penstock.operations.declare import Ask
from penstock.operations.gates import GateList, list_gates
from penstock.operations.past import unit_then
from penstock.operations.why import Deciding, Link, Why, decision_of, family_of, job_of, state_of, verdict_of

if TYPE_CHECKING:
    from penstock.model.machine import Machine
    from penstock.worker.flow import AnyFlow

_CHANGED_SINCE = "not known any more: it has changed since"


def explain_then(ask: Ask[Any], flow: AnyFlow | Deciding | str, ref: Ref, at: datetime) -> Why:
    """Follow the chain of one unit as it stood.

    Raises BadReference; UnknownUnit where it was not there, or is gone since; UsageError where its history was pruned.
    """
    machine, then = ask.reader.machine(ref.machine), ask.then(at)
    parse_key(machine.unit, ref.unit_id)
    kept = ask.reader.keeps(machine)
    for unit in then.reader.get_many(machine, [ref.unit_id]) if kept else ():
        return _Then(ask, machine, unit, at).explained(flow)
    stood = unit_then(ask, ref, at)
    raise UnknownUnit(
        f"{ref} was {stood.status} at {instant_text(at)}, and is gone since: 'units show' says what is known"
    )


class _Then:
    def __init__(self, ask: Ask[Any], machine: Machine, unit: Any, at: datetime) -> None:
        self._ask = ask
        self._machine = machine
        self._unit = unit
        self._at = at
        self._unknown: list[str] = []
        flags = f"{UNTOUCHED}, {DUE_KNOWN if machine.driven else UNTOUCHED}"
        sql = f"SELECT {flags} FROM {machine.table} WHERE unit_id = :unit_id"
        ((untouched, due_known),) = ask.then(at).reader.read(lambda cursor: cursor.rows(sql, unit_id=unit.unit_id))
        self._untouched, self._due_known = bool(untouched), bool(due_known)

    def explained(self, flow: AnyFlow | Deciding | str) -> Why:
        machine, unit = self._machine, self._unit
        moves = isinstance(unit, Unit) and str(unit.status) not in machine.terminal
        links = [state_of(machine, unit)]
        if moves:
            links += [*job_of(machine, flow), *self._park(), *self._due(), *self._claim(), *self._gate()]
        reader = self._ask.then(self._at).reader
        links += reader.read(lambda cursor: list(family_of(reader, cursor, machine, unit)))
        if moves:
            links += self._decision(flow)
        ref = str(Ref(machine.name, unit.unit_id))
        return Why(ref, self._at, links, *self._verdict(links, moves=moves))

    def _lost(self, topic: str) -> Link:
        self._unknown.append(topic)
        return Link(topic, _CHANGED_SINCE)

    def _park(self) -> Iterator[Link]:
        if self._unit.parked_at is not None:
            yield Link("park", f"set aside for a person: {self._unit.parked_reason}", holds=True, blocks=True)
        elif not self._untouched:
            yield self._lost("park")

    def _due(self) -> Iterator[Link]:
        due = self._unit.due_at
        if not self._due_known:
            yield self._lost("due")
        elif due is None:
            yield Link("due", "nothing was scheduled", holds=True)
        else:
            later = due > self._at
            yield Link("due", "not yet" if later else "now", holds=later, until=due if later else None)

    def _claim(self) -> Iterator[Link]:
        """Who held it is never known: claims leave no trace."""
        from penstock.ledger.history import workers_of

        database, name = self._ask.reader.database, self._machine.name
        workers = database.read(lambda cursor: workers_of(database, cursor, self._at))
        able = sum(name in one.machines for one in workers)
        if able:
            yield Link(
                "claim", f"{spoken.counted(able, 'running worker')} could take it; whether one had it is not known"
            )
        else:
            unserved = self._due_known and self._unit.due_at is not None
            yield Link("claim", f"no running worker that is known served {name}", holds=True, blocks=unserved)

    def _gate(self) -> Iterator[Link]:
        gate_id = self._unit.gate_id
        if gate_id is None:
            yield self._lost("gate")
        elif gate_id == NO_GATE:
            yield Link("gate", "it needed none")
        else:
            found = [one for one in list_gates(self._ask, GateList(at=self._at)).rows if one.gate == gate_id]
            for gate in found:
                shut = gate.state not in {"open", "half-open"}
                said = f"{gate_id} was {gate.state}{f': {gate.reason}' if gate.reason else ''}; its budget is not known"
                yield Link("gate", said, holds=shut, until=gate.until, blocks=shut and gate.until is None)

    def _decision(self, flow: AnyFlow | Deciding | str) -> Iterator[Link]:
        """What its flow decides of it, with the settings of today."""
        if not self._untouched or not self._due_known:
            yield self._lost("decision")
            return
        unit = self._ask.reader.get(Ref(self._machine.name, self._unit.unit_id))
        assert isinstance(unit, Unit)  # noqa: S101 - only driven ones are decided about
        yield from decision_of(self._ask.reader, self._machine, unit, self._at, flow, look=False)

    def _verdict(self, links: list[Link], *, moves: bool) -> tuple[str, datetime | None]:
        said, until = verdict_of(self._machine, self._unit, links, self._at)
        if any(link.holds for link in links) or not moves:
            return said, None if self._unknown else until
        if self._unknown:
            return f"what held it back, if anything, is not known any more: {', '.join(self._unknown)}", None
        return f"nothing held this {self._machine.name} back: a worker had it, or took it next", self._at

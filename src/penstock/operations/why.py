"""Why a unit stands as it does: the chain that decides what happens to it, link by link, and when any of it can change.

The decision at the end of the chain is made by the flow's own `decide`, the one that workers use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from penstock.model import spoken
from penstock.model.cadence import Cadence
from penstock.model.machine import Actor, Machine
from penstock.model.outcome import Act, Look, Wait
from penstock.model.unit import NO_GATE, GuardedUnit, Ref, Unit, key_part, replace
from penstock.operations.fields import column
from penstock.operations.reader import Reader
from penstock.worker.schedule_unit import Schedule, cadence_of

if TYPE_CHECKING:
    from penstock.ledger.gates.status import GateStatus
    from penstock.ledger.history import WorkerStatus
    from penstock.ledger.ledger import Ledger
    from penstock.ledger.store.database import Cursor
    from penstock.model.outcome import Decision
    from penstock.worker.flow import AnyFlow

_PLACE = "place"
_THEN_WAIT = "then wait: "
_NAMED = 3


class Link(msgspec.Struct, frozen=True):
    """One link: what it is about, what it says, whether it holds the unit back, and until when where that is known."""

    topic: Annotated[str, column("What it is about.", heading="what")]
    says: Annotated[str, column("What there is to say about it.", show="text")]
    holds: Annotated[bool, column("Whether it holds the unit back.", heading="holds it back")] = False
    until: Annotated[datetime | None, column("Until when, where that is known.")] = None
    blocks: Annotated[
        bool, column("Whether it holds the unit back until somebody does something about it.", heading="needs somebody")
    ] = False


class Why(msgspec.Struct, frozen=True):
    """The whole chain."""

    unit: Annotated[str, column("The unit.", show="reference")]
    now: Annotated[datetime, column("When it was asked.", show="detail")]
    links: Annotated[list[Link], column("What decides about it, link by link.")]
    verdict: Annotated[str, column("The result, in a few words.")]
    next_at: Annotated[
        datetime | None,
        column("When something can change by itself; empty if somebody must act.", heading="next change"),
    ]


class Deciding(NamedTuple):
    """How units of one machine are decided, where their flow was not built."""

    name: str
    decide: Callable[[Any, datetime, Any, Any], Decision]
    settings: Any
    peek: Callable[[Any, Any], Any] | None


def explain(ledger: Ledger | Reader, flow: AnyFlow | Deciding | str, ref: Ref) -> Why:
    """Follow the chain of one unit. Raises UnknownMachine, BadReference or UnknownUnit."""
    from penstock.ledger.gates.status import gate_statuses
    from penstock.ledger.history import workers_of
    from penstock.ledger.store.database import present

    unit, machine = ledger.get(ref), ledger.machine(ref.machine)
    database = ledger.database
    now, workers = ledger.read(lambda cursor: (present(database, cursor), workers_of(database, cursor)))
    links = [state_of(machine, unit)]
    ended = str(unit.status) in machine.terminal
    if isinstance(unit, Unit) and not ended:
        links += job_of(machine, flow)
        links += _driven(machine, unit, now, workers)
        gates = {g.gate_id: g for g in ledger.read(lambda cursor: gate_statuses(database, cursor))}
        full = ledger.read(lambda cursor: list(_places(ledger, cursor, unit, gates, workers)))
        links += [*_gate(unit, gates, full=bool(full)), *full]
    links += ledger.read(lambda cursor: list(family_of(ledger, cursor, machine, unit)))
    if isinstance(unit, Unit) and not ended:
        links += decision_of(ledger, machine, unit, now, flow)
    return Why(str(ref), now, links, *verdict_of(machine, unit, links, now))


def state_of(machine: Machine, unit: GuardedUnit) -> Link:
    what = f"{unit.status} ({machine.status(unit.status).says})"
    by = f", by {unit.changed_by}" if unit.changed_by else ""  # of the past, a baseline is nobody's
    says = f"{what}{by}: {unit.change_reason or 'no reason given'}"
    by_hand = [e for e in machine.edges if e.source == unit.status and Actor.OPERATOR in e.actors]
    if by_hand:
        says += "; operators can " + " or ".join(f"{e.trigger} it (→ {e.target})" for e in by_hand)
    if str(unit.status) in machine.terminal:
        return Link("state", f"{says}; the state is final", holds=True)
    if not machine.driven:
        return Link("state", f"{says}; workers do not move it", holds=True)
    return Link("state", says)


def job_of(machine: Machine, flow: AnyFlow | Deciding | str) -> Iterator[Link]:
    """What its steps are called, where that is not the machine's own name."""
    if not isinstance(flow, str) and flow.name != machine.name:
        yield Link("job", flow.name)


def _driven(machine: Machine, unit: Unit, now: datetime, workers: list[WorkerStatus]) -> Iterator[Link]:
    if unit.parked_at is not None:
        yield Link("park", f"set aside for a person: {unit.parked_reason}", holds=True, blocks=True)
    if unit.attempts or unit.crashes:
        retried = f"{unit.attempts} {'retry' if unit.attempts == 1 else 'retries'} made" if unit.attempts else ""
        broke = f"{unit.crashes} {'step' if unit.crashes == 1 else 'steps in a row'} broke" if unit.crashes else ""
        yield Link("retries", ", ".join(filter(None, (retried, broke))))
    if unit.doubts:
        yield Link("doubt", "nobody knows what its last step did: the next one looks first")
    if unit.suspicion:
        died = "a worker" if unit.suspicion == 1 else f"{unit.suspicion} workers in a row"
        yield Link("suspicion", f"{died} died while holding it: it is stepped apart from the others")
    if unit.due_at is None:
        yield Link("due", "nothing is scheduled", holds=True)
    else:
        later = unit.due_at > now
        yield Link("due", "not yet" if later else "now", holds=later, until=unit.due_at if later else None)
    if unit.claimed_by is not None:
        holder = next((w for w in workers if w.id == unit.claimed_by), None)
        said = f"a worker that is gone, {unit.claimed_by}; the next claim frees it"
        if holder is not None:
            left = f"its lease has {holder.lease_seconds:.0f} s left"
            said = f"{holder.id} (pid {holder.pid} on {holder.host}) is working on it; {left}"
        yield Link("claim", said)
    else:
        able = [w for w in workers if machine.name in w.machines]
        said = f"free; {spoken.counted(len(able), 'running worker')} can take it"
        if not able:
            said = f"no running worker serves {machine.name}"
        unserved = not able and unit.due_at is not None
        yield Link("claim", said, holds=not able, blocks=unserved)
    if isinstance(unit, Schedule):
        yield _window(unit, cadence_of(unit), now)


def _window(unit: Schedule, cadence: Cadence, now: datetime) -> Link:
    often = f"every {unit.every}" if unit.every else f"at {', '.join(unit.at or [])}"
    hours = f", between {unit.hours}" if unit.hours else ""
    following = cadence.next_after(now, unit.name)
    return Link("window", f"{often}{hours} ({unit.time_zone}); the tick after now is {following:%Y-%m-%d %H:%M:%S} UTC")


def _gate(unit: Unit, gates: Mapping[str, GateStatus], *, full: bool) -> Iterator[Link]:
    if unit.gate_id == NO_GATE:
        yield Link("gate", "it needs none")
        return
    gate = gates[unit.gate_id]
    shut = gate.state not in {"open", "half-open"} or gate.until is not None
    reason = f": {gate.reason}" if gate.reason else ""
    held = shut and gate.until is None
    # Whoever is inside needs no room. A gate that is full is asked again now and then, which is not when it has room.
    if not (gate.state == "busy" and (full or unit.claimed_by is not None)):
        yield Link("gate", f"{gate.gate_id} is {gate.state}{reason}", holds=shut, until=gate.until, blocks=held)
    for limit in gate.limits:
        said = f"{limit.name}: {limit.left:,.4g} of {limit.burst:,.4g} left, {limit.rate:,.4g} come back per second"
        yield Link("budget", f"{said}, a call takes {limit.cost:,.4g}")


def _places(
    ledger: Ledger | Reader, cursor: Cursor, unit: Unit, gates: Mapping[str, GateStatus], workers: list[WorkerStatus]
) -> Iterator[Link]:
    """Who is inside a gate that lets in only so many at once, where there is no room for one more."""
    from penstock.ledger.gates.in_flight import steps_in_flight

    gate = gates.get(unit.gate_id)
    if gate is None or gate.max_in_flight is None or unit.claimed_by is not None:
        return
    inside = steps_in_flight(cursor, "t.gate_id = :gate", gate=gate.gate_id)[gate.gate_id]
    if inside < gate.max_in_flight:
        return
    hosts = {worker.id: f"{worker.id} (pid {worker.pid} on {worker.host})" for worker in workers}
    taken = []
    for machine in ledger.machines.values():
        if machine.driven:
            sql = f"SELECT unit_id, claimed_by FROM {machine.table} WHERE gate_id = :gate AND claimed_by IS NOT NULL"
            rows = cursor.rows(f"{sql} ORDER BY claimed_at LIMIT {_NAMED}", gate=gate.gate_id)
            taken += [f"{hosts[by]} has {machine.name}:{key}" for key, by in rows if by in hosts]
    named = f": {', '.join(taken[:_NAMED])}" if taken else ""
    places = "its one place is" if gate.max_in_flight == 1 else f"all of its {gate.max_in_flight:,} places are"
    yield Link(_PLACE, f"{gate.gate_id} is full, {places} taken{named}", holds=True)


def family_of(ledger: Ledger | Reader, cursor: Cursor, machine: Machine, unit: GuardedUnit) -> Iterator[Link]:
    if machine.parent is not None:
        by = "/".join(key_part(getattr(unit, name)) for name in machine.parent.by)
        yield Link("parent", f"it counts for {machine.parent.machine}:{by}")
    for child in ledger.machines.values():
        fan_in = child.parent
        if fan_in is None or fan_in.machine != machine.name:
            continue
        same = " AND ".join(f"c.{mine} = p.{theirs}" for mine, theirs in zip(fan_in.by, machine.unit.key, strict=True))
        both = f"{child.table} c JOIN {machine.table} p ON {same}"
        sql = f"SELECT c.status, count(*) FROM {both} WHERE p.unit_id = :unit_id GROUP BY c.status"
        rows = cursor.rows(sql, unit_id=unit.unit_id)
        ended = {str(s) for states in fan_in.counts.values() for s in states}
        done = sum(n for state, n in rows if state in ended)
        expected = getattr(unit, fan_in.expected)
        of = "" if expected is None else f" of {expected:,}"
        yield Link("children", f"{done:,}{of} {child.name} units have ended; the last one wakes it")


def _peeked(ledger: Ledger | Reader, unit: Unit, flow: AnyFlow | Deciding) -> Any:
    if isinstance(flow, Deciding):
        return flow.peek(unit, ledger) if flow.peek is not None else None
    return flow.peek(unit, ledger.as_ledger() if isinstance(ledger, Reader) else ledger)


def decision_of(
    ledger: Ledger | Reader,
    machine: Machine,
    unit: Unit,
    now: datetime,
    flow: AnyFlow | Deciding | str,
    *,
    look: bool = True,
) -> Iterator[Link]:
    """What its flow makes of it; where that depends on the world, by a `look`."""
    if isinstance(flow, str):
        yield Link("decision", flow, holds=True, blocks=True)
        return
    edge = machine.on_claim.get(str(unit.status))
    if edge is not None:
        unit = replace(unit, status=type(unit.status)(edge.target))
        yield Link("decision", f"a claim makes it {edge.target} ({edge.trigger})")
    moment = max(now, unit.due_at or now)
    try:
        decision = flow.decide(unit, moment, flow.settings, None)
        if look and isinstance(decision, Look):
            seen = _peeked(ledger, unit, flow)
            decision = decision if seen is None else flow.decide(unit, moment, flow.settings, seen)
    except Exception as error:  # noqa: BLE001 - a handler's bug is what is being asked about
        yield Link("decision", f"decide fails: {type(error).__name__}: {error}", holds=True, blocks=True)
        return
    if isinstance(decision, Act):
        yield Link("decision", f"then {decision.what}: {decision.reason}")
    elif isinstance(decision, Look):
        yield Link("decision", f"then look: {decision.reason}")
    elif isinstance(decision, Wait):
        yield Link("decision", f"{_THEN_WAIT}{decision.reason}", holds=True, until=decision.until)


def verdict_of(machine: Machine, unit: GuardedUnit, links: list[Link], now: datetime) -> tuple[str, datetime | None]:
    if str(unit.status) in machine.terminal:
        return "has ended", None
    holding = [link for link in links if link.holds]
    blocking = [link for link in holding if link.blocks]
    if blocking:
        return f"blocked: {blocking[0].says}", None
    resting = [link for link in holding if link.until is None and link.topic != _PLACE]
    if resting:
        if str(unit.status) in machine.dead:
            return f"is a dead letter: {unit.change_reason or 'no reason given'}", None
        return f"rests: {resting[0].says}", None
    if full := [link for link in holding if link.topic == _PLACE and len(holding) == 1]:
        return f"waits: {full[0].says}", now
    if holding:
        last: Any = max(holding, key=lambda link: link.until or now)
        return f"waits: {last.says.removeprefix(_THEN_WAIT) if last.topic == 'decision' else last.topic}", last.until
    if isinstance(unit, Unit) and unit.claimed_by is not None:
        return "a worker is working on it", now
    return f"a worker takes it next; nothing holds this {machine.name} back", now

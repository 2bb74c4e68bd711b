"""The digest of a plan: what a person saw and agreed to, so that nothing else is carried out.

It covers the operation, its parameters, the version of the configuration, and the set of changes. It leaves out the
clock, who asks, why and in which request (where they are among the values of a change, words stand for them), and the
units' versions: with them a plan over a living system would never be the same twice. A unit that changed is
skipped when the plan is carried out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import singledispatch
from typing import Any
from uuid import UUID

import msgspec

from penstock.model.outcome import Move
from penstock.model.unit import GuardedUnit, Ref, field_types
from penstock.operations.declare import Ask
from penstock.operations.fields import Parameters
from penstock.operations.plan import Births, Each, GateChange, Issue, Park, Plan, Together, Unpark, Wake

#: Columns of the kernel that follow from the act itself.
_MADE = frozenset({"version", "changed_by", "change_reason", "changed_at", "wakes", "unit_id"})
#: And those by which the kernel schedules a unit: of a living one they change at any moment.
_SCHEDULED = frozenset({"due_at", "attempts", "crashes", "doubts", "suspicion", "claimed_by"})
_LENGTH = 16


def digest(name: str, parameters: Parameters, version: str, plan: Plan, ask: Ask[Any]) -> str:
    """Sixteen characters that stand for the plan."""
    told = hashlib.sha256()
    told.update(_encode([name, msgspec.to_builtins(parameters), version, type(plan).__name__]))
    for line in sorted(_encode(_plain(fact, ask)) for fact in _facts(plan)):
        told.update(line)
    return told.hexdigest()[:_LENGTH]


@singledispatch
def _facts(plan: Plan) -> Iterator[list[Any]]:
    """What would be changed, one fact for each unit or row."""
    raise NotImplementedError(type(plan))


@_facts.register
def _(plan: Each) -> Iterator[list[Any]]:
    for part in plan.parts:
        for unit_id, _ in part.units:
            yield [plan.machine.name, unit_id, part.source, part.target, dict(part.changes)]


@_facts.register
def _(plan: Together) -> Iterator[list[Any]]:
    yield from map(_move, plan.moves)
    yield from (["born", type(birth.unit).__name__, _columns(birth.unit)] for birth in plan.births)
    for write in (*plan.first, *plan.writes):
        rows = [_kept(row) if isinstance(row, Mapping) else list(row) for row in write.rows]
        yield ["write", write.table.name, rows]
    for event in plan.events:
        yield ["event", event.kind]
    if plan.then is not None:
        yield from _facts(plan.then)


@_facts.register
def _(plan: Births) -> Iterator[list[Any]]:
    for unit in plan.units:
        yield ["born", plan.machine.name, str(unit.status), _columns(unit)]
    for product in plan.products:
        yield ["product", product.machine.name, [list(row.values()) for row in product.these.rows]]
        yield ["product", product.machine.name, [_without_due(row) for row in product.those.rows]]


@_facts.register
def _(plan: GateChange) -> Iterator[list[Any]]:
    yield ["gate", plan.name, plan.pause, plan.span and plan.span.total_seconds(), *plan.gates]


@_facts.register
def _(plan: Issue) -> Iterator[list[Any]]:
    spans = {name: span.total_seconds() for name, span in plan.moments.items()}
    yield ["issue", plan.table.name, dict(plan.row), spans]


@_facts.register(Wake)
@_facts.register(Park)
@_facts.register(Unpark)
def _(plan: Wake | Park | Unpark) -> Iterator[list[Any]]:
    for ref in plan.refs:
        yield [str(ref)]


def _kept(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name == "unit_id" or name not in _MADE}


def _without_due(row: Mapping[str, Any]) -> list[Any]:
    return [value for name, value in row.items() if name != "due_at"]


def _move(move: Move) -> list[Any]:
    before, after = move.before, move.after
    names = [name for name in field_types(type(after)) if name not in _SCHEDULED]
    changed = {name: getattr(after, name) for name in names if getattr(after, name) != getattr(before, name)}
    return ["move", type(after).__name__, before.unit_id, str(before.status), _without(changed)]


def _columns(unit: GuardedUnit) -> dict[str, Any]:
    return _without({name: getattr(unit, name) for name in field_types(type(unit))})


def _without(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in _MADE}


def _plain(value: Any, ask: Ask[Any]) -> Any:
    """Words for the moment of the plan, for who asks, why, and in which request."""
    if isinstance(value, datetime):
        return "now" if value == ask.now else value.isoformat()
    if isinstance(value, (str, UUID)):
        return "request" if str(value) == ask.request else _unsaid(str(value), ask)
    if isinstance(value, Mapping):
        return {str(name): _plain(value[name], ask) for name in sorted(value, key=str)}
    if isinstance(value, (list, tuple)) and not isinstance(value, Ref):
        return [_plain(one, ask) for one in value]
    return value


def _unsaid(text: str, ask: Ask[Any]) -> str:
    """Without the name and the reason, alone or as the end of a sentence: "cancelled by NAME: REASON"."""
    said = f"{ask.who}: {ask.reason}"
    if text.endswith(said):
        return f"{text.removesuffix(said)}who: why"
    return {ask.who: "who", ask.reason: "why"}.get(text, text) if text else text


def _encode(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=str, order="deterministic")

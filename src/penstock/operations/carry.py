"""Showing a plan and carrying it out: the one way from an operation to the ledger, for every surface.

A plan is shown with its count, a sample, what is skipped and why, and its digest. An act that carries the digest of
what was shown is refused whole when the set has changed since; a single unit that changed is skipped with its reason.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, assert_never

import msgspec

from penstock.model.errors import LedgerRefused, PlanChanged, UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Birth, Event, Move, Write
from penstock.model.unit import NOW, Ref, field_types, unit_id_of
from penstock.operations.declare import Ask, Operation
from penstock.operations.digest import digest
from penstock.operations.fields import Parameters
from penstock.operations.plan import Births, Each, GateChange, Issue, Park, Part, Plan, Skipped, Together, Unpark, Wake

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger

KERNEL = "kernel"
"""The lifecycle of the kernel's own machines and commands."""
BULK_FROM = 1_000
"""More moves than that become a bulk action."""
_SAMPLE = 10
_AT_ONCE = 1_000
_TRIES = 5


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """A plan as it is shown before it is carried out."""

    operation: str
    says: str
    count: int
    sample: list[str]
    #: Reason to how many are left as they are for it.
    skipped: dict[str, int]
    skipped_sample: dict[str, str]
    warnings: list[str]
    digest: str
    bulk: bool


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What an act came to.

    `action` is the bulk action that goes on with it, `follows` a unit to be waited for, `secret` what is shown once.
    """

    operation: str
    says: str
    count: int
    skipped: dict[str, int]
    skipped_sample: dict[str, str]
    action: str | None = None
    follows: str | None = None
    secret: str | None = None


@dataclass(slots=True)
class Carried:
    """Counts while a plan is carried out."""

    count: int = 0
    skipped: dict[Ref, str] = field(default_factory=dict)
    action: Ref | None = None
    secret: str | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """An operation's plan, and what is shown of it."""

    operation: Operation[Any]
    parameters: Parameters
    plan: Plan
    preview: Preview
    version: str = ""


def make_plan(operation: Operation[Any], ask: Ask[Any], parameters: Parameters, *, owner: str, version: str) -> Planned:
    """Plan an operation. Raises UsageError where it cannot be done, or a reason is wanted and none is given."""
    # As its command is called: those of the kernel have no group of its name.
    name = operation.name if owner == KERNEL else f"{owner} {operation.name}"
    if operation.wants_reason and not ask.reason.strip():
        raise UsageError(f"{name} needs a reason; the history keeps why something was done by hand")
    plan: Plan = operation(ask, parameters)
    skipped: Skipped = getattr(plan, "skipped", {})
    preview = Preview(
        operation=name,
        says=plan.says,
        count=len(plan),
        sample=[str(one) for one in itertools.islice(_named(plan, ask), _SAMPLE)],
        skipped=dict(Counter(skipped.values())),
        skipped_sample={str(ref): why for ref, why in itertools.islice(skipped.items(), _SAMPLE)},
        warnings=list(getattr(plan, "warnings", ())),
        digest=digest(name, parameters, version, plan, ask),
        bulk=_is_bulk(plan),
    )
    return Planned(operation, parameters, plan, preview, version)


def check_digest(planned: Planned, seen: str | None) -> None:
    """Refuse a plan that is another than the one that was seen. Raises PlanChanged."""
    if seen is not None and seen != planned.preview.digest:
        msg = (
            f"{planned.preview.operation}: what it would change is no longer what was shown (digest {seen}, now"
            f" {planned.preview.digest}); look at the new plan first"
        )
        raise PlanChanged(msg)


def carry_out(
    ledger: Ledger, ask: Ask[Any], planned: Planned, progress: Callable[[int, int | None], None] = lambda *_: None
) -> Done:
    """Do what was planned. What changed since the plan was made is skipped, and told.

    What is done in one transaction cannot skip: if a unit of it has changed, it is planned again, and done if that
    comes to the same. Raises PlanChanged if it does not, and LedgerRefused if the units never rest.
    """
    from penstock.ledger.commit import OthersMissed

    for _ in range(_TRIES):
        try:
            return _carry_out(ledger, ask, planned, progress)
        except OthersMissed as missed:
            planned = _planned_again(ask, planned, missed)
    raise LedgerRefused(f"{planned.preview.operation}: its units change faster than they can be acted on; try again")


def _planned_again(ask: Ask[Any], planned: Planned, missed: Exception) -> Planned:
    if not isinstance(planned.plan, Together):
        raise missed
    owner = planned.preview.operation.removesuffix(f" {planned.operation.name}")
    again = make_plan(planned.operation, ask, planned.parameters, owner=owner, version=planned.version)
    check_digest(again, planned.preview.digest)
    return again


def _carry_out(ledger: Ledger, ask: Ask[Any], planned: Planned, progress: Callable[[int, int | None], None]) -> Done:
    carried = Carried()
    plan = planned.plan
    follow = plan.follow if isinstance(plan, Together) else None
    _write_first(ledger, plan, progress)
    if _is_bulk(plan):
        from penstock.operations.bulk.actions import start

        carried.action = start(ledger, planned, who=ask.who, reason=ask.reason)
        if isinstance(plan, Together) and plan.then is not None:
            carried.count = len(plan) - len(plan.then)
    else:
        _carry(ledger, ask, plan, carried, progress)
    skipped = {**getattr(plan, "skipped", {}), **carried.skipped}
    return Done(
        operation=planned.preview.operation,
        says=plan.says,
        count=carried.count,
        skipped=dict(Counter(skipped.values())),
        skipped_sample={str(ref): why for ref, why in itertools.islice(skipped.items(), _SAMPLE)},
        action=None if carried.action is None else str(carried.action),
        follows=None if follow is None else str(follow.ref),
        secret=carried.secret,
    )


def _write_first(ledger: Ledger, plan: Plan, progress: Callable[[int, int | None], None]) -> None:
    """Rows that mean nothing yet, some thousands in each transaction."""
    first = plan.first if isinstance(plan, Together) else ()
    written, total = 0, sum(len(write.rows) for write in first)
    for write in first:
        ledger.write([write])
        written += len(write.rows)
        progress(written, total)


def _is_bulk(plan: Plan) -> bool:
    if isinstance(plan, Together):
        return plan.then is not None and len(plan.then) > 0
    return isinstance(plan, Each) and len(plan) > BULK_FROM


def _carry(
    ledger: Ledger, ask: Ask[Any], plan: Plan, carried: Carried, progress: Callable[[int, int | None], None]
) -> None:
    if isinstance(plan, Each):
        for part in plan.parts:
            _move_part(ledger, ask, plan, part, carried)
            progress(carried.count, len(plan))
    elif isinstance(plan, Together):
        others: list[Birth | Move] = [*plan.births, *plan.moves]
        if others:
            ledger.together(others, who=ask.who, writes=plan.writes, events=plan.events)
        else:
            ledger.write(plan.writes, plan.events)
        carried.count = len(plan)
    elif isinstance(plan, Births):
        carried.count = _give_birth(ledger, ask, plan, progress)
    elif isinstance(plan, (Wake, Park, Unpark)):
        _ask_attention(ledger, ask, plan, carried, progress)
    elif isinstance(plan, GateChange):
        carried.count = _change_gates(ledger, ask, plan)
    elif isinstance(plan, Issue):
        carried.count, carried.secret = 1, _issue(ledger, ask, plan)
    else:
        assert_never(plan)


def _move_part(ledger: Ledger, ask: Ask[Any], plan: Each, part: Part, carried: Carried) -> None:
    """Move units that are still as they were seen."""
    changes = at_once(plan, part, ask.now)
    for start in range(0, len(part.units), _AT_ONCE):
        seen = dict(part.units[start : start + _AT_ONCE])
        moved = ledger.move_many(
            plan.machine.name, seen, part.target, actor=Actor.OPERATOR, who=ask.who, reason=ask.reason, **changes
        )
        carried.count += len(moved.moved)
        carried.skipped |= moved.skipped


def _ask_attention(
    ledger: Ledger,
    ask: Ask[Any],
    plan: Wake | Park | Unpark,
    carried: Carried,
    progress: Callable[[int, int | None], None],
) -> None:
    """Wake, park or unpark, a thousand at a time; what has changed meanwhile is skipped."""
    verb = {Wake: ledger.wake, Park: ledger.park, Unpark: ledger.unpark}[type(plan)]
    for start in range(0, len(plan.refs), _AT_ONCE):
        done = verb(plan.refs[start : start + _AT_ONCE], who=ask.who, reason=ask.reason)
        carried.count += len(done.moved)
        carried.skipped |= done.skipped
        progress(carried.count, len(plan))


def at_once(plan: Each, part: Part, now: datetime) -> dict[str, Any]:
    """The changes of a part, with the moment in place of the word for it."""
    types = field_types(plan.machine.unit)
    return {n: now if v == NOW and datetime in _kinds(types[n]) else v for n, v in part.changes.items()}


def _kinds(kind: Any) -> Sequence[Any]:
    return getattr(kind, "__args__", None) or (kind,)


def _give_birth(ledger: Ledger, ask: Ask[Any], plan: Births, progress: Callable[[int, int | None], None]) -> int:
    from penstock.ledger.births import birth_products

    born, total = 0, len(plan)
    if plan.units:
        born += ledger.birth(plan.units, actor=Actor.OPERATOR, who=ask.who, reason=ask.reason, if_absent=True)
        progress(len(plan.units), total)
    asked = len(plan.units)
    for product in plan.products:
        born += birth_products(ledger, [product], actor=Actor.OPERATOR, who=ask.who, reason=ask.reason)
        asked += len(product)
        progress(asked, total)
    return born


def _change_gates(ledger: Ledger, ask: Ask[Any], plan: GateChange) -> int:
    who = f"{Actor.OPERATOR}:{ask.who}"
    if not plan.pause:
        opened = ledger.gates.resume(plan.name, who)
        ledger.nudge(plan.wakes)
        return opened
    if plan.span is None:
        ledger.gates.pause(plan.name, who, ask.reason)
        return len(plan)
    gates = list(plan.gates) or [plan.name]
    for gate in gates:
        ledger.gates.close(gate, plan.span.total_seconds(), f"paused by {who}: {ask.reason}", who)
    return len(gates)


def _issue(ledger: Ledger, ask: Ask[Any], plan: Issue) -> str:
    """Draw the secret, keep its hash, and give it back."""
    from penstock.model.secrets import draw

    drawn = draw(ledger.rng)
    moments = {name: ask.now + span for name, span in plan.moments.items()}
    row = {**plan.row, **moments, "id": drawn.id, "hash": drawn.hash}
    told = {plan.table.name: plan.row["name"], **{n: v for n, v in plan.row.items() if n != "name"}}
    event = Event(f"{plan.event}:{drawn.id}", plan.event, told)
    ledger.write([Write(plan.table, [row], "error")], [event], check=plan.check)
    return drawn.text


def _named(plan: Plan, ask: Ask[Any]) -> Iterator[Any]:
    """What a sample shows."""
    if isinstance(plan, Each):
        yield from plan.refs()
    elif isinstance(plan, Together):
        machines = {machine.unit: machine.name for machine in ask.reader.machines.values()}
        units = (*(move.after for move in plan.moves), *(birth.unit for birth in plan.births))
        yield from plan.about or (Ref(machines[type(unit)], unit.unit_id or unit_id_of(unit)) for unit in units)
        if plan.then is not None:
            yield from plan.then.refs()
    elif isinstance(plan, Births):
        yield from (Ref(plan.machine.name, unit.unit_id or unit_id_of(unit)) for unit in plan.units)
    elif isinstance(plan, GateChange):
        yield from plan.gates
    elif isinstance(plan, Issue):
        yield plan.row["name"]
    else:
        yield from plan.refs

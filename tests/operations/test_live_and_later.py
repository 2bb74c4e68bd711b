"""What readings answered at a moment, and what they answer later when they are asked for it: alike, or not known."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

from penstock.ledger import outbox
from penstock.model.errors import PenstockError
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.operations.alerts.watch import watch
from penstock.operations.bulk import actions, flow
from penstock.operations.bulk.machine import BulkAction
from penstock.operations.declare import Page
from penstock.testing.work import work_until_idle
from penstock.worker.job import JobResult
from penstock.worker.schedule import Schedules, keep_schedules, wanted_by
from penstock.worker.schedule_unit import Schedule
from tests.operations.conftest import Desk, O, Order

GATE = "shop/acme"
HISTORY = ("changed_at", "reason", "changed_by", "version")
"""Of the past these are told by the history: an unlogged change in between is not in it."""
LIVE_ONLY = {
    "status": ("now", "notes"),
    "forecast": ("coming", "gates", "total", "notes"),
    "why": ("verdict",),
    "units why": ("verdict",),
}
"""What is not of a moment, or is a prophecy."""
UNKNOWN_ROWS = {"stuck", "needs", "dead list", "dead show"}
"""Of the past they leave out rows of which not all is known: a note says so."""


def questions(desk: Desk) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every reading that has a past, with what it is asked."""
    given: dict[str, list[dict[str, Any]]] = {
        "units list": [{"count": True}, {"machine": "order", "status": ("failed",)}],
        "find": [{"text": "acme"}, {"text": "often"}],
        "gates history": [{"gate": GATE}],
        "stuck": [{}, {"machine": "order"}],
        "events list": [{}, {"alerts": True}],
        "alerts list": [{}, {"resolved": True}],
        "dead list": [{}, {"dismissed": True}],
        "bulk show": [{"action": str(a)} for (a,) in desk.rows("SELECT unit_id FROM bulk_action")],
        "alerts show": [{"alert": str(a)} for (a,) in desk.rows("SELECT unit_id FROM alert")],
        "dead show": [{"cause": one.cause} for one in desk.read("dead list").rows],
    }
    units = [f"order:{key}" for (key,) in desk.rows("SELECT unit_id FROM shop_order ORDER BY unit_id LIMIT 5")]
    units += ["schedule:often"] if desk.rows("SELECT 1 FROM schedule") else []
    for name in ("units show", "units history", "history", "units why", "why"):
        given[name] = [{"unit": unit} for unit in units]
    for one in desk.app.lifecycles[0].readings:
        if "at" in one.parameters.__struct_fields__:
            yield from ((one.name, wanted) for wanted in given.get(one.name, [{}]))


def asked(desk: Desk) -> list[tuple[str, dict[str, Any], Any]]:
    found = []
    for name, wanted in questions(desk):
        with contextlib.suppress(PenstockError):  # there is no such thing yet
            found.append((name, wanted, desk.read(name, **wanted)))
    return found


def differences(name: str, live: Any, later: Any, path: str = "") -> Iterator[str]:
    """Where an answer of later is neither what it was nor unknown."""
    if later is None or live == later:
        return
    if isinstance(live, Page):
        yield from _rows(name, live.rows, later.rows, path)
        counts = {state: n for state, n in (live.counts or {}).items() if n}
        if name != "needs" and {state: n for state, n in (later.counts or {}).items() if n} != counts:
            yield f"{path} counts {counts} {later.counts}"
    elif isinstance(live, msgspec.Struct):
        yield from _fields(name, live, later, path)
    elif isinstance(live, Mapping):
        if any(value is not None and live.get(key) != value for key, value in later.items()):
            yield f"{path}: {live} {later}"
    elif isinstance(live, Sequence) and not isinstance(live, str):
        yield from _rows(name, live, later, path)
    else:
        yield f"{path}: {live!r} {later!r}"


def _fields(name: str, live: Any, later: Any, path: str) -> Iterator[str]:
    behind = getattr(later, "changed_at", None) != getattr(live, "changed_at", None)
    for field in live.__struct_fields__:
        if field in LIVE_ONLY.get(name, ()) or (name == "gates list" and field == "by" and live.by is None):
            continue  # who closed it is told of the past alone
        if field == "operators_can" and not later.operators_can:
            continue
        if name == "find" and field == "says" and live.status is not None:
            continue  # by the history, and its moment is not shown
        if field in HISTORY and behind and later.changed_at < live.changed_at:
            continue  # the history is behind: something was changed that it does not keep
        yield from differences(name, getattr(live, field), getattr(later, field), f"{path}.{field}")


def _rows(name: str, live: Sequence[Any], later: Sequence[Any], path: str) -> Iterator[str]:
    if name in {"why", "units why"} and path == ".links":
        yield from _links(live, later)
        return
    if name == "status" and path == ".machines":
        live = [one for one in live if any(one.states.values())]
        later = [one for one in later if any(one.states.values())]
    if name == "gates list" and not path:  # when a gate was made is not kept: it counts as open before
        later = [one for one in later if one.gate in {gate.gate for gate in live} or one.state != "open"]
    if name == "find" and not path:
        later = [one for one in later if one.kind != "gate" or one.name in {found.name for found in live}]
    if name in UNKNOWN_ROWS and not path:
        known = [msgspec.structs.asdict(one) for one in live]
        # An alert about letters that are not known any more speaks for itself; alerts are compared in their own list.
        told = [one for one in later if name != "needs" or one.look is None or one.look.name != "alerts show"]
        yield from (f"{path}: {one} was not there" for one in told if not any(_told(one, was) for was in known))
        return
    if len(live) != len(later):
        yield f"{path}: {live} {later}"
        return
    for place, (one, other) in enumerate(zip(live, later, strict=True)):
        yield from differences(name, one, other, f"{path}[{place}]")


def _told(one: Any, was: Mapping[str, Any]) -> bool:
    known = dict(was)
    if "what" in known:
        known["what"] = str(was["what"]).partition("; ")[0]  # without how many wait behind a gate
    return all(value in (None, known[field]) for field, value in msgspec.structs.asdict(one).items())


def _links(live: Sequence[Any], later: Sequence[Any]) -> Iterator[str]:
    """Of each link whether it holds, and until when; what is not known says so."""
    before = {one.topic: one for one in live}
    for one in later:
        if "not known" in one.says:
            continue
        was = before.get(one.topic)
        if was is None or (one.holds, one.until) != (was.holds, was.until):
            yield f"{one} {was}"


def often(every: str = "5m") -> Schedule:
    (made,) = wanted_by({}, [Schedule(name="often", job="tick", every=every)])
    return made


async def tick(schedule: Schedule, io: Any) -> JobResult:
    return JobResult("ticked")


def steps(desk: Desk) -> Iterator[Callable[[], Any]]:
    """What happens, one thing a minute."""
    ledger, database, do = desk.ledger, desk.ledger.database, desk.do
    orders = [f"order:acme/{n}" for n in range(1, 7)]
    worker = ledger.incarnation(served=["order"])

    def moved(ref: str, to: str, **more: Any) -> Any:
        return ledger.move(Ref.parse(ref), to, actor=Actor.WORKER, who="w", reason=f"to {to}", **more)

    def tend(within: float = 1) -> None:
        work_until_idle(ledger, [Schedules({"tick": tick})], within=timedelta(seconds=within))

    def look() -> Any:
        return watch(desk.program, ledger, desk.clock.now(), "test", ["dead_letters", "parked", "stuck_units"])

    yield lambda: outbox.subscribe(database, "audit", ["*"])
    yield lambda: desk.born(*(Order(shop="acme", number=n, gate_id=GATE, due_at=desk.clock.now()) for n in range(1, 7)))
    yield lambda: keep_schedules(ledger, [often()], "test")
    yield tend
    yield worker.register
    yield partial(do, "gates pause", gate=GATE)
    yield partial(do, "token create", name="ana", role="viewer")
    yield partial(moved, orders[0], O.NEW, amount=3, due_at=desk.clock.now() + timedelta(days=20))
    yield lambda: desk.fail(orders[1], "no answer")
    yield look
    yield partial(do, "gates resume", gate=GATE)
    yield partial(do, "alerts ack", alerts=("dead_letters/order",))
    yield lambda: [moved(one, O.FAILED, due_at=None) for one in orders[2:4]]
    yield look
    yield partial(do, "alerts silence", alerts=("dead_letters/order",))
    yield partial(do, "units park", units=(orders[4],))
    yield look
    yield lambda: ledger.gates.close(GATE, 100, "slow down")
    yield lambda: desk.later(days=2)
    yield lambda: tend(400)
    yield partial(do, "schedules pause", name="often")
    yield partial(do, "units wake", units=(orders[0],))
    yield lambda: ledger.nudge([Ref.parse(orders[5])])
    yield partial(do, "dead dismiss", units=(orders[1],))
    yield partial(do, "units unpark", units=(orders[4],))
    started: list[Ref] = []
    yield lambda: started.append(_started(desk, orders))
    yield lambda: _set_moved(desk, started[0], 0, 1)
    yield lambda: _set_moved(desk, started[0], 1, 2)
    yield partial(do, "bulk cancel", action="")
    yield lambda: keep_schedules(ledger, [often("7m")], "test")
    yield partial(do, "schedules resume", name="often", reason="")
    yield tend
    yield partial(do, "dead retry", units=tuple(orders[1:4]))
    yield look
    yield worker.retire
    yield partial(do, "token revoke", name="ana")
    yield lambda: [moved(one, O.SENT) for one in orders[:3]]


def _started(desk: Desk, orders: Sequence[str]) -> Ref:
    planned = desk.plan("units wake", units=tuple(orders[4:6]))
    plan = planned.plan
    if not hasattr(plan, "parts"):
        planned = desk.plan("units move", units=tuple(orders[2:4]), to="new")
    return actions.start(desk.ledger, planned, who="jo", reason="because")


def _set_moved(desk: Desk, ref: Ref, first: int, last: int) -> None:
    """As a worker does it: a set, and how far the action has come."""
    action = desk.ledger.get(ref)
    assert isinstance(action, BulkAction)
    desk.ledger.move_set(flow._moves(action, first, last), who="jo")
    desk.ledger.move(ref, "running", actor=Actor.WORKER, who="w", reason=f"{last} looked at", position=last)


@pytest.mark.timeout(300)
def test_what_is_told_of_a_moment_is_what_was_told_at_it(desk: Desk):
    told: list[tuple[datetime, list[tuple[str, dict[str, Any], Any]]]] = []
    for step in steps(desk):
        desk.later(minutes=1)
        if isinstance(step, partial) and step.args[:1] == ("bulk cancel",):
            ((action,),) = desk.rows("SELECT unit_id FROM bulk_action")
            desk.do("bulk cancel", action=str(action))
        else:
            step()
        desk.later(seconds=30)
        told.append((desk.clock.now(), asked(desk)))
    desk.later(days=1)
    wrong = []
    for at, answers in told:
        for name, wanted, live in answers:
            try:
                later = desk.read(name, at=at, **wanted)
            except PenstockError as error:
                wrong.append(f"{at:%d %H:%M} {name} {wanted}: {error}")
                continue
            wrong += [f"{at:%d %H:%M} {name} {wanted}{one}" for one in differences(name, live, later)]
    assert not wrong, "\n".join(wrong)

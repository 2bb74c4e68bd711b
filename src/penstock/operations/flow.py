"""How units flow: the edges that they take, how long they stay in a state, how they end, and how much happens when."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from penstock.model.clock import instant_text
from penstock.model.errors import UnknownUnit, UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Event, Move, Write
from penstock.model.state import Meaning
from penstock.model.unit import Ref, replace
from penstock.operations.declare import Ask, Page, operation, reading
from penstock.operations.fields import Parameters, Row, argument, column, option
from penstock.operations.plan import Together
from penstock.operations.selection import named_machine
from penstock.settings.kernel import KernelSettings
from penstock.worker.schedule_unit import machine as schedule

if TYPE_CHECKING:
    from penstock.ledger.flow import Window
    from penstock.ledger.store.database import Cursor, Database


class FlowWanted(Parameters, frozen=True):
    machine: Annotated[str | None, argument("Only this machine.", example="report")] = None
    window: Annotated[timedelta, option("How far back to look.", example="7d")] = timedelta(hours=24)
    at: Annotated[
        datetime | None, option("As it was at this instant; by default now.", example="2026-11-15T19:31:00Z")
    ] = None


class EdgeRow(Row, frozen=True):
    machine: Annotated[str, column("The machine.")]
    source: Annotated[str | None, column("From this state; empty for births.", show="state", heading="from")]
    target: Annotated[str | None, column("To this state; empty for deaths.", show="state", heading="to")]
    trigger: Annotated[str | None, column("The edge; empty for births, deaths and SQL.", heading="by")]
    n: Annotated[int, column("How often within the window.", heading="times")]


class StateRow(Row, frozen=True):
    machine: Annotated[str, column("The machine.")]
    state: Annotated[str, column("The state.", show="state")]
    units: Annotated[int, column("How many units are in it.")]
    left: Annotated[
        int, column("How many departures the stay is reckoned from, the newest of the window.", show="detail")
    ]
    stay: Annotated[timedelta | None, column("Half of them stayed at most so long.")]
    longest: Annotated[timedelta | None, column("The longest stay of those.")]


class OutcomeRow(Row, frozen=True):
    machine: Annotated[str, column("The machine.")]
    done: Annotated[int, column("Units that came into a state that is done, within the window.")]
    failed: Annotated[int, column("Units that came into a state that is a fault, within the window.")]
    success: Annotated[float | None, column("The share of those that are done; empty if there are none.", show="share")]


class FlowAnswer(Row, frozen=True):
    start: Annotated[datetime, column("Where the window begins.")]
    end: Annotated[datetime, column("Where it ends.")]
    outcomes: Annotated[list[OutcomeRow], column("How units ended.")]
    states: Annotated[list[StateRow], column("How many units are where, and how long they stay.")]
    edges: Annotated[list[EdgeRow], column("The edges that were taken.")]


class HourRow(Row, frozen=True):
    hour: Annotated[datetime, column("The hour, by its beginning.")]
    machine: Annotated[str, column("The machine.")]
    moved: Annotated[int, column("Changes of state, births and deaths among them.")]
    done: Annotated[int, column("Units that came into a state that is done.")]
    failed: Annotated[int, column("Units that came into a state that is a fault.")]
    states: Annotated[dict[str, int], column("How many came into which state; '' is gone.", show="detail")]


@reading("flow", "Edges taken, time spent in states, and how units ended.")
def flow(ask: Ask[KernelSettings], wanted: FlowWanted) -> FlowAnswer:
    """Stays are reckoned from the newest two hundred departures from each state."""
    from penstock.ledger import flow as flows

    window, end = _window(ask, wanted)

    def work(database: Database, cursor: Cursor) -> tuple[Any, Any, Any]:
        counts = flows.counts_at(database, cursor, wanted.at, wanted.machine)
        return counts, flows.edges(database, cursor, window), flows.dwell(database, cursor, window)

    counts, edges, stays = _asked(ask, work)
    known = {(one.machine, one.state): one for one in stays}
    places = {(name, state): n for name, states in counts.items() for state, n in states.items()}
    outcomes = {m.name: flows.outcome(m, edges) for m in _machines(ask, wanted)}
    return FlowAnswer(
        start=window.start or end,
        end=end,
        outcomes=[
            OutcomeRow(machine=name, done=one.done, failed=one.failed, success=one.rate)
            for name, one in outcomes.items()
            if one.rate is not None
        ],
        states=[
            StateRow(
                machine=place[0],
                state=place[1],
                units=places.get(place, 0),
                left=known[place].n if place in known else 0,
                stay=known[place].median if place in known else None,
                longest=known[place].longest if place in known else None,
            )
            for place in _in_order(ask, {*places, *known})
        ],
        edges=[
            EdgeRow(machine=one.machine, source=one.source, target=one.target, trigger=one.trigger, n=one.n)
            for one in edges
        ],
    )


@reading("activity", "How much happened, hour by hour.")
def activity(ask: Ask[KernelSettings], wanted: FlowWanted) -> Page[HourRow]:
    """The hour that the window begins in and the one that it ends in are shown as far as they belong to it."""
    from penstock.ledger import flow as flows

    window, end = _window(ask, wanted)
    found = _asked(ask, lambda database, cursor: flows.activity(database, cursor, window))
    meanings = {
        (machine.name, str(state)): state.meaning
        for machine in ask.reader.machines.values()
        for state in machine.status
    }
    hours: dict[tuple[datetime, str], dict[str, int]] = {}
    for one in found:
        hours.setdefault((one.hour, one.machine), {})[one.target or ""] = one.n

    def into(machine: str, states: dict[str, int], meaning: Meaning) -> int:
        return sum(n for state, n in states.items() if meanings.get((machine, state)) is meaning)

    rows = [
        HourRow(
            hour=hour,
            machine=machine,
            moved=sum(states.values()),
            done=into(machine, states, Meaning.DONE),
            failed=into(machine, states, Meaning.FAULT),
            states=states,
        )
        for (hour, machine), states in hours.items()
    ]
    quiet = f"nothing happened between {instant_text(window.start or end)} and {instant_text(end)}"
    return Page(rows=rows, note=None if rows else quiet)


READINGS = [flow, activity]
_ROLL_UP = "roll-up-flow"


@operation("units recount", "Count the flow by the hour anew from the history.")
def recount(ask: Ask[KernelSettings]) -> Together:
    """A worker does it, by the schedule roll-up-flow. What was pruned from the history stays counted as it is."""
    from penstock.ledger.roll_up import RECOUNT
    from penstock.ledger.schema.tables import meta

    asked = Write(meta, [{"name": RECOUNT, "value": ask.who}])
    told = Event(f"{RECOUNT}:{instant_text(ask.now)}", RECOUNT, {"by": ask.who, "reason": ask.reason})
    moves = []
    with contextlib.suppress(UnknownUnit):  # without a schedule it waits for the first worker that keeps them
        own: Any = ask.reader.get(Ref(schedule.name, _ROLL_UP))
        moves = [Move(own, replace(own, due_at=ask.now), ask.reason, Actor.OPERATOR)]
    return Together("count the flow by the hour anew from the history", moves=moves, writes=[asked], events=[told])


OPERATIONS = [recount]


def _window(ask: Ask[Any], wanted: FlowWanted) -> tuple[Window, datetime]:
    """The window, and the instant that it ends at. Raises UsageError for one that reaches nowhere.

    One of a day or more begins with a whole hour, which is counted already.
    """
    from penstock.ledger.flow import Window, at_instant

    _machines(ask, wanted)
    end = ask.now if wanted.at is None else wanted.at
    if wanted.window <= timedelta(0):
        raise UsageError("the window must be longer than nothing")
    try:
        start = end - wanted.window
        if wanted.window >= timedelta(days=1):
            start = start.replace(minute=0, second=0, microsecond=0)
        return Window(start, at_instant(wanted.at).end, wanted.machine), end
    except OverflowError:
        raise UsageError("the window reaches back beyond the year 1") from None


def _machines(ask: Ask[Any], wanted: FlowWanted) -> list[Any]:
    if wanted.machine is not None:
        return [named_machine(ask, wanted.machine)]
    return [ask.reader.machines[name] for name in sorted(ask.reader.machines)]


def _in_order(ask: Ask[Any], places: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Machines by name, their states as declared; those that nobody here knows come last."""
    declared = {name: {s: place for place, s in enumerate(m.states)} for name, m in ask.reader.machines.items()}
    return sorted(places, key=lambda one: (one[0], declared.get(one[0], {}).get(one[1], len(places)), one[1]))


def _asked(ask: Ask[Any], work: Callable[[Database, Cursor], Any]) -> Any:
    database = ask.reader.database
    return database.read(lambda cursor: work(database, cursor))

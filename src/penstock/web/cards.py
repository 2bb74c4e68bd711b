"""One card for each flow: how its units stand, its own picture, what it did last and what it does next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from penstock.ledger.store.statements import waiting_by_moment
from penstock.model.clock import instant, instant_text
from penstock.model.spoken import counted, duration
from penstock.model.state import Meaning
from penstock.operations.words import when
from penstock.web.pictures import Painter
from penstock.web.svg.charts import Bar, rows

if TYPE_CHECKING:
    from penstock.app.lifecycle import AnyLifecycle
    from penstock.model.machine import Machine
    from penstock.operations.declare import Ask
    from penstock.operations.flow import FlowAnswer, HourRow
    from penstock.web.frame import Frame

_ORDER = (Meaning.FAULT, Meaning.HOLD, Meaning.WORK, Meaning.REST, Meaning.DONE)
_HOUR = 3_600
_WORDS = {
    Meaning.FAULT: "went wrong",
    Meaning.HOLD: "wait for others",
    Meaning.WORK: "at work",
    Meaning.REST: "at rest",
}


@dataclass(frozen=True, slots=True)
class State:
    """How many units are in a state."""

    name: str
    meaning: str
    count: int
    share: int
    link: str


@dataclass(frozen=True, slots=True)
class Stack:
    """How the units of a machine stand."""

    name: str
    link: str
    total: int
    meaning: str
    says: str
    states: list[State]


@dataclass(frozen=True, slots=True)
class Card:
    """A flow: its machines, and the picture of it."""

    name: str
    link: str
    says: str
    meaning: str
    stands: str
    stacks: list[Stack]
    picture: Markup
    caption: str
    last: str
    next: str


@dataclass(frozen=True, slots=True)
class Standing:
    """What the ledger says of all machines at one moment."""

    flow: FlowAnswer
    hours: Sequence[HourRow]
    dues: Mapping[str, datetime]
    now: datetime
    at: datetime | None

    def counts(self, machine: str) -> dict[str, int]:
        """How many units of a machine are where."""
        return {one.state: one.units for one in self.flow.states if one.machine == machine and one.units}


class Cards:
    """Makes the cards of a page."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def all(self, who: str, standing: Standing) -> list[Card]:
        """Those of the flows that have units; the kernel's own comes last."""
        lifecycles = self._frame.desk.program.app.lifecycles
        ordered = [*lifecycles[1:], *lifecycles[:1]]
        return [card for one in ordered if (card := self._card(one, who, standing)).stacks]

    def stack(self, machine: Machine, standing: Standing) -> Stack:
        """How the units of one machine stand."""
        counts, at = standing.counts(machine.name), standing.at
        total = sum(counts.values())
        shown = [
            State(
                str(state),
                str(state.meaning),
                counts[str(state)],
                max(1, min(20, round(20 * counts[str(state)] / total))),
                self._frame.link("read", "units", machine=machine.name, status=str(state), at=at),
            )
            for state in machine.status
            if counts.get(str(state))
        ]
        worst = next((one for one in _ORDER if any(state.meaning == one for state in shown)), Meaning.DONE)
        number = sum(state.count for state in shown if state.meaning == worst)
        says = "all done" if worst is Meaning.DONE else f"{number:,} {_WORDS[worst]}"
        return Stack(machine.name, self._frame.link("machines", machine.name, at=at), total, str(worst), says, shown)

    def _card(self, lifecycle: AnyLifecycle, who: str, standing: Standing) -> Card:
        stacks = [self.stack(machine, standing) for machine in lifecycle.machines]
        stacks = [one for one in stacks if one.total]
        worst = min(stacks, key=lambda one: _ORDER.index(Meaning(one.meaning)), default=None)
        picture, caption = self._picture(lifecycle, who, standing)
        return Card(
            lifecycle.name,
            self._frame.link("lifecycles", lifecycle.name, at=standing.at),
            lifecycle.says,
            "done" if worst is None else worst.meaning,
            "" if worst is None else worst.says,
            stacks,
            picture,
            caption,
            _last(lifecycle, standing),
            _next(lifecycle, standing),
        )

    def _picture(self, lifecycle: AnyLifecycle, who: str, standing: Standing) -> tuple[Markup, str]:
        """Its own; where it has none, or none for that moment: what moved its units."""
        painter = Painter(self._frame, standing.now, standing.at)
        for picture in lifecycle.pictures[:1]:
            drawn = painter.ask(lifecycle, picture, who)
            if drawn is not None:
                return drawn, picture.says
        names = {machine.name: machine for machine in lifecycle.machines}
        moved = [one for one in standing.flow.edges if one.machine in names and one.target]
        # One that stayed and had a tracked column changed did not move.
        edges = [one for one in moved if one.trigger or one.source != one.target]
        bars = [_edge_bar(names[one.machine], one) for one in sorted(edges, key=lambda edge: -edge.n)[:4]]
        if not bars:
            return Markup(""), ""
        caption = "What moved its units in a day."
        return Markup(rows(bars, caption, left=84)), caption  # noqa: S704 - escaped by element


def dues_of(ask: Ask[Any]) -> dict[str, datetime]:
    """By machine: when the next of its units is due; what is due already is not."""
    found = {}
    driven = [machine for machine in ask.reader.kept() if machine.driven]
    for machine in driven:
        now = ask.reader.database.sql.instant("now")
        later = f"{waiting_by_moment(machine.due)} AND {machine.due} > {now}"
        sql = f"SELECT min({machine.due}) FROM {machine.table} WHERE {later}"
        ((due,),) = ask.reader.read(lambda cursor, sql=sql: cursor.rows(sql, now=instant_text(ask.now)))  # type: ignore[misc]
        if due is not None:
            found[machine.name] = instant(due)
    return found


def _last(lifecycle: AnyLifecycle, standing: Standing) -> str:
    """When units last came to their end, to the hour."""
    names = {machine.name for machine in lifecycle.machines}
    then = standing.at or standing.now
    unknown = "none in 30 days" if standing.at is None else "not in the days above"
    # Of the past only whole hours: an hour does not say what of it was later.
    last = then if standing.at is None else then - timedelta(seconds=_HOUR)
    hours = [one for one in standing.hours if one.machine in names and one.done and one.hour <= last]
    if not hours:
        return unknown
    newest = max(one.hour for one in hours)
    count = sum(one.done for one in hours if one.hour == newest)
    units = counted(count, "unit")
    ago = (then - newest).total_seconds()
    if ago < _HOUR:
        return f"{units} in this hour"
    return f"{units}, {duration(ago)} {'ago' if standing.at is None else 'before'}"


def _next(lifecycle: AnyLifecycle, standing: Standing) -> str:
    dues = [standing.dues[machine.name] for machine in lifecycle.machines if machine.name in standing.dues]
    if standing.at is not None:
        return ""
    if not dues:
        return "nothing is due"
    return f"{min(dues):%H:%M}, {when(min(dues), standing.now, short=True)}"


def _edge_bar(machine: Machine, one: Any) -> Bar:
    meaning = str(machine.status(one.target).meaning) if one.target in machine.states else None
    source, trigger = (one.source, one.trigger or "sql") if one.source else ("born", one.trigger or "born")
    return Bar(float(one.n), f"{source} → {one.target}", None, meaning, trigger[:12], f"{one.n:,}")

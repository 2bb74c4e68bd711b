"""Where a machine's states and edges are drawn: the happy path is a straight line, what goes wrong lies below it.

The first edge that is declared out of a state is its happy path. Edges of one trigger into one state share a pipe, and
every pipe runs in a track of its own, so that labels have room. It depends on the declaration alone: a machine is laid
out once, and counts are printed into fixed boxes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise, permutations
from typing import Literal

from penstock.model.machine import Actor, Machine
from penstock.model.state import Meaning

HEIGHT, TRACK, MARGIN, RADIUS, LETTER = 70.0, 24.0, 12.0, 9.0, 6.1
_FINGER = 15.0
_FEW = 7
"""Up to so many pipes, every order of their tracks is tried."""

Side = Literal["top", "bottom"]
Channel = Literal["", "straight", "above", "between", "below"]
Head = Literal["right", "left", "down", "up"]
Anchor = Literal["middle", "start"]


@dataclass(slots=True)
class Box:
    """A state: its left edge, its top, and its width."""

    state: str
    row: int
    x: float
    width: float
    y: float = 0.0

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


@dataclass(slots=True)
class Pipe:
    """Edges into one state by one trigger. `triggers` are as the history has them."""

    trigger: str
    target: str
    sources: list[str]
    by_hand: bool
    channel: Channel = ""
    #: By state: where on its border, and on which side.
    ports: dict[str, tuple[float, Side]] = field(default_factory=dict)
    track: int = 0
    #: By source, the way to the target, or to where it joins the others.
    paths: list[tuple[str, str]] = field(default_factory=list)
    arrow: tuple[float, float, Head] = (0.0, 0.0, "right")
    label: tuple[float, float, Anchor] = (0.0, 0.0, "middle")

    @property
    def span(self) -> tuple[float, float]:
        """How far it reaches to both sides."""
        places = [x for x, _ in self.ports.values()]
        return min(places), max(places)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A machine, laid out."""

    width: float
    height: float
    boxes: Sequence[Box]
    pipes: Sequence[Pipe]


@lru_cache(maxsize=256)
def lay_out(machine: Machine) -> Drawing:
    """The drawing of a machine."""
    spine = _spine(machine)
    pipes = _straightened(_pipes(machine), spine)
    boxes = _placed(machine.states, spine, pipes)
    for pipe in pipes:
        if not pipe.channel:
            rows = {boxes[state].row for state in (*pipe.sources, pipe.target)}
            pipe.channel = "above" if rows == {0} else "below" if rows == {1} else "between"
    _give_ports(boxes, pipes)
    depth = {channel: _tracked(pipes, channel) for channel in ("above", "between", "below")}
    top = MARGIN + (depth["above"] * TRACK + 14 if depth["above"] else 0)
    gap = depth["between"] * TRACK + 34 if any(box.row for box in boxes.values()) else 0.0
    for box in boxes.values():
        box.y = top + (HEIGHT + gap) * box.row
    bottom = max(box.y for box in boxes.values()) + HEIGHT
    for pipe in pipes:
        _route(pipe, boxes, top, bottom)
    height = bottom + (depth["below"] * TRACK + 14 if depth["below"] else 0) + MARGIN
    width = max(_right(boxes.values(), pipes)) + MARGIN
    return Drawing(width, height, list(boxes.values()), pipes)


def width_of(text: str) -> float:
    """About how wide a text is."""
    return len(text) * LETTER


def _right(boxes: Iterable[Box], pipes: Iterable[Pipe]) -> Iterable[float]:
    yield from (box.x + box.width for box in boxes)
    for pipe in pipes:
        x, _, anchor = pipe.label
        yield x + width_of(pipe.trigger) * (1.0 if anchor == "start" else 0.5) + 30


def _spine(machine: Machine) -> list[str]:
    """The happy path: from the first birth state along the edges that are declared first."""
    first: dict[str, str] = {}
    for edge in machine.edges:
        if edge.source != edge.target:
            first.setdefault(str(edge.source), str(edge.target))
    faults = {str(state) for state in machine.status if state.meaning is Meaning.FAULT}
    spine = [next(state for state in machine.states if state in machine.born_by)]
    while (following := first.get(spine[-1])) and following not in spine and following not in faults:
        spine.append(following)
    return spine


def _pipes(machine: Machine) -> list[Pipe]:
    """The history knows the pair and the actor: edges that it cannot tell apart are one."""
    pairs: dict[tuple[str, str, bool], list[str]] = {}
    for edge in machine.edges:
        by_hand = set(edge.actors) == {Actor.OPERATOR}
        pairs.setdefault((str(edge.source), str(edge.target), by_hand), []).append(edge.trigger)
    pipes: dict[tuple[str, str, bool], Pipe] = {}
    for (source, target, by_hand), triggers in pairs.items():
        name = ", ".join(triggers)
        pipes.setdefault((target, name, by_hand), Pipe(name, target, [], by_hand)).sources.append(source)
    return list(pipes.values())


def _straightened(pipes: Sequence[Pipe], spine: Sequence[str]) -> list[Pipe]:
    """The part of a pipe that joins neighbours of the happy path is a straight line of its own."""
    made: list[Pipe] = []
    place = {state: number for number, state in enumerate(spine)}
    for pipe in pipes:
        near = [s for s in pipe.sources if s in place and place.get(pipe.target) == place[s] + 1]
        far = [s for s in pipe.sources if s not in near]
        taken = any(one.channel == "straight" and (one.target, one.sources) == (pipe.target, near) for one in made)
        if near and not taken:
            made.append(Pipe(pipe.trigger, pipe.target, near, pipe.by_hand, "straight"))
        else:
            far = pipe.sources
        if far:
            made.append(Pipe(pipe.trigger, pipe.target, far, pipe.by_hand))
    return made


def _placed(states: Sequence[str], spine: Sequence[str], pipes: Sequence[Pipe]) -> dict[str, Box]:
    """The happy path in a row, the others below it, each near where it is come from."""
    load: dict[str, int] = defaultdict(int)
    for pipe in pipes:
        for state in (*pipe.sources, pipe.target):
            load[state] += 1
    width = {state: max(width_of(state) * 1.14 + 30, 116.0, load[state] * 18 + 24.0) for state in states}
    boxes: dict[str, Box] = {}
    x = MARGIN
    for state in spine:
        boxes[state] = Box(state, 0, x, width[state])
        straight = (one for one in pipes if one.channel == "straight" and one.sources == [state])
        label = max((width_of(one.trigger) for one in straight), default=0.0)
        x += width[state] + max(label + 46, 70.0)
    wanted = {state: _wanted(state, boxes, pipes, x) for state in states if state not in boxes}
    rest = sorted(wanted, key=lambda state: wanted[state])
    x = MARGIN
    for number, state in enumerate(rest):
        boxes[state] = Box(state, 1, max(x, wanted[state] - width[state] / 2), width[state])
        following = rest[number + 1] if number + 1 < len(rest) else None
        x = boxes[state].x + width[state] + max(_joined(pipes, state, following), 40.0)
    return boxes


def _wanted(state: str, boxes: dict[str, Box], pipes: Sequence[Pipe], default: float) -> float:
    into = [boxes[s].middle for pipe in pipes for s in pipe.sources if pipe.target == state and s in boxes]
    out = [boxes[pipe.target].middle for pipe in pipes if state in pipe.sources and pipe.target in boxes]
    near = into[:1] * 2 + into + out
    return sum(near) / len(near) if near else default


def _joined(pipes: Sequence[Pipe], state: str, following: str | None) -> float:
    """Neighbours below are joined by a straight line too; the room that its label needs."""
    room = 0.0
    for pipe in pipes:
        if not pipe.channel and len(pipe.sources) == 1 and {pipe.sources[0], pipe.target} == {state, following}:
            pipe.channel, room = "straight", max(room, width_of(pipe.trigger) + 60)
    return room


_SIDES: dict[str, dict[int, Side]] = {
    "above": {0: "top"},
    "between": {0: "bottom", 1: "top"},
    "below": {1: "bottom"},
}


def _give_ports(boxes: dict[str, Box], pipes: Sequence[Pipe]) -> None:
    wanted: dict[tuple[str, Side], list[tuple[float, bool, str, Pipe]]] = defaultdict(list)
    for pipe in pipes:
        if pipe.channel == "straight":
            continue
        centre = sum(boxes[s].middle for s in pipe.sources) / len(pipe.sources)
        for state in sorted({*pipe.sources, pipe.target}):
            other = centre if state == pipe.target else boxes[pipe.target].middle
            side = _SIDES[pipe.channel][boxes[state].row]
            wanted[state, side].append((other, state == pipe.target, pipe.trigger, pipe))
    for (state, side), ends in wanted.items():
        box = boxes[state]
        ends.sort(key=lambda end: end[:3])
        step = min(30.0, (box.width - 22) / len(ends))
        for number, (*_, pipe) in enumerate(ends):
            pipe.ports[state] = (box.middle + (number - (len(ends) - 1) / 2) * step, side)
    _align([pipe for pipe in pipes if pipe.channel == "between"], boxes)


def _align(pipes: Sequence[Pipe], boxes: dict[str, Box]) -> None:
    """Straighten a pipe whose ends nearly meet, and keep the others a finger apart."""
    taken: list[float] = []

    def free(x: float, low: float, high: float) -> float:
        for step in range(60):
            for place in (x + 4 * step, x - 4 * step):
                if low <= place <= high and all(abs(place - one) >= _FINGER for one in taken):
                    return place
        return x

    def inside(state: str) -> tuple[float, float]:
        return boxes[state].x + 12, boxes[state].x + boxes[state].width - 12

    for pipe in pipes:
        if len(pipe.sources) != 1 or abs(pipe.ports[pipe.sources[0]][0] - pipe.ports[pipe.target][0]) >= 70:  # noqa: PLR2004
            continue
        (a, b), (c, d) = inside(pipe.sources[0]), inside(pipe.target)
        low, high = max(a, c), min(b, d)
        if low <= high:
            middle = (pipe.ports[pipe.sources[0]][0] + pipe.ports[pipe.target][0]) / 2
            x = free(min(max(middle, low), high), low, high)
            pipe.ports = {state: (x, side) for state, (_, side) in pipe.ports.items()}
            taken.append(x)
    ends = [(x, state, pipe) for pipe in pipes for state, (x, _) in pipe.ports.items() if x not in taken]
    for x, state, pipe in sorted(ends, key=lambda end: end[:2]):
        place = free(x, *inside(state))
        pipe.ports[state] = (place, pipe.ports[state][1])
        taken.append(place)


def _crossings(order: Sequence[Pipe]) -> int:
    """How often pipes cross, if they have their tracks in this order."""
    count = 0
    for mine, pipe in enumerate(order):
        for theirs, other in enumerate(order):
            low, high = other.span
            for x, side in pipe.ports.values():
                above = pipe.channel == "above" or side == "top"
                on_the_way = theirs > mine if above else theirs < mine
                count += on_the_way and low < x < high
    return count


def _tracked(pipes: Sequence[Pipe], channel: str) -> int:
    """Give the pipes of a channel their tracks; how many there are."""
    mine = [pipe for pipe in pipes if pipe.channel == channel]
    if not mine:
        return 0
    if len(mine) <= _FEW:
        order: Sequence[Pipe] = min(permutations(mine), key=_crossings)
    else:
        order = sorted(mine, key=lambda pipe: pipe.span[1] - pipe.span[0])
    placed: list[Pipe] = []
    for pipe in order:
        low, high = pipe.span[0], _reach(pipe)
        near = [one.track for one in placed if one.span[0] - 14 < high and low < _reach(one) + 14]
        pipe.track = 1 + max(near, default=-1)
        placed.append(pipe)
    count = max(pipe.track for pipe in mine) + 1
    if channel == "above":
        for pipe in mine:
            pipe.track = count - 1 - pipe.track
    return count


def _reach(pipe: Pipe) -> float:
    return max(pipe.span[1], pipe.span[0] + width_of(pipe.trigger) + 40)


def _corner(*points: float) -> str:
    """From the first point by the second to the third, with a round bend at the second."""
    x1, y1, x2, y2, x3, y3 = points

    def toward(x: float, y: float) -> tuple[float, float]:
        length = max(abs(x - x2) + abs(y - y2), 0.01)
        radius = min(RADIUS, length / 2)
        return x2 + (x - x2) / length * radius, y2 + (y - y2) / length * radius

    (ax, ay), (bx, by) = toward(x1, y1), toward(x3, y3)
    return f"L{ax:.1f} {ay:.1f}Q{x2:.1f} {y2:.1f} {bx:.1f} {by:.1f}"


def _route(pipe: Pipe, boxes: dict[str, Box], top: float, bottom: float) -> None:
    if pipe.channel == "straight":
        _route_straight(pipe, boxes)
        return
    levels = {"above": top - 20 - pipe.track * TRACK, "between": top + HEIGHT + 22 + pipe.track * TRACK}
    y = levels.get(pipe.channel, bottom + 20 + pipe.track * TRACK)
    x, side = pipe.ports[pipe.target]
    end = boxes[pipe.target].y + (0 if side == "top" else HEIGHT)
    stop = end + (-6 if side == "top" else 6)
    places = {source: pipe.ports[source][0] for source in pipe.sources}
    far = {min(places, key=lambda s: places[s]), max(places, key=lambda s: places[s])}
    # One of them draws the way to the target, and the others join it.
    whole = max(sorted(far), key=lambda s: abs(places[s] - x))
    for source in pipe.sources:
        start, from_side = pipe.ports[source]
        begin = boxes[source].y + (0 if from_side == "top" else HEIGHT)
        if source == pipe.target:
            way = f"M{x - 26:.1f} {begin:.1f}{_corner(x - 26, begin, x - 26, y, x, y)}"
            way += f"{_corner(x - 26, y, x, y, x, stop)}L{x:.1f} {stop:.1f}"
        elif abs(start - x) < 2:  # noqa: PLR2004 - as good as straight
            way = f"M{start:.1f} {begin:.1f}L{x:.1f} {stop:.1f}"
        else:
            way = f"M{start:.1f} {begin:.1f}{_corner(start, begin, start, y, x, y)}"
            if source == whole or (source in far and (start - x) * (places[whole] - x) < 0):
                way += _corner(start, y, x, y, x, stop) + (f"L{x:.1f} {stop:.1f}" if source == whole else "")
        pipe.paths.append((source, way))
    pipe.arrow = (x, end, "down" if side == "top" else "up")
    stops = sorted({place for place, _ in pipe.ports.values()})
    low, high = max(pairwise(stops), key=lambda ends: ends[1] - ends[0], default=pipe.span)
    if high - low > width_of(pipe.trigger) + 30:
        pipe.label = ((low + high) / 2, y - 6, "middle")
    else:
        pipe.label = (high + 8, y - 6, "start")


def _route_straight(pipe: Pipe, boxes: dict[str, Box]) -> None:
    source, target = boxes[pipe.sources[0]], boxes[pipe.target]
    y = source.y + HEIGHT / 2
    onward = source.x < target.x
    x1, x2 = (source.x + source.width, target.x) if onward else (source.x, target.x + target.width)
    pipe.paths = [(source.state, f"M{x1:.1f} {y:.1f}L{x2 + (-6 if onward else 6):.1f} {y:.1f}")]
    pipe.arrow = (x2, y, "right" if onward else "left")
    pipe.label = ((x1 + x2) / 2 - 3, y - 8, "middle")

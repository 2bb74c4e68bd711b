"""A machine as a picture: its states with how many units are there, its edges with what flows through them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from msgspec import Struct

from penstock.model.machine import Machine
from penstock.web.svg.layout import HEIGHT, Box, Drawing, Pipe, lay_out
from penstock.web.svg.marks import element, titled, words

_THIN, _THICK = 1.5, 7.0


class Live(Struct, frozen=True):
    """What is printed into a drawing: units by state, flow by edge (source, target, trigger), dwell by state."""

    counts: Mapping[str, int]
    flow: Mapping[tuple[str, str, str], int]
    dwell: Mapping[str, str]


def diagram(
    machine: Machine, live: Live, state_link: Callable[[str], str], edge_link: Callable[[str, str, str], str]
) -> str:
    """The picture. Every state and every edge is a link."""
    drawing = lay_out(machine)
    most = max(live.flow.values(), default=0)
    parts = [_pipe(pipe, live, most) for pipe in drawing.pipes]
    parts += [_label(pipe, live, edge_link) for pipe in drawing.pipes]
    parts += [_state(box, machine, live, state_link(box.state)) for box in drawing.boxes]
    return element("svg", "".join(parts), **_frame(drawing, f"State diagram of {machine.name}"))


def _frame(drawing: Drawing, label: str) -> dict[str, object]:
    width, height = math.ceil(drawing.width), math.ceil(drawing.height)
    return {
        "width": width,
        "height": height,
        "viewBox": f"0 0 {width} {height}",
        "role": "group",
        "aria_label": label,
    }


def _flow(pipe: Pipe, source: str, live: Live) -> int:
    return live.flow.get((source, pipe.target, pipe.trigger), 0)


def _width(count: int, most: int) -> float:
    """Pipes are as thick as their flow, by its magnitude."""
    return _THIN if not count else _THIN + (_THICK - _THIN) * math.log1p(count) / math.log1p(max(most, 10))


def _pipe(pipe: Pipe, live: Live, most: int) -> str:
    by_hand = " by-hand" if pipe.by_hand else ""
    paths = []
    for source, way in sorted(pipe.paths, key=lambda path: _flow(pipe, path[0], live)):
        count = _flow(pipe, source, live)
        used = " used" if count else ""
        paths.append(element("path", d=way, class_=f"pipe{used}{by_hand}", stroke_width=_width(count, most)))
    total = sum(_flow(pipe, source, live) for source in pipe.sources)
    half = 5.5 + _width(total, most) / 2.5
    used = " used" if total else ""
    paths.append(element("polygon", points=_arrow(pipe, half), class_=f"arrow{used}"))
    return element("g", "".join(paths), class_="by-hand-group" if pipe.by_hand else None)


def _arrow(pipe: Pipe, half: float) -> str:
    x, y, head = pipe.arrow
    points = {
        "right": [(x - 1, y), (x - 10, y - half), (x - 10, y + half)],
        "left": [(x + 1, y), (x + 10, y - half), (x + 10, y + half)],
        "down": [(x, y - 1), (x - half, y - 10), (x + half, y - 10)],
        "up": [(x, y + 1), (x - half, y + 10), (x + half, y + 10)],
    }[head]
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in points)


def _label(pipe: Pipe, live: Live, link: Callable[[str, str, str], str]) -> str:
    x, y, anchor = pipe.label
    total = sum(_flow(pipe, source, live) for source in pipe.sources)
    count = element("tspan", words(f"{total:,}"), class_="n") if total else ""
    text = words(f"{pipe.trigger} ") + count
    by_hand = " by-hand-group" if pipe.by_hand else ""
    shown = element("text", text, class_=f"trigger{by_hand}", x=x, y=y, text_anchor=anchor)
    return element("a", shown, href=link(pipe.sources[0], pipe.target, pipe.trigger))


def _state(box: Box, machine: Machine, live: Live, link: str) -> str:
    count = live.counts.get(box.state, 0)
    state = machine.status(box.state)
    dwell = live.dwell.get(box.state, "")
    empty = "" if count else " empty"

    def line(text: str, y: float, kind: str) -> str:
        return element("text", words(text), class_=kind, x=box.middle, y=box.y + y, text_anchor="middle")

    inside = [
        titled(f"{box.state}: {state.says}"),
        element("rect", x=box.x, y=box.y, width=box.width, height=HEIGHT, rx=8),
        line(box.state, 19, "name"),
        line(f"{count:,}", 42, "count"),
        line(f"p50 {dwell}" if dwell else str(state.meaning), 60, "dwell"),
    ]
    return element("a", "".join(inside), href=link, class_=f"state {state.meaning}{empty}")

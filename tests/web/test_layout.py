"""Diagrams: every state and every edge is drawn, nothing overlaps, and it is the same every time."""

from __future__ import annotations

import re

import pytest

from penstock.app.app import App
from penstock.app.shipped import SHIPPED, shipped
from penstock.model.machine import Machine
from penstock.web.svg.diagram import Live, diagram
from penstock.web.svg.layout import HEIGHT, lay_out
from tests.support import shop

MACHINES = [*App(*map(shipped, SHIPPED)).machines, shop.machine]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_state_and_edge_is_there_and_no_boxes_overlap(machine: Machine):
    drawing = lay_out(machine)
    assert {box.state for box in drawing.boxes} == set(machine.states)
    drawn = {(source, pipe.target) for pipe in drawing.pipes for source, _ in pipe.paths}
    assert drawn == set(machine.pairs)
    for one in drawing.boxes:
        assert one.x >= 0
        assert one.x + one.width <= drawing.width
        assert one.y >= 0
        assert one.y + HEIGHT <= drawing.height
        for other in drawing.boxes:
            apart = one.x + one.width <= other.x or other.x + other.width <= one.x or one.y != other.y
            assert one is other or apart, (one.state, other.state)


def test_the_happy_path_is_straight_and_faults_lie_below():
    boxes = {box.state: box for box in lay_out(next(one for one in MACHINES if one.name == "report")).boxes}
    assert len({boxes[state].y for state in ("missing", "fetching", "parsing", "completed")}) == 1
    assert boxes["error"].y > boxes["missing"].y


def test_a_picture_is_well_formed_and_the_same_every_time():
    from xml.etree import ElementTree as ET

    live = Live({"open": 12_345}, {("open", "packing", "begin"): 7}, {"open": "<3 h & more"})
    made = [diagram(shop.machine, live, lambda s: f"/x?{s}&y", lambda a, b, c: f"/{a}/{b}/{c}") for _ in range(2)]
    assert made[0] == made[1]
    tree = ET.fromstring(made[0])
    assert len(tree.findall("./a[@class]")) == len(shop.S)
    assert "12,345" in made[0]
    assert not re.search(r"style=|<script", made[0])

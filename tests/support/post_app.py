"""A program that announces and subscribes: `python -m tests.support.post_app URL SETTINGS` works on its ledger.

Each subscriber notes what it gets in a file of its own per process, before it says that it took it: what is there twice
was delivered twice.
"""

from __future__ import annotations

import asyncio
import os
from datetime import datetime
from pathlib import Path

from penstock.app.lifecycle import Lifecycle, NoSettings
from penstock.ledger import delivery
from penstock.ledger.outbox import EventRow
from penstock.model.errors import Rejected, Transient
from penstock.model.machine import Actor, Edge, Machine
from penstock.model.outcome import Act, Decision, Event, Outcome, Wait
from penstock.model.state import State, done, rest
from penstock.model.unit import Unit, replace
from penstock.worker.flow import Flow, Io
from penstock.worker.outbox import Deliveries, Subscriber
from tests.support.program import main

FOLDER = "POST_FOLDER"


class S(State):
    NEW = rest("new", "nobody was told")
    TOLD = done("told", "everybody was told")


class Order(Unit):
    key = ("name",)

    status: S = S.NEW
    name: str


ORDER = Machine(
    "order_",
    Order,
    births={S.NEW},
    edges=[Edge(S.NEW, S.TOLD, "told", {Actor.WORKER})],
    terminal={S.TOLD},
)


def decide(order: Order, now: datetime, settings: None, seen: None) -> Decision:
    return Act("tell", "new") if order.status is S.NEW else Wait(None, "told")


class Orders(Flow[Order, None, None]):
    machine = ORDER
    decide = staticmethod(decide)

    async def act(self, what: str, unit: Order, seen: None, io: Io) -> Outcome[Order]:
        event = Event(f"paid:{unit.name}", "order.paid", {"name": unit.name})
        return Outcome(unit, replace(unit, status=S.TOLD), "told", events=[event])


def note(name: str, event: EventRow) -> None:
    with (Path(os.environ[FOLDER]) / f"{name}.{os.getpid()}").open("a") as out:
        out.write(f"{event.event_key}\n")


def noted(folder: Path, name: str) -> list[str]:
    return [line for path in folder.glob(f"{name}.*") for line in path.read_text().splitlines()]


async def audit(event: EventRow) -> None:
    note("audit", event)
    await asyncio.sleep(0.02)


async def hook(event: EventRow) -> None:
    """Refuses every tenth, and fails once for every third."""
    number = int(event.payload["name"])
    if number % 10 == 0:
        raise Rejected("not wanted")
    before = Path(os.environ[FOLDER]) / f"tried-{number}"
    if number % 3 == 0 and not before.exists():
        before.touch()
        raise Transient("come back later")
    note("hook", event)


SUBSCRIBERS = [Subscriber("audit", ["*"], audit), Subscriber("hook", ["order.paid"], hook)]

MACHINES = [ORDER, delivery.machine]

lifecycle = Lifecycle(
    "post",
    "Orders that are told to their subscribers.",
    NoSettings,
    [ORDER],
    build=lambda settings, ports: [Orders(None)],
    subscribers=lambda settings, ports: SUBSCRIBERS,
)

if __name__ == "__main__":
    main(MACHINES, lambda: [Orders(None), Deliveries(SUBSCRIBERS)], SUBSCRIBERS)

"""A program with a secret, and steps that fail in every way with the secret in their mouth."""

from __future__ import annotations

import base64
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

import sqlalchemy as sa

from penstock.app.lifecycle import Data, Lifecycle, job
from penstock.app.ports import Ports
from penstock.connectors.http.client import Http
from penstock.model.clock import SystemClock
from penstock.model.machine import Actor, Edge, Machine, OnError
from penstock.model.outcome import Act, Decision, Event, Outcome, Wait, Write
from penstock.model.retry import RetryPolicy
from penstock.model.state import State, done, fault, rest
from penstock.model.unit import Unit, replace
from penstock.settings.typed import Secret, Settings, says
from penstock.worker.flow import Flow, Gate, Io
from penstock.worker.job import JobResult
from penstock.worker.schedule_unit import Schedule

_WORKER = frozenset({Actor.WORKER})


class S(State):
    NEW = rest("new", "not sent yet")
    DONE = done("done", "accepted")
    DEAD = fault("dead", "given up")


class Way(StrEnum):
    """How a step ends; a number is what the server answers, echoing the request's headers."""

    ACCEPTED = "201"
    REJECTED = "422"
    THROTTLED = "429"
    FORBIDDEN = "401"
    IN_DOUBT = "500"
    CUT_OFF = "cut"  # the connection breaks, and the address has the token in it
    BUG = "bug"
    BROKEN = "broken"  # the outcome breaks the rules


class Order(Unit):
    key = ("way",)
    status: S = S.NEW
    way: Way
    note: str | None = None
    answer: dict[str, Any] | None = None


machine = Machine(
    "purchase",
    Order,
    births={S.NEW},
    edges=[Edge(S.NEW, S.DONE, "sent", _WORKER), Edge(S.NEW, S.DEAD, "give_up", _WORKER)],
    terminal={S.DONE, S.DEAD},
    tracked=("note",),
    on_error=OnError(dead=S.DEAD, policy=RetryPolicy(max_retries=2, base=timedelta(milliseconds=50))),
)
receipts = sa.Table(
    "receipt", sa.MetaData(), sa.Column("way", sa.Text, primary_key=True), sa.Column("body", sa.Text, nullable=False)
)


def decide(order: Order, now: datetime, settings: None, seen: None) -> Decision:
    return Act("send", "new") if order.status is S.NEW else Wait(None, "nothing to do")


class Orders(Flow[Order, None, None]):
    machine = machine
    decide = staticmethod(decide)

    def __init__(self, address: str, token: Secret) -> None:
        super().__init__(None)
        self._token = token.reveal()
        basic = base64.b64encode(f"me:{self._token}".encode()).decode()
        self._http = Http(address, SystemClock(), headers={"Authorization": f"Basic {basic}", "X-Token": self._token})

    def gate(self, unit: Order) -> Gate:
        return Gate(f"orders/{unit.way}")

    async def act(self, what: str, unit: Order, seen: None, io: Io) -> Outcome[Order]:
        if unit.way is Way.BUG:
            raise RuntimeError(f"could not sign with {self._token!r}")
        if unit.way is Way.BROKEN:
            return Outcome(unit, replace(unit, version=7, note=self._token), "a step may not do that")
        answer = await self._http.send("POST", f"/orders/{unit.way}?token={self._token}", json={"token": self._token})
        assert answer is not None
        body = answer.text
        return Outcome(
            unit,
            replace(unit, status=S.DONE, note=body, answer=answer.json()),
            f"accepted: {body}",
            writes=[Write(receipts, [{"way": unit.way, "body": body}])],
            events=[Event(f"order.sent:{unit.way}:{self._token}", "order.sent", {"body": body}, "info")],
        )

    async def stop(self) -> None:
        await self._http.close()


class OrderSettings(Settings):
    token: Annotated[Secret, says("The token.", examples=[{"env": "ORDERS_TOKEN"}])]
    address: Annotated[str, says("Where the orders go.")] = "http://127.0.0.1:9"


@job("report", "Fails with the secret in its mouth.")
async def report(settings: OrderSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:
    raise RuntimeError(f"the report was refused: token={settings.token.reveal()}")


@job("count", "Counts something.")
async def count(settings: OrderSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:
    return JobResult(f"counted {(schedule.settings or {}).get('what', 'nothing')}")


lifecycle = Lifecycle(
    "orders",
    "Orders that are sent with a secret.",
    settings=OrderSettings,
    machines=[machine],
    data=lambda: Data(tables=[receipts]),
    build=lambda settings, ports: [Orders(settings.address, settings.token)],
    jobs=[report, count],
)

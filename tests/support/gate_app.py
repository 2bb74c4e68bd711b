"""`python -m tests.support.gate_app URL`: a worker whose units are calls to a provider, each behind its gate.

Where the provider is, what it allows and how the worker works come by the environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import datetime
from typing import Any

from penstock.app.app import App
from penstock.app.lifecycle import Lifecycle, NoSettings
from penstock.app.process import InForce, Process
from penstock.app.running import configured, tune_interpreter
from penstock.connectors.http.client import Http
from penstock.model.clock import SystemClock
from penstock.model.limits import GateLimits, Limit
from penstock.model.machine import Actor, Edge, Machine, OnError
from penstock.model.outcome import Act, Decision, Outcome, Wait
from penstock.model.state import State, done, fault, rest
from penstock.model.unit import Unit, replace
from penstock.observe.logs import configure_logs
from penstock.worker.flow import Flow, Gate, Io
from penstock.worker.worker import WorkerSettings

ADDRESS = "GATE_APP_ADDRESS"
PROVIDERS = "GATE_APP_PROVIDERS"
SETTINGS = "GATE_APP_SETTINGS"
_WORKER = frozenset({Actor.WORKER})


class S(State):
    OPEN = rest("open", "not called yet")
    DONE = done("done", "the provider answered")
    DEAD = fault("dead", "given up")


class Call(Unit):
    key = ("name",)

    status: S = S.OPEN
    name: str


CALL = Machine(
    "call_",
    Call,
    births={S.OPEN},
    edges=[
        Edge(S.OPEN, S.DONE, "made", _WORKER),
        Edge(S.OPEN, S.DEAD, "give_up", _WORKER),
    ],
    terminal={S.DONE, S.DEAD},
    on_error=OnError(dead=S.DEAD),
)


def decide(call: Call, now: datetime, settings: None, seen: None) -> Decision:
    return Act("call", "due") if call.status is S.OPEN else Wait(None, "over")


class Calls(Flow[Call, None, None]):
    machine = CALL
    decide = staticmethod(decide)

    def __init__(self, address: str) -> None:
        super().__init__(None)
        self._http = Http(address, SystemClock())

    def gate(self, unit: Call) -> Gate:
        return Gate(unit.gate_id)

    async def act(self, what: str, unit: Call, seen: None, io: Io) -> Outcome[Call]:
        await self._http.send("POST", f"/{unit.gate_id}/{unit.name}")
        return Outcome(unit, replace(unit, status=S.DONE), "answered")

    async def stop(self) -> None:
        await self._http.close()


def _gates() -> list[GateLimits]:
    said: dict[str, Any] = json.loads(os.environ[PROVIDERS])
    return [
        GateLimits(name, tuple(Limit(*limit) for limit in limits), places) for name, (limits, places) in said.items()
    ]


LIFECYCLE = Lifecycle(
    "calls",
    "Calls behind gates.",
    NoSettings,
    [CALL],
    build=lambda settings, ports: [Calls(os.environ[ADDRESS])],
    gates=lambda settings: _gates(),
)


def main(url: str) -> None:
    configure_logs()
    tune_interpreter()
    settings = WorkerSettings(**json.loads(os.environ[SETTINGS]))
    program = configured(App(LIFECYCLE), {"ledger": {"url": url}})

    async def work() -> None:
        await Process(InForce(program, program.flows(), settings)).run()

    asyncio.run(work())
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])

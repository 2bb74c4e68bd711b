"""The lifecycle that is attacked: parcels, each of which is to be sent once.

A parcel says itself how long its step takes, before the call and while the answer is under way, and what kind of poison
it is. A poisonous step writes one line to a file before it does harm, so that the harness knows when and where.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from penstock.app.lifecycle import Lifecycle, NoSettings, job
from penstock.app.ports import Ports
from penstock.connectors.http.client import Http
from penstock.model.clock import SystemClock
from penstock.model.machine import Actor, Edge, Machine, OnError
from penstock.model.outcome import Act, Decision, Look, Outcome, Wait
from penstock.model.retry import RetryPolicy
from penstock.model.state import State, done, fault, rest, work
from penstock.model.unit import Unit, replace
from penstock.worker.flow import Flow, Io
from penstock.worker.job import JobResult
from penstock.worker.schedule_unit import Schedule

PROVIDER = "CHAOS_PROVIDER"
NOTES = "CHAOS_NOTES"
_FOREVER = 3_600
_MOUTHFUL = 16 << 20


class S(State):
    QUEUED = rest("QUEUED", "waits to be sent")
    SENDING = work("SENDING", "claimed: the call may have left")
    SENT = done("SENT", "the server accepted it")
    FAILED = fault("FAILED", "a dead letter")


class Parcel(Unit):
    key = ("number",)
    status: S = S.QUEUED
    number: str
    before_ms: int = 0  # how long the step takes before its call
    answer_ms: int = 0  # how long the provider takes to answer, having done what it was asked
    poison: str | None = None
    receipt: str | None = None


machine = Machine(
    "parcel",
    Parcel,
    births={S.QUEUED: {Actor.API}},
    edges=[
        Edge(S.QUEUED, S.SENDING, "claim", {Actor.WORKER}, on_claim=True),
        Edge(S.SENDING, S.SENT, "accepted", {Actor.WORKER}),
        Edge(S.SENDING, S.QUEUED, "retry", {Actor.WORKER}),
        Edge(S.SENDING, S.FAILED, "give_up", {Actor.WORKER}),
    ],
    terminal={S.SENT, S.FAILED},
    on_error=OnError(
        retry=S.QUEUED,
        dead=S.FAILED,
        policy=RetryPolicy(max_retries=8, base=timedelta(seconds=1), cap=timedelta(seconds=4)),
    ),
    checks={"sent_has_receipt": "status <> 'SENT' OR receipt IS NOT NULL"},
)


def in_doubt(parcel: Parcel) -> bool:
    """Whether an earlier call may have arrived."""
    return parcel.attempts + parcel.doubts > 0


def decide(parcel: Parcel, now: datetime, settings: None, seen: str | None) -> Decision:  # noqa: ARG001 - one shape
    if parcel.status is not S.SENDING:
        return Wait(None, "nothing to do")
    if parcel.poison == "decide":
        _note(parcel)
        time.sleep(_FOREVER)
    if in_doubt(parcel) and seen is None:
        return Look("an earlier call may have arrived")
    return Act("record", f"already there as {seen}", counts_attempt=False) if seen else Act("send", "not there yet")


class Parcels(Flow[Parcel, None, str]):
    machine = machine
    decide = staticmethod(decide)

    def __init__(self, http: Http) -> None:
        super().__init__(None)
        self._http = http

    async def look(self, unit: Parcel, io: Io) -> str:  # noqa: ARG002 - the provider is all it looks at
        found = await self._http.send("GET", f"/parcels/{unit.number}{_signed(unit)}", missing_ok=True)
        return str(found.json()["receipt"]) if found is not None else ""

    async def act(self, what: str, unit: Parcel, seen: str | None, io: Io) -> Outcome[Parcel]:  # noqa: ARG002
        if unit.poison is not None:
            _note(unit)
            POISONS[unit.poison]()
        if what == "record":
            return Outcome(unit, replace(unit, status=S.SENT, receipt=seen), "accepted earlier")
        await asyncio.sleep(unit.before_ms / 1000)
        path = f"/parcels/{unit.number}{_signed(unit)}&answer_ms={unit.answer_ms}"
        # Over a kept connection a call leaves in the moment in which it is made: worst for what wakes after a stop.
        answer = await self._http.call("POST", path, alone=False)
        return Outcome(unit, replace(unit, status=S.SENT, receipt=answer.json()["receipt"]), "accepted")

    async def stop(self) -> None:
        await self._http.close()


def _signed(unit: Parcel) -> str:
    """Who asks, under which claim: the provider writes it down, so that a call that came too late can be told."""
    return f"?pid={os.getpid()}&version={unit.version}"


def _note(unit: Parcel) -> None:
    line = f"{time.monotonic()} {time.time()} {os.getpid()} {unit.number}\n".encode()
    file = os.open(os.environ[NOTES], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, line)
    os.close(file)


def _exit() -> None:
    os._exit(17)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _segfault() -> None:
    ctypes.string_at(0)


def _base_exception() -> None:
    raise GeneratorExit


def _spin() -> None:
    while True:
        pass


def _hold_interpreter() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})  # they would end the sleep
    ctypes.PyDLL(None).sleep(_FOREVER)  # a PyDLL keeps the interpreter's lock while it calls


def _eat() -> None:
    eaten = []
    while True:
        eaten.append(bytes(_MOUTHFUL))  # asked for and never touched: it is the limit that is met, in no time


POISONS: dict[str, Callable[[], None]] = {
    "exit": _exit,
    "kill": _kill,
    "segfault": _segfault,
    "exception": _base_exception,
    "spin": _spin,
    "decide": lambda: None,  # it never gets this far
    "interpreter": _hold_interpreter,
    "memory": _eat,
}


def _provider() -> Http:
    return Http(os.environ[PROVIDER], SystemClock())


@job("tick", "Tells the provider that it ran.")
async def tick(settings: NoSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:  # noqa: ARG001 - a job's shape
    """The periodic job: it tells the provider that it ran."""
    http = _provider()
    try:
        await http.send("POST", f"/ticks?pid={os.getpid()}")
    finally:
        await http.close()
    return JobResult("ticked")


def notes(file: Path) -> list[tuple[float, float, int, str]]:
    """What poisonous steps wrote: (monotonic, wall clock, process, parcel)."""
    if not file.exists():
        return []
    lines = [line.split() for line in file.read_text().splitlines()]
    return [(float(a), float(b), int(c), d) for a, b, c, d in lines]


lifecycle = Lifecycle(
    "parcels",
    "Parcels that are sent while things break.",
    NoSettings,
    [machine],
    build=lambda settings, ports: [Parcels(_provider())],  # noqa: ARG005 - one shape
    jobs=[tick],
)

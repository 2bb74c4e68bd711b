"""A program for worker processes that are killed, stopped and cut off: jobs with one effect each.

An effect is a file, made once; making it again is noted, so that a test can ask whether anything happened twice. The
folder is given by the environment, and so are the worker's settings (see `crash_worker`). What a job's step does is in
the job's own columns.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from penstock.app.lifecycle import Lifecycle, NoSettings
from penstock.connectors.http.client import Http
from penstock.model.clock import SystemClock
from penstock.model.machine import Actor, Edge, Machine, OnError
from penstock.model.outcome import Act, Decision, Look, Outcome, Wait
from penstock.model.state import State, done, fault, rest, work
from penstock.model.unit import Unit, replace
from penstock.worker.flow import Flow, Io
from tests.support import misbehave

FOLDER = "CRASH_FOLDER"
SETTINGS = "CRASH_SETTINGS"
SERVER = "CRASH_SERVER"
_WORKER = frozenset({Actor.WORKER})


class S(State):
    QUEUED = rest("queued", "waits for a worker")
    WORKING = work("working", "a worker has it")
    DONE = done("done", "ended well")
    FAILED = fault("failed", "given up")


class Kind(StrEnum):
    PLAIN = "plain"
    POISON = "poison"  # kills the process that steps it
    SPIN = "spin"  # keeps the event loop to itself, for ever
    SLEEP = "sleep"  # the same, without burning processor time
    CHILD = "child"  # the same in a task that the step starts
    PONDER = "ponder"  # the same in its decision
    HOG = "hog"  # keeps the whole interpreter to itself
    CLING = "cling"  # the same, without burning processor time
    NAP = "nap"  # blocks the event loop for a moment that is allowed
    CALL = "call"  # its effect is a call to the test's server


class Job(Unit):
    key = ("name",)

    status: S = S.QUEUED
    name: str
    kind: Kind = Kind.PLAIN
    family: str | None = None  # jobs of one are stepped together, as one of them would be
    before_ms: int = 0  # how long the step takes before its effect
    after_ms: int = 0  # and after it
    done_by: int | None = None


JOB = Machine(
    "job",
    Job,
    births={S.QUEUED},
    edges=[
        Edge(S.QUEUED, S.WORKING, "claim", _WORKER, on_claim=True),
        Edge(S.WORKING, S.DONE, "done", _WORKER),
        Edge(S.WORKING, S.QUEUED, "retry", _WORKER),
        Edge(S.WORKING, S.FAILED, "give_up", _WORKER),
    ],
    terminal={S.DONE, S.FAILED},
    on_error=OnError(retry=S.QUEUED, dead=S.FAILED),
    siblings="family",
)


class Effects:
    """What happened outside the ledger: who began which job, whose effect was made, and which was made twice."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("begun", "made", "twice"):
            (folder / name).mkdir(exist_ok=True)

    def begin(self, name: str) -> None:
        (self.folder / "begun" / f"{name}.{os.getpid()}").touch()

    def make(self, name: str) -> None:
        try:
            (self.folder / "made" / name).touch(exist_ok=False)
        except FileExistsError:
            (self.folder / "twice" / name).touch()

    def was_made(self, name: str) -> bool:
        return (self.folder / "made" / name).exists()

    def begun(self, name: str) -> set[int]:
        """The processes that began the job's step."""
        return {int(path.suffix[1:]) for path in (self.folder / "begun").glob(f"{name}.*")}

    def made(self) -> set[str]:
        return {path.name for path in (self.folder / "made").iterdir()}

    def twice(self) -> set[str]:
        return {path.name for path in (self.folder / "twice").iterdir()}


def decide(job: Job, now: datetime, settings: None, seen: bool | None) -> Decision:
    if job.status is not S.WORKING:
        return Wait(None, "nothing to do")
    if job.kind is Kind.PONDER:
        misbehave.spin()
    if job.attempts + job.doubts > 0 and seen is None:
        return Look("an earlier step may have made the effect")
    return Act("record", "made before") if seen else Act("make", "not made yet")


class Jobs(Flow[Job, None, bool]):
    machine = JOB
    decide = staticmethod(decide)

    def __init__(self, effects: Effects) -> None:
        super().__init__(None)
        self._effects = effects
        self._http = Http(os.environ.get(SERVER, "http://127.0.0.1:9"), SystemClock())

    async def stop(self) -> None:
        await self._http.close()

    async def look(self, unit: Job, io: Io) -> bool:
        return self._effects.was_made(unit.name)

    async def act(self, what: str, unit: Job, seen: bool | None, io: Io) -> Outcome[Job]:
        self._effects.begin(unit.name)
        await asyncio.sleep(unit.before_ms / 1000)
        if unit.kind is Kind.POISON:
            os.kill(os.getpid(), signal.SIGKILL)
        await misbehave.block(unit.kind)
        if unit.kind is Kind.CALL:
            await self._http.send("POST", f"/{unit.name}", json={"pid": os.getpid()})
        if what == "make":
            self._effects.make(unit.name)
        await asyncio.sleep(unit.after_ms / 1000)
        return Outcome(unit, replace(unit, status=S.DONE, done_by=os.getpid()), what)

    async def act_together(
        self, what: str, units: Sequence[Job], seen: Sequence[bool | None], io: Io
    ) -> list[Outcome[Job]]:
        pairs = zip(units, seen, strict=True)
        return await asyncio.gather(*(self.act(what, unit, found, io) for unit, found in pairs))


def flows() -> list[Any]:
    return [Jobs(Effects(Path(os.environ[FOLDER])))]


lifecycle = Lifecycle("crash", "Jobs that die.", NoSettings, [JOB], build=lambda settings, ports: flows())

"""SIGKILL in the middle of an extraction: nothing half of it is seen, and the next worker goes on from there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.ledger.care.doctor import examine
from penstock.lifecycles.partitions.google_ads import SOURCE
from penstock.lifecycles.partitions.machine import X, wanted_unit
from penstock.model.clock import SystemClock
from penstock.model.machine import Actor
from penstock.raw.reader import NotReady
from penstock.simulators.google_ads import Fault, GoogleAdsSimulator
from penstock.simulators.google_data import Campaigns, Gaql
from penstock.simulators.server import in_thread
from tests.support.fleet import until
from tests.support.google import DAILY
from tests.support.hand import Hand
from tests.support.partitions import KEY, Partitions
from tests.support.partitions_worker import CONFIG, write_config
from tests.support.program import Program

pytestmark = pytest.mark.by_day
ROWS = 50


@dataclass
class Scene:
    """A partition that is being extracted by a process: the source has sent most of its answer, and waits."""

    world: Partitions
    simulator: GoogleAdsSimulator
    program: Program
    go_on: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)

    def slow(self) -> Iterator[bytes]:
        query = Gaql.parse(DAILY.replace("{date}", KEY.logical_date.isoformat()))
        now = self.simulator.clock.now()
        rows = self.simulator.campaigns.rows(KEY.customer_id, query, now)
        *most, last = self.simulator._batches(query, rows, Fault())
        yield from most
        self.reached.set()
        self.go_on.wait(60)
        yield last

    def extracting(self) -> Any:
        """Start a worker; the process, once it has most of the rows."""
        member = self.program.start()
        assert self.reached.wait(60), member.text()
        return member

    def finished(self) -> None:
        """Another worker ends what the killed one began."""
        second = self.program.start()
        until(lambda: self.world.extraction().status is X.DONE, f"it is judged: {second.text()}")
        self.program.stop()
        rows = list(self.world.reader.open(KEY).rows())
        assert len(rows) == len({row["campaign"]["id"] for row in rows}) == ROWS
        assert len(self.world.sink.runs(KEY)) == 1
        assert len(self.world.attempts()) == 1
        machines = {m.name: m for m in self.world.ledger.machines.values()}
        assert not [f for f in examine(self.world.ledger.database, machines) if f.severity == "error"]

    def unseen(self) -> None:
        """Nobody sees any of it."""
        with pytest.raises(NotReady, match="is pending"):
            self.world.reader.open(KEY)


@pytest.fixture
def scene(partitions_url: str, tmp_path: Path) -> Iterator[Scene]:
    clock = SystemClock()
    simulator = GoogleAdsSimulator(clock, Campaigns(campaigns=ROWS), batch_rows=7, compress=False)
    world = Partitions(partitions_url, tmp_path, real=True)
    with contextlib.closing(world), in_thread(simulator) as address:
        config = write_config(tmp_path, address, simulator, world.sink.url)
        world.ledger.birth([wanted_unit(KEY, clock.now())], actor=Actor.SCHEDULER, who="test")
        workers = Program(
            "tests.support.partitions_worker", partitions_url, tmp_path / "workers", **{CONFIG: str(config)}
        )
        with workers as program:
            made = Scene(world, simulator, program)
            simulator.bodies.append(made.slow)
            try:
                yield made
            finally:
                made.go_on.set()


def test_a_kill_in_the_middle_of_an_extraction_leaves_nothing_half(scene):
    first = scene.extracting()
    assert scene.world.extraction().status is X.EXTRACTING
    scene.unseen()
    first.kill()
    scene.go_on.set()
    assert scene.world.extraction().status is X.EXTRACTING
    assert scene.world.sink.runs(KEY) == []
    scene.unseen()
    run_id = scene.world.extraction().run_id
    scene.finished()
    assert scene.world.sink.runs(KEY) == [run_id], "the run that was begun is the one that landed"
    assert len(scene.simulator.calls("search_stream")) == 2


def test_a_kill_after_the_run_was_finalised_and_before_it_was_recorded(scene):
    """The ledger is locked meanwhile, so that the worker cannot tell: the next one finds the run and asks nobody."""
    first = scene.extracting()
    run_id = scene.world.extraction().run_id
    with Hand(scene.world.url) as hand:
        hand.type("BEGIN IMMEDIATE" if hand.dialect == "sqlite" else "BEGIN")
        if hand.dialect != "sqlite":
            hand.type("LOCK TABLE extraction IN SHARE ROW EXCLUSIVE MODE")
        scene.go_on.set()
        until(lambda: scene.world.sink.find(KEY, run_id), "the run is finalised")
        first.kill()
        hand.type("ROLLBACK")
    scene.unseen()
    scene.finished()
    assert len(scene.simulator.calls("search_stream")) == 1, f"{SOURCE} was asked once"

"""`python -m tests.support.harvest_worker URL SETTINGS`: a worker of harvests, which may die at a named point.

The configuration is the file in HARVEST_CONFIG. HARVEST_POINT is a step of `STEPS` and when: `before` its call, `after`
the call and before the commit, or `committed`. There the process sends itself SIGKILL, so that nothing tidies up.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from penstock.app.discover import load
from penstock.app.process import InForce, Process
from penstock.app.program import Program
from penstock.connectors.watermark import FileBlob
from penstock.ledger.incarnation import Incarnation
from penstock.lifecycles.harvest.nivoda import NivodaSource
from penstock.observe.logs import configure_logs
from penstock.worker.worker import WorkerSettings

CONFIG, POINT = "HARVEST_CONFIG", "HARVEST_POINT"
TIMES = ("before", "after", "committed")


@dataclass(frozen=True)
class Step:
    """A step of a machine: what its act is called, in which phase of the run, and the how-manieth of its kind."""

    machine: str
    what: str
    phase: str | None = None
    nth: int = 1


def _phase(name: str, nth: int = 1) -> Step:
    return Step("harvest_run", "consolidate", name, nth)


STEPS = {
    "scan": Step("schedule", "run"),
    "start": Step("harvest_run", "start"),
    "begin": Step("harvest_partition", "begin"),
    "first_page": Step("harvest_partition", "fetch"),
    "page": Step("harvest_partition", "fetch", nth=9),
    "completion": Step("harvest_partition", "complete", nth=2),
    "recount": Step("harvest_partition", "recount", nth=3),
    "trigger": Step("harvest_run", "trigger"),
    "consolidation": Step("harvest_run", "consolidate", "None"),
    "validating_run": _phase("validating_run"),
    "loading_pricing_rules": _phase("loading_pricing_rules"),
    "fetching_raw_batch": _phase("fetching_raw_batch"),
    "chunk": Step("harvest_chunk", "consolidate", nth=3),
    "processing_batch": _phase("processing_batch"),
    "unseen": _phase("updating_run_metadata"),
    "soft_delete": _phase("updating_run_metadata", 2),
    "after_soft_delete": _phase("updating_run_metadata", 3),
    "advancing_watermark": _phase("advancing_watermark"),
    "publication": Step("delivery", "deliver"),
}
WITHIN = {"count": (NivodaSource, "count", 3), "swap": (FileBlob, "swap", 1)}
"""Calls inside of steps, and the how-manieth of them: these have no commit of their own."""
POINTS = (
    *(f"{step}/{when}" for step in STEPS for when in TIMES),
    *(f"{call}/{when}" for call in WITHIN for when in TIMES[:2]),
)


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


@dataclass
class Fuse:
    """Ends the process at its step. `armed` is the unit whose commit it waits for."""

    step: Step
    when: str
    seen: int = 0
    armed: set[str] = field(default_factory=set)

    def wrap(self, flow: Any) -> None:
        act = flow.act

        async def fused(what: str, unit: Any, seen: Any, io: Any) -> Any:
            mine = what == self.step.what and self.step.phase in (None, str(getattr(unit, "phase", None)))
            self.seen += mine
            now = mine and self.seen == self.step.nth
            if now and self.when == "before":
                die()
            outcome = await act(what, unit, seen, io)
            if now and self.when == "after":
                die()
            if now:
                self.armed.add(unit.unit_id)
            return outcome

        flow.act = fused

    def watch_commits(self) -> None:
        commit = Incarnation.commit

        def fused(session: Incarnation, entries: Any) -> Any:
            results = commit(session, entries)
            if any(e.change.machine.name == self.step.machine and e.change.unit_id in self.armed for e in entries):
                die()
            return results

        setattr(Incarnation, "commit", fused)  # noqa: B010 - a method is not assigned to


def fuse(flows: list[Any], point: str) -> None:
    """Have the process end at that point."""
    name, when = point.split("/")
    if name in WITHIN:
        _fuse_call(*WITHIN[name], when)
        return
    made = Fuse(STEPS[name], when)
    for flow in flows:
        if flow.machine.name == made.step.machine:
            made.wrap(flow)
    if when == "committed":
        made.watch_commits()


def _fuse_call(owner: type, method: str, nth: int, when: str) -> None:
    real, seen = getattr(owner, method), [0]

    def due(moment: str) -> bool:
        return seen[0] == nth and moment == when

    def called(*arguments: Any) -> Any:
        seen[0] += 1
        if due("before"):
            die()
        found = real(*arguments)
        if due("after"):
            die()
        return found

    async def awaited(*arguments: Any) -> Any:
        seen[0] += 1
        if due("before"):
            die()
        found = await real(*arguments)
        if due("after"):
            die()
        return found

    setattr(owner, method, awaited if asyncio.iscoroutinefunction(real) else called)


def write_config(folder: Path, ledger_url: str, about: dict[str, Any], **more: Any) -> Path:
    """A `penstock.toml` whose one feed, `stones`, is a simulator's; `more` are settings of the feed."""
    (folder / "password").write_text(about["password"])
    own = {"requests_per_second": 0.0, "updated_field": "updated_at", "at": ["02:00"]} | more
    lines = [
        "[ledger]",
        f'url = "{ledger_url}"',
        "[harvest]",
        "target_records = 120",
        "least_records = 20",
        "full_workers = 5",
        "incremental_workers = 3",
        "chunk_rows = 100",
        "most_rejected = 0.1",
        "[harvest.feeds.stones]",
        f'url = "{about["api_url"]}"',
        f'username = "{about["username"]}"',
        'password = { file = "password" }',
        'watermark = "watermark.json"',
        *(f"{name} = {json.dumps(value)}" for name, value in own.items() if value is not None),
    ]
    path = folder / "penstock.toml"
    path.write_text("\n".join([*lines, ""]))
    return path


def program(path: Path, url: str) -> Program:
    return load(path, {"ledger.url": url})


async def _work(ready: InForce) -> None:
    await Process(ready).run()


def main() -> None:
    url, settings = sys.argv[1], WorkerSettings(**json.loads(sys.argv[2]))
    configure_logs()
    made = program(Path(os.environ[CONFIG]), url)
    flows = made.flows()
    if os.environ.get(POINT):
        fuse(flows, os.environ[POINT])
    asyncio.run(_work(InForce(made, flows, settings)))
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

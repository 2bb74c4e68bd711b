"""Nivoda's simulator in a process of its own, for benchmarks and for tests that kill.

`python -m penstock.simulators.nivoda --stones 500000` serves until it is ended. Once it can be reached it says so on
standard output, in one line of JSON: its address, its login and how many stones there are. `PUT /simulator` changes
it: a JSON object whose `change`, `touch`, `insert` and `remove` are numbers of stones, and whose `latency`, `unit`,
`total_count_factor` and so on are set. The answer says how many stones there are then, what was asked so far and what
that took.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.request import Request, urlopen

from penstock.model.clock import SystemClock
from penstock.simulators.lean import Headers, serving_lean
from penstock.simulators.nivoda import PATH, Churn, Fault, NivodaSimulator, errors, throttle
from penstock.simulators.nivoda_data import Catalogue

_CONTROL = "/simulator"
_SETTINGS = ("latency", "unit", "total_count_factor", "rows_past_count", "over_limit", "tells_updated", "per_second")


@dataclass(slots=True)
class Controlled:
    """A simulator that can be changed from outside."""

    simulator: NivodaSimulator

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Headers, bytes]:
        """What the simulator answers, or what became of it."""
        if path != _CONTROL:
            return self.simulator.answer(method, path, headers, body)
        stones, now = self.simulator.stones, self.simulator.clock.now()
        asked = json.loads(body or b"{}")
        for name in _SETTINGS:
            if name in asked:
                setattr(self.simulator, name, asked[name])
        for name in ("change", "touch", "insert"):
            getattr(stones, name)(asked.get(name, 0), now)
        stones.remove(asked.get("remove", 0))
        used = resource.getrusage(resource.RUSAGE_SELF)
        about = {
            "stones": len(stones),
            "asked": dict(self.simulator.counted),
            "cpu_seconds": used.ru_utime + used.ru_stime,
            "peak_mb": used.ru_maxrss / 1024,
        }
        told = json.dumps(about).encode()
        return 200, ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(told))), told


def control(about: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Change a simulator in another process; what it says of itself then."""
    asked = Request(about["control_url"], json.dumps(changes).encode(), method="PUT")  # noqa: S310 - on loopback
    with urlopen(asked, timeout=60) as answer:  # noqa: S310
        told: dict[str, Any] = json.load(answer)
        return told


@contextlib.contextmanager
def in_process(stones: int, *options: str) -> Iterator[dict[str, Any]]:
    """The simulator in a process of its own: what it said of itself. It ends with the context, or with this process."""
    command = [sys.executable, "-m", "penstock.simulators.nivoda", "--with-parent", "--stones", str(stones), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)  # noqa: S603
    try:
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        yield json.loads(process.stdout.readline())
    finally:
        process.communicate()


async def _serve(simulator: NivodaSimulator, port: int, *, with_parent: bool) -> None:
    controlled, ended = Controlled(simulator), asyncio.Event()
    if with_parent:
        asyncio.get_running_loop().add_reader(sys.stdin, ended.set)  # nobody writes: it can be read when it is closed
    async with serving_lean(controlled.answer, port=port, latency=lambda: simulator.latency) as address:
        about = {
            "address": address,
            "api_url": f"{address}{PATH}",
            "control_url": f"{address}{_CONTROL}",
            "username": simulator.username,
            "password": simulator.password,
            "stones": len(simulator.stones),
        }
        sys.stdout.write(json.dumps(about) + "\n")
        sys.stdout.flush()
        await ended.wait()


def _simulator(options: argparse.Namespace) -> NivodaSimulator:
    clock = SystemClock()
    catalogue = Catalogue(options.stones, clock.now(), seed=options.seed, bad=options.bad)
    simulator = NivodaSimulator(clock, catalogue, latency=options.latency / 1000, tells_updated=options.tells_updated)
    if options.churn:
        simulator.churn = Churn(pages=options.churn)
    troubles: dict[int, Fault] = {
        options.throttle_every: throttle("1"),
        options.fail_every: Fault(502, b"Bad Gateway"),
        options.error_every: errors("Internal server error", "INTERNAL_SERVER_ERROR"),
    }
    simulator.every = {("page", number): fault for number, fault in troubles.items() if number}
    return simulator


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser(prog="python -m penstock.simulators.nivoda", description="Nivoda, simulated.")
    parser.add_argument("--port", type=int, default=0, help="port on loopback; 0: any that is free")
    parser.add_argument("--stones", type=int, default=10_000, help="how many stones there are")
    parser.add_argument("--seed", type=int, default=7, help="another seed, another catalogue")
    parser.add_argument("--bad", type=float, default=0.0, help="share of records with something wrong in them")
    parser.add_argument("--latency", type=float, default=0.0, help="milliseconds before each answer")
    parser.add_argument("--churn", type=int, default=0, help="change the catalogue after every Nth page")
    parser.add_argument("--throttle-every", type=int, default=0, help="answer every Nth page with 429")
    parser.add_argument("--fail-every", type=int, default=0, help="answer every Nth page with 502")
    parser.add_argument("--error-every", type=int, default=0, help="answer every Nth page with errors in a 200")
    parser.add_argument("--tells-updated", action="store_true", help="items have a field updated_at")
    parser.add_argument("--with-parent", action="store_true", help="end when standard input does")
    options = parser.parse_args(arguments)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(_simulator(options), options.port, with_parent=options.with_parent))

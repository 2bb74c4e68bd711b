"""Shopify's simulator in a process of its own, for benchmarks and for tests that kill.

`python -m penstock.simulators.shopify --products 25000` serves until it is ended. Once it can be reached it says so on
standard output, in one line of JSON: its address, its logins and how much there is. `PUT /simulator` changes it, by a
JSON object: `edits`, `latency`, `throttle_status` and so on are set, `edit` maps variants to the price that somebody
else gives them, `edit_any` is for how many by chance, `delete_variants` and `delete_products` list ids, `expire_tokens`
ends every token, and `lost` is the share of mutations whose answer is lost. The answer says what happened so far, and
what that took. `GET /simulator/journal?after=N` gives the journal from entry N on, as lines of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.request import Request, urlopen

from starlette.types import Receive, Scope, Send

from penstock.model.clock import SystemClock
from penstock.simulators.asgi import respond
from penstock.simulators.lean import Headers, serving_lean
from penstock.simulators.shopify import ShopifySimulator
from penstock.simulators.shopify_data import Bucket, Store
from penstock.simulators.shopify_faults import LOST
from penstock.simulators.shopify_journal import Entry, from_lines, to_lines

_CONTROL = "/simulator"
_JOURNAL = "/simulator/journal"
_MOST_ENTRIES = 50_000
_SETTINGS = ("edits", "latency", "throttle_status", "retry_after", "calls_per_second", "served_version")
_OF_ADMIN = ("refuses", "bulk_seconds", "bulk_failures", "bulk_limit")


@dataclass(slots=True)
class Controlled:
    """A simulator that can be changed and looked into from outside."""

    simulator: ShopifySimulator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(self.answer, self.simulator.delay, scope, receive, send)

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Headers, bytes]:
        """What the simulator answers, or what became of it."""
        place, _, query = path.partition("?")
        if place == _CONTROL:
            self._change(json.loads(body or b"{}"))
            told = json.dumps(self._about()).encode()
        elif place == _JOURNAL:
            after = int(query.partition("after=")[2] or 0)
            told = to_lines(self.simulator.journal[after : after + _MOST_ENTRIES])
        else:
            return self.simulator.answer(method, path, headers, body)
        return 200, ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(told))), told

    def _change(self, asked: Mapping[str, Any]) -> None:
        simulator, admin = self.simulator, self.simulator.admin
        for name in _SETTINGS:
            if name in asked:
                setattr(simulator, name, asked[name])
        for name in _OF_ADMIN:
            if name in asked:
                setattr(admin, name, asked[name])
        if "lost" in asked:
            simulator.chances["update"] = (asked["lost"], LOST)
        for variant, price in asked.get("edit", {}).items():
            admin.edit(variant, price, admin.store.variants[variant].compare_at)
        admin.edit_any(asked.get("edit_any", 0))
        for variant in asked.get("delete_variants", ()):
            admin.store.delete_variant(variant)
        for product in asked.get("delete_products", ()):
            admin.store.delete_product(product)
        if asked.get("expire_tokens"):
            simulator.expire_tokens()

    def _about(self) -> dict[str, Any]:
        simulator, used = self.simulator, resource.getrusage(resource.RUSAGE_SELF)
        return {
            "products": len(simulator.admin.store.products),
            "variants": len(simulator.admin.store.variants),
            "asked": dict(simulator.counted),
            "entries": len(simulator.journal),
            "points_charged": simulator.points.charged,
            "points_available": simulator.points.available,
            "throttled": simulator.counted["throttled"],
            "elapsed": simulator.clock.elapsed(),
            "cpu_seconds": used.ru_utime + used.ru_stime,
            "peak_mb": used.ru_maxrss / 1024,
        }


def control(about: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Change a simulator in another process; what it says of itself then."""
    asked = Request(about["control_url"], json.dumps(changes).encode(), method="PUT")  # noqa: S310 - on loopback
    with urlopen(asked, timeout=60) as answer:  # noqa: S310
        told: dict[str, Any] = json.load(answer)
        return told


def journal(about: Mapping[str, Any], after: int = 0) -> list[Entry]:
    """The journal of a simulator in another process, from an entry on."""
    found: list[Entry] = []
    while True:
        with urlopen(f"{about['journal_url']}?after={after + len(found)}", timeout=60) as answer:  # noqa: S310
            more = from_lines(answer.read())
        found += more
        if not more:
            return found


@contextlib.contextmanager
def in_process(products: int, *options: str) -> Iterator[dict[str, Any]]:
    """The simulator in a process of its own: what it said of itself. It ends with the context, or with this process."""
    serve = [sys.executable, "-m", "penstock.simulators.shopify", "--with-parent", "--products", str(products)]
    process = subprocess.Popen([*serve, *options], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)  # noqa: S603
    try:
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        yield json.loads(process.stdout.readline())
    finally:
        process.communicate()


async def _serve(simulator: ShopifySimulator, port: int, *, with_parent: bool) -> None:
    controlled, ended = Controlled(simulator), asyncio.Event()
    if with_parent:
        asyncio.get_running_loop().add_reader(sys.stdin, ended.set)  # nobody writes: it can be read when it is closed
    async with serving_lean(controlled.answer, port=port, latency=simulator.delay) as address:
        about = {
            "shop_url": address,
            "control_url": f"{address}{_CONTROL}",
            "journal_url": f"{address}{_JOURNAL}",
            "admin_token": simulator.admin_token,
            "client_id": simulator.client_id,
            "client_secret": simulator.client_secret,
            "products": len(simulator.admin.store.products),
            "variants": len(simulator.admin.store.variants),
        }
        sys.stdout.write(json.dumps(about) + "\n")
        sys.stdout.flush()
        await ended.wait()


def _simulator(options: argparse.Namespace) -> ShopifySimulator:
    clock = SystemClock()
    store = Store(options.products, clock.now(), variants=options.variants, seed=options.seed)
    simulator = ShopifySimulator(clock, store, Bucket(clock, options.burst, options.rate), seed=options.seed)
    simulator.latency = options.latency / 1000
    simulator.edits = options.edits
    simulator.chances["update"] = (options.lost, LOST)
    simulator.admin.refuses = options.refuses
    return simulator


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser(prog="python -m penstock.simulators.shopify", description="Shopify, simulated.")
    parser.add_argument("--port", type=int, default=0, help="port on loopback; 0: any that is free")
    parser.add_argument("--products", type=int, default=100, help="how many products there are")
    parser.add_argument("--variants", type=int, default=4, help="how many variants each has")
    parser.add_argument("--seed", type=int, default=7, help="another seed, another store")
    parser.add_argument("--burst", type=float, default=2_000.0, help="how many points the bucket holds")
    parser.add_argument("--rate", type=float, default=100.0, help="how many points come back each second")
    parser.add_argument("--latency", type=float, default=0.0, help="milliseconds before each answer")
    parser.add_argument("--lost", type=float, default=0.0, help="share of mutations whose answer is lost")
    parser.add_argument("--edits", type=float, default=0.0, help="share of calls after which somebody edits a price")
    parser.add_argument("--refuses", type=float, default=0.0, help="share of changes that are refused")
    parser.add_argument("--with-parent", action="store_true", help="end when standard input does")
    options = parser.parse_args(arguments)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(_simulator(options), options.port, with_parent=options.with_parent))

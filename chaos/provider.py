"""The other side: `python -m chaos.provider LOG PORT_FILE`, a process that no fault touches.

Every effect is written to the log before its answer begins to be under way, with the time, the process that asked and
the claim under which it did. A second effect of the same key is done like the first, as an API without idempotency keys
would: that is how "twice" is counted. `POST /mode` changes how it behaves.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

HOST = "127.0.0.1"


@dataclass(slots=True)
class Mode:
    """What goes wrong with a call: shares of calls, between 0 and 1."""

    lose_answers: float = 0.0  # the effect is there, the connection breaks
    unavailable: float = 0.0  # 503, without an effect
    throttle: float = 0.0  # 429, without an effect
    #: Every key's first call is answered with 503.
    first_fails: bool = False


@dataclass(slots=True)
class GateLimits:
    file: int
    dice: random.Random
    mode: Mode = field(default_factory=Mode)
    known: dict[str, str] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    def write(self, what: str, key: str, request: web.Request) -> None:
        line = {
            "what": what,
            "key": key,
            "at": time.monotonic(),
            "pid": int(request.query.get("pid", 0)),
            "version": int(request.query.get("version", 0)),
        }
        os.write(self.file, json.dumps(line).encode() + b"\n")

    async def send(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        refusal = self._refusal(key)
        if refusal is not None:
            return web.Response(status=refusal)
        self.write("effect", key, request)
        receipt = self.known.setdefault(key, f"r-{len(self.known) + 1}")
        await asyncio.sleep(int(request.query.get("answer_ms", 0)) / 1000)
        if self.dice.random() < self.mode.lose_answers and request.transport is not None:
            request.transport.abort()
        return web.json_response({"receipt": receipt})

    def _refusal(self, key: str) -> int | None:
        mode, chance = self.mode, self.dice.random()
        if mode.first_fails and key not in self.failed:
            self.failed.add(key)
            return 503
        if chance < mode.unavailable:
            return 503
        return 429 if chance < mode.unavailable + mode.throttle else None

    async def look(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        self.write("look", key, request)
        found = self.known.get(key)
        return web.json_response({"receipt": found}) if found else web.Response(status=404)

    async def tick(self, request: web.Request) -> web.Response:
        self.write("tick", "", request)
        return web.json_response({})

    async def change(self, request: web.Request) -> web.Response:
        self.mode = Mode(**await request.json())
        return web.json_response({})


async def serve(log: Path, port_file: Path, seed: int) -> None:
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    provider = GateLimits(file, random.Random(seed))
    app = web.Application()
    app.add_routes(
        [
            web.post("/parcels/{key}", provider.send),
            web.get("/parcels/{key}", provider.look),
            web.post("/ticks", provider.tick),
            web.post("/mode", provider.change),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0, backlog=4096)
    await site.start()
    address: Any = runner.addresses[0]
    port_file.with_suffix(".new").write_text(str(address[1]))
    port_file.with_suffix(".new").rename(port_file)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))

"""Large reports: a bomb, and a child process that reads one and says how much memory it took.

`python -m tests.support.big_report MEGABYTES` starts a second process that serves the report, and reads it from there.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import zlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from penstock.connectors.amazon_ads.client import Amazon, Region, daily
from penstock.connectors.http.download import Allowed
from penstock.model.clock import SystemClock
from penstock.simulators.amazon_ads import AmazonAdsSimulator, Fate, compressed
from penstock.simulators.server import serving

MIB = 1 << 20
_SHORTEST = 190  # bytes; every record takes at least so many


def bomb(size: int) -> Iterator[bytes]:
    """Gzip of an array that begins well and goes on with records of nothing."""
    packer = zlib.compressobj(9, wbits=31)
    yield packer.compress(b"[")
    for _ in range(size // MIB + 1):
        yield packer.compress(b"{},".ljust(16) * (MIB // 16))
    yield packer.flush()


def rows(size: int) -> Iterator[dict[str, Any]]:
    """Records of at least so many bytes in all, all different."""
    number, made = 0, 0
    while made < size:
        number += 1
        row = {
            "date": "2026-11-14",
            "campaignId": 10**14 + number * 7919 % 10**9,
            "adGroupId": 2 * 10**14 + number,
            "keywordId": 3 * 10**14 + number * 104_729 % 10**10,
            "keyword": f"keyword number {number} [exact]",
            "matchType": "BROAD",
            "impressions": number * 31 % 9_973,
            "clicks": number * 17 % 101,
            "cost": number * 13 % 5_003 / 100,
            "purchases7d": number % 7,
            "sales7d": number * 11 % 20_011 / 100,
        }
        made += _SHORTEST
        yield row


async def serve(megabytes: int) -> None:
    """Serve one report that is ready at once; says where, and ends with the standard input."""
    simulator = AmazonAdsSimulator(SystemClock(), fate=Fate(timedelta(), timedelta()))
    simulator.bodies.append(lambda: compressed(rows(megabytes * MIB)))
    async with serving(simulator) as address:
        print(address, flush=True)  # noqa: T201 - that is its purpose
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def read(megabytes: int) -> dict[str, int]:
    from tests.support.amazon import secrets

    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.big_report", "serve", str(megabytes)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    address = (await server.stdout.readline()).decode().strip()
    clock = SystemClock()
    allowed = Allowed((), (urlsplit(address).netloc,))
    amazon = Amazon(Region(address, f"{address}/auth/o2/token"), clock, downloads=allowed)
    with tempfile.TemporaryDirectory() as folder:
        ads = amazon.profile("1001", secrets(Path(folder), AmazonAdsSimulator(clock)))
        created = await ads.create(daily("target", clock.now().date()))
        url = (await ads.status(created.report_id)).url
        assert url is not None
        before = peak()
        count = size = 0
        async for lines in ads.records(url):
            count += lines.count(b"\n")
            size += len(lines)
            last = lines[:-1].rpartition(b"\n")[2]
    await amazon.close()
    server.stdin.close()
    await server.wait()
    assert msgspec.json.decode(last)["adGroupId"] == 2 * 10**14 + count, "every record was read"
    return {"records": count, "bytes": size, "before": before, "peak": peak()}


def peak() -> int:
    """The most memory that this process has had; `getrusage` would count its parent's, from before the exec."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(serve(int(sys.argv[2])))
    else:
        print(json.dumps(asyncio.run(read(int(sys.argv[1])))))  # noqa: T201 - that is its purpose

"""A hundred thousand prices changed by a rule, from `penstock rules preview` to the last target, by `penstock up`.

The simulated shop has a process of its own and adds no latency. Beside it, in the same run, a bare client reads and
writes the same products and keeps nothing. Then a smaller shop with the standard bucket, by one worker and by two: how
much of what the bucket gives is used, by the shop's own count. What is counted is counted in the database and by the
shop, when the run is over.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import noop
from benchmarks.harvest import PENSTOCK, doctor, working
from benchmarks.processes import cpu_seconds, machine_seconds, peak, server_pids
from penstock.app.running import tune_interpreter
from penstock.connectors.prices import VariantPrice
from penstock.connectors.shopify.client import MOST_VARIANTS, Shopify
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.rules import MACHINES
from penstock.lifecycles.rules.run.machine import R, Run, rule_run
from penstock.model.clock import SystemClock
from penstock.settings.secret import Secret
from penstock.simulators.shopify_process import control, in_process

TOKEN = "PENSTOCK_BENCH_SHOPIFY"
VARIANTS = 4
UNLIMITED = ("--rate", "1e9", "--burst", "1e9")
RATE, BURST = 100.0, 2_000.0
AT_ONCE = 100
LONGEST_SECONDS = 900.0
POLL_SECONDS = 0.1
CONFIG = """[ledger]
url = "{url}"

[rules]
approve_above = 10000000
private_downloads = ["{host}"]

[rules.accounts.shop]
connector = "shopify"
shop_url = "{shop_url}"
token = {{ env = "{token}" }}
points_per_second = {rate}
points_burst = {burst}

[rules.rules.sale]
account = "shop"
currency = "{currency}"
selector = {{ everything = true }}
transform = {{ percent = "-10" }}
"""


def client(about: dict[str, Any]) -> Shopify:
    os.environ[TOKEN] = about["admin_token"]
    return Shopify(about["shop_url"], Secret("env", TOKEN), SystemClock())


async def bare(about: dict[str, Any]) -> dict[str, float]:
    """Read every price and write it back, product by product; what it took."""
    shop = client(about)
    try:
        items, after = [], None
        while True:
            page = await shop.catalogue_page(after, 200)
            items += page.items
            after = page.next
            if after is None:
                break
        products: dict[str, list[VariantPrice]] = {}
        for item in items:
            wanted = VariantPrice(item.variant_id, item.price, item.compare_at_price)
            products.setdefault(item.product_id, []).append(wanted)
        ids = [item.variant_id for item in items]
        seconds, used = time.perf_counter(), time.process_time()
        parts = [ids[start : start + MOST_VARIANTS] for start in range(0, len(ids), MOST_VARIANTS)]
        await _spread([lambda part=part: shop.variants(part) for part in parts])
        await _spread([lambda one=one: shop.update(*one) for one in products.items()])
        seconds, used = time.perf_counter() - seconds, time.process_time() - used
    finally:
        await shop.close()
    return {"variants": len(ids), "seconds": round(seconds, 2), "cpu_seconds": round(used, 2)}


async def _spread(calls: list[Any]) -> None:
    """All of them, some at once."""
    waiting = iter(calls)

    async def runner() -> None:
        for call in waiting:
            await call()

    await asyncio.gather(*(runner() for _ in range(AT_ONCE)))


async def currency_of(about: dict[str, Any]) -> str:
    shop = client(about)
    try:
        return (await shop.shop()).currency
    finally:
        await shop.close()


def command(config: Path, *words: str) -> Any:
    """What a command answers, as JSON."""
    done = subprocess.run(
        [*PENSTOCK, "rules", *words, "--config", str(config), "--json"],
        cwd=config.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"penstock rules {' '.join(words)}: exit {done.returncode}\n{done.stderr[-1500:]}")
    return json.loads(done.stdout)


def wait_for(ledger: Ledger, what: str, sql: str, process: subprocess.Popen[bytes]) -> Any:
    """The first row of the answer, once there is one."""
    until = time.perf_counter() + LONGEST_SECONDS
    while time.perf_counter() < until:
        rows = ledger.read(lambda cursor: cursor.rows(sql))
        if rows:
            return rows[0]
        if process.poll() is not None:
            raise SystemExit(f"{what}: the worker is gone")
        time.sleep(POLL_SECONDS)
    raise SystemExit(f"{what}: not there after {LONGEST_SECONDS:.0f} s")


def ended(ledger: Ledger, process: subprocess.Popen[bytes]) -> Run:
    """The run, when it has ended as it should."""
    over = "SELECT unit_id FROM rule_run WHERE status NOT IN ('PREVIEW', 'QUEUED', 'APPLYING')"
    (unit_id,) = wait_for(ledger, "the run", over, process)
    (run,) = ledger.get_many(rule_run, [str(unit_id)])
    if run.status is not R.APPLIED or run.applied_count != run.target_count:
        raise SystemExit(f"the run ended as {run.status}: {run.error}")
    return run  # type: ignore[no-any-return]


@contextlib.contextmanager
def at_work(url: str, about: dict[str, Any], folder: Path, rate: float, burst: float) -> Iterator[Any]:
    """`penstock up` with the catalogue read: its configuration, the ledger and the process."""
    config = folder / "penstock.toml"
    currency = asyncio.run(currency_of(about))
    host = about["shop_url"].removeprefix("http://")
    given = {"url": url, "token": TOKEN, "rate": rate, "burst": burst, "currency": currency, "host": host}
    config.write_text(CONFIG.format(shop_url=about["shop_url"], **given))
    with working(config) as process, Ledger.open(url, MACHINES) as ledger:
        wait_for(ledger, "the catalogue", "SELECT 1 FROM catalogue_reading WHERE number > 0", process)
        yield config, ledger, process


def previewed(config: Path) -> tuple[str, float]:
    """The run of a preview, and how long that and queueing it took."""
    began = time.perf_counter()
    command(config, "preview", "sale", "--reason", "measured", "--yes")
    run = command(config, "runs")["rows"][0]["run_id"]
    command(config, "queue", run, "--reason", "measured", "--yes")
    return run, time.perf_counter() - began


def whole(url: str, products: int, about: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A run over the whole shop, without a limit; what it took."""
    with at_work(url, about, folder, 0, BURST) as (config, ledger, process):
        server = server_pids(url)
        own, theirs, others = cpu_seconds(process.pid), cpu_seconds(*server), machine_seconds()
        before = control(about)
        began = time.perf_counter()
        _, queued = previewed(config)
        run = ended(ledger, process)
        seconds = time.perf_counter() - began
        others = machine_seconds() - others
        own, theirs = cpu_seconds(process.pid) - own, cpu_seconds(*server_pids(url)) - theirs
        after = control(about)
        updates = after["asked"]["update"] - before["asked"].get("update", 0)
        simulator = after["cpu_seconds"] - before["cpu_seconds"]
        if run.target_count != products * VARIANTS or updates != products:
            raise SystemExit(f"{run.target_count:,} targets by {updates:,} calls, of {products:,} products")
        assert run.started_at is not None
        assert run.finished_at is not None
        line = {
            "targets": run.target_count,
            "seconds": round((run.finished_at - run.started_at).total_seconds(), 1),
            "preview_and_queue": round(queued, 1),
            "in_all": round(seconds, 1),
            "updates": updates,
            "reads": after["asked"]["read"] - before["asked"].get("read", 0),
            "peak_mb": round(peak(process.pid), 1),
            "cpu_seconds": {"worker": round(own, 1), "server": round(theirs, 1), "simulator": round(simulator, 1)},
            "cores_of_others": round((others - own - theirs - simulator) / seconds, 2),
        }
    doctor(folder / "penstock.toml")
    return line


def bucket(url: str, products: int, folder: Path, workers: int) -> dict[str, Any]:
    """A run over a shop with the standard bucket: how much of what the bucket gives is used."""
    options = ("--rate", str(RATE), "--burst", str(BURST), "--variants", str(VARIANTS))
    with in_process(products, *options) as about, contextlib.ExitStack() as stack:
        config, ledger, process = stack.enter_context(at_work(url, about, folder, RATE, BURST))
        for _ in range(workers - 1):
            stack.enter_context(_another(config))
        # Both buckets are full when it begins: the shop's, and ours, which began empty.
        time.sleep(BURST / RATE)
        before = control(about)
        previewed(config)
        run = ended(ledger, process)
        after = control(about)
        assert run.started_at is not None
        assert run.finished_at is not None
        seconds = (run.finished_at - run.started_at).total_seconds()
        charged = after["points_charged"] - before["points_charged"]
        given = before["points_available"] + RATE * seconds
        return {
            "products": products,
            "workers": workers,
            "seconds": round(seconds, 1),
            "charged": round(charged, 1),
            "given": round(given, 1),
            "used": round(charged / given, 4),
            "throttled": after["throttled"] - before["throttled"],
            "updates": after["asked"]["update"] - before["asked"].get("update", 0),
        }


@contextlib.contextmanager
def _another(config: Path) -> Iterator[None]:
    """One more worker on the same ledger."""
    with config.with_name("worker.log").open("wb") as out:
        process = subprocess.Popen(
            [*PENSTOCK, "worker", "--config", str(config)],
            cwd=config.parent,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        yield
        process.terminate()
        process.wait(60)
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Run once and print the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rules", description=__doc__)
    parser.add_argument("--products", type=int, default=25_000, help="products of the shop (default %(default)s)")
    parser.add_argument("--metered", type=int, default=600, help="those behind the bucket (default %(default)s)")
    parser.add_argument("--url", required=True, help="as for the other programs")
    options = parser.parse_args()
    tune_interpreter()
    with contextlib.ExitStack() as stack:

        def place(name: str) -> tuple[str, Path]:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-"))
            return stack.enter_context(noop.scratch(options.url, name)), Path(folder)

        with in_process(options.products, *UNLIMITED, "--variants", str(VARIANTS)) as about:
            alone = asyncio.run(bare(about))
            url, folder = place("rules")
            line = whole(url, options.products, about, folder)
        metered = []
        for workers in (1, 2):
            own, folder = place(f"rules_{workers}")
            metered.append(bucket(own, options.metered, folder, workers))
    line = {
        "database": noop.database_of(options.url),
        "products": options.products,
        **line,
        "bare": alone,
        "of_bare": round(line["seconds"] / alone["seconds"], 2),
        "metered": metered,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

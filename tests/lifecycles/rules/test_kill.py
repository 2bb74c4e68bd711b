"""Workers killed at random while they set prices, at a shop that loses answers: nothing is lost and nothing is wrong.

By day ten kills over a thousand targets on SQLite; by night two hundred over twenty thousand, on both databases.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from penstock.app.discover import load
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.rules import lifecycle, operations
from penstock.lifecycles.rules.money import text
from penstock.lifecycles.rules.run.machine import R, Run, rule_run
from penstock.lifecycles.rules.target.machine import T, Target, rule_target
from penstock.model.clock import Rng
from penstock.operations.carry import carry_out, make_plan
from penstock.operations.declare import Ask
from penstock.operations.reader import Reader
from penstock.simulators.shopify_journal import overwritten, prices_seen, repeated_unread
from penstock.simulators.shopify_process import in_process, journal
from penstock.worker.schedule import keep_schedules
from tests.support.fleet import Member, until
from tests.support.prices import in_order
from tests.support.program import Program
from tests.support.rules_worker import CONFIG

VARIANTS = 4
POINTS = 14.8
"""What a product costs: four prices read and one mutation."""
AT_ONCE = 4
LOST = 0.1
UNLIMITED = ("--rate", "1e9", "--burst", "1e9", "--variants", str(VARIANTS), "--lost", str(LOST), "--latency", "20")


class Site:
    """A ledger whose one account is a simulated shop in another process, and workers that are killed."""

    def __init__(self, url: str, folder: Path, about: dict[str, Any], rate: float) -> None:
        self.url, self.folder = url, folder
        (folder / "token").write_text(about["admin_token"])
        self.config = folder / "penstock.toml"
        shop = about["shop_url"]
        self.config.write_text(_CONFIG.format(url=url, shop_url=shop, host=urlsplit(shop).netloc, rate=rate))
        self.program = load(self.config, {"ledger.url": url})
        app = self.program.app
        self.ledger = Ledger.open(url, app.machines, create=True, data_tables=app.data.tables, views=app.data.views)
        keep_schedules(self.ledger, self.program.schedules(), "test")
        self.members: list[Member] = []
        self._programs: list[Program] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._programs:
            one.__exit__()
        self.ledger.close()

    def start(self) -> None:
        made = Program(
            "tests.support.rules_worker", self.url, self.folder / str(len(self._programs)), **{CONFIG: str(self.config)}
        )
        self._programs.append(made)
        self.members.append(made.start())

    def kill(self, rng: Rng) -> None:
        """SIGKILL to one of the workers, by chance; another takes its place."""
        chosen = self.members.pop(int(rng.uniform(0, len(self.members))) % len(self.members))
        assert chosen.alive, chosen.text()[-3_000:]
        chosen.kill()
        self.start()

    def stop(self) -> None:
        for one in self._programs:
            one.stop()

    def begin(self) -> None:
        """Have the rule previewed, and queued when that is done."""
        now = self.ledger.clock.now()
        reader = Reader(self.ledger.database, self.ledger.machines.values())
        ask = Ask(reader, self.program.settings(lifecycle), now, "ada", "a test")
        wanted = operations.preview.parameters(rule="sale", queue=True)
        carry_out(self.ledger, ask, make_plan(operations.preview, ask, wanted, owner="rules", version="1"))

    def count(self, sql: str) -> int:
        return int(self.ledger.read(lambda cursor: cursor.rows(sql)[0][0]))

    def run(self) -> Run:
        (unit_id,) = self.ledger.read(lambda cursor: cursor.rows("SELECT unit_id FROM rule_run")[0])
        (found,) = self.ledger.get_many(rule_run, [unit_id])
        assert isinstance(found, Run)
        return found

    def targets(self) -> list[Target]:
        ids = [row[0] for row in self.ledger.read(lambda cursor: cursor.rows("SELECT unit_id FROM rule_target"))]
        return [found for start in range(0, len(ids), 5_000) for found in self._get(ids[start : start + 5_000])]

    def _get(self, ids: list[str]) -> list[Target]:
        return self.ledger.get_many(rule_target, ids)


_CONFIG = """[ledger]
url = "{url}"

[rules]
approve_above = 1000000
private_downloads = ["{host}"]

[rules.accounts.shop]
connector = "shopify"
shop_url = "{shop_url}"
token = {{ file = "token" }}
points_per_second = {rate}
points_burst = 100

[rules.rules.sale]
account = "shop"
currency = "EUR"
selector = {{ everything = true }}
transform = {{ percent = "-10" }}
"""


def kills_change_nothing(url: str, folder: Path, products: int, kills: int, seconds: float) -> None:
    """Kill so many workers while the prices of so many products are set, which takes so long."""
    rng = Rng(kills)
    rate = products * POINTS / seconds
    with in_process(products, *UNLIMITED) as about, Site(url, folder, about, rate) as site:
        for _ in range(AT_ONCE):
            site.start()
        until(lambda: site.count("SELECT count(*) FROM catalogue_reading WHERE number > 0"), "the catalogue", 300)
        site.begin()
        until(lambda: site.count("SELECT count(*) FROM rule_target WHERE status = 'APPLIED'"), "the first price", 300)
        for _ in range(kills):
            time.sleep(rng.uniform(0.2, 1.8) * seconds / kills / 2)
            site.kill(rng)
        under_way = site.run().status is R.APPLYING
        until(lambda: site.run().status not in (R.QUEUED, R.APPLYING), "the run ends", seconds + 120)
        site.stop()
        audit(site, about)
        assert under_way, "every kill was while the run applied"


def audit(site: Site, about: dict[str, Any]) -> None:
    """By the shop's own journal: what every price was at any time, and what was read before it was set again."""
    run, targets, entries = site.run(), site.targets(), journal(about)
    assert (run.status, run.applied_count) == (R.APPLIED, about["variants"])
    assert {t.status for t in targets} == {T.APPLIED}
    assert len(targets) == about["variants"]
    assert repeated_unread(entries) == []
    assert overwritten(entries) == []
    seen = prices_seen(entries)
    for target in targets:
        before, after = (_text(price) for price in (target.before_json, target.after_json or {}))
        assert set(seen[target.id]) <= {before, after}, target.id
        assert seen[target.id][-1] == after, target.id
    assert site.count("SELECT count(*) FROM rule_target WHERE parked_at IS NOT NULL") == 0
    assert site.count("SELECT count(*) FROM rule_run WHERE parked_at IS NOT NULL") == 0
    in_order(site.ledger, [(run, targets)])


def _text(price: dict[str, Any]) -> tuple[str, str | None]:
    crossed, currency = price["compare_at_amount"], price["currency"]
    return text(price["unit_amount"], currency), None if crossed is None else text(crossed, currency)


@pytest.mark.by_day
def test_ten_kills_over_a_thousand_targets_change_nothing(ledger_url, tmp_path):
    kills_change_nothing(ledger_url, tmp_path, 250, 10, 16)


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
def test_two_hundred_kills_over_twenty_thousand_targets_change_nothing(ledger_url, tmp_path):
    kills_change_nothing(ledger_url, tmp_path, 5_000, 200, 400)

"""A pricing rule that changes reaches every record: by itself and on request, whoever is killed or writes meanwhile."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from penstock.ledger.ledger import Ledger
from penstock.ledger.schema.column_types import Exact
from penstock.lifecycles.harvest import operations, prices, reprice
from penstock.lifecycles.harvest.prices import Records, count_records, preview
from penstock.lifecycles.harvest.pricing import BadRule, Rule
from penstock.lifecycles.harvest.reprice import Priced, reprice_some
from penstock.lifecycles.harvest.run.machine import R, RunType
from penstock.lifecycles.harvest.settings import reprice_schedule_of
from penstock.lifecycles.harvest.tables import diamonds, pricing_rules
from penstock.model.errors import UsageError
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.worker.executor import InlineExecutor
from penstock.worker.schedule import Schedules
from penstock.worker.schedule_unit import Schedule
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.consolidation import PATIENT, Site, a_run
from tests.support.harvest import FEED, START, done, small

pytestmark = pytest.mark.by_day

STONES = Priced(FEED)
SCHEDULE = Ref("schedule", reprice_schedule_of(FEED))


@pytest.fixture
def site(ledger_url) -> Iterator[Site]:
    made = Site(ledger_url)
    own = Schedule(name=reprice_schedule_of(FEED), job="reprice", every="1m", settings={"feed": FEED})
    made.ledger.birth([own], actor=Actor.SCHEDULER, who="test")
    yield made
    made.close()


def consolidated(site: Site, count: int = 25, number: int = 1, **run: Any) -> None:
    """So many records that cost 100, 101 and so on, every other one oval."""
    shapes = ("OVAL", "ROUND")
    site.raw(
        {f"s{n:04}": json.dumps({"id": f"o{n}", "price": str(100 + n), "shape": shapes[n % 2]}) for n in range(count)},
        number,
    )
    site.birth(a_run(number, **run))
    assert site.consolidate(number).status is R.COMPLETED


def rule(site: Site, number: int, margin: str, **more: Any) -> None:
    """Put a rule, or put it anew."""
    kind = "numeric" if site.ledger.database.dialect == "postgresql" else "text"
    names = ", ".join(["id", "priority", "margin", *more])
    values = ", ".join([":id", ":priority", f"CAST(:margin AS {kind})", *(f":{name}" for name in more)])
    site.sql(
        f"INSERT INTO pricing_rules ({names}) VALUES ({values})"
        " ON CONFLICT (id) DO UPDATE SET margin = excluded.margin",
        id=number,
        priority=number,
        margin=margin,
        **more,
    )


def tick(site: Site) -> None:
    """The schedule's moment has come: a worker does what is to be done, and rests."""

    def rests() -> bool:
        own: Any = site.ledger.get(SCHEDULE)
        return own.claimed_by is None and own.last_tick_at is not None and own.due_at > site.clock.now()

    async def main() -> None:
        flows = [Schedules({"reprice": lambda _, io: reprice.reprice(STONES, io)})]
        settings = WorkerSettings(idle_seconds=0.02, place_seconds=None)
        worker = Worker(site.ledger, flows, settings, executor=InlineExecutor())
        running = asyncio.create_task(worker.run())
        try:
            async with asyncio.timeout(PATIENT):
                while not rests():  # noqa: ASYNC110 - the ledger tells nobody
                    await asyncio.sleep(0.005)
        finally:
            worker.stop()
            await running

    site.ledger.nudge([SCHEDULE])
    asyncio.run(main())


def priced(site: Site) -> dict[str, tuple[Decimal, int | None, str]]:
    rows = site.rows("SELECT supplier_stone_id, price, pricing_rule_id, pricing_digest FROM diamonds")
    return {str(stone): (Decimal(price), by, str(digest)) for stone, price, by, digest in rows}


def repricings(site: Site) -> list[tuple[Any, ...]]:
    return site.rows("SELECT status, expected, records, changed, unpriced FROM harvest_reprice ORDER BY begun_at")


def told(site: Site) -> tuple[str | None, dict[str, Any]]:
    """The one repricing that ended: how severe it is, and what is told of it."""
    ((severity, payload),) = site.events("harvest.repriced")
    return severity, json.loads(payload) if isinstance(payload, str) else payload


def test_a_rule_that_changes_reaches_records_that_were_fetched_before(site):
    consolidated(site)
    tick(site)
    assert repricings(site) == []
    rule(site, 1, "0.5", shape="OVAL")
    tick(site)
    found = site.prices()
    assert found["s0000"] == Decimal(150)
    assert found["s0001"] == Decimal(101)
    assert repricings(site) == [("completed", 25, 25, 13, 0)]
    severity, facts = told(site)
    assert (severity, facts["records"], facts["changed"], facts["requested_by"]) == (None, 25, 13, None)
    # Once more there is nothing to do, and nothing is told.
    tick(site)
    assert len(repricings(site)) == len(site.events("harvest.repriced")) == 1
    site.sql("UPDATE pricing_rules SET active = :no", no=False)
    tick(site)
    assert site.prices() == {f"s{n:04}": Decimal(100 + n) for n in range(25)}


def test_it_comes_to_what_consolidation_comes_to(site):
    consolidated(site)
    rule(site, 1, "0.105", shape="OVAL")
    rule(site, 2, "0.2")
    while reprice_some(site.ledger, STONES, START, at_once=7).more:
        pass
    repriced = priced(site)
    site.sql("DELETE FROM diamonds")
    consolidated(site, number=2, run_type=RunType.INCREMENTAL)
    assert priced(site) == repriced
    assert {by for _, by, _ in repriced.values()} == {1, 2}


def test_only_a_price_that_changes_is_an_update(site):
    consolidated(site)
    before = site.rows("SELECT supplier_stone_id, updated_at FROM diamonds ORDER BY 1")
    rule(site, 1, "0.5", shape="OVAL")
    site.clock.advance(60)
    tick(site)
    after = site.rows("SELECT supplier_stone_id, updated_at FROM diamonds ORDER BY 1")
    assert [new != old for (_, old), (_, new) in zip(before, after, strict=True)] == [n % 2 == 0 for n in range(25)]


def test_a_preview_counts_and_changes_nothing(site):
    consolidated(site)
    assert (preview(site.ledger, STONES.records).stale, preview(site.ledger, STONES.records).records) == (0, 25)
    before = priced(site)
    rule(site, 1, "0.5", shape="OVAL")
    found = preview(site.ledger, STONES.records)
    assert (found.rules, found.records, found.stale, found.changed, found.unpriced) == (1, 25, 25, 13, 0)
    assert len(found.sample) == 10
    first = found.sample[0]
    assert (first.record, first.before, first.after, first.rule_before, first.rule_after) == (
        *("s0000", Decimal(100), Decimal(150)),
        *(None, 1),
    )
    assert priced(site) == before


def test_rules_that_change_once_more_are_the_ones_that_count(site):
    consolidated(site)
    rule(site, 1, "0.5")
    assert reprice_some(site.ledger, STONES, START, at_once=10).more
    rule(site, 1, "0.25")
    site.clock.advance(1)
    tick(site)
    assert site.prices() == {f"s{n:04}": (100 + n) * Decimal("1.25") for n in range(25)}
    assert repricings(site) == [("superseded", 25, 10, 10, 0), ("completed", 25, 25, 25, 0)]


class Meanwhile:
    """A ledger on which something happens between the first reading and the writing."""

    def __init__(self, ledger: Ledger, happens: Callable[[], object]) -> None:
        self.database, self._ledger, self._happens = ledger.database, ledger, happens

    def read(self, work: Any) -> Any:
        found = self._ledger.read(work)
        self._happens()
        self._happens = lambda: None
        return found


def test_what_consolidation_wrote_meanwhile_is_not_overwritten(site):
    consolidated(site)
    rule(site, 1, "0.5")

    def happens() -> None:
        rule(site, 1, "0.25")
        site.raw({"s0003": json.dumps({"id": "o", "price": "900"})}, 2, updated=START + timedelta(hours=1))
        site.birth(a_run(2, run_type=RunType.INCREMENTAL))
        site.consolidate(2)
        site.sql("UPDATE diamonds SET carat = '2' WHERE supplier_stone_id = 's0004'")

    meanwhile: Any = Meanwhile(site.ledger, happens)
    assert reprice_some(meanwhile, STONES, START).records == 23
    assert site.prices()["s0003"] == 900 * Decimal("1.25")
    assert site.prices()["s0004"] == Decimal(104)
    # What it wrote by the rules that it had read is found, because others are in force.
    tick(site)
    expected = {f"s{n:04}": (100 + n) * Decimal("1.25") for n in range(25)} | {"s0003": 900 * Decimal("1.25")}
    assert site.prices() == expected


def test_a_run_that_began_under_the_old_rules_is_followed(site):
    consolidated(site)
    rule(site, 1, "0.5")
    tick(site)
    kept = site.rows("SELECT rules, digest FROM harvest_pricing")[0]
    # As its chunks would write after the rule has changed: the price of no rule, by the digest of no rule.
    site.sql("UPDATE diamonds SET price = supplier_price, pricing_rule_id = NULL, pricing_digest = :d", d=kept[1])
    tick(site)
    assert site.prices()["s0000"] == Decimal(150)


def test_a_record_that_no_price_can_be_made_of_keeps_its_own(site):
    consolidated(site)
    rule(site, 1, "-2", shape="OVAL")
    found = preview(site.ledger, STONES.records)
    assert (found.stale, found.changed, found.unpriced) == (25, 0, 13)
    assert found.why_not == "s0000: pricing rule 1 turns 100 into -100, which is below zero"
    tick(site)
    assert site.prices() == {f"s{n:04}": Decimal(100 + n) for n in range(25)}
    assert repricings(site) == [("completed", 25, 25, 0, 13)]
    assert told(site)[0] == "warning"


def test_a_rule_that_cannot_be_applied_is_told_once_and_changes_nothing(site):
    consolidated(site)
    before = priced(site)
    rule(site, 7, "0", rounding_mode="sideways")
    with pytest.raises(BadRule, match="pricing rule 7"):
        preview(site.ledger, STONES.records)
    tick(site)
    tick(site)
    ((severity, payload),) = site.events("harvest.reprice_refused")
    assert severity == "critical"
    assert "pricing rule 7" in str(payload)
    assert priced(site) == before


def test_a_person_asks_with_a_name_and_a_reason(site):
    consolidated(site)
    rule(site, 1, "0.5")
    asked = done(site.ledger, small(), operations.reprice, feed=FEED, reason="the new list")
    assert asked.says == "price 25 records of stones again and change 25 prices"
    with pytest.raises(UsageError, match="0 of 25 records are done"):
        done(site.ledger, small(), operations.reprice, feed=FEED, who="bob", reason="me too")
    own: Any = site.ledger.get(SCHEDULE)
    assert (own.changed_by, own.change_reason) == ("operator:ada", "the new list")
    tick(site)
    assert site.prices()["s0000"] == Decimal(150)
    ((by, reason, status),) = site.rows("SELECT requested_by, reason, status FROM harvest_reprice")
    assert (by, reason, status) == ("ada", "the new list", "completed")
    assert told(site)[1]["requested_by"] == "ada"


def test_a_paused_schedule_is_not_asked(site):
    consolidated(site)
    rule(site, 1, "0.5")
    site.ledger.move(SCHEDULE, "paused", actor=Actor.OPERATOR, who="ada", reason="look first")
    with pytest.raises(UsageError, match="schedules resume reprice-stones"):
        done(site.ledger, small(), operations.reprice, feed=FEED, reason="now")
    assert repricings(site) == []


def test_a_record_that_somebody_holds_is_not_waited_for(site):
    if site.ledger.database.dialect != "postgresql":
        pytest.skip("SQLite has one writer")
    import psycopg

    consolidated(site)
    rule(site, 1, "0.5")
    with psycopg.connect(site.url) as other:
        other.execute("UPDATE diamonds SET availability = 'sold' WHERE supplier_stone_id = 's0005'")
        assert reprice_some(site.ledger, STONES, START).records == 24
        assert repricings(site) == [("running", 25, 24, 24, 0)]
    tick(site)
    assert site.prices()["s0005"] == 105 * Decimal("1.5")
    assert repricings(site) == [("completed", 25, 25, 25, 0)]


def test_two_at_once_price_every_record_once(site):
    consolidated(site, 200)
    rule(site, 1, "0.5")
    one, two = (_process(site.url, 10) for _ in range(2))
    assert (one.wait(PATIENT), two.wait(PATIENT)) == (0, 0)
    assert repricings(site) == [("completed", 200, 200, 200, 0)]
    assert site.prices() == {f"s{n:04}": (100 + n) * Decimal("1.5") for n in range(200)}


def test_a_kill_leaves_records_that_are_done_and_records_as_they_were(site):
    consolidated(site, 300)
    rule(site, 1, "0.5")
    killed = _process(site.url, 3, pause=0.02)
    end = time.monotonic() + PATIENT
    while not (found := repricings(site)) or found[0][2] < 30:
        assert time.monotonic() < end
        time.sleep(0.005)
    killed.kill()
    assert killed.wait(PATIENT) == -signal.SIGKILL
    ((status, expected, records, changed, _),) = repricings(site)
    done = {stone for stone, (price, by, _) in priced(site).items() if by == 1}
    assert (status, expected, len(done), changed) == ("running", 300, records, records)
    assert 30 <= records < 300
    tick(site)
    assert site.prices() == {f"s{n:04}": (100 + n) * Decimal("1.5") for n in range(300)}
    assert repricings(site) == [("completed", 300, 300, 300, 0)]


_WORK = """
import sys, time
from penstock.model.clock import SystemClock
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.harvest import MACHINES
from penstock.lifecycles.harvest.reprice import reprice_some
from penstock.lifecycles.harvest.reprice import Priced
url, feed, at_once, pause = sys.argv[1:]
with Ledger.open(url, MACHINES) as ledger:
    while reprice_some(ledger, Priced(feed), SystemClock().now(), at_once=int(at_once)).more:
        time.sleep(float(pause))
"""


def _process(url: str, at_once: int, pause: float = 0.0) -> subprocess.Popen[bytes]:
    """A process that reprices, so many records in a transaction."""
    return subprocess.Popen([sys.executable, "-c", _WORK, url, FEED, str(at_once), str(pause)])


def test_how_far_it_has_come_is_seen(site):
    consolidated(site)
    rule(site, 1, "0.5")
    assert reprice_some(site.ledger, STONES, START, at_once=10).more
    found = site.ledger.read(lambda cursor: reprice.under_way(cursor, FEED))
    assert found is not None
    assert (found["records"], found["expected"]) == (10, 25)
    assert site.ledger.read(lambda cursor: count_records(cursor, STONES.records, unlike=found["digest"])) == 15


def test_what_is_named_of_the_tables_is_in_them():
    """`prices` names tables and columns that it does not load."""
    assert Records(FEED) == STONES.records
    assert tuple(Rule.__slots__) == tuple(c.name for c in pricing_rules.columns if c.name != "active")
    exact = [name for name in prices.READ if isinstance(diamonds.columns[name].type, Exact)]
    assert sorted(prices.AMOUNTS) == sorted(exact)

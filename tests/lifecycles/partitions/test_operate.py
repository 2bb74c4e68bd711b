"""What operators do, by name and reason: counted first, only along legal edges, and seen in the history."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from penstock.lifecycles.partitions.operate import backfill, point, reprocess

from penstock.lifecycles.partitions.machine import P, X
from penstock.model.errors import UsageError
from penstock.raw.paths import PartitionKey
from penstock.raw.reader import Range
from tests.support.ad_source import CUSTOMERS
from tests.support.partitions import DAY, KEY, Partitions, Said, rows

MANY = Range("google_ads", CUSTOMERS, ("campaign_daily",), DAY - timedelta(days=9), DAY)
WHO: dict[str, Any] = {"who": "anna", "reason": "the schema was mended"}


def due(world: Partitions) -> list[tuple[Any, ...]]:
    return world.rows("SELECT customer_id, logical_date, due_at FROM extraction ORDER BY due_at, customer_id")


def test_a_backfill_is_counted_spread_and_newest_first(world):
    counted = backfill(world.ledger, world.settings, MANY, dry_run=True, **WHO)
    assert (counted.total, counted.wanted, dict(counted.skipped)) == (20, 20, {})
    assert due(world) == []
    backfill(world.ledger, world.settings, MANY, **WHO)
    found = due(world)
    assert [str(day) for _, day, _ in found[:4]] == ["2026-11-01", "2026-11-01", "2026-10-31", "2026-10-31"]
    assert len({str(at) for _, _, at in found}) == 10, "sixty an hour for each customer: one a minute"
    again = backfill(world.ledger, world.settings, MANY, **WHO)
    assert (again.wanted, dict(again.skipped)) == (0, {"wanted before": 20})


def test_daily_work_is_claimed_beside_a_backfill_however_much_of_it_is_due(world):
    backfill(world.ledger, world.settings, MANY, **WHO)
    world.time.advance(3_600)  # all of it is overdue, and older than what comes now
    daily = PartitionKey("google_ads", CUSTOMERS[0], "campaign_daily", DAY + timedelta(days=1))
    reprocess(world.ledger, [daily], **WHO)
    session = world.ledger.session()
    session.register()
    taken = [unit.logical_date for unit in session.claim({"extraction": 4})]
    assert daily.logical_date in taken


def test_reprocessing_concerns_what_rests_and_what_nobody_wanted(world):
    keys = [PartitionKey("google_ads", CUSTOMERS[0], "campaign_daily", DAY + timedelta(days=n)) for n in range(3)]
    reprocess(world.ledger, keys[:2], **WHO)
    world.work(world.flow(Said(lambda key: rows(key=key))), seconds=5)
    reprocess(world.ledger, keys[1:2], **WHO)
    counted = reprocess(world.ledger, keys, dry_run=True, **WHO)
    assert (counted.total, counted.wanted, dict(counted.skipped)) == (3, 2, {"already wanted": 1})
    done = reprocess(world.ledger, keys, **WHO)
    assert (done.wanted, dict(done.skipped)) == (2, {"already wanted": 1})
    unit = world.extraction(keys[0])
    assert (unit.status, unit.run_id, unit.gate_id) == (X.WANTED, None, f"google_ads/{CUSTOMERS[0]}")
    assert world.history("extraction", keys[0])[-1] == ("done", "wanted", "operator", WHO["reason"])
    before = world.gate.status(keys[0]).current_run_id
    assert before is not None, "consumers read on meanwhile"
    world.work(world.flow(Said(lambda key: rows(key=key))), seconds=5)
    assert str(world.gate.status(keys[0]).current_run_id) > before


def test_a_named_person_points_at_an_older_run(world):
    old, new = world.judge(rows(note="old")), world.judge(rows(note="new"))
    assert world.validate(old).verdict == "older"
    assert world.gate.status(KEY).current_run_id == new
    point(world.validators, world.ledger, KEY, old, who="anna", reason="the new one is from a test account")
    assert {row["note"] for row in world.gate.open(KEY).rows()} == {"old"}
    source, target, actor, reason = world.history()[-1]
    assert (source, target, actor) == ("success", "success", "operator")
    assert "anna (the new one is from a test account)" in reason
    assert [verdict for _, verdict, _ in world.attempts()] == ["success", "success", "older", "success"]
    state = world.state()
    assert state is not None
    assert state.attempt_count == 2, "runs are counted, not evaluations"


def test_a_failed_partition_is_pointed_at_its_last_good_run(world):
    good = world.judge()
    world.judge([{"bad": 1}])
    point(world.validators, world.ledger, KEY, good, who="anna", reason="go back")
    state = world.state()
    assert state is not None
    assert (state.status, state.current_run_id) == (P.SUCCESS, good)
    assert world.history()[-1][:3] == ("failed", "success", "validator")


def test_nobody_points_at_a_run_that_is_missing_or_bad(world):
    bad = world.land([{"bad": 1}])
    with pytest.raises(UsageError, match=r"cannot point at run .*: row 1: field campaign\.id is missing"):
        point(world.validators, world.ledger, KEY, bad, who="anna", reason="x")
    with pytest.raises(UsageError, match=f"has no finalised run 2020.*; it has {bad}"):
        point(world.validators, world.ledger, KEY, "2020-01-01T00:00:00.000Z", who="anna", reason="x")
    assert world.state() is None


def test_the_last_good_run_is_kept_where_the_flow_says_so(partitions_url, tmp_path):
    world = Partitions(partitions_url, tmp_path, keep_last_good=True)
    good = world.judge()
    world.judge([{"bad": 1}])
    state = world.state()
    assert state is not None
    assert (state.status, state.current_run_id, state.attempt_count) == (P.SUCCESS, good, 2)
    assert world.alerts() == ["partition.kept"]
    assert [verdict for _, verdict, _ in world.attempts()] == ["success", "kept"]
    assert list(world.gate.open(KEY).rows()) == rows()
    world.close()

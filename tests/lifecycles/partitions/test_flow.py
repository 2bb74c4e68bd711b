"""From a wanted key to a safe partition: enumerated, extracted, landed, judged, whatever breaks on the way."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from penstock.ledger.care.doctor import examine
from penstock.lifecycles.partitions.jobs import ENUMERATE
from penstock.lifecycles.partitions.machine import MACHINES, P, X, wanted_unit
from penstock.model.clock import Rng
from penstock.model.errors import Fatal, Rejected, Throttled, Transient
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.raw.paths import PartitionKey
from penstock.worker.executor import InlineExecutor
from penstock.worker.flow import Io
from penstock.worker.schedule import Schedules, keep_schedules
from penstock.worker.schedule_unit import Schedule
from tests.support.ad_source import CUSTOMERS, AdExtractor, ad_source
from tests.support.partitions import DAY, KEY, Partitions, Said, rows


def want(world: Partitions, key: PartitionKey = KEY, **columns) -> None:
    world.ledger.birth([wanted_unit(key, world.ledger.clock.now(), **columns)], actor=Actor.SCHEDULER, who="test")


def test_a_wanted_partition_is_extracted_landed_and_judged(world):
    want(world)
    source = Said(rows())
    world.work(world.flow(source))
    unit, state = world.extraction(), world.state()
    assert (unit.status, unit.verdict, unit.record_count) == (X.DONE, "success", 3)
    assert state is not None
    assert (state.status, state.current_run_id, state.record_count, state.attempt_count) == (
        P.SUCCESS,
        unit.run_id,
        3,
        1,
    )
    assert source.asked == [(KEY, unit.run_id)]
    assert list(world.reader.open(KEY).rows()) == rows()
    steps = [(a, b, who) for a, b, who, _ in world.history("extraction")]
    assert steps == [
        (None, "wanted", "scheduler"),
        ("wanted", "extracting", "worker"),
        ("extracting", "landed", "worker"),
        ("landed", "done", "validator"),
    ]
    assert [(a, b, who) for a, b, who, _ in world.history()] == [(None, "success", "validator")]
    assert examine(world.ledger.database, {m.name: m for m in MACHINES}) == []


def test_a_bad_run_fails_the_partition_and_a_rerun_makes_it_good(world):
    want(world)
    world.work(world.flow(Said([{"campaign": {"id": "x"}}])))
    state = world.state()
    assert state is not None
    assert state.status is P.FAILED
    assert "campaign.id is str 'x', not whole" in str(state.error_message)
    assert world.extraction().verdict == "failed"
    assert world.alerts() == ["partition.failed"]
    first = state.current_run_id
    world.ledger.move(
        Ref("extraction", str(KEY)),
        X.WANTED,
        actor=Actor.OPERATOR,
        who="anna",
        reason="mended",
        run_id=None,
        due_at=world.time.now(),
    )
    world.work(world.flow(Said(rows())))
    state = world.state()
    assert state is not None
    assert (state.status, state.error_message, state.attempt_count) == (P.SUCCESS, None, 2)
    assert state.current_run_id > first
    assert [verdict for _, verdict, _ in world.attempts()] == ["failed", "success"]


def test_a_transient_failure_is_tried_again_under_the_same_run_id(world):
    want(world)
    source = Said(Transient("away"), Transient("away"), rows())
    world.work(world.flow(source))
    assert world.extraction().status is X.DONE
    assert len({run_id for _, run_id in source.asked}) == 1
    assert len(source.asked) == 3
    late = world.time.now() + timedelta(days=36_500)
    assert list(world.sink.unfinished(late)) == [], "broken attempts were abandoned"


def test_what_the_source_refuses_is_a_dead_letter_and_the_partition_stays_pending(world):
    want(world)
    world.work(world.flow(Said(Rejected("no such query"))))
    unit = world.extraction()
    assert unit.status is X.FAILED
    assert "no such query" in unit.change_reason
    assert world.state() is None
    assert world.reader.status(KEY).status == "pending"
    assert world.alerts() == ["unit.dead"]


@pytest.mark.parametrize("error", [Throttled("slow down", 3_600), Fatal("revoked")], ids=["throttled", "fatal"])
def test_an_account_that_is_closed_charges_nobody_and_leaves_the_others_running(world, error):
    other = PartitionKey("google_ads", CUSTOMERS[1], "campaign_daily", DAY)
    want(world)
    want(world, other)
    broken = Said(lambda key: error if key == KEY else rows())
    world.work(world.flow(broken))
    assert (world.extraction().status, world.extraction().attempts) == (X.WANTED, 0)
    assert world.extraction(other).status is X.DONE
    gates = dict(world.rows("SELECT gate_id, closed_reason IS NOT NULL OR held_by IS NOT NULL FROM gate"))
    assert {gate for gate, closed in gates.items() if closed} == {f"google_ads/{CUSTOMERS[0]}"}


def test_a_run_that_landed_before_its_worker_died_is_recorded_and_not_asked_for_again(world):
    want(world)
    source = Said(rows())
    session = world.ledger.incarnation()
    session.register()
    (unit,) = session.claim({"extraction": 1})
    flow = world.flow(source)

    async def die() -> None:
        """The worker dies between the sink and the ledger."""
        io = Io(world.ledger, InlineExecutor(), world.time.now, Rng(1), None)  # type: ignore[arg-type]
        begun = await flow.act("begin", unit, None, io)
        (kept,) = session.commit([world.ledger.preparer.entry(begun, session.identity.id)])
        await flow.act("extract", kept.unit, None, io)

    asyncio.run(die())
    assert world.extraction().status is X.EXTRACTING
    world.time.advance(120)
    world.work(flow, seconds=120)
    assert world.extraction().status is X.DONE
    assert len(source.asked) == 1
    assert world.state().current_run_id == source.asked[0][1]


def test_a_customer_that_is_not_configured_is_a_dead_letter(world):
    stranger = PartitionKey("google_ads", "9999999999", "campaign_daily", DAY)
    want(world, stranger)
    world.work(world.flow(Said(rows())))
    assert world.extraction(stranger).status is X.FAILED
    assert "has no customer 9999999999" in world.extraction(stranger).change_reason


def test_a_record_that_json_cannot_keep_is_a_dead_letter(world):
    want(world)
    world.work(world.flow(Said([{"n": float("nan")}])))
    assert world.extraction().status is X.FAILED
    assert "record 1: a record cannot be stored as JSON" in world.extraction().change_reason


def test_the_schedule_wants_every_key_once(world):
    keep_schedules(world.ledger, [Schedule(name="daily", job=ENUMERATE, every="1m")], "test")
    source = Said(lambda key: rows(key=key))
    world.work(world.flow(source), Schedules(world.program.jobs()), seconds=150)
    (range_,) = world.settings.wanted(world.time.now())
    wanted = set(range_.keys())
    assert {key for key, _ in source.asked} == wanted
    assert len(source.asked) == len(wanted) == 4
    assert world.reader.range(range_).ready


def test_a_clock_that_was_set_back_does_not_hide_the_new_run(world):
    ahead = world.land()
    world.validate(ahead)
    world.time = type(world.time)(world.time.now() - timedelta(days=1))
    world.ledger.clock = world.time
    want(world)
    unit = world.ledger.get(Ref("extraction", str(KEY)))
    flow = world.flow(Said(rows(note="new")))

    class Here:
        now = staticmethod(world.time.now)

    assert flow._fresh_run(world.ledger, unit, Here()) > ahead


def test_a_backfill_waits_behind_its_own_gate_and_passes_the_accounts(world):
    want(world, backfill=True)
    assert world.extraction().gate_id == f"google_ads/{CUSTOMERS[0]}/backfill"
    world.ledger.gates.close(f"google_ads/{CUSTOMERS[0]}", 60, "quiet")
    source = Said(rows())
    world.work(world.flow(source), seconds=20)
    assert source.asked == []
    assert world.extraction().status is X.EXTRACTING
    world.work(world.flow(source), seconds=60)
    assert world.extraction().status is X.DONE


def test_over_real_http_good_and_bad_days_end_in_named_states(partitions_url, tmp_path):
    world = Partitions(partitions_url, tmp_path, real=True)
    days = [DAY + timedelta(days=n) for n in range(9)]
    keys = [PartitionKey("google_ads", CUSTOMERS[0], "campaign_daily", day) for day in days]
    good = [rows(key=key) for key in keys]
    renamed = [{**row, "metrics": {"click": row["metrics"]["clicks"]}} for row in good[2]]
    retyped = [{**row, "metrics": {"clicks": 1.5}} for row in good[3]]
    answers = {
        1: [{k: v for k, v in row.items() if k != "metrics"} for row in good[1]],
        2: renamed,
        3: retyped,
        4: [*good[4], good[4][0]],
        5: good[0],
        6: 404,
        7: [503, 503, 200],
        8: [],
    }
    expected = {
        1: "field metrics.clicks is missing",
        2: "field metrics.clicks is missing; did it become metrics.click?",
        3: "field metrics.clicks is float 1.5, not whole",
        4: "row 4: repeats campaign.id",
        5: "segments.date is str '2026-11-01'; the partition is of 2026-11-06",
    }
    with ad_source() as source:
        source.answers = {f"{CUSTOMERS[0]}/campaign_daily/{days[n]}": answer for n, answer in answers.items()}
        for key in keys:
            want(world, key)
        flow = world.flow(AdExtractor(source.address))
        ended = "SELECT count(*) FROM extraction WHERE status IN ('done', 'failed')"
        world.work_until(lambda: world.rows(ended) == [(len(keys),)], flow)
        assert source.asked.count(f"{CUSTOMERS[0]}/campaign_daily/{days[7]}") == 3
    states = world.reader.statuses(keys)
    assert [s.status for s in states] == ["success", *["failed"] * 5, "pending", "success", "success"]
    for n, text in expected.items():
        assert text in str(states[n].error_message)
    assert states[8].record_count == 0
    assert "404" in str(world.extraction(keys[6]).change_reason)
    world.close()

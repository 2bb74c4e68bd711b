"""What people ask of partitions and do to them: counted first, only along legal edges, and seen in the history."""

from __future__ import annotations

import subprocess
import sys
from datetime import date, timedelta
from typing import Any

import pytest

from penstock.ledger.care.doctor import examine
from penstock.lifecycles.partitions import keep, operations
from penstock.lifecycles.partitions.calendar import CalendarWanted, calendar
from penstock.lifecycles.partitions.machine import MACHINES, P, V, Validation, X, validation, wanted_unit
from penstock.lifecycles.partitions.operations import (
    ListWanted,
    OnePartition,
    OneRun,
    PartitionThen,
    PointWanted,
    RangeWanted,
    ReadWanted,
    ReprocessWanted,
    SeriesWanted,
    Waiting,
    backfill,
    point,
    reprocess,
    reset,
    validate,
)
from penstock.lifecycles.partitions.validate import Rules
from penstock.model.errors import PlanChanged, UsageError
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.operations.carry import check_digest
from penstock.raw.paths import PartitionKey
from penstock.raw.reader import NotReady
from penstock.raw.store import RawUnavailable
from tests.support.ad_source import CUSTOMERS
from tests.support.partitions import DAY, KEY, Partitions, Said, rows

A_DAY = timedelta(days=1)
FIRST = DAY - 9 * A_DAY
MANY = RangeWanted(source="google_ads", first=FIRST, last=DAY)
BAD = [{"bad": 1}]
NAME = str(KEY)


def day(n: int, customer: str = CUSTOMERS[0]) -> PartitionKey:
    return PartitionKey("google_ads", customer, "campaign_daily", DAY + n * A_DAY)


def due(world: Partitions) -> list[tuple[Any, ...]]:
    return world.rows("SELECT customer_id, logical_date, due_at FROM extraction ORDER BY due_at, customer_id")


def want(world: Partitions, *keys: PartitionKey) -> None:
    now = world.time.now()
    world.ledger.birth([wanted_unit(key, now) for key in keys], actor=Actor.SCHEDULER, who="test")


def wish(world: Partitions, run_id: str, key: PartitionKey = KEY) -> Validation:
    found = world.ledger.get(Ref(validation.name, f"{key}/{run_id}"))
    assert isinstance(found, Validation)
    return found


def test_the_declaration_imports_nothing_heavy():
    code = (
        "import sys, penstock.lifecycles.partitions as one; one.lifecycle.settings();"
        "[declared.parameters for declared in (*one.lifecycle.readings, *one.lifecycle.operations)];"
        "print(*sorted({'sqlalchemy', 'aiohttp', 'rich', 'structlog', 'psycopg', 'obstore'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# -- looking


def test_a_partition_is_shown_with_its_run_and_why(world):
    found = world.read(operations.status, PartitionThen(partition=NAME))
    assert (found.status, found.reason, found.current_run_id) == (
        P.PENDING,
        "no run of it has been validated yet",
        None,
    )
    run_id = world.judge()
    before = world.time.now()
    world.time.advance(1)
    found = world.read(operations.status, PartitionThen(partition="google_ads/111-111-1111/campaign_daily/2026-11-01"))
    assert (found.partition, found.status, found.current_run_id, found.record_count) == (NAME, P.SUCCESS, run_id, 3)
    world.judge(BAD)
    assert world.read(operations.status, PartitionThen(partition=NAME)).status is P.FAILED
    then = world.read(operations.status, PartitionThen(partition=NAME, at=before))
    assert (then.status, then.current_run_id) == (P.SUCCESS, run_id)


def test_a_range_is_counted_by_customer_and_query(world):
    world.time.advance(5 * 86_400)
    world.judge()
    world.judge(BAD, day(1))
    wanted: dict[str, Any] = {"source": "google_ads", "first": DAY, "last": DAY + 2 * A_DAY}
    found = world.read(operations.range_, SeriesWanted(**wanted))
    assert found.counts == {"partitions": 6, "success": 1, "failed": 1, "pending": 4}
    assert [(r.customer_id, r.success, r.failed, r.pending) for r in found.rows] == [
        (CUSTOMERS[0], 1, 1, 1),
        (CUSTOMERS[1], 0, 0, 3),
    ]
    ready = world.read(operations.range_, SeriesWanted(source="google_ads", first=DAY, customer=CUSTOMERS[:1]))
    assert (len(ready.rows), ready.note) == (1, None)
    unready = SeriesWanted(source="google_ads", first=DAY, customer=CUSTOMERS[:1], unready=True)
    assert world.read(operations.range_, unready).note == "all of them are safe to consume"


@pytest.mark.parametrize("limit", [1, 2, 4, 100])
def test_a_list_goes_on_where_the_last_ended(world, limit):
    world.time.advance(5 * 86_400)
    world.judge(BAD, day(1))
    world.judge(BAD, day(0, CUSTOMERS[1]))
    wanted: dict[str, Any] = {"source": "google_ads", "first": DAY, "last": DAY + 2 * A_DAY, "limit": limit}
    for statuses, expected in (((), 6), ((P.FAILED,), 2), ((P.PENDING, P.FAILED), 6), ((P.SUCCESS,), 0)):
        seen: list[str] = []
        after = None
        while True:
            page = world.read(operations.list_, ListWanted(**wanted, status=statuses, after=after))
            seen += [row.partition for row in page.rows]
            assert len(page.rows) <= limit
            if page.next is None:
                break
            after = page.next
        assert len(seen) == len(set(seen)) == expected
    other = ListWanted(source="google_ads", first=DAY, customer=CUSTOMERS[:1], after=str(day(0, CUSTOMERS[1])))
    with pytest.raises(UsageError, match="is not in this range"):
        world.read(operations.list_, other)


def test_rows_are_streamed_and_the_run_is_described(world):
    with pytest.raises(NotReady, match="is pending"):
        world.read(operations.read, ReadWanted(partition=NAME))
    run_id = world.judge()
    lines = list(world.read(operations.read, ReadWanted(partition=NAME)).lines)
    assert len(lines) == 3
    assert '"campaign"' in lines[0]
    (path,) = world.read(operations.read, ReadWanted(partition=NAME, path=True)).lines
    found = world.read(operations.metadata, PartitionThen(partition=NAME))
    assert (found.run_id, found.record_count, found.path) == (run_id, 3, path)
    assert found.checksum.startswith("sha256:")


@pytest.mark.by_day
def test_a_calendar_has_a_sign_for_each_day_of_each_series(world):
    world.time.advance(5 * 86_400)
    world.judge()
    world.judge(BAD, day(1))
    wanted: dict[str, Any] = {"first": DAY, "last": DAY + 2 * A_DAY}
    found = world.read(calendar, CalendarWanted(**wanted, limit=1))
    assert [(row.series, row.days) for row in found.rows] == [(NAME.rpartition("/")[0], "#!.")]
    (rest,) = world.read(calendar, CalendarWanted(**wanted, after=found.next)).rows
    assert (rest.days, rest.first, rest.states) == ("...", DAY, [P.PENDING] * 3)
    assert len(world.read(calendar, CalendarWanted(**wanted, customer=CUSTOMERS[1:], unready=True)).rows) == 1
    assert world.read(calendar, CalendarWanted(query=("nonesuch",))).note == "no such series"
    with pytest.raises(UsageError, match="more than 366 days"):
        world.read(calendar, CalendarWanted(first=date(2020, 1, 1)))


def test_runs_are_listed_with_what_became_of_each(world):
    assert world.read(operations.runs, PartitionThen(partition=NAME)).note == f"no run of {NAME} has landed yet"
    good, bad = world.judge(), world.judge(BAD)
    unjudged = world.land()
    found = world.read(operations.runs, PartitionThen(partition=NAME)).rows
    assert [(r.run_id, r.verdict, r.authoritative) for r in found] == [
        (unjudged, None, False),
        (bad, "failed", False),
        (good, "success", False),
    ]
    assert found[1].error is not None
    assert (found[2].judged_by, found[2].record_count) == ("test", 3)
    world.judge()
    assert [r.authoritative for r in world.read(operations.runs, PartitionThen(partition=NAME)).rows][:2] == [
        True,
        False,
    ]


def test_a_run_is_inspected_and_nothing_is_written(world):
    inspect = operations.inspecting(Rules())
    with pytest.raises(UsageError, match="has no finalised run in"):
        world.read(inspect, OneRun(partition=NAME))
    good = world.land()
    bad = world.land(BAD)
    found = world.read(inspect, OneRun(partition=NAME, run=good))
    assert (found.failed, found.record_count, found.errors) == (False, 3, [])
    found = world.read(inspect, OneRun(partition=NAME))
    assert (found.run_id, found.failed) == (bad, True)
    assert "row 1: field campaign.id is missing" in found.errors
    assert world.state() is None


def test_waiting_ends_when_all_are_safe(world):
    world.judge()
    found = world.read(operations.wait, Waiting(partitions=(NAME,)))
    assert [row.status for row in found.rows] == [P.SUCCESS]
    with pytest.raises(NotReady, match="is pending"):
        world.read(operations.wait, Waiting(partitions=(NAME, str(day(1))), timeout=timedelta(seconds=0.01)))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"source": "googel_ads"}, "no source is called 'googel_ads'; configured are google_ads"),
        ({"customer": ("9",)}, "google_ads has no customer 9; configured are 1111111111, 2222222222"),
        ({"customer": ("",)}, "'' is not a customer id"),
        ({"query": ("other",)}, "google_ads has no query 'other'; configured are campaign_daily"),
        ({"last": date(2020, 1, 1)}, "ends before it starts"),
        ({"first": date(1, 1, 1), "last": date(9999, 12, 31)}, "more than 3,660 days"),
    ],
)
def test_a_range_that_is_none_is_refused(world, wanted, expected):
    given: dict[str, Any] = {"source": "google_ads", "first": DAY, **wanted}
    for declared, kind in ((operations.range_, SeriesWanted), (operations.list_, ListWanted)):
        with pytest.raises(UsageError, match=expected):
            world.read(declared, kind(**given))
    for operation, form in ((reprocess, ReprocessWanted), (backfill, RangeWanted)):
        with pytest.raises(UsageError, match=expected):
            world.plan(operation, form(**given))


def test_a_day_that_is_not_over_where_the_customer_is_cannot_be_asked_for(partitions_url, tmp_path):
    zones = {CUSTOMERS[0]: "Etc/GMT+12", CUSTOMERS[1]: "UTC"}
    world = Partitions(partitions_url, tmp_path, time_zones=zones)
    today = world.time.now().date()
    told = f"{today} is not over yet for customer 1111111111: it ends at"
    for operation, form in ((reprocess, ReprocessWanted), (backfill, RangeWanted)):
        with pytest.raises(UsageError, match=told):
            world.plan(operation, form(source="google_ads", first=today))
    world.close()


# -- acting


@pytest.mark.by_day
def test_a_backfill_is_counted_spread_and_newest_first(world):
    counted = world.plan(backfill, MANY).preview
    assert (counted.count, counted.says) == (20, "extract 20 partitions")
    assert counted.warnings == ["the last falls due at 2026-11-03 06:09 UTC"]
    assert due(world) == []
    assert world.do(backfill, MANY).count == 20
    found = due(world)
    assert [str(day) for _, day, _ in found[:4]] == ["2026-11-01", "2026-11-01", "2026-10-31", "2026-10-31"]
    assert len({str(at) for _, _, at in found}) == 10, "sixty an hour for each customer: one a minute"
    assert {gate for (gate,) in world.rows("SELECT DISTINCT gate_id FROM extraction")} == {
        f"google_ads/{customer}/backfill" for customer in CUSTOMERS
    }
    again = world.plan(backfill, MANY).preview
    assert (again.count, again.warnings) == (0, ["20 partitions left as they are: they have an extraction already"])
    assert world.do(backfill, MANY).count == 0
    assert world.history("extraction", KEY) == [(None, "wanted", "operator", "a test")]
    assert examine(world.ledger.database, {m.name: m for m in MACHINES}) == []


@pytest.mark.by_day
def test_a_backfill_wants_what_each_customer_lacks_and_leaves_no_gaps(world):
    want(world, day(0), day(-2), day(-1, CUSTOMERS[1]))
    planned = world.plan(backfill, RangeWanted(source="google_ads", first=DAY - 3 * A_DAY, last=DAY))
    assert (planned.preview.count, planned.preview.warnings[0]) == (
        5,
        "3 partitions left as they are: they have an extraction already",
    )
    world.do(backfill, RangeWanted(source="google_ads", first=DAY - 3 * A_DAY, last=DAY))
    fresh = world.rows("SELECT customer_id, logical_date FROM extraction WHERE backfill ORDER BY due_at, customer_id")
    assert [(customer, str(day)) for customer, day in fresh] == [
        (CUSTOMERS[0], "2026-10-31"),
        (CUSTOMERS[1], "2026-11-01"),
        (CUSTOMERS[0], "2026-10-29"),
        (CUSTOMERS[1], "2026-10-30"),
        (CUSTOMERS[1], "2026-10-29"),
    ]


def test_daily_work_is_claimed_beside_a_backfill_however_much_of_it_is_due(world):
    world.do(backfill, MANY)
    world.time.advance(3_600)  # all of it is overdue, and older than what comes now
    want(world, day(1))
    session = world.ledger.incarnation()
    session.register()
    taken = [unit.logical_date for unit in session.claim({"extraction": 4})]
    assert day(1).logical_date in taken


def test_reprocessing_concerns_what_rests(world):
    world.time.advance(2 * 86_400)
    keys = [day(n) for n in range(3)]
    want(world, *keys[:2])
    world.work(world.flow(Said(lambda key: rows(key=key))), seconds=5)
    wanted = ReprocessWanted(source="google_ads", first=DAY, last=DAY + 2 * A_DAY, customer=CUSTOMERS[:1])
    world.do(reprocess, ReprocessWanted(source="google_ads", first=DAY + A_DAY, customer=CUSTOMERS[:1]))
    counted = world.plan(reprocess, wanted).preview
    assert (counted.count, counted.skipped) == (1, {"it is wanted already": 1})
    assert counted.warnings == [
        "1 partition left out because never extracted; 'penstock partitions backfill' extracts them"
    ]
    done = world.do(reprocess, wanted, "the schema was mended")
    assert (done.count, done.skipped) == (1, {"it is wanted already": 1})
    unit = world.extraction(keys[0])
    assert (unit.status, unit.run_id, unit.gate_id) == (X.WANTED, None, f"google_ads/{CUSTOMERS[0]}")
    assert world.history("extraction", keys[0])[-1] == ("done", "wanted", "operator", "the schema was mended")
    before = world.reader.status(keys[0]).current_run_id
    assert before is not None, "consumers read on meanwhile"
    world.work(world.flow(Said(lambda key: rows(key=key))), seconds=5)
    assert str(world.reader.status(keys[0]).current_run_id) > before


def test_reprocessing_can_be_for_failed_partitions_alone_and_takes_a_backfill_to_the_daily_gate(world):
    world.do(backfill, RangeWanted(source="google_ads", first=DAY - A_DAY, last=DAY))
    answers = {day(0): rows(key=day(0)), day(-1): BAD, day(0, CUSTOMERS[1]): BAD}
    world.work(world.flow(Said(lambda key: answers.get(key, rows(key=key)))), seconds=120)
    wanted = ReprocessWanted(source="google_ads", first=DAY - A_DAY, last=DAY, failed=True)
    assert sorted(world.plan(reprocess, wanted).preview.sample) == [
        f"extraction:{day(-1)}",
        f"extraction:{day(0, CUSTOMERS[1])}",
    ]
    assert world.do(reprocess, wanted).count == 2
    assert world.extraction(day(-1)).gate_id == f"google_ads/{CUSTOMERS[0]}"
    assert not world.extraction(day(-1)).backfill


def test_a_plan_that_is_no_longer_what_was_shown_is_refused(world):
    want(world, KEY)
    world.work(world.flow(Said(rows())), seconds=5)
    wanted = ReprocessWanted(source="google_ads", first=DAY)
    seen = world.plan(reprocess, wanted).preview.digest
    world.time.advance(1)
    check_digest(world.plan(reprocess, wanted, "another reason"), seen)
    world.do(reprocess, wanted)
    with pytest.raises(PlanChanged):
        check_digest(world.plan(reprocess, wanted), seen)


@pytest.mark.by_day
def test_a_named_person_points_at_an_older_run(world):
    old, new = world.judge(rows(note="old")), world.judge(rows(note="new"))
    assert world.validate(old).verdict == "older"
    reason = "the new one is from a test account"
    wanted = PointWanted(partition=NAME, run=old)
    planned = world.plan(point, wanted, reason)
    assert planned.preview.sample == [f"validation:{NAME}/{old}"]
    assert f"a worker does it, and 'penstock why validation:{NAME}/{old}' shows its progress" in planned.preview.says
    seen = planned.preview.digest
    world.time.advance(1)
    check_digest(world.plan(point, wanted, "other words"), seen)
    assert world.do(point, wanted, reason).count == 1
    assert world.reader.status(KEY).current_run_id == new, "a worker does it, and none runs yet"
    world.work(world.validations())
    assert {row["note"] for row in world.reader.open(KEY).rows()} == {"old"}
    assert (wish(world, old).status, wish(world, old).verdict) == (V.DONE, "success")
    source, target, actor, told = world.history()[-1]
    assert (source, target, actor) == ("success", "success", "validator")
    assert f"pointed at by anna ({reason})" in told
    assert [line[:3] for line in world.history("validation", f"{NAME}/{old}")] == [
        (None, "wanted", "operator"),
        ("wanted", "done", "validator"),
    ]
    assert [verdict for _, verdict, _ in world.attempts()] == ["success", "success", "older", "success"]
    state = world.state()
    assert state is not None
    assert state.attempt_count == 2, "runs are counted, not evaluations"
    assert examine(world.ledger.database, {m.name: m for m in MACHINES}) == []


def test_a_run_can_be_pointed_at_again_and_the_last_who_asks_is_named(world):
    old, new = world.judge(rows(note="old")), world.judge(rows(note="new"))
    for run_id, reason in ((old, "back"), (new, "and forth"), (old, "and back again")):
        assert world.do(point, PointWanted(partition=NAME, run=run_id), reason).count == 1
        world.work(world.validations())
        assert world.reader.status(KEY).current_run_id == run_id
        assert f"anna ({reason})" in world.history()[-1][3]


def test_a_wish_that_stands_is_not_made_twice(world):
    run_id = world.judge()
    world.do(point, PointWanted(partition=NAME, run=run_id))
    again = world.plan(validate, OneRun(partition=NAME, run=run_id)).preview
    assert (again.count, list(again.skipped)) == (
        0,
        ["this run already waits to be judged; a worker does it next"],
    )


def test_a_failed_partition_is_pointed_at_its_last_good_run(world):
    good = world.judge()
    world.judge(BAD)
    world.do(point, PointWanted(partition=NAME, run=good), "go back")
    world.work(world.validations())
    state = world.state()
    assert state is not None
    assert (state.status, state.current_run_id) == (P.SUCCESS, good)
    assert world.history()[-1][:3] == ("failed", "success", "validator")


def test_nobody_points_at_a_run_that_is_missing_or_bad(world):
    bad = world.land(BAD)
    missing = "2020-01-01T00:00:00.000Z"
    for run_id in (bad, missing):
        world.do(point, PointWanted(partition=NAME, run=run_id))
    world.work(world.validations())
    assert [wish(world, run_id).status for run_id in (bad, missing)] == [V.REFUSED, V.REFUSED]
    assert "is not good: row 1: field campaign.id is missing" in str(wish(world, bad).change_reason)
    assert f"has no finalised run {missing}; it has {bad}" in str(wish(world, missing).change_reason)
    assert world.state() is None
    assert world.attempts() == []
    with pytest.raises(UsageError, match="'yesterday' is not a run id"):
        world.plan(point, PointWanted(partition=NAME, run="yesterday"))


def test_a_run_is_judged_by_hand_and_the_newest_is_meant_unless_one_is_named(world):
    with pytest.raises(UsageError, match="has no finalised run in"):
        world.plan(validate, OneRun(partition=NAME))
    good = world.land()
    world.do(validate, OneRun(partition=NAME))
    world.work(world.validations())
    assert world.reader.status(KEY).current_run_id == good
    bad = world.land(BAD)
    world.do(validate, OneRun(partition=NAME))
    world.work(world.validations())
    assert (world.reader.status(KEY).status, wish(world, bad).verdict) == ("failed", "failed")
    assert world.alerts() == ["partition.failed"]
    assert world.rows("SELECT DISTINCT judged_by FROM partition_attempt") == [("anna",)]


def test_a_wish_waits_while_the_store_is_away_and_keeps_who_asked(world, monkeypatch):
    old = world.judge(rows(note="old"))
    world.judge(rows(note="new"))
    world.do(point, PointWanted(partition=NAME, run=old), "go back")

    def away(*_: Any) -> None:
        raise RawUnavailable("the store is away")

    with monkeypatch.context() as broken:
        broken.setattr(world.sink, "find", away)
        world.work(world.validations(), seconds=30)
        assert (wish(world, old).status, wish(world, old).change_reason) == (V.WANTED, "the store is away")
    world.work(world.validations(), seconds=90)
    assert wish(world, old).status is V.DONE
    assert "pointed at by anna (go back)" in world.history()[-1][3]


def test_a_run_that_is_to_be_judged_is_not_collected(world):
    old = world.judge()
    world.judge()
    assert old not in keep.held(world.ledger, [KEY])[KEY].referenced
    world.do(point, PointWanted(partition=NAME, run=old))
    assert old in keep.held(world.ledger, [KEY])[KEY].referenced
    assert not keep.held(world.ledger, [KEY])[KEY].supersedes(old)
    world.work(world.validations())
    assert keep.held(world.ledger, [KEY])[KEY].current == old


def test_the_last_good_run_is_kept_where_the_flow_says_so(partitions_url, tmp_path):
    world = Partitions(partitions_url, tmp_path, keep_last_good=True)
    good = world.judge()
    world.judge(BAD)
    state = world.state()
    assert state is not None
    assert (state.status, state.current_run_id, state.attempt_count) == (P.SUCCESS, good, 2)
    assert world.alerts() == ["partition.kept"]
    assert [verdict for _, verdict, _ in world.attempts()] == ["success", "kept"]
    assert list(world.reader.open(KEY).rows()) == rows()
    world.close()


def test_every_operation_wants_a_reason_and_a_partition_that_is_configured(world):
    world.judge()
    with pytest.raises(UsageError, match="partitions reset needs a reason"):
        world.plan(reset, OnePartition(partition=NAME), " ")
    for name, told in (
        ("google_ads/9/campaign_daily/2026-11-01", "has no customer 9"),
        ("google_ads/1111111111/other/2026-11-01", "has no query 'other'"),
        ("other/1/q/2026-11-01", "no source is called 'other'"),
        ("google_ads/1111111111/campaign_daily", "is not a partition"),
        ("google_ads/1111111111/campaign_daily/2026-1-1", "is not a date"),
    ):
        with pytest.raises(UsageError, match=told):
            world.plan(reset, OnePartition(partition=name))
        with pytest.raises(UsageError, match=told):
            world.read(operations.status, PartitionThen(partition=name))

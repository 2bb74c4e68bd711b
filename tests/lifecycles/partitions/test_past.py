"""Partitions as they stood: what was said at many moments of a run is said again when it is asked later."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from penstock.lifecycles.partitions import lifecycle, operations
from penstock.lifecycles.partitions.calendar import CalendarWanted, calendar
from penstock.lifecycles.partitions.machine import P, wanted_unit
from penstock.lifecycles.partitions.operations import (
    CadenceWanted,
    ListWanted,
    OnePartition,
    PartitionThen,
    PointWanted,
    ReadWanted,
    SeriesWanted,
)
from penstock.model.errors import UsageError
from penstock.model.machine import Actor
from penstock.raw.reader import NotReady
from tests.support.ad_source import CUSTOMERS
from tests.support.partitions import DAY, KEY, START, Partitions, Said, rows
from tests.support.past import Record

pytestmark = pytest.mark.by_day
NAME, OTHER = str(KEY), str(replace(KEY, customer_id=CUSTOMERS[1]))
BAD = [{"bad": 1}]
RANGE: dict[str, Any] = {"source": "google_ads", "first": DAY - timedelta(days=1), "last": DAY}


def record(world: Partitions) -> Record:
    """Every reading that has a past."""

    def asked(reading: Any, **wanted: Any) -> Any:
        return lambda *, at: world.read(reading, reading.parameters(at=at, **wanted))

    questions = {
        "status": asked(operations.status, partition=NAME),
        "other": asked(operations.status, partition=OTHER),
        "range": asked(operations.range_, **RANGE),
        "list": asked(operations.list_, **RANGE),
        "failed": asked(operations.list_, **RANGE, status=(P.FAILED,)),
        "calendar": asked(calendar, first=DAY - timedelta(days=2), last=DAY),
        "runs": asked(operations.runs, partition=NAME),
        "cadence": asked(operations.cadence),
        "read": asked(operations.read, partition=NAME),
        "metadata": asked(operations.metadata, partition=NAME),
    }
    return Record(questions, frozenset({"status", "states", "days", "success", "failed", "pending", "run_id", "loads"}))


def test_what_was_said_at_a_moment_is_said_of_it_later(partitions_url, tmp_path):
    world = Partitions(partitions_url, tmp_path, offsets=tuple(timedelta(days=n) for n in (1, 3, 7)))
    told = record(world)

    def look() -> None:
        """Nothing else happens in the moment that is asked for."""
        world.time.advance(1)
        told.write(world.time.now())
        world.time.advance(1)

    def while_it_is_asked(answer: Any) -> Any:
        def asked(_: Any) -> Any:
            look()
            return answer

        return asked

    look()
    world.ledger.birth([wanted_unit(KEY, world.time.now())], actor=Actor.SCHEDULER, who="test")
    told_of = Said(*map(while_it_is_asked, (rows(note="1"), rows(note="2"), BAD, rows(note="4"))))
    for _ in range(6):
        world.live(world.flow(told_of), days=1.5)
        look()
    other = world.judge(rows(key=replace(KEY, customer_id=CUSTOMERS[1])), replace(KEY, customer_id=CUSTOMERS[1]))
    look()
    by_hand = world.land(rows(note="by hand"))
    look()
    older = world.sink.runs(KEY)[0]
    world.validate(by_hand)
    look()
    world.validate(older)
    look()
    world.judge(BAD)
    look()
    world.validate(older)
    look()
    world.do(operations.point, PointWanted(partition=NAME, run=older))
    world.work(world.validations(), seconds=5)
    look()
    world.do(operations.reset, OnePartition(partition=NAME))
    look()
    world.validate(other, replace(KEY, customer_id=CUSTOMERS[1]))
    world.judge()
    look()
    assert len(told.answers) >= 140
    statuses = {answer["status"] for _, name, answer in told.answers if name == "status"}
    assert statuses == {"pending", "success", "failed"}
    assert told.differences() == []
    assert told.unknown == set(), "nothing of partitions is forgotten"
    assert {"status.error_message", "status.updated_at", "runs.rows.error", "cadence.rows.changed"} <= told.known
    world.close()


def test_with_the_last_good_run_kept_a_rejection_leaves_no_trace_in_the_state(partitions_url, tmp_path):
    world = Partitions(partitions_url, tmp_path, keep_last_good=True)
    told = record(world)
    good = world.judge()
    for made in (BAD, rows(note="2"), BAD):
        world.time.advance(1)
        told.write(world.time.now())
        world.judge(made)
    assert told.differences() == []
    moment = told.answers[-1][0] - timedelta(milliseconds=1)
    first = world.read(operations.status, PartitionThen(partition=NAME, at=moment - timedelta(seconds=2)))
    assert (first.status, first.current_run_id, first.attempt_count) == (P.SUCCESS, good, 2)
    world.close()


def test_runs_are_those_that_had_landed(world):
    """Also one that is being written, one that was collected since, and one that nobody extracted."""

    def runs(at: datetime) -> tuple[list[tuple[str, str | None]], str | None]:
        found = world.read(operations.runs, PartitionThen(partition=NAME, at=at))
        return [(row.run_id, row.verdict) for row in found.rows], found.note

    begun: list[datetime] = []

    def slowly(_: Any) -> Any:
        begun.append(world.time.now() + timedelta(seconds=5))
        world.time.advance(10)
        return rows()

    world.ledger.birth([wanted_unit(KEY, world.time.now())], actor=Actor.SCHEDULER, who="test")
    world.work(world.flow(Said(slowly)), seconds=20)
    extracted, landed = str(world.extraction().run_id), world.time.now()
    by_hand = world.land()
    world.time.advance(5)
    assert runs(START - timedelta(seconds=1)) == ([], f"no run of {NAME} has landed yet")
    assert runs(begun[0]) == ([], f"no run of {NAME} has landed yet")
    assert runs(landed) == ([(extracted, "success")], None)
    assert runs(landed + timedelta(seconds=2)) == ([(by_hand, None), (extracted, "success")], None)
    world.validate(by_hand)
    moment = world.time.now()
    world.time.advance(5)
    world.sink.remove(KEY, extracted)
    lacking = "1 run that had been judged by then are not in the sink any more"
    assert runs(moment) == ([(by_hand, "success")], lacking)
    assert runs(moment - timedelta(seconds=1)) == ([(by_hand, None)], lacking)


def test_cadence_counts_what_had_been_loaded(world):
    world.ledger.birth([wanted_unit(KEY, world.time.now())], actor=Actor.SCHEDULER, who="test")
    moments = [START - timedelta(seconds=1)]
    for note, days in (("1", 2), ("2", 5)):
        world.live(world.flow(Said(rows(note=note))), days=days)
        moments.append(world.time.now())
    found = [world.read(operations.cadence, CadenceWanted(at=moment)) for moment in moments]
    assert [sum(row.loads for row in page.rows) for page in found] == [0, 2, 3]
    assert [sum(row.changed for row in page.rows) for page in found] == [0, 0, 1]
    assert found[0].note == "nothing has been loaded yet"


def test_what_sql_has_written_is_told_as_far_as_it_is_known(world):
    """It is in no evaluation, so nobody knows why."""
    run_id = world.judge()
    world.time.advance(10)
    world.ledger.database.write(
        lambda cursor: cursor.run(
            "UPDATE partition_state SET status = 'failed', record_count = NULL, error_message = 'by hand'"
        )
    )
    moment = world.ledger.clock.now() + timedelta(days=36_500)
    # The database's own clock said when, which is not the ledger's.
    ask = dataclasses.replace(world.ask(), now=moment)
    found = operations.status(ask, PartitionThen(partition=NAME, at=moment))
    assert (found.status, found.current_run_id, found.error_message, found.updated_at) == (P.FAILED, run_id, None, None)
    assert found.reason == f"run {run_id} was rejected: nobody knows why any more"


def test_rows_and_refusals_are_those_of_then(world):
    world.judge(rows(note="1"))
    first = world.time.now()
    world.time.advance(10)
    world.judge(BAD)
    second = world.time.now()
    world.time.advance(10)
    world.judge(rows(note="3"))
    lines = world.read(operations.read, ReadWanted(partition=NAME, at=first)).lines
    assert all('"note":"1"' in line for line in lines)
    with pytest.raises(NotReady, match="row 1: field campaign"):
        world.read(operations.read, ReadWanted(partition=NAME, at=second))
    with pytest.raises(NotReady, match="no run of it has been validated yet"):
        world.read(operations.metadata, PartitionThen(partition=NAME, at=START))
    with pytest.raises(UsageError, match="no time zone"):
        world.read(operations.status, PartitionThen(partition=NAME, at=datetime(2026, 1, 1)))  # noqa: DTZ001
    pages = [world.read(operations.list_, ListWanted(**RANGE, status=(P.FAILED,), at=at)) for at in (first, second)]
    assert [[row.partition for row in page.rows] for page in pages] == [[], [NAME]]
    counts = [world.read(operations.range_, SeriesWanted(**RANGE, at=at)).counts for at in (START, first, second)]
    assert [(one["success"], one["failed"], one["pending"]) for one in counts] == [(0, 0, 4), (1, 0, 3), (0, 1, 3)]
    days = [world.read(calendar, CalendarWanted(first=DAY, last=DAY, at=at)).rows[0].days for at in (first, second)]
    assert days == ["#", "!"]
    assert world.read(calendar, CalendarWanted(at=first)).note.endswith(f"to {first.date() - timedelta(days=1)}")


def test_only_what_is_of_no_moment_has_no_past():
    without = {one.name: one.no_past for one in lifecycle.readings if "at" not in one.parameters.__struct_fields__}
    assert set(without) == {"wait", "inspect"}
    assert all(without.values())

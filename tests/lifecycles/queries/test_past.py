"""Queries as they stood: what was said at many moments of a run is said again when it is asked later, or not known."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest

from penstock.connectors.searches import Bad
from penstock.lifecycles.queries import lifecycle, operations, readings
from penstock.lifecycles.queries.flow import Queries
from penstock.lifecycles.queries.machine import Query, S
from penstock.lifecycles.queries.prune import prune_records
from penstock.lifecycles.queries.runs import COUNTERS, Stop
from penstock.model.errors import UnknownUnit, UsageError
from penstock.model.outcome import Outcome
from penstock.operations.declare import Ask
from penstock.operations.reader import Reader
from penstock.simulators.infojobs import OPERATION, Fault, throttle
from penstock.simulators.infojobs_data import DEFECTS
from tests.support.past import Question, Record
from tests.support.queries import START as BENCH_START
from tests.support.queries import Lists, bench, offer
from tests.support.query_desk import PAUSE, START, Desk, desk

pytestmark = pytest.mark.by_day
SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)
_MISSING = next(iter(DEFECTS))
TOLD = {"state", "status", "started_at", "run", "last_run", "last_success", "failures", "how_far", "covered_through"}
TOLD |= {"seeded_back_to", "processed_back_to", "last_executed", "was_it_successful", "record", "payload", "seeding"}


def watch(world: Desk, look: Callable[[], None]) -> None:
    """Look after each commit of its workers."""
    make = world.flow

    def flow() -> Queries:
        made = make()
        told = made.committed

        def committed(outcome: Outcome[Query]) -> None:
            told(outcome)
            look()

        made.committed = committed  # type: ignore[method-assign]
        return made

    world.flow = flow  # type: ignore[method-assign]


def record(world: Desk) -> Record:
    """Every reading that has a past, but for erasures."""

    def rejected(*, at: datetime | None) -> Any:
        # One that was seen again since is at another place.
        rows = world.read("rejected", limit=1_000, at=at).rows
        return {"rows": {f"{row.key} {row.record} {row.payload}": row for row in rows}}

    questions: dict[str, Question] = {
        "list": partial(world.read, "list"),
        "errors": partial(world.read, "list", state=S.ERROR),
        "runs": partial(world.read, "runs", limit=1_000),
        "running": partial(world.read, "runs", status=S.RUNNING),
        "failed": partial(world.read, "runs", query="sales", status=S.ERROR),
        "rejected": rejected,
        **{name: partial(world.read, "show", query=name) for name in world.settings.queries},
    }
    return Record(questions, frozenset(TOLD), frozenset({"running_now", "seeding"}))


def test_what_was_said_at_a_moment_is_said_of_it_later(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path, max_pages=3) as world:
        told = record(world)

        def look() -> None:
            """Nothing else happens in the moment that is asked for."""
            world.time.advance(1)
            told.write(world.time.now())
            world.time.advance(1)

        watch(world, look)
        look()
        world.simulators["jobs"].every[OPERATION, 1] = Fault(spoils=_MISSING)
        world.work()
        look()
        world.simulators["jobs"].every.clear()
        world.simulators["other"].faults[OPERATION].extend([Fault(500)] * 12)
        for _ in range(3):
            world.work(PAUSE)
            look()
        world.do("pause", query="python")
        look()
        world.do("pause", client="jobs", span=HOUR)
        look()
        world.do("pause")
        look()
        world.work(PAUSE)
        look()
        world.do("resume")
        world.do("resume", query="python")
        look()
        world.simulators["other"].faults[OPERATION].append(throttle())
        world.do("seed", query="java", day=(START - 20 * DAY).date())
        look()
        world.simulators["jobs"].every[OPERATION, 1] = Fault(spoils=_MISSING)
        for _ in range(4):
            world.work(PAUSE)
            look()
        states = {row["state"] for _, name, page in told.answers if name == "list" for row in page["rows"]}
        assert states == {"IDLE", "RUNNING", "SUCCESS", "ERROR"}
        assert len(told.answers) >= 200
        assert told.differences() == []
        known = {path.partition("-")[0] for path in told.known}
        assert known >= {
            "list.rows.waits", "list.rows.covered_through", "list.rows.seeded_back_to", "sales.last_error",
            "sales.last_error_at", "runs.rows.error", "runs.rows.new", "python.rejected", "rejected.rows.jobs",
        }  # fmt: skip
        assert {path.rpartition(".")[2] for path in told.unknown} == {
            *COUNTERS, "counted", "offers_open", "offers_closed", "offers_linked", "unreachable", "next_run", "waits",
            "last_seen_at", "run_id", "reason",
        }  # fmt: skip


def test_runs_are_under_way_until_they_end(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as world:
        moments: list[datetime] = []

        def look() -> None:
            world.time.advance(1)
            moments.append(world.time.now())
            world.time.advance(1)

        world.without("java")
        world.without("sales")
        watch(world, look)
        world.work()
        (over,) = world.read("runs").rows
        assert over.finished_at is not None
        moments = [moment for moment in moments if moment > over.started_at]
        assert moments[0] < over.finished_at
        (before,) = world.read("runs", at=moments[0]).rows
        assert (before.status, before.stopped_by, before.finished_at, before.error) == (S.RUNNING, None, None, None)
        assert before.counted is None
        assert {getattr(before, name) for name in COUNTERS} == {None}
        assert (before.run_id, before.took) == (over.run_id, moments[0] - over.started_at)
        assert world.read("runs", status=S.SUCCESS, at=moments[0]).rows == []
        assert world.read("runs", status=S.RUNNING, at=moments[0]).rows == [before]
        assert world.read("runs", at=over.finished_at).rows == [over]
        assert world.read("runs", at=START - SECOND).note == "no such runs"
        assert world.read("list", at=moments[0]).note.startswith("python was running")
        assert (
            world.read("list", at=over.finished_at).note == "no query was running; a query that is no longer in the"
            " configuration rests, and its state and offers stay"
        )


def test_a_query_is_shown_as_far_as_it_had_read(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path, max_pages=2) as world:
        world.work()
        first, shown = world.time.now(), world.read("show", query="python")
        world.work(3 * PAUSE)
        late = world.read("show", query="python")
        then = world.read("show", query="python", at=first)
        assert late.processed_back_to < shown.processed_back_to == then.processed_back_to
        assert then.covered_through == shown.covered_through < late.covered_through
        assert (then.was_it_successful, then.last_executed) == ("yes (stopped: max_pages)", START)
        assert then.seeding == "under way, back to 2026-11-05"
        assert (then.offers_open, then.offers_closed, then.unreachable, then.next_run) == (None, None, None, None)
        assert [run.stopped_by for run in then.runs] == [Stop.MAX_PAGES]
        unborn = world.read("show", query="python", at=START - SECOND)
        assert (unborn.state, unborn.runs, unborn.was_it_successful) == (None, [], "it has never run")
        untouched = world.read("show", query="python", at=world.time.now())
        assert (untouched.offers_open, untouched.next_run) == (late.offers_open, late.next_run)
        with pytest.raises(UsageError, match="the past does not go on"):
            world.read("show", query="python", at=first, watch=True)


def test_what_only_the_ledger_has_is_found_from_its_birth_on(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as world:
        world.time.advance(60)
        world.without("sales")
        world.work()
        key = world.key("sales")
        then = world.read("show", query="sales", at=START)
        assert (then.key, then.state, then.searches) == (key, S.IDLE, {"q": "ventas"})
        assert then.waits == "it is no longer in the configuration; its state stays"
        for question in ("show", "runs", "rejected"):
            with pytest.raises(UnknownUnit, match="no query is called 'sales'"):
                world.read(question, query="sales", at=START - SECOND)
        with pytest.raises(UsageError, match="no time zone"):
            world.read("show", query="java", at=START.replace(tzinfo=None))


def test_a_record_that_was_set_aside_again_is_told_by_when_it_was_first(queries_url):
    def bad(number: int) -> Bad:
        return Bad("no title", f'{{"id": {number}}}', str(number), BENCH_START - number * HOUR)

    records = [offer(1, BENCH_START), bad(2), bad(3), bad(4)]
    with bench(queries_url, Lists(records)) as made:

        def read(at: datetime | None = None, **wanted: Any) -> Any:
            reader = Reader(made.ledger.database, made.ledger.machines.values(), lifecycle.past)
            ask = Ask(reader, made.settings, made.clock.now())
            return readings.rejected(ask, readings.rejected.parameters(at=at, **wanted))

        assert read(BENCH_START - SECOND).note == "no records were set aside"
        made.work()
        first, told = made.clock.now(), read().rows
        made.clients["jobs"].records = [offer(0, BENCH_START + HOUR), bad(9), bad(2), bad(3)]
        made.later()
        now = {row.record: row for row in read().rows}
        assert [now[record].last_seen_at > first for record in "9234"] == [True, True, True, False]
        then = {row.record: row for row in read(first).rows}
        assert set(then) == {"2", "3", "4"}
        assert [(row.last_seen_at, row.reason, row.run_id) for row in (then["2"], then["3"])] == [
            (None, None, None)
        ] * 2
        assert {row.first_seen_at for row in then.values()} == {row.first_seen_at for row in told}
        assert then["4"] == now["4"]
        page = read(first, limit=2)
        assert [*page.rows, *read(first, after=page.next).rows] == list(then.values())
        assert read(first + SECOND, since=first).rows == []
        assert {row.record for row in read(first, since=BENCH_START).rows} == {"2", "3", "4"}
        assert read(made.clock.now()).rows == read().rows


def test_what_was_pruned_is_said_and_not_counted(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path, keep_runs=2 * DAY) as world:
        world.simulators["jobs"].every[OPERATION, 1] = Fault(spoils=_MISSING)
        world.work()
        first = world.time.now()
        assert world.read("show", query="python", at=first).rejected > 0
        world.simulators["jobs"].every.clear()
        world.work(3 * DAY)
        assert prune_records(world.ledger, 2 * DAY, world.time.now())[0] > 0
        said = "runs, and records that were set aside, are kept from 2026-11-"
        assert world.read("runs", at=first).note.startswith(said)
        assert world.read("rejected", at=first).note.startswith(said)
        then = world.read("show", query="python", at=first)
        assert (then.state, then.rejected, then.was_it_successful, then.runs) == (S.SUCCESS, None, None, [])
        assert then.last_executed is None, "its run is forgotten"
        assert world.read("runs").note is None


def test_one_that_was_configured_later_was_not_there_yet(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as world:
        before = world.time.now() - SECOND
        world.work()
        assert {row.waits for row in world.read("list", at=before).rows} == {"it was not there yet"}
        assert world.read("show", query="python", at=before).waits == "it was not there yet"


def test_gates_are_those_of_then(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as world:
        world.work()
        world.do("pause", query="python")
        paused = world.time.now()
        world.time.advance(60)
        world.do("resume", query="python")
        rows = {row.query: row.waits for row in world.read("list", at=paused).rows}
        assert rows == {"python": "it is paused by ada: because", "java": None, "sales": None}
        assert {row.waits for row in world.read("list", at=paused - SECOND).rows} == {None}
        world.time.advance(60)
        assert {row.waits for row in world.read("list", at=world.time.now()).rows} == {None}
        world.do("pause")
        said = "the whole pipeline is paused by ada: because; no query was running"
        assert world.read("list", at=world.time.now()).note == said


def test_every_reading_has_a_past():
    assert [one.name for one in lifecycle.readings if "at" not in one.parameters.__struct_fields__] == []
    assert {picture.reading for picture in lifecycle.pictures} == {readings.list_queries}
    assert operations.OPERATIONS

"""The pure parts of a run: what is done next, what a page does to the frontiers, and how a run ends."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from penstock.lifecycles.queries.alerts import CRITICAL_FROM, FAILING_FROM
from penstock.lifecycles.queries.closing import freed, held_back, too_many
from penstock.lifecycles.queries.decide import Seen, decide
from penstock.lifecycles.queries.ending import abandoned, ended
from penstock.lifecycles.queries.jobs import _planned_ahead, born
from penstock.lifecycles.queries.machine import S
from penstock.lifecycles.queries.passes import Kind, Pass, Step
from penstock.lifecycles.queries.progress import after_page
from penstock.lifecycles.queries.registry import registry
from penstock.lifecycles.queries.runs import (
    Run,
    Stop,
    Unseen,
    limit_of,
    marks_of,
    next_due,
    next_pass,
    run_of,
    what_next,
)
from penstock.lifecycles.queries.settings import FeedSettings, QueriesSettings, QuerySettings
from penstock.model.outcome import Act, Look, Wait
from penstock.model.unit import replace
from tests.support.queries import DAY, HOUR, PAUSE, START

SETTINGS = QueriesSettings(
    pause=PAUSE,
    horizon=10 * DAY,
    max_pages=5,
    max_offers=100,
    feed_jsonl={"jobs": FeedSettings(folder=Path("feed"))},
    queries={"jobs": QuerySettings(client="jobs", parameters={"q": "x"})},
)
(OWN,) = registry(SETTINGS).values()
NEW = replace(born(OWN, START), version=7)
BEGUN = replace(
    NEW,
    status=S.RUNNING,
    run_id=UUID(int=1),
    run_started_at=START,
    last_run_at=START,
    run_version=7,
    run=Run().document(),
)
READ = replace(
    BEGUN,
    covered_through=START - HOUR,
    last_processed_date=(START - 10 * DAY).date(),
    seed_until=(START - 10 * DAY).date(),
    seeded_at=START - DAY,
    readings=4,
)
PASS = Pass(kind=Kind.RECENT, number=5, begun=START, until=START - 3 * HOUR)


def _with(query, **run):
    return replace(query, run=msgspec.structs.replace(run_of(query), **run).document())


def _paused(**changes):
    own = QuerySettings(client="jobs", parameters={"q": "x"}, **changes)
    return QueriesSettings(pause=PAUSE, feed_jsonl=SETTINGS.feed_jsonl, queries={"jobs": own})


@pytest.mark.parametrize(
    ("query", "settings", "seen", "expected"),
    [
        (NEW, SETTINGS, None, Look("whether its client may be asked", asks=False)),
        (NEW, SETTINGS, Seen(), Act("begin", "its turn has come", counts_attempt=False)),
        (NEW, SETTINGS, Seen("shut", START + HOUR), Wait(START + HOUR, "shut")),
        (NEW, SETTINGS, Seen("paused"), Wait(START + PAUSE, "paused")),
        (replace(NEW, due_at=START + HOUR), SETTINGS, None, Wait(START + HOUR, "its next run is not due yet")),
        (BEGUN, SETTINGS, None, Act("page", "history, page 1, at its beginning", counts_attempt=True)),
        (
            replace(BEGUN, version=8),
            SETTINGS,
            None,
            Act("abandon", "the worker that ran it is gone", counts_attempt=False),
        ),
        (READ, SETTINGS, None, Act("page", "new records, page 1, at its beginning", counts_attempt=True)),
        (_with(READ, recent=True), SETTINGS, None, Act("finish", "nothing is left to read", counts_attempt=False)),
        (
            replace(NEW, query_key="other-1"),
            SETTINGS,
            None,
            Wait(None, "it is no longer in the configuration; its state stays"),
        ),
        (NEW, _paused(paused=True), None, Wait(None, "paused by the configuration: [queries.queries.jobs]")),
    ],
)
def test_what_is_done_with_a_query(query, settings, seen, expected):
    assert decide(query, START, settings, seen) == expected


def test_a_seed_that_lies_in_the_future_is_waited_for_once():
    settings = _paused(seed_from=(START + 3 * DAY).date())
    waiting = decide(NEW, START, settings, None)
    assert isinstance(waiting, Wait)
    assert waiting.until is not None
    assert waiting.until.date() == (START + 3 * DAY).date()
    # The day was fixed at the first run, and the clock was set back since.
    begun = replace(NEW, seed_until=(START + 300 * DAY).date())
    assert isinstance(decide(begun, START, SETTINGS, None), Look)


def test_what_a_run_reads_next():
    assert next_pass(BEGUN, START, OWN, SETTINGS) == Pass(
        kind=Kind.SEED, number=1, begun=START, until=(START - 10 * DAY).replace(hour=0)
    )
    assert next_pass(READ, START, OWN, SETTINGS) == PASS
    assert next_pass(_with(READ, recent=True), START, OWN, SETTINGS) is None
    under_way = msgspec.structs.replace(PASS, pages=3, place=30)
    assert next_pass(replace(READ, reading=under_way.document()), START, OWN, SETTINGS) == under_way


@pytest.mark.parametrize(("age", "kind"), [(6, Kind.RECENT), (7, Kind.CENSUS), (40, Kind.CENSUS), (-2, Kind.CENSUS)])
def test_once_in_a_while_everything_is_listed_again(age, kind):
    found = next_pass(replace(READ, census_at=START - age * DAY), START, OWN, SETTINGS)
    assert found is not None
    assert found.kind is kind


def test_history_that_goes_on_has_the_highest_number():
    kept = Pass(kind=Kind.SEED, number=1, begun=START - DAY, until=START - 10 * DAY, place=50, pages=5)
    query = _with(replace(READ, seeded_at=None, seeding=kept.document()), recent=True)
    found = next_pass(query, START, OWN, SETTINGS)
    assert found == msgspec.structs.replace(kept, number=5)
    again = replace(query, readings=5, seeding=found.document())
    assert next_pass(again, START, OWN, SETTINGS) == found


def test_limits_and_what_is_left_to_do():
    assert limit_of(Run(pages_fetched=5), OWN) is Stop.MAX_PAGES
    assert limit_of(Run(pages_fetched=4, offers_fetched=100), OWN) is Stop.MAX_OFFERS
    assert limit_of(Run(pages_fetched=4, offers_fetched=99), OWN) is None
    closing = Unseen(3, START)
    order = [
        (_with(READ, closing=closing, companies=True), "close"),
        (_with(READ, companies=True), "page"),
        (_with(READ, companies=True, recent=True), "aggregate"),
        (_with(READ, companies=True, stop=Stop.ERROR), "aggregate"),
        (_with(READ, pages_fetched=5), "finish"),
        (_with(READ, stop=Stop.FATAL, error="no"), "finish"),
    ]
    assert [what_next(query, START, OWN, SETTINGS)[0] for query, _ in order] == [what for _, what in order]


def test_runs_begin_a_pause_apart_whatever_the_clock_does():
    assert next_due(BEGUN, START + HOUR, SETTINGS) == START + PAUSE
    assert next_due(BEGUN, START + 2 * PAUSE, SETTINGS) == START + 2 * PAUSE
    assert next_due(BEGUN, START - DAY, SETTINGS) == START - DAY + PAUSE


def test_the_first_page_of_history_is_what_is_new_as_well():
    now = next_pass(BEGUN, START, OWN, SETTINGS)
    assert now is not None
    following = msgspec.structs.replace(now, pages=1, place=10, newest=START, reached=START - 40 * HOUR)
    query, events = after_page(BEGUN, now, Step(following), OWN, START, ordered=True)
    assert (query.covered_through, query.last_processed_date, events) == (START, (START - DAY).date(), [])
    assert run_of(query).recent
    assert next_pass(query, START, OWN, SETTINGS) == following


def test_history_that_comes_to_its_end_is_seeded_and_one_that_is_cut_says_so():
    now = next_pass(BEGUN, START, OWN, SETTINGS)
    assert now is not None
    following = msgspec.structs.replace(now, pages=1, newest=START, reached=START - 40 * HOUR)
    query, events = after_page(BEGUN, now, Step(following, over=True), OWN, START, ordered=True)
    assert (query.seeded_at, query.last_processed_date, query.seeding) == (START, query.seed_until, None)
    assert events == []
    query, (event,) = after_page(BEGUN, now, Step(following, over=True, cut=True), OWN, START, ordered=True)
    assert query.unreachable_before == query.last_processed_date == (START - DAY).date()
    assert event.kind == "queries.unreachable"
    # All that is listed is of one day.
    following = msgspec.structs.replace(following, reached=START - HOUR)
    query, _ = after_page(BEGUN, now, Step(following, over=True, cut=True), OWN, START, ordered=True)
    assert (query.unreachable_before, query.last_processed_date) == ((START + DAY).date(), None)
    census = next_pass(_with(query, recent=False), START + 8 * DAY, OWN, SETTINGS)
    assert census is not None
    assert census.kind is Kind.CENSUS


def test_a_list_that_never_had_anything_is_looked_at_again():
    now = next_pass(BEGUN, START, OWN, SETTINGS)
    assert now is not None
    query, _ = after_page(BEGUN, now, Step(now, over=True), OWN, START, ordered=True)
    assert (query.seeded_at, query.seeding, query.covered_through) == (None, None, None)
    assert next_pass(query, START, OWN, SETTINGS) is None


@pytest.mark.parametrize(
    ("reached", "holes"), [(START - 30 * timedelta(minutes=1), 1), (START - 2 * HOUR, 0), (None, 1)]
)
def test_a_reading_that_is_cut_above_what_was_covered_is_a_hole(reached, holes):
    for kind in (Kind.RECENT, Kind.CENSUS):
        now = msgspec.structs.replace(PASS, kind=kind)
        following = msgspec.structs.replace(now, pages=1, newest=START, reached=reached)
        query, events = after_page(READ, now, Step(following, over=True, cut=True), OWN, START, ordered=True)
        assert len((query.metadata or {}).get("holes", [])) == len(events) == holes
        assert query.covered_through == START


def test_only_a_reading_within_one_run_closes_what_the_one_before_did_not_see():
    before = msgspec.to_builtins(Unseen(3, START - 9 * HOUR))
    done = msgspec.structs.replace(PASS, pages=2, newest=START, reached=START - 4 * HOUR)
    query = _with(replace(READ, unseen=before), pages_fetched=2)
    query, _ = after_page(query, PASS, Step(done, over=True), OWN, START, ordered=True)
    assert run_of(query).closing == Unseen(3, START - 9 * HOUR)
    assert query.unseen == msgspec.to_builtins(Unseen(5, PASS.until))
    query = _with(replace(READ, unseen=before), pages_fetched=1)
    query, _ = after_page(query, PASS, Step(done, over=True), OWN, START, ordered=True)
    assert run_of(query).closing is None
    assert query.unseen == before


def test_how_runs_end():
    done = ended(_with(READ, recent=True), START, OWN, SETTINGS)
    assert (done.query.status, done.stop, done.query.last_success_at) == (S.SUCCESS, Stop.EXHAUSTED, START)
    late = ended(_with(READ, stop=Stop.RATE_LIMITED, error="429", until=START + 6 * HOUR), START, OWN, SETTINGS)
    assert (late.query.status, late.query.due_at, late.query.error) == (S.IDLE, START + 6 * HOUR, None)
    wrong = ended(_with(READ, stop=Stop.ERROR, error="503"), START, OWN, SETTINGS)
    assert (wrong.query.status, wrong.query.error, wrong.query.consecutive_failures) == (S.ERROR, "503", 1)
    assert wrong.query.due_at == START + PAUSE
    left = abandoned(replace(READ, consecutive_failures=2), START)
    assert (left.query.status, left.query.consecutive_failures, left.query.due_at) == (S.ERROR, 2, START)
    assert {one.query.run_version for one in (done, late, wrong, left)} == {None}


def test_failures_are_told_at_the_third_and_the_tenth():
    told: list[tuple[int, Any]] = []
    query = READ
    for failures in range(1, CRITICAL_FROM + 2):
        end = ended(_with(query, stop=Stop.ERROR, error="503"), START, OWN, SETTINGS)
        told.extend((failures, event.severity) for event in end.events)
        query = replace(end.query, status=S.RUNNING, run=Run().document())
    assert told == [(FAILING_FROM, "warning"), (CRITICAL_FROM, "critical")]


def test_two_runs_at_their_limit_that_got_nowhere_are_told_once():
    told = []
    query = READ
    for _ in range(4):
        begun = _with(query, pages_fetched=5, marks=marks_of(query))
        end = ended(begun, START, OWN, SETTINGS)
        told.append([event.kind for event in end.events])
        query = replace(end.query, status=S.RUNNING, run=Run().document())
    assert told == [[], ["queries.stuck"], [], []]
    new, history = marks_of(query)
    for mark, stuck in (("elsewhere", history), True), (("elsewhere", "elsewhere"), False), ((new, "elsewhere"), False):
        seeding = replace(query, seeded_at=None)
        assert bool(ended(_with(seeding, pages_fetched=5, marks=mark), START, OWN, SETTINGS).query.stuck) is stuck, mark
    moved = _with(replace(query, seeded_at=START), pages_fetched=5, marks=("elsewhere", history))
    assert ended(moved, START, OWN, SETTINGS).query.stuck == 0, "history is read: what is new goes on"


def test_silence_is_told_after_a_while():
    quiet = _with(replace(READ, last_found_at=START - SETTINGS.silent_after), recent=True)
    assert [event.kind for event in ended(quiet, START, OWN, SETTINGS).events] == ["queries.silent"]
    heard = _with(replace(READ, last_found_at=START - SETTINGS.silent_after + HOUR), recent=True)
    assert ended(heard, START, OWN, SETTINGS).events == []


def test_too_many_are_held_back_for_as_long_as_lies_between_two_readings_of_everything():
    assert not too_many(20, 0, 21, SETTINGS)
    assert too_many(21, 0, 40, SETTINGS)
    assert not too_many(21, 0, 42, SETTINGS)
    unseen, later = Unseen(4, START - DAY), Unseen(9, START - DAY)
    assert freed(READ, unseen, START, SETTINGS) is None
    held = held_back(READ, unseen, START, anew=False)
    assert held_back(held, later, START + DAY, anew=False) == held
    assert freed(held, later, START + 6 * DAY, SETTINGS) is None
    assert freed(held, later, START + 7 * DAY, SETTINGS) == unseen
    anew = held_back(held, later, START + 7 * DAY, anew=True)
    assert freed(anew, later, START + 8 * DAY, SETTINGS) is None
    # It was held back while the clock was wrong.
    assert freed(held_back(held, later, START - DAY, anew=False), later, START + 6 * DAY, SETTINGS) == later


@pytest.mark.parametrize(
    ("began", "due", "ahead"),
    [(DAY, DAY + PAUSE, True), (-HOUR, PAUSE - HOUR, False), (DAY, DAY + 6 * HOUR, False), (DAY, -HOUR, False)],
)
def test_a_run_that_was_planned_while_the_clock_was_ahead_is_known(began, due, ahead):
    assert _planned_ahead(replace(NEW, last_run_at=START + began, due_at=START + due), START, SETTINGS) is ahead

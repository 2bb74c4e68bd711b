"""Providers that fail: throttles, errors, bad records, lists that never end. One query's trouble is not another's."""

from __future__ import annotations

from datetime import timedelta
from itertools import count, pairwise
from typing import Any

import pytest
import structlog
from msgspec import structs

from penstock.connectors.searches import Bad
from penstock.ledger.suspicion import CRASH_LIMIT
from penstock.lifecycles.queries.alerts import CRITICAL_FROM, FAILING_FROM
from penstock.lifecycles.queries.machine import S
from penstock.lifecycles.queries.settings import QuerySettings, client_gate, query_gate
from penstock.model.clock import instant
from penstock.model.errors import Fatal, Rejected, Throttled, Transient
from penstock.model.unit import replace
from penstock.testing import KILL, Fault, inject
from tests.support.queries import DAY, HOUR, START, Lists, bench, ladder, offer


def _gate(world, client="jobs"):
    sql = "SELECT closed_until, held_by FROM gate WHERE gate_id = :gate"
    (row,) = world.rows(sql, gate=client_gate(client))
    return row


@pytest.mark.by_day
@pytest.mark.parametrize(("retry_after", "hours"), [(None, 6), (600.0, 6), (10 * 3600.0, 10)])
def test_a_throttle_closes_the_client_for_hours_and_the_others_go_on(queries_url, retry_after, hours):
    queries = {name: QuerySettings(client=name[0], parameters={"q": name}) for name in ("a1", "a2", "b1")}
    a, b = Lists(ladder(5)), Lists(ladder(5))
    a.trouble.append(Throttled("429 Too Many Requests", retry_after))
    with bench(queries_url, {"a": a, "b": b}, queries) as world:
        world.work()
        (first,) = [name for name in ("a1", "a2") if world.state(name).last_run_at is not None]
        state = world.state(first)
        assert (state.status, state.consecutive_failures, state.error) == (S.IDLE, 0, None)
        row = world.runs(first, "status, stopped_by, http_429_count, errors_count, error")
        assert row == [("IDLE", "rate_limited", 1, 0, "429 Too Many Requests")]
        assert world.state("b1").status is S.SUCCESS
        assert len(a.asked) == 1
        opens = START + timedelta(hours=hours)
        assert state.due_at is not None
        assert abs(state.due_at - opens) < timedelta(minutes=1)
        world.later(timedelta(hours=hours) - 2 * HOUR, within=timedelta(minutes=30))
        assert len(a.asked) == 1
        assert len(world.runs("b1", "id")) == 2
        world.later(3 * HOUR, within=timedelta(minutes=1))
        assert {world.state("a1").status, world.state("a2").status} == {S.SUCCESS}


def test_a_failed_call_is_made_again_three_times_within_the_run(queries_url):
    client = Lists(ladder(5))
    client.trouble.extend([Transient("503 Service Unavailable")] * 3)
    with bench(queries_url, client) as world:
        world.work()
        assert world.runs("jobs", "status, requests_count, errors_count, new") == [("SUCCESS", 4, 0, 5)]


@pytest.mark.by_day
def test_after_three_retries_it_is_an_error_and_the_next_query_runs(queries_url):
    queries = {name: QuerySettings(client="jobs", parameters={"q": name}) for name in ("x", "y")}
    client = Lists(ladder(5))
    client.trouble.extend([Transient("503 Service Unavailable")] * 4)
    with bench(queries_url, client, queries) as world:
        world.work()
        (failed,) = [name for name in queries if world.state(name).status is S.ERROR]
        (other,) = {*queries} - {failed}
        state = world.state(failed)
        assert (state.consecutive_failures, state.last_error_at is not None) == (1, True)
        assert "503 Service Unavailable" in str(state.error)
        assert world.runs(failed, "status, stopped_by, requests_count, errors_count") == [("ERROR", "error", 4, 1)]
        assert world.state(other).status is S.SUCCESS
        world.later()
        state = world.state(failed)
        assert (state.status, state.consecutive_failures, state.error) == (S.SUCCESS, 0, None)


def test_a_run_that_fails_goes_on_where_it_stopped(queries_url):
    client = Lists(ladder(40))
    client.trouble.extend([None, None, *[Transient("down")] * 4])
    with bench(queries_url, client) as world:
        world.work()
        assert world.state("jobs").status is S.ERROR
        reached = client.places[-1]
        client.asked.clear()
        world.later()
        assert client.places[:2] == [0, reached]
        assert len(world.offers()) == 40


def test_failures_in_a_row_are_told_and_told_again(queries_url):
    client = Lists(ladder(5))
    client.trouble.extend([Transient("down")] * 4 * CRITICAL_FROM)
    with bench(queries_url, client) as world:
        for _ in range(CRITICAL_FROM):
            world.later()
        told = [(one["failures"], one["query"]) for one in world.events("queries.failing")]
        assert told == [(FAILING_FROM, "jobs"), (CRITICAL_FROM, "jobs")]


@pytest.mark.by_day
def test_refused_credentials_stop_that_client_alone(queries_url):
    a, b = Lists(ladder(5)), Lists(ladder(5))
    a.trouble.append(Fatal("401 Unauthorized"))
    with bench(queries_url, {"a": a, "b": b}) as world:
        world.work()
        world.later()
        assert world.state("a").status is S.ERROR
        assert world.runs("a", "stopped_by, error") == [("fatal", "Fatal: 401 Unauthorized")]
        assert len(a.asked) == 1
        assert len(world.runs("b", "id")) == 2
        assert _gate(world, "a")[1] is not None


def test_what_is_refused_is_asked_again_from_the_beginning(queries_url):
    client = Lists(ladder(40), by_place=False)
    client.trouble.extend([None, Rejected("400 the token has expired")])
    with bench(queries_url, client) as world:
        world.work()
        assert world.runs("jobs", "status, stopped_by, error") == [
            ("ERROR", "error", "Rejected: 400 the token has expired")
        ]
        client.asked.clear()
        world.later()
        assert client.asked[0].token is None
        assert world.state("jobs").status is S.SUCCESS
        assert len(world.offers()) == 40


def test_a_bad_record_is_counted_set_aside_and_skipped(queries_url):
    records = [offer(1, START), Bad("it has no date", '{"id":"2"}', "2"), Bad("no object", "7"), offer(3, START - HOUR)]
    with bench(queries_url, Lists(records)) as world:
        world.work()
        assert world.offers() == ["1", "3"]
        assert world.runs("jobs", "status, errors_count, offers_fetched") == [("SUCCESS", 2, 2)]
        kept = world.rows("SELECT record_id, reason, payload FROM rejected_records ORDER BY reason")
        assert kept == [("2", "it has no date", '{"id":"2"}'), (None, "no object", "7")]
        world.later()
        assert world.value("SELECT count(*) FROM rejected_records") == 2


def test_a_run_is_told_in_the_log_when_it_is_in_the_ledger_and_not_before(queries_url):
    """One whose last commit is lost with its worker is told as abandoned, and nothing else."""
    with bench(queries_url, Lists(ladder(5))) as world, structlog.testing.capture_logs() as said:
        world.work(flow=inject(world.flow(), Fault("page", KILL, after=True)))
        world.work()
        told = [
            (one["query"], one["stopped_by"], one["counts"]["new"]) for one in said if one["event"] == "queries.run"
        ]
        assert told == [("jobs", "abandoned", 0), ("jobs", "exhausted", 5)]
        assert told == world.rows("SELECT 'jobs', stopped_by, new FROM ingestion_runs ORDER BY started_at")


def test_pages_that_repeat_for_ever_end_the_run(queries_url):
    client = Lists(ladder(10))
    client.repeats = True
    with bench(queries_url, client) as world:
        world.work()
        assert len(client.asked) < 10
        assert world.runs("jobs", "status, new") == [("ERROR", 10)]
        assert "repeat" in str(world.state("jobs").error)
        client.repeats = False
        world.later()
        assert world.state("jobs").status is S.SUCCESS


@pytest.mark.parametrize("flaps", [False, True])
def test_a_record_without_an_id_where_two_pages_meet_does_not_hold_up_the_list(queries_url, flaps):
    records = ladder(60)
    looks = count()

    def nameless():
        said = f"{next(looks)}" if flaps else ""
        client.records[9::9] = [
            Bad("it has no id", f"{place}{said}", None, records[place].at) for place in range(9, 60, 9)
        ]

    client = Lists(records, overlap=1)
    client.trouble.extend([nameless] * 300)
    with bench(queries_url, client) as world:
        world.work()
        assert world.offers() == [str(place) for place in range(60) if place % 9 or not place]
        assert world.state("jobs").status is S.SUCCESS
        assert world.state("jobs").seeded_at is not None


def test_pages_of_bad_records_alone_are_passed(queries_url):
    records: list[Any] = list(ladder(80))
    records[5:70] = [Bad("it has no title", one.payload, one.id, one.at) for one in records[5:70]]
    with bench(queries_url, Lists(records)) as world:
        world.work()
        assert world.offers() == [str(place) for place in (*range(5), *range(70, 80))]
        assert world.state("jobs").status is S.SUCCESS


def test_a_list_of_which_nothing_can_be_used_is_an_error_and_read_again_when_that_is_mended(queries_url):
    good = ladder(40)
    client = Lists([Bad("it has no title", one.payload, one.id, one.at) for one in good])
    with bench(queries_url, client) as world:
        world.work()
        assert world.state("jobs").status is S.ERROR
        assert "records could be used; 'penstock queries rejected'" in str(world.state("jobs").error)
        client.records = list(good)
        world.later()
        assert len(world.offers()) == 40
        assert world.state("jobs").status is S.SUCCESS


def test_cursors_that_lead_in_a_circle_end_the_run(queries_url):
    client = Lists(ladder(30), by_place=False)
    circle = client._batch

    def batch(records, wanted):
        found = circle(records, wanted)
        return structs.replace(found, after=found.after or "0", last=False)

    client._batch = batch  # type: ignore[method-assign]
    with bench(queries_url, client) as world:
        world.work()
        assert len(client.asked) < 20
        assert world.runs("jobs", "status, new") == [("ERROR", 30)]
        assert "repeat" in str(world.state("jobs").error)


def test_a_list_that_is_not_newest_first_is_read_whole_and_told_once(queries_url):
    client = Lists([offer(number, START - (number * 37 % 60) * 12 * HOUR) for number in range(60)])
    with bench(queries_url, client, horizon=DAY) as world:
        world.work()
        world.later()
        assert len(world.offers()) == 60
        assert world.state("jobs").status is S.SUCCESS
        (told,) = world.events("queries.disordered")
        assert 'say order = "none"' in told["reason"]


def test_a_query_that_had_results_and_has_none_is_told_once(queries_url):
    client = Lists(ladder(5))
    with bench(queries_url, client, silent_after=DAY) as world:
        world.work()
        client.records = []
        for _ in range(10):
            world.later()
        assert [one["query"] for one in world.events("queries.silent")] == ["jobs"]
        assert world.state("jobs").status is S.SUCCESS
        assert world.value("SELECT count(*) FROM offers") == 5


def test_a_query_that_never_had_results_is_fine(queries_url):
    client = Lists()
    with bench(queries_url, client, silent_after=HOUR) as world:
        for _ in range(3):
            world.later()
        assert {row[0] for row in world.runs("jobs", "status")} == {"SUCCESS"}
        assert world.events("queries.silent") == []
        client.records = ladder(30)
        world.later()
        assert len(world.offers()) == 30


def test_limits_that_get_nowhere_are_told(queries_url):
    # One page is all that a run may read: what is new takes it, and history is never come to.
    with bench(queries_url, Lists(ladder(30)), max_pages=1) as world:
        world.work()
        world.later()
        assert (world.state("jobs").stuck, world.events("queries.stuck")) == (1, [])
        for _ in range(3):
            world.later()
        (told,) = world.events("queries.stuck")
        assert (told["query"], world.state("jobs").status) == ("jobs", S.SUCCESS)
        assert "max_pages" in told["reason"]
        world.settings = replace(world.settings, max_pages=10)
        world.later()
        assert (world.state("jobs").stuck, len(world.offers())) == (0, 30)


@pytest.mark.by_day
def test_a_run_whose_worker_died_is_closed_as_abandoned_and_nobody_is_charged(queries_url):
    client = Lists(ladder(40))
    with bench(queries_url, client) as world:
        flow = inject(world.flow(), Fault("page", KILL), Fault("page", KILL, after=True))
        world.work(flow=flow)
        rows = world.runs("jobs", "status, stopped_by, error")
        gone = ("ERROR", "abandoned", "abandoned: the worker that ran it is gone")
        assert rows == [gone, gone, ("SUCCESS", "exhausted", None)]
        assert world.state("jobs").consecutive_failures == 0
        assert len(world.offers()) == 40
        assert world.rows("SELECT * FROM run_lock") == []


def test_whoever_runs_next_closes_what_a_dead_worker_left(queries_url):
    queries = {name: QuerySettings(client="jobs", parameters={"q": name}) for name in ("x", "y", "z")}
    with bench(queries_url, Lists(ladder(5)), queries) as world:
        world.work(flow=inject(world.flow(), Fault("page", KILL)))
        spans = world.rows("SELECT started_at, finished_at, status FROM ingestion_runs ORDER BY started_at, status")
        assert [row[2] for row in spans].count("ERROR") == 1
        assert all(one[1] <= two[0] for one, two in pairwise(spans))
        assert {world.state(name).status for name in queries} == {S.SUCCESS}


def test_queries_that_crash_take_their_time_and_are_parked_although_others_close_their_runs(queries_url):
    queries = {name: QuerySettings(client="jobs", parameters={"q": name}) for name in ("x", "y")}
    client = Lists(ladder(5))
    client.trouble.extend([RuntimeError("a bug")] * 20)
    with bench(queries_url, client, queries) as world:
        world.work()
        world.later()
        assert len(client.asked) == CRASH_LIMIT * len(queries)
        states = [world.state(name) for name in queries]
        assert all("a bug" in str(one.parked_reason) for one in states)
        begun = [instant(row[0]) for row in world.rows("SELECT started_at FROM ingestion_runs ORDER BY started_at")]
        assert begun[-1] - begun[0] > timedelta(seconds=2)


def test_a_query_that_is_paused_in_the_middle_of_a_run_stops_at_its_next_page(queries_url):
    client = Lists(ladder(60))
    with bench(queries_url, client) as world:
        gate, plain = query_gate(world.state("jobs").query_key), client._batch

        def batch(records, wanted):
            if len(client.asked) == 2:
                world.ledger.gates.pause(gate, "operator:ana", "too much")
            return plain(records, wanted)

        client._batch = batch  # type: ignore[method-assign]
        world.work()
        assert len(client.asked) == 2
        assert world.runs("jobs", "status, stopped_by, error") == [
            ("IDLE", "client_closed", "it is paused by ana: too much")
        ]
        world.ledger.gates.resume(gate, "operator:ana")
        world.later()
        assert len(world.offers()) == 60

"""What people do to queries: run, pause, resume and seed, each by its plan, and refused where it makes no sense."""

from __future__ import annotations

import itertools
from datetime import date, timedelta

import pytest
from structlog.testing import capture_logs

from penstock.lifecycles.queries.machine import S, query
from penstock.lifecycles.queries.settings import RUN_GATE, client_gate, query_gate
from penstock.simulators.infojobs import OPERATION, Fault, throttle
from tests.support.query_desk import PAUSE, START, desk


def runs_of(at, name):
    return len(at.read("runs", query=name, limit=1_000).rows)


@pytest.mark.by_day
def test_a_query_is_run_now_without_waiting_for_its_turn(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        at.work()
        planned = at.plan("run", query=["python", at.key("python"), "sales"], reason="")
        assert (planned.preview.says, planned.preview.count) == ("run 2 queries now", 2)
        assert planned.preview.warnings == ["No running worker serves queries; 'penstock up' starts one."]
        assert at.do("run", query=["python"]).count == 1
        at.work()
        assert (runs_of(at, "python"), runs_of(at, "java")) == (2, 1)
        assert at.do("run", every=True).count == 3
        at.work()
        assert (runs_of(at, "python"), runs_of(at, "java")) == (3, 2)


def test_what_cannot_be_run_says_why(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        at.refused("run", "name queries to run, or give 'all'")
        at.refused("run", "give queries or 'all', not both", query=["python"], every=True)
        at.refused("run", "no query is called 'jav'; did you mean java", query=["jav"])
        at.without("sales")
        at.configure("java", paused=True)
        at.refused("run", "query sales cannot be run: it is no longer in the configuration", query=["sales"])
        at.refused("run", r"it is paused by the configuration: \[queries.queries.java\]", query=["java"])
        planned = at.plan("run", every=True).preview
        assert (planned.count, planned.skipped) == (
            1,
            {"it is paused by the configuration: [queries.queries.java]": 1},
        )


def test_a_run_that_must_wait_for_its_client_says_so_and_begins_when_it_opens(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        at.simulators["other"].faults[OPERATION].append(throttle())
        at.work()
        (until, first, *_) = at.plan("run", query=["sales"]).preview.warnings[0].split(": ")
        assert until.startswith("sales waits until 2026-11-15 18:0")
        assert first == "its client other is closed"
        at.do("run", query=["sales"])
        at.work(timedelta(hours=5))
        assert runs_of(at, "sales") == 1
        at.work(timedelta(hours=2))
        assert runs_of(at, "sales") == 2


@pytest.mark.by_day
def test_the_whole_pipeline_rests_while_it_is_paused(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        assert at.do("pause").says == "pause all queries"
        at.work(PAUSE)
        assert at.read("runs").rows == []
        assert at.read("list").note.startswith(
            "the whole pipeline is paused by ada: because; 'penstock queries resume'"
        )
        assert {row.waits for row in at.read("list").rows} == {"the whole pipeline is paused by ada: because"}
        at.refused("pause", "the whole pipeline is paused by ada: because; there is nothing to pause")
        assert at.plan("run", every=True).preview.warnings[0].startswith("the whole pipeline is paused by ada")
        at.refused("resume", "client jobs is not paused itself, but the whole pipeline is paused by ada", client="jobs")
        assert at.do("resume").says == "let all queries go on"
        at.work()
        assert len(at.read("runs").rows) == 3
        at.refused("resume", "the whole pipeline is not paused; there is nothing to resume")


def test_one_query_rests_and_goes_on_at_once_when_it_is_resumed(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        at.do("pause", query="python")
        assert at.ledger.read(lambda c: c.rows("SELECT gate_id FROM gate WHERE held_by IS NOT NULL")) == [
            (query_gate(at.key("python")),)
        ]
        at.work()
        assert (runs_of(at, "python"), runs_of(at, "java")) == (0, 1)
        assert at.read("show", query="python").waits == "it is paused by ada: because"
        at.refused("resume", "'penstock queries resume python' opens what is")
        at.do("resume", query="python")
        at.work()
        assert runs_of(at, "python") == 1
        at.refused("resume", "query python is not paused; there is nothing to resume", query="python")
        at.refused("pause", "give a query or a client, not both", query="python", client="jobs")
        at.refused("pause", "a pause lasts more than zero seconds", span=timedelta())


def test_a_query_that_is_resumed_is_told_what_else_holds_it(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        for held in ({}, {"client": "jobs"}, {"query": "python"}):
            at.do("pause", **held)
        assert at.plan("resume", query="python").preview.warnings == [
            (
                "It still waits: its client jobs is paused by ada: because;"
                " 'penstock queries resume --client jobs' opens it."
            ),
            "It still waits: the whole pipeline is paused by ada: because; 'penstock queries resume' lets it go on.",
        ]
        at.do("resume")
        at.do("resume", query="python")
        at.work()
        assert runs_of(at, "python") == 0
        assert at.plan("resume", client="jobs").preview.warnings == []
        at.do("resume", client="jobs")
        at.work()
        assert runs_of(at, "python") == 1


def test_a_pause_for_a_time_ends_by_itself(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        done = at.do("pause", client="jobs", span=timedelta(hours=2))
        assert done.says == "pause the queries of client jobs for 2h"
        at.work()
        assert [row.query for row in at.read("runs").rows] == ["sales"]
        (row,) = [row for row in at.read("list").rows if row.query == "java"]
        assert (row.waits, row.next_run) == ("its client jobs is paused by ada: because", START + timedelta(hours=2))
        at.work(timedelta(hours=2))
        assert {row.query for row in at.read("runs").rows} == {"python", "java", "sales"}


def test_a_client_is_resumed_whatever_stopped_it(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        at.simulators["jobs"].faults[OPERATION].append(Fault(401))
        at.simulators["other"].faults[OPERATION].append(throttle())
        at.work()
        states = {row.gate_id: row.state for row in _gates(at)}
        assert states == {client_gate("jobs"): "stopped", client_gate("other"): "closed"}
        (row,) = [row for row in at.read("list").rows if row.query == "python"]
        assert row.waits.startswith("its client jobs is stopped: ")
        at.refused("resume", "query sales is not paused itself, but its client other is closed: ", query="sales")
        at.refused("resume", "; 'penstock queries resume --client other' opens it", query="sales")
        at.refused("resume", "other is a client, not a query; give it as the client", query="other")
        for client in ("jobs", "other"):
            at.do("resume", client=client)
        at.work()
        assert {row.query: row.state for row in at.read("list").rows} == dict.fromkeys(
            ("python", "java", "sales"), S.SUCCESS
        )


def _gates(at):
    from penstock.lifecycles.queries.lock import shut_gates

    return shut_gates(at.ledger, [RUN_GATE, *map(client_gate, ("jobs", "other"))]).values()


@pytest.mark.by_day
def test_more_of_history_is_read_when_that_is_wanted(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        at.work()
        known = at.read("show", query="python").offers_open
        planned = at.plan("seed", query="python", day=date(2026, 10, 20)).preview
        assert planned.says == "read the history of python back to 2026-10-20"
        assert planned.warnings == [
            "Days from 2026-11-15 back to 2026-10-20 are read, 200 pages in a run at most.",
            "Those from 2026-11-05 on were read before: what changed is updated, nothing is doubled.",
        ]
        at.do("seed", query="python", day=date(2026, 10, 20))
        assert at.read("show", query="python").seeding == "under way, back to 2026-10-20, from the newest record down"
        assert at.read("list").rows[0].how_far == "seeding, 2026-11-05"
        at.work()
        shown = at.read("show", query="python")
        assert (shown.processed_back_to, shown.seeding) == (date(2026, 10, 20), "done, back to 2026-10-20")
        assert shown.offers_open > known
        ((offers, distinct),) = at.rows("SELECT count(*), count(DISTINCT offer_id) FROM offers")
        assert offers == distinct


def test_history_is_read_again_from_the_newest_record_down(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        at.work()
        before = at.unit("python")
        done = at.do("seed", query="python", again=True)
        assert done.says == "read the history of python back to 2026-11-05, from the newest record down once more"
        at.work()
        after = at.unit("python")
        assert (after.last_processed_date, after.seed_until) == (before.last_processed_date, before.seed_until)
        assert after.readings > before.readings + 1
        assert at.read("runs", query="python").rows[0].new == 0


def test_a_seeding_that_is_under_way_goes_on_from_where_it_is(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path, max_pages=4) as at:
        at.work()
        half = at.unit("python")
        assert half.seeding is not None
        at.do("seed", query="python", day=date(2026, 11, 1))
        moved = at.unit("python")
        assert moved.seeding == {**half.seeding, "until": "2026-10-31T23:00:00Z"}
        at.settings = at.settings.__class__(**{**_fields(at.settings), "max_pages": 200})
        at.work()
        assert at.unit("python").last_processed_date == date(2026, 11, 1)


def _fields(settings):
    return {name: getattr(settings, name) for name in settings.__struct_fields__}


def test_days_that_add_nothing_are_refused(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        to_be = "query python is to be seeded back to 2026-11-05 already; give an earlier day, or 'again' alone"
        at.refused("seed", to_be, query="python", day=date(2026, 11, 5))
        at.work()
        at.refused("seed", "give a day as 'from' to read further back, or 'again'", query="python")
        at.refused("seed", "^2026-11-17 lies in the future; it is 2026-11-15", query="python", day=date(2026, 11, 17))
        at.refused("seed", "query python is seeded back to 2026-11-05 already", query="python", day=date(2026, 11, 10))
        at.refused("seed", "which no provider lists", query="python", day=date(1, 1, 1))
        at.without("java")
        at.refused("seed", "it is no longer in the configuration", query="java", again=True)


def test_days_that_the_provider_did_not_list_are_told(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        at.simulators["jobs"].most_pages = 2
        at.work()
        shown = at.read("show", query="python")
        reached = shown.processed_back_to
        assert shown.unreachable == [f"2026-11-05 to {reached}"]
        assert at.plan("seed", query="python", again=True).preview.warnings[-1] == (
            f"The last time, the provider listed nothing before {reached}."
        )


def test_a_worker_that_waits_says_once_who_holds_the_lock(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        other = at.ledger.incarnation(served=[query.name])
        other.register()
        waiting = at.flow()
        try:
            (held,) = other.claim({query.name: 1})
            with capture_logs() as logs:
                for _ in range(3):
                    waiting.tend(at.ledger)
            (said,) = [line for line in logs if line["event"] == "queries.lock"]
            me = other.identity
            assert said["held"] == f"worker {me.id} on {me.host} (process {me.pid}) runs {held.unit_id}"
            assert said["next"] == "this worker waits, and runs queries when the lock is free"
        finally:
            other.retire()


def test_a_worker_does_not_tell_of_itself(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at, capture_logs() as logs:
        at.simulators["jobs"].every[OPERATION, 3] = Fault(503)
        at.work(2 * PAUSE, tends=True)
        assert [line for line in logs if line["event"] == "queries.lock"] == []


@pytest.mark.by_day
def test_of_two_workers_that_start_at_once_one_works_and_the_other_says_so_and_waits(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        for simulator in at.simulators.values():
            simulator.faults[OPERATION].extend([Fault(503)] * 3)
        with capture_logs() as logs:
            at.work(workers=2, tends=True)
        told = [line["held"] for line in logs if line["event"] == "queries.lock"]
        assert 1 <= len(told) == len(set(told)) <= 2
        runs = sorted(at.read("runs", limit=100).rows, key=lambda run: run.started_at)
        assert {run.query for run in runs} == {"python", "java", "sales"}
        assert all(one.finished_at <= following.started_at for one, following in itertools.pairwise(runs))

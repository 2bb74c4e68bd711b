"""What people see of queries, at eighty columns: how they stand, their runs, what was set aside, and why one waits."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest

from penstock.lifecycles.queries.jobs import removed_queries
from penstock.lifecycles.queries.machine import S, query
from penstock.lifecycles.queries.runs import Stop
from penstock.model.errors import UnknownUnit, UsageError
from penstock.simulators.infojobs import OPERATION, Fault, throttle
from penstock.simulators.infojobs_data import DEFECTS
from tests.support.query_desk import PAUSE, START, desk

_MISSING = next(iter(DEFECTS))


def test_its_commands_are_known_without_heavy_libraries():
    heavy = {"sqlalchemy", "aiohttp", "rich", "structlog", "psycopg", "pysqlite3", "obstore", "click"}
    code = f"import sys, penstock.lifecycles.queries; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.by_day
def test_the_list_says_how_each_stands_and_what_it_waits_for(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        assert {row.how_far for row in at.read("list").rows} == {"nothing read yet"}
        at.simulators["other"].faults[OPERATION].append(throttle())
        at.work()
        rows = {row.query: row for row in at.read("list").rows}
        assert list(rows) == ["python", "java", "sales"]
        assert (rows["python"].state, rows["python"].how_far) == (
            S.SUCCESS,
            "from 2026-11-05 to 2026-11-15 11:47 UTC",
        )
        assert (rows["python"].waits, rows["python"].next_run) == (None, START + PAUSE)
        assert (rows["sales"].state, rows["sales"].last_success) == (S.IDLE, None)
        assert rows["sales"].waits == "its client other is closed: GET /api/9/offer: 429 Too many requests"
        assert rows["sales"].next_run >= START + timedelta(hours=6)
        lines = at.text("list")
        assert lines[0].split() == ["query", "client", "state", "last", "run", "success", "failed", "next"]
        assert lines[-2].startswith("nobody holds the run lock")
        assert [row.query for row in at.read("list", client="other").rows] == ["sales"]
        assert [row.query for row in at.read("list", state=S.SUCCESS).rows] == ["python", "java"]
        assert at.read("list", state=S.ERROR).note.startswith("no such queries; nobody holds")


def test_a_query_that_only_the_ledger_has_is_listed_as_such(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        at.without("sales")
        at.configure("java", paused=True)
        waits = {row.query: row.waits for row in at.read("list").rows}
        assert waits == {
            "python": "a worker takes it next",
            "java": "paused by the configuration: [queries.queries.java]",
            "sales": "it is no longer in the configuration",
        }
        assert at.read("list").note.endswith("rests, and its state and offers stay")
        assert [name for name, _ in removed_queries(at.ledger, at.settings)] == ["sales"]
        at.work()
        assert removed_queries(at.ledger, at.settings) == [], "it is told once"
        assert at.unit("sales").due_at is None
        assert at.why("sales").links[-1].says == "then wait: it is no longer in the configuration; its state stays"
        assert at.read("show", query="sales").searches == {"q": "ventas"}


def test_one_query_answers_four_questions_in_a_line_each(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path, max_pages=2) as at:
        lines = at.text("show", query="python")
        for said in ("was it successful: it has never run", "processed back to: -", "running now:       no"):
            assert said in lines
        at.work()
        shown = at.read("show", query="python")
        assert (shown.last_executed, shown.was_it_successful) == (START, "yes (stopped: max_pages)")
        assert shown.running_now == "no"
        assert shown.seeding.startswith("under way, back to 2026-11-05, history, page 3, down to 2026-11-")
        assert (shown.offers_open, shown.offers_closed, shown.rejected) == (98, 0, 0)
        assert at.read("list").rows[0].how_far == f"seeding, {shown.processed_back_to}"
        lines = at.text("show", query="python")
        assert "was it successful: yes (stopped: max_pages)" in lines
        assert f"processed back to: {shown.processed_back_to}" in lines
        assert [run.stopped_by for run in shown.runs] == [Stop.MAX_PAGES]


def test_a_query_is_named_by_its_name_its_key_or_the_beginning_of_it(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        key = at.key("sales")
        for text in ("sales", key, key[:7], f"query:{key}", "other-"):
            assert at.read("show", query=text).query == "sales"
        with pytest.raises(
            UsageError, match=r"'jobs-' matches several queries: jobs-\w+, jobs-\w+; give more of the key"
        ):
            at.read("show", query="jobs-")
        with pytest.raises(UnknownUnit, match="no query is called 'pyton'; did you mean python"):
            at.read("show", query="pyton")
        with pytest.raises(UnknownUnit, match="no query is called ''; there are python, java, sales"):
            at.read("runs", query="")
        with pytest.raises(UsageError, match="no client is called 'oter'; did you mean other"):
            at.read("list", client="oter")


@pytest.mark.by_day
def test_runs_come_page_by_page_with_counts_and_why_they_stopped(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        at.simulators["other"].faults[OPERATION].extend([Fault(500)] * 4)
        at.work(2 * PAUSE)
        every = at.read("runs", limit=100)
        assert (len(every.rows), every.next) == (6, None)
        seen, after = [], None
        while True:
            page = at.read("runs", limit=4, after=after)
            seen += [row.run_id for row in page.rows]
            after = page.next
            if after is None:
                break
        assert seen == [row.run_id for row in every.rows]
        (failed,) = at.read("runs", query="sales", status=S.ERROR).rows
        assert (failed.stopped_by, failed.requests_count) == (Stop.ERROR, 4)
        assert failed.error.endswith("(after 3 retries)")
        first = at.read("runs", query="python").rows[-1]
        assert first.counted == f"{first.pages_fetched} pages, {first.offers_fetched} offers: {first.new} new"
        assert len(at.read("runs", since=START + PAUSE).rows) == 3
        assert len(at.read("runs", until=START + PAUSE).rows) == 3
        assert at.text("runs", limit=2)[-1].startswith("--after 2026-")
        for asked, message in (
            ({"since": START + timedelta(days=9)}, "lies in the future"),
            ({"since": START + PAUSE, "until": START}, "is not after the beginning"),
            ({"since": START.replace(tzinfo=None)}, "has no time zone"),
            ({"after": "nonsense"}, "is not a cursor"),
            ({"after": "2026-11-15T12:00:00Z/x"}, "is not a cursor of this list"),
        ):
            with pytest.raises(UsageError, match=message):
                at.read("runs", **asked)


def test_records_that_were_set_aside_are_listed_with_reasons(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        assert at.read("rejected").note == "no records were set aside"
        at.simulators["jobs"].every[OPERATION, 1] = Fault(spoils=_MISSING)
        at.work()
        every = at.read("rejected", query="python", limit=1_000).rows
        assert every
        assert {row.query for row in every} == {"python"}
        assert all(row.reason and row.payload for row in every)
        first = at.read("rejected", query="python", limit=3)
        rest = at.read("rejected", query="python", limit=1_000, after=first.next)
        assert [*first.rows, *rest.rows] == every
        assert at.read("show", query="python").rejected == len(every)
        assert every[0].reason.split()[0] in " ".join(at.text("rejected", limit=1))


@pytest.mark.by_day
def test_whoever_waits_for_the_run_lock_is_told_who_holds_it(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        other = at.ledger.incarnation(served=[query.name])
        other.register()
        try:
            (held,) = other.claim({query.name: 1})
            me = other.identity
            mine = next(row.query for row in at.read("list").rows if row.key == held.unit_id)
            waiting = next(name for name in ("python", "sales") if name != mine)
            holds = f"worker {me.id} on {me.host} (process {me.pid}) runs {mine}"
            listed = at.read("list")
            assert listed.note == f"the run lock is held: {holds}"
            assert next(row.waits for row in listed.rows if row.query == waiting) == f"waits for the run lock: {holds}"
            told = at.why(waiting)
            full = f"queries/run is full, its one place is taken: {me.id} (pid {me.pid} on {me.host}) has"
            assert told.verdict == f"waits: {full} query:{held.unit_id}"
            assert any(holds in warning for warning in at.plan("run", query=[waiting]).preview.warnings)
            assert at.why(mine).verdict == "a worker is working on it"
        finally:
            other.retire()


def test_why_says_what_keeps_a_query(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        at.do("pause", query="python")
        at.do("pause", client="other", span=timedelta(hours=2))
        other = at.ledger.incarnation(served=[query.name])
        other.register()
        try:
            assert at.why("python").verdict == "waits: it is paused by ada: because"
            closed = at.why("sales")
            assert (closed.verdict, closed.next_at) == (
                "waits: its client other is paused by ada: because",
                START + timedelta(hours=2),
            )
            at.do("pause")
            assert at.why("java").verdict == "blocked: queries/run is paused: because"
        finally:
            other.retire()


def test_a_run_under_way_says_what_it_is_at(ledger_url, tmp_path):
    with desk(ledger_url, tmp_path) as at:
        at.without("java")
        at.without("sales")
        # The first page is read; the second is not answered, and its run has ten minutes to wait for that.
        at.simulators["jobs"].every[OPERATION, 2] = Fault(503)
        with at.stopped_in_a_retry():
            shown = at.read("show", query="python")
            assert (shown.state, shown.was_it_successful) == (S.RUNNING, "no run has finished yet")
            assert shown.running_now.startswith("yes, history, page 2")
            told = at.why("python")
            assert told.verdict == "a worker is working on it"
            assert told.links[-1].says.startswith("then page: history, page 2")
            (row,) = [row for row in at.read("list").rows if row.query == "python"]
            assert (row.state, row.waits, row.next_run) == (S.RUNNING, None, None)
            at.refused("run", "query python cannot be run: it is running already", query=["python"])
            at.refused("seed", "query python is running, and its run would be lost", query="python", again=True)
            assert at.plan("pause", query="python").preview.warnings == [
                "python is running; its run goes on to its end."
            ]
        assert at.unit("python").run_version is None

"""`penstock harvest`, in real processes: on a ledger with a run that completed, one that failed and one under way."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from penstock.ledger.ledger import Ledger
from penstock.lifecycles.harvest.chunk.flow import Chunks
from penstock.lifecycles.harvest.feed import Span
from penstock.lifecycles.harvest.run.consolidate import Consolidator
from penstock.lifecycles.harvest.run.machine import R, Run, RunType
from penstock.lifecycles.harvest.settings import reprice_schedule_of
from penstock.lifecycles.harvest.watermark import read_row
from penstock.model.clock import instant_text
from penstock.model.errors import Rejected, Throttled
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.worker.schedule_unit import Schedule
from tests.support.consolidation import FEEDS
from tests.support.databases import temporary_database
from tests.support.fleet import COMMAND, PATIENCE
from tests.support.harvest import ALL, FEED, START, Bench, Catalogue, Stone, on_bench, small, stones
from tests.support.harvest_worker import write_config

STONES = 300
MOMENT = "2026-11-02T12:00:00Z"
NOWHERE = {"api_url": "http://127.0.0.1:1/api", "username": "buyer@example.com", "password": "simulated"}


@dataclass(frozen=True)
class Place:
    """A folder with a configuration, a ledger with three runs, and the command."""

    folder: Path
    url: str
    penstock: Any
    completed: str
    failed: str
    running: str

    def __call__(self, *arguments: object) -> Any:
        return self.penstock("harvest", *arguments, cwd=self.folder, env={"PENSTOCK_LEDGER": self.url})

    def asked(self, *arguments: object) -> Any:
        answer = self(*arguments, "--json")
        assert answer.code == 0, answer.err
        return json.loads(answer.out)

    def run(self, run_id: str) -> Any:
        with self.ledger() as ledger:
            return ledger.get(Ref("harvest_run", run_id))

    def ledger(self) -> Ledger:
        return Ledger.open(self.url, ALL)


def three_runs(url: str) -> list[str]:
    """One that completed, one with a partition that failed, and one that the provider holds up half-way."""
    source, made = Catalogue(stones(STONES)), []

    def broken(what: str, span: Span, offset: int) -> None:
        if what == "page" and span.low > 0:
            raise Rejected("the provider cannot sort that")

    def slow(what: str, span: Span, offset: int) -> None:
        if what == "page" and offset >= 60:
            raise Throttled("slowly", 3_600)

    async def test(bench: Bench) -> None:
        assert (await bench.harvest()).status is R.COMPLETED
        made.append(str(bench.run().run_id))
        bench.clock.advance(3_600)
        source.put(*(Stone(s.price, s.stone, bench.clock.now(), "changed") for s in source.stones[::2]))
        source.trouble = broken
        bench.clock.advance(60)
        assert (await bench.harvest()).status is R.FAILED
        made.append(str(bench.run().run_id))
        source.trouble = slow
        bench.clock.advance(60)
        bench.tick()
        await bench.quiet()
        assert bench.run().status is R.WORKERS_RUNNING
        made.append(str(bench.run().run_id))

    more: dict[str, Any] = {
        "consolidation": Consolidator(small(chunk_rows=100), FEEDS),
        "more": [Chunks(small(), FEEDS)],
    }
    on_bench(url, source, test, feed=FEEDS[FEED], **more)
    return made


@pytest.fixture(scope="module")
def sqlite_runs(tmp_path_factory) -> tuple[Path, list[str]]:
    """A ledger with the runs, to be copied, and their ids."""
    path = tmp_path_factory.mktemp("runs") / "penstock.db"
    return path, three_runs(f"sqlite:///{path}")


@pytest.fixture(scope="module")
def postgres_runs(postgres_server) -> Iterator[tuple[str, list[str]]]:
    with temporary_database(postgres_server) as url:
        yield urlsplit(url).path[1:], three_runs(url)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.nightly)])
def place(request, penstock, tmp_path) -> Iterator[Place]:
    if request.param == "sqlite":
        path, runs = request.getfixturevalue("sqlite_runs")
        shutil.copy(path, tmp_path / "penstock.db")
        url = f"sqlite:///{tmp_path / 'penstock.db'}"
        write_config(tmp_path, url, NOWHERE)
        yield Place(tmp_path, url, penstock, *runs)
        return
    template, runs = request.getfixturevalue("postgres_runs")
    with temporary_database(request.getfixturevalue("postgres_server"), template=template) as url:
        write_config(tmp_path, url, NOWHERE)
        yield Place(tmp_path, url, penstock, *runs)


def test_runs_are_listed_and_shown_to_people_and_to_programs(place):
    listed = place.asked("runs")["rows"]
    assert [(r["run_id"], r["run"], r["status"]) for r in listed] == [
        (place.running, place.running[:8], "workers_running"),
        (place.failed, place.failed[:8], "failed"),
        (place.completed, place.completed[:8], "completed"),
    ]
    assert [r["run_id"] for r in place.asked("runs", "--limit", "1")["rows"]] == [place.running]
    done = place.asked("show", place.completed)
    assert {name: done[name] for name in listed[2]} == listed[2]
    assert {name: done[name] for name in ("run_type", "feed", "records", "expected_records", "share")} == {
        "run_type": "full",
        "feed": FEED,
        "records": STONES,
        "expected_records": STONES,
        "share": 1.0,
    }
    assert (done["watermark_before"], done["watermark_after"], done["rate"], done["records_consolidated"]) == (
        *(None, MOMENT),
        *(None, STONES),
    )
    assert [r["unseen"] for r in listed] == [None, None, 0]
    going = place.asked("show", f"harvest_run:{place.running}")
    assert (going["records"], going["expected_records"], going["share"]) == (120, 150, 0.8)
    assert going["rate"] > 0
    assert going["ends_at"] is not None
    plain = place("runs", "--feed", FEED)
    assert plain.code == 0
    for run in (place.running, place.failed, place.completed):
        assert run[:8] in plain.out
    assert re.search(r"^unseen: +0$", place("show", place.completed).out, re.MULTILINE)
    shown = place("show", place.failed[:8].upper())
    assert shown.code == 0, shown.err
    assert "77 of 150 records (51%)" in shown.out
    assert "1 of 2 partitions have failed; the watermark stays where it was" in " ".join(shown.out.split())
    assert "--failed" in shown.out
    assert "version" not in shown.out


def test_a_run_that_rests_is_not_watched_for_long(place):
    answer = place("show", place.completed, "--watch")
    assert (answer.code, answer.err) == (0, "")
    assert "300 of 300 records (100%)" in answer.out
    assert place.asked("show", place.completed, "--watch")["status"] == "completed"


def test_a_run_under_way_is_watched_until_it_ends(place):
    command = [*COMMAND, "harvest", "show", place.running, "--watch", "--ledger", place.url]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    watching = subprocess.Popen(command, cwd=place.folder, text=True, env=os.environ | {"COLUMNS": "200"}, **pipes)
    try:
        cancelled = place("cancel", place.running, "--reason", "enough", "--yes")
        assert cancelled.code == 0, cancelled.err
        out, err = watching.communicate(timeout=PATIENCE)
    finally:
        watching.kill()
    assert watching.returncode == 0, err
    assert "enough" in out


def test_partitions_are_listed_and_those_that_failed_alone(place):
    found = place.asked("partitions", place.failed)["rows"]
    assert [(p["partition_id"], p["low"], p["status"], p["found_records"], p["error"]) for p in found] == [
        ("partition-0", 0, "completed", 77, None),
        ("partition-1", found[0]["high"], "failed", None, "Rejected: the provider cannot sort that"),
    ]
    assert [p["partition_id"] for p in place.asked("partitions", place.failed, "--failed")["rows"]] == ["partition-1"]
    assert "cannot sort" in " ".join(place("partitions", place.failed).out.split())
    none = place("partitions", place.completed, "--failed")
    assert "no partition has failed" in none.out + none.err


def test_a_run_under_way_is_cancelled_and_the_one_before_it_retried(place):
    refused = place("retry", place.failed, "--yes")
    assert (refused.code, refused.out) == (2, "")
    assert f"run {place.running} of {FEED} is under way" in refused.err
    would = place.asked("cancel", place.running, "--dry-run")
    assert (would["count"], would["bulk"]) == (3, True)
    assert would["says"] == f"cancel run {place.running} with 2 partitions that have not ended"
    unasked = place("cancel", place.running, "--reason", "too slow")
    assert unasked.code == 2
    assert "give --yes" in unasked.err
    assert place.run(place.running).status is R.WORKERS_RUNNING
    seen = ["--digest", would["digest"]]  # shown to somebody who gave no reason
    done = place.asked("cancel", place.running, "--reason", "too slow", "--by", "ann", *seen, "--yes")
    assert (done["count"], done["skipped"]) == (3, {})
    assert "too slow" in place.run(place.running).error
    again = place("cancel", place.running, "--reason", "too slow", "--yes")
    assert again.code == 2
    assert "there is nothing to cancel" in again.err
    assert place.asked("retry", place.failed, "--dry-run")["says"] == (
        f"fetch 1 of 2 partitions of run {place.failed} again"
    )
    assert place.run(place.failed).status is R.FAILED
    retried = place("retry", place.failed, "--reason", "the provider has mended it", "--yes")
    assert retried.out == f"done: fetch 1 of 2 partitions of run {place.failed} again\n"
    run = place.run(place.failed)
    assert (run.status, run.failed_workers, run.change_reason) == (
        *(R.WORKERS_RUNNING, 0),
        "the provider has mended it",
    )


def test_a_failed_run_is_consolidated_by_force_alone(place):
    assert place("cancel", place.running, "--reason", "x", "--yes").code == 0
    options = ["force", place.failed, "--reason", "half is better than none"]
    would = place.asked(*options[:2], "--dry-run")
    assert "without 1 of its 2 partitions" in would["says"]
    assert place(*options).code == 2
    assert place.run(place.failed).status is R.FAILED
    assert place.asked(*options, "--digest", would["digest"], "--yes")["count"] == 2
    run = place.run(place.failed)
    assert (run.status, run.forced_reason) == (R.CONSOLIDATION_TRIGGERED, "half is better than none")
    assert run.forced_by
    assert place.asked("show", place.failed)["forced_by"] == run.forced_by


def test_a_run_is_started_when_none_is_under_way(place):
    refused = place("start", FEED, "--yes")
    assert refused.code == 2
    assert f"run {place.running} of {FEED} is under way" in refused.err
    assert place("cancel", place.running, "--reason", "x", "--yes").code == 0
    assert f"this would start a full run of {FEED}\n" in place("start", FEED, "--full", "--dry-run").out
    seen = place.asked("start", FEED, "--full", "--dry-run")["digest"]
    assert place("start", FEED, "--full", "--reason", "prices moved", "--digest", seen, "--yes").code == 0
    again = place("start", FEED, "--yes")
    assert again.out == f"done: start a full run of {FEED}\n", "the first wish stands"
    with place.ledger() as ledger:
        asked = ledger.read(lambda c: c.rows("SELECT run_type, run_id FROM harvest_request"))
    assert [tuple(row) for row in asked] == [("full", None)]


def test_the_watermark_is_shown_and_set_back_never_forward(place):
    (mark,) = place.asked("watermark", "show")["rows"]
    assert mark == {
        "feed": FEED,
        "last_updated_at": MOMENT,
        "run": place.completed[:8],
        "last_run_id": place.completed,
        "last_run_completed_at": MOMENT,
        "publication": "unpublished",
        "published_at": None,
        "set_by": None,
        "set_reason": None,
    }
    back, why = "2026-11-01T12:00:00Z", ["--reason", "a price list was late"]
    assert place("watermark", "set", FEED, back, *why, "--yes").code == 2, "a run is under way"
    assert place("cancel", place.running, "--reason", "x", "--yes").code == 0
    forward = place("watermark", "set", FEED, instant_text(START + timedelta(hours=1)), *why, "--yes")
    assert forward.code == 2
    assert "what was updated in between would never be read" in forward.err
    would = place.asked("watermark", "set", FEED, back, "--dry-run")
    assert would["says"] == (f"set the watermark of {FEED} back from {instant_text(START)} to 2026-11-01T12:00:00.000Z")
    unasked = place("watermark", "set", FEED, back, *why)
    assert unasked.code == 2
    assert "give --yes" in unasked.err
    assert place.asked("watermark", "show")["rows"][0]["last_updated_at"] == MOMENT
    assert place("watermark", "set", FEED, back, *why, "--digest", would["digest"], "--yes").code == 0
    (mark,) = place.asked("watermark", "show")["rows"]
    assert (mark["last_updated_at"], mark["set_reason"]) == (back, "a price list was late")
    with place.ledger() as ledger:
        row = read_row(ledger, FEED)
    assert row is not None
    assert row.last_run_id is not None


def test_the_watermark_is_published_at_a_persons_wish(place):
    """A worker does it: see the tests of its delivery."""
    asked = place.asked("watermark", "publish", FEED, "--reason", "they wait for it", "--yes")
    assert asked["says"].endswith(f"the watermark of {FEED}, {instant_text(START)}")
    assert str(place.folder / "watermark.json") in asked["says"]
    with place.ledger() as ledger:
        sql = "SELECT payload FROM event_log WHERE event_type = 'harvest.watermark_requested'"
        ((told,),) = ledger.read(lambda cursor: cursor.rows(sql))
        ledger.database.write(lambda cursor: cursor.run("UPDATE watermark SET publication = 'conflict'"))
    assert "they wait for it" in str(told)
    refused = place("watermark", "publish", FEED, "--reason", "x", "--yes")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "publish with 'replace' to put ours there" in refused.err
    assert place("watermark", "publish", FEED, "--replace", "--reason", "x").code == 2, "nobody is there to be asked"
    assert place("watermark", "publish", FEED, "--replace", "--reason", "x", "--yes").code == 0


def test_how_feeds_stand_is_said_before_it_happens(place):
    (stands,) = place.asked("feeds")["rows"]
    assert (stands["feed"], stands["state"], stands["runs"], stands["open_run"]) == (FEED, "active", 3, place.running)
    coming = place.folder / "coming.toml"
    text = (place.folder / "penstock.toml").read_text()
    coming.write_text(text.replace("[harvest.feeds.stones]", "[harvest.feeds.pearls]"))
    found = place.asked("feeds", "--config", coming)["rows"]
    assert [(s["feed"], s["state"]) for s in found] == [("pearls", "new"), (FEED, "gone")]
    assert f"run {place.running} waits" in found[1]["says"]


def wrong(place: Place) -> list[tuple[list[str], str]]:
    later, back = instant_text(START + timedelta(days=1)), instant_text(START - timedelta(days=1))
    why = ["--reason", "x", "--yes"]
    runs = [["show"], ["partitions"], ["retry", "--yes"], ["cancel", *why], ["force", *why]]
    return [
        *(([r[0], "0000", *r[1:]], "no run '0000' in the ledger; 'penstock harvest runs' lists them") for r in runs),
        *(([r[0], "", *r[1:]], "no run ''") for r in runs),
        (["show", "%"], "no run '%'"),
        (["show", "nonsense:1"], "no run 'nonsense:1'"),
        (["retry", place.completed, "--yes"], "is completed; only a run that has failed can be retried"),
        (["cancel", place.failed, *why], "is failed; there is nothing to cancel"),
        (["force", place.completed, *why], "is completed; only a run that has failed can be forced"),
        (["reopen", place.failed, "--yes"], "is failed; chunks are reopened only while it consolidates"),
        (["start", "pearls", "--yes"], "there is no schedule harvest-pearls"),
        (["start", "", "--yes"], "there is no schedule harvest-;"),
        (["runs", "--feed", "pearls"], f"the ledger has no feed 'pearls'; it has {FEED}"),
        (["runs", "--feed", ""], "the ledger has no feed ''"),
        (["runs", "--limit", "0"], "--limit"),
        (["cancel", place.running, "--yes"], "harvest cancel needs --reason"),
        (["force", place.failed, "--reason", " ", "--yes"], "reason"),
        (["watermark", "set", FEED, back, "--yes"], "harvest watermark set needs --reason"),
        (["watermark", "set", FEED, later, *why], "set forward"),
        (["watermark", "set", FEED, "yesterday", *why], "MOMENT must be an instant, for example 2026-11-15T02:00:00Z"),
        (["watermark", "publish", "pearls", *why], "the ledger has no feed 'pearls'"),
        (["watermark", "set", "pearls", back, *why], f"the ledger has no feed 'pearls'; it has {FEED}"),
        (["prices", "pearls"], "the ledger has no feed 'pearls'"),
        (["reprice", "pearls", "--yes"], "the ledger has no feed 'pearls'"),
    ]


def test_what_cannot_be_done_is_one_line_and_code_two(place):
    for arguments, said in wrong(place):
        answer = place(*arguments)
        assert (answer.code, answer.out) == (2, ""), (arguments, answer.out, answer.err)
        assert said in answer.err, (arguments, answer.err)
        lines = [line for line in answer.err.splitlines() if not line.startswith(("Usage", "Try", " "))]
        assert len(list(filter(None, lines))) == 1, (arguments, answer.err)


def test_a_beginning_that_two_runs_share_is_refused(place):
    """Runs are named by as much of their id as it takes."""
    twin = UUID(place.completed[:24] + "0" * 11 + "1")
    with place.ledger() as ledger:
        run: Any = ledger.get(Ref("harvest_run", place.completed))
        fresh = Run(
            run_id=twin,
            feed="pearls",
            run_type=RunType.FULL,
            expected_workers=0,
            started_at=run.started_at,
            window_to=run.window_to,
            expected_records=0,
        )
        ledger.birth([fresh], actor=Actor.SCHEDULER, who="test")
    answer = place("show", place.completed[:8])
    assert (answer.code, answer.out) == (2, "")
    assert f"more than one run begins with '{place.completed[:8]}'; give more of its id" in answer.err
    assert place.asked("show", place.completed)["run_id"] == place.completed


EVERY = [
    ["start", "stones", "--yes"],
    ["runs"],
    ["show", "00"],
    ["partitions", "00"],
    ["retry", "00", "--yes"],
    ["cancel", "00", "--reason", "x", "--yes"],
    ["force", "00", "--reason", "x", "--yes"],
    ["watermark", "show"],
    ["watermark", "set", "stones", "2026-11-01T02:00:00Z", "--reason", "x", "--yes"],
    ["watermark", "publish", "stones", "--reason", "x", "--yes"],
    ["feeds"],
    ["prices", "stones"],
    ["reprice", "stones", "--yes"],
]


def test_a_ledger_without_harvests_is_refused(penstock, tmp_path, ledger_url):
    call = functools.partial(penstock, cwd=tmp_path, env={"PENSTOCK_LEDGER": ledger_url})
    (tmp_path / "penstock.toml").write_text('lifecycles = ["penstock.examples.invoices:lifecycle"]\n')
    made = call("db", "upgrade")
    assert made.code == 0, made.err
    write_config(tmp_path, ledger_url, NOWHERE)
    for arguments in EVERY:
        answer = call("harvest", *arguments)
        assert (answer.code, answer.out) == (2, ""), (arguments, answer)
        assert "'penstock db upgrade'" in answer.err, arguments
        assert len(answer.err.splitlines()) == 1


def test_no_ledger_at_all_is_said_and_none_is_made(penstock, tmp_path):
    write_config(tmp_path, "sqlite:///penstock.db", NOWHERE)
    for arguments in EVERY:
        answer = penstock("harvest", *arguments, cwd=tmp_path)
        assert (answer.code, answer.out) == (2, ""), (arguments, answer)
        assert "does not exist; 'penstock db upgrade' makes it" in answer.err
        assert len(answer.err.splitlines()) == 1
    assert not (tmp_path / "penstock.db").exists()


def test_a_new_ledger_has_no_runs_yet(penstock, tmp_path, ledger_url):
    write_config(tmp_path, ledger_url, NOWHERE)
    call = functools.partial(penstock, cwd=tmp_path, env={"PENSTOCK_LEDGER": ledger_url})
    made = call("db", "upgrade")
    assert made.code == 0, made.err
    none, marks = call("harvest", "runs"), call("harvest", "watermark", "show")
    assert "no runs yet" in none.out + none.err
    assert "no feed has a watermark yet" in marks.out + marks.err
    assert json.loads(call("harvest", "feeds", "--json").out)["rows"][0]["state"] == "new"
    refused = call("harvest", "start", "stones", "--yes")
    assert refused.code == 2
    assert "run 'penstock up'" in refused.err


def test_what_repricing_would_change_is_shown_before_it_is_asked_for(place):
    with place.ledger() as ledger:
        own = Schedule(name=reprice_schedule_of(FEED), job="reprice", every="1m", settings={"feed": FEED})
        ledger.birth([own], actor=Actor.SCHEDULER, who="test")
        margin = "'0.5'" if ledger.database.dialect == "sqlite" else "0.5"
        add = f"INSERT INTO pricing_rules (id, priority, margin) VALUES (1, 1, {margin})"
        ledger.database.write(lambda cursor: cursor.run(add))
    found = place.asked("prices", FEED)
    assert f"{STONES} of {STONES} records of {FEED} were priced by other rules than the 1 in force" in found["note"]
    assert f"{STONES} prices would change" in found["note"]
    assert (found["counts"]["stale"], found["counts"]["changed"], len(found["rows"])) == (STONES, STONES, 10)
    says = f"price {STONES} records of {FEED} again and change {STONES} prices"
    assert place.asked("reprice", FEED, "--dry-run")["says"] == says
    refused = place("reprice", FEED)
    assert (refused.code, "--yes" in refused.err) == (2, True)
    done = place("reprice", FEED, "--yes", "--reason", "the new list")
    assert done.out == f"done: {says}\n"
    with place.ledger() as ledger:
        ((reason, status),) = ledger.read(lambda c: c.rows("SELECT reason, status FROM harvest_reprice"))
    assert (reason, status) == ("the new list", "running")
    assert place.asked("feeds")["rows"][0]["prices"].startswith(f"repricing: 0 of {STONES} records")

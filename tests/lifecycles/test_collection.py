"""`collect-raw`: one job for what every lifecycle landed, by itself and as a command; killed downloads included."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.app.app import App
from penstock.app.kernel_jobs import collect_raw
from penstock.app.program import Program as Configured
from penstock.ledger.ledger import Ledger
from penstock.lifecycles import partitions, reports
from penstock.lifecycles.partitions.machine import MACHINES, wanted_unit
from penstock.lifecycles.partitions.tables import DATA_TABLES as PARTITION_TABLES
from penstock.lifecycles.reports.flow import raw_key
from penstock.lifecycles.reports.keep import dataset_of
from penstock.lifecycles.reports.machine import Aggregation, Report, S, machine
from penstock.lifecycles.reports.settings import Account
from penstock.lifecycles.reports.tables import DATA_TABLES, VIEWS
from penstock.model.clock import SystemClock
from penstock.model.machine import Actor
from penstock.model.outcome import Move
from penstock.model.unit import replace, unit_id_of
from penstock.operations.raw import COLLECT, all_holds
from penstock.raw.collect import Collected, collect_by_age
from penstock.raw.paths import PartitionKey, partition_folder, run_id_at
from penstock.raw.sink import RawSink
from penstock.settings.file import Configuration
from penstock.settings.kernel import KernelSettings
from penstock.settings.typed import TimeZone
from penstock.simulators.amazon_ads import AmazonAdsSimulator, Fate, compressed
from penstock.simulators.server import in_thread
from penstock.worker.schedule import Schedules, keep_schedules
from penstock.worker.schedule_unit import Schedule
from tests.support.ad_source import CUSTOMERS
from tests.support.console import Console, console
from tests.support.fleet import until
from tests.support.partitions import DAY, KEY, Partitions, rows
from tests.support.program import Program
from tests.support.reports import dataset, ref_of
from tests.support.reports_worker import CONFIG, write_config

pytestmark = pytest.mark.by_day
A_DAY, AN_HOUR = timedelta(days=1), timedelta(hours=1)
NOW = datetime(2026, 11, 15, tzinfo=UTC)


@pytest.fixture
def world(ledger_url: str, tmp_path: Path) -> Iterator[Partitions]:
    """Partitions on a clock of the test's own."""
    made = Partitions(ledger_url, tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def penstock() -> Iterator[Console]:
    with console() as made:
        yield made


BOTH = App(reports.lifecycle, partitions.lifecycle)


def collect_all(
    ledger: Ledger, sink: RawSink, now: datetime, *, superseded: timedelta | None = None, dry_run: bool = False
) -> Collected:
    """By the ages in force, as the job does."""
    return collect_by_age(sink, all_holds(ledger, BOTH), now, superseded=superseded, dry_run=dry_run)


def aged(folder: Path, days: float = 2) -> list[Path]:
    """Every attempt below the folder, made to look as if nobody had written to it for so long."""
    found = sorted(folder.rglob(".writing-*"))
    past = SystemClock().now().timestamp() - days * 86_400
    for place in found:
        for file in (*place.iterdir(), place):
            os.utime(file, (past, past))
    return found


def test_superseded_runs_of_partitions_go_by_age_and_a_referenced_one_never(world):
    runs = [world.judge(rows(note=str(n))) for n in range(3)]
    other = PartitionKey("google_ads", CUSTOMERS[1], "campaign_daily", DAY)
    bad = world.judge([{"bad": 1}], other)
    newer = world.land()
    late = world.time.now() + A_DAY
    assert collect_all(world.ledger, world.sink, late) == Collected()
    assert collect_all(world.ledger, world.sink, late, superseded=AN_HOUR, dry_run=True) == Collected(superseded=2)
    assert collect_all(world.ledger, world.sink, late, superseded=2 * A_DAY) == Collected()
    assert collect_all(world.ledger, world.sink, late, superseded=AN_HOUR) == Collected(superseded=2)
    assert world.sink.runs(KEY) == [runs[2], newer]
    assert world.sink.runs(other) == [bad], "nothing has replaced it"
    assert list(world.reader.open(KEY).rows()) == rows(note="2")


def test_the_job_collects_on_request_and_names_what_it_cannot_read(world, tmp_path):
    runs = [world.judge() for _ in range(3)]
    place = tmp_path / "raw" / partition_folder(KEY) / f"run_id={runs[0].replace(':', '%3A')}" / "metadata.json"
    place.chmod(0o644)
    place.write_text("garbage")
    wanted = Schedule(name="tidy", job=COLLECT, every="1m", settings={"superseded": "30s"})
    keep_schedules(world.ledger, [wanted], "test")
    world.work(Schedules(world.program.jobs()), seconds=100)
    assert world.sink.runs(KEY) == [runs[0], runs[2]]
    (text,) = world.rows("SELECT change_reason FROM schedule")[0]
    assert "collected 0 unfinished attempts and" in text
    assert "1 skipped, the first source=google_ads/" in text
    assert "raw.unreadable" in world.alerts()


def test_a_misspelt_setting_of_the_job_is_told(world, tmp_path):
    keep_schedules(world.ledger, [Schedule(name="tidy", job=COLLECT, every="1m", settings={"superceded": "1d"})], "t")
    world.work(Schedules(world.program.jobs()), seconds=30)
    assert "does not know 'superceded'" in world.rows("SELECT last_error FROM schedule")[0][0]


def test_whoever_lands_data_collects_without_being_told():
    assert collect_raw.name == COLLECT
    for one in (reports.lifecycle, partitions.lifecycle):
        found = Configured(App(one), Configuration(KernelSettings(), {one.name: one.settings()}))
        assert [s.name for s in found.schedules() if s.job == COLLECT] == [COLLECT]
    none = Configured(App(), Configuration(KernelSettings()))
    assert [s.name for s in none.schedules() if s.job == COLLECT] == []


@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_the_dataset_of_a_partition_is_the_one_that_landed_it(aggregation):
    account = Account(profile_id="1", country="ES", time_zone=TimeZone("Europe/Madrid"))
    unit = dataset("a/c-me %", account, aggregation=aggregation, hour=datetime(2026, 11, 1, 23, tzinfo=UTC))
    key = raw_key(unit)
    assert dataset_of(key) == unit_id_of(unit)
    other = PartitionKey(key.source, key.customer_id, f"{key.query_name}-x", key.logical_date)
    assert dataset_of(other) != unit_id_of(unit)


def under_way(ledger: Ledger, unit: Report, **columns: Any) -> None:
    """A report of it is being made since thirty days."""
    changes = {"report_id": "x", "last_report_created_at": NOW - 30 * A_DAY, "loaded_report_id": "r", **columns}
    (found,) = ledger.get_many(machine, [unit_id_of(unit)])
    move = Move(found, replace(found, status=S.FETCHING, **changes), "asked for")
    ledger.together([move], who="test")


def test_both_lifecycles_of_one_ledger_and_one_sink(ledger_url, tmp_path):
    """The loaded run of a report stays, its superseded ones go, and so it is for a partition beside it."""
    tables = [*DATA_TABLES, *PARTITION_TABLES]
    sink = RawSink(tmp_path / "raw")
    with Ledger.open(ledger_url, [machine, *MACHINES], create=True, data_tables=tables, views=VIEWS) as ledger:
        runs = [run_id_at(NOW - n * A_DAY) for n in (40, 30, 20, 10)]
        done, busy = dataset(day=DAY), dataset(day=DAY - A_DAY)
        ledger.birth([done, busy], actor=Actor.SCHEDULER, who="test")
        extracted = PartitionKey("google_ads", CUSTOMERS[0], "campaign_daily", DAY)
        ledger.birth([wanted_unit(extracted, NOW)], actor=Actor.SCHEDULER, who="test")
        keys = [raw_key(done), raw_key(busy), extracted, PartitionKey("amazon_ads", "gone", "daily-target", DAY)]
        for key in keys:
            for run_id in runs:
                sink.write_partition(key, run_id, rows(), schema_version="1", created_at=NOW)
        under_way(ledger, done, raw_run_id=runs[2])
        under_way(ledger, busy)
        found = collect_all(ledger, sink, NOW, superseded=A_DAY)
        assert found == Collected(superseded=1)
        assert sink.runs(keys[0]) == runs[1:], "the loaded one, the one under way and the one after stay"
        assert [len(sink.runs(key)) for key in keys[1:]] == [4, 4, 4]
        assert set(all_holds(ledger, BOTH)(keys)) == set(keys[:3])


def test_a_killed_download_of_a_report_is_collected_and_one_under_way_is_not(ledger_url, tmp_path, penstock):
    """SIGKILL in mid-download; while another worker downloads again nothing is touched, however old it looks."""
    simulator = AmazonAdsSimulator(SystemClock(), fate=Fate(pending=timedelta(), processing=timedelta()))
    reached, go_on = [[threading.Event(), threading.Event()] for _ in range(2)]

    def slow(turn: int) -> Any:
        def body() -> Iterator[bytes]:
            whole = b"".join(compressed(simulator._rows(next(iter(simulator.reports.values())))))
            yield whole[:20]
            reached[turn].set()
            go_on[turn].wait(60)
            yield whole[20:]

        return body

    simulator.bodies.extend([slow(0), slow(1)])
    unit = dataset("acme", Account(profile_id="1001", country="US"), day=SystemClock().now().date() - 2 * A_DAY)
    raw = tmp_path / "raw"
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(in_thread(simulator))
        machines = App(reports.lifecycle).machines
        ledger = stack.enter_context(
            Ledger.open(ledger_url, machines, create=True, data_tables=DATA_TABLES, views=VIEWS)
        )
        path = write_config(tmp_path, address, simulator, ledger_url, {"acme": "1001"}, poll="1s")
        ledger.birth([unit], actor=Actor.SCHEDULER, who="test")
        workers = Program("tests.support.reports_worker", ledger_url, tmp_path / "workers", **{CONFIG: str(path)})
        program = stack.enter_context(workers)
        for event in go_on:
            stack.callback(event.set)
        first = program.start()
        assert reached[0].wait(60), first.text()
        (lost,) = aged(raw)
        assert collect_all(ledger, RawSink(raw), SystemClock().now()) == Collected(under_way=1), "it is under way"
        first.kill()
        go_on[0].set()
        second = program.start()
        assert reached[1].wait(60), second.text()
        assert len(aged(raw)) == 2
        assert collect_all(ledger, RawSink(raw), SystemClock().now()) == Collected(under_way=2), "it may be either"
        go_on[1].set()
        until(lambda: ledger.get(ref_of(unit)).status is S.COMPLETED, f"it is loaded: {second.text()}")
        program.stop()
        assert [place.name for place in raw.rglob(".writing-*")] == [lost.name], "the killed one is left"

        assert "the ledger has no schedule collect-raw" in refused(penstock, tmp_path)
        wanted = Schedule(name=COLLECT, job=COLLECT, every="1d", settings_version="usual")
        keep_schedules(ledger, [wanted], "test")
        os.utime(lost)
        assert unneeded(penstock, tmp_path) == {"unfinished": 0, "superseded": 0, "under way": 0}, "not a day old"
        aged(raw)
        assert unneeded(penstock, tmp_path) == {"unfinished": 1, "superseded": 0, "under way": 0}
        assert "this would collect 1 unfinished attempts" in refused(penstock, tmp_path)
        assert lost.exists()
        assert collect_all(ledger, RawSink(raw), SystemClock().now()) == Collected(unfinished=1)
        assert list(raw.rglob(".writing-*")) == []
        assert ledger.read(lambda c: c.rows("SELECT count(*) FROM performance_daily"))[0][0] == 20


def unneeded(penstock: Console, folder: Path) -> Any:
    found = penstock("raw", "unneeded", "--json", cwd=folder)
    assert found.code == 0, found
    return json.loads(found.out)["counts"]


def refused(penstock: Console, folder: Path) -> str:
    """What collecting says where nobody can be asked."""
    found = penstock("raw", "collect", "--reason", "a test", cwd=folder)
    assert found.code == 2, found
    return found.err


@pytest.mark.parametrize("span", ["soon", "", "-1d"])
def test_a_span_that_is_none_is_refused(penstock, tmp_path, span):
    (tmp_path / "penstock.toml").write_text("[reports]\n")
    assert penstock("db", "upgrade", cwd=tmp_path).code == 0
    found = penstock("raw", "unneeded", "--superseded", span, cwd=tmp_path)
    assert (found.code, "--superseded must be a span" in found.err) == (2, True), found


def test_a_program_without_landed_data_says_so(penstock, tmp_path):
    assert penstock("db", "upgrade", cwd=tmp_path).code == 0
    found = penstock("raw", "unneeded", "--superseded", "1d", cwd=tmp_path)
    assert (found.code, "lands data" in found.err) == (2, True), found

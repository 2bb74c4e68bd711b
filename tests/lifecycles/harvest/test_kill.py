"""SIGKILL at every named point of a harvest: another worker finishes, and nobody could tell that anything happened.

By day a few of the points on SQLite; by night all of them on both databases.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.lifecycles.harvest import operations
from penstock.lifecycles.harvest.partition.machine import P
from penstock.lifecycles.harvest.run.machine import R
from penstock.simulators.nivoda_process import control, in_process
from tests.support.fleet import PATIENCE, until
from tests.support.harvest_site import GONE, Come, Site
from tests.support.harvest_worker import POINTS

STONES = 600
BY_DAY = ("page/after", "chunk/after")


@pytest.fixture(scope="module")
def about() -> Iterator[dict[str, Any]]:
    """A catalogue in a process of its own, with a few records that cannot be mapped."""
    with in_process(STONES, "--tells-updated", "--bad", "0.02") as said:
        yield said


@pytest.fixture(scope="module")
def clean(about: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Come:
    """What a run that nothing happens to comes to."""
    folder: Path = tmp_path_factory.mktemp("clean")
    with Site(f"sqlite:///{folder / 'penstock.db'}", folder, about) as site:
        site.prepare()
        site.ask()
        site.finish(site.start())
        site.stop()
        come = site.come()
    assert int(come.parts["run"]["records_rejected"]) > 0
    assert come.parts["run"]["records_deleted"] == str(GONE)
    assert come.parts["findings"] == []
    return come


def test_the_points_are_all_there_are():
    assert set(BY_DAY) < set(POINTS)
    assert len(set(POINTS)) == len(POINTS) > 50


def a_kill_changes_nothing(url: str, folder: Path, about: dict[str, Any], clean: Come, point: str, **feed: Any) -> None:
    with Site(url, folder, about, **feed) as site:
        site.prepare()
        site.ask()
        first = site.start(point)
        assert first.wait(PATIENCE * 2) == -signal.SIGKILL, first.text()[-3_000:]
        site.check_watermark()
        site.finish(site.start())
        site.stop()
        assert site.come().unlike(clean) == [], point


@pytest.mark.parametrize("point", BY_DAY)
def test_a_kill_changes_nothing(about, clean, tmp_path, point):
    a_kill_changes_nothing(f"sqlite:///{tmp_path / 'penstock.db'}", tmp_path, about, clean, point)


@pytest.mark.nightly
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_point_changes_nothing(ledger_url, about, clean, tmp_path, point):
    a_kill_changes_nothing(ledger_url, tmp_path, about, clean, point)


@pytest.mark.nightly
@pytest.mark.parametrize("point", ["begin/committed", "page/after", "page/committed", "completion/after"])
def test_a_kill_where_pages_are_counted_changes_nothing(ledger_url, about, clean, tmp_path, point):
    """With a budget, every page is a claim of its own."""
    a_kill_changes_nothing(ledger_url, tmp_path, about, clean, point, requests_per_second=1_000.0)


def test_two_workers_on_one_run_do_everything_once(ledger_url, about, clean, tmp_path):
    with Site(ledger_url, tmp_path, about) as site:
        site.prepare()
        members = [site.start(), site.start()]
        for member in members:
            until(functools.partial(member.said, "worker.started"), "both have started")
        site.ask()
        site.finish(members[0])
        site.stop()
        assert site.come().unlike(clean) == []


@pytest.mark.nightly
def test_a_worker_that_sleeps_past_its_lease_in_a_page_changes_nothing(ledger_url, tmp_path):
    """It wakes with pages that another has fetched since; they are dropped, and it goes on working."""
    with (
        in_process(STONES, "--tells-updated", "--latency", "50") as about,
        Site(ledger_url, tmp_path, about) as site,
    ):
        site.prepare()
        site.ask()
        sleeper = site.start()
        until(lambda: any(p.pages > 1 and p.status is P.FETCHING_PAGES for p in site.partitions()), "a page has come")
        sleeper.signal(signal.SIGSTOP)
        control(about, latency=0.0)
        other = site.start()
        site.finish(other)
        whole = site.come()
        sleeper.signal(signal.SIGCONT)
        until(lambda: sleeper.said("worker.lease_lost"), "it learns that it was given up")
        site.stop()
        assert site.come().unlike(whole) == []
        assert whole.parts["run"]["records_consolidated"] == str(STONES)
        assert whole.parts["findings"] == []


@pytest.mark.nightly
def test_a_run_is_cancelled_while_thirty_partitions_are_being_fetched(ledger_url, tmp_path):
    """However fast pages come, the person who cancels has the last word, at once."""
    with in_process(20_000, "--tells-updated") as about, Site(ledger_url, tmp_path, about) as site:
        site.path.write_text(site.path.read_text().replace("full_workers = 5", "full_workers = 30"))
        site.prepare()
        site.ask()
        worker = site.start()
        until(lambda: sum(p.pages for p in site.partitions()) > 60, "pages have come")
        site.do(operations.cancel, run=str(site.run().run_id), reason="enough")
        assert site.run().status is R.FAILED
        ended = {P.FAILED, P.COMPLETED}
        until(lambda: {p.status for p in site.partitions()} <= ended, "every partition has ended")
        pages = sum(p.pages for p in site.partitions())
        assert pages < 600
        site.do(operations.retry, run=str(site.run().run_id), reason="after all")
        site.finish(worker)
        assert site.run().records_consolidated == 20_000
        site.stop()

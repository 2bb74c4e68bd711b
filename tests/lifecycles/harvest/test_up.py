"""`penstock up` with feeds, as a new user starts it: on nothing, twice at once, and with a feed taken away."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.app.app import App
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.harvest import lifecycle
from penstock.lifecycles.harvest.partition.machine import P
from penstock.lifecycles.harvest.queries import partitions_of
from penstock.lifecycles.harvest.run.machine import R, harvest_run
from penstock.lifecycles.harvest.watermark import read_row
from penstock.model.unit import Ref
from penstock.simulators.nivoda_process import control, in_process
from tests.support.fleet import COMMAND, ROOT, Member, until
from tests.support.harvest_worker import write_config

STONES = 600
FEED = "stones"


@contextmanager
def up(folder: Path, number: int) -> Iterator[list[Member]]:
    """So many `penstock up` in that folder, started at once."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    logs = [folder / f"up-{n}.log" for n in range(number)]
    members = [Member([*COMMAND, "up"], environment, log, cwd=folder) for log in logs]
    try:
        yield members
    finally:
        for member in members:
            if member.alive:
                member.kill()


def said(members: list[Member]) -> str:
    return "\n".join(member.text()[-2_000:] for member in members)


def runs(ledger: Ledger) -> list[Any]:
    ids = [str(row[0]) for row in ledger.read(lambda c: c.rows("SELECT unit_id FROM run_metadata"))]
    return ledger.get_many(harvest_run, ids) if ids else []


def count(ledger: Ledger, sql: str) -> int:
    return int(ledger.read(lambda cursor: cursor.rows(sql))[0][0])


def due(ledger: Ledger, table: str) -> list[str]:
    sql = f"SELECT unit_id FROM {table} WHERE due_at IS NOT NULL"
    return [str(row[0]) for row in ledger.read(lambda cursor: cursor.rows(sql))]


def opened(url: str, members: list[Member]) -> Ledger:
    for member in members:
        until(lambda: "worker.started" in member.text() or not member.alive, "it has started")  # noqa: B023 - at once
        assert member.alive, member.text()
    return Ledger.open(url, App(lifecycle).machines)


def test_two_at_once_make_one_ledger_and_one_run(ledger_url, tmp_path):
    with in_process(STONES, "--tells-updated") as about:
        write_config(tmp_path, ledger_url, about, every="1h", at=None)
        with up(tmp_path, 2) as members, opened(ledger_url, members) as ledger:
            until(lambda: any(r.status is R.COMPLETED for r in runs(ledger)), said(members))
            until(lambda: getattr(read_row(ledger, FEED), "publication", None) == "published", said(members))
            assert len(runs(ledger)) == 1
            assert count(ledger, "SELECT count(*) FROM diamonds WHERE deleted_at IS NULL") == STONES
            assert control(about)["asked"]["page"] == sum(
                p.pages + 1 for p in partitions_of(ledger, runs(ledger)[0].run_id)
            ), "no page was fetched twice, and the last record of each partition once more"
            for member in members:
                member.signal(signal.SIGTERM)
            assert [member.wait() for member in members] == [0, 0], said(members)


@pytest.mark.nightly
def test_a_feed_taken_away_under_a_run_waits_and_comes_back(ledger_url, tmp_path):
    """SIGHUP without the feed, then with it: the run goes on where it was, and nothing was lost or asked for twice."""
    with in_process(STONES, "--tells-updated", "--latency", "200") as about:
        path = write_config(tmp_path, ledger_url, about, every="1h", at=None)
        whole = path.read_text()
        without = whole.partition("[harvest.feeds.stones]")[0]
        with up(tmp_path, 1) as members, opened(ledger_url, members) as ledger:
            (member,) = members

            def pages() -> int:
                return sum(p.pages for r in runs(ledger) for p in partitions_of(ledger, r.run_id))

            until(lambda: pages() > 2, said(members))
            path.write_text(without)
            member.signal(signal.SIGHUP)
            until(lambda: len(member.said("worker.started")) == 2, said(members))
            (run,) = runs(ledger)
            until(lambda: all(p.claimed_by is None for p in partitions_of(ledger, run.run_id)), said(members))
            held = pages()
            until(
                lambda: all(
                    "not configured" in str(p.change_reason)
                    for p in partitions_of(ledger, run.run_id)
                    if p.status is not P.COMPLETED
                ),
                said(members),
            )
            control(about, latency=0.0)
            path.write_text(whole)
            member.signal(signal.SIGHUP)
            until(lambda: len(member.said("worker.started")) == 3, said(members))
            assert pages() == held
            # Whatever waits looks again after minutes; that is brought forward.
            tables = {"partition": "partition_progress", "run": "run_metadata", "chunk": "harvest_chunk"}
            for name, table in tables.items():
                ledger.nudge([Ref(f"harvest_{name}", unit_id) for unit_id in due(ledger, table)])
            until(lambda: runs(ledger)[0].status is R.COMPLETED, said(members))
            assert count(ledger, "SELECT count(*) FROM diamonds WHERE deleted_at IS NULL") == STONES

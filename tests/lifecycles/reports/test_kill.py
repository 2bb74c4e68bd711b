"""SIGKILL while a report is being downloaded: others see `parsing`, and the next worker goes on from there."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from penstock.ledger.care.doctor import examine
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.reports.machine import S, machine
from penstock.lifecycles.reports.settings import Account
from penstock.lifecycles.reports.tables import DATA_TABLES, VIEWS
from penstock.model.clock import SystemClock
from penstock.model.machine import Actor
from penstock.simulators.amazon_ads import AmazonAdsSimulator, Fate, compressed
from penstock.simulators.server import in_thread
from tests.support.fleet import until
from tests.support.program import Program
from tests.support.reports import dataset, ref_of
from tests.support.reports_worker import CONFIG, write_config


@pytest.mark.by_day
def test_a_kill_in_parsing_resumes_from_parsing(ledger_url, tmp_path):
    clock = SystemClock()
    soon = Fate(pending=timedelta(), processing=timedelta())
    simulator = AmazonAdsSimulator(clock, fate=soon)
    reached, go_on = threading.Event(), threading.Event()

    def slow():
        whole = b"".join(compressed(simulator._rows(next(iter(simulator.reports.values())))))
        yield whole[:20]
        reached.set()
        go_on.wait(60)
        yield whole[20:]

    simulator.bodies.append(slow)
    unit = dataset("acme", Account(profile_id="1001", country="US"), day=clock.now().date() - timedelta(days=2))
    ref = ref_of(unit)
    folder = tmp_path / "workers"
    with (
        in_thread(simulator) as address,
        Ledger.open(ledger_url, [machine], create=True, data_tables=DATA_TABLES, views=VIEWS) as ledger,
    ):
        path = write_config(tmp_path, address, simulator, ledger_url, {"acme": "1001"}, poll="1s")
        ledger.birth([unit], actor=Actor.SCHEDULER, who="test")

        def visible():
            return ledger.read(lambda cursor: cursor.rows("SELECT count(*) FROM performance_daily"))[0][0]

        with Program("tests.support.reports_worker", ledger_url, folder, **{CONFIG: str(path)}) as program:
            first = program.start()
            assert reached.wait(60), first.text()
            held: Any = ledger.get(ref)
            assert (held.status, held.refreshing) == (S.PARSING, True)
            assert visible() == 0
            first.kill()
            go_on.set()
            assert ledger.get(ref).status is S.PARSING
            second = program.start()
            until(lambda: ledger.get(ref).status is S.COMPLETED, f"it is loaded: {second.text()}")
            program.stop()
        done: Any = ledger.get(ref)
        assert (done.refreshing, done.loaded_rows, visible()) == (False, 20, 20)
        moves = ledger.read(
            lambda cursor: cursor.rows(
                "SELECT from_status, to_status FROM transition_log WHERE machine = 'report' ORDER BY seq"
            )
        )
        assert [tuple(m) for m in moves] == [
            (None, "missing"),
            ("missing", "fetching"),
            ("fetching", "parsing"),
            ("parsing", "completed"),
        ]
        assert len(simulator.reports) == 1
        assert len(simulator.calls("download")) == 2
        assert not [f for f in examine(ledger.database, {"report": machine}) if f.severity == "error"]

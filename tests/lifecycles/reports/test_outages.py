"""Outages of the provider: however long they last they end no dataset; what fails while others pass still ends."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from typing import Any

import pytest

from penstock.lifecycles.reports.machine import EntityType, S
from penstock.lifecycles.reports.settings import ReportSettings
from penstock.model.machine import Actor
from penstock.operations.why import explain
from penstock.simulators.amazon_ads import Fate, Fault
from tests.support.reports import ACME, DAY, START, Bench, dataset, days, on_bench, ref_of

OPERATIONS = ("token", "create", "status", "cancel", "download")
DATASETS = [dataset(day=DAY - days(n), entity=entity) for n in range(3) for entity in EntityType]
COUNTERS = "create_failures + provider_failures + pending_failures + parse_failures + link_expiries"
FAULTS = [Fault(503), Fault(500), Fault(cut=True)]


class Down(deque[Fault]):
    """The same trouble for every call, until it is cleared."""

    def popleft(self) -> Fault:
        return self[0]


def down(b: Bench, fault: Fault, *operations: str) -> None:
    for operation in operations or OPERATIONS:
        b.simulator.faults[operation] = Down([fault])


def up(b: Bench) -> None:
    b.simulator.faults.clear()


def hours(number: float) -> timedelta:
    return timedelta(hours=number)


def kinds(b: Bench) -> list[str]:
    return sorted(kind for kind, _ in b.alerts())


def stand(b: Bench) -> set[Any]:
    return {status for (status,) in b.rows("SELECT status FROM report_dataset_metadata")}


@pytest.mark.by_day
@pytest.mark.parametrize("begins", [0, 5, 9], ids=["creating", "polling", "downloading"])
@pytest.mark.parametrize("fault", FAULTS, ids=["503", "500", "cut"])
def test_three_hours_of_outage_end_no_dataset(ledger_url, tmp_path, fault, begins):
    async def test(b):
        begun = START + timedelta(minutes=begins)
        await b.until(begun)
        down(b, fault)
        calls = len(b.simulator.requests)
        await b.until(begun + hours(3))
        assert "error" not in stand(b)
        assert b.rows(f"SELECT max({COUNTERS}), max(attempts), max(crashes) FROM report_dataset_metadata") == [
            (0, 1, 0)
        ]
        assert kinds(b) == ["gate.breaker"], "one alert"
        assert len(b.simulator.requests) - calls < 100, "a probe every five minutes, not every dataset time after time"
        up(b)
        await b.until(begun + hours(4))
        assert stand(b) == {"completed"}
        assert kinds(b) == ["gate.breaker", "gate.recovered"]
        assert b.rows("SELECT DISTINCT failures, failing_since, throttles FROM gate") == [(0, None, 0)]

    on_bench(ledger_url, tmp_path, test, *DATASETS)


@pytest.mark.parametrize("operations", [("token", "create", "status", "cancel"), ("create", "status", "cancel")])
@pytest.mark.parametrize("fault", [Fault(302), Fault(200, "down for maintenance")], ids=["302", "page"])
def test_pages_in_place_of_answers_are_an_outage_too(ledger_url, tmp_path, fault, operations):
    async def test(b):
        await b.until(START + timedelta(minutes=4))  # all are created, and none was looked at
        down(b, fault, *operations)
        await b.until(START + hours(10))  # longer than a report may be pending
        assert stand(b) == {"fetching"}
        assert b.rows(f"SELECT max({COUNTERS}) FROM report_dataset_metadata") == [(0,)]
        assert kinds(b) == ["gate.breaker"]
        up(b)
        await b.until(START + hours(10.75))
        assert stand(b) == {"completed"}
        assert len(b.simulator.reports) == len(DATASETS), "none was created twice"

    on_bench(ledger_url, tmp_path, test, *DATASETS)


def test_an_outage_of_the_files_alone_is_one_too(ledger_url, tmp_path):
    async def test(b):
        down(b, Fault(503), "download")
        await b.until(START + hours(6))
        assert stand(b) == {"parsing"}
        assert b.rows(f"SELECT max({COUNTERS}) FROM report_dataset_metadata") == [(0,)]
        failing = b.rows("SELECT gate_id FROM gate WHERE failures > 5")
        assert failing == [("amazon_ads/acme/download",)], "the API answers"
        up(b)
        await b.until(START + hours(7))
        assert stand(b) == {"completed"}
        assert len(b.simulator.reports) == len(DATASETS), "none was created twice"

    on_bench(ledger_url, tmp_path, test, *DATASETS)


@pytest.mark.by_day
def test_a_report_that_fails_while_others_pass_meets_its_limit(ledger_url, tmp_path):
    """The others are polled all the time; what fails is one dataset's create, by a fault that lies in wait for it."""
    poisoned = dataset(day=DAY - days(9))

    async def test(b):
        b.simulator.fate = Fate(pending=days(5))
        await b.until(START + timedelta(minutes=1))
        b.ledger.birth([poisoned], actor=Actor.SCHEDULER, who="test")
        down(b, Fault(500), "create")
        await b.until(START + hours(20))
        found = b.unit(ref_of(poisoned))
        assert found.status is S.ERROR
        assert found.create_failures == 3
        assert "gate.breaker" not in kinds(b), "the others pass"
        others = b.rows("SELECT DISTINCT status FROM report_dataset_metadata WHERE period <> :p", p=poisoned.period)
        assert others == [("fetching",)]

    patient = ReportSettings(accounts=ACME, cancel_after=days(3), give_up_after=days(4))
    on_bench(ledger_url, tmp_path, test, *DATASETS, settings=patient)


def test_what_the_provider_says_of_a_report_counts_after_an_outage_as_before(ledger_url, tmp_path):
    async def test(b):
        down(b, Fault(503))
        await b.until(START + hours(3))
        b.simulator.fates.extend([Fate(ends="FAILED", reason="no")] * 3)
        up(b)
        await b.until(START + days(1))
        assert b.unit().status is S.ERROR
        assert b.unit().provider_failures == 3

    on_bench(ledger_url, tmp_path, test)


def test_why_says_that_nobody_answers_and_nothing_is_charged(ledger_url, tmp_path):
    async def test(b):
        down(b, Fault(503))
        await b.until(START + hours(1))
        found = explain(b.ledger, b.flow, ref_of(DATASETS[0]))
        says = {link.topic: link.says for link in found.links}
        assert "the provider does not answer, " in says["gate"]
        assert "failures in a row since 2026-11-02T12:00:00.000Z" in says["gate"]
        assert "the breaker is open, and waiting units are not charged" in says["gate"]
        assert found.next_at is not None

    on_bench(ledger_url, tmp_path, test, *DATASETS)

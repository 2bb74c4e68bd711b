"""`penstock schedules`: the periodic jobs as people see and rest them."""

from __future__ import annotations

import functools
import json

import pytest

from penstock.ledger.ledger import Ledger
from penstock.worker.schedule import Schedule, keep_schedules, machine


@pytest.fixture
def ticking(ledger_url):
    """Address of a ledger with two schedules."""
    with Ledger.open(ledger_url, [machine], create=True) as ledger:
        wanted = [Schedule(name="nightly", job="prune", at=["03:00"]), Schedule(name="often", job="x", every="5m")]
        keep_schedules(ledger, wanted, "test")
    return ledger_url


@pytest.fixture
def schedules(penstock, tmp_path):
    return functools.partial(penstock, "schedules", cwd=tmp_path)


def listed(schedules, url):
    return {s["name"]: s for s in json.loads(schedules("list", "--ledger", url, "--json").out)}


def test_schedules_are_listed(ticking, schedules):
    found = listed(schedules, ticking)
    assert {n: (s["status"], s["job"]) for n, s in found.items()} == {
        "nightly": ("active", "prune"),
        "often": ("active", "x"),
    }
    text = schedules("list", "--ledger", ticking).out
    assert "every 5m" in text
    assert "03:00" in text


def test_a_schedule_rests_and_goes_on(ticking, schedules):
    assert schedules("pause", "often", "--reason", "too often", "--by", "jo", "--ledger", ticking).code == 0
    paused = listed(schedules, ticking)["often"]
    assert (paused["status"], paused["due_at"], paused["changed_by"]) == ("paused", None, "operator:jo")
    assert schedules("run", "often", "--ledger", ticking).code == 2
    assert schedules("resume", "often", "--ledger", ticking).code == 0
    resumed = listed(schedules, ticking)["often"]
    assert (resumed["status"], resumed["due_at"] is not None) == ("active", True)


def test_a_schedule_ticks_when_asked(ticking, schedules):
    before = listed(schedules, ticking)["nightly"]["due_at"]
    assert schedules("run", "nightly", "--ledger", ticking).code == 0
    assert listed(schedules, ticking)["nightly"]["due_at"] < before


def test_an_unknown_schedule_is_refused(ticking, schedules):
    answer = schedules("pause", "monthly", "--reason", "x", "--ledger", ticking)
    assert (answer.code, answer.err) == (2, "penstock: no unit schedule:monthly in the ledger\n")

"""`penstock schedules`: the periodic jobs as people see, stop and run them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.model.errors import UsageError
from penstock.worker.schedule import keep_schedules
from penstock.worker.schedule_unit import Schedule
from tests.operations.conftest import NOW


@pytest.fixture
def ticking(desk):
    wanted = [Schedule(name="nightly", job="prune", at=["03:00"]), Schedule(name="often", job="x", every="5m")]
    keep_schedules(desk.ledger, wanted, "test")
    return desk


def listed(desk):
    return {row.name: row for row in desk.read("schedules list").rows}


def test_schedules_are_listed(ticking):
    found = listed(ticking)
    assert {name: (row.status, row.job, row.cadence) for name, row in found.items()} == {
        "nightly": ("active", "prune", "at 03:00 UTC"),
        "often": ("active", "x", "every 5m UTC"),
    }
    assert found["nightly"].next_run == datetime(2026, 11, 16, 3, tzinfo=UTC)
    assert found["nightly"].last_run is None


def test_a_schedule_rests_and_goes_on(ticking):
    assert ticking.do("schedules pause", name="often").count == 1
    paused = listed(ticking)["often"]
    assert (paused.status, paused.next_run, paused.changed_by, paused.reason) == (
        "paused",
        None,
        "operator:jo",
        "because",
    )
    with pytest.raises(UsageError, match="is paused; resume it first"):
        ticking.plan("schedules run", name="often")
    with pytest.raises(UsageError, match="is paused; only an active one"):
        ticking.plan("schedules pause", name="often")
    assert ticking.do("schedules resume", name="often", reason="").count == 1
    resumed = listed(ticking)["often"]
    assert (resumed.status, resumed.next_run) == ("active", datetime(2026, 11, 15, 12, 5, tzinfo=UTC))
    with pytest.raises(UsageError, match="is active, not paused"):
        ticking.plan("schedules resume", name="often")


def test_a_schedule_runs_when_asked(ticking):
    assert ticking.do("schedules run", name="nightly").count == 1
    assert listed(ticking)["nightly"].next_run == NOW


@pytest.mark.parametrize("operation", ["schedules pause", "schedules resume", "schedules run"])
def test_an_unknown_schedule_is_refused(ticking, operation):
    with pytest.raises(UsageError, match="no schedule is called 'monthly'; the ledger has nightly, often"):
        ticking.plan(operation, name="monthly")

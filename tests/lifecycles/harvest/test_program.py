"""What a configuration makes of harvests: feeds, schedules, limits, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from penstock.app.app import App
from penstock.app.program import Program
from penstock.app.running import configured as configured_program
from penstock.lifecycles.harvest import lifecycle
from penstock.lifecycles.harvest.run.machine import RunType
from penstock.lifecycles.harvest.run.scan import Split
from penstock.lifecycles.harvest.settings import HarvestSettings
from penstock.model.limits import Limit, limits_of
from penstock.settings.typed import ConfigError

LOGIN = {"username": "buyer@example.com", "password": {"env": "NIVODA_PASSWORD"}}


def configured(more: dict[str, Any] | None = None, **feed: Any) -> Program:
    section = {"feeds": {"diamonds": {**LOGIN, **feed}}}
    return configured_program(App(lifecycle), {"harvest": section} | (more or {}))


def settings(program: Program) -> HarvestSettings:
    found: HarvestSettings = program.settings(lifecycle)
    return found


def test_the_defaults_are_the_issue_s():
    found = settings(configured())
    assert found.split(RunType.FULL) == Split(5_000, 1_000, 30)
    assert found.split(RunType.INCREMENTAL) == Split(5_000, 1_000, 10)
    assert (found.overlap, found.full_every) == (timedelta(minutes=10), timedelta(days=7))
    assert (found.page_size, found.tolerance, found.feeds["diamonds"].paused) == (30, 0.005, False)


def test_every_feed_has_a_schedule_for_its_runs_and_one_for_its_prices():
    pruning, at_two, prices = lifecycle.schedules(settings(configured()))
    assert (prices.name, prices.job, prices.every, prices.settings) == (
        *("reprice-diamonds", "reprice", "1m"),
        {"feed": "diamonds"},
    )
    assert (pruning.name, pruning.every) == ("prune-raw-records", "1h")
    assert (at_two.name, at_two.job, at_two.at, at_two.settings) == (
        *("harvest-diamonds", "harvest", ["02:00"]),
        {"feed": "diamonds"},
    )
    _, hourly, _ = lifecycle.schedules(settings(configured(every="1h")))
    assert (hourly.every, hourly.at) == ("1h", None)
    with pytest.raises(ConfigError, match=r"harvest\.feeds\.diamonds: has both 'every' and 'at'"):
        configured(every="1h", at=["02:00"])


def test_the_jobs_are_those_that_schedules_name():
    program = configured()
    assert {s.job for s in lifecycle.schedules(settings(program))} == {job.name for job in lifecycle.jobs}
    assert {s.job for s in program.schedules()} <= {*program.jobs()}


def limit_of(program: Program) -> Limit:
    """The one limit of the feed's gate."""
    found = limits_of("nivoda/diamonds", program.limits())
    assert found is not None
    (limit,) = found.limits
    return limit


def test_a_feed_is_asked_at_most_25_times_a_second_unless_it_is_said_otherwise():
    limit = limit_of(configured())
    assert (limit.rate, limit.burst) == (25.0, 25.0)
    assert limits_of("nivoda/diamonds", configured(requests_per_second=0).limits()) is None
    own = {"gates": {"nivoda": {"limits": [{"name": "requests", "rate": 5.0, "burst": 5}]}}}
    assert limit_of(configured(own)).rate == 5.0


def test_the_flows_of_a_configuration_drive_every_machine():
    driven = {m.name for m in lifecycle.machines if m.driven}
    assert {flow.machine.name for flow in configured().flows()} >= driven


def test_what_cannot_be_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match=r"harvest\.feeds\.diamonds\.url = .* must be the address of an API"):
        configured(url="ftp://example.com")
    with pytest.raises(ConfigError, match="updated_field must be a field of an item"):
        configured(updated_field="diamond.id")
    with pytest.raises(ConfigError, match=r"harvest\.feeds\.diamonds\.password is missing"):
        configured_program(App(lifecycle), {"harvest": {"feeds": {"diamonds": {"username": "buyer"}}}})


def test_the_declaration_is_light():
    """Help reads it: no database driver, no client, no event loop."""
    heavy = ("sqlalchemy", "psycopg", "pysqlite3", "obstore", "asyncio", "rich", "structlog")
    code = f"import sys, penstock.lifecycles.harvest; print([m for m in {heavy} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"

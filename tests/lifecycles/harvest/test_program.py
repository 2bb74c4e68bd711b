"""What a configuration makes of the program: feeds, schedules, limits, and what it refuses."""

from __future__ import annotations

import pytest
from penstock.lifecycles.harvest.program import app
from penstock.lifecycles.harvest.runs import Rules

from penstock.app.app import load_app
from penstock.lifecycles.harvest.settings import SETTINGS, read_rules, read_settings
from penstock.model.errors import UsageError
from penstock.model.limits import Limit, limits_of
from penstock.settings.config import SETTINGS as KERNEL
from penstock.settings.config import validate

PASSWORD = {"password": {"env": "NIVODA_PASSWORD"}}


def configured(**feed):
    spec = {"username": "buyer@example.com", **PASSWORD, **feed}
    return validate({"feeds": {"diamonds": spec}}, None, (*KERNEL, *SETTINGS), jobs=app.all_jobs())


def test_the_defaults_are_the_issue_s():
    config = configured()
    assert read_rules(config) == Rules()
    found = read_settings(config)
    assert (found.page_size, found.tolerance, found.feeds) == (30, 0.005, {"diamonds": False})


def test_every_feed_has_a_schedule_for_its_runs_and_one_for_its_prices():
    pruning, at_two, prices = app.usual_schedules(configured())
    assert (prices.name, prices.job, prices.every, prices.settings) == (
        *("reprice-diamonds", "reprice", "1m"),
        {"feed": "diamonds"},
    )
    assert (pruning.name, pruning.every) == ("prune-raw-records", "1h")
    assert (at_two.name, at_two.job, at_two.at, at_two.settings) == (
        *("harvest-diamonds", "harvest", ["02:00"]),
        {"feed": "diamonds"},
    )
    _, hourly, _ = app.usual_schedules(configured(every="1h"))
    assert (hourly.every, hourly.at) == ("1h", None)
    with pytest.raises(UsageError, match="both 'every' and 'at'"):
        app.usual_schedules(configured(every="1h", at=["02:00"]))


def limit_of(config) -> Limit:
    """The one limit of the feed's gate."""
    found = limits_of("nivoda/diamonds", app.providers(config))
    assert found is not None
    (limit,) = found.limits
    return limit


def test_a_feed_is_asked_at_most_25_times_a_second_unless_it_is_said_otherwise():
    limit = limit_of(configured())
    assert (limit.rate, limit.burst) == (25.0, 25.0)
    assert limits_of("nivoda/diamonds", app.providers(configured(requests_per_second=0))) is None
    own = {"limits": [{"name": "requests", "rate": 5.0, "burst": 5}]}
    raw = {"feeds": {"diamonds": {"username": "buyer", **PASSWORD}}, "providers": {"nivoda": own}}
    config = validate(raw, None, (*KERNEL, *SETTINGS))
    assert limit_of(config).rate == 5.0


def test_the_flows_of_a_configuration_drive_every_machine():
    loaded = load_app("penstock.lifecycles.harvest:app")
    driven = {m.name for m in loaded.machines if m.driven}
    assert {flow.machine.name for flow in loaded.make_flows(configured())} == driven


def test_an_address_that_is_none_is_refused_before_anything_runs():
    with pytest.raises(UsageError, match="not an address of Nivoda's API"):
        app.make_flows(configured(url="ftp://example.com"))

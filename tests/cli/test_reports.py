"""`penstock reports`, in real processes, over a ledger with a configuration."""

from __future__ import annotations

import functools
import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from penstock.app.app import App
from penstock.ledger.births import birth_products
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.reports import lifecycle
from penstock.lifecycles.reports.machine import S
from penstock.lifecycles.reports.tables import report_load
from penstock.model.clock import SystemClock
from penstock.model.machine import Actor
from penstock.model.outcome import Write
from penstock.model.unit import replace
from penstock.simulators.amazon_ads import AmazonAdsSimulator
from tests.support.reports import dataset, ref_of
from tests.support.reports_worker import write_config

MACHINES = App(lifecycle).machines
YESTERDAY = SystemClock().now().date() - timedelta(days=1)


@pytest.fixture
def console(penstock, tmp_path, ledger_url):
    """Call a command on the ledger, in the test's folder."""
    return functools.partial(penstock, cwd=tmp_path, env={"PENSTOCK_LEDGER": ledger_url})


@pytest.fixture
def place(tmp_path, console):
    """A folder with a configuration, and its ledger made."""
    simulator = AmazonAdsSimulator(SystemClock())
    write_config(tmp_path, "http://127.0.0.1:1", simulator, "sqlite:///penstock.db", {"acme": "1001", "globex": "1002"})
    made = console("db", "upgrade")
    assert made.code == 0, made.err
    return tmp_path


def born(ledger_url, *units, loads=()):
    with Ledger.open(ledger_url, MACHINES) as ledger:
        ledger.birth(units, actor=Actor.SCHEDULER, who="test")
        birth_products(ledger, [], actor=Actor.SCHEDULER, who="test", writes=[Write(report_load, list(loads))])


def failing(ledger_url, unit, **more):
    with Ledger.open(ledger_url, MACHINES) as ledger:
        ledger.move(ref_of(unit), S.ERROR, actor=Actor.WORKER, who="test", reason="no", **FAILED, **more)


def unit(ledger_url, ref):
    with Ledger.open(ledger_url, MACHINES) as ledger:
        return ledger.get(ref)


def asked(console, *arguments):
    answer = console("reports", *arguments, "--json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def test_datasets_are_listed_counted_and_shown(console, place, ledger_url):
    mine = dataset(day=YESTERDAY)
    born(ledger_url, mine, dataset(day=YESTERDAY - timedelta(days=1)))
    found = asked(console, "datasets", "--account", "acme", "--from", YESTERDAY)
    assert found["counts"] == {"missing": 1}
    (row,) = found["rows"]
    assert (row["unit_id"], row["status"], row["refreshing"]) == (ref_of(mine).unit_id, "missing", False)
    none = asked(console, "datasets", "--status", "error")
    assert (none["counts"], none["rows"]) == ({}, [])
    shown = asked(console, "show", ref_of(mine))
    assert (shown["unit_id"], shown["loads"]) == (ref_of(mine).unit_id, [])
    plain = console("reports", "datasets")
    assert plain.code == 0
    assert "missing 2" in plain.err
    assert f"{ref_of(mine).unit_id} " in plain.out
    assert console("reports", "show", ref_of(mine).unit_id).code == 0


DAYS = ["--from", str(YESTERDAY), "--to", str(YESTERDAY)]
WHY = ["--reason", "a test"]
# What the command line reads, and of each command one refusal of its own; the others are with the operations.
WRONG = [
    (["datasets", "--status", "done"], "--status must be one of missing, fetching, parsing, completed, error"),
    (["datasets", "--from", "yesterday"], "--from must be a date, for example 2026-11-01"),
    (["datasets", "--from", ""], "--from must be a date"),
    (["datasets", "--account", "nobody"], "no account is called 'nobody'; the ledger has none"),
    (["datasets", "--aggregation", ""], "--aggregation must be one of daily, hourly"),
    (["datasets", "--limit", "0"], "--limit must be a whole number from 1 to 100,000"),
    (["show", "acme/never/daily/target"], "no dataset 'acme/never/daily/target'"),
    (["cadence", "--aggregation", "weekly"], "--aggregation must be one of daily, hourly"),
    (["refresh", *WHY], "this would be every dataset; name some"),
    (["refresh", "--account", "acme", "--reason", " "], "--reason is empty"),
    (["refresh", "--account", "acme"], "needs --reason"),
    (["reset", *WHY], "this would be every dataset in error; name some"),
    (["reset", "--account", "acme", "--reason", ""], "--reason is empty"),
    (["backfill", "--from", "", "--to", "", *WHY], "--from must be a date"),
    (["backfill", *DAYS, "--reason", ""], "--reason is empty"),
    (["backfill", *DAYS, "--per-hour", "-5", *WHY], "--per-hour must be a whole number from 1 to 3,600"),
    (["backfill", *DAYS, "--account", "nobody", *WHY], "no account is called 'nobody'"),
    (["backfill", *DAYS, "--aggregation", "weekly", *WHY], "--aggregation must be one of daily, hourly"),
]


def test_what_cannot_be_done_is_one_line_and_code_two(console, place):
    for arguments, said in WRONG:
        answer = console("reports", *arguments)
        assert (answer.code, answer.out) == (2, ""), (arguments, answer.err)
        assert said in answer.err, arguments
        assert len(answer.err.splitlines()) == 1, arguments


def test_reports_that_are_off_or_not_in_the_ledger_are_refused(console, place, ledger_url):
    config = place / "penstock.toml"
    text = config.read_text()
    elsewhere = console("reports", "datasets", "--ledger", f"sqlite:///{place / 'other.db'}")
    assert elsewhere.code == 2
    assert "other.db does not exist; 'penstock db upgrade' makes it" in elsewhere.err
    config.write_text(text.replace("[reports]", "[reports]\nenabled = false", 1))
    off = console("reports", "datasets")
    assert (off.code, off.out) == (2, "")
    assert "reports" in off.err


FAILED = {"error": "no", "create_failures": 3, "serving_offset": 86_400, "due_at": None}
LOADED = {"loaded_stage": "s1", "loaded_report_id": "r1", "last_processed_report_id": "r1", "loaded_rows": 7}


def test_refresh_asks_for_a_report_now_and_says_what_it_leaves(console, place, ledger_url):
    resting = dataset(day=YESTERDAY)
    stranger = replace(resting, account="nobody")
    born(ledger_url, resting, stranger)
    failing(ledger_url, resting)
    would = asked(console, "refresh", "--from", YESTERDAY, "--dry-run")
    assert (would["count"], would["sample"]) == (1, [str(ref_of(resting))])
    assert would["skipped_sample"] == {str(ref_of(stranger)): "account 'nobody' is not configured"}
    assert unit(ledger_url, ref_of(resting)).create_failures == 3
    unasked = console("reports", "refresh", "--from", YESTERDAY, *WHY)
    assert unasked.code == 2
    assert "this would fetch 1 dataset again; there is no terminal to ask on; give --yes" in unasked.err
    done = asked(console, "refresh", ref_of(resting), "no/such/daily/target", *WHY, "--yes")
    assert done["count"] == 1
    assert done["skipped_sample"] == {"report:no/such/daily/target": "no such dataset"}
    after = unit(ledger_url, ref_of(resting))
    assert (after.status, after.create_failures) == (S.ERROR, 0)
    assert after.due_at is not None
    assert after.serving_offset is not None
    assert after.changed_by.startswith("operator:")


def test_reset_puts_what_is_in_error_back_to_the_day_it_was_made(console, place, ledger_url):
    one, other, healthy = (dataset(day=YESTERDAY - timedelta(days=n)) for n in range(3))
    born(ledger_url, one, other, healthy)
    failing(ledger_url, one)
    failing(ledger_url, other, **LOADED)
    would = asked(console, "reset", "--account", "acme", "--dry-run")
    assert (would["says"], would["count"], would["skipped"]) == ("reset 2 datasets", 2, {})
    assert would["warnings"] == ["the loaded rows of 1 dataset are hidden until the next load"]
    assert unit(ledger_url, ref_of(one)).status is S.ERROR
    unasked = console("reports", "reset", "--account", "acme", *WHY)
    assert unasked.code == 2
    assert "this would reset 2 datasets; there is no terminal to ask on; give --yes" in unasked.err
    done = asked(console, "reset", ref_of(one), ref_of(healthy), "--reason", "a new beginning", "--yes")
    assert done["count"] == 1
    assert done["skipped_sample"] == {str(ref_of(healthy)): "it is missing; only datasets in error are reset"}
    assert asked(console, "reset", ref_of(other), *WHY, "--yes")["count"] == 1
    for after in (unit(ledger_url, ref_of(u)) for u in (one, other)):
        assert (after.status, after.error, after.create_failures, after.serving_offset) == (S.MISSING, None, 0, None)
        assert (after.loaded_stage, after.loaded_rows, after.last_processed_report_id) == (None, None, None)
        assert after.due_at is not None
        assert after.changed_by.startswith("operator:")
    assert unit(ledger_url, ref_of(one)).change_reason == "a new beginning"
    assert console("doctor").code == 0


def test_a_backfill_is_spread_and_marked(console, place, ledger_url):
    options = ["--from", YESTERDAY - timedelta(days=80), "--to", YESTERDAY - timedelta(days=71), "--per-hour", "10"]
    would = asked(console, "backfill", *options, "--dry-run")
    assert would["count"] == 2 * 2 * 10
    unasked = console("reports", "backfill", *options, *WHY)
    assert (unasked.code, unasked.out) == (2, "")
    assert "this would make 40 datasets of 2 accounts, unless they exist; there is no terminal to ask on" in unasked.err
    assert asked(console, "backfill", *options, *WHY, "--yes")["count"] == 40
    again = console("reports", "backfill", *options, *WHY, "--yes", "--json")
    assert (again.code, json.loads(again.out)["count"]) == (1, 0)
    with Ledger.open(ledger_url, MACHINES) as ledger:
        rows = ledger.read(
            lambda c: c.rows(
                "SELECT account, count(DISTINCT next_refresh_at), count(*) FROM report_dataset_metadata"
                " WHERE backfill GROUP BY account ORDER BY account"
            )
        )
    assert [tuple(row) for row in rows] == [("acme", 20, 20), ("globex", 20, 20)]


def load(report, offset, **more):
    made = {
        "unit_id": report,
        "report_id": f"r{offset}",
        "aggregation": "daily",
        "entity_type": "target",
        "serving_offset": offset * 86_400,
        "loaded_at": datetime(2026, 11, 1, tzinfo=UTC),
        "row_count": 10,
        "digest": "d",
        "impressions": 1,
        "clicks": 1,
        "cost": 110.0,
        "sales": 50.0,
        "changed": None,
        "rows_difference": None,
        "cost_difference": None,
        "sales_difference": None,
    }
    return made | more


def test_cadence_says_per_offset_how_often_and_by_how_much(console, place, ledger_url):
    changed = {"changed": True, "rows_difference": 0, "cost_difference": 10.0, "sales_difference": 0.0}
    same = {"changed": False, "rows_difference": 0, "cost_difference": 0.0, "sales_difference": 0.0}
    loads = [
        *(load(u, 1) for u in "ab"),
        load("a", 3, **changed),
        load("b", 3, **same),
        *(load(u, 5, **same) for u in "ab"),
    ]
    born(ledger_url, loads=loads)
    found = asked(console, "cadence")["rows"]
    assert [(c["offset"], c["loads"], c["changed_percent"], c["cost_percent"]) for c in found] == [
        ("T+1d", 2, None, None),
        ("T+3d", 2, 50.0, 5.0),
        ("T+5d", 2, 0.0, 0.0),
    ]
    plain = console("reports", "cadence")
    assert "T+3d" in plain.out
    assert "changed %" in plain.out


def test_what_becomes_of_accounts_is_said_before_it_happens(console, place, ledger_url):
    born(ledger_url, dataset(day=YESTERDAY))
    states = {s["account"]: s["state"] for s in asked(console, "accounts")["rows"]}
    assert states == {"acme": "active", "globex": "new"}
    coming = place / "coming.toml"
    coming.write_text((place / "penstock.toml").read_text().split("[reports.accounts.acme]")[0])
    found = asked(console, "accounts", "--config", coming)["rows"]
    assert [(s["account"], s["state"], s["datasets"]) for s in found] == [("acme", "gone", 1)]
    assert "stay readable" in found[0]["says"]


def test_why_speaks_the_decisions_own_words(console, place, ledger_url):
    born(ledger_url, dataset(day=YESTERDAY - timedelta(days=1)))
    answer = console("why", ref_of(dataset(day=YESTERDAY - timedelta(days=1))))
    assert answer.code == 0, answer.err
    # Late in the evening it is already three days ago in Madrid.
    assert re.search(r"T\+[13]d is due and unserved", answer.out)
    assert "update-report-status" in answer.out


def test_the_doctor_and_the_accounts_say_that_hourly_has_no_source(console, place):
    answer = console("doctor", "--json")
    assert answer.code == 0, answer.err
    (finding,) = json.loads(answer.out)["findings"]
    assert (finding["check"], finding["severity"]) == ("configuration", "warning")
    assert finding["message"].startswith("hourly is off for acme, globex: reports.stream is not set")
    assert "all is well" not in console("doctor").out
    for standing in asked(console, "accounts")["rows"]:
        assert "hourly is off: reports.stream is not set" in standing["says"]
    config = place / "penstock.toml"
    config.write_text(config.read_text().replace("[reports]", "[reports]\nhourly_offsets = []"))
    assert "all is well" in console("doctor").out

"""`penstock reports`, in real processes, over a ledger with a configuration."""

from __future__ import annotations

import functools
import json
from datetime import UTC, datetime, timedelta

import pytest
from penstock.lifecycles.reports.program import app

from penstock.ledger.births import birth_products
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.reports.machine import S
from penstock.lifecycles.reports.tables import report_load
from penstock.model.clock import SystemClock
from penstock.model.machine import Actor
from penstock.model.outcome import Write
from penstock.model.unit import replace
from penstock.simulators.amazon_ads import AmazonAdsSimulator
from tests.support.reports import dataset, ref_of
from tests.support.reports_worker import write_config

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
    with Ledger.open(ledger_url, app.machines) as ledger:
        ledger.birth(units, actor=Actor.SCHEDULER, who="test")
        birth_products(ledger, [], actor=Actor.SCHEDULER, who="test", writes=[Write(report_load, list(loads))])


def unit(ledger_url, ref):
    with Ledger.open(ledger_url, app.machines) as ledger:
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
    (row,) = found["datasets"]
    assert (row["unit_id"], row["status"], row["refreshing"]) == (ref_of(mine).unit_id, "missing", False)
    assert asked(console, "datasets", "--status", "error") == {"counts": {}, "datasets": []}
    shown = asked(console, "show", ref_of(mine))
    assert (shown["unit_id"], shown["loads"]) == (ref_of(mine).unit_id, [])
    plain = console("reports", "datasets")
    assert plain.code == 0
    assert "missing 2" in plain.out
    assert console("reports", "show", ref_of(mine).unit_id).code == 0


WRONG = [
    (["datasets", "--status", "done"], "--status 'done' is not known; it is one of missing, fetching"),
    (["datasets", "--from", "yesterday"], "--from 'yesterday' is not a date"),
    (["show", "acme/never/daily/target"], "no dataset 'acme/never/daily/target'"),
    (["datasets", "--from", ""], "--from '' is not a date"),
    (["datasets", "--from", "2026-11-05", "--to", "2026-11-01"], "ends before it starts"),
    (["datasets", "--account", "nobody"], "no account is called 'nobody'; the ledger has none"),
    (["datasets", "--account", ""], "no account is called ''"),
    (["datasets", "--aggregation", ""], "--aggregation '' is not known"),
    (["show", ""], "no dataset ''"),
    (["cadence", "--aggregation", "weekly"], "it is one of daily, hourly"),
    (["refresh"], "name datasets, or narrow them down"),
    (["refresh", ""], "no dataset ''"),
    (["refresh", "acme/never/daily/target"], "no dataset 'acme/never/daily/target'"),
    (["refresh", "--account", "nobody"], "no account is called 'nobody'"),
    (["refresh", "--account", "acme", "--reason", " "], "--reason is empty"),
    (["refresh", "--from", "2026-11-05", "--to", "2026-11-01"], "ends before it starts"),
    (["reset"], "name datasets, or narrow them down"),
    (["reset", "acme/never/daily/target"], "no dataset 'acme/never/daily/target'"),
    (["reset", "--account", "nobody"], "no account is called 'nobody'"),
    (["reset", "--account", "acme", "--reason", ""], "--reason is empty"),
    (
        ["backfill", "--from", str(YESTERDAY), "--to", str(YESTERDAY), "--aggregation", "hourly"],
        "hourly is off for acme, globex: reports.stream is not set",
    ),
    (["backfill", "--from", "0001-01-01", "--to", "9999-12-31"], "is not over yet"),
    (["backfill", "--from", "", "--to", ""], "--from '' is not a date"),
    (["backfill", "--from", str(YESTERDAY), "--to", str(YESTERDAY), "--reason", ""], "--reason is empty"),
    (["backfill", "--from", str(YESTERDAY), "--to", str(YESTERDAY), "--per-hour", "-5"], "--per-hour"),
    (["datasets", "--limit", "0"], "--limit"),
    (["backfill", "--from", "2020-01-01", "--to", "2020-01-02"], "the provider keeps 95 days"),
    (["backfill", "--from", "2999-01-01", "--to", "2999-01-02"], "is not over yet"),
    (["backfill", "--from", str(YESTERDAY), "--to", "2026-01-01"], "ends before it starts"),
    (["backfill", "--from", str(YESTERDAY), "--to", str(YESTERDAY), "--account", "nobody"], "no account is called"),
    (
        ["backfill", "--from", str(YESTERDAY), "--to", str(YESTERDAY), "--aggregation", "weekly"],
        "it is one of daily",
    ),
]


def test_what_cannot_be_done_is_one_line_and_code_two(console, place):
    for arguments, said in WRONG:
        answer = console("reports", *arguments)
        assert answer.code == 2, (arguments, answer.out)
        assert said in answer.err, arguments
        lines = [line for line in answer.err.splitlines() if not line.startswith(("Usage", "Try", " "))]
        assert len(list(filter(None, lines))) == 1, arguments


def test_a_ledger_without_reports_is_refused(console):
    assert console("db", "upgrade").code == 0
    answer = console("reports", "datasets")
    assert answer.code == 2
    assert "keeps no reports" in answer.err


def test_refresh_asks_for_a_report_now_and_says_what_it_leaves(console, place, ledger_url):
    resting = dataset(day=YESTERDAY)
    stranger = replace(resting, account="nobody")
    born(ledger_url, resting, stranger)
    with Ledger.open(ledger_url, app.machines) as ledger:
        given_up = {"error": "no", "create_failures": 3, "serving_offset": 86_400, "due_at": None}
        ledger.move(ref_of(resting), S.ERROR, actor=Actor.WORKER, who="test", reason="no", **given_up)
    would = asked(console, "refresh", "--from", YESTERDAY, "--dry-run")
    assert would["refreshed"] == [ref_of(resting).unit_id]
    assert would["skipped"] == {ref_of(stranger).unit_id: "account 'nobody' is not configured"}
    assert unit(ledger_url, ref_of(resting)).create_failures == 3
    unasked = console("reports", "refresh", "--from", YESTERDAY)
    assert unasked.code == 2
    assert "this would refresh 1 of 2 datasets; say --yes" in unasked.err
    done = asked(console, "refresh", ref_of(resting), "no/such/daily/target")
    assert done["refreshed"] == [ref_of(resting).unit_id]
    assert done["skipped"] == {"no/such/daily/target": "no such dataset"}
    after = unit(ledger_url, ref_of(resting))
    assert (after.status, after.create_failures) == (S.ERROR, 0)
    assert after.due_at is not None
    assert after.serving_offset is not None
    assert after.changed_by.startswith("operator:")


FAILED = {"error": "no", "create_failures": 3, "serving_offset": 86_400, "due_at": None}
LOADED = {"loaded_stage": "s1", "loaded_report_id": "r1", "last_processed_report_id": "r1", "loaded_rows": 7}


def test_reset_puts_what_is_in_error_back_to_the_day_it_was_made(console, place, ledger_url):
    one, other, healthy = (dataset(day=YESTERDAY - timedelta(days=n)) for n in range(3))
    born(ledger_url, one, other, healthy)
    with Ledger.open(ledger_url, app.machines) as ledger:
        for failing, more in ((one, {}), (other, LOADED)):
            ledger.move(ref_of(failing), S.ERROR, actor=Actor.WORKER, who="test", reason="no", **FAILED, **more)
    would = asked(console, "reset", "--account", "acme", "--dry-run")
    assert would == {
        "meant": 2,
        "reset": sorted(ref_of(u).unit_id for u in (one, other)),
        "loaded": 1,
        "skipped": {},
        "dry_run": True,
    }
    assert unit(ledger_url, ref_of(one)).status is S.ERROR
    unasked = console("reports", "reset", "--account", "acme")
    assert unasked.code == 2
    assert "this would reset 2 of 2 datasets, 1 of them with rows that are then shown no more; say" in unasked.err
    done = asked(console, "reset", ref_of(one), ref_of(healthy), "--reason", "a new beginning")
    assert done["reset"] == [ref_of(one).unit_id]
    assert done["skipped"] == {ref_of(healthy).unit_id: "it is missing; only datasets in error are reset"}
    named = console("reports", "reset", ref_of(other))
    assert (named.code, "say --yes" in named.err) == (2, True)  # its rows would go
    assert asked(console, "reset", ref_of(other), "--yes")["reset"] == [ref_of(other).unit_id]
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
    assert (would["asked"], would["born"]) == (2 * 2 * 10, 0)
    unasked = console("reports", "backfill", *options)
    assert (unasked.code, unasked.out) == (2, "")
    assert "this would make 40 datasets of 2 accounts; say --yes" in unasked.err
    done = asked(console, "backfill", *options, "--yes")
    assert done["born"] == 40
    assert asked(console, "backfill", *options, "--yes")["born"] == 0
    with Ledger.open(ledger_url, app.machines) as ledger:
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
    found = asked(console, "cadence")
    assert [(c["offset"], c["loads"], c["changed_percent"], c["cost_percent"]) for c in found] == [
        ("T+1d", 2, None, None),
        ("T+3d", 2, 50.0, 5.0),
        ("T+5d", 2, 0.0, 0.0),
    ]
    plain = console("reports", "cadence")
    assert "T+3d" in plain.out
    assert "50.0 %" in plain.out


def test_what_becomes_of_accounts_is_said_before_it_happens(console, place, ledger_url):
    born(ledger_url, dataset(day=YESTERDAY))
    states = {s["account"]: s["state"] for s in asked(console, "accounts")}
    assert states == {"acme": "active", "globex": "new"}
    coming = place / "coming.toml"
    coming.write_text((place / "penstock.toml").read_text().split("[accounts.acme]")[0])
    found = asked(console, "accounts", "--config", coming)
    assert [(s["account"], s["state"], s["datasets"]) for s in found] == [("acme", "gone", 1)]
    assert "stay readable" in found[0]["says"]


def test_why_speaks_the_decisions_own_words(console, place, ledger_url):
    born(ledger_url, dataset(day=YESTERDAY - timedelta(days=1)))
    answer = console("why", ref_of(dataset(day=YESTERDAY - timedelta(days=1))))
    assert answer.code == 0, answer.err
    assert "T+1d is due and unserved" in answer.out
    assert "update-report-status" in answer.out


def test_the_doctor_and_the_accounts_say_that_hourly_has_no_source(console, place):
    answer = console("doctor", "--json")
    assert answer.code == 0, answer.err
    (finding,) = json.loads(answer.out)["findings"]
    assert (finding["check"], finding["severity"]) == ("configuration", "warning")
    assert finding["message"].startswith("hourly is off for acme, globex: reports.stream is not set")
    assert "all is well" not in console("doctor").out
    for standing in asked(console, "accounts"):
        assert "hourly is off: reports.stream is not set" in standing["says"]
    config = place / "penstock.toml"
    config.write_text(config.read_text().replace("[reports]", "[reports]\nhourly_offsets = []"))
    assert "all is well" in console("doctor").out

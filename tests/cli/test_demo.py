"""`penstock demo`: it shows what it is for, on either database, and what it leaves behind can be asked."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tomllib
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.app.app import App
from penstock.app.discover import load
from penstock.examples import invoices
from penstock.examples.demonstration.part import Check
from penstock.examples.demonstration.play import MARK, OWN, Demonstration, NotShown, require
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.queries.settings import client_gate
from penstock.model.clock import instant
from penstock.model.machine import Actor
from tests.support import readings
from tests.support.console import Console
from tests.support.fleet import until
from tests.support.replay import Replay

PATIENCE = 600
DAILY = [f"T+{days}d" for days in (1, 3, 5, 7, 14, 30, 60)]
HOURLY = [f"T+{hours}h" for hours in (24, 72, 312)]


@dataclass
class Shown:
    """A demonstration that has run, and its folder."""

    folder: Path
    url: str
    out: str

    def ask(self, penstock: Console, *command: object) -> str:
        """A command as it is typed in the folder, without options."""
        answer = penstock(*command, cwd=self.folder)
        assert answer.code == 0, answer
        return answer.out

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with Ledger.open(self.url) as ledger:
            return ledger.read(lambda cursor: [tuple(row) for row in cursor.rows(sql)])


def start(*options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from penstock.cli.main import main; main()", "demo", *map(str, options)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **pipes)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("ledger_url", ["sqlite", pytest.param("postgres", marks=pytest.mark.nightly)], indirect=True)
def test_it_shows_what_it_is_for_and_leaves_what_can_be_asked(ledger_url, penstock, tmp_path):
    """One run for all that is asked of it: it takes its time."""
    sqlite = ledger_url.startswith("sqlite:")
    folder = tmp_path / "new"
    url = f"sqlite:///{folder / 'penstock.db'}" if sqlite else ledger_url
    shown = _shown(folder, url, *([] if sqlite else ["--ledger", ledger_url]))
    every_offset_is_served_and_told(shown)
    what_goes_wrong_is_told_and_ends_well(shown)
    a_rejected_partition_has_a_new_authoritative_run(shown)
    a_harvest_is_retried_and_its_alert_resolved(shown)
    prices_are_changed_compared_and_put_back(shown, penstock)
    queries_are_seeded_held_and_read_on(shown, penstock)
    what_is_left_can_be_asked_without_options(shown, penstock)
    what_it_proposes_works(shown, penstock)
    no_reading_loads_what_it_does_not_need(shown, penstock)
    the_configuration_is_the_folders_own(shown)
    the_next_one_would_keep_all_of_it(shown)
    the_next_day_is_foretold(shown, every=3 if sqlite else 1)


def _shown(folder: Path, url: str, *options: str) -> Shown:
    with start("--once", "--dir", folder, *options) as running:
        try:
            out, err = running.communicate(timeout=PATIENCE)
        finally:
            running.kill()
    assert running.returncode == 0, (out, err)
    assert err == ""
    return Shown(folder, url, out)


def every_offset_is_served_and_told(shown: Shown) -> None:
    loads = shown.rows("SELECT unit_id, serving_offset FROM report_load")
    assert {offset for _, offset in loads} == {
        seconds * count
        for seconds, counts in ((86_400, (1, 3, 5, 7, 14, 30, 60)), (3_600, (24, 72, 312)))
        for count in counts
    }
    assert len(set(loads)) == len(loads), "no offset of a dataset is served twice"
    for offset in DAILY + HOURLY:
        assert f"{offset} served for" in shown.out
    first = min(unit_id for unit_id, _ in loads if "/daily/" in unit_id)
    assert len([unit_id for unit_id, _ in loads if unit_id == first]) == len(DAILY), "one dataset through all of them"


def what_goes_wrong_is_told_and_ends_well(shown: Shown) -> None:
    for told in ("FAILED: INTERNAL_ERROR", "the link had expired", "Too Many Requests", "Retry in 39600 seconds"):
        assert told in shown.out
    assert "not seen" not in shown.out
    assert shown.rows("SELECT DISTINCT status FROM report_dataset_metadata") == [("completed",)]
    assert shown.rows("SELECT DISTINCT status FROM partition_state") == [("success",)]
    assert shown.rows("SELECT count(*) FROM report_dataset_metadata WHERE claimed_by IS NOT NULL") == [(0,)]


def a_rejected_partition_has_a_new_authoritative_run(shown: Shown) -> None:
    ((rejected, customer, day),) = shown.rows(
        "SELECT run_id, customer_id, logical_date FROM partition_attempt WHERE verdict = 'failed'"
    )
    ((current, status),) = shown.rows(
        "SELECT s.current_run_id, s.status FROM partition_state s JOIN partition_attempt a ON a.verdict = 'failed'"
        " AND a.customer_id = s.customer_id AND a.logical_date = s.logical_date"
    )
    assert (status, current > rejected) == ("success", True)
    key = f"google_ads/{customer}/campaign_daily/{day}"
    assert f"{key}: {rejected} was rejected, {current} is authoritative" in shown.out


def a_harvest_is_retried_and_its_alert_resolved(shown: Shown) -> None:
    for told in (
        'partition-0 is failed: Rejected: POST /api/diamonds: 400 {"message": "this range is being moved"}',
        "alert:harvest_failed/diamonds is firing",
        "is workers_running: Nivoda has moved the range",
        "alert:harvest_failed/diamonds is resolved",
    ):
        assert told in shown.out
    assert shown.rows("SELECT DISTINCT status FROM run_metadata") == [("completed",)]


def prices_are_changed_compared_and_put_back(shown: Shown, penstock: Console) -> None:
    for told in (
        "is approved, by bo",
        "refused: INVALID_INPUT",
        "conflict: the live price is 777.77 EUR",
        "has set some of them: 395 applied, 2 failed, of 397",
        "has set some of them: 396 applied, 1 failed, of 397",
        "a comparison finds another price of SKU-1000016",
        "is queued, by scheduler",
        "is being previewed, by bo: the new price is meant to stay",
        "is rolled back, by bo: rolled back by run",
    ):
        assert told in shown.out
    assert shown.rows("SELECT DISTINCT run_id IS NULL, status FROM rule_lane") == [(True, "FREE")]
    runs = shown.rows("SELECT rule_name, kind, status, failed_count FROM rule_run ORDER BY created_at, unit_id")
    assert runs == [
        ("autumn", "apply", "PARTIAL", 1),
        ("weekend", "apply", "ROLLED_BACK", 0),
        ("weekend", "rollback", "PARTIAL", 1),
        ("weekend", "rollback", "APPLIED", 0),
    ]
    put_back, set_, first = json.loads(shown.ask(penstock, "rules", "history", "SKU-1000020", "--json"))["rows"]
    assert [row["kind"] for row in (first, set_, put_back)] == ["apply", "apply", "rollback"]
    assert first["after"] == set_["before"] == put_back["after"]
    (kept, *_) = json.loads(shown.ask(penstock, "rules", "dead", "--json"))["rows"]
    assert (kept["cause"], kept["count"]) == ("conflict", 2)


def queries_are_seeded_held_and_read_on(shown: Shown, penstock: Console) -> None:
    gate = f"gate {client_gate('infojobs')}"
    for told in (
        "query python has read back to",
        "as far as is wanted",
        "record 148 is set aside: 'pay.min' is not a number",
        "is IDLE, rate_limited: GET /api/9/offer: 429 Too many requests",
        f"{gate} is open again, after a throttle",
        "query vacancies is ERROR, error: Rejected: GET /cursor",
        "query vacancies is SUCCESS again",
        f"{gate} is paused by operator:demo: our contract",
        f"{gate} is resumed by operator:demo",
        "query python has read what was listed meanwhile",
        "is closed: it is no longer listed",
        "is a repost of",
    ):
        assert told in shown.out
    assert shown.rows("SELECT name, status FROM query_state WHERE seeded_at IS NOT NULL ORDER BY name") == [
        ("accounting", "SUCCESS"),
        ("python", "SUCCESS"),
        ("vacancies", "SUCCESS"),
    ]
    assert shown.rows("SELECT count(*) FROM run_lock") == [(0,)]
    stops = "SELECT stopped_by, count(*) FROM ingestion_runs WHERE status <> 'SUCCESS' GROUP BY stopped_by ORDER BY 1"
    assert shown.rows(stops) == [("error", 1), ("rate_limited", 1)]
    assert shown.rows("SELECT count(*) FROM vacancies WHERE gone_at IS NULL") == [(171,)]
    (failed,) = json.loads(shown.ask(penstock, "queries", "runs", "--status", "ERROR", "--json"))["rows"]
    assert failed["query"] == "vacancies"


def what_is_left_can_be_asked_without_options(shown: Shown, penstock: Console) -> None:
    for command in ("status", "reports datasets", "reports cadence", "schedules list", "doctor", "machines"):
        assert shown.ask(penstock, *command.split())
    counted = json.loads(shown.ask(penstock, "status", "--json"))
    harvest = {f"harvest_{name}" for name in ("run", "partition", "worker", "chunk")}
    rules = {f"rule_{name}" for name in ("run", "target", "lane")}
    others = {"invoice", "report", "partition", "extraction", "schedule", "delivery", "bulk_action", "validation"}
    others |= {"query", "erasure", "alert"}
    assert {m["machine"] for m in counted["machines"]} == harvest | rules | others
    assert counted["workers"] == []
    assert json.loads(shown.ask(penstock, "doctor", "--json"))["findings"] == []


def what_it_proposes_works(shown: Shown, penstock: Console) -> None:
    proposed = [line.strip() for line in shown.out.partition("\nnext: ")[2].splitlines()[1:]]
    assert {line.split()[1] for line in proposed} == {
        *("status", "history", "reports", "partitions", "harvest", "rules", "queries", "doctor")
    }
    for line in proposed:
        assert shown.ask(penstock, *line.split()[1:])


def no_reading_loads_what_it_does_not_need(shown: Shown, penstock: Console) -> None:
    def ask(given: list[str]) -> Any:
        answer = penstock(*given, cwd=shown.folder)
        return json.loads(answer.out) if answer.code == 0 else None

    every = [
        given
        for given in readings.asked(ask, readings.units_of(ask))
        # What becomes of a delivery depends on who subscribes: that is known once all is built.
        if given[0] not in readings.LOADS_MORE and not any(word.startswith("delivery:") for word in given)
    ]
    driver = set() if shown.url.startswith("sqlite:") else {"asyncio", "email", "psycopg", "ssl"}
    # A lifecycle in one file subclasses Flow.
    may = driver | {"penstock.worker.flow"}
    nobody = [" ".join(given) for given in every if readings.NOTHING in given]
    assert nobody == ["bulk show nothing --json"]
    for given, code, loads in readings.loading(shown.folder, every):
        assert code == (2 if given in nobody else 0), given
        assert (given, set(loads) - may) == (given, set())


def the_configuration_is_the_folders_own(shown: Shown) -> None:
    written = tomllib.loads((shown.folder / "penstock.toml").read_text())
    assert written["lifecycles"] == list(OWN)
    assert written["ledger"]["url"] in (shown.url, "sqlite:///penstock.db")
    assert (shown.folder / "penstock.db").exists() == shown.url.startswith("sqlite:")


def the_next_one_would_keep_all_of_it(shown: Shown) -> None:
    left = {place.name for place in shown.folder.iterdir() if not place.name.startswith("penstock.db")}
    assert left == set(Demonstration(shown.folder, print).leaves)


def the_next_day_is_foretold(shown: Shown, every: int) -> None:
    """Of every so many days of its past, from the third on: docs/operations.md says how it is counted."""
    program = load(shown.folder / "penstock.toml", environment={})
    with Ledger.open(shown.url, program.app.machines) as ledger:
        ((born,),) = ledger.read(lambda cursor: cursor.rows("SELECT min(at) FROM transition_log"))
        first = instant(born).replace(hour=0, minute=30, second=0, microsecond=0)
        found = Replay(program, ledger).measure(first + timedelta(days=day) for day in range(2, 61, every))
    assert found.happened.total() > 1_000
    assert found.recall() >= 0.95, found
    assert found.precision() >= 0.9, found


def test_a_ledger_with_units_in_it_is_left_alone(ledger_url, penstock, tmp_path):
    app = App(invoices.lifecycle)
    with Ledger.open(ledger_url, app.machines, create=True, data_tables=app.data.tables) as ledger:
        born = invoices.Invoice(tenant="acme", number="1", amount_minor=1)
        ledger.birth([born], actor=Actor.API, who="test")
    answer = penstock("demo", "--once", "--dir", tmp_path / "demo", "--ledger", ledger_url, cwd=tmp_path)
    assert (answer.code, answer.out) == (2, "")
    assert "has units in it" in answer.err
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize("name", ["penstock.toml", "penstock.db", "weekend.toml", "watermark.json.lock"])
def test_a_folder_of_somebody_else_is_left_alone(name, penstock, tmp_path):
    (tmp_path / name).write_text("mine")
    answer = penstock("demo", "--once", "--dir", tmp_path, cwd=tmp_path)
    assert (answer.code, answer.out) == (2, "")
    assert f"{name} is not the demonstration's; name another folder with --dir" in answer.err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


def test_what_an_earlier_one_left_is_kept_whole(tmp_path):
    names = Demonstration(tmp_path, print).leaves
    assert {"penstock.toml", "stream", "watermark.json", "watermark.json.lock", "weekend.toml"} <= {*names}
    for name in names:
        (tmp_path / name).write_text(f"{MARK} {name}")
    running = start("--once", "--dir", tmp_path)
    try:
        assert running.stdout is not None
        assert next(line for line in running.stdout if "was moved to" in line)
    finally:
        running.kill()
        running.communicate(timeout=PATIENCE)
    kept = {place.name: place.read_text() for place in (tmp_path / "earlier-1").iterdir()}
    assert kept == {name: f"{MARK} {name}" for name in names}


@pytest.mark.nightly
def test_interrupted_it_stops_in_good_order_and_the_next_one_keeps_what_it_left(penstock, tmp_path):
    for number, earlier in ((signal.SIGINT, False), (signal.SIGTERM, True)):
        running = start("--once", "--dir", tmp_path / "demo")
        try:
            assert running.stdout is not None
            assert next(line for line in running.stdout if "invoices sent" in line)
            running.send_signal(number)
            out, err = running.communicate(timeout=PATIENCE)
        finally:
            running.kill()
        assert running.returncode == 130, err
        assert "interrupted on " in out
        assert (tmp_path / "demo" / "earlier-1" / "penstock.db").exists() == earlier
    for folder in (tmp_path / "demo", tmp_path / "demo" / "earlier-1"):
        assert json.loads(penstock("doctor", "--json", cwd=folder).out)["findings"] == []
        assert json.loads(penstock("status", "--json", cwd=folder).out)["workers"] == []


def test_the_desk_is_served_meanwhile_and_a_second_one_in_the_same_folder_leaves_the_first_alone(penstock, tmp_path):
    running = start("--dir", tmp_path / "demo", "--address", "127.0.0.1:0")
    try:
        assert running.stdout is not None
        first = next(line for line in running.stdout if "watch it at " in line)
        (address,) = re.findall(r"http://127\.0\.0\.1:\d+/", first)
        assert next(line for line in running.stdout if "invoices sent" in line)
        assert "<h1" in fetched(address)
        status = json.loads(fetched(f"{address}api/v1/status"))
        assert datetime.fromisoformat(status["now"]) < datetime.now(UTC) - timedelta(days=2), "the time of the days"
        assert next(one for one in status["machines"] if one["machine"] == "invoice")["states"]["SENT"] > 0
        there = {place.name: place.stat().st_ino for place in (tmp_path / "demo").iterdir()}
        refused = penstock("demo", "--once", "--dir", tmp_path / "demo", cwd=tmp_path)
        assert (refused.code, refused.out) == (2, "")
        assert "a demonstration is running in " in refused.err
        assert {place.name: place.stat().st_ino for place in (tmp_path / "demo").iterdir()} == there
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=PATIENCE)
        assert running.returncode == 130
    finally:
        running.kill()


def fetched(address: str) -> str:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=30) as answer:
        return str(answer.read().decode())


def test_what_was_not_seen_is_named():
    checks = [Check("a throttle", None), Check("an expired link", "acme"), Check("a failed report", None)]
    with pytest.raises(NotShown, match=r"did not show: a throttle\n.*did not show: a failed report") as raised:
        require(checks)
    assert "expired" not in str(raised.value)
    require(checks[1:2])


@pytest.mark.nightly
def test_without_once_it_goes_on_by_the_clock_of_the_machine(penstock, tmp_path):
    folder = tmp_path / "demo"
    running = start("--dir", folder, "--address", "127.0.0.1:0")
    try:
        assert running.stdout is not None
        (address,) = re.findall(r"http://\S+", next(line for line in running.stdout if "watch it at " in line))
        assert next(line for line in running.stdout if "a worker goes on" in line)
        day = tomllib.loads((folder / "penstock.toml").read_text())["schedules"]["sample-report-datasets"]["settings"]
        since = day["since"]
        key = f"google_ads/1111111111/campaign_daily/{since}"

        def run() -> str:
            found = json.loads(penstock("partitions", "status", key, "--json", cwd=folder).out)
            return str(found["current_run_id"])

        before = run()
        again = penstock("partitions", "reprocess", "google_ads", "--from", since, "--reason", "x", "--yes", cwd=folder)
        assert again.code == 0, again
        until(lambda: run() != before, "the partition is fetched anew")
        now = datetime.fromisoformat(json.loads(fetched(f"{address}api/v1/status"))["now"])
        assert abs(now - datetime.now(UTC)) < timedelta(minutes=5), "the desk has the machine's time"
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=PATIENCE)
    finally:
        running.kill()
    assert running.returncode == 0

"""`penstock partitions` from the outside: real processes, real files, both databases."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.app.app import App
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.partitions import lifecycle
from penstock.lifecycles.partitions.judgement import Validators
from penstock.lifecycles.partitions.validations import Validations
from penstock.model.clock import SystemClock
from penstock.raw.paths import PartitionKey, run_id_at
from penstock.raw.sink import RawSink
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.ad_source import CONFIG
from tests.support.partitions import KEY, read_settings, rows

ROOT = Path(__file__).resolve().parents[3]
NAME = f"google_ads/111-111-1111/campaign_daily/{KEY.logical_date}"

LOGIN = """
gaql = "SELECT campaign.id FROM campaign WHERE segments.date = '{date}'"

[partitions.google_ads]
client_id = "1"
client_secret = { env = "NOBODY_ASKS" }
refresh_token = { env = "NOBODY_ASKS" }
"""


class Shell:
    """The commands, in a folder with a configuration."""

    def __init__(self, penstock: Any, folder: Path, url: str) -> None:
        self._penstock = penstock
        self._url = url
        self.folder = folder
        (folder / "penstock.toml").write_text(CONFIG.format(more="") + LOGIN)
        self.env = {"PENSTOCK_LEDGER": url, "PYTHONPATH": str(ROOT)}
        self.sink = RawSink(folder / "raw")
        made = self.any("db", "upgrade")
        assert made.code == 0, made

    def any(self, *arguments: object) -> Any:
        return self._penstock(*arguments, cwd=self.folder, env=self.env)

    def __call__(self, *arguments: object, code: int = 0) -> Any:
        """What a command prints; as data with --json."""
        found = self.any("partitions", *arguments)
        assert found.code == code, found
        assert "Traceback" not in found.err
        if code == 2:
            return found.err
        return json.loads(found.out) if "--json" in arguments else found.out or found.err

    def land(self, records: Any = None, key: PartitionKey = KEY) -> str:
        now = SystemClock().now()
        self.sink.write_partition(
            key, run_id_at(now), rows() if records is None else records, schema_version="1", created_at=now
        )
        return run_id_at(now)

    def work(self) -> None:
        """Let a worker judge what is wanted."""
        settings = read_settings(CONFIG.format(more=""))

        async def main() -> None:
            with Ledger.open(self._url, App(lifecycle).machines) as ledger:
                flow = Validations(Validators(self.sink, settings))
                worker = Worker(ledger, [flow], WorkerSettings(place_seconds=None, idle_seconds=0.05))
                running = asyncio.create_task(worker.run())
                sql = "SELECT 1 FROM validation WHERE status = 'wanted'"
                async with asyncio.timeout(60):
                    while ledger.read(lambda cursor: cursor.rows(sql)):
                        await asyncio.wait([running], timeout=0.02)
                worker.stop()
                await running

        asyncio.run(main())


@pytest.fixture
def shell(penstock, tmp_path, partitions_url) -> Shell:
    return Shell(penstock, tmp_path, partitions_url)


DO = ("--yes", "--by", "anna", "--reason")


def test_from_pending_to_read_and_back(shell):
    assert "no run of it has been validated yet" in shell("status", NAME)
    assert "is pending" in shell("read", NAME, code=1)
    assert "no finalised run" in shell("validate", NAME, *DO, "x", code=2)
    first = shell.land(rows(note="first"))
    assert shell("inspect", NAME, "--json")["errors"] == []
    assert shell("status", NAME, "--json")["status"] == "pending"
    told = shell("validate", NAME, *DO, "landed by hand")
    assert f"done: have run {first} of {KEY} judged; a worker does it, and 'penstock why validation:{KEY}/" in told
    shell.work()
    assert shell("wait", NAME, "--json")["rows"][0]["current_run_id"] == first
    assert [json.loads(line) for line in shell("read", NAME).splitlines()] == rows(note="first")
    assert Path(shell("read", NAME, "--path").strip()).exists()
    assert shell("metadata", NAME, "--json")["checksum"].startswith("sha256:")

    bad = shell.land([{"bad": 1}])
    assert "row 1: field campaign.id is missing" in shell("inspect", NAME, code=1)
    shell("validate", NAME, *DO, "to see it fail")
    shell.work()
    assert f"run {bad} was rejected" in shell("read", NAME, code=1)
    shell("point", NAME, first, *DO, "go back")
    why = shell.any("why", f"validation:{KEY}/{first}")
    assert (why.code, "no running worker serves validation" in why.out) == (0, True), why
    shell.work()
    status = shell("status", NAME, "--json")
    assert (status["status"], status["current_run_id"], status["attempt_count"]) == ("success", first, 2)
    assert "pointed at by anna (go back)" in shell.any("history", f"partition:{KEY}").out
    assert [run["run_id"] for run in shell("runs", NAME, "--json")["rows"]] == [bad, first]
    assert shell("status", NAME, "--at", "2020-01-01T00:00:00Z", "--json")["status"] == "pending"
    assert f"done: make {KEY} pending" in shell("reset", NAME, *DO, "wrong account")
    assert "it was reset" in shell("wait", NAME, "--timeout", "1s", code=1)


def test_a_range_and_what_is_done_about_it(shell):
    shell.land()
    shell("validate", NAME, *DO, "x")
    shell.work()
    days = ("--from", "2026-10-30", "--to", "2026-11-02")
    found = shell("range", "google_ads", *days, "--json")
    assert found["counts"] == {"partitions": 8, "success": 1, "failed": 0, "pending": 7}
    assert "partitions 8, success 1, failed 0, pending 7" in shell.any("partitions", "range", "google_ads", *days).err
    listed = shell("list", "google_ads", *days, "--status", "success", "--json")["rows"]
    assert [one["partition"] for one in listed] == [str(KEY)]
    why = ("--reason", "a new customer")
    assert "give --yes, or --dry-run" in shell("backfill", "google_ads", *days, *why, code=2)
    assert "would extract 8 partitions" in shell("backfill", "google_ads", *days, "--dry-run")
    seen = shell("backfill", "google_ads", *days, "--dry-run", "--json")["digest"]
    assert shell("backfill", "google_ads", *days, *why, "--yes", "--digest", seen, "--json")["count"] == 8
    one = ("--customer", "222-222-2222", "--query", "campaign_daily")
    again = shell("reprocess", "google_ads", *days, *one, *why, "--yes", "--json")
    assert (again["count"], again["skipped"]) == (0, {"it is wanted already": 4})
    assert shell("reprocess", "google_ads", *days, "--failed", *why, "--dry-run", "--json")["count"] == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("status", "nonsense"), "is not a partition; write source/customer_id/query_name/logical_date"),
        (("status", "google_ads/111/campaign_daily/2026-11-01"), "has no customer 111; configured are 1111111111"),
        (("status", "google_ads/12x/campaign_daily/2026-11-01"), "is not a customer id"),
        (("status", "google_ads/1111111111/other/2026-11-01"), "has no query 'other'; configured are campaign_daily"),
        (("status", "bing/1/q/2026-11-01"), "no source is called 'bing'"),
        (("status", "google_ads/1111111111/campaign_daily/2026-13-01"), "is not a date"),
        (("range", "google_ads", "--from", "2026-11-02", "--to", "2026-11-01"), "before it starts"),
        (
            ("list", "google_ads", "--from", "2026-11-01", "--status", "good"),
            "must be one of pending, success, failed",
        ),
        (("validate", NAME, "--run", "yesterday", "--reason", "x"), "is not a run id"),
        (("validate", NAME, "--run", "2020-01-01T00:00:00.000Z", "--reason", "x"), "has no finalised run"),
        (("reset", NAME, "--reason", "x"), "there is nothing to reset"),
        (("wait", NAME, "--timeout", "soon"), "--timeout must be a span"),
        (("wait", NAME, "--timeout", "-5m"), "--timeout must be a span"),
        (("status", ""), "'' is not a partition"),
        (("status", NAME, "--at", ""), "--at must be an instant"),
        (("status", NAME, "--at", "yesterday"), "--at must be an instant"),
        (("range", "", "--from", "2026-11-01"), "no source is called ''"),
        (("range", "google_ads", "--from", ""), "--from must be a date"),
        (("range", "google_ads", "--from", "2026-11-01", "--to", ""), "--to must be a date"),
        (("range", "google_ads", "--from", "0001-01-01", "--to", "9999-12-31"), "more than 3,660 days"),
        (("range", "google_ads", "--from", "2026-11-01", "--customer", ""), "'' is not a customer id"),
        (("range", "google_ads", "--from", "2026-11-01", "--query", ""), "has no query ''"),
        (("validate", NAME, "--run", "", "--reason", "x"), "'' is not a run id"),
        (("point", NAME, "", "--reason", "x"), "'' is not a run id"),
        (("reset", NAME, "--reason", " "), "--reason is empty"),
        (("reprocess", "google_ads", "--from", "9999-01-01", "--reason", "x", "--yes"), "is not over yet"),
        (("reprocess", "google_ads", "--from", "2026-11-01", "--reason", "", "--yes"), "--reason is empty"),
        (("backfill", "google_ads", "--from", "0001-01-01", "--to", "9999-12-31", "--reason", "x"), "3,660 days"),
        (("backfill", "google_ads", "--from", "9998-01-01", "--to", "9999-01-01", "--reason", "x"), "not over yet"),
        (("backfill", "google_ads", "--from", "2026-11-01", "--customer", "9", "--reason", "x"), "has no customer 9"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(shell, arguments, expected):
    told = shell(*arguments, code=2)
    assert expected in told
    assert len(told.strip().splitlines()) == 1


def test_cadence_is_shown_and_empty_at_first(shell):
    assert "nothing has been loaded yet" in shell.any("partitions", "cadence").err
    shell.land()
    shell("validate", NAME, *DO, "x")
    shell.work()
    assert shell("cadence", "google_ads", "--json")["rows"] == [], "judged by hand"


def test_without_its_section_it_is_not_switched_on(penstock, tmp_path):
    found = penstock("partitions", "status", NAME, cwd=tmp_path)
    assert (found.code, "partitions is not switched on here; add [partitions] to" in found.err) == (2, True), found


def test_sources_and_rules_of_ones_own_are_a_lifecycle_of_ones_own(penstock, tmp_path, partitions_url):
    text = CONFIG.format(more="").replace("[partitions.", "[ads.")
    (tmp_path / "penstock.toml").write_text(f'lifecycles = ["tests.support.ad_source:lifecycle"]\n{text}')
    env = {"PENSTOCK_LEDGER": partitions_url, "PYTHONPATH": str(ROOT)}
    assert penstock("db", "upgrade", cwd=tmp_path, env=env).code == 0
    now = SystemClock().now()
    negative = [{**row, "metrics": {"clicks": "-1"}} for row in rows()]
    RawSink(tmp_path / "raw").write_partition(KEY, run_id_at(now), negative, schema_version="1", created_at=now)
    found = penstock("ads", "inspect", NAME, "--json", cwd=tmp_path, env=env)
    assert found.code == 1, found
    assert json.loads(found.out)["errors"] == ["row 1: rule clicks_are_not_negative: clicks below zero"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ('customers = ["12-x"]', "is not a customer id"),
        ("days = 0", "partitions.sources.google_ads.days"),
        ('keep_last_good = "yes"', "true or false"),
        ('time_zone = "America/Los_Angles"', 'did you mean "America/Los_Angeles"?'),
        ("time_zone = 3", "a time zone, for example"),
        ('time_zones = { "111-111-1111" = "Madrid" }', 'did you mean "Europe/Madrid"?'),
        ('time_zones = { "333-333-3333" = "UTC" }', "3333333333 is not one of the customers"),
        ('time_zones = { "111-111-1111" = "UTC", "1111111111" = "Asia/Kathmandu" }', "1111111111 is there twice"),
        ('time_zones = { "12-x" = "UTC" }', "is not a customer id"),
        ("time_zones = []", "must be a table; each value is a time zone"),
        ('delay = "soon"', "a span of time"),
        ("offsets = []", "a list of different spans of time"),
        ('offsets = ["3d", "1d"]', "shortest first"),
    ],
)
def test_a_configuration_that_is_wrong_is_told(penstock, tmp_path, more, expected):
    text = CONFIG.format(more="")
    name = more.partition(" ")[0]
    lines = [more if line.startswith(f"{name} =") else line for line in text.splitlines()]
    if more not in lines:
        lines.insert(2, more)
    (tmp_path / "penstock.toml").write_text("\n".join(lines))
    found = penstock("partitions", "status", NAME, cwd=tmp_path)
    assert found.code == 2
    assert expected in found.err


def test_a_customer_without_a_time_zone_is_refused(penstock, tmp_path):
    lines = [line for line in CONFIG.format(more="").splitlines() if not line.startswith("time_zone")]
    lines.insert(2, 'time_zones = { "111-111-1111" = "America/Los_Angeles" }')
    (tmp_path / "penstock.toml").write_text("\n".join(lines))
    found = penstock("partitions", "status", NAME, cwd=tmp_path)
    assert found.code == 2
    assert "no time zone for customer 2222222222" in found.err
    assert "customer.time_zone" in found.err

"""`penstock partitions` from the outside: real processes, real files, both databases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.model.clock import SystemClock
from penstock.raw.paths import PartitionKey, run_id_at
from penstock.raw.sink import RawSink
from tests.support.ad_source import CONFIG
from tests.support.partitions import KEY, rows

NAME = f"google_ads/111-111-1111/campaign_daily/{KEY.logical_date}"


class Shell:
    """The commands, in a folder with a configuration."""

    def __init__(self, penstock: Any, folder: Path, url: str) -> None:
        self._penstock = penstock
        self.folder = folder
        (folder / "penstock.toml").write_text('app = "tests.support.ad_source:app"\n' + CONFIG.format(more=""))
        self.env = {"PENSTOCK_LEDGER": url, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
        self.sink = RawSink(folder / "raw")
        assert self._penstock("db", "upgrade", cwd=folder, env=self.env).code == 0

    def __call__(self, *arguments: object, code: int = 0) -> Any:
        """What a command prints; as data with --json."""
        found = self._penstock("partitions", *arguments, cwd=self.folder, env=self.env)
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


@pytest.fixture
def shell(penstock, tmp_path, partitions_url) -> Shell:
    return Shell(penstock, tmp_path, partitions_url)


def test_from_pending_to_read_and_back(shell):
    assert "is pending: no run of it has been validated yet" in shell("status", NAME)
    assert "is pending" in shell("read", NAME, code=1)
    assert "nothing to validate" in shell("validate", NAME, code=2)
    first = shell.land(rows(note="first"))
    assert "is good: 3 records" in shell("validate", NAME, "--dry-run")
    assert shell("status", NAME, "--json")["status"] == "pending"
    assert shell("validate", NAME, "--json")["verdict"] == "success"
    assert shell("wait", NAME, "--json")[0]["current_run_id"] == first
    assert [json.loads(line) for line in shell("read", NAME).splitlines()] == rows(note="first")
    assert Path(shell("read", NAME, "--path").strip()).exists()
    assert shell("read", NAME, "--json")["checksum"].startswith("sha256:")

    bad = shell.land([{"bad": 1}])
    assert "failed: row 1: field campaign.id is missing" in shell("validate", NAME, code=1)
    assert f"run {bad} was rejected" in shell("read", NAME, code=1)
    assert f"run {first} pointed at by" in shell("point", NAME, first, "--reason", "go back")
    status = shell("status", NAME, "--json")
    assert (status["status"], status["current_run_id"], status["attempt_count"]) == ("success", first, 2)
    assert shell("status", NAME, "--as-of", "2020-01-01T00:00:00Z", "--json")["status"] == "pending"
    assert "is pending" in shell("reset", NAME, "--reason", "wrong account")
    assert "is pending: it was reset" in shell("wait", NAME, "--timeout", "1s", code=1)


def test_a_range_and_what_is_done_about_it(shell):
    shell.land()
    shell("validate", NAME)
    days = ("--from", "2026-10-30", "--to", "2026-11-02")
    found = shell("range", "google_ads", *days, "--json")
    assert {n: found[n] for n in ("total", "success", "failed", "pending")} == {
        "total": 8,
        "success": 1,
        "failed": 0,
        "pending": 7,
    }
    assert "8 partitions: 1 success, 0 failed, 7 pending" in shell("range", "google_ads", *days)
    listed = shell("range", "google_ads", *days, "--status", "success", "--json")["partitions"]
    assert [one["partition"] for one in listed] == [str(KEY)]
    why = ("--reason", "a new customer")
    assert "say --yes, or --dry-run" in shell("backfill", "google_ads", *days, *why, code=2)
    assert "8 of 8 partitions would be wanted" in shell("backfill", "google_ads", *days, *why, "--dry-run")
    assert shell("backfill", "google_ads", *days, *why, "--yes", "--json")["wanted"] == 8
    one = ("--customer", "222-222-2222", "--query", "campaign_daily")
    again = shell("reprocess", "google_ads", *days, *one, *why, "--yes", "--json")
    assert again == {"total": 4, "wanted": 0, "skipped": {"already wanted": 4}, "dry_run": False}
    assert shell("reprocess", "google_ads", *days, "--failed", *why, "--dry-run", "--json")["total"] == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("status", "nonsense"), "is not a partition; write source/customer_id/query_name/logical_date"),
        (("status", "google_ads/111/campaign_daily/2026-11-01"), "has no customer 111; configured are 1111111111"),
        (("status", "google_ads/12x/campaign_daily/2026-11-01"), "is not a customer id"),
        (("status", "google_ads/1111111111/other/2026-11-01"), "has no query 'other'; configured are campaign_daily"),
        (("status", "bing/1/q/2026-11-01"), "no source 'bing' is configured"),
        (("status", "google_ads/1111111111/campaign_daily/2026-13-01"), "is not a date"),
        (("range", "google_ads", "--from", "2026-11-02", "--to", "2026-11-01"), "before it starts"),
        (("range", "google_ads", "--from", "2026-11-01", "--status", "good"), "is not a status"),
        (("validate", NAME, "--run", "yesterday"), "is not a run id"),
        (("point", NAME, "2020-01-01T00:00:00.000Z", "--reason", "x"), "has no finalised run"),
        (("reset", NAME, "--reason", "x"), "there is nothing to reset"),
        (("wait", NAME, "--timeout", "soon"), "soon"),
        (("wait", NAME, "--timeout", "-5m"), "is not a span of time"),
        (("status", ""), "'' is not a partition"),
        (("status", NAME, "--as-of", ""), "is not an instant"),
        (("status", NAME, "--as-of", "yesterday"), "is not an instant"),
        (("range", "", "--from", "2026-11-01"), "no source '' is configured"),
        (("range", "google_ads", "--from", ""), "'' is not a date"),
        (("range", "google_ads", "--from", "2026-11-01", "--to", ""), "'' is not a date"),
        (("range", "google_ads", "--from", "0001-01-01", "--to", "9999-12-31"), "more than 3,660 days"),
        (("range", "google_ads", "--from", "2026-11-01", "--customer", ""), "'' is not a customer id"),
        (("range", "google_ads", "--from", "2026-11-01", "--query", ""), "has no query ''"),
        (("validate", NAME, "--run", ""), "'' is not a run id"),
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
    assert "nothing has been loaded yet" in shell("cadence")
    shell.land()
    shell("validate", NAME)
    assert shell("cadence", "google_ads", "--json") == [], "judged by hand"


def test_a_program_without_partitions_says_so(penstock, tmp_path):
    found = penstock("partitions", "status", NAME, cwd=tmp_path)
    assert (found.code, "keeps no partitions" in found.err) == (2, True)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ('customers = ["12-x"]', "is not a customer id"),
        ("days = 0", "partitions.google_ads.days"),
        ('keep_last_good = "yes"', "true or false"),
        ('time_zone = "America/Los_Angles"', 'did you mean "America/Los_Angeles"?'),
        ("time_zone = 3", "a time zone, for example"),
        ('time_zones = { "111-111-1111" = "Madrid" }', 'did you mean "Europe/Madrid"?'),
        ('time_zones = { "333-333-3333" = "UTC" }', "3333333333 is not one of its customers"),
        ('time_zones = { "111-111-1111" = "UTC", "1111111111" = "Asia/Kathmandu" }', "1111111111 is there twice"),
        ('time_zones = { "12-x" = "UTC" }', "is not a customer id"),
        ("time_zones = []", "a table of time zones"),
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
    (tmp_path / "penstock.toml").write_text('app = "tests.support.ad_source:app"\n' + "\n".join(lines))
    env = {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    found = penstock("partitions", "status", NAME, cwd=tmp_path, env=env)
    assert found.code == 2
    assert expected in found.err


def test_a_customer_without_a_time_zone_is_refused(penstock, tmp_path):
    lines = [line for line in CONFIG.format(more="").splitlines() if not line.startswith("time_zone")]
    lines.insert(2, 'time_zones = { "111-111-1111" = "America/Los_Angeles" }')
    (tmp_path / "penstock.toml").write_text('app = "tests.support.ad_source:app"\n' + "\n".join(lines))
    env = {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    found = penstock("partitions", "status", NAME, cwd=tmp_path, env=env)
    assert found.code == 2
    assert "customer 2222222222 has no time zone" in found.err
    assert "customer.time_zone" in found.err


def test_a_day_that_is_not_over_where_the_customer_is_cannot_be_asked_for(shell):
    """Today is over nowhere in UTC-12, whatever the hour is here."""
    path = shell.folder / "penstock.toml"
    path.write_text(path.read_text().replace('time_zone = "UTC"', 'time_zone = "Etc/GMT+12"'))
    today = str(SystemClock().now().date())
    for command in ("reprocess", "backfill"):
        told = shell(command, "google_ads", "--from", today, "--reason", "x", "--yes", code=2)
        assert f"{today} is not over yet for customer 1111111111: it ends in Etc/GMT+12 at" in told

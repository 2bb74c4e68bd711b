"""`penstock up` with reports: from a configuration file to rows in a view, in a real process."""

from __future__ import annotations

import functools
import os
from contextlib import closing
from datetime import UTC, timedelta

import pysqlite3
import pytest
from penstock.lifecycles.reports.program import app, make_flow

from penstock.lifecycles.reports.machine import Aggregation
from penstock.lifecycles.reports.settings import read_settings
from penstock.model.clock import SystemClock
from penstock.settings.config import SETTINGS, ConfigError, read, validate
from penstock.simulators.amazon_ads import AmazonAdsSimulator, Fate
from penstock.simulators.amazon_stream import StreamSimulator
from penstock.simulators.server import in_thread
from penstock.worker.schedule import wanted_by
from tests.support.fleet import COMMAND, Member, until
from tests.support.reports_worker import write_config

QUICK = """
[schedules.update-report-datasets]
job = "update-report-datasets"
every = "1s"
"""


ACCOUNTS = {"acme": "1001", "globex": "1002"}


def asked(path, sql):
    try:
        with closing(pysqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return connection.execute(sql).fetchall()
    except pysqlite3.OperationalError:  # not made yet
        return []


def loaded(path):
    found = asked(path, "SELECT status, count(*) FROM report_dataset_metadata GROUP BY status")
    return dict(found).get("completed", 0) >= 2 * 4 + 6  # two days of both accounts, three hours of one


def test_up_makes_the_datasets_fetches_and_loads_them(tmp_path):
    clock = SystemClock()
    simulator = AmazonAdsSimulator(clock, fate=Fate(pending=timedelta(), processing=timedelta()))
    ledger = tmp_path / "penstock.db"
    hour = clock.now().astimezone(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
    StreamSimulator(tmp_path / "stream").write("1001", hour)
    for later in range(1, 5):
        StreamSimulator(tmp_path / "stream").quiet("1001", hour + timedelta(hours=later))
    with in_thread(simulator) as address:
        path = write_config(tmp_path, address, simulator, f"sqlite:///{ledger}", ACCOUNTS, poll="1s", stream="stream")
        text = path.read_text().replace("[reports]", '[reports]\ndaily_offsets = ["1h"]\nhourly_offsets = ["1h"]')
        path.write_text(text + QUICK)
        member = Member([*COMMAND, "up", "--config", str(path)], dict(os.environ), tmp_path / "up.log")
        try:
            until(functools.partial(loaded, ledger), "every dataset that is due is loaded", 90)
            hours = "SELECT count(*) FROM performance_hourly"
            until(lambda: asked(ledger, hours) == [(40,)], "the hour that the stream has is loaded", 90)
        finally:
            member.kill()
    ((daily,),) = asked(ledger, "SELECT count(*) FROM performance_daily")
    assert daily >= 4 * 20
    assert asked(ledger, "SELECT count(*) FROM event_log") == [(0,)]
    # The stream has nothing of globex: no hours, and one line that says so.
    counted = asked(ledger, "SELECT DISTINCT account FROM report_dataset_metadata WHERE aggregation = 'hourly'")
    assert counted == [("acme",)]
    (line,) = [line for line in (tmp_path / "up.log").read_text().splitlines() if "config.warning" in line]
    assert f"hourly is off for globex: {tmp_path / 'stream' / '1002'} cannot be read" in line
    ticks = "SELECT change_reason FROM schedule WHERE name = 'update-report-datasets'"
    assert "hourly is off for globex" in asked(ledger, ticks)[0][0]
    names = {row[0] for row in asked(ledger, "SELECT name FROM schedule WHERE status = 'active'")}
    assert names == {"update-report-datasets", "prune-report-datasets", "sweep-stages", "collect-raw"}


def configured(tmp_path, text):
    path = tmp_path / "penstock.toml"
    path.write_text(text)
    jobs, prunable = app.all_jobs(), app.prunable()
    return validate(read(path), path, (*SETTINGS, *app.settings), jobs=jobs, prunable=prunable)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[reports]\ndaily_offsets = ["3d", "1d"]', "shortest first"),
        ("[reports]\nhourly_offsets = {}", "shortest first"),
        ('[reports]\npoll = "soon"', "a span of time"),
        ("[reports]\ncreate_limit = 0", "a whole number from 1"),
        ("[accounts.acme]\n", "accounts.acme.profile_id is missing"),
        ('[accounts.acme]\nprofile_id = "1"\ntime_zone = "Mars"', "a time zone"),
        ('[accounts.acme]\nprofile_id = "1"\npaused = "yes"', "true or false"),
        ('[reports]\nprivate_downloads = ["localhost"]', "a list of host:port"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said):
        configured(tmp_path, text)


def test_settings_that_contradict_each_other_are_refused(tmp_path):
    config = configured(tmp_path, '[reports]\ncancel_after = "2h"\ngive_up_after = "1h"')
    with pytest.raises(ConfigError, match="give_up_after is shorter"):
        read_settings(config)
    config = configured(tmp_path, "[reports]\ndaily_offsets = []\nhourly_offsets = []")
    with pytest.raises(ConfigError, match="are both empty"):
        read_settings(config)
    config = configured(tmp_path, '[accounts.acme]\nprofile_id = "1"\nclient_id = "x"')
    with pytest.raises(ConfigError, match="account acme has no client_secret, refresh_token"):
        make_flow(config, SystemClock())


def test_the_programs_own_schedules_can_be_replaced(tmp_path):
    config = configured(tmp_path, QUICK)
    every = {schedule.name: schedule.every for schedule in wanted_by(config, app.schedules)}
    assert every == {
        "update-report-datasets": "1s",
        "prune-report-datasets": "1h",
        "sweep-stages": "10m",
        "collect-raw": "1d",
    }


STREAM = "[reports]\nstream = 'stream'\n"
TWO = "[accounts.acme]\nprofile_id = '1'\n[accounts.globex]\nprofile_id = '2'\n"


def test_one_line_says_for_whom_hourly_is_off_and_why(tmp_path):
    (line,) = app.warn(configured(tmp_path, TWO))
    assert line.startswith("hourly is off for acme, globex: reports.stream is not set; ")
    (line,) = app.warn(configured(tmp_path, STREAM + TWO))
    assert line.startswith(f"hourly is off for acme, globex: {tmp_path / 'stream' / '1'} cannot be read: No such file")
    (tmp_path / "stream" / "1").mkdir(parents=True)
    (line,) = app.warn(configured(tmp_path, STREAM + TWO))
    assert line.startswith(f"hourly is off for globex: {tmp_path / 'stream' / '2'} cannot be read")
    (tmp_path / "stream" / "2").write_text("no folder")
    (line,) = app.warn(configured(tmp_path, STREAM + TWO))
    assert f"{tmp_path / 'stream' / '2'} is not a folder" in line
    many = "".join(f"[accounts.a{n}]\nprofile_id = 'x{n}'\n" for n in range(9))
    (line,) = app.warn(configured(tmp_path, many))
    assert line.startswith("hourly is off for a0, a1, a2 and 6 more: ")


def test_nothing_is_said_where_hourly_is_there_or_switched_off(tmp_path):
    assert app.warn(configured(tmp_path, f"[reports]\nhourly_offsets = []\n{TWO}")) == []
    assert app.warn(configured(tmp_path, "")) == []
    for profile in "12":
        (tmp_path / "stream" / profile).mkdir(parents=True)
    assert app.warn(configured(tmp_path, STREAM + TWO)) == []
    assert app.warn(configured(tmp_path, "[accounts.acme]\nprofile_id = '9'\npaused = true")) == []


def test_an_empty_list_of_offsets_switches_an_aggregation_off(tmp_path):
    settings = read_settings(configured(tmp_path, f"[reports]\nhourly_offsets = []\n{TWO}"))
    assert settings.offsets(Aggregation.HOURLY) == ()
    assert len(settings.offsets(Aggregation.DAILY)) == 7
    assert settings.cancel_after == timedelta(hours=6)

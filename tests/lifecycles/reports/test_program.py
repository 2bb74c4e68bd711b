"""`penstock up` with reports: from a configuration file to rows in a view, in a real process."""

from __future__ import annotations

import functools
import os
from contextlib import closing
from datetime import UTC, timedelta

import pysqlite3
import pytest

from penstock.app.discover import load
from penstock.lifecycles.reports.machine import Aggregation
from penstock.model.clock import SystemClock
from penstock.settings.typed import ConfigError
from penstock.simulators.amazon_ads import AmazonAdsSimulator, Fate
from penstock.simulators.amazon_stream import StreamSimulator
from penstock.simulators.server import in_thread
from tests.support.fleet import COMMAND, Member, until
from tests.support.reports_worker import write_config

QUICK = """
[schedules.update-report-datasets]
job = "update-report-datasets"
every = "1s"
"""


WATCHES = {"watch-alerts": "1m", "watch-doctor": "6h"}
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
    usual = {"update-report-datasets", "prune-report-datasets", "sweep-stages", "collect-raw", "roll-up-flow"}
    assert names == usual | {*WATCHES}


def configured(tmp_path, text):
    path = tmp_path / "penstock.toml"
    path.write_text(f"[reports]\n{text}")
    return load(path, environment={})


def settings_of(program):
    return program.settings(program.app.lifecycle("reports"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('daily_offsets = ["3d", "1d"]', 'reports.daily_offsets = ["3d", "1d"] must be a list of different spans'),
        ("hourly_offsets = {}", "shortest first"),
        ('poll = "soon"', "a span of time"),
        ("create_limit = 0", "a whole number from 1"),
        ("[reports.accounts.acme]\n", "reports.accounts.acme.profile_id is missing"),
        ('[reports.accounts.acme]\nprofile_id = "1"\ntime_zone = "Mars"', "a time zone"),
        ('[reports.accounts.acme]\nprofile_id = "1"\npaused = "yes"', "true or false"),
        ('private_downloads = ["localhost"]', "a list of host:port"),
        ('cancel_after = "2h"\ngive_up_after = "1h"', "reports: give_up_after must not be shorter than cancel_after"),
        ("daily_offsets = []\nhourly_offsets = []", "reports: daily_offsets and hourly_offsets are both empty"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, text, said):
    with pytest.raises(ConfigError) as told:
        configured(tmp_path, text)
    assert said in str(told.value)
    assert str(told.value).startswith(f"{tmp_path / 'penstock.toml'}: ")


def test_every_account_without_credentials_is_named(tmp_path):
    own = 'client_id = "x"\n[reports.accounts.{}]\nprofile_id = "1"'
    program = configured(tmp_path, own.format("acme") + '\n[reports.accounts.globex]\nprofile_id = "2"')
    with pytest.raises(ConfigError) as told:
        program.flows()
    lines = str(told.value).splitlines()
    assert [
        line.partition(" has no client_secret, refresh_token; set it in [reports] or in ")[0] for line in lines
    ] == [
        "account acme",
        "account globex",
    ]


def test_the_lifecycles_own_schedules_can_be_replaced(tmp_path):
    every = {schedule.name: schedule.every for schedule in configured(tmp_path, QUICK).schedules()}
    assert every == {
        "update-report-datasets": "1s",
        "prune-report-datasets": "1h",
        "sweep-stages": "10m",
        "collect-raw": "1d",
        "roll-up-flow": "1m",
        **WATCHES,
    }


STREAM = "stream = 'stream'\n"
TWO = "[reports.accounts.acme]\nprofile_id = '1'\n[reports.accounts.globex]\nprofile_id = '2'\n"


def warned(tmp_path, text):
    return configured(tmp_path, text).warnings()


def test_one_line_says_for_whom_hourly_is_off_and_why(tmp_path):
    (line,) = warned(tmp_path, TWO)
    assert line.startswith("hourly is off for acme, globex: reports.stream is not set; ")
    (line,) = warned(tmp_path, STREAM + TWO)
    assert line.startswith(f"hourly is off for acme, globex: {tmp_path / 'stream' / '1'} cannot be read: No such file")
    (tmp_path / "stream" / "1").mkdir(parents=True)
    (line,) = warned(tmp_path, STREAM + TWO)
    assert line.startswith(f"hourly is off for globex: {tmp_path / 'stream' / '2'} cannot be read")
    (tmp_path / "stream" / "2").write_text("no folder")
    (line,) = warned(tmp_path, STREAM + TWO)
    assert f"{tmp_path / 'stream' / '2'} is not a folder" in line
    many = "".join(f"[reports.accounts.a{n}]\nprofile_id = 'x{n}'\n" for n in range(9))
    (line,) = warned(tmp_path, many)
    assert line.startswith("hourly is off for a0, a1, a2 and 6 more: ")


def test_nothing_is_said_where_hourly_is_there_or_switched_off(tmp_path):
    assert warned(tmp_path, f"hourly_offsets = []\n{TWO}") == []
    assert warned(tmp_path, "") == []
    for profile in "12":
        (tmp_path / "stream" / profile).mkdir(parents=True)
    assert warned(tmp_path, STREAM + TWO) == []
    assert warned(tmp_path, "[reports.accounts.acme]\nprofile_id = '9'\npaused = true") == []


def test_an_empty_list_of_offsets_switches_an_aggregation_off(tmp_path):
    settings = settings_of(configured(tmp_path, f"hourly_offsets = []\n{TWO}"))
    assert settings.offsets(Aggregation.HOURLY) == ()
    assert len(settings.offsets(Aggregation.DAILY)) == 7
    assert settings.cancel_after == timedelta(hours=6)

"""docs/reports.md shows the settings as they are declared, and an example that works; every name is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from penstock.lifecycles.reports import failure, lifecycle
from penstock.lifecycles.reports.machine import machine
from penstock.lifecycles.reports.settings import ReportSettings
from penstock.model.unit import DRIVEN_COLUMNS
from penstock.settings.file import load
from penstock.settings.sample import reference

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reports.md").read_text()


def test_the_table_of_settings_is_what_the_declarations_say():
    shown = re.search(r"<!-- report settings -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert shown is not None
    wanted = reference({"reports": ReportSettings}).partition("### [reports]\n\n")[2]
    assert shown[1] == wanted, f"the table is stale; it should be\n{wanted}"


def test_the_example_is_valid():
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    found = load(None, {"reports": ReportSettings}, raw=tomllib.loads(example)).sections["reports"]
    assert isinstance(found, ReportSettings)
    assert found.accounts["acme"].time_zone == "America/Los_Angeles"


def test_every_column_event_job_and_command_is_documented():
    own = [name for name in machine.columns if name not in DRIVEN_COLUMNS]
    jobs = [*(job.name for job in lifecycle.jobs), *(one.name for one in lifecycle.schedules(ReportSettings()))]
    events = re.findall(r"\"(report\.[a-z_]+)\"", Path(failure.__file__).read_text())
    assert events
    assert [name for name in (*own, *jobs, *events) if f"`{name}`" not in PAGE] == []
    commands = [f"penstock reports {one.name}" for one in (*lifecycle.readings, *lifecycle.operations)]
    assert [name for name in commands if f"`{name}" not in PAGE] == []

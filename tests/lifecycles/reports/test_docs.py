"""docs/reports.md shows the settings as they are declared, and an example that works; events and columns are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from penstock.lifecycles.reports.program import app

from penstock.lifecycles.reports import failure
from penstock.lifecycles.reports.machine import machine
from penstock.lifecycles.reports.settings import SETTINGS, read_accounts
from penstock.model.unit import DRIVEN_COLUMNS
from penstock.settings.config import SETTINGS as KERNEL
from penstock.settings.config import validate
from penstock.settings.declarations import reference

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reports.md").read_text()


def test_the_table_of_settings_is_what_the_declarations_say():
    shown = re.search(r"<!-- report settings -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert shown is not None
    assert shown[1] == reference(SETTINGS), f"the table is stale; it should be\n{reference(SETTINGS)}"


def test_the_example_is_valid():
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    config = validate(tomllib.loads(example), None, (*KERNEL, *SETTINGS), jobs=app.all_jobs())
    assert read_accounts(config)["acme"].time_zone == "America/Los_Angeles"


def test_every_column_event_and_job_is_documented():
    own = [name for name in machine.columns if name not in DRIVEN_COLUMNS]
    jobs = [*app.configured_jobs, *(schedule.name for schedule in app.schedules)]
    events = re.findall(r"\"(report\.[a-z_]+)\"", Path(failure.__file__).read_text())
    assert events
    assert [name for name in (*own, *jobs, *events) if f"`{name}`" not in PAGE] == []

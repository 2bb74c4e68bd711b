"""docs/harvest.md shows the settings as they are declared, and an example that works; events and columns are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from penstock.lifecycles.harvest.program import app

from penstock.lifecycles.harvest import MACHINES, runs
from penstock.lifecycles.harvest.settings import SETTINGS, schedules
from penstock.model.unit import DRIVEN_COLUMNS
from penstock.settings.config import SETTINGS as KERNEL
from penstock.settings.config import validate
from penstock.settings.declarations import reference

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "harvest.md").read_text()


def test_the_table_of_settings_is_what_the_declarations_say():
    shown = re.search(r"<!-- harvest settings -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert shown is not None
    assert shown[1] == reference(SETTINGS), f"the table is stale; it should be\n{reference(SETTINGS)}"


def test_the_example_is_valid():
    example = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[0]
    config = validate(tomllib.loads(example), None, (*KERNEL, *SETTINGS), jobs=app.all_jobs())
    assert [(s.name, s.at, s.time_zone) for s in schedules(config)] == [
        ("harvest-diamonds", ["02:00"], "Europe/Madrid"),
        ("reprice-diamonds", None, "UTC"),
    ]


def test_every_column_event_and_job_is_documented():
    own = [n for m in MACHINES for n in m.columns if n not in DRIVEN_COLUMNS and m.name != "harvest_chunk"]
    events = re.findall(r"\"(harvest\.[a-z_]+)\"", Path(runs.__file__).read_text())
    assert events
    assert [name for name in (*own, *app.configured_jobs, *events) if f"`{name}`" not in PAGE] == []

"""docs/harvest.md shows the settings as they are declared, and an example that works; every name is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from penstock.lifecycles import harvest
from penstock.lifecycles.harvest import MACHINES, lifecycle
from penstock.lifecycles.harvest.settings import HarvestSettings
from penstock.model.unit import DRIVEN_COLUMNS
from penstock.settings.file import load
from penstock.settings.sample import reference

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "harvest.md").read_text()


def test_the_table_of_settings_is_what_the_declarations_say():
    shown = re.search(r"<!-- harvest settings -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert shown is not None
    wanted = reference({"harvest": HarvestSettings}).partition("### [harvest]\n\n")[2]
    assert shown[1] == wanted, f"the table is stale; it should be\n{wanted}"


def test_the_example_is_valid():
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    found = load(None, {"harvest": HarvestSettings}, raw=tomllib.loads(example)).sections["harvest"]
    assert isinstance(found, HarvestSettings)
    assert [(s.name, s.at, s.time_zone) for s in lifecycle.schedules(found)] == [
        ("prune-raw-records", None, "UTC"),
        ("harvest-diamonds", ["02:00"], "Europe/Madrid"),
        ("reprice-diamonds", None, "UTC"),
    ]


def test_every_column_event_job_and_command_is_documented():
    own = [n for m in MACHINES for n in m.columns if n not in DRIVEN_COLUMNS and m.name != "harvest_chunk"]
    sources = Path(next(iter(harvest.__path__))).rglob("*.py")
    events = {name for path in sources for name in re.findall(r"\"(harvest\.[a-z_]+)\"", path.read_text())}
    assert len(events) >= 9
    names = (*own, *(job.name for job in lifecycle.jobs), *events)
    assert [name for name in names if f"`{name}`" not in PAGE] == []
    commands = [f"penstock harvest {one.name}" for one in (*lifecycle.readings, *lifecycle.operations)]
    assert [name for name in commands if f"`{name}" not in PAGE] == []

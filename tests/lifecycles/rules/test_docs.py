"""docs/rules.md shows the settings as they are declared, and examples that work; every name is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from penstock.lifecycles import rules
from penstock.lifecycles.rules import MACHINES, lifecycle
from penstock.lifecycles.rules.expression import COLUMNS, parse
from penstock.lifecycles.rules.metrics import METRICS, POLICIES
from penstock.lifecycles.rules.outcomes import Reason
from penstock.lifecycles.rules.settings import RulesSettings, schedule_of
from penstock.lifecycles.rules.tables import DATA_TABLES
from penstock.lifecycles.rules.target.machine import Cause
from penstock.model.unit import DRIVEN_COLUMNS
from penstock.settings.file import load
from penstock.settings.sample import reference

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "rules.md").read_text()
IN_CSV, IN_A_SHOP = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def test_the_table_of_settings_is_what_the_declarations_say():
    shown = re.search(r"<!-- rules settings -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert shown is not None
    wanted = reference({"rules": RulesSettings}).partition("### [rules]\n\n")[2]
    assert shown[1] == wanted, f"the table is stale; it should be\n{wanted}"


@pytest.mark.parametrize("example", [IN_CSV, IN_A_SHOP])
def test_the_examples_are_valid(example):
    found = load(None, {"rules": RulesSettings}, raw=tomllib.loads(example)).sections["rules"]
    assert isinstance(found, RulesSettings)
    assert [schedule.name for schedule in lifecycle.schedules(found)] == [schedule_of("shop")]


def test_the_conditions_can_be_read():
    (conditions,) = re.findall(r"```text\n(vendor.*?)```", PAGE, re.DOTALL)
    assert len([parse(line) for line in conditions.splitlines()]) == 3
    assert [name for name in COLUMNS if f"`{name}`" not in PAGE] == []


def test_every_column_event_job_and_command_is_documented():
    own = [name for machine in MACHINES for name in machine.columns if name not in DRIVEN_COLUMNS]
    tables = [table.name for table in DATA_TABLES]
    sources = Path(next(iter(rules.__path__))).rglob("*.py")
    known = re.compile(r"\"((?:rules\.(?!accounts|rules|toml)|automation\.)[a-z_.0-9]+)\"")
    events = {name for path in sources for name in known.findall(path.read_text())}
    assert {"automation.target.apply", "rules.stopped", "rules.429.count"} <= events
    names = [*own, *tables, *(job.name for job in lifecycle.jobs), *events, *Reason, *Cause]
    assert [name for name in names if f"`{name}`" not in PAGE] == []
    assert [one.name for one in METRICS if f"\n| `{one.name}` | {one.kind} |" not in PAGE] == []
    assert [one.name for one in POLICIES if f"\n| {one.name} |" not in PAGE] == []
    commands = [f"penstock rules {one.name}" for one in (*lifecycle.readings, *lifecycle.operations)]
    assert [name for name in commands if f"`{name}" not in PAGE] == []

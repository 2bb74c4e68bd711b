"""docs/queries.md shows the settings as they are declared, and examples that work; every name is there."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from penstock.lifecycles import queries
from penstock.lifecycles.queries import MACHINES, lifecycle
from penstock.lifecycles.queries.registry import registry
from penstock.lifecycles.queries.runs import COUNTERS, Stop
from penstock.lifecycles.queries.settings import QueriesSettings
from penstock.lifecycles.queries.tables import ingestion_runs, own_table
from penstock.model.unit import DRIVEN_COLUMNS
from penstock.settings.file import load
from penstock.settings.sample import reference
from tests.support.walkthrough import Shell, blocks, environment, follow, with_free_ports

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "queries.md").read_text()
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
PORTS = ("8003",)


def settings(example: str) -> QueriesSettings:
    found = load(None, {"queries": QueriesSettings}, raw=tomllib.loads(example)).sections["queries"]
    assert isinstance(found, QueriesSettings)
    return found


def missing(names: list[str]) -> list[str]:
    """Those that the page does not name."""
    return [name for name in names if f"`{name}`" not in PAGE]


def test_the_table_of_settings_is_what_the_declarations_say():
    shown = re.search(r"<!-- queries settings -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert shown is not None
    wanted = reference({"queries": QueriesSettings}).partition("### [queries]\n\n")[2]
    assert shown[1] == wanted, f"the table is stale; it should be\n{wanted}"


def test_the_examples_are_valid():
    search, described, sheet = map(settings, EXAMPLES)
    assert [one.name for one in registry(search).values()] == ["python-madrid"]
    assert missing(list(registry(search))) == []
    assert [one.name for one in registry(described).values()] == ["cpython-issues"]
    assert [table.name for table in lifecycle.tables(described)] == ["github_issues"]
    assert sheet.sheet is not None


@pytest.mark.timeout(300)
def test_the_example_works_as_it_is_followed(ledger_url, tmp_path):
    """With `init`, an edit, the simulator, `up` and the commands that the page shows, and what they answer."""
    folder, scratch = tmp_path / "queries", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    page = with_free_ports(PAGE, PORTS)
    where = {} if ledger_url.startswith("sqlite") else {"PENSTOCK_LEDGER": ledger_url}
    with Shell(folder, scratch, environment(**where)) as shell:
        assert follow(page, folder, shell) == len(blocks(page)) > 10
        ran, said = shell.run("until penstock queries runs --csv | grep -c SUCCESS | grep -q 2; do sleep 0.2; done")
        assert ran, said
        (listed,) = json.loads(shell.run("penstock queries list --json")[1])["rows"]
        shown = json.loads(shell.run("penstock queries show python-madrid --json")[1])
        succeeded, said = shell.run("penstock doctor")
    assert succeeded, said
    assert (listed["query"], listed["state"], listed["waits"]) == ("python-madrid", "SUCCESS", None)
    assert [run["stopped_by"] for run in shown["runs"]] == ["exhausted", "exhausted"]
    first = shown["runs"][-1]
    assert first["new"] > 50, "two months of offers"
    assert shown["offers_open"] >= first["new"]


def test_every_column_table_and_stop_reason_is_documented():
    own = [name for machine in MACHINES for name in machine.columns if name not in DRIVEN_COLUMNS]
    data = lifecycle.data()
    tables = [machine.table for machine in MACHINES] + [table.name for table in data.tables] + list(data.views)
    every_table_has = [column.name for column in own_table("any", {}).columns]
    assert {column.name for column in ingestion_runs.columns} >= set(COUNTERS)
    assert missing([*own, *tables, *every_table_has, *Stop]) == []


def test_every_alert_log_line_job_and_command_is_documented():
    sources = Path(next(iter(queries.__path__))).rglob("*.py")
    events = {name for path in sources for name in re.findall(r"\"(queries\.[a-z_]+)\"", path.read_text())}
    assert {"queries.failing", "queries.sheet_failed", "queries.run"} <= events
    assert missing([*sorted(events), *(job.name for job in lifecycle.jobs)]) == []
    commands = [f"penstock queries {one.name}" for one in (*lifecycle.readings, *lifecycle.operations)]
    assert missing(commands) == []

"""The harness that makes faults: it comes to its end, it sees what it is there to see, and the page is what it kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from chaos import page, rows
from chaos.books import _error_of
from chaos.field import Field
from chaos.on_workers import stale_calls
from chaos.parts import ROOT, SQLITE, Case
from chaos.rows import Row
from chaos.scenarios import SCENARIOS, chosen

DOCUMENT = ROOT / "docs" / "reliability.md"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("scenario", "database"), [("poison-exception", "sqlite"), ("drops", "postgresql")])
def test_a_scenario_runs_from_the_command_to_the_page(tmp_path, scenario, database):
    output = tmp_path / "reliability.md"
    page.keep(output, [Row("kills", "SQLite", units=77, when="long ago")])
    command = [sys.executable, "-m", "chaos.run", "--quick", "--only", scenario, "--database", database, "--seed", "5"]
    done = subprocess.run(
        [*command, "--output", str(output)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kept, found = (rows.read(plain) for plain in json.loads(output.with_suffix(".json").read_text()))
    assert (kept.scenario, kept.units, kept.when) == ("kills", 77, "long ago")
    assert (found.scenario, found.database.lower(), found.seed, found.quick) == (scenario, database, 5, True)
    assert found.units > 0
    # Only what holds on a machine of any speed: on a slow one patience may end before all is done.
    assert (found.lost, found.broken, found.parked_wrongly) == (0, 0, 0), found
    text = output.read_text()
    assert SCENARIOS[scenario].title in text
    assert found.verdict in done.stdout


@pytest.fixture
def field(tmp_path):
    with Field(Case("kills", SQLITE, quick=True, seed=1, folder=tmp_path, made=tmp_path), lease=30) as made:
        made.birth(20)
        made.start_and_wait(1)
        assert made.drain(60) is not None
        yield made


@pytest.mark.timeout(180)
def test_effects_are_counted_at_the_provider(field):
    """A ledger that says SENT is not believed; neither is it believed that nothing happened twice."""
    lines = field.provider_log.read_text().splitlines()
    assert len(lines) == 20
    field.provider_log.write_text("\n".join([*lines[1:], lines[5]]) + "\n")
    row = field.row(1, "none")
    assert (row.lost, row.twice, row.stuck, row.parked_wrongly, row.broken) == (1, 1, 0, 0, 0)
    assert row.doctor.startswith("clean")
    assert row.missed() == ["1 lost", "1 twice"]


@pytest.mark.timeout(180)
def test_a_call_under_an_older_claim_is_stale(field):
    first = json.loads(field.provider_log.read_text().splitlines()[0])
    assert stale_calls(field) == 0
    with field.provider_log.open("a") as log:
        for line in (first | {"what": "look", "version": first["version"] + 1}, first):
            log.write(json.dumps(line) + "\n")
    assert stale_calls(field) == 1


@pytest.mark.parametrize(
    ("story", "now", "error"),
    [
        ([(None, "QUEUED", 5), ("QUEUED", "SENDING", 6), ("SENDING", "SENT", 7)], "SENT", None),
        ([("QUEUED", "SENDING", 6), (None, "QUEUED", 5)], "SENDING", None),
        ([(None, "QUEUED", 5), ("SENDING", "SENT", 7)], "SENT", "SENDING to SENT after QUEUED"),
        ([(None, "QUEUED", 5), ("QUEUED", "SENT", 6)], "SENT", "QUEUED to SENT after QUEUED"),
        ([(None, "QUEUED", 5), ("QUEUED", "SENDING", 5)], "SENDING", "version 5 after 5"),
        ([(None, "QUEUED", 5)], "SENDING", "its history ends with QUEUED, and it is SENDING"),
    ],
)
def test_a_history_is_one_legal_path(story, now, error):
    assert _error_of(story, now) == error


def test_a_row_names_every_target_that_it_missed():
    row = Row("kills", "SQLite", stuck=3, parked_wrongly=1, doctor="clean", within=35.0)
    row.measure([1.0] * 98 + [36.5, 40.0])
    assert (row.p50, row.p99, row.worst) == (1.0, 36.5, 40.0)
    told = ["3 stuck", "1 parked wrongly", "the doctor saw nothing of it", "p99 36.5 s, at most 35 s wanted"]
    assert row.missed() == told
    assert Row("stops", "SQLite", twice=2, twice_allowed=True).verdict == "pass"
    assert Row("disk", "SQLite", stuck=1, not_run="no disk").verdict == "not run: no disk"


def test_the_page_is_what_was_kept():
    """Whoever edits the page by hand loses it at the next run: `python -m chaos.page` writes it from its figures."""
    kept = [rows.read(plain) for plain in json.loads(DOCUMENT.with_suffix(".json").read_text())]
    assert DOCUMENT.read_text() == page.markdown(kept)


def test_a_scenario_is_chosen_by_the_beginning_of_its_name():
    assert chosen(["kills", "poison-kill"]) == ["kills", "poison-kill", "poison-kill-default-lease"]
    assert chosen([]) == chosen(["all"]) == list(SCENARIOS)
    with pytest.raises(ValueError, match="there is no scenario earthquakes"):
        chosen(["earthquakes"])


def test_nothing_of_the_tests_is_used():
    """The harness and the tests must not share a blind spot."""
    for module in Path(ROOT / "chaos").glob("*.py"):
        text = module.read_text()
        assert "from tests" not in text, module
        assert "import tests" not in text, module

"""The tutorial works: every file, edit and command of it, in its order, in one shell and a fresh folder, as written.

Two things are replaced. `pip install` and what goes with it: the package under test is installed already. And the two
ports, so that other tests can run beside this one. Nothing is expected of commands that show no output but success.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from tests.support.nightly import by_night
from tests.support.walkthrough import Shell, blocks, environment, follow, pattern, with_free_ports

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tutorial.md"
LANGUAGES = {"install": {"sh"}, "run": {"sh"}, "output": {"text"}, "file": {"python", "toml"}, "append": {"python"}}
LANGUAGES["edit"] = {"diff"}
PORTS = ("8001", "8002")


def test_every_block_is_marked_and_known():
    page = PAGE.read_text()
    found = blocks(page)
    assert len(found) == len(re.findall(r"^```\w+$", page, re.MULTILINE)) > 40
    assert [one for one in found if one.language not in LANGUAGES[one.kind]] == []
    assert [one.text for one in found if one.kind == "install" and "pip install" not in one.text] == []
    before = [one.kind for one, after in itertools.pairwise(found) if after.kind == "output"]
    assert set(before) == {"run"}, "an output follows a command"


@by_night("postgres")
@pytest.mark.timeout(600)
def test_the_tutorial_works(ledger_url, tmp_path):
    folder, scratch = tmp_path / "tutorial", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    page = with_free_ports(PAGE.read_text(), PORTS)
    # On SQLite the page's own ledger is used, penstock.db in the folder.
    where = {} if ledger_url.startswith("sqlite") else {"PENSTOCK_LEDGER": ledger_url}
    with Shell(folder, scratch, environment(**where)) as shell:
        assert follow(page, folder, shell) == len(blocks(page))
        succeeded, said = shell.run("penstock doctor")
    assert succeeded, said


@pytest.mark.parametrize(
    ("shown", "said", "agrees"),
    [
        ("done: create 1 booking unit\n", "done: create 1 booking unit\n", True),
        ("done: create 1 booking unit\n", "done: create 2 booking units\n", False),
        ("a  …  c\n", "a c\n", True),
        ("a  …  c\n", "a b d\n", False),
        ("…\nlast\n", "one\ntwo\nlast\n", True),
        ("…\nlast\n", "one\nlast\ntwo\n", False),
        ("2026-11-17 23:22 (18 s ago)  new\n", "2031-01-01 00:00 (1 min ago)  new\n", True),
        ("2026-11-17 23:22 (18 s ago)  new\n", "yesterday  new\n", False),
        ("worker:a4e0bf3c11cb0784e59d  claimed\n", "worker:13350eabc55f94b3e694  claimed\n", True),
        ("worker:a4e0bf3c11cb0784e59d  claimed\n", "operator:ana  claimed\n", False),
    ],
)
def test_outputs_are_compared(shown, said, agrees):
    assert bool(pattern(shown).fullmatch(said)) is agrees

"""docs/configuration.md shows files that are valid, and every job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.app.app import App
from penstock.app.discover import load
from penstock.app.shipped import SHIPPED, shipped

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "configuration.md").read_text()
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_valid(example, tmp_path):
    path = tmp_path / "penstock.toml"
    path.write_text(example)
    assert load(path, environment={}).app.lifecycles


def test_every_job_is_documented():
    jobs = [job.name for lifecycle in App(*map(shipped, SHIPPED)).lifecycles for job in lifecycle.jobs]
    assert [name for name in jobs if f"\n| `{name}` |" not in PAGE] == []

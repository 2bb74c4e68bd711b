"""docs/configuration.md shows every setting as it is declared."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from penstock.app.app import load_app
from penstock.settings.config import validate
from penstock.settings.declarations import SETTINGS, reference
from penstock.settings.setting import Setting, secret

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "configuration.md").read_text()
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def test_the_table_of_settings_is_what_the_declarations_say():
    shown = re.search(r"<!-- settings -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert shown is not None
    assert shown[1] == reference(), f"the table is stale; it should be\n{reference()}"


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_valid(example):
    settings = (*SETTINGS, Setting("flows.*.token", secret, None, "A token."))
    app = load_app("penstock.examples.invoices:app")
    assert validate(tomllib.loads(example), None, settings, jobs=app.all_jobs(), prunable=app.prunable())


def test_every_job_of_the_kernel_is_documented():
    jobs = load_app("penstock.examples.invoices:app").all_jobs()
    assert [name for name in jobs if f"\n| `{name}` |" not in PAGE] == []

"""docs/partitions.md says what the program does."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from penstock.ledger.schema.tables import machine_table
from penstock.lifecycles.partitions.machine import partition
from penstock.lifecycles.partitions.settings import SETTINGS, settings_of
from penstock.lifecycles.partitions.tables import VERDICTS, partition_attempt
from penstock.lifecycles.partitions.validate import TYPES
from penstock.model.unit import GuardedUnit
from penstock.settings.config import SETTINGS as KERNEL
from penstock.settings.config import validate
from penstock.settings.declarations import reference
from tests.support.ad_source import app

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "partitions.md").read_text()


def test_the_table_of_settings_is_what_the_declarations_say():
    shown = re.search(r"<!-- partition settings -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert shown is not None
    assert shown[1] == reference(SETTINGS), f"the table is stale; it should be\n{reference(SETTINGS)}"


def test_the_example_is_valid():
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    config = validate(tomllib.loads(example), None, (*KERNEL, *SETTINGS), jobs=app.all_jobs())
    assert settings_of(config).key("google_ads/123-456-7890/campaign_daily/2026-11-01").customer_id == "1234567890"


def test_every_column_verdict_type_and_job_is_documented():
    kernel = set(GuardedUnit.__struct_fields__) - {"status"}
    own = [c.name for c in machine_table(partition, "postgresql").columns if c.name not in kernel]
    own.remove("last_action")
    names = [*own, *(c.name for c in partition_attempt.columns), *VERDICTS, *TYPES, *app.configured_jobs]
    assert [name for name in names if f"`{name}`" not in PAGE] == []

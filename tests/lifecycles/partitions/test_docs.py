"""docs/partitions.md says what the program does."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.ledger.schema.tables import machine_table
from penstock.lifecycles.partitions import lifecycle
from penstock.lifecycles.partitions.machine import partition
from penstock.lifecycles.partitions.settings import PartitionSettings
from penstock.lifecycles.partitions.tables import VERDICTS, partition_attempt
from penstock.lifecycles.partitions.validate import TYPES
from penstock.model.unit import GuardedUnit
from penstock.settings.sample import reference
from tests.support.partitions import read_settings

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "partitions.md").read_text()


def test_the_table_of_settings_is_what_the_declarations_say():
    shown = re.search(r"<!-- partition settings -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert shown is not None
    wanted = reference({"partitions": PartitionSettings}).partition("### [partitions]\n\n")[2]
    assert shown[1] == wanted, f"the table is stale; it should be\n{wanted}"


def test_the_example_is_valid():
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    found = read_settings(example)
    assert found.key("google_ads/123-456-7890/campaign_daily/2026-11-01").customer_id == "1234567890"


def test_every_column_verdict_type_job_and_command_is_documented():
    kernel = {*GuardedUnit.__struct_fields__, "last_action"} - {"status"}
    own = [c.name for c in machine_table(partition, "postgresql").columns if c.name not in kernel]
    jobs = [*(job.name for job in lifecycle.jobs), *(one.name for one in lifecycle.schedules(PartitionSettings()))]
    names = [*own, *(c.name for c in partition_attempt.columns), *VERDICTS, *TYPES, *jobs]
    assert [name for name in names if f"`{name}`" not in PAGE] == []
    commands = [f"penstock partitions {one.name}" for one in (*lifecycle.readings, *lifecycle.operations)]
    assert [name for name in commands if f"`{name}" not in PAGE] == []

"""`python -m tests.support.partitions_worker URL SETTINGS`: a worker of partitions as PARTITIONS_CONFIG has them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from penstock.app import discover
from penstock.lifecycles.partitions import lifecycle
from penstock.lifecycles.partitions.machine import MACHINES
from penstock.simulators.google_ads import GoogleAdsSimulator
from penstock.worker.flow import AnyFlow
from tests.support.google import DAILY
from tests.support.program import main

CONFIG = "PARTITIONS_CONFIG"


def write_config(folder: Path, address: str, simulator: GoogleAdsSimulator, raw: str) -> Path:
    """A `penstock.toml` whose customers are the simulator's."""
    (folder / "client").write_text(simulator.client_secret)
    (folder / "refresh").write_text(min(simulator.refresh_tokens))
    path = folder / "penstock.toml"
    path.write_text(f"""
[raw]
url = "{raw}"
[partitions.google_ads]
client_id = "{simulator.client_id}"
client_secret = {{ file = "client" }}
refresh_token = {{ file = "refresh" }}
api_url = "{address}"
token_url = "{address}/token"
[partitions.sources.google_ads]
customers = {sorted(simulator.customers)}
time_zone = "UTC"
[partitions.sources.google_ads.queries.campaign_daily]
gaql = "{DAILY}"
schema_version = "1"
fields = {{ "campaign.id" = "whole", "segments.date" = "date" }}
unique = ["campaign.id"]
date_field = "segments.date"
""")
    return path


def flows() -> Sequence[AnyFlow]:
    program = discover.load(Path(os.environ[CONFIG]))
    return lifecycle.build(program.settings(lifecycle), program.ports)


if __name__ == "__main__":
    main(MACHINES, flows)

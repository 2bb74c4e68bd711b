"""`python -m tests.support.reports_worker URL SETTINGS`: a worker of reports as the file in REPORTS_CONFIG has them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from penstock.lifecycles.reports.flow import Reports, make_flow
from penstock.lifecycles.reports.machine import machine
from penstock.lifecycles.reports.settings import ReportSettings
from penstock.model.clock import SystemClock
from penstock.raw.sink import RawSink
from penstock.settings.file import load
from penstock.simulators.amazon_ads import AmazonAdsSimulator
from tests.support.program import main

CONFIG = "REPORTS_CONFIG"


def write_config(
    folder: Path, address: str, simulator: AmazonAdsSimulator, ledger_url: str, accounts: dict[str, str], **more: Any
) -> Path:
    """A `penstock.toml` whose accounts (name to profile) are the simulator's."""
    (folder / "client").write_text(simulator.client_secret)
    (folder / "refresh").write_text(min(simulator.refresh_tokens))
    lines = [
        "[ledger]",
        f'url = "{ledger_url}"',
        "[reports]",
        f'client_id = "{simulator.client_id}"',
        'client_secret = { file = "client" }',
        'refresh_token = { file = "refresh" }',
        f'private_downloads = ["{address.removeprefix("http://")}"]',
        *(f'{name} = "{value}"' for name, value in more.items()),
    ]
    for name, profile in accounts.items():
        lines += [
            f"[reports.accounts.{name}]",
            f'profile_id = "{profile}"',
            f'api_url = "{address}"',
            f'token_url = "{address}/auth/o2/token"',
        ]
    path = folder / "penstock.toml"
    path.write_text("\n".join([*lines, ""]))
    return path


def flows() -> list[Reports]:
    found = load(Path(os.environ[CONFIG]), {"reports": ReportSettings})
    settings = found.sections["reports"]
    assert isinstance(settings, ReportSettings)
    return [make_flow(settings, RawSink(found.kernel.raw.url), SystemClock())]


if __name__ == "__main__":
    main([machine], flows)

"""Raw sinks on every kind of store."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.raw.sink import RawSink


@pytest.fixture(params=["disk", "memory"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> RawSink:
    """An empty sink; a test that takes it runs once on each kind of store."""
    return RawSink(tmp_path / "raw" if request.param == "disk" else "memory://")

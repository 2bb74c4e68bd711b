"""The lifecycles' tests run on both databases: by day a tenth of them and those marked on PostgreSQL, by night all."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
SHARE = 10


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_postgres = [i for i in items if HERE in i.path.parents and "postgres" in i.name]
    for place, item in enumerate(sorted(on_postgres, key=lambda i: i.nodeid)):
        if place % SHARE and item.get_closest_marker("by_day") is None:
            item.add_marker(pytest.mark.nightly)

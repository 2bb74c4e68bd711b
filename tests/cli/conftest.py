"""The command line in processes of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.console import Console, console


@pytest.fixture(scope="session")
def penstock() -> Iterator[Console]:
    """Call a command: `penstock("status", cwd=folder)`."""
    with console() as made:
        yield made

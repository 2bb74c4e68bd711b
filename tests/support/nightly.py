"""Tests that take long on both databases run on one of them by day, and on both by night."""

from __future__ import annotations

import pytest


def by_night(database: str) -> pytest.MarkDecorator:
    """The test, which takes `ledger_url` or something made of it, runs on this database by night only."""
    both = [pytest.param(d, marks=pytest.mark.nightly) if d == database else d for d in ("sqlite", "postgres")]
    return pytest.mark.parametrize("ledger_url", both, indirect=True)

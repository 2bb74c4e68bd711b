"""A ledger that is away under a step is waited for: it is nobody's failure, least of all the provider's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.model.clock import Rng
from penstock.model.errors import LedgerRefused, LedgerUnavailable
from penstock.worker.executor import InlineExecutor
from penstock.worker.flow import Io


class Away:
    """Work that the ledger answers at the third time."""

    def __init__(self, error: Exception) -> None:
        self.calls = 0
        self._error = error

    def __call__(self, ledger: Any) -> str:
        self.calls += 1
        if self.calls < 3:
            raise self._error
        return f"answered by {ledger}"


def read(work: Away) -> str:
    io = Io("the ledger", InlineExecutor(), lambda: None, Rng(1), None)  # type: ignore[arg-type, return-value]
    return asyncio.run(io.ledger(work))


def test_a_read_waits_until_the_ledger_answers():
    work = Away(LedgerUnavailable("the wire is cut"))
    assert read(work) == "answered by the ledger"
    assert work.calls == 3


def test_what_the_ledger_refuses_is_not_asked_again():
    work = Away(LedgerRefused("no such table"))
    with pytest.raises(LedgerRefused, match="no such table"):
        read(work)
    assert work.calls == 1

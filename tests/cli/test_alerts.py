"""`penstock alerts test` as it is typed: what it prints, and its exit code."""

from __future__ import annotations

import json

import pytest

from penstock.app.discover import load
from penstock.ledger.ledger import Ledger
from penstock.worker.outbox import keep_subscriptions

FILE = """[ledger]
url = "{url}"
"""


@pytest.fixture
def ledger(ledger_url, tmp_path):
    """A ledger whose worker has subscribed the log, the one sink that is there unasked."""
    (tmp_path / "penstock.toml").write_text(FILE.format(url=ledger_url))
    program = load(tmp_path / "penstock.toml", environment={})
    with Ledger.open(ledger_url, program.app.machines, create=True, data_tables=program.tables) as made:
        keep_subscriptions(made, program.subscribers())
        yield made


def test_the_exit_code_says_whether_every_sink_has_taken_it(ledger, penstock, tmp_path):
    taken = penstock("alerts", "test", "--json", cwd=tmp_path)
    assert taken.code == 0, taken.err
    assert json.loads(taken.out)["failed"] is False

    ledger.gates.pause("outbox/alert.log", "operator:jo", "too loud")
    held = penstock("alerts", "test", "--reason", "is it heard?", cwd=tmp_path)
    assert held.code == 1
    assert "the gate outbox/alert.log is paused: too loud" in held.out
    assert "not every sink has taken it" in held.err
    shown = penstock("alerts", "show", "test/all", "--json", cwd=tmp_path)
    assert json.loads(shown.out)["reason"] == "is it heard?"

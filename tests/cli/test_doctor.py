"""`penstock doctor` in a process of its own: with the program's flows and schedules, on the machine's own time."""

from __future__ import annotations

import json
from datetime import timedelta

from penstock.app.app import App
from penstock.examples import invoices
from penstock.ledger.care.look import look
from penstock.ledger.ledger import Ledger
from penstock.model.clock import instant_text
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.worker.schedule import keep_schedules
from penstock.worker.schedule_unit import Schedule
from tests.support.hand import Hand

CONFIGURATION = 'lifecycles = ["penstock.examples.invoices:lifecycle"]\n'


def test_a_late_schedule_and_an_old_claim_are_errors(penstock, ledger_url, tmp_path):
    app = App(invoices.lifecycle)
    (tmp_path / "penstock.toml").write_text(CONFIGURATION)
    with Ledger.open(ledger_url, app.machines, create=True, data_tables=app.data.tables) as ledger:
        keep_schedules(ledger, [Schedule(name="often", job="prune", every="5m")], "test")
        now = ledger.clock.now()
        ref = Ref("schedule", "often")
        due = now + timedelta(days=30)
        ledger.move(ref, "active", actor=Actor.SCHEDULER, who="a wrong clock", reason="x", due_at=due)
        machine = ledger.machine("invoice")
        unit = machine.unit(tenant="acme", number="1", amount_minor=1, due_at=now)  # type: ignore[call-arg]
        ledger.birth([unit], actor=Actor.API, who="test")
        worker = ledger.incarnation(lease_ms=600_000)
        worker.register()
        assert len(worker.claim({"invoice": 1})) == 1
        well = penstock("doctor", "--ledger", ledger_url, "--json", cwd=tmp_path)
        assert [f["check"] for f in json.loads(well.out)["findings"]] == ["schedules"]
        with Hand(ledger_url) as hand:  # as if it had been claimed eleven minutes and a half ago
            old = instant_text(now - timedelta(minutes=11, seconds=30))
            hand.type(f"UPDATE invoice SET claimed_at = '{old}', changed_at = '{old}', version = version + 1")
        answer = penstock("doctor", "--ledger", ledger_url, "--json", cwd=tmp_path)
    found = json.loads(answer.out)
    assert answer.code == 1
    assert {"due", "families", "clock", "overdue", "schedules"} <= set(found["checks"])
    said = {f["check"]: (f["subject"], f["severity"], f["message"]) for f in found["findings"]}
    assert set(said) == {"overdue", "schedules"}
    assert said["schedules"][:2] == ("schedule:often", "error")
    assert f"is due at {instant_text(due)}, and its next tick is at" in said["schedules"][2]
    assert "than a step may take (5 min), the oldest is invoice:acme/1" in said["overdue"][2]


def test_the_command_begins_where_the_job_found_nothing(penstock, ledger_url, tmp_path):
    (tmp_path / "penstock.toml").write_text(CONFIGURATION)
    app = App(invoices.lifecycle)
    said = []

    def looked(*options: str) -> None:
        answer = penstock("doctor", *options, "--ledger", ledger_url, "--json", cwd=tmp_path)
        assert answer.code == 0
        said.append(json.loads(answer.out))

    with Ledger.open(ledger_url, app.machines, create=True, data_tables=app.data.tables) as ledger:
        looked("--since-last")
        look(ledger.database, ledger.machines, lambda _: [], since_last=False)
        looked("--since-last")
        looked()
    assert [one["since"] is None for one in said] == [True, False, True]
    assert f"only what changed since {said[1]['since'][:23]}Z was looked at" in said[1]["verdict"]

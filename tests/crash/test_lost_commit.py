"""The line to PostgreSQL breaks around COMMIT: what landed is found out, nothing is written twice, nothing is lost."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from penstock.ledger.care.doctor import examine
from penstock.ledger.commit import Result, Won
from penstock.ledger.incarnation import Incarnation
from penstock.ledger.ledger import Ledger
from penstock.ledger.prepare import PreparedOutcome
from penstock.model.errors import LedgerUnavailable
from penstock.model.machine import Actor
from penstock.model.outcome import Event, Outcome, Write
from penstock.model.unit import Unit, replace
from tests.support.fleet import Fleet
from tests.support.machines import INVOICE, InvoiceState, invoice
from tests.support.proxy import FAULTS, Fault, Proxy

NOTE = sa.Table("note", sa.MetaData(), sa.Column("id", sa.Text, primary_key=True), sa.Column("text", sa.Text))
AT_ONCE = 3


@pytest.fixture
def ledger(proxied_url: str) -> Iterator[Ledger]:
    with Ledger.open(proxied_url, [INVOICE], create=True, data_tables=[NOTE]) as opened:
        yield opened


def session_over(ledger: Ledger, units: int) -> Incarnation:
    now = ledger.clock.now()
    ledger.birth((invoice(str(n), due_at=now) for n in range(units)), actor=Actor.API, who="test")
    session = ledger.incarnation()
    session.register()
    return session


def sent(ledger: Ledger, session: Incarnation, units: list[Unit]) -> list[PreparedOutcome]:
    """Outcomes with a write that fails when it is made twice, and an event."""
    return [
        ledger.preparer.entry(
            Outcome(
                unit,
                replace(unit, status=InvoiceState.SENT, remote_id="r"),  # type: ignore[call-arg]
                "accepted",
                writes=[Write(NOTE, [{"id": unit.unit_id, "text": "sent"}], "error")],
                events=[Event(f"sent:{unit.unit_id}", "sent", {})],
            ),
            session.identity.id,
        )
        for unit in units
    ]


def commit_as_a_worker_does(session: Incarnation, entries: list[PreparedOutcome]) -> list[Result]:
    for _ in range(50):
        try:
            return session.commit(entries)
        except LedgerUnavailable:
            continue
    raise AssertionError("never answered")


def claim_as_a_worker_does(session: Incarnation) -> list[Unit]:
    try:
        return session.claim({"invoice": AT_ONCE})
    except LedgerUnavailable:
        pass
    for _ in range(50):
        try:
            return session.recover(set())
        except LedgerUnavailable:
            continue
    raise AssertionError("never answered")


def audit(ledger: Ledger, units: int) -> None:
    def count(sql: str) -> int:
        return int(ledger.read(lambda c: c.rows(sql))[0][0])

    assert count("SELECT count(*) FROM invoice WHERE status = 'SENT' AND claimed_by IS NULL AND crashes = 0") == units
    assert count("SELECT count(*) FROM transition_log WHERE to_status = 'SENT'") == units
    assert count("SELECT count(*) FROM transition_log") == 3 * units, "born, claimed, sent"
    assert count("SELECT count(*) FROM note") == units
    assert count("SELECT count(*) FROM event_log") == units
    assert examine(ledger.database, {"invoice": INVOICE}) == []


def lose_commits(ledger: Ledger, proxy: Proxy, fault: Fault, rounds: int) -> None:
    session = session_over(ledger, AT_ONCE * rounds)
    for _ in range(rounds):
        units = session.claim({"invoice": AT_ONCE})
        proxy.once(fault)
        results = commit_as_a_worker_does(session, sent(ledger, session, units))
        assert [type(r) for r in results] == [Won] * AT_ONCE
    assert proxy.faults == rounds
    session.retire()  # nobody renews its lease, and a thousand rounds last longer
    audit(ledger, AT_ONCE * rounds)


def lose_claims(ledger: Ledger, proxy: Proxy, fault: Fault, rounds: int) -> None:
    session = session_over(ledger, AT_ONCE * rounds)
    found = 0
    for _ in range(rounds):
        proxy.once(fault)
        units = claim_as_a_worker_does(session)
        found += bool(units)
        units = units or session.claim({"invoice": AT_ONCE})
        assert len(units) == AT_ONCE
        session.commit(sent(ledger, session, units))
    assert proxy.faults == rounds
    assert {"before": found == 0, "after": found == rounds, "during": True}[fault]
    session.retire()
    audit(ledger, AT_ONCE * rounds)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_commit_whose_answer_is_lost_is_resolved_every_time(ledger, proxy, fault):
    lose_commits(ledger, proxy, fault, rounds=50)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_claim_whose_answer_is_lost_is_found_again_and_is_no_crash(ledger, proxy, fault):
    lose_claims(ledger, proxy, fault, rounds=30)


@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("lose", [lose_commits, lose_claims])
def test_a_thousand_answers_are_lost_and_each_is_resolved(ledger, proxy, fault, lose):
    lose(ledger, proxy, fault, rounds=1_000)


def test_a_question_whose_answer_is_lost_too_is_asked_again(ledger, proxy):
    """The line keeps breaking, at random, while commits and the questions about them are under way."""
    rounds = 60
    session = session_over(ledger, AT_ONCE * rounds)
    chance = random.Random(7)
    for _ in range(rounds):
        proxy.plan = lambda: None
        units = session.claim({"invoice": AT_ONCE})
        proxy.plan = lambda: chance.choice((None, *FAULTS))
        results = commit_as_a_worker_does(session, sent(ledger, session, units))
        assert [type(r) for r in results] == [Won] * AT_ONCE
    proxy.plan = lambda: None
    assert proxy.faults > rounds
    audit(ledger, AT_ONCE * rounds)


def test_workers_behind_a_line_that_keeps_breaking_lose_nothing(proxied_url, postgres_url, proxy, tmp_path):
    names = [f"{n:04}" for n in range(400)]
    chance, lock = random.Random(8), threading.Lock()

    def plan() -> Fault | None:
        with lock:
            return chance.choice(FAULTS) if chance.random() < 0.2 else None

    with Fleet(postgres_url, tmp_path / "fleet", concurrency=10, slots=20, claim_at_once=10) as fleet:
        fleet.born(*names, before_ms=20)
        proxy.plan = plan
        fleet.start(2, url=proxied_url)
        fleet.finish()
        proxy.plan = lambda: None
        assert len(fleet.living) == 2
        fleet.stop()
        assert proxy.faults > 10
        fleet.audit(names)

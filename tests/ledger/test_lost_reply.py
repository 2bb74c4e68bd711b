"""When the database goes away in the middle of a commit: nothing is written twice, lost, or reported wrongly."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.ledger.commit import Lost, Refused, Won
from penstock.ledger.incarnation import Incarnation
from penstock.model.errors import CommitUnknown, LedgerUnavailable
from penstock.model.outcome import Event, Outcome
from penstock.model.unit import Ref, replace
from tests.support.machines import Invoice, InvoiceState, invoice
from tests.support.world import World


class Line:
    """The real database behind a line that fails on command: before the work, or after a COMMIT that landed or not."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.faults: Iterator[str] = iter(())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def write(self, work: Callable[[Any], Any]) -> Any:
        fault = next(self.faults, "fine")
        if fault == "away":
            raise LedgerUnavailable("the database is away")
        if fault == "landed":
            self._database.write(work)
            raise CommitUnknown("the answer to COMMIT was lost")
        if fault == "vanished":

            def work_and_vanish(cursor: Any) -> None:
                work(cursor)
                raise CommitUnknown("the connection broke before COMMIT arrived")

            self._database.write(work_and_vanish)
        return self._database.write(work)


@pytest.fixture
def line(world: World) -> Line:
    return Line(world.ledger.database)


def connect(world: World, line: Line) -> Incarnation:
    fresh = world.ledger.incarnation()
    session = Incarnation(line, world.ledger.machines, world.clock, fresh.identity)
    session.register()
    return session


def outcomes(units: list[Invoice], *, bad: int | None = None, keep: bool = False) -> list[Outcome[Invoice]]:
    return [
        Outcome(
            u,
            replace(u, status=InvoiceState.SENT, remote_id=None if i == bad else "r"),
            "accepted",
            events=[Event(f"{u.number}:{u.version}", "sent", {})],
        )
        if not keep
        else Outcome(u, replace(u, amount_minor=-1 - i), "intent", keep_claim=True)
        for i, u in enumerate(units)
    ]


def persist(session: Incarnation, world: World, made: list[Outcome[Invoice]]) -> list[Any]:
    """Commit as the group committer does: the same batch again until there is an answer."""
    entries = [world.ledger.preparer.entry(o, session.identity.id) for o in made]
    for _ in range(20):
        try:
            return session.commit(entries)
        except LedgerUnavailable:
            continue
    raise AssertionError("no answer after twenty tries")


def claim(world: World, session: Incarnation, *numbers: str) -> list[Any]:
    world.born(*(invoice(n) for n in numbers))
    return session.claim({"invoice": len(numbers)})


# The line fails in these ways, one per transaction. After a lost COMMIT the next one asks whether it landed.
FAULTS = {
    "away": ["away", "away"],
    "landed": ["landed"],
    "vanished": ["vanished"],
    "vanished, then landed": ["vanished", "fine", "landed"],
    "landed, and away when asked": ["landed", "away", "away"],
    "vanished, and away when asked": ["vanished", "away"],
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS.keys())
def test_a_batch_is_committed_once_and_known_to_be(world, line, faults):
    session = connect(world, line)
    units = claim(world, session, "1", "2", "3")
    line.faults = iter(faults)
    assert persist(session, world, outcomes(units)) == [Won()] * 3
    for unit in units:
        ref = Ref("invoice", unit.unit_id)
        assert world.unit(ref).version == unit.version + 1
        assert [h[1] for h in world.history(ref)] == ["QUEUED", "SENDING", "SENT"]
    assert world.one("SELECT count(*) FROM event_log") == 3


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS.keys())
def test_kept_claims_come_back_after_a_lost_reply(world, line, faults):
    session = connect(world, line)
    units = claim(world, session, "1", "2")
    line.faults = iter(faults)
    results = persist(session, world, outcomes(units, keep=True))
    assert [r.unit for r in results] == [world.unit(Ref("invoice", u.unit_id)) for u in units]
    assert [r.unit.amount_minor for r in results] == [-1, -2]
    assert persist(session, world, outcomes([r.unit for r in results])) == [Won()] * 2


def test_a_lost_reply_that_landed_does_not_vouch_for_the_next_commit(world, line):
    """Two lost replies in a row: the second batch did not land, and must not be taken for the first."""
    session = connect(world, line)
    first = claim(world, session, "1")
    line.faults = iter(["landed"])
    assert persist(session, world, outcomes(first)) == [Won()]
    second = claim(world, session, "2")
    line.faults = iter(["vanished"])
    assert persist(session, world, outcomes(second)) == [Won()]
    assert world.unit(Ref("invoice", "acme/2")).status is InvoiceState.SENT


@pytest.mark.parametrize("fault", ["away", "landed", "vanished"])
def test_a_fault_while_a_refused_batch_is_halved(world, line, fault):
    """What the first halves came to is remembered, whichever transaction of the halving the fault hits."""
    session = connect(world, line)
    for at, bad in itertools.product(range(1, 9), [0, 3, 4, 7]):
        units = claim(world, session, *(f"{at}-{bad}-{n}" for n in range(8)))
        line.faults = iter(["fine"] * at + [fault])
        results = persist(session, world, outcomes(units, bad=bad))
        line.faults = iter(())
        assert [i for i, r in enumerate(results) if isinstance(r, Refused)] == [bad]
        assert [r for i, r in enumerate(results) if i != bad] == [Won()] * 7
        states = [world.unit(Ref("invoice", u.unit_id)) for u in units]
        assert [u.version - w.version for u, w in zip(states, units, strict=True)] == [int(i != bad) for i in range(8)]
        assert [str(u.status) for u in states] == ["SENDING" if i == bad else "SENT" for i in range(8)]
    assert world.one("SELECT count(*) FROM event_log") == 8 * 4 * 7


def test_losers_stay_losers_after_a_lost_reply(world, line):
    session = connect(world, line)
    units = claim(world, session, "1", "2")
    world.sql("UPDATE invoice SET status = 'FAILED' WHERE number = '1'")
    line.faults = iter(["landed"])
    assert persist(session, world, outcomes(units)) == [Lost(), Won()]


def test_the_next_batch_starts_afresh_after_a_lost_reply(world, line):
    session = connect(world, line)
    first = claim(world, session, "1", "2")
    line.faults = iter(["landed"])
    assert persist(session, world, outcomes(first)) == [Won(), Won()]
    second = claim(world, session, "3")
    assert persist(session, world, outcomes(second)) == [Won()]
    assert persist(session, world, outcomes(second)) == [Lost()]


def test_a_claim_whose_reply_was_lost_is_recovered(world, line):
    session = connect(world, line)
    world.born(invoice("1"), invoice("2"))
    line.faults = iter(["landed"])
    with pytest.raises(LedgerUnavailable):
        session.claim({"invoice": 1})
    (found,) = session.recover(set())
    assert isinstance(found, Invoice)
    assert found.claimed_by == session.identity.id
    assert persist(session, world, outcomes([found])) == [Won()]

"""The ledger against a plain model: any order of births, claims, commits, crashes, wake-ups, moves and foreign SQL.

Both databases play the same rules. One database serves all examples: each has a tenant and gates of its own, and leaves
nothing behind that is due or claimed. Time stands still unless a rule moves it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.ledger.claim import Levels
from penstock.ledger.commit import Lost, Result, Won
from penstock.ledger.incarnation import LEASE_MS, Incarnation
from penstock.ledger.suspicion import CRASH_LIMIT
from penstock.model.errors import IllegalMove, LedgerRefused
from penstock.model.machine import Actor
from penstock.model.outcome import Outcome
from penstock.model.unit import Ref, replace
from tests.support.hand import literal
from tests.support.machines import INVOICE, InvoiceState, invoice
from tests.support.world import World

GATES = ("east", "west")
LEASE = timedelta(milliseconds=LEASE_MS)
LEGAL = {pair for pair in INVOICE.pairs if pair[0] != pair[1]}
FOR_WORKERS = {pair for pair in LEGAL if Actor.WORKER in INVOICE.pairs[pair]}
EXAMPLES = itertools.count(1)

seconds = st.sampled_from([0, 1, 5, 29, 31, 90])
pick = st.integers(0, 10**6)


@dataclass
class Copy:
    """What the model believes of one unit."""

    status: str
    due: datetime | None
    gate: str
    version: int
    claimed_by: str | None = None
    wakes: int = 0
    crashes: int = 0
    doubts: int = 0
    deaths: list[str] = field(default_factory=list)
    parked: bool = False
    amount: int = 100
    remote: str | None = None
    history: list[tuple[str | None, str, str]] = field(default_factory=list)

    def go(self, status: str, actor: str) -> None:
        if status != self.status:
            self.history.append((self.status, status, actor))
            self.status = status

    def told(self, actor: str) -> None:
        """Somebody who is not a worker changed it where it is: that is in the history too."""
        self.history.append((self.status, self.status, actor))

    def typed(self, status: str) -> None:
        """A stranger changed something: whoever held the unit has lost it, and may have made a call."""
        self.history.append((self.status, status, "sql"))
        self.status = status
        self.version += 1
        if self.claimed_by is not None:
            self.doubts = max(self.doubts, 1)
        self.claimed_by = None


@dataclass(eq=False)
class Hand:
    """A worker, and the units it believes to hold."""

    session: Incarnation
    lease_until: datetime
    gone: bool = False
    last_gate: str = ""
    held: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.session.identity.id


class LedgerModel(RuleBasedStateMachine):
    """Every rule does the same to the ledger and to the model; after each the two are compared."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.tenant = f"t{next(EXAMPLES)}"
        self.units: dict[str, Copy] = {}
        self.hands: list[Hand] = []
        self.closed_until: dict[str, datetime] = {}
        self.charged: dict[str, str] = {}

    @property
    def now(self) -> datetime:
        return self.world.time.now()

    def gate(self, name: str) -> str:
        return f"{self.tenant}-{name}"

    def word(self) -> str:
        """A reason that nobody has given before: the same words in the same millisecond are one change."""
        return f"reason {next(EXAMPLES)}"

    def id_of(self, number: str) -> str:
        return f"{self.tenant}/{number}"

    def chosen(self, number: int) -> str:
        return sorted(self.units)[number % len(self.units)]

    def working(self, number: int) -> Hand:
        return self.hands[number % len(self.hands)]

    def has_units(self) -> bool:
        return bool(self.units)

    def has_held(self) -> bool:
        return any(h.held for h in self.hands)

    @initialize(n=st.integers(1, 5))
    def begin(self, n: int) -> None:
        """Two workers with units in their hands: most rules have something to do from the first step on."""
        self.come()
        self.come()
        for gate in ("none", *GATES, *GATES):
            self.birth(due=0, ago=False, gate=gate)
        self.claim(worker=0, n=n, heard=True)
        self.claim(worker=1, n=1, heard=True)

    @precondition(lambda self: sum(not h.gone for h in self.hands) < 3)
    @rule()
    def come(self) -> None:
        session = self.world.worker("invoice")
        self.hands.append(Hand(session, self.now + LEASE))

    @precondition(lambda self: len(self.units) < 9)
    @rule(due=st.none() | seconds, ago=st.booleans(), gate=st.sampled_from([*GATES, "none"]))
    def birth(self, due: int | None, ago: bool, gate: str) -> None:
        number = f"{len(self.units):03}"
        at = None if due is None else self.now + timedelta(seconds=-due if ago else due)
        gate_id = "none" if gate == "none" else self.gate(gate)
        (ref,) = self.world.born(invoice(number, tenant=self.tenant, due_at=at, gate_id=gate_id))
        version = self.world.unit(ref).version
        self.units[number] = Copy("QUEUED", at, gate_id, version, history=[(None, "QUEUED", "api:test")])

    @precondition(has_units)
    @rule(number=pick, if_absent=st.booleans())
    def birth_again(self, number: int, if_absent: bool) -> None:
        again = [invoice(self.chosen(number), tenant=self.tenant)]
        if if_absent:
            assert self.world.ledger.birth(again, actor=Actor.API, who="test", if_absent=True) == 0
        else:
            with pytest.raises(LedgerRefused):
                self.world.born(*again)

    @rule(amount=seconds)
    def time_passes(self, amount: int) -> None:
        self.world.time.advance(amount)

    def expected_claim(self, hand: Hand, n: int, levels: Levels | None) -> list[str]:
        if hand.gone:
            return []
        low, high = levels or (0, 0)
        by_gate: dict[str, list[tuple[datetime, str]]] = {}
        for number, unit in self.units.items():
            shut = self.closed_until.get(unit.gate, self.now) > self.now
            held_back = unit.claimed_by or unit.parked or shut or not low <= len(unit.deaths) <= high
            if unit.due is not None and unit.due <= self.now and not held_back:
                by_gate.setdefault(unit.gate, []).append((unit.due, number))
        turn = sorted(by_gate, key=lambda g: (g <= hand.last_gate, g))
        share = math.ceil(n / len(turn)) if turn else 0
        taken = [number for g in turn for _, number in sorted(by_gate[g])[:share]][:n]
        if taken and levels is None:
            gates = {self.units[number].gate for number in taken}
            hand.last_gate = max({g for g in gates if g <= hand.last_gate} or gates)
        return sorted(taken, key=lambda number: (self.units[number].due, number))

    @rule(
        worker=pick,
        n=st.integers(1, 6),
        heard=st.sampled_from([True, True, True, False]),
        levels=st.sampled_from([None, None, Levels(1, 1), Levels(1, 99), Levels(2, 3)]),
    )
    def claim(self, worker: int, n: int, heard: bool, levels: Levels | None = None) -> None:
        """`heard=False`: the reply to the claim was lost on the way. `levels`: of suspects."""
        hand = self.working(worker)
        expected = self.expected_claim(hand, n, levels)
        claimed: list[Any] = hand.session.take({"invoice": n}, levels=levels).units
        assert [u.unit_id for u in claimed] == [self.id_of(number) for number in expected]
        for number, unit in zip(expected, claimed, strict=True):
            copy = self.units[number]
            copy.claimed_by = hand.name
            copy.version += 1
            if copy.status == "QUEUED":
                copy.go("SENDING", f"worker:{hand.name}")
            if heard:
                hand.held[number] = unit

    @rule(worker=pick)
    def claim_all(self, worker: int) -> None:
        self.world.time.advance(90)
        for hand in self.hands:
            self.renew_if_alive(hand)
        self.claim(worker=worker, n=9, heard=True)
        self.claim(worker=worker, n=9, heard=True, levels=Levels(1, 99))

    @rule(worker=pick)
    def recover(self, worker: int) -> None:
        hand = self.working(worker)
        mine = {n for n, c in self.units.items() if c.claimed_by == hand.name}
        found: list[Any] = hand.session.recover({("invoice", self.id_of(n)) for n in hand.held})
        assert {u.number for u in found} == mine - set(hand.held)
        hand.held |= {u.number: u for u in found}

    def a_held_one(self, worker: int, number: int) -> tuple[Hand, str, Any]:
        holders = [h for h in self.hands if h.held]
        hand = holders[worker % len(holders)]
        name = sorted(hand.held)[number % len(hand.held)]
        return hand, name, hand.held.pop(name)

    @precondition(has_held)
    @rule(
        worker=pick,
        number=pick,
        to=st.sampled_from([None, "SENT", "QUEUED", "FAILED"]),
        due=st.none() | seconds,
        keep=st.booleans(),
        park=st.sampled_from([False, False, False, True]),
        crash=st.sampled_from([False, False, False, True]),
    )
    def commit(
        self, *, worker: int, number: int, to: str | None, due: int | None, keep: bool, park: bool, crash: bool
    ) -> None:
        hand, name, unit = self.a_held_one(worker, number)
        at = None if due is None else self.now + timedelta(seconds=due)
        after = replace(unit, due_at=at, remote_id="r", gate_id=self.gate("west") if crash else unit.gate_id)
        if to is not None and (str(unit.status), to) in FOR_WORKERS:
            after = replace(after, status=InvoiceState(to))
        if park:
            after = replace(after, parked_at=self.now, parked_reason="set aside")
        if crash:
            after = replace(after, crashes=unit.crashes + 1)
        outcome = Outcome(unit, after, "stepped", keep_claim=keep)
        (result,) = self.world.commit(hand.session, outcome)
        self.committed(hand, name, outcome, result)

    @precondition(has_held)
    @rule(to=st.sampled_from([None, "SENT", "QUEUED", "FAILED"]), due=st.none() | seconds, keep=st.booleans())
    def commit_all(self, to: str | None, due: int | None, keep: bool) -> None:
        """Each worker commits all it believes to hold, in one batch."""
        at = None if due is None else self.now + timedelta(seconds=due)
        for hand in self.hands:
            made = {}
            for name, unit in sorted(hand.held.items()):
                status = InvoiceState(to) if to and (str(unit.status), to) in FOR_WORKERS else unit.status
                after = replace(unit, due_at=at, remote_id="r", status=status)
                made[name] = Outcome(unit, after, "stepped", keep_claim=keep)
            hand.held = {}
            results = self.world.commit(hand.session, *made.values())
            for (name, outcome), result in zip(made.items(), results, strict=True):
                self.committed(hand, name, outcome, result)

    def committed(self, hand: Hand, name: str, outcome: Outcome[Any], result: Result) -> None:
        """What the model makes of a commit: only who still has the version wins."""
        before, after, copy = outcome.before, outcome.after, self.units[name]
        if copy.version != before.version:
            assert result == Lost()
            return
        assert isinstance(result, Won)
        at = after.due_at
        if copy.wakes != before.wakes and copy.due is not None and (at is None or copy.due < at):
            at = copy.due
        copy.due = None if after.status == "SENT" else at
        copy.version += 1
        if after.crashes != before.crashes:
            copy.crashes = after.crashes
        elif not outcome.keep_claim:  # an intent is not yet a success
            copy.crashes = 0
        if not outcome.keep_claim:
            copy.doubts, copy.deaths = 0, []
        copy.parked = copy.parked or after.parked_at is not None
        copy.gate, copy.remote = after.gate_id, after.remote_id
        copy.go(str(after.status), f"worker:{hand.name}")
        if outcome.keep_claim:
            hand.held[name] = result.unit
        else:
            copy.claimed_by = None

    @precondition(has_held)
    @rule(worker=pick, number=pick, begun=st.booleans())
    def release(self, worker: int, number: int, begun: bool) -> None:
        hand, name, unit = self.a_held_one(worker, number)
        hand.session.release([(unit, begun)])
        copy = self.units[name]
        if copy.version == unit.version and copy.claimed_by == hand.name:
            copy.claimed_by = None
            copy.version += 1
            copy.doubts += begun

    @rule(worker=pick)
    def renew(self, worker: int) -> None:
        hand = self.working(worker)
        assert (hand.session.renew() is None) == hand.gone
        hand.lease_until = self.now + LEASE

    def renew_if_alive(self, hand: Hand) -> None:
        if not hand.gone:
            assert hand.session.renew() is not None
            hand.lease_until = self.now + LEASE

    @rule(worker=pick)
    def reap(self, worker: int) -> None:
        reaper = self.working(worker)  # who never reaps himself
        dead = [h for h in self.hands if not (h.gone or h is reaper) and h.lease_until < self.now]
        lefts = {hand.name: [c for c in self.units.values() if c.claimed_by == hand.name] for hand in dead}
        freed = sum(map(len, lefts.values()))
        for hand in dead:
            hand.gone = True
            known = [c for c in lefts[hand.name] if c.deaths] or lefts[hand.name]
            for copy in lefts[hand.name]:
                copy.claimed_by = None
                copy.version += 1
                copy.doubts += 1
                copy.deaths = [*copy.deaths, hand.name]
            if len(known) == 1:
                self.charge(known[0])
        assert reaper.session.reap() == freed

    def charge(self, copy: Copy) -> None:
        """The only suspect of a death; parked at the third, if half of the deaths since are its own or another's."""
        copy.version += 1
        copy.crashes += 1
        number = next(n for n, c in self.units.items() if c is copy)
        self.charged[copy.deaths[-1]] = number
        if len(copy.deaths) > 1 and copy.due is not None:
            copy.due = max(copy.due, self.now)
        if copy.crashes < CRASH_LIMIT:
            return
        died = "SELECT id, reaped_at, charged FROM worker WHERE reaped_at IS NOT NULL AND stopped_at IS NULL"
        ended = {id_: (at, charged) for id_, at, charged in self.world.rows(died)}
        own = copy.deaths[-CRASH_LIMIT:]
        first = min((ended[d][0] for d in own if d in ended), default=None)
        others = [d for d, (at, _) in ended.items() if first is not None and at >= first and d not in own]
        at_work = "SELECT count(*) FROM worker WHERE commit_seq > 0 AND (reaped_at IS NULL OR reaped_at >= :first)"
        if len(others) > CRASH_LIMIT and self.world.one(at_work.replace(":first", literal(first))):
            others = [d for d in others if not self.explained(d, ended[d][1])]
        if len(others) > CRASH_LIMIT:
            copy.crashes = CRASH_LIMIT - 1
            return
        shared, copy.parked, copy.deaths = {*copy.deaths[-8:]}, True, []
        for other in self.units.values():
            if other.claimed_by is None and shared & {*other.deaths[-8:]}:
                other.deaths = []
                other.version += 1

    def explained(self, death: str, charged: str | None) -> bool:
        """Whether a death is charged to a unit that was charged twice and that no step has cleared since."""
        if death in self.charged:
            return self.units[self.charged[death]].crashes >= CRASH_LIMIT - 1
        known = f"SELECT count(*) FROM invoice WHERE unit_id = :unit_id AND crashes >= {CRASH_LIMIT - 1}"
        return charged is not None and bool(self.world.one(known, unit_id=charged.partition(":")[2]))

    @rule(worker=pick, survivor=pick)
    def die(self, worker: int, survivor: int) -> None:
        """A worker stops renewing; the others go on, and one of them reaps."""
        dead = self.working(worker)
        self.world.time.advance(LEASE.total_seconds() + 1)
        for hand in self.hands:
            if hand is not dead:
                self.renew_if_alive(hand)
        self.reap(worker=survivor)
        if all(h.gone for h in self.hands):
            self.come()

    @precondition(lambda self: sum(not h.gone for h in self.hands) > 1)
    @rule(worker=pick)
    def retire(self, worker: int) -> None:
        hand = self.working(worker)
        hand.session.retire()
        if hand.gone:
            return
        hand.gone = True
        for copy in self.units.values():
            if copy.claimed_by == hand.name:
                copy.claimed_by = None
                copy.version += 1
                copy.doubts += 1

    @precondition(has_held)
    @rule(number=pick)
    def wake_held(self, number: int) -> None:
        held = sorted({n for h in self.hands for n in h.held})
        self.wake(number=sorted(self.units).index(held[number % len(held)]))

    @precondition(has_units)
    @rule(number=pick)
    def wake(self, number: int) -> None:
        name = self.chosen(number)
        copy = self.units[name]
        ended = copy.status == "SENT"
        assert self.world.ledger.nudge([Ref("invoice", self.id_of(name))]) == (not ended)
        if not ended:
            copy.wakes += 1
            copy.due = self.now if copy.due is None else min(copy.due, self.now)

    @precondition(has_units)
    @rule(number=pick)
    def wake_by_hand(self, number: int) -> None:
        """As `wake`, in somebody's name: the version stays, and so does whoever holds the unit."""
        name = self.chosen(number)
        copy = self.units[name]
        done = self.world.ledger.wake([Ref("invoice", self.id_of(name))], who="ann", reason=self.word())
        assert len(done.moved) == (copy.status != "SENT")
        if done.moved:
            copy.told("operator:ann")
            copy.wakes += 1
            copy.due = self.now if copy.due is None else min(copy.due, self.now)

    @precondition(has_units)
    @rule(number=pick)
    def park_by_hand(self, number: int) -> None:
        name = self.chosen(number)
        copy = self.units[name]
        done = self.world.ledger.park([Ref("invoice", self.id_of(name))], who="ann", reason=self.word())
        assert len(done.moved) == (copy.status != "SENT" and not copy.parked)
        if done.moved:
            copy.told("operator:ann")
            copy.doubts = copy.doubts or int(copy.claimed_by is not None)
            copy.parked, copy.claimed_by = True, None
            copy.version += 1

    @precondition(has_units)
    @rule(number=pick)
    def unpark_by_hand(self, number: int) -> None:
        name = self.chosen(number)
        copy = self.units[name]
        done = self.world.ledger.unpark([Ref("invoice", self.id_of(name))], who="ann", reason=self.word())
        assert len(done.moved) == (copy.status != "SENT" and copy.parked)
        if done.moved:
            copy.told("operator:ann")
            copy.due = self.now if copy.due is None else min(copy.due, self.now)
            copy.parked, copy.crashes, copy.deaths = False, 0, []
            copy.version += 1

    @precondition(has_units)
    @rule(number=pick, due=st.none() | seconds, unpark=st.booleans())
    def move(self, number: int, due: int | None, unpark: bool) -> None:
        """An operator retries by hand: an edge from FAILED, staying in QUEUED, illegal from elsewhere."""
        name = self.chosen(number)
        copy = self.units[name]
        at = None if due is None else self.now + timedelta(seconds=due)
        changes: dict[str, Any] = {"due_at": at} | ({"parked_at": None, "parked_reason": None} if unpark else {})

        def pull() -> None:
            said: dict[str, Any] = {"actor": Actor.OPERATOR, "who": "ann", "reason": self.word()}
            self.world.ledger.move(Ref("invoice", self.id_of(name)), "QUEUED", **said, **changes)

        if copy.status not in ("FAILED", "QUEUED"):
            with pytest.raises(IllegalMove):
                pull()
            return
        pull()
        if copy.status == "QUEUED":
            copy.told("operator:ann")
        copy.go("QUEUED", "operator:ann")
        copy.doubts = copy.doubts or int(copy.claimed_by is not None)
        copy.due, copy.claimed_by, copy.crashes, copy.deaths = at, None, 0, []
        copy.version += 1
        copy.parked = copy.parked and not unpark

    @precondition(has_units)
    @rule(number=pick, to=st.sampled_from([*InvoiceState]))
    def type_sql(self, number: int, to: InvoiceState) -> None:
        """Somebody changes the state by hand: refused, or logged as a stranger's and taken from whoever held it."""
        name = self.chosen(number)
        copy = self.units[name]
        statement = "UPDATE invoice SET status = :status, remote_id = 'r' WHERE unit_id = :unit_id"
        given = {"status": str(to), "unit_id": self.id_of(name)}
        if str(to) != copy.status and (copy.status, str(to)) not in LEGAL:
            with pytest.raises(LedgerRefused):
                self.world.sql(statement, **given)
            return
        assert self.world.sql(statement, **given) == 1
        if str(to) != copy.status or copy.remote != "r":
            copy.remote = "r"
            copy.typed(str(to))

    @precondition(has_held)
    @rule(
        number=pick, amount=st.integers(99, 101), remote=st.sampled_from([None, "r", "other"]), due=st.none() | seconds
    )
    def type_columns(self, number: int, amount: int, remote: str | None, due: int | None) -> None:
        """Somebody changes columns by hand, most often of a unit that is held; its schedule where `due` says so."""
        held = sorted({n for h in self.hands for n in h.held})
        name = held[number % len(held)] if number % 3 else self.chosen(number)
        copy = self.units[name]
        at = copy.due if due is None else self.now + timedelta(seconds=due)
        if copy.status == "SENT":
            remote = remote or "r"
        changed = (copy.amount, copy.remote, copy.due) != (amount, remote, at)
        self.world.sql(
            f"UPDATE invoice SET amount_minor = {amount}, remote_id = {literal(remote)}, due_at = {literal(at)}"
            f" WHERE unit_id = {literal(self.id_of(name))}"
        )
        copy.amount, copy.remote, copy.due = amount, remote, at
        if changed:
            copy.typed(copy.status)

    @rule(worker=pick, gate=st.sampled_from(GATES), amount=seconds)
    def close_gate(self, worker: int, gate: str, amount: int) -> None:
        gate_id = self.gate(gate)
        self.working(worker).session.gates.close(gate_id, amount, "throttled")
        if self.world.one("SELECT count(*) FROM gate WHERE gate_id = :gate", gate=gate_id):
            until = self.now + timedelta(seconds=amount)
            self.closed_until[gate_id] = max(self.closed_until.get(gate_id, until), until)

    @invariant()
    def the_ledger_is_what_the_model_says(self) -> None:
        found = {u.number: u for u in self.world.ledger.get_many(INVOICE, [self.id_of(n) for n in self.units])}
        assert {
            n: (
                str(u.status),
                u.due_at,
                u.claimed_by,
                u.version,
                u.wakes,
                u.crashes,
                u.doubts,
                u.suspicion,
                u.parked_at is not None,
                u.gate_id,
                u.amount_minor,
                u.remote_id,
            )
            for n, u in found.items()
        } == {
            n: (
                *(c.status, c.due, c.claimed_by, c.version, c.wakes, c.crashes, c.doubts, len(c.deaths)),
                *(c.parked, c.gate),
                *(c.amount, c.remote),
            )
            for n, c in self.units.items()
        }

    @invariant()
    def the_history_is_one_unbroken_line(self) -> None:
        rows = self.world.rows(
            "SELECT unit_id, from_status, to_status, actor, version FROM transition_log"
            " WHERE machine = 'invoice' AND unit_id LIKE :tenant ORDER BY seq",
            tenant=f"{self.tenant}/%",
        )
        lines: dict[str, list[Any]] = {}
        for unit_id, *row in rows:
            lines.setdefault(unit_id.split("/")[1], []).append(row)
        assert set(lines) == set(self.units)
        for number, line in lines.items():
            assert [tuple(r[:3]) for r in line] == self.units[number].history
            assert [r[0] for r in line[1:]] == [r[1] for r in line[:-1]]
            assert line[-1][1] == self.units[number].status
            versions = [r[3] for r in line]
            assert versions == sorted(versions), "versions never fall"
            woken = [a[0] == a[1] and a[2] == "operator:ann" for a in line]
            assert all(a < b or by for a, b, by in zip(versions, versions[1:], woken[1:], strict=False)), "or wake"
            assert versions[-1] <= self.units[number].version

    def teardown(self) -> None:
        for hand in self.hands:
            hand.session.retire()
        self.world.sql("UPDATE invoice SET due_at = NULL WHERE tenant = :tenant", tenant=self.tenant)


def play(machine: Callable[[World], RuleBasedStateMachine], world: World, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        functools.partial(machine, world),  # type: ignore[arg-type]  # any factory serves
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            suppress_health_check=[*HealthCheck],
        ),
    )


def test_the_ledger_follows_the_model(world):
    play(LedgerModel, world, examples=30, steps=50)


@pytest.mark.nightly
def test_the_ledger_follows_the_model_for_long(world):
    play(LedgerModel, world, examples=2_000, steps=60)

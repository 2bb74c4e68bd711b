"""The states, edges, actors and invariants of runs and targets, in Python and against anyone who types SQL."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from penstock.lifecycles.rules.run.machine import Kind, R, Run, rule_run
from penstock.lifecycles.rules.target.machine import T, Target, rule_target
from penstock.model.clock import VirtualClock
from penstock.model.errors import IllegalMove
from penstock.model.machine import Actor, Machine
from penstock.model.unit import replace
from tests.support.hand import Hand, literal, typed_insert
from tests.support.price_shop import euros
from tests.support.prices import START, open_ledger

API, OPERATOR, WORKER, SCHEDULER = Actor.API, Actor.OPERATOR, Actor.WORKER, Actor.SCHEDULER
USER = {API, OPERATOR}

RUN_EDGES = {
    ("PREVIEW", "QUEUED"): {API, SCHEDULER},
    ("QUEUED", "APPLYING"): {WORKER},
    ("APPLYING", "APPLIED"): {WORKER},
    ("APPLYING", "PARTIAL"): {WORKER},
    ("APPLYING", "FAILED"): {WORKER},
    ("PARTIAL", "APPLYING"): USER,
    ("FAILED", "APPLYING"): USER,
    ("APPLIED", "ROLLED_BACK"): USER,
    ("PARTIAL", "ROLLED_BACK"): USER,
}
TARGET_EDGES = {
    ("PREVIEW", "QUEUED"): {API},
    ("QUEUED", "APPLYING"): {WORKER},
    ("APPLYING", "APPLIED"): {WORKER},
    ("APPLYING", "QUEUED"): {WORKER},
    ("APPLYING", "FAILED"): {WORKER},
    ("FAILED", "QUEUED"): USER,
    ("APPLIED", "ROLLED_BACK"): USER,
}
RUN_STATES = ["PREVIEW", "QUEUED", "APPLYING", "APPLIED", "PARTIAL", "FAILED", "ROLLED_BACK"]
TARGET_STATES = ["PREVIEW", "QUEUED", "APPLYING", "APPLIED", "FAILED", "ROLLED_BACK"]
EVER_INVALID = [("APPLIED", "APPLYING"), ("ROLLED_BACK", "APPLYING"), ("PREVIEW", "APPLYING")]

BOTH = [
    pytest.param(rule_run, RUN_STATES, RUN_EDGES, id="run"),
    pytest.param(rule_target, TARGET_STATES, TARGET_EDGES, id="target"),
]

RUN_ID = UUID("11111111-1111-4111-8111-111111111111")
RUN = Run(
    id=RUN_ID,
    account="shop",
    currency="EUR",
    rule_name="cut",
    rule_version=1,
    metadata={"actor": "ada", "correlationId": "c-1", "source": "test"},
    created_at=START,
)
TARGET = Target(
    rule_run_id=RUN_ID,
    id="v1",
    account="shop",
    product_id="p1",
    sku="SKU-1",
    batch_key="b",
    before_json=euros(1_000).as_json(),
    after_json=euros(900).as_json(),
)
T1, T2, T3 = (START + timedelta(minutes=n) for n in (1, 2, 3))

# What a row needs to be in a state, and to be let go from any other into it.
_NEW: dict[str, Any] = {"queued_at": None, "started_at": None, "finished_at": None}
_QUEUED = {**_NEW, "queued_at": T1, "previewed_at": T1, "preview_digest": "d"}
_STARTED = {**_QUEUED, "started_at": T2}
_ENDED = {**_STARTED, "finished_at": T3, "target_count": 2}
RUN_COLUMNS = {
    "PREVIEW": _NEW,
    "QUEUED": _QUEUED,
    "APPLYING": _STARTED,
    "APPLIED": {**_ENDED, "applied_count": 2, "failed_count": 0},
    "PARTIAL": {**_ENDED, "applied_count": 1, "failed_count": 1},
    "FAILED": {**_ENDED, "applied_count": 0, "failed_count": 2},
    "ROLLED_BACK": _ENDED,
}
_OPEN: dict[str, Any] = {"cause": None, "error": None, "applied_at": None}
TARGET_COLUMNS = {
    "PREVIEW": _OPEN,
    "QUEUED": _OPEN,
    "APPLYING": _OPEN,
    "APPLIED": {**_OPEN, "applied_at": T3},
    "FAILED": {**_OPEN, "cause": "refused", "error": "no"},
    "ROLLED_BACK": {**_OPEN, "applied_at": T3},
}
COLUMNS = {"rule_run": RUN_COLUMNS, "rule_target": TARGET_COLUMNS}
PATHS = {
    "rule_run": {
        "PREVIEW": [],
        "QUEUED": ["QUEUED"],
        "APPLYING": ["QUEUED", "APPLYING"],
        "APPLIED": ["QUEUED", "APPLYING", "APPLIED"],
        "PARTIAL": ["QUEUED", "APPLYING", "PARTIAL"],
        "FAILED": ["QUEUED", "APPLYING", "FAILED"],
        "ROLLED_BACK": ["QUEUED", "APPLYING", "APPLIED", "ROLLED_BACK"],
    },
    "rule_target": {
        "PREVIEW": [],
        "QUEUED": ["QUEUED"],
        "APPLYING": ["QUEUED", "APPLYING"],
        "APPLIED": ["QUEUED", "APPLYING", "APPLIED"],
        "FAILED": ["QUEUED", "APPLYING", "FAILED"],
        "ROLLED_BACK": ["QUEUED", "APPLYING", "APPLIED", "ROLLED_BACK"],
    },
}
UNITS = {"rule_run": RUN, "rule_target": TARGET}


@pytest.fixture
def hand(rules_url: str) -> Iterator[Hand]:
    """A person at a prompt of an empty ledger."""
    open_ledger(rules_url, VirtualClock(START)).close()
    with Hand(rules_url) as typed:
        yield typed


def put(hand: Hand, machine: Machine, status: str, **columns: Any) -> None:
    """Type a change of the only row."""
    chosen = {**COLUMNS[machine.name][status], **columns}
    sets = ", ".join(f"{name} = {literal(value)}" for name, value in chosen.items())
    hand.type(f"UPDATE {machine.table} SET status = '{status}', {sets}")


def lead(hand: Hand, machine: Machine, status: str) -> None:
    """Type the only row, and lead it to a state."""
    if machine is rule_target:
        hand.type(typed_insert(rule_run, RUN))
    hand.type(typed_insert(machine, UNITS[machine.name]))
    for step in PATHS[machine.name][status]:
        put(hand, machine, step)


def refused(hand: Hand, said: str, table: str, **columns: Any) -> None:
    sets = ", ".join(f"{name} = {literal(value)}" for name, value in columns.items())
    with pytest.raises(hand.error) as caught:
        hand.type(f"UPDATE {table} SET {sets}")
    assert said in str(caught.value)


def unborn(hand: Hand, said: str, machine: Machine, **columns: Any) -> None:
    with pytest.raises(hand.error) as caught:
        hand.type(typed_insert(machine, replace(UNITS[machine.name], **columns)))
    assert said in str(caught.value)


@pytest.mark.parametrize(("machine", "states", "edges"), BOTH)
def test_the_edges_and_actors_are_those_of_the_document(machine, states, edges):
    assert list(machine.states) == states
    assert {pair: set(actors) for pair, actors in machine.pairs.items()} == edges
    for source in states:
        for target in states:
            for actor in Actor:
                if source == target:
                    continue
                if actor in edges.get((source, target), ()):
                    machine.check_move(source, target, actor)
                else:
                    with pytest.raises(IllegalMove):
                        machine.check_move(source, target, actor)


def test_the_invalid_transitions_of_the_document_are_no_edges():
    assert [pair for pair in EVER_INVALID if pair in rule_run.pairs] == []


@pytest.mark.parametrize(("machine", "states", "edges"), BOTH)
def test_the_database_lets_pass_the_edges_and_nothing_else(hand, machine, states, edges):
    for source in states:
        with hand.together(keep=False):
            lead(hand, machine, source)
            for target in states:
                if target == source:
                    continue
                hand.type("SAVEPOINT before")
                if (source, target) in edges:
                    put(hand, machine, target)
                else:
                    with pytest.raises(hand.error) as caught:
                        put(hand, machine, target)
                    assert f"{machine.name} cannot go from {source} to {target}" in str(caught.value)
                hand.type("ROLLBACK TO SAVEPOINT before")


@pytest.mark.parametrize(("machine", "states", "edges"), BOTH)
def test_a_row_is_born_as_a_preview(hand, machine, states, edges):
    kind = machine.status
    for state in states:
        unit = UNITS[machine.name]
        sql = typed_insert(machine, replace(unit, status=kind(state), **COLUMNS[machine.name][state]))
        with hand.together(keep=False):
            if machine is rule_target:
                hand.type(typed_insert(rule_run, RUN))
            if state == "PREVIEW":
                hand.type(sql)
                continue
            hand.type("SAVEPOINT before")
            with pytest.raises(hand.error) as caught:
                hand.type(sql)
            assert f"{machine.name} cannot be born as {state}" in str(caught.value)
            hand.type("ROLLBACK TO SAVEPOINT before")
    assert set(machine.born_by) == {"PREVIEW"}


@pytest.mark.by_day
def test_a_run_is_queued_then_started_then_finished(hand):
    lead(hand, rule_run, "PREVIEW")
    queued = {"status": "QUEUED", "previewed_at": T1, "preview_digest": "d"}
    refused(hand, "queued_has_moment", "rule_run", **queued)
    refused(hand, "queued_was_previewed", "rule_run", status="QUEUED", queued_at=T2)
    approval = {**queued, "queued_at": T2, "needs_approval": True}
    refused(hand, "queued_is_approved", "rule_run", **approval)
    put(hand, rule_run, "QUEUED", queued_at=T2)
    refused(hand, "started_has_moment", "rule_run", status="APPLYING")
    refused(hand, "starts_after_queued", "rule_run", status="APPLYING", started_at=T1)
    put(hand, rule_run, "APPLYING", queued_at=T2)  # at the same moment
    refused(hand, "finished_has_moment", "rule_run", status="FAILED")
    refused(hand, "finished_has_moment", "rule_run", finished_at=T3)
    refused(hand, "finishes_after_start", "rule_run", status="FAILED", finished_at=T1)
    put(hand, rule_run, "FAILED", queued_at=T2, finished_at=T2)


def test_a_run_is_applied_when_all_its_targets_are(hand):
    lead(hand, rule_run, "APPLYING")
    ended = {"status": "APPLIED", "finished_at": T3, "target_count": 3}
    refused(hand, "applied_is_whole", "rule_run", **ended, applied_count=2)
    refused(hand, "applied_is_whole", "rule_run", **ended, applied_count=2, failed_count=1)
    partial = {**ended, "status": "PARTIAL"}
    refused(hand, "partial_has_both", "rule_run", **partial, failed_count=3)
    refused(hand, "partial_has_both", "rule_run", **partial, applied_count=3)
    refused(hand, "counts_from_zero", "rule_run", failed_count=-1)
    refused(hand, "counts_from_zero", "rule_run", target_count=3, applied_count=2, failed_count=2)
    put(hand, rule_run, "APPLIED", target_count=3, rolled_back_count=1)
    refused(hand, "applied_is_whole", "rule_run", failed_count=1)


def with_failed_target(hand: Hand, run: str) -> None:
    """A run in a state, and one target of it that has failed."""
    lead(hand, rule_target, "FAILED")
    for step in PATHS["rule_run"][run]:
        put(hand, rule_run, step)


@pytest.mark.by_day
def test_no_run_is_applied_over_a_failed_target_whatever_its_counters_say(hand):
    with_failed_target(hand, "APPLYING")
    said = "cannot become APPLIED while"
    refused(hand, said, "rule_run", status="APPLIED", finished_at=T3, target_count=1, applied_count=1)
    put(hand, rule_target, "QUEUED")
    refused(hand, said, "rule_run", status="APPLIED", finished_at=T3, target_count=1, applied_count=1)
    put(hand, rule_target, "APPLYING")
    put(hand, rule_target, "APPLIED")
    put(hand, rule_run, "APPLIED", target_count=1, applied_count=1)
    assert hand.type("SELECT status FROM rule_run") == [("APPLIED",)]


def test_no_target_of_a_run_that_is_rolled_back_is_sent_again(hand):
    with_failed_target(hand, "PARTIAL")
    put(hand, rule_run, "ROLLED_BACK")
    refused(hand, "rule_run", "rule_target", status="QUEUED", cause=None, error=None)
    assert hand.type("SELECT status FROM rule_target") == [("FAILED",)]


@pytest.mark.by_day
@pytest.mark.parametrize("first", ["run", "target"])
def test_two_transactions_cannot_commit_an_applied_run_over_a_failed_target(postgres_rules_url, first):
    """Each alone sees a legal state: the second waits for the first, and is refused."""
    open_ledger(postgres_rules_url, VirtualClock(START)).close()
    with Hand(postgres_rules_url) as one, Hand(postgres_rules_url) as other:
        lead(one, rule_target, "APPLYING")
        put(one, rule_run, "QUEUED")
        put(one, rule_run, "APPLYING")
        put(one, rule_target, "APPLIED")
        second = replace(TARGET, id="v2")
        one.type(typed_insert(rule_target, second))

        def end_run(hand: Hand) -> None:
            put(hand, rule_run, "APPLIED", target_count=1, applied_count=1)

        def send_second(hand: Hand) -> None:
            hand.type("UPDATE rule_target SET status = 'QUEUED' WHERE id = 'v2'")

        early, late = (end_run, send_second) if first == "run" else (send_second, end_run)
        one.type("BEGIN")
        early(one)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(late, other)
            with pytest.raises(TimeoutError):
                waiting.result(0.5)
            one.type("COMMIT")
            with pytest.raises(other.error):
                waiting.result(10)
        states = dict(one.type("SELECT id, status FROM rule_target"))
        ((run,),) = one.type("SELECT status FROM rule_run")
        assert (run, states["v2"]) == (("APPLIED", "PREVIEW") if first == "run" else ("APPLYING", "QUEUED"))


def test_what_a_run_is_for_follows_from_the_run_that_it_names(hand):
    unborn(hand, "kind_has_run", rule_run, kind=Kind.ROLLBACK)
    unborn(hand, "kind_has_run", rule_run, of_run_id=RUN_ID)
    unborn(hand, "kind_known", rule_run, kind="other", of_run_id=RUN_ID)
    unborn(hand, "ends_after_start", rule_run, start_at=T2, end_at=T1)
    lead(hand, rule_run, "PREVIEW")
    refused(hand, "mode_known", "rule_run", mode="asleep")
    refused(hand, "nor what is given at its birth", "rule_run", kind=str(Kind.ROLLBACK), of_run_id=str(RUN_ID))


@pytest.mark.by_day
def test_attempts_are_at_most_three_unless_it_failed(hand):
    lead(hand, rule_target, "APPLYING")
    refused(hand, "attempts_are_few", "rule_target", attempts=-1)
    refused(hand, "attempts_are_few", "rule_target", attempts=4)
    hand.type("UPDATE rule_target SET attempts = 3")
    refused(hand, "attempts_are_few", "rule_target", status="APPLIED", applied_at=T3, attempts=4)
    put(hand, rule_target, "FAILED", attempts=4)


def test_an_applied_target_has_its_moment_and_no_doubt(hand):
    lead(hand, rule_target, "APPLYING")
    refused(hand, "applied_has_moment", "rule_target", status="APPLIED")
    refused(hand, "applied_is_settled", "rule_target", status="APPLIED", applied_at=T3, in_doubt_since=T2)
    put(hand, rule_target, "APPLIED")
    refused(hand, "applied_has_moment", "rule_target", status="ROLLED_BACK", applied_at=None)
    refused(hand, "applied_has_moment", "rule_target", applied_at=None)


def test_a_failed_target_says_why_and_is_never_in_doubt(hand):
    lead(hand, rule_target, "APPLYING")
    refused(hand, "failed_says_why", "rule_target", status="FAILED", cause="refused")
    refused(hand, "failed_says_why", "rule_target", status="FAILED", error="no")
    doubtful = {"status": "FAILED", "cause": "retries", "error": "no", "in_doubt_since": T2}
    refused(hand, "failed_is_settled", "rule_target", **doubtful)
    put(hand, rule_target, "FAILED")
    refused(hand, "failed_is_settled", "rule_target", in_doubt_since=T2)


def test_an_excluded_target_stays_in_the_preview(hand):
    hand.type(typed_insert(rule_run, RUN))
    unborn(hand, "excluded_says_why", rule_target, included=False)
    unborn(hand, "included_has_price", rule_target, after_json=None)
    excluded = replace(TARGET, included=False, excluded_code="locked", excluded_reason="it is locked")
    hand.type(typed_insert(rule_target, excluded))
    refused(hand, "excluded_stays", "rule_target", status="QUEUED")
    refused(hand, "nor what is given at its birth", "rule_target", included=True)


def test_the_states_of_the_program_are_those_of_the_table():
    assert [str(s) for s in R] == RUN_STATES
    assert [str(s) for s in T] == TARGET_STATES

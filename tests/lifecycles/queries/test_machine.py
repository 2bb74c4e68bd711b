"""The states, edges, actors and invariants of queries and erasures, in Python and against anyone who types SQL."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from penstock.lifecycles.queries.erasure.machine import E, Erasure, Kind, erasure
from penstock.lifecycles.queries.machine import Query, S, query
from penstock.model.errors import IllegalMove
from penstock.model.machine import Actor, Machine
from penstock.model.unit import replace
from tests.support.hand import Hand, literal, typed_insert
from tests.support.queries import START

API, OPERATOR, WORKER, SCHEDULER = Actor.API, Actor.OPERATOR, Actor.WORKER, Actor.SCHEDULER
PERSON = {API, OPERATOR}

QUERY_STATES = ["IDLE", "RUNNING", "SUCCESS", "ERROR"]
QUERY_EDGES = {
    ("IDLE", "RUNNING"): {WORKER},
    ("SUCCESS", "RUNNING"): {WORKER},
    ("ERROR", "RUNNING"): {WORKER},
    ("RUNNING", "SUCCESS"): {WORKER},
    ("RUNNING", "ERROR"): {WORKER},
    ("RUNNING", "IDLE"): {WORKER},
}
ERASURE_STATES = ["wanted", "erasing", "done", "failed"]
ERASURE_EDGES = {
    ("wanted", "erasing"): {WORKER},
    ("erasing", "done"): {WORKER},
    ("erasing", "wanted"): {WORKER},
    ("erasing", "failed"): {WORKER},
    ("failed", "wanted"): PERSON,
    ("done", "wanted"): PERSON,
}
#: What a query must tell of itself: when it last ran, how that ended, how far it has read, whether it runs.
STATE_COLUMNS = {
    *("query_key", "client", "status", "last_run_at", "last_success_at", "last_error_at", "last_processed_date"),
    *("consecutive_failures", "metadata"),
}
BOTH = [
    pytest.param(query, QUERY_STATES, QUERY_EDGES, id="query"),
    pytest.param(erasure, ERASURE_STATES, ERASURE_EDGES, id="erasure"),
]

QUERY = Query(query_key="jobs-1", client="jobs", name="python")
ERASURE = Erasure(kind=Kind.OFFER, client="jobs", record="17", asked_by="ada", asked_at=START)
UNITS: dict[str, Query | Erasure] = {"query": QUERY, "erasure": ERASURE}
LATER = START + timedelta(minutes=1)
COLUMNS: dict[str, dict[str, dict[str, Any]]] = {
    "query": {
        "IDLE": {},
        "RUNNING": {"run_id": UUID("11111111-1111-4111-8111-111111111111"), "run_started_at": START},
        "SUCCESS": {"last_success_at": LATER, "consecutive_failures": 0},
        "ERROR": {"error": "503", "last_error_at": LATER, "consecutive_failures": 1},
    },
    "erasure": {"wanted": {}, "erasing": {}, "done": {"erased_at": LATER}, "failed": {}},
}
PATHS = {
    "query": {"IDLE": [], "RUNNING": ["RUNNING"], "SUCCESS": ["RUNNING", "SUCCESS"], "ERROR": ["RUNNING", "ERROR"]},
    "erasure": {"wanted": [], "erasing": ["erasing"], "done": ["erasing", "done"], "failed": ["erasing", "failed"]},
}


@pytest.fixture
def hand(queries_url: str) -> Iterator[Hand]:
    """A person at a prompt of an empty ledger."""
    with Hand(queries_url) as typed:
        yield typed


def put(hand: Hand, machine: Machine, status: str, **columns: Any) -> None:
    """Type a change of the only row."""
    chosen = {"status": status, **COLUMNS[machine.name][status], **columns}
    hand.type(f"UPDATE {machine.table} SET {', '.join(f'{name} = {literal(one)}' for name, one in chosen.items())}")


def lead(hand: Hand, machine: Machine, status: str) -> None:
    """Type the only row, and lead it to a state."""
    hand.type(typed_insert(machine, UNITS[machine.name]))
    for step in PATHS[machine.name][status]:
        put(hand, machine, step)


def refused(hand: Hand, said: str, machine: Machine, status: str, **columns: Any) -> None:
    with pytest.raises(hand.error) as caught:
        put(hand, machine, status, **columns)
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


def test_queries_are_made_by_the_configuration_and_erasures_by_people():
    assert {state: set(actors) for state, actors in query.born_by.items()} == {"IDLE": {SCHEDULER}}
    assert {state: set(actors) for state, actors in erasure.born_by.items()} == {"wanted": PERSON}


def test_the_states_and_columns_of_the_program_are_those_of_the_table():
    assert [str(s) for s in S] == QUERY_STATES
    assert [str(s) for s in E] == ERASURE_STATES
    assert query.table == "query_state"
    assert set(query.columns) >= STATE_COLUMNS


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
                    refused(hand, f"{machine.name} cannot go from {source} to {target}", machine, target)
                hand.type("ROLLBACK TO SAVEPOINT before")


@pytest.mark.parametrize(("machine", "states", "edges"), BOTH)
def test_a_row_is_born_in_the_first_state(hand, machine, states, edges):
    first, *others = states
    for state in others:
        unit = replace(UNITS[machine.name], status=machine.status(state), **COLUMNS[machine.name][state])
        with pytest.raises(hand.error) as caught:
            hand.type(typed_insert(machine, unit))
        assert f"{machine.name} cannot be born as {state}" in str(caught.value)
    lead(hand, machine, first)
    assert hand.type(f"SELECT status FROM {machine.table}") == [(first,)]


def test_a_state_has_what_it_says(hand):
    lead(hand, query, "IDLE")
    refused(hand, "running_has_a_run", query, "RUNNING", run_id=None)
    refused(hand, "running_has_a_run", query, "RUNNING", run_started_at=None)
    put(hand, query, "RUNNING")
    refused(hand, "success_has_a_moment", query, "SUCCESS", last_success_at=None)
    refused(hand, "success_has_a_moment", query, "SUCCESS", consecutive_failures=1)
    refused(hand, "error_says_why", query, "ERROR", error=None)
    refused(hand, "error_says_why", query, "ERROR", last_error_at=None)
    refused(hand, "failures_from_zero", query, "ERROR", consecutive_failures=-1)
    put(hand, query, "ERROR")


def test_what_is_erased_is_erased_whole(hand):
    lead(hand, erasure, "erasing")
    refused(hand, "done_is_done", erasure, "done", erased_at=None)
    refused(hand, "done_is_done", erasure, "done", leaving=[["a", "b"]])
    put(hand, erasure, "done")

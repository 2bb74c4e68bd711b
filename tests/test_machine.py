"""Machines: what a declaration must be, who may pull which edge, and what is derived from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import field
from enum import StrEnum
from typing import Annotated, Any

import pytest

from penstock.model.errors import IllegalMove, MachineError
from penstock.model.machine import Actor, Edge, Machine, OnError, Parent
from penstock.model.state import State, done, fault, hold, rest, work
from penstock.model.unit import Column, GuardedUnit, Unit
from tests.support.machines import BATCH_ITEM, FEED, INVOICE, MACHINES, OPERATOR, PARTITION, WORKER, Invoice


class S(State):
    A = rest("A", "not begun")
    B = work("B", "under way")
    C = done("C", "ended")


class Thing(Unit):
    key = ("name",)

    status: S = S.A
    name: str
    size: int = 0
    owner: str = ""


class Still(GuardedUnit):
    key = ("name",)

    status: S = S.A
    name: str


EDGES = (Edge(S.A, S.B, "go", WORKER), Edge(S.B, S.C, "end", WORKER))


def declare(**changes: Any) -> Machine:
    """A correct machine A -> B -> C, but for the changes."""
    right: dict[str, Any] = {
        "name": "thing",
        "unit": Thing,
        "births": {S.A},
        "edges": EDGES,
        "terminal": {S.C},
    }
    return Machine(**right | changes)


def complaint(**changes: Any) -> str:
    """What Penstock says of a declaration that is wrong."""
    with pytest.raises(MachineError) as caught:
        declare(**changes)
    text = str(caught.value)
    assert text.startswith(f"machine {changes.get('name', 'thing')!r}: ")
    return text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"siblings": "colour"}, "siblings share 'colour', which is not a column of its own"),
        ({"siblings": "gate_id"}, "siblings share 'gate_id', which is not a column of its own"),
        ({"siblings": "owner", "siblings_at_once": 0}, "siblings_at_once must be 1 or more"),
        ({"siblings": "name", "unit": Still}, "siblings are for driven machines"),
    ],
)
def test_siblings_share_a_column_of_their_own(changes, said):
    assert said in complaint(**changes)
    assert declare(siblings="owner").digest() != declare().digest()


def test_the_correct_declaration_is_accepted():
    assert declare().states == ("A", "B", "C")


def test_an_unreachable_state_is_named():
    edges = [Edge(S.A, S.B, "go", WORKER), Edge(S.C, S.B, "back", WORKER)]
    assert "state C cannot be reached" in complaint(edges=edges, terminal={S.B})


def test_a_state_reached_only_from_itself_is_unreachable():
    edges = [*EDGES[:1], Edge(S.C, S.C, "again", WORKER)]
    assert "state C cannot be reached" in complaint(edges=edges, terminal={S.B, S.C})


def test_a_dead_end_must_be_declared_terminal():
    assert "state C is a dead end; declare it terminal" in complaint(terminal=())


def test_a_self_loop_is_no_way_out_of_a_dead_end():
    edges = [*EDGES, Edge(S.C, S.C, "again", WORKER)]
    assert "state C is a dead end" in complaint(edges=edges, terminal=())


def test_a_terminal_state_may_have_a_self_loop():
    assert declare(edges=[*EDGES, Edge(S.C, S.C, "again", WORKER)]).terminal == {"C"}


def test_a_terminal_state_has_no_way_out():
    assert "state B is declared terminal and has edges" in complaint(terminal={S.B, S.C})


@pytest.mark.parametrize("actors", [{"robot"}, {"sql"}, "worker"])
def test_an_unknown_actor_is_named_with_the_known_ones(actors):
    edges = [Edge(S.A, S.B, "go", actors), *EDGES[1:]]
    text = complaint(edges=edges)
    assert "edge A -> B (go) names" in text
    assert "actors are worker, scheduler, operator, validator, api" in text


@pytest.mark.parametrize("actors", [{"robot"}, {"sql"}, "worker", Actor.WORKER, ()])
def test_an_unknown_or_missing_actor_of_a_birth_is_named(actors):
    text = complaint(births={S.A: actors})
    assert "birth state A names" in text
    assert "actors are worker, scheduler, operator, validator, api" in text


def test_a_birth_is_for_its_actors_and_for_anybody_where_none_are_named():
    machine = declare(births={S.A: {Actor.API}})
    machine.check_birth("A", Actor.API)
    for actor in set(Actor) - {Actor.API}:
        with pytest.raises(IllegalMove, match=f"thing: only api may create a unit as A, not {actor}"):
            machine.check_birth("A", actor)
    with pytest.raises(IllegalMove, match="thing cannot be born as B; it is born as A"):
        machine.check_birth("B", Actor.API)
    for actor in Actor:
        declare().check_birth("A", actor)


def test_a_copy_of_a_machine_keeps_who_may_give_birth():
    machine = declare(births={S.A: {Actor.API}})
    assert declare(births=machine.births).digest() == machine.digest() != declare().digest()


def test_an_edge_needs_an_actor():
    assert "edge A -> B (go) names no actor" in complaint(edges=[Edge(S.A, S.B, "go", set()), *EDGES[1:]])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"births": {"Z"}}, "birth state 'Z' is unknown"),
        ({"terminal": {S.C, "Z"}}, "terminal state 'Z' is unknown"),
        ({"edges": [*EDGES, Edge("Z", S.B, "go", WORKER)]}, "edge Z -> B (go): state 'Z' is unknown"),
        ({"edges": [*EDGES, Edge(S.A, "Z", "go", WORKER)]}, "edge A -> Z (go): state 'Z' is unknown"),
        ({"on_error": OnError(retry="Z")}, "on_error names the unknown state 'Z'"),
        ({"on_error": OnError(dead="Z")}, "on_error names the unknown state 'Z'"),
    ],
)
def test_an_unknown_state_is_named_wherever_it_stands(changes, text):
    assert text in complaint(**changes)


def test_a_machine_needs_a_birth_state():
    assert "it has no birth state" in complaint(births=())


def test_an_edge_cannot_be_declared_twice():
    assert "edge A -> B (go) is declared twice" in complaint(edges=[*EDGES, EDGES[0]])


def test_two_triggers_may_share_a_pair():
    machine = declare(edges=[*EDGES, Edge(S.A, S.B, "push", OPERATOR)])
    assert machine.pairs["A", "B"] == {Actor.WORKER, Actor.OPERATOR}


@pytest.mark.parametrize(
    "edges",
    [
        pytest.param(
            [Edge(S.A, S.B, "go", WORKER, on_claim=True), Edge(S.A, S.C, "go", WORKER, on_claim=True), EDGES[1]],
            id="two from one state",
        ),
        pytest.param([*EDGES, Edge(S.A, S.A, "stay", WORKER, on_claim=True)], id="a self-loop"),
        pytest.param([Edge(S.A, S.B, "go", OPERATOR, on_claim=True), EDGES[1]], id="not for the worker"),
    ],
)
def test_on_claim_edges_are_the_workers_and_one_per_state(edges):
    assert "on_claim needs a driven machine, the actor worker, and one edge per source state" in complaint(edges=edges)


def test_on_claim_needs_a_driven_machine():
    edges = [Edge(S.A, S.B, "go", WORKER, on_claim=True), EDGES[1]]
    assert "edge A -> B (go): on_claim needs a driven machine" in complaint(unit=Still, edges=edges)


@pytest.mark.parametrize("name", ["", "Thing", "1thing", "a-b", "a b", "a'b", "größe", "thing\n", "a" * 64])
def test_a_machine_name_must_be_plain(name):
    assert f"name {name!r} must be snake_case" in complaint(name=name)


def test_a_word_of_sql_names_no_table_and_no_column():
    class Wordy(Thing):
        user: str = ""

    assert "'order' is a reserved word of SQL and cannot name a table; add table='orders'" in complaint(name="order")
    assert declare(name="order", table="orders").table == "orders"
    assert "field 'user' is a reserved word of SQL; choose another name" in complaint(unit=Wordy)
    assert "due column 'end' is a reserved word of SQL" in complaint(due="end")


@pytest.mark.parametrize("changes", [{"table": "Things"}, {"due": "due at"}, {"checks": {"Not ok": "true"}}])
def test_other_names_must_be_plain_too(changes):
    assert "must be snake_case" in complaint(**changes)


@pytest.mark.parametrize("trigger", ["", "it's", "go now", "a:b", "go\n"])
def test_a_trigger_name_must_be_plain(trigger):
    assert f"trigger {trigger!r} must be snake_case" in complaint(edges=[Edge(S.A, S.B, trigger, WORKER), EDGES[1]])


def test_a_state_name_must_be_plain():
    class Odd(State):
        A = rest("it's", "odd")

    class OddThing(Unit):
        key = ("name",)
        status: Odd = Odd.A
        name: str

    OddThing.__annotations__["status"] = Odd  # a local class: get_type_hints could not find it by name
    assert '"it\'s" must be letters, digits and _' in complaint(unit=OddThing, births={"it's"}, edges=[])


def test_a_column_name_must_be_plain():
    class Loud(Unit):
        key = ("name",)
        status: S = S.A
        name: str
        maxSize: int = 0  # noqa: N815 - the point of the test

    assert "field 'maxSize' must be snake_case" in complaint(unit=Loud)


def test_the_unit_must_be_a_unit_class():
    assert "must be a class derived from Unit or GuardedUnit" in complaint(unit=dict)


def test_a_unit_is_frozen_and_its_fields_are_named():
    with pytest.raises(AttributeError, match="immutable"):
        Thing(name="a").name = "b"  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional"):
        Thing("a")  # type: ignore[call-arg, arg-type]


def test_the_unit_needs_a_key():
    class Nameless(Unit):
        status: S = S.A

    assert "Nameless names no key" in complaint(unit=Nameless)


def test_every_key_field_must_be_a_field():
    class Lost(Unit):
        key = ("name", "nowhere")
        status: S = S.A
        name: str

    assert "key field 'nowhere' is not a field of Lost" in complaint(unit=Lost)


@pytest.mark.parametrize("kind", [float, bool, "str | None", dict])
def test_a_key_field_must_have_a_type_with_one_text_form(kind):
    class Vague(Unit):
        key = ("name",)
        status: S = S.A
        name: Any

    Vague.__annotations__["name"] = kind
    text = complaint(unit=Vague)
    assert "key field 'name'" in text
    assert "text, an integer, a date, an instant or a UUID" in text


class Silent(StrEnum):
    A = "A"


def test_states_must_say_what_they_are():
    class Mute(Unit):
        key = ("name",)
        status: Silent = Silent.A
        name: str

    assert "Mute.status must be annotated with the State" in complaint(unit=Mute, births={"A"}, edges=[])


class Unended(State):
    A = rest("A", "not begun")
    B = work("B", "under way")
    C = hold("C", "waits for somebody")


class UnendedThing(Thing):
    status: Unended = Unended.A  # type: ignore[assignment]


def test_a_terminal_state_is_done_or_a_fault():
    assert "state C is declared terminal, so it must be done or fault, not hold" in complaint(unit=UnendedThing)


def test_the_status_must_be_an_enum_of_the_states():
    class Free(Unit):
        key = ("name",)
        status: str = "A"
        name: str

    assert "Free.status must be annotated with the State" in complaint(unit=Free)


@pytest.mark.parametrize("name", ["nowhere", "version", "due_at"])
def test_a_tracked_column_must_be_the_units_own(name):
    assert f"tracked column {name!r}" in complaint(tracked=[name])


@pytest.mark.parametrize("name", ["nowhere", "status", "wakes", "version"])
def test_a_counter_must_be_the_units_own(name):
    assert f"counter {name!r} is not a field of the unit's own" in complaint(counters=[name])


def test_a_counter_cannot_be_tracked_nor_stand_in_a_guarded_machine():
    assert "counter 'owner' cannot be tracked" in complaint(counters=["owner"], tracked=["owner"])
    assert "counters are for driven machines" in complaint(unit=Still, counters=["owner"])


def test_other_counters_are_another_definition():
    assert declare(counters=["owner"]).digest() != declare().digest()


def test_on_error_is_for_driven_machines():
    assert "on_error is for driven machines" in complaint(unit=Still, on_error=OnError())


def fan_in(**changes: Any) -> Parent:
    right: dict[str, Any] = {"machine": "run", "by": ("owner",), "counts": {"done": {S.C}}, "expected": "total"}
    return Parent(**right | changes)


def test_a_correct_parent_is_accepted():
    assert declare(parent=fan_in()).parent is not None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"counts": {"done": {"Z"}}}, "parent counts the unknown state 'Z'"),
        ({"counts": {"done": {S.C}, "failed": {S.C}}}, "C is counted twice"),
        ({"counts": {"done": {S.A}}}, "a unit cannot be born as A, which the parent counts"),
        ({"counts": {}}, "parent counts no state"),
        ({"by": ("nowhere",)}, "parent is found by 'nowhere', which is not a field"),
        ({"by": ()}, "parent is found by no field"),
    ],
)
def test_a_parent_must_be_countable(changes, text):
    assert text in complaint(parent=fan_in(**changes))


def test_a_counted_state_cannot_lie_on_a_claim():
    edges = [Edge(S.A, S.B, "claim", WORKER, on_claim=True), EDGES[1]]
    text = complaint(edges=edges, parent=fan_in(counts={"done": {S.B}}))
    assert "B is counted by the parent and cannot lie on an on_claim edge" in text


def test_all_problems_are_told_at_once():
    text = complaint(edges=[*EDGES, EDGES[0]], terminal=())
    assert "declared twice" in text
    assert "dead end" in text


def test_a_machine_is_frozen():
    with pytest.raises(AttributeError):
        INVOICE.name = "other"  # type: ignore[misc]


def test_the_allowed_actor_may_pull_an_edge():
    INVOICE.check_move("FAILED", "QUEUED", Actor.OPERATOR)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_every_edge_is_for_its_actors_and_nobody_else(machine):
    for (source, target), actors in machine.pairs.items():
        for actor in Actor:
            if actor in actors:
                machine.check_move(source, target, actor)
            else:
                with pytest.raises(
                    IllegalMove, match=f"{machine.name}: only .* may move a unit from {source} to {target}, not {actor}"
                ):
                    machine.check_move(source, target, actor)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
def test_a_pair_without_an_edge_is_illegal_for_everyone(machine):
    illegal = [(s, t) for s in machine.states for t in machine.states if s != t and (s, t) not in machine.pairs]
    for source, target in illegal:
        for actor in Actor:
            with pytest.raises(IllegalMove, match=f"{source} -> {target} is not an edge; from {source} a unit goes to"):
                machine.check_move(source, target, actor)


def test_an_illegal_move_says_where_a_unit_may_go():
    with pytest.raises(IllegalMove, match="from SENDING a unit goes to FAILED, QUEUED, SENT"):
        INVOICE.check_move("SENDING", "SENDING2", Actor.WORKER)


def test_staying_is_legal_for_everyone():
    for actor in Actor:
        INVOICE.check_move("SENT", "SENT", actor)


def test_a_declared_self_loop_is_for_its_actors():
    with pytest.raises(
        IllegalMove, match="only operator, validator may move a unit from success to success, not worker"
    ):
        PARTITION.check_move("success", "success", Actor.WORKER)


def test_a_worker_waits_in_any_state_but_pulls_no_self_loop_of_others():
    machine = declare(edges=[*EDGES, Edge(S.B, S.B, "marked", {Actor.OPERATOR})])
    machine.check_move("B", "B", Actor.WORKER)
    machine.check_loop("B", Actor.OPERATOR)
    machine.check_loop("A", Actor.WORKER)
    with pytest.raises(IllegalMove, match="thing: only operator may move a unit from B to B, not worker"):
        machine.check_loop("B", Actor.WORKER)


def test_the_definition_is_plain_data_of_the_documented_shape():
    found = json.loads(json.dumps(INVOICE.definition()))
    assert found["name"] == "invoice"
    assert found["table"] == "invoice"
    assert found["states"] == [
        {"name": "QUEUED", "meaning": "rest", "says": "waits to be sent"},
        {"name": "SENDING", "meaning": "work", "says": "claimed: the call may have left"},
        {"name": "SENT", "meaning": "done", "says": "accepted"},
        {"name": "FAILED", "meaning": "fault", "says": "a dead letter"},
    ]
    assert found["initial"] == {"QUEUED": ["api", "operator", "scheduler", "validator", "worker"]}
    assert [(t["source"], t["target"], t["trigger"], t["actors"]) for t in found["transitions"]] == [
        ("QUEUED", "SENDING", "claim", ["worker"]),
        ("SENDING", "SENT", "accepted", ["worker"]),
        ("SENDING", "QUEUED", "retry", ["worker"]),
        ("SENDING", "FAILED", "give_up", ["worker"]),
        ("FAILED", "QUEUED", "retry_by_hand", ["operator"]),
    ]


def test_actors_are_listed_in_one_order():
    edge = next(t for t in FEED.definition()["transitions"] if t["source"] == "completed")
    assert edge["actors"] == ["operator", "worker"]


def test_the_table_is_the_machines_name_unless_told():
    assert (INVOICE.table, PARTITION.table, FEED.table) == ("invoice", "partitions", "feeds")


def test_the_schedule_may_have_another_name():
    assert FEED.column("due_at") == "next_refresh_at"
    assert FEED.column("status") == "status"
    assert INVOICE.column("due_at") == "due_at"


def test_a_generated_column_is_known():
    assert FEED.generated() == {"refreshing"}
    assert INVOICE.generated() == frozenset()


def test_the_mermaid_text_shows_births_edges_and_ends():
    assert INVOICE.mermaid() == (
        "stateDiagram-v2\n"
        "    QUEUED: QUEUED<br/>waits to be sent\n"
        "    SENDING: SENDING<br/>claimed#58; the call may have left\n"
        "    SENT: SENT<br/>accepted\n"
        "    FAILED: FAILED<br/>a dead letter\n"
        "    [*] --> QUEUED\n"
        "    QUEUED --> SENDING: claim\n"
        "    SENDING --> SENT: accepted\n"
        "    SENDING --> QUEUED: retry\n"
        "    SENDING --> FAILED: give_up\n"
        "    FAILED --> QUEUED: retry_by_hand\n"
        "    SENT --> [*]\n"
        "    classDef rest fill:#e5e7eb,stroke:#6b7280,color:#111827\n"
        "    class QUEUED rest\n"
        "    classDef work fill:#dbeafe,stroke:#2563eb,color:#111827\n"
        "    class SENDING work\n"
        "    classDef done fill:#dcfce7,stroke:#16a34a,color:#111827\n"
        "    class SENT done\n"
        "    classDef fault fill:#fee2e2,stroke:#dc2626,color:#111827\n"
        "    class FAILED fault\n"
    )


def test_the_mermaid_text_joins_the_triggers_of_a_pair():
    assert "    success --> success: superseded / pointed\n" in PARTITION.mermaid()


class Reworded(State):
    A = hold("A", "waits for somebody")
    B = work("B", "under way, in other words")
    C = fault("C", "ended badly")


class RewordedThing(Thing):
    status: Reworded = Reworded.A  # type: ignore[assignment]


def test_other_words_for_the_same_states_are_the_same_definition_to_the_ledger():
    assert declare().digest() == declare(unit=RewordedThing).digest()
    assert declare().definition() != declare(unit=RewordedThing).definition()


def test_the_digest_is_the_same_for_the_same_declaration():
    assert declare().digest() == declare(edges=list(EDGES), births=["A"]).digest()


def test_the_digest_is_the_same_in_every_process():
    """Sets are iterated in another order under another hash seed."""
    script = "from tests.support.machines import MACHINES; print(*(m.digest() for m in MACHINES))"
    runs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert runs == {" ".join(m.digest() for m in MACHINES)}


@pytest.mark.parametrize(
    "changes",
    [
        {"births": {S.A, S.B}},
        {"edges": [*EDGES, Edge(S.B, S.A, "back", WORKER)]},
        {"edges": [EDGES[0], Edge(S.B, S.C, "end", WORKER | OPERATOR)]},
        {"tracked": ["size"]},
        {"checks": {"small": "size < 10"}},
        {"due": "next_at"},
        {"table": "things"},
    ],
)
def test_the_digest_changes_with_what_triggers_and_table_are_made_of(changes):
    assert declare(**changes).digest() != declare().digest()


def test_the_kinds_are_told_apart():
    assert INVOICE.driven
    assert not PARTITION.driven


def test_the_columns_begin_with_the_key():
    assert INVOICE.columns[:4] == ("unit_id", "tenant", "number", "status")
    assert BATCH_ITEM.columns[:4] == ("unit_id", "run_id", "position", "status")


def test_a_guarded_machine_has_no_schedule():
    assert "due_at" not in PARTITION.columns
    assert "claimed_by" not in PARTITION.columns


def test_a_special_column_keeps_its_default():
    class Special(Unit):
        key = ("name",)
        status: S = S.A
        name: str
        small: Annotated[int, Column(sql_type="SmallInteger")] = 7
        plain: list[int] = field(default_factory=list)

    assert Special(name="x").small == 7


def test_an_unknown_field_of_a_unit_is_a_type_error():
    with pytest.raises(TypeError, match="remote"):
        Invoice(tenant="acme", number="1", remote="x")  # type: ignore[call-arg]

"""The declaration of a state machine: frozen data, validated when defined.

A machine names its states, where a unit may be born, which edges exist and who may pull them. From this one
declaration come the runtime check, the database's guard and history triggers, the diagrams and the tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NoReturn
from uuid import UUID

from msgspec import Struct

from penstock.model.errors import IllegalMove, MachineError
from penstock.model.family import parent_problems
from penstock.model.reserved import RESERVED
from penstock.model.retry import RetryPolicy
from penstock.model.state import Meaning, State
from penstock.model.unit import DRIVEN_COLUMNS, GuardedUnit, Unit, field_types, is_key_type, special_columns

# 45 characters leave room for what the kernel adds: PostgreSQL cuts a name at 63, "penstock_<name>_truncate" included.
_NAME = re.compile(r"[a-z][a-z0-9_]{0,44}\Z")
_LONGEST = 63
_KERNEL_CHECKS = frozenset({"unit_id_is_key"})
_KERNEL_INDEXES = frozenset({"parent", "due", "siblings", "suspects", "parked", "claimed", "dead", "status"})
_STATE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}\Z")
_MERMAID = frozenset('#;:<>"&%{}')
# Readable on a light page and on a dark one: each names the colour of its text as well.
_COLOURS = {
    Meaning.REST: "fill:#e5e7eb,stroke:#6b7280,color:#111827",
    Meaning.WORK: "fill:#dbeafe,stroke:#2563eb,color:#111827",
    Meaning.DONE: "fill:#dcfce7,stroke:#16a34a,color:#111827",
    Meaning.HOLD: "fill:#fef3c7,stroke:#d97706,color:#111827",
    Meaning.FAULT: "fill:#fee2e2,stroke:#dc2626,color:#111827",
}


class Actor(StrEnum):
    """Who gives birth to a unit or pulls an edge. Anyone who types SQL is `sql`, which no machine can name."""

    WORKER = "worker"
    SCHEDULER = "scheduler"
    OPERATOR = "operator"
    VALIDATOR = "validator"
    API = "api"


class Edge(Struct, frozen=True):
    """One legal transition. `on_claim`: claiming a unit in `source` is itself this transition.

    `trigger` is a verb where people pull it (`retry`), and says what happened where workers do (`loaded`). `by_hand`
    makes a bare move by hand whole: from the unit and the present, the unit with the columns that must follow. It is
    pure. Without it the move needs an operation that knows more.
    """

    source: str
    target: str
    trigger: str
    actors: Collection[Actor]
    on_claim: bool = False
    #: A person may pull it without more ado: the unit as it is afterwards, by its columns and the present alone.
    by_hand: Callable[[Any, datetime], Any] | None = None


class OnError(Struct, frozen=True):
    """Where errors lead. `retry=None` keeps the state; `dead=None` parks instead of a dead letter."""

    retry: str | None = None
    dead: str | None = None
    policy: RetryPolicy = RetryPolicy()


class Parent(Struct, frozen=True):
    """Fan-in: which unit of which machine counts this one, and when all have ended.

    `by` names the child's fields that make up the parent's key. `counts` maps a counter column of the parent to
    the child states it counts; the kernel keeps the counters, and wakes the parent when together they reach its
    `expected` column and the set of children in those states has that size too. `seals` maps a state of the parent to
    the only states that its children may be in meanwhile; the database holds both to it, whoever moves them.
    """

    machine: str
    by: Sequence[str]
    counts: Mapping[str, Collection[str]]
    expected: str
    seals: Mapping[str, Collection[str]] = {}

    def facts(self) -> dict[str, Any]:
        """The declaration as plain data in one order."""
        counts, seals = (
            {str(name): sorted(map(str, states)) for name, states in sets.items()} for sets in (self.counts, self.seals)
        )
        of = {"machine": self.machine, "by": list(self.by), "expected": self.expected}
        return {**of, "counts": counts, "seals": seals}


@dataclass(frozen=True, eq=False)
class Machine:
    """A validated state machine over one unit type. Raises MachineError when the declaration is wrong.

    `births` maps each state that a unit may be born in to those who may give birth there; states alone leave it to
    anybody.
    """

    name: str
    unit: type[GuardedUnit]
    births: Mapping[str, Collection[Actor]] | Collection[str]
    edges: Sequence[Edge]
    terminal: Collection[str] = ()
    on_error: OnError | None = None
    checks: Mapping[str, str] = field(default_factory=dict)
    #: Columns whose changes are history: one of them alone makes a row of it, as a change of state does.
    tracked: Sequence[str] = ()
    #: Columns that are given at the birth and never change, as the key: so they are known of every moment.
    fixed: Sequence[str] = ()
    table: str = ""
    due: str = "due_at"
    parent: Parent | None = None
    #: Columns that children count in. Tallies add to them without raising the version, and raise `tallies` instead.
    counters: Sequence[str] = ()
    #: Indexes of its own beside the kernel's: name, after the table's, to columns.
    indexes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Columns that are unique together, by name as above: on PostgreSQL. On SQLite `REPLACE` could delete a unit by
    #: way of a second unique key, so there they are only indexed, and the key must be made of them.
    unique: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Whether the columns of the key are the primary key on PostgreSQL, for a table that others know by it. `unit_id`
    #: is made of them and unique anyway, and every claim and commit pays for one index more.
    key_is_primary: bool = False
    #: Fields that name a unit of another machine: a foreign key, so that it must be there and stays as long as they do.
    references: Mapping[str, Machine] = field(default_factory=dict)
    #: The column that siblings share: those that are due behind one gate are claimed together and step as one, with one
    #: call. NULL in it has no siblings. At most so many step together.
    siblings: str | None = None
    siblings_at_once: int = 250
    #: Fills in the columns that follow from others when a person creates a unit: from the unit and the present. Pure.
    create: Callable[[Any, datetime], Any] | None = None

    def __post_init__(self) -> None:
        freeze = object.__setattr__
        given = self.births if isinstance(self.births, Mapping) else dict.fromkeys(self.births, frozenset(Actor))
        freeze(self, "born_by", {str(s): frozenset(given[s]) for s in sorted(given)})
        freeze(self, "births", self.born_by)
        freeze(self, "terminal", frozenset(str(s) for s in self.terminal))
        freeze(self, "edges", tuple(self.edges))
        freeze(self, "tracked", tuple(self.tracked))
        freeze(self, "fixed", tuple(self.fixed))
        freeze(self, "counters", tuple(self.counters))
        freeze(self, "table", self.table or self.name)
        _validate(self)
        pairs: dict[tuple[str, str], set[Actor]] = {}
        for edge in self.edges:
            pairs.setdefault((str(edge.source), str(edge.target)), set()).update(edge.actors)
        freeze(self, "pairs", pairs)

    pairs: Mapping[tuple[str, str], Collection[Actor]] = field(init=False, default_factory=dict)
    born_by: Mapping[str, frozenset[Actor]] = field(init=False, default_factory=dict)

    @property
    def driven(self) -> bool:
        """Whether workers move its units; otherwise it has guard and history only."""
        return issubclass(self.unit, Unit)

    @property
    def judged(self) -> bool:
        """Whether validators have the word: it is guarded, and something in it is for them alone."""
        named = (*self.pairs.values(), *self.born_by.values())
        return not self.driven and any(set(actors) == {Actor.VALIDATOR} for actors in named)

    @property
    def states(self) -> tuple[str, ...]:
        """All states, in the order of their declaration."""
        return tuple(str(s) for s in self.status)

    @property
    def status(self) -> type[State]:
        """The type of its states, which say what they are."""
        kind: type[State] = field_types(self.unit)["status"]
        return kind

    @property
    def dead(self) -> tuple[str, ...]:
        """The states of dead letters: those of a driven machine that mean a fault, and the one that errors lead to."""
        if not self.driven:
            return ()
        last = self.on_error.dead if self.on_error else None
        return tuple(str(state) for state in self.status if state == last or state.meaning is Meaning.FAULT)

    @property
    def on_claim(self) -> Mapping[str, Edge]:
        """Source state to the edge that a claim pulls."""
        return {str(e.source): e for e in self.edges if e.on_claim}

    @property
    def columns(self) -> tuple[str, ...]:
        """Unit fields in column order (the due field's column may have another name: see `column`)."""
        return tuple(field_types(self.unit))

    def column(self, name: str) -> str:
        """The column of a unit's field: its own name, but for the schedule when the machine renames it."""
        return self.due if name == "due_at" else name

    @property
    def lasting(self) -> tuple[str, ...]:
        """The columns that are given at the birth and never change: the key, and those that are fixed."""
        return (*self.unit.key, *self.fixed)

    def generated(self) -> frozenset[str]:
        """Fields that the database computes; they are read, never written."""
        return frozenset(name for name, special in special_columns(self.unit).items() if special.generated)

    def edge(self, source: str, target: str, actor: Actor) -> Edge | None:
        """The edge that the actor pulls between two states, if there is one; of several, one made for hands."""
        found = [e for e in self.edges if (e.source, e.target) == (source, target) and actor in e.actors]
        return next((e for e in found if e.by_hand is not None), found[0] if found else None)

    def check_birth(self, state: str, actor: Actor) -> None:
        """Raise IllegalMove unless the actor may give birth to a unit in that state."""
        actors = self.born_by.get(state)
        if actors is None:
            msg = f"{self.name} cannot be born as {state}; it is born as {', '.join(self.born_by)}"
            raise IllegalMove(msg)
        if actor not in actors:
            msg = f"{self.name}: only {', '.join(sorted(actors))} may create a unit as {state}, not {actor}"
            raise IllegalMove(msg)

    def check_loop(self, state: str, actor: Actor) -> None:
        """Raise IllegalMove where a self-loop is declared for others: who changes a tracked column pulls it."""
        if actor not in self.pairs.get((state, state), (actor,)):
            self._refuse(state, state, actor)

    def check_move(self, source: str, target: str, actor: Actor) -> None:
        """Raise IllegalMove unless the actor may move a unit from source to target.

        Staying is legal where no self-loop is declared, and for a worker everywhere: it waits and retries without
        pulling anything, unless it changes a tracked column (`check_loop`).
        """
        actors = self.pairs.get((source, target))
        if actors is not None and actor in actors:
            return
        if source == target and (actors is None or (actor is Actor.WORKER and self.driven)):
            return
        self._refuse(source, target, actor)

    def _refuse(self, source: str, target: str, actor: Actor) -> NoReturn:
        actors = self.pairs.get((source, target))
        if actors is not None:
            msg = (
                f"{self.name}: only {', '.join(sorted(actors))} may move a unit from {source} to {target}, not {actor}"
            )
            raise IllegalMove(msg)
        legal = ", ".join(sorted(t for s, t in self.pairs if s == source and t != source)) or "nothing"
        msg = f"{self.name}: {source} -> {target} is not an edge; from {source} a unit goes to {legal}"
        raise IllegalMove(msg)

    def definition(self) -> dict[str, Any]:
        """The machine as plain data, in the shape that `penstock machines --json` prints."""
        states = [{"name": str(s), "meaning": str(s.meaning), "says": s.says} for s in self.status]
        return {**self.rules(), "states": states}

    def rules(self) -> dict[str, Any]:
        """What the ledger enforces: the definition without what its states say, which any program may word anew."""
        return {
            "name": self.name,
            "table": self.table,
            "states": list(self.states),
            "initial": {state: sorted(map(str, actors)) for state, actors in self.born_by.items()},
            "terminal": sorted(self.terminal),
            "transitions": [
                {
                    "source": str(e.source),
                    "target": str(e.target),
                    "trigger": e.trigger,
                    "actors": sorted(str(a) for a in e.actors),
                    "on_claim": e.on_claim,
                    "by_hand": e.by_hand is not None,
                }
                for e in self.edges
            ],
            "parent": self.parent and self.parent.facts(),
        }

    def shape(self) -> dict[str, Any]:
        """What the table is made of. States and edges live in triggers and may change with a program; this may not."""
        return {
            "key": list(self.unit.key),
            "due": self.due,
            "driven": self.driven,
            "checks": dict(self.checks),
            "columns": {self.column(n): str(kind) for n, kind in field_types(self.unit).items() if n != "status"},
            "parent": list(self.parent.by) if self.parent else [],
            "references": {name: other.name for name, other in self.references.items()},
        }

    def digest(self) -> str:
        """What the ledger remembers of the definition; another digest means other triggers."""
        facts = {
            **self.rules(),
            "shape": self.shape(),
            "tracked": list(self.tracked),
            "fixed": list(self.fixed),
            "counters": list(self.counters),
            "siblings": self.siblings,
        }
        import hashlib

        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def mermaid(self) -> str:
        """The state diagram as Mermaid text: each state with its sentence, coloured by its meaning."""
        lines = ["stateDiagram-v2", *(f"    {s}: {s}<br/>{_label(s.says)}" for s in self.status)]
        lines += [f"    [*] --> {s}" for s in self.births]
        labels: dict[tuple[str, str], list[str]] = {}
        for e in self.edges:
            labels.setdefault((str(e.source), str(e.target)), []).append(e.trigger)
        lines += [f"    {s} --> {t}: {' / '.join(names)}" for (s, t), names in labels.items()]
        lines += [f"    {s} --> [*]" for s in self.states if s in self.terminal]
        for meaning, colours in _COLOURS.items():
            if found := [str(s) for s in self.status if s.meaning is meaning]:
                lines += [f"    classDef {meaning} {colours}", f"    class {','.join(found)} {meaning}"]
        return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    """A sentence as Mermaid can show it: what would end the line or open a tag is written as an entity."""
    return "".join(f"#{ord(c)};" if c in _MERMAID else c for c in text)


def _validate(machine: Machine) -> None:
    problems = [*_unit_problems(machine)]
    if not problems:
        problems = [*_edge_problems(machine), *_graph_problems(machine), *_extra_problems(machine)]
        problems += _sibling_problems(machine)
    if problems:
        raise MachineError(f"machine {machine.name!r}: " + "; ".join(problems))


def _unit_problems(machine: Machine) -> list[str]:
    problems = []
    for what, name in (("name", machine.name), ("table", machine.table), ("due column", machine.due)):
        if not _NAME.match(name):
            problems.append(f"{what} {name!r} must be snake_case, at most 45 characters")
    if machine.table in RESERVED:
        problems.append(
            f"{machine.table!r} is a reserved word of SQL and cannot name a table; add table='{machine.table}s'"
        )
    if machine.due in RESERVED:
        problems.append(f"due column {machine.due!r} is a reserved word of SQL; choose another name")
    unit = machine.unit
    if not (isinstance(unit, type) and issubclass(unit, GuardedUnit)):
        return [*problems, f"unit {unit!r} must be a class derived from Unit or GuardedUnit"]
    if not unit.key:
        problems.append(f"{unit.__name__} names no key; add key = ('field', ...)")
    names = unit.__struct_fields__
    problems += [f"field {n!r} must be snake_case, at most 45 characters" for n in names if not _NAME.match(n)]
    problems += [f"field {n!r} is a reserved word of SQL; choose another name" for n in names if n in RESERVED]
    missing = [f"key field {n!r} is not a field of {unit.__name__}" for n in unit.key if n not in names]
    if missing:
        return problems + missing
    types = field_types(unit)
    problems += [
        f"key field {n!r} cannot be {types[n]}; use text, an integer, a date, an instant or a UUID"
        for n in unit.key
        if not is_key_type(types[n])
    ]
    status = types.get("status")
    if not (isinstance(status, type) and issubclass(status, State)):
        problems.append(f"{unit.__name__}.status must be annotated with the State that lists its states")
    else:
        problems += [f"state {s!r} must be letters, digits and _" for s in map(str, status) if not _STATE.match(s)]
    return problems


def _edge_problems(machine: Machine) -> list[str]:
    states = set(machine.states)
    problems = [f"birth state {s!r} is unknown" for s in machine.births if s not in states]
    for state, actors in machine.born_by.items():
        if not actors or not all(isinstance(a, Actor) for a in actors):
            named = ", ".join(sorted(map(repr, actors))) or "no actor"
            problems.append(f"birth state {state} names {named}; actors are {', '.join(Actor)}")
    problems += [f"terminal state {s!r} is unknown" for s in sorted(set(machine.terminal) - states)]
    if not machine.births:
        problems.append("it has no birth state")
    seen: set[tuple[str, str, str]] = set()
    claims: set[str] = set()
    for e in machine.edges:
        name = f"edge {e.source} -> {e.target} ({e.trigger})"
        problems += [f"{name}: state {s!r} is unknown" for s in (e.source, e.target) if s not in states]
        unknown = [a for a in e.actors if not isinstance(a, Actor)]
        if unknown or not e.actors:
            problems.append(f"{name} names {unknown or 'no actor'}; actors are {', '.join(Actor)}")
        if not _NAME.match(e.trigger):
            problems.append(f"{name}: trigger {e.trigger!r} must be snake_case, at most 45 characters")
        if (e.source, e.target, e.trigger) in seen:
            problems.append(f"{name} is declared twice")
        seen.add((e.source, e.target, e.trigger))
        if e.on_claim:
            if e.source in claims or e.source == e.target or Actor.WORKER not in e.actors or not machine.driven:
                problems.append(
                    f"{name}: on_claim needs a driven machine, the actor worker, and one edge per source state"
                )
            claims.add(e.source)
    return problems


def _graph_problems(machine: Machine) -> list[str]:
    exits = {s: {str(e.target) for e in machine.edges if e.source == s and e.target != s} for s in machine.states}
    reached, todo = set(machine.births), list(machine.births)
    while todo:
        for target in exits.get(todo.pop(), set()) - reached:
            reached.add(target)
            todo.append(target)
    problems = [f"state {s} cannot be reached from a birth state" for s in machine.states if s not in reached]
    for state in machine.states:
        if not exits[state] and state not in machine.terminal:
            problems.append(f"state {state} is a dead end; declare it terminal or give it an edge")
        if exits[state] and state in machine.terminal:
            problems.append(f"state {state} is declared terminal and has edges out of it")
        meaning = machine.status(state).meaning
        if state in machine.terminal and meaning not in {Meaning.DONE, Meaning.FAULT}:
            problems.append(f"state {state} is declared terminal, so it must be done or fault, not {meaning}")
    return problems


def _extra_problems(machine: Machine) -> list[str]:
    types = field_types(machine.unit)
    own = set(types) - set(DRIVEN_COLUMNS)
    problems = [f"tracked column {n!r} is not a field of the unit's own" for n in machine.tracked if n not in own]
    problems += [
        f"edge {e.source} -> {e.target} ({e.trigger}): by_hand is for people; give the worker an edge of its own"
        for e in machine.edges
        if e.by_hand is not None and Actor.WORKER in e.actors
    ]
    changing = {*machine.unit.key, *machine.tracked, *machine.counters, *machine.generated()}
    problems += [f"fixed column {n!r} is not a field of the unit's own" for n in machine.fixed if n not in own]
    problems += [f"column {n!r} cannot be fixed" for n in machine.fixed if n in changing or n == "status"]
    problems += [f"counter {n!r} is not a field of the unit's own" for n in machine.counters if n not in own]
    problems += [f"counter {n!r} cannot be tracked" for n in machine.counters if n in machine.tracked]
    if machine.counters and not machine.driven:
        problems.append("counters are for driven machines")
    kernels: dict[str, Any] = {
        "last_action": True,
        "claimed_at": machine.driven,
        "suspected_in": machine.driven,
        "tallies": machine.counters,
    }
    problems += [
        f"field {name!r} is a column of the kernel's" for name, used in kernels.items() if used and name in types
    ]
    problems += [f"check name {n!r} must be snake_case" for n in machine.checks if not _NAME.match(n)]
    problems += [f"check name {n!r} is the kernel's" for n in machine.checks if n in _KERNEL_CHECKS]
    named = [*machine.indexes, *machine.unique]
    problems += [f"index name {n!r} must be snake_case" for n in named if not _NAME.match(n)]
    problems += [f"index name {n!r} is the kernel's" for n in named if n in _KERNEL_INDEXES]
    problems += [f"index name {n!r} is given twice" for n in machine.unique if n in machine.indexes]
    indexed = {c for columns in (*machine.indexes.values(), *machine.unique.values()) for c in columns}
    problems += [f"an index names {c!r}, which is not a field" for c in sorted(indexed - set(types))]
    longest = _LONGEST - len(machine.table) - 1
    problems += [f"check name {n!r} is longer than {longest} characters" for n in machine.checks if len(n) > longest]
    problems += [
        f"a reference names {n!r}, which is not a field of the unit's own" for n in machine.references if n not in own
    ]
    problems += [
        f"{name} refers to {other.name}, whose primary key is not one UUID"
        for name, other in machine.references.items()
        if not other.key_is_primary or [field_types(other.unit)[k] for k in other.unit.key] != [UUID]
    ]
    if machine.on_error and not machine.driven:
        problems.append("on_error is for driven machines")
    for state in filter(None, (machine.on_error.retry, machine.on_error.dead) if machine.on_error else ()):
        if state not in machine.states:
            problems.append(f"on_error names the unknown state {state!r}")
        elif not any(e.target == state and Actor.WORKER in e.actors for e in machine.edges):
            problems.append(f"on_error leads to {state}, and no edge takes a worker there")
    if machine.parent:
        problems += parent_problems(machine, machine.parent)
    return problems


def _sibling_problems(machine: Machine) -> list[str]:
    shared, problems = machine.siblings, []
    if shared is not None and not machine.driven:
        problems.append("siblings are for driven machines")
    elif shared is not None and shared not in set(machine.columns) - set(DRIVEN_COLUMNS):
        problems.append(f"siblings share {shared!r}, which is not a column of its own")
    if machine.siblings_at_once < 1:
        problems.append("siblings_at_once must be 1 or more")
    return problems

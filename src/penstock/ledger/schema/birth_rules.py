"""Who may give birth to a unit in which state, as the triggers ask it.

The database knows an actor only by what `changed_by` says. Whoever types an INSERT and says nothing is `sql`, and may
give birth wherever a machine does not leave it to validators alone.
"""

from __future__ import annotations

from penstock.model.machine import Actor, Machine

SQL = "sql"


def actors(machine: Machine, state: str) -> list[str]:
    """The words before the colon of `changed_by` with which a unit may be born in that state."""
    named = machine.born_by[state]
    return sorted(named) if named == {Actor.VALIDATOR} else [*sorted(named), SQL]


def legal(machine: Machine, row: str, who: str) -> str:
    """SQL for a legal birth: `row` stands before the name of a column, `who` is the word that begins `changed_by`."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for state, named in machine.born_by.items():
        anybody = named == frozenset(Actor)
        groups.setdefault(() if anybody else tuple(actors(machine, state)), []).append(f"'{state}'")
    parts = []
    for names, states in groups.items():
        born = f"{row}status IN ({', '.join(states)})"
        listed = ", ".join(f"'{name}'" for name in names)
        parts.append(f"({born} AND {who} IN ({listed}))" if names else born)
    return " OR ".join(parts)


def refusal(machine: Machine, state: str) -> str:
    """What is said of a birth that is not legal, after the machine's name."""
    if state in machine.born_by:
        return f"can be born as {state} only by {', '.join(sorted(machine.born_by[state]))}"
    return f"cannot be born as {state}; it is born as {', '.join(machine.born_by)}"


def lasting(machine: Machine) -> str:
    """What is said of a change of what is given at the birth."""
    text = f"{machine.name}: the key of a unit ({', '.join(machine.unit.key)}) cannot be changed"
    return f"{text}, nor what is given at its birth ({', '.join(machine.fixed)})" if machine.fixed else text

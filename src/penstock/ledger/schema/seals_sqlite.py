"""The triggers of seals for SQLite (see `seals`). It has one writer at a time: to look is enough."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.ledger.schema.seals import Family
from penstock.ledger.schema.unit_ids import unit_id_text
from penstock.ledger.store.statements import state_list


def triggers(family: Family) -> dict[str, str]:
    """Name to statement."""
    name = f"penstock_{family.child.name}"
    made = {f"{name}_sealing": _parent(family, f"{name}_sealing")}
    if family.left:
        made[f"{name}_seal"] = _child(family, f"{name}_seal")
    if family.unborn:
        made[f"{name}_seal_new"] = _birth(family, f"{name}_seal_new")
    return made


def _child(family: Family, name: str) -> str:
    moved = "" if family.fixed else " OR NOT (" + " AND ".join(f"NEW.{b} IS OLD.{b}" for b in family.by) + ")"
    columns = ("status",) if family.fixed else ("status", *family.by)
    left = {
        state: f"NEW.status IN ({state_list(barred)}) AND (OLD.status NOT IN ({state_list(barred)}){moved})"
        for state, barred in family.left.items()
    }
    looks = "\n".join(
        _look(family, state, barred, "cannot become {}", f" AND {left[state]}") for state, barred in family.left.items()
    )
    return f"""CREATE TRIGGER {name} BEFORE UPDATE OF {", ".join(columns)} ON {family.child.table}
WHEN {" OR ".join(f"({condition})" for condition in left.values())}
BEGIN
{looks}
END"""


def _birth(family: Family, name: str) -> str:
    looks = "\n".join(
        _look(family, state, barred, "cannot be born as {}", f" AND NEW.status IN ({state_list(barred)})")
        for state, barred in family.unborn.items()
    )
    barred = {s for states in family.unborn.values() for s in states}
    # After the insert: one that is not made, because the unit is there, breaks nothing.
    return f"""CREATE TRIGGER {name} AFTER INSERT ON {family.child.table}
WHEN NEW.status IN ({state_list(barred)})
BEGIN
{looks}
END"""


def _look(family: Family, state: str, barred: Iterable[str], verb: str, condition: str) -> str:
    child, parent = family.child, family.parent
    refusals = {s: f"{child.name} {verb.format(s)} while its {parent.name} is {state}" for s in barred}
    unit_id = unit_id_text(parent, [f"NEW.{b}" for b in family.by], "sqlite")
    return f"""  SELECT {_refusal("NEW.status", refusals)} FROM {parent.table}
    WHERE unit_id = {unit_id} AND status = '{state}'{condition};"""


def _parent(family: Family, name: str) -> str:
    child, parent = family.child, family.parent
    looks = []
    for state, barred in family.seals.items():
        refusals = {s: f"{parent.name} cannot become {state} while a {child.name} of it is {s}" for s in barred}
        looks.append(f"""  SELECT {_refusal("status", refusals)} FROM {child.table}
    WHERE NEW.status = '{state}' AND {family.same_parent("NEW.", "")} AND status IN ({state_list(barred)}) LIMIT 1;""")
    return f"""CREATE TRIGGER {name} BEFORE UPDATE OF status ON {parent.table}
WHEN NEW.status IN ({state_list(family.seals)}) AND NEW.status IS NOT OLD.status
BEGIN
{chr(10).join(looks)}
END"""


def _refusal(status: str, refusals: dict[str, str]) -> str:
    cases = "".join(f"\n    WHEN '{s}' THEN RAISE(ABORT, 'penstock: {text}')" for s, text in refusals.items())
    return f"CASE {status}{cases} END"

"""Guards and history for SQLite, generated from the machines.

Written so that SQLite 3.40 still reads the file: every message is a literal, and every column that a trigger logs
is coalesced, because an outer `INSERT OR IGNORE` would turn a failed NOT NULL into a silently missing log row.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.ledger import foreign
from penstock.machine import Machine

CLOCK = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"
_LOG = "INSERT INTO transition_log (machine, unit_id, from_status, to_status, actor, reason, version, at, data)"


def kernel_triggers() -> dict[str, str]:
    """Name to statement: the triggers that keep the kernel's own tables append-only."""
    return {
        "penstock_log_insert": """CREATE TRIGGER penstock_log_insert BEFORE INSERT ON transition_log
WHEN EXISTS (SELECT 1 FROM transition_log WHERE seq = NEW.seq)
BEGIN SELECT RAISE(ABORT, 'penstock: transition_log is append-only; a row of it cannot be replaced'); END""",
        "penstock_log_update": """CREATE TRIGGER penstock_log_update BEFORE UPDATE ON transition_log
BEGIN SELECT RAISE(ABORT, 'penstock: transition_log is append-only; its rows cannot be changed'); END""",
        "penstock_log_delete": """CREATE TRIGGER penstock_log_delete BEFORE DELETE ON transition_log
WHEN NOT EXISTS (SELECT 1 FROM prune_permit WHERE machine = OLD.machine AND open)
BEGIN SELECT RAISE(ABORT, 'penstock: transition_log is append-only; old rows go by "penstock db prune"'); END""",
        "penstock_permit_insert": """CREATE TRIGGER penstock_permit_insert BEFORE INSERT ON prune_permit
WHEN EXISTS (SELECT 1 FROM prune_permit WHERE id = NEW.id)
BEGIN SELECT RAISE(ABORT, 'penstock: prune_permit is append-only; a permit cannot be replaced'); END""",
        # Closing a permit, inside the transaction that opened it, is the one change it can have.
        "penstock_permit_update": """CREATE TRIGGER penstock_permit_update BEFORE UPDATE ON prune_permit
WHEN NOT (OLD.open AND NOT NEW.open AND OLD.id IS NEW.id AND OLD.machine IS NEW.machine
  AND OLD.actor IS NEW.actor AND OLD.reason IS NEW.reason AND OLD.at IS NEW.at)
BEGIN SELECT RAISE(ABORT, 'penstock: prune_permit is append-only; its rows cannot be changed'); END""",
        "penstock_permit_delete": """CREATE TRIGGER penstock_permit_delete BEFORE DELETE ON prune_permit
BEGIN SELECT RAISE(ABORT, 'penstock: prune_permit is append-only; its rows cannot be deleted'); END""",
        # A second event of the same key is ignored, by INSERT and by REPLACE alike.
        "penstock_event_insert": """CREATE TRIGGER penstock_event_insert BEFORE INSERT ON event_log
WHEN EXISTS (SELECT 1 FROM event_log WHERE tenant_id = NEW.tenant_id AND event_key = NEW.event_key)
BEGIN SELECT RAISE(IGNORE); END""",
        "penstock_event_update": """CREATE TRIGGER penstock_event_update BEFORE UPDATE ON event_log
BEGIN SELECT RAISE(ABORT, 'penstock: event_log is append-only; its rows cannot be changed'); END""",
        "penstock_event_delete": """CREATE TRIGGER penstock_event_delete BEFORE DELETE ON event_log
WHEN NOT EXISTS (SELECT 1 FROM prune_permit WHERE machine = 'event_log' AND open)
BEGIN SELECT RAISE(ABORT, 'penstock: event_log is append-only; old rows go by "penstock db prune"'); END""",
    }


def machine_triggers(machine: Machine) -> dict[str, str]:
    """Name to statement: the triggers of the machine's table."""
    name = machine.name
    return {
        f"penstock_{name}_birth": _birth(machine),
        f"penstock_{name}_guard": _guard(machine),
        f"penstock_{name}_key": _key(machine),
        f"penstock_{name}_history": _history(machine),
        f"penstock_{name}_death": _death(machine),
    }


def _birth(machine: Machine) -> str:
    births = ", ".join(f"'{s}'" for s in machine.births)
    plain = ", ".join(machine.births)
    refusals = "\n".join(
        f"    WHEN '{s}' THEN RAISE(ABORT, 'penstock: {machine.name} cannot be born as {s}; it is born as {plain}')"
        for s in machine.states
        if s not in machine.births
    )
    unknown = f"RAISE(ABORT, 'penstock: {machine.name} cannot be born in an unknown state; it is born as {plain}')"
    choice = f"CASE NEW.status\n{refusals}\n    ELSE {unknown} END" if refusals else unknown
    return f"""CREATE TRIGGER penstock_{machine.name}_birth AFTER INSERT ON {machine.table}
BEGIN
  SELECT {choice}
    WHERE NEW.status NOT IN ({births});
  SELECT RAISE(ABORT, 'penstock: {machine.name}: that unit is alive; REPLACE would skip its states and its history')
    WHERE (SELECT to_status FROM transition_log WHERE machine = '{machine.name}' AND unit_id = NEW.unit_id
           ORDER BY seq DESC LIMIT 1) IS NOT NULL;
  {_LOG}
  VALUES ('{machine.name}', NEW.unit_id, NULL, NEW.status, COALESCE(NEW.changed_by, 'sql'), NEW.change_reason,
          COALESCE(NEW.version, 0), COALESCE(NEW.changed_at, {CLOCK}), {_data(machine, "NEW")});
  UPDATE {machine.table} SET changed_at = {CLOCK} WHERE unit_id = NEW.unit_id AND NEW.changed_at IS NULL;
END"""


def _guard(machine: Machine) -> str:
    sources: dict[str, list[str]] = {}
    for source, target in machine.pairs:
        if source != target:
            sources.setdefault(source, []).append(f"'{target}'")
    legal = " OR ".join(
        ["NEW.status IS OLD.status"]
        + [f"(OLD.status = '{s}' AND NEW.status IN ({', '.join(targets)}))" for s, targets in sources.items()]
    )
    illegal = [(s, t) for s in machine.states for t in machine.states if s != t and (s, t) not in machine.pairs]
    cases = "".join(
        f"\n    WHEN OLD.status = '{s}' AND NEW.status = '{t}'"
        f" THEN RAISE(ABORT, 'penstock: {machine.name} cannot go from {s} to {t}')"
        for s, t in illegal
    )
    unknown = f"RAISE(ABORT, 'penstock: {machine.name} has no such state; its states are {', '.join(machine.states)}')"
    choice = f"CASE{cases}\n    ELSE {unknown} END" if cases else unknown
    return f"""CREATE TRIGGER penstock_{machine.name}_guard BEFORE UPDATE OF status ON {machine.table}
WHEN NOT COALESCE({legal}, 0)
BEGIN
  SELECT {choice};
END"""


def _key(machine: Machine) -> str:
    # Apart from the guard of states, because its comparisons would cost every commit a fifth of its time.
    keys = ("unit_id", *machine.unit.key)
    same = " AND ".join(f"NEW.{k} IS OLD.{k}" for k in keys)
    return f"""CREATE TRIGGER penstock_{machine.name}_key BEFORE UPDATE OF {", ".join(keys)} ON {machine.table}
WHEN NOT ({same})
BEGIN
  SELECT RAISE(ABORT, 'penstock: {machine.name}: the key of a unit ({", ".join(machine.unit.key)}) cannot be changed');
END"""


def _history(machine: Machine) -> str:
    changed = " OR ".join(f"NOT {_same(c)}" for c in ("status", *machine.tracked))
    strange = _same("version")
    reason = foreign.reason(machine, _same, _named, "NEW.change_reason")
    freed = foreign.freed(machine, "NEW", "OLD")
    return f"""CREATE TRIGGER penstock_{machine.name}_history AFTER UPDATE ON {machine.table}
WHEN {changed} OR ({strange} AND NOT ({foreign.as_it_was(machine, _same)}))
BEGIN
  {_LOG}
  VALUES ('{machine.name}', NEW.unit_id, OLD.status, NEW.status,
          CASE WHEN {strange} THEN 'sql' ELSE COALESCE(NEW.changed_by, 'sql') END,
          CASE WHEN {strange} THEN {reason} ELSE NEW.change_reason END,
          COALESCE(NEW.version, 0) + ({strange}),
          CASE WHEN {strange} THEN {CLOCK} ELSE COALESCE(NEW.changed_at, {CLOCK}) END, {_data(machine, "NEW")});
  UPDATE {machine.table} SET version = NEW.version + 1, changed_by = 'sql', changed_at = {CLOCK}{freed}
    WHERE unit_id = NEW.unit_id AND {strange};
END"""


def _same(column: str) -> str:
    if column == "changed_at":  # filled in after a birth without it
        return "(NEW.changed_at IS OLD.changed_at OR OLD.changed_at IS NULL)"
    return f"(NEW.{column} IS OLD.{column})"


def _named(unless: Mapping[str, str]) -> str:
    parts = " || ".join(f"CASE WHEN {same} THEN '' ELSE '{c}, ' END" for c, same in unless.items())
    return f"NULLIF(rtrim({parts}, ', '), '')"


def _death(machine: Machine) -> str:
    return f"""CREATE TRIGGER penstock_{machine.name}_death BEFORE DELETE ON {machine.table}
BEGIN
  SELECT RAISE(ABORT, 'penstock: {machine.name}: a unit is never deleted; old ones go by "penstock db prune"')
    WHERE NOT EXISTS (SELECT 1 FROM prune_permit WHERE machine = '{machine.name}' AND open);
  {_LOG}
  SELECT '{machine.name}', OLD.unit_id, OLD.status, NULL, actor, reason, COALESCE(OLD.version, 0), at, {_data(machine, "OLD")}
    FROM prune_permit WHERE machine = '{machine.name}' AND open ORDER BY id LIMIT 1;
END"""


def _data(machine: Machine, row: str) -> str:
    if not machine.tracked:
        return "NULL"
    return "json_object(" + ", ".join(f"'{c}', {row}.{c}" for c in machine.tracked) + ")"
